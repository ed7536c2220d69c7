//! Sixteen floats at a time, on whatever vector registers the machine has.
//!
//! Kernels are written once, generic over [`Lanes`], and compiled for AVX-512, for AVX2 with FMA, and without either.
//! [`Machine::here`] says at run time which of them this machine can run. On one machine a kernel always runs the same
//! instructions, so that the same inputs give the same bits.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Floats in a block.
pub(crate) const WIDTH: usize = 16;

/// Sixteen floats, aligned to a cache line.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [f32; WIDTH]);

impl Line {
    pub(crate) const ZERO: Line = Line([0.0; WIDTH]);
}

/// A register, or several, of sixteen floats.
///
/// # Safety
/// All methods may only be called where the instructions they are made of exist: inside a function with the
/// matching `target_feature`, reached after [`Machine::here`] found it. Pointers must be valid for sixteen floats
/// (`load`, `store`), or one (`splat_at`); `load` and `store` need them aligned to 64 bytes.
#[allow(unsafe_code)]
pub(crate) unsafe trait Lanes: Copy {
    /// Registers' worth of accumulators that a kernel may hold.
    const TILE: usize;
    unsafe fn zero() -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    /// self + a·b, where a is the float at a place in all lanes.
    unsafe fn add_product(self, a: *const f32, b: Self) -> Self;
}

#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512);

// SAFETY: each method is one AVX-512F instruction on memory its caller vouches for.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
unsafe impl Lanes for Avx512 {
    const TILE: usize = 28;
    #[inline(always)]
    unsafe fn zero() -> Self {
        unsafe { Avx512(_mm512_setzero_ps()) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { Avx512(_mm512_load_ps(from)) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { _mm512_store_ps(to, self.0) }
    }
    #[inline(always)]
    unsafe fn add_product(self, a: *const f32, b: Self) -> Self {
        unsafe { Avx512(_mm512_fmadd_ps(_mm512_set1_ps(*a), b.0, self.0)) }
    }
}

#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256, __m256);

// SAFETY: each method is AVX2 and FMA instructions on memory its caller vouches for.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
unsafe impl Lanes for Avx2 {
    const TILE: usize = 6;
    #[inline(always)]
    unsafe fn zero() -> Self {
        unsafe { Avx2(_mm256_setzero_ps(), _mm256_setzero_ps()) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { Avx2(_mm256_load_ps(from), _mm256_load_ps(from.add(8))) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe {
            _mm256_store_ps(to, self.0);
            _mm256_store_ps(to.add(8), self.1);
        }
    }
    #[inline(always)]
    unsafe fn add_product(self, a: *const f32, b: Self) -> Self {
        unsafe {
            let a = _mm256_broadcast_ss(&*a);
            Avx2(_mm256_fmadd_ps(a, b.0, self.0), _mm256_fmadd_ps(a, b.1, self.1))
        }
    }
}

/// Plain floats, which the compiler puts into whatever registers the target has.
#[derive(Clone, Copy)]
pub(crate) struct Any([f32; WIDTH]);

// SAFETY: plain loads and stores on memory its caller vouches for.
#[allow(unsafe_code)]
unsafe impl Lanes for Any {
    const TILE: usize = 2;
    #[inline(always)]
    unsafe fn zero() -> Self {
        Any([0.0; WIDTH])
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { Any(*from.cast::<[f32; WIDTH]>()) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { *to.cast::<[f32; WIDTH]>() = self.0 }
    }
    #[inline(always)]
    unsafe fn add_product(mut self, a: *const f32, b: Self) -> Self {
        let a = unsafe { *a };
        for (sum, b) in self.0.iter_mut().zip(b.0) {
            *sum += a * b;
        }
        self
    }
}

/// A function of plain loops, compiled for each machine and called for the one given.
macro_rules! for_machines {
    ($(#[$doc:meta])* $visible:vis fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block) => {
        $(#[$doc])*
        #[allow(unsafe_code, clippy::too_many_arguments)]
        $visible fn $name(machine: $crate::cpu::lanes::Machine, $($argument: $kind),*) {
            #[inline(always)]
            fn body($($argument: $kind),*) $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
            unsafe fn avx512($($argument: $kind),*) {
                body($($argument),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            unsafe fn avx2($($argument: $kind),*) {
                body($($argument),*)
            }
            match machine {
                // SAFETY: the machine was found at run time to have these instructions.
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::lanes::Machine::Avx512 => unsafe { avx512($($argument),*) },
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::lanes::Machine::Avx2 => unsafe { avx2($($argument),*) },
                $crate::cpu::lanes::Machine::Any => body($($argument),*),
            }
        }
    };
}
pub(crate) use for_machines;

/// Which kernels this machine can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Machine {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Any,
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
}

impl Machine {
    /// The best this machine can do.
    pub(crate) fn here() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if has_avx512() {
                return Machine::Avx512;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Machine::Avx2;
            }
        }
        Machine::Any
    }

    /// All this machine can do, for tests.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<Self> {
        let mut all = vec![Machine::Any];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                all.push(Machine::Avx2);
            }
            if has_avx512() {
                all.push(Machine::Avx512);
            }
        }
        all
    }
}

//! SIMD vectors of sixteen floats, on the registers that the processor has.
//!
//! Kernels are written once, generic over [`Simd`], and compiled for AVX-512, for AVX2 with FMA, and for neither.
//! [`Isa::detect`] picks one at run time. On a given machine a kernel always runs the same instructions, so equal inputs give
//! equal bits.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Floats in a vector: the channels of a block.
pub(crate) const WIDTH: usize = 16;

/// Sixteen floats, aligned to a cache line.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
pub(crate) struct F32x16(pub(crate) [f32; WIDTH]);

impl F32x16 {
    pub(crate) const ZERO: F32x16 = F32x16([0.0; WIDTH]);

    /// A pointer to the first float.
    #[inline(always)]
    pub(crate) fn at(&self) -> *const f32 {
        self.0.as_ptr()
    }

    /// A pointer to the first float, to write.
    #[inline(always)]
    pub(crate) fn at_mut(&mut self) -> *mut f32 {
        self.0.as_mut_ptr()
    }
}

/// Sixteen floats in one or several registers.
///
/// # Safety
/// Call the methods only where their instructions exist: inside a function with the matching `target_feature`, reached
/// after [`Isa::detect`] found it. Pointers must be valid for sixteen floats and aligned to 64 bytes (`load`, `store`), or
/// valid for one float (`add_product`).
#[allow(unsafe_code)]
pub(crate) unsafe trait Simd: Copy {
    /// How many vectors a kernel may hold in registers as accumulators.
    const TILE: usize;
    unsafe fn zero() -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    /// self + a·b, where a is the float at the pointer, broadcast to all lanes.
    unsafe fn add_product(self, a: *const f32, b: Self) -> Self;
    unsafe fn splat(x: f32) -> Self;
    /// self + a·b.
    unsafe fn plus(self, a: Self, b: Self) -> Self;
    /// self − a·b.
    unsafe fn minus(self, a: Self, b: Self) -> Self;
    unsafe fn add(self, b: Self) -> Self;
    unsafe fn sub(self, b: Self) -> Self;
    unsafe fn mul(self, b: Self) -> Self;
    /// The larger of both; self where self is NaN.
    unsafe fn at_least(self, floor: Self) -> Self;
    /// self where `gate` is positive, zero elsewhere.
    unsafe fn where_positive(self, gate: Self) -> Self;
}

/// Wraps the bodies of [`Simd`] methods in `unsafe`: their callers keep the promise of the trait.
macro_rules! vouched {
    ($(fn $name:ident($($argument:tt)*) $(-> $kind:ty)? { $($body:tt)* })+) => {$(
        #[inline(always)]
        #[allow(unused_unsafe, reason = "some bodies are safe")]
        unsafe fn $name($($argument)*) $(-> $kind)? {
            // SAFETY: the caller promises that the processor has these instructions, and that pointers are valid and aligned.
            unsafe { $($body)* }
        }
    )+};
}

#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512);

// SAFETY: each method is one AVX-512F instruction on memory that the caller vouches for.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
unsafe impl Simd for Avx512 {
    const TILE: usize = 28;
    vouched! {
        fn zero() -> Self { Avx512(_mm512_setzero_ps()) }
        fn load(from: *const f32) -> Self { Avx512(_mm512_load_ps(from)) }
        fn store(self, to: *mut f32) { _mm512_store_ps(to, self.0) }
        fn add_product(self, a: *const f32, b: Self) -> Self {
            Avx512(_mm512_fmadd_ps(_mm512_set1_ps(*a), b.0, self.0))
        }
        fn plus(self, a: Self, b: Self) -> Self { Avx512(_mm512_fmadd_ps(a.0, b.0, self.0)) }
        fn minus(self, a: Self, b: Self) -> Self { Avx512(_mm512_fnmadd_ps(a.0, b.0, self.0)) }
        fn splat(x: f32) -> Self { Avx512(_mm512_set1_ps(x)) }
        fn add(self, b: Self) -> Self { Avx512(_mm512_add_ps(self.0, b.0)) }
        fn sub(self, b: Self) -> Self { Avx512(_mm512_sub_ps(self.0, b.0)) }
        fn mul(self, b: Self) -> Self { Avx512(_mm512_mul_ps(self.0, b.0)) }
        fn at_least(self, floor: Self) -> Self {
            // The instruction returns its second operand where either is NaN.
            Avx512(_mm512_max_ps(floor.0, self.0))
        }
        fn where_positive(self, gate: Self) -> Self {
            let open = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(gate.0, _mm512_setzero_ps());
            Avx512(_mm512_maskz_mov_ps(open, self.0))
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256, __m256);

// SAFETY: each method is AVX2 and FMA instructions on memory that the caller vouches for.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
unsafe impl Simd for Avx2 {
    const TILE: usize = 6;
    vouched! {
        fn zero() -> Self { Avx2(_mm256_setzero_ps(), _mm256_setzero_ps()) }
        fn load(from: *const f32) -> Self { Avx2(_mm256_load_ps(from), _mm256_load_ps(from.add(8))) }
        fn store(self, to: *mut f32) {
            _mm256_store_ps(to, self.0);
            _mm256_store_ps(to.add(8), self.1);
        }
        fn add_product(self, a: *const f32, b: Self) -> Self {
            let a = _mm256_broadcast_ss(&*a);
            Avx2(_mm256_fmadd_ps(a, b.0, self.0), _mm256_fmadd_ps(a, b.1, self.1))
        }
        fn plus(self, a: Self, b: Self) -> Self {
            Avx2(_mm256_fmadd_ps(a.0, b.0, self.0), _mm256_fmadd_ps(a.1, b.1, self.1))
        }
        fn minus(self, a: Self, b: Self) -> Self {
            Avx2(_mm256_fnmadd_ps(a.0, b.0, self.0), _mm256_fnmadd_ps(a.1, b.1, self.1))
        }
        fn splat(x: f32) -> Self { Avx2(_mm256_set1_ps(x), _mm256_set1_ps(x)) }
        fn add(self, b: Self) -> Self { Avx2(_mm256_add_ps(self.0, b.0), _mm256_add_ps(self.1, b.1)) }
        fn sub(self, b: Self) -> Self { Avx2(_mm256_sub_ps(self.0, b.0), _mm256_sub_ps(self.1, b.1)) }
        fn mul(self, b: Self) -> Self { Avx2(_mm256_mul_ps(self.0, b.0), _mm256_mul_ps(self.1, b.1)) }
        fn at_least(self, floor: Self) -> Self {
            Avx2(_mm256_max_ps(floor.0, self.0), _mm256_max_ps(floor.1, self.1))
        }
        fn where_positive(self, gate: Self) -> Self {
            let open = |gate| _mm256_cmp_ps::<_CMP_GT_OQ>(gate, _mm256_setzero_ps());
            Avx2(_mm256_and_ps(open(gate.0), self.0), _mm256_and_ps(open(gate.1), self.1))
        }
    }
}

/// Plain floats: the compiler picks the registers of the target.
#[derive(Clone, Copy)]
pub(crate) struct Any([f32; WIDTH]);

// SAFETY: plain loads and stores on memory that the caller vouches for.
#[allow(unsafe_code)]
unsafe impl Simd for Any {
    const TILE: usize = 2;
    vouched! {
        fn zero() -> Self { Any([0.0; WIDTH]) }
        fn load(from: *const f32) -> Self { Any(*from.cast::<[f32; WIDTH]>()) }
        fn store(self, to: *mut f32) { *to.cast::<[f32; WIDTH]>() = self.0 }
        fn add_product(mut self, a: *const f32, b: Self) -> Self {
            let a = *a;
            for (sum, b) in self.0.iter_mut().zip(b.0) {
                *sum += a * b;
            }
            self
        }
        fn plus(self, a: Self, b: Self) -> Self {
            Any(std::array::from_fn(|lane| self.0[lane] + a.0[lane] * b.0[lane]))
        }
        fn minus(self, a: Self, b: Self) -> Self {
            Any(std::array::from_fn(|lane| self.0[lane] - a.0[lane] * b.0[lane]))
        }
        fn splat(x: f32) -> Self { Any([x; WIDTH]) }
        fn add(self, b: Self) -> Self { Any(std::array::from_fn(|lane| self.0[lane] + b.0[lane])) }
        fn sub(self, b: Self) -> Self { Any(std::array::from_fn(|lane| self.0[lane] - b.0[lane])) }
        fn mul(self, b: Self) -> Self { Any(std::array::from_fn(|lane| self.0[lane] * b.0[lane])) }
        fn at_least(self, floor: Self) -> Self {
            Any(std::array::from_fn(
                |lane| if self.0[lane] < floor.0[lane] { floor.0[lane] } else { self.0[lane] },
            ))
        }
        fn where_positive(self, gate: Self) -> Self {
            Any(std::array::from_fn(|lane| if gate.0[lane] > 0.0 { self.0[lane] } else { 0.0 }))
        }
    }
}

/// Makes a function that takes an [`Isa`] from one that is generic over a [`Simd`] vector: the body is compiled once for each
/// instruction set. The body may rely on the instructions and on the alignment of vectors; it checks its arguments for everything
/// else, or its only caller does.
macro_rules! for_each_isa {
    ($(#[$doc:meta])* $visible:vis fn $name:ident<$vector:ident>($($argument:ident: $kind:ty),* $(,)?) $body:block) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        $visible fn $name(isa: $crate::cpu::simd::Isa, $($argument: $kind),*) {
            #[inline(always)]
            unsafe fn generic<$vector: $crate::cpu::simd::Simd>($($argument: $kind),*) $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
            unsafe fn avx512($($argument: $kind),*) {
                // SAFETY: this function has the instructions; the arguments are checked for everything else.
                unsafe { generic::<$crate::cpu::simd::Avx512>($($argument),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            unsafe fn avx2($($argument: $kind),*) {
                // SAFETY: as above.
                unsafe { generic::<$crate::cpu::simd::Avx2>($($argument),*) }
            }
            // SAFETY: `Isa::detect` found these instructions at run time; the arguments are checked for everything else.
            unsafe {
                match isa {
                    #[cfg(target_arch = "x86_64")]
                    $crate::cpu::simd::Isa::Avx512 => avx512($($argument),*),
                    #[cfg(target_arch = "x86_64")]
                    $crate::cpu::simd::Isa::Avx2 => avx2($($argument),*),
                    $crate::cpu::simd::Isa::Any => generic::<$crate::cpu::simd::Any>($($argument),*),
                }
            }
        }
    };
}
pub(crate) use for_each_isa;

/// The instruction set that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isa {
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

impl Isa {
    /// The best instruction set of this machine.
    pub(crate) fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if has_avx512() {
                return Isa::Avx512;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Isa::Avx2;
            }
        }
        Isa::Any
    }

    /// All instruction sets of this machine, for tests.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<Self> {
        let mut all = vec![Isa::Any];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                all.push(Isa::Avx2);
            }
            if has_avx512() {
                all.push(Isa::Avx512);
            }
        }
        all
    }
}

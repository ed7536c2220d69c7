//! SIMD vectors of sixteen floats, on the registers that the processor has.
//!
//! Kernels are written once, over [`Vectors`], and compiled for each instruction set: AVX-512, AVX2 with FMA, NEON, and none. The
//! crate `pulp` finds the best one at run time, and has the instructions. On a given machine a kernel always runs the same
//! instructions, so equal inputs give equal bits.

use bytemuck::Zeroable;
use pulp::NullaryFnOnce;
pub(crate) use pulp::{Arch as Isa, Simd};
use std::ops::{Add, Mul, Sub};

/// Floats in a vector: the channels of a block.
pub(crate) const WIDTH: usize = 16;

/// Sixteen floats in memory, aligned to a cache line.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
pub(crate) struct F32x16(pub(crate) [f32; WIDTH]);

impl F32x16 {
    pub(crate) const ZERO: F32x16 = F32x16([0.0; WIDTH]);
}

/// Makes vectors of `N` registers. It exists only where the processor has the instructions of `S`.
#[derive(Clone, Copy)]
pub(crate) struct Vectors<S, const N: usize>(S);

/// Sixteen floats in `N` registers.
#[derive(Clone, Copy)]
pub(crate) struct Vector<S: Simd, const N: usize> {
    simd: S,
    parts: [S::f32s; N],
}

/// Runs a statement for each of the `N` registers. The first ones are written out, not in a loop: so the compiler keeps
/// vectors in registers, in all but the scalar code.
macro_rules! each_part {
    ($part:ident: $statement:expr) => {
        each_part!($part: $statement, 0 1 2 3);
        for $part in 4..N {
            $statement;
        }
    };
    ($part:ident: $statement:expr, $($number:literal)+) => {
        $(if $number < N {
            let $part = $number;
            $statement;
        })+
    };
}

impl<S: Simd, const N: usize> Vectors<S, N> {
    /// How many vectors a kernel may hold in registers as accumulators, beside one vector and one number to multiply.
    pub(crate) const TILE: usize = if S::IS_SCALAR { 2 } else { (S::REGISTER_COUNT - 1) / N - 1 };

    #[inline(always)]
    pub(crate) fn zero(self) -> Vector<S, N> {
        Vector { simd: self.0, parts: Zeroable::zeroed() }
    }

    #[inline(always)]
    pub(crate) fn splat(self, x: f32) -> Vector<S, N> {
        let mut all = self.zero();
        each_part!(part: all.parts[part] = self.0.splat_f32s(x));
        all
    }

    #[inline(always)]
    pub(crate) fn load(self, from: &F32x16) -> Vector<S, N> {
        Vector { simd: self.0, parts: bytemuck::cast(from.0) }
    }
}

impl<S: Simd, const N: usize> Vector<S, N> {
    #[inline(always)]
    pub(crate) fn store(self, to: &mut F32x16) {
        to.0 = bytemuck::cast(self.parts);
    }

    /// self + a·b.
    #[inline(always)]
    pub(crate) fn plus(mut self, a: f32, b: Self) -> Self {
        let a = self.simd.splat_f32s(a);
        each_part!(part: self.parts[part] = self.simd.mul_add_e_f32s(a, b.parts[part], self.parts[part]));
        self
    }

    /// self − a·b.
    #[inline(always)]
    pub(crate) fn minus(mut self, a: f32, b: Self) -> Self {
        let a = self.simd.splat_f32s(a);
        each_part!(part: self.parts[part] = self.simd.negate_mul_add_e_f32s(a, b.parts[part], self.parts[part]));
        self
    }

    /// The larger of both; self where self is NaN.
    #[inline(always)]
    pub(crate) fn at_least(mut self, floor: Self) -> Self {
        each_part!(part: {
            let below = self.simd.less_than_f32s(self.parts[part], floor.parts[part]);
            self.parts[part] = self.simd.select_f32s(below, floor.parts[part], self.parts[part]);
        });
        self
    }

    /// self where `gate` is positive, zero elsewhere.
    #[inline(always)]
    pub(crate) fn where_positive(mut self, gate: Self) -> Self {
        let zero = self.simd.splat_f32s(0.0);
        each_part!(part: {
            let open = self.simd.greater_than_f32s(gate.parts[part], zero);
            self.parts[part] = self.simd.select_f32s(open, self.parts[part], zero);
        });
        self
    }
}

macro_rules! operator {
    ($operator:ident, $method:ident, $instruction:ident) => {
        impl<S: Simd, const N: usize> $operator for Vector<S, N> {
            type Output = Self;

            #[inline(always)]
            fn $method(mut self, b: Self) -> Self {
                each_part!(part: self.parts[part] = self.simd.$instruction(self.parts[part], b.parts[part]));
                self
            }
        }
    };
}
operator!(Add, add, add_f32s);
operator!(Sub, sub, sub_f32s);
operator!(Mul, mul, mul_f32s);

impl<S: Simd, const N: usize> Mul<f32> for Vector<S, N> {
    type Output = Self;

    #[inline(always)]
    fn mul(self, b: f32) -> Self {
        self * Vectors::<S, N>(self.simd).splat(b)
    }
}

/// A kernel with its arguments; see [`for_each_isa`].
pub(crate) trait Kernel {
    /// `#[inline(always)]`, as everything that it calls with vectors: what is not inlined is compiled without the instructions.
    /// So a kernel has no closures that calculate.
    fn run<S: Simd, const N: usize>(self, simd: Vectors<S, N>);
}

/// Runs a kernel with an instruction set.
#[inline(always)]
pub(crate) fn run_on(isa: Isa, kernel: impl Kernel) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::V4(simd) => vectorize::<_, 1>(simd, kernel),
        #[cfg(target_arch = "x86_64")]
        Isa::V3(simd) => vectorize::<_, 2>(simd, kernel),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon(simd) => vectorize::<_, 4>(simd, kernel),
        _ => vectorize::<_, WIDTH>(pulp::Scalar, kernel),
    }
}

#[inline(always)]
fn vectorize<S: Simd, const N: usize>(simd: S, kernel: impl Kernel) {
    struct Run<K, S, const N: usize>(K, Vectors<S, N>);
    impl<K: Kernel, S: Simd, const N: usize> NullaryFnOnce for Run<K, S, N> {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            self.0.run(self.1);
        }
    }
    simd.vectorize(Run(kernel, Vectors::<S, N>(simd)));
}

/// Makes a function that takes an [`Isa`] from one that takes [`Vectors`]: the body is compiled once for each instruction set.
macro_rules! for_each_isa {
    ($(#[$doc:meta])* $visible:vis fn $name:ident($simd:ident, $($argument:ident: $kind:ty),* $(,)?) $body:block) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        $visible fn $name(isa: $crate::cpu::simd::Isa, $($argument: $kind),*) {
            struct Arguments<T>(T);
            impl $crate::cpu::simd::Kernel for Arguments<($($kind,)*)> {
                #[inline(always)]
                fn run<S: $crate::cpu::simd::Simd, const N: usize>(self, $simd: $crate::cpu::simd::Vectors<S, N>) {
                    let Arguments(($($argument,)*)) = self;
                    $body
                }
            }
            $crate::cpu::simd::run_on(isa, Arguments(($($argument,)*)));
        }
    };
}
pub(crate) use for_each_isa;

/// All instruction sets of this machine.
#[cfg(test)]
pub(crate) fn every_isa() -> Vec<Isa> {
    let mut all = vec![Isa::Scalar];
    #[cfg(target_arch = "x86_64")]
    {
        all.extend(pulp::x86::V3::try_new().map(Isa::V3));
        all.extend(pulp::x86::V4::try_new().map(Isa::V4));
    }
    #[cfg(target_arch = "aarch64")]
    all.extend(pulp::aarch64::Neon::try_new().map(Isa::Neon));
    all
}

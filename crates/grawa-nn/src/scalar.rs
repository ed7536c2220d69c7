//! The number types of the plain path: `f32` as in training, `f64` as the reference, and [`Dual`](crate::Dual) for
//! derivatives of either.

use crate::matmul::gemm;
use num_traits::{One, Zero};
use std::fmt::Debug;
use std::iter::Sum;
use std::ops::{AddAssign, Div, Sub};

/// A number type of the plain path.
pub trait Scalar:
    Copy
    + PartialOrd
    + Zero
    + One
    + Sub<Output = Self>
    + Div<Output = Self>
    + AddAssign
    + Sum
    + Debug
    + Default
    + Send
    + Sync
    + 'static
{
    /// From a count, a constant or a stored number.
    fn of(x: f64) -> Self;
    /// As an f64.
    fn wide(self) -> f64;
    /// √x.
    fn sqrt(self) -> Self;
    /// eˣ.
    fn exp(self) -> Self;
    /// The natural logarithm.
    fn ln(self) -> Self;
    /// out (m × n, row by row) ← a (m × k) · b (k × n), added to `out` if `add`. Each matrix comes with the distances
    /// between its rows and between its columns.
    fn product(
        sides: [usize; 3],
        a: (&[Self], [isize; 2]),
        b: (&[Self], [isize; 2]),
        out: &mut [Self],
        add: bool,
    );
}

macro_rules! scalar {
    ($number:ident) => {
        impl Scalar for $number {
            fn of(x: f64) -> Self {
                x as $number
            }
            fn wide(self) -> f64 {
                self.into()
            }
            fn sqrt(self) -> Self {
                $number::sqrt(self)
            }
            fn exp(self) -> Self {
                $number::exp(self)
            }
            fn ln(self) -> Self {
                $number::ln(self)
            }
            fn product(
                sides: [usize; 3],
                a: (&[Self], [isize; 2]),
                b: (&[Self], [isize; 2]),
                out: &mut [Self],
                add: bool,
            ) {
                gemm(sides, a, b, out, add);
            }
        }
    };
}

scalar!(f32);
scalar!(f64);

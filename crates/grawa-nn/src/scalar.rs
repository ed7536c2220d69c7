//! The numbers the plain path computes with: `f32` as networks are trained, `f64` as the truth to compare with.

use num_traits::Float;
use std::fmt::Debug;
use std::iter::Sum;
use std::ops::{AddAssign, MulAssign};

/// A floating-point number.
pub trait Scalar: Float + AddAssign + MulAssign + Sum + Debug + Default + Send + Sync + 'static {
    /// From a count or a constant.
    fn of(x: f64) -> Self;
    /// From a stored number.
    fn load(x: f32) -> Self;
    /// As a stored number.
    fn store(self) -> f32;
}

impl Scalar for f32 {
    fn of(x: f64) -> Self {
        x as f32
    }
    fn load(x: f32) -> Self {
        x
    }
    fn store(self) -> f32 {
        self
    }
}

impl Scalar for f64 {
    fn of(x: f64) -> Self {
        x
    }
    fn load(x: f32) -> Self {
        x.into()
    }
    fn store(self) -> f32 {
        self as f32
    }
}

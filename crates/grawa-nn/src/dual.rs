//! A number with its derivative in one direction: value + ε·tangent, ε² = 0.
//!
//! The plain path computes with it as with any number. A [`Tape`](crate::Tape) whose parameters have a vector as their
//! tangents gives the Hessian times that vector as the tangents of its gradient: exactly, including the statistics of
//! batch norm, and without a step size. Comparisons use values alone: the side of a kink has no derivative.
//!
//! ```
//! use grawa_nn::{Dual, Mode, Shape, Tape, zoo};
//! let net = zoo::digits("digits", Shape::image(1, 8), 4, 10)?;
//! let along = |x: f32, tangent: f64| Dual { value: f64::from(x), tangent };
//! let parameters: Vec<_> = net.initial(7).into_iter().map(|x| along(x, 0.1)).collect();
//! let statistics: Vec<_> = net.initial_statistics().into_iter().map(|x| along(x, 0.0)).collect();
//! let images = vec![along(0.5, 0.0); 2 * net.input().len()];
//! let tape = Tape::forward(&net, &parameters, &statistics, &images, Mode::Train { dropout: None })?;
//! let (_, gradient) = tape.backward(&parameters, &[3, 9], 0.5)?;
//! let hessian_times_vector: Vec<f64> = gradient.iter().map(|g| g.tangent).collect();
//! # Ok::<(), grawa_nn::Error>(())
//! ```

use crate::scalar::Scalar;
use num_traits::{One, Zero};
use std::cmp::Ordering;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Sub};

/// A number and its derivative in a direction.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dual<T> {
    /// The number.
    pub value: T,
    /// Its derivative.
    pub tangent: T,
}

impl<T: Scalar> Dual<T> {
    /// A function of this number, given its value and its derivative.
    fn map(self, value: T, slope: T) -> Self {
        Dual { value, tangent: self.tangent * slope }
    }
}

impl<T: Scalar> PartialEq for Dual<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<T: Scalar> PartialOrd for Dual<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.value.partial_cmp(&other.value)
    }
}

impl<T: Scalar> Add for Dual<T> {
    type Output = Self;
    fn add(self, b: Self) -> Self {
        Dual { value: self.value + b.value, tangent: self.tangent + b.tangent }
    }
}

impl<T: Scalar> Sub for Dual<T> {
    type Output = Self;
    fn sub(self, b: Self) -> Self {
        Dual { value: self.value - b.value, tangent: self.tangent - b.tangent }
    }
}

impl<T: Scalar> Mul for Dual<T> {
    type Output = Self;
    fn mul(self, b: Self) -> Self {
        Dual { value: self.value * b.value, tangent: self.tangent * b.value + self.value * b.tangent }
    }
}

impl<T: Scalar> Div for Dual<T> {
    type Output = Self;
    fn div(self, b: Self) -> Self {
        let value = self.value / b.value;
        Dual { value, tangent: (self.tangent - value * b.tangent) / b.value }
    }
}

impl<T: Scalar> AddAssign for Dual<T> {
    fn add_assign(&mut self, b: Self) {
        *self = *self + b;
    }
}

impl<T: Scalar> Sum for Dual<T> {
    fn sum<I: Iterator<Item = Self>>(numbers: I) -> Self {
        numbers.fold(Self::zero(), Add::add)
    }
}

impl<T: Scalar> Zero for Dual<T> {
    fn zero() -> Self {
        Dual { value: T::zero(), tangent: T::zero() }
    }
    fn is_zero(&self) -> bool {
        self.value.is_zero() && self.tangent.is_zero()
    }
}

impl<T: Scalar> One for Dual<T> {
    fn one() -> Self {
        Dual { value: T::one(), tangent: T::zero() }
    }
}

impl<T: Scalar> Scalar for Dual<T> {
    fn of(x: f64) -> Self {
        Dual { value: T::of(x), tangent: T::zero() }
    }
    fn wide(self) -> f64 {
        self.value.wide()
    }
    fn sqrt(self) -> Self {
        let root = self.value.sqrt();
        self.map(root, T::of(0.5) / root)
    }
    fn exp(self) -> Self {
        let power = self.value.exp();
        self.map(power, power)
    }
    fn ln(self) -> Self {
        self.map(self.value.ln(), T::one() / self.value)
    }
    fn product(
        sides: [usize; 3],
        (a, a_strides): (&[Self], [isize; 2]),
        (b, b_strides): (&[Self], [isize; 2]),
        out: &mut [Self],
        add: bool,
    ) {
        // Products of plain numbers have fast kernels: (a + εa')(b + εb') = ab + ε(a'b + ab').
        let parts = |of: &[Self]| -> [Vec<T>; 2] {
            [of.iter().map(|x| x.value).collect(), of.iter().map(|x| x.tangent).collect()]
        };
        let ([a, da], [b, db], [mut value, mut tangent]) = (parts(a), parts(b), parts(out));
        T::product(sides, (&a, a_strides), (&b, b_strides), &mut value, add);
        T::product(sides, (&da, a_strides), (&b, b_strides), &mut tangent, add);
        T::product(sides, (&a, a_strides), (&db, b_strides), &mut tangent, true);
        for (out, (value, tangent)) in out.iter_mut().zip(value.into_iter().zip(tangent)) {
            *out = Dual { value, tangent };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matmul::{As, matmul};
    use proptest::prelude::*;

    /// Expressions of two numbers, with every operation.
    fn expressions<T: Scalar>(x: T, y: T) -> [T; 8] {
        let mut chained = x;
        chained += y;
        chained = (chained * x - y / x) / y;
        [x + y, x - y, x * y, x / y, (x * x + y).sqrt(), (x / y).exp(), (x + y).ln(), chained]
    }

    proptest! {
        #[test]
        fn tangents_are_the_slopes_of_differences(x in 0.5f64..2.0, y in 0.5f64..2.0, dx in -1.0f64..1.0, dy in -1.0f64..1.0) {
            let step = 1e-6;
            let found = expressions(Dual { value: x, tangent: dx }, Dual { value: y, tangent: dy });
            let (up, down) = (expressions(x + step * dx, y + step * dy), expressions(x - step * dx, y - step * dy));
            for ((found, up), down) in found.into_iter().zip(up).zip(down) {
                // The mean of both sides differs by half the curvature times the step squared.
                prop_assert!((found.value - (up + down) / 2.0).abs() < 1e-7);
                prop_assert!((found.tangent - (up - down) / (2.0 * step)).abs() < 1e-7);
            }
        }

        #[test]
        fn products_are_those_of_the_numbers_one_by_one(m in 1usize..5, k in 0usize..5, n in 1usize..5, transposed: bool, add: bool, seed: u64) {
            let mut draws = grawa_core::Key::new(seed, grawa_core::Purpose::Problem).stream();
            let mut some = |len: usize| (0..len).map(|_| Dual { value: draws.normal(), tangent: draws.normal() }).collect::<Vec<_>>();
            let (a, b, start) = (some(m * k), some(k * n), some(m * n));
            let mut out = start.clone();
            matmul([m, k, n], (&a, if transposed { As::Columns } else { As::Rows }), (&b, As::Rows), &mut out, add);
            for i in 0..m {
                for j in 0..n {
                    let first = if add { start[i * n + j] } else { Dual::zero() };
                    let plain = (0..k).map(|l| (if transposed { a[l * m + i] } else { a[i * k + l] }) * b[l * n + j]).fold(first, Add::add);
                    prop_assert!((out[i * n + j].value - plain.value).abs() < 1e-12);
                    prop_assert!((out[i * n + j].tangent - plain.tangent).abs() < 1e-12);
                }
            }
        }
    }
}

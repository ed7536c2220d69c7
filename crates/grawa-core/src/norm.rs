//! Norms of gradients, span by span, in one pass.
//!
//! Squares are summed in `f64` over a fixed number of partial sums: nothing overflows, small gradients are not lost, and the
//! result depends on the vector alone, not on the machine or the number of threads.

use crate::error::expect_len;
use crate::{Error, Layout};

/// Independent sums, so that the compiler can use SIMD registers.
const LANES: usize = 16;

/// ‖x‖₂.
pub fn norm(x: &[f32]) -> f64 {
    square(x).sqrt()
}

/// ‖x − y‖₂ of two vectors of a length.
pub fn distance(x: &[f32], y: &[f32]) -> f64 {
    sum(x.iter().zip(y).map(|(&x, &y)| f64::from(x) - f64::from(y))).sqrt()
}

/// ‖Gₖ‖₂ of every span of a gradient.
///
/// ```
/// use grawa_core::{Layout, norm::norms};
/// let layout = Layout::new([("a", vec![2]), ("b", vec![1])])?;
/// let mut out = [0.0; 2];
/// norms(&layout, &[3.0, 4.0, -2.0], &mut out)?;
/// assert_eq!(out, [5.0, 2.0]);
/// # Ok::<(), grawa_core::Error>(())
/// ```
pub fn norms(layout: &Layout, gradient: &[f32], out: &mut [f64]) -> Result<(), Error> {
    expect_len("the gradient", gradient.len(), layout.len())?;
    expect_len("the list of norms", out.len(), layout.spans().len())?;
    for (out, span) in out.iter_mut().zip(layout.spans()) {
        *out = norm(&gradient[span.range()]);
    }
    Ok(())
}

/// The sum of squares, in the order of [`square`].
fn sum(differences: impl Iterator<Item = f64>) -> f64 {
    let mut lanes = [0.0f64; LANES];
    differences.enumerate().for_each(|(at, x)| lanes[at % LANES] += x * x);
    lanes.iter().sum()
}

fn square(x: &[f32]) -> f64 {
    let mut lanes = [0.0f64; LANES];
    let (blocks, rest) = x.as_chunks::<LANES>();
    for block in blocks {
        for (lane, &x) in lanes.iter_mut().zip(block) {
            *lane += f64::from(x) * f64::from(x);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane += f64::from(x) * f64::from(x);
    }
    lanes.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn extremes_neither_overflow_nor_vanish() {
        assert!((norm(&[f32::MAX; 4]) / (2.0 * f64::from(f32::MAX)) - 1.0).abs() < 1e-12);
        assert!((norm(&[1e-40; 100]) / (f64::from(1e-40f32) * 10.0) - 1.0).abs() < 1e-12);
        assert!(norm(&[1.0, f32::NAN]).is_nan());
        assert_eq!(norm(&[f32::NEG_INFINITY, 1.0]), f64::INFINITY);
        assert_eq!(norm(&[]), 0.0);
    }

    #[test]
    fn lengths_must_fit() {
        let layout = Layout::flat(3);
        assert!(norms(&layout, &[0.0; 2], &mut [0.0]).is_err());
        assert!(norms(&layout, &[0.0; 3], &mut [0.0; 2]).is_err());
    }

    proptest! {
        #[test]
        fn agrees_with_the_plain_sum(x in proptest::collection::vec(-1e3f32..1e3, 0..200)) {
            let plain = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
            prop_assert!((norm(&x) - plain).abs() <= 1e-12 * plain);
        }
    }
}

//! The Vincent function f(x, y) = −sin(10 ln x) − sin(10 ln y), defined for all positive x and y.
//!
//! Its valleys all reach −2, but each is e^(2π/10) ≈ 1.87 times as wide as the one before it, so the valley in which a
//! method ends shows how strongly it prefers flat regions. The function is a sum over the axes:
//! gradient and (diagonal) Hessian are computed axis by axis.

use std::f64::consts::{FRAC_PI_2, TAU};

/// The square the paper draws: both coordinates from 0.25 to 10.
pub const DOMAIN: [f64; 2] = [0.25, 10.0];

/// f at a point; NaN where a coordinate is not positive.
pub fn value(at: [f64; 2]) -> f64 {
    -at.iter().map(|&x| libm::sin(10.0 * libm::log(x))).sum::<f64>()
}

/// The gradient of f.
pub fn gradient(at: [f64; 2]) -> [f64; 2] {
    at.map(|x| -10.0 / x * libm::cos(10.0 * libm::log(x)))
}

/// The two eigenvalues of the Hessian, which is diagonal: the curvature along x and along y.
pub fn curvature(at: [f64; 2]) -> [f64; 2] {
    at.map(|x| {
        let phase = 10.0 * libm::log(x);
        (100.0 * libm::sin(phase) + 10.0 * libm::cos(phase)) / (x * x)
    })
}

/// The bottom of the `index`-th valley along an axis; 0 is the sharpest one inside [`DOMAIN`], 5 the flattest.
pub fn bottom(index: i32) -> f64 {
    libm::exp((FRAC_PI_2 + TAU * f64::from(index - 2)) / 10.0)
}

/// The valleys whose bottom lies in [`DOMAIN`].
pub const VALLEYS: std::ops::RangeInclusive<i32> = 0..=5;

/// The index of the valley that `x` lies in: from one ridge to the next.
pub fn valley(x: f64) -> i32 {
    libm::floor((10.0 * libm::log(x) + FRAC_PI_2) / TAU) as i32 + 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bottoms_and_curvatures_are_the_known_ones() {
        let expected =
            [(0.333, 901.7), (0.624, 256.6), (1.170, 73.0), (2.193, 20.8), (4.111, 5.92), (7.706, 1.68)];
        for (index, (x, sharp)) in VALLEYS.zip(expected) {
            let at = bottom(index);
            assert!((at - x).abs() < 5e-4, "valley {index} lies at {at}");
            assert!((curvature([at, at])[0] / sharp - 1.0).abs() < 3e-3);
            assert!((value([at, at]) + 2.0).abs() < 1e-12);
            assert_eq!(valley(at), index);
            assert!(gradient([at, at])[0].abs() < 1e-10);
        }
        assert_eq!((valley(bottom(3) * 1.36), valley(bottom(3) * 1.37)), (3, 4));
    }

    #[test]
    fn derivatives_agree_with_differences() {
        for at in [[0.3, 9.0], [1.0, 2.5], [5.5, 0.7]] {
            for axis in 0..2 {
                let h = 1e-5 * at[axis];
                let moved = |d: f64| {
                    let mut p = at;
                    p[axis] += d;
                    p
                };
                let slope = (value(moved(h)) - value(moved(-h))) / (2.0 * h);
                assert!((slope - gradient(at)[axis]).abs() < 1e-6 * (1.0 + slope.abs()));
                let bend = (gradient(moved(h))[axis] - gradient(moved(-h))[axis]) / (2.0 * h);
                assert!((bend - curvature(at)[axis]).abs() < 1e-5 * (1.0 + bend.abs()));
            }
        }
    }
}

//! max(x, 0). The gradient at 0 is 0, as in PyTorch.

use crate::scalar::Scalar;

/// y = max(x, 0); NaN stays NaN.
pub(crate) fn forward<T: Scalar>(x: &[T], y: &mut [T]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = if x < T::zero() { T::zero() } else { x };
    }
}

/// Adds the gradient of x.
pub(crate) fn backward<T: Scalar>(x: &[T], dy: &[T], dx: &mut [T]) {
    for ((dx, &x), &dy) in dx.iter_mut().zip(x).zip(dy) {
        if x > T::zero() {
            *dx += dy;
        }
    }
}

//! Operations that copy channels: zero padding, and concatenation.

use crate::scalar::Scalar;

/// Copies the channels of `x` to offset `offset` of each image of `y`; an image of y has `stride` scalars.
pub(crate) fn place<T: Scalar>(x: &[T], len: usize, y: &mut [T], stride: usize, offset: usize) {
    for (x, y) in x.chunks_exact(len).zip(y.chunks_exact_mut(stride)) {
        y[offset..offset + len].copy_from_slice(x);
    }
}

/// Adds the gradient of x.
pub(crate) fn take<T: Scalar>(dy: &[T], stride: usize, offset: usize, dx: &mut [T], len: usize) {
    for (dx, dy) in dx.chunks_exact_mut(len).zip(dy.chunks_exact(stride)) {
        for (dx, &dy) in dx.iter_mut().zip(&dy[offset..]) {
            *dx += dy;
        }
    }
}

//! Operations that move channels as they are: zeros around them, one input's after another's.

use crate::scalar::Scalar;

/// The channels of `x`, `offset` scalars into each image of `y`; `stride` scalars of y make an image.
pub(crate) fn place<T: Scalar>(x: &[T], len: usize, y: &mut [T], stride: usize, offset: usize) {
    for (x, y) in x.chunks_exact(len).zip(y.chunks_exact_mut(stride)) {
        y[offset..offset + len].copy_from_slice(x);
    }
}

/// Adds the gradient of such an x.
pub(crate) fn take<T: Scalar>(dy: &[T], stride: usize, offset: usize, dx: &mut [T], len: usize) {
    for (dx, dy) in dx.chunks_exact_mut(len).zip(dy.chunks_exact(stride)) {
        for (dx, &dy) in dx.iter_mut().zip(&dy[offset..]) {
            *dx += dy;
        }
    }
}

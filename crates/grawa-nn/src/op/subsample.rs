//! Every n-th pixel of every n-th row.

use crate::Shape;
use crate::scalar::Scalar;

/// Pairs of indices: in a channel of the output, and in that of the input.
fn places(stride: usize, from: Shape, to: Shape) -> impl Iterator<Item = (usize, usize)> {
    (0..to.area())
        .map(move |place| (place, place / to.width * stride * from.width + place % to.width * stride))
}

/// The selected pixels.
pub(crate) fn forward<T: Scalar>(stride: usize, (from, to): (Shape, Shape), x: &[T], y: &mut [T]) {
    for (x, y) in x.chunks_exact(from.area()).zip(y.chunks_exact_mut(to.area())) {
        places(stride, from, to).for_each(|(place, at)| y[place] = x[at]);
    }
}

/// Adds the gradient of x.
pub(crate) fn backward<T: Scalar>(stride: usize, (from, to): (Shape, Shape), dy: &[T], dx: &mut [T]) {
    for (dx, dy) in dx.chunks_exact_mut(from.area()).zip(dy.chunks_exact(to.area())) {
        places(stride, from, to).for_each(|(place, at)| dx[at] += dy[place]);
    }
}

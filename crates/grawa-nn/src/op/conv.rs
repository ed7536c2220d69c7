//! Convolution as a matrix product: the kernels times the patches of an image as columns.

use crate::matmul::{As, matmul};
use crate::scalar::Scalar;
use crate::{Conv, Shape};

/// The sides of the matrices: output channels, values in a patch, output positions.
fn sides(conv: &Conv, from: Shape, to: Shape) -> [usize; 3] {
    [to.channels, from.channels * conv.kernel * conv.kernel, to.area()]
}

/// Visits all positions of the patches of one image: calls `each` with the index in the patch matrix and, unless it is
/// padding, the index in the image.
fn patches(conv: &Conv, from: Shape, to: Shape, mut each: impl FnMut(usize, Option<usize>)) {
    let inside = |at: usize, length: usize| at.checked_sub(conv.pad).filter(|&at| at < length);
    let mut place = 0;
    for channel in 0..from.channels {
        let index = |(row, column): (usize, usize)| (channel * from.height + row) * from.width + column;
        for dy in 0..conv.kernel {
            for dx in 0..conv.kernel {
                for y in 0..to.height {
                    let row = inside(y * conv.stride + dy, from.height);
                    for x in 0..to.width {
                        let column = inside(x * conv.stride + dx, from.width);
                        each(place, row.zip(column).map(index));
                        place += 1;
                    }
                }
            }
        }
    }
}

fn gather<T: Scalar>(conv: &Conv, from: Shape, to: Shape, image: &[T], matrix: &mut [T]) {
    patches(conv, from, to, |place, at| matrix[place] = at.map_or(T::zero(), |at| image[at]));
}

/// y = kernels ∗ x + bias.
pub(crate) fn forward<T: Scalar>(
    conv: &Conv,
    (from, to): (Shape, Shape),
    x: &[T],
    weight: &[T],
    bias: Option<&[T]>,
    y: &mut [T],
) {
    let [m, k, n] = sides(conv, from, to);
    let mut matrix = vec![T::zero(); k * n];
    for (x, y) in x.chunks_exact(from.len()).zip(y.chunks_exact_mut(to.len())) {
        gather(conv, from, to, x, &mut matrix);
        matmul([m, k, n], (weight, As::Rows), (&matrix, As::Rows), y, false);
        for (channel, bias) in bias.into_iter().flatten().enumerate() {
            y[channel * n..][..n].iter_mut().for_each(|y| *y += *bias);
        }
    }
}

/// The gradients of a convolution's input, kernels and bias.
pub(crate) struct Gradients<'a, T> {
    pub(crate) x: Option<&'a mut [T]>,
    pub(crate) weight: &'a mut [T],
    pub(crate) bias: Option<&'a mut [T]>,
}

/// Adds the gradients of x (unless x is the image itself), kernels and bias.
pub(crate) fn backward<T: Scalar>(
    conv: &Conv,
    (from, to): (Shape, Shape),
    x: &[T],
    weight: &[T],
    dy: &[T],
    mut into: Gradients<'_, T>,
) {
    let [m, k, n] = sides(conv, from, to);
    let mut matrix = vec![T::zero(); k * n];
    for (index, (x, dy)) in x.chunks_exact(from.len()).zip(dy.chunks_exact(to.len())).enumerate() {
        gather(conv, from, to, x, &mut matrix);
        matmul([m, n, k], (dy, As::Rows), (&matrix, As::Columns), into.weight, true);
        if let Some(bias) = &mut into.bias {
            for (bias, dy) in bias.iter_mut().zip(dy.chunks_exact(n)) {
                *bias += dy.iter().copied().sum();
            }
        }
        if let Some(dx) = &mut into.x {
            matmul([k, m, n], (weight, As::Columns), (dy, As::Rows), &mut matrix, false);
            let dx = &mut dx[index * from.len()..][..from.len()];
            patches(conv, from, to, |place, at| at.into_iter().for_each(|at| dx[at] += matrix[place]));
        }
    }
}

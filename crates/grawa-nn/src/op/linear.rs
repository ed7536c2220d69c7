//! A linear layer: y = x·Wᵀ + b.

use crate::matmul::{As, matmul};
use crate::scalar::Scalar;

/// y = x·Wᵀ + b for a batch of rows.
pub(crate) fn forward<T: Scalar>(batch: usize, x: &[T], weight: &[T], bias: &[T], y: &mut [T]) {
    let (inputs, outputs) = (x.len() / batch.max(1), bias.len());
    y.chunks_exact_mut(outputs).for_each(|row| row.copy_from_slice(bias));
    matmul([batch, inputs, outputs], (x, As::Rows), (weight, As::Columns), y, true);
}

/// Adds the gradients of x, W and b.
pub(crate) fn backward<T: Scalar>(
    batch: usize,
    x: &[T],
    weight: &[T],
    dy: &[T],
    dx: &mut [T],
    dweight: &mut [T],
    dbias: &mut [T],
) {
    let (inputs, outputs) = (x.len() / batch.max(1), dbias.len());
    backward_input(batch, weight, dy, dx);
    matmul([outputs, batch, inputs], (dy, As::Columns), (x, As::Rows), dweight, true);
    backward_bias(dy, dbias);
}

/// Adds the gradient of x.
pub(crate) fn backward_input<T: Scalar>(batch: usize, weight: &[T], dy: &[T], dx: &mut [T]) {
    let (inputs, outputs) = (dx.len() / batch.max(1), dy.len() / batch.max(1));
    matmul([batch, outputs, inputs], (dy, As::Rows), (weight, As::Rows), dx, true);
}

/// Adds the gradient of b.
pub(crate) fn backward_bias<T: Scalar>(dy: &[T], dbias: &mut [T]) {
    let outputs = dbias.len();
    for row in dy.chunks_exact(outputs) {
        for (db, &dy) in dbias.iter_mut().zip(row) {
            *db += dy;
        }
    }
}

//! Linear layers on all threads. The shape alone divides the products, so the bits do not depend on the number of threads.

use crate::matmul::gemm;
use crate::op::linear;
use rayon::prelude::*;

/// Examples of a product, and outputs of a product of the weight gradient: enough to keep the weights in use.
const EXAMPLES: usize = 32;
const OUTPUTS: usize = 64;

/// y = x·Wᵀ + b for a batch of rows.
pub(super) fn forward(batch: usize, x: &[f32], weight: &[f32], bias: &[f32], y: &mut [f32]) {
    let (inputs, outputs) = (x.len() / batch, bias.len());
    let parts = y.par_chunks_mut(EXAMPLES * outputs).zip(x.par_chunks(EXAMPLES * inputs));
    parts.for_each(|(y, x)| linear::forward(y.len() / outputs, x, weight, bias, y));
}

/// Stores the gradient of x, and adds those of W and b.
pub(super) fn backward(
    batch: usize,
    (x, weight): (&[f32], &[f32]),
    dy: &[f32],
    dx: &mut [f32],
    (dweight, dbias): (&mut [f32], &mut [f32]),
) {
    let (inputs, outputs) = (x.len() / batch, dbias.len());
    let parts = dx.par_chunks_mut(EXAMPLES * inputs).zip(dy.par_chunks(EXAMPLES * outputs));
    parts.for_each(|(dx, dy)| {
        dx.fill(0.0);
        linear::backward_input(dy.len() / outputs, weight, dy, dx);
    });
    dweight.par_chunks_mut(OUTPUTS * inputs).enumerate().for_each(|(part, dweight)| {
        let (rows, strides) = (dweight.len() / inputs, [1, outputs as isize]);
        let dy = (&dy[part * OUTPUTS..], strides);
        gemm([rows, batch, inputs], dy, (x, [inputs as isize, 1]), dweight, true);
    });
    linear::backward_bias(dy, dbias);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts of the products together are the whole products, with parts that are cut off.
    #[test]
    fn parts_make_the_whole() {
        let (batch, inputs, outputs) = (EXAMPLES + 9, 5, OUTPUTS + 3);
        let mut draws = grawa_core::Key::new(1, grawa_core::Purpose::Problem).stream();
        let mut some = |len: usize| (0..len).map(|_| draws.normal() as f32).collect::<Vec<f32>>();
        let (x, weight, bias) = (some(batch * inputs), some(outputs * inputs), some(outputs));
        let (dy, start) = (some(batch * outputs), some(outputs * inputs));
        let (mut y, mut expected) = (vec![9.0; batch * outputs], vec![0.0; batch * outputs]);
        forward(batch, &x, &weight, &bias, &mut y);
        linear::forward(batch, &x, &weight, &bias, &mut expected);
        let close = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4);
        assert!(close(&y, &expected));
        let mut found = (vec![9.0; x.len()], start.clone(), bias.clone());
        let mut expected = (vec![0.0; x.len()], start, bias);
        backward(batch, (&x, &weight), &dy, &mut found.0, (&mut found.1, &mut found.2));
        linear::backward(batch, &x, &weight, &dy, &mut expected.0, &mut expected.1, &mut expected.2);
        assert!(close(&found.0, &expected.0) && close(&found.1, &expected.1) && found.2 == expected.2);
    }
}

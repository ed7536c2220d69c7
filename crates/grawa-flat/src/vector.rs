//! Operations on long vectors. Products are summed in f64 over blocks that depend on the length alone, so results do not
//! depend on the number of threads.

use rayon::prelude::*;

/// Numbers in a thread's block.
const BLOCK: usize = 1 << 14;
/// Independent sums, so that the compiler can use SIMD registers.
const LANES: usize = 16;

/// a · b.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f64 {
    let part = |(a, b): (&[f32], &[f32])| {
        let mut lanes = [0.0f64; LANES];
        let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
        for (a, b) in a.iter().zip(b) {
            for lane in 0..LANES {
                lanes[lane] += f64::from(a[lane]) * f64::from(b[lane]);
            }
        }
        let rest: f64 = a_rest.iter().zip(b_rest).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
        lanes.iter().sum::<f64>() + rest
    };
    // Collected first: the sum of the parts is taken in their order.
    let parts: Vec<f64> = a.par_chunks(BLOCK).zip(b.par_chunks(BLOCK)).map(part).collect();
    parts.iter().sum()
}

/// ‖x‖.
pub(crate) fn norm(x: &[f32]) -> f64 {
    dot(x, x).sqrt()
}

/// x ← factor · x.
pub(crate) fn scale(x: &mut [f32], factor: f64) {
    x.par_chunks_mut(BLOCK).for_each(|x| x.iter_mut().for_each(|x| *x = (f64::from(*x) * factor) as f32));
}

/// y ← y + factor · x.
pub(crate) fn add(y: &mut [f32], factor: f64, x: &[f32]) {
    y.par_chunks_mut(BLOCK).zip(x.par_chunks(BLOCK)).for_each(|(y, x)| {
        y.iter_mut().zip(x).for_each(|(y, &x)| *y = (f64::from(*y) + factor * f64::from(x)) as f32);
    });
}

/// Orthogonalises w against vectors of length 1, twice: the second pass removes the rounding of the first.
pub(crate) fn orthogonalise(w: &mut [f32], basis: &[Vec<f32>]) {
    for _ in 0..2 {
        let along: Vec<f64> = basis.iter().map(|v| dot(v, w)).collect();
        w.par_chunks_mut(BLOCK).enumerate().for_each(|(block, w)| {
            let mut sums: Vec<f64> = w.iter().map(|&w| w.into()).collect();
            for (v, &along) in basis.iter().zip(&along) {
                let v = &v[block * BLOCK..][..sums.len()];
                sums.iter_mut().zip(v).for_each(|(sum, &v)| *sum -= along * f64::from(v));
            }
            w.iter_mut().zip(sums).for_each(|(w, sum)| *w = sum as f32);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::direction;
    use grawa_core::{Key, Purpose};
    use proptest::prelude::*;

    #[test]
    fn what_is_left_is_orthogonal() {
        let key = Key::new(1, Purpose::Direction);
        let mut basis: Vec<Vec<f32>> = Vec::new();
        for step in 0..20 {
            let mut w = direction(key.step(step), 40_000);
            orthogonalise(&mut w, &basis);
            let length = norm(&w);
            scale(&mut w, 1.0 / length);
            assert!(basis.iter().all(|v| dot(v, &w).abs() < 1e-8));
            basis.push(w);
        }
    }

    proptest! {
        #[test]
        fn sums_are_the_plain_ones(a in prop::collection::vec(-9.0f32..9.0, 0..300), factor in -3.0f64..3.0) {
            let b: Vec<f32> = a.iter().rev().copied().collect();
            let plain: f64 = a.iter().zip(&b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
            prop_assert!((dot(&a, &b) - plain).abs() < 1e-9);
            let mut y = a.clone();
            add(&mut y, factor, &b);
            prop_assert!(y.iter().zip(&a).zip(&b).all(|((&y, &a), &b)| y == (f64::from(a) + factor * f64::from(b)) as f32));
        }
    }
}

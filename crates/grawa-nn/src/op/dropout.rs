//! Dropout: each value is zero with probability p, the others are scaled by 1/(1−p).
//!
//! The mask is a function of the key and the node alone: word i of the node's stream decides for scalar i of the
//! batch, which is dropped if the word is below p·2³². Node n's stream begins at block n·2²⁰ of the key.

use crate::scalar::Scalar;
use grawa_core::{Key, Stream};

/// The random stream of a node, from a value on whose number must be a multiple of four: a block has four words.
pub(crate) fn draws(key: Key, node: usize, value: usize) -> Stream {
    key.stream_from(((node as u32) << 20) + (value / 4) as u32)
}

/// The factor of each value.
fn factors<T: Scalar>(probability: f64, mut draws: Stream) -> impl Iterator<Item = T> {
    let (bound, scale) = ((probability * 4_294_967_296.0) as u64, T::of(1.0 / (1.0 - probability)));
    std::iter::repeat_with(move || if u64::from(draws.word()) < bound { T::zero() } else { scale })
}

/// y = x · factor.
pub(crate) fn forward<T: Scalar>(probability: f64, draws: Stream, x: &[T], y: &mut [T]) {
    for ((y, &x), factor) in y.iter_mut().zip(x).zip(factors::<T>(probability, draws)) {
        *y = x * factor;
    }
}

/// Adds the gradient of x.
pub(crate) fn backward<T: Scalar>(probability: f64, draws: Stream, dy: &[T], dx: &mut [T]) {
    for ((dx, &dy), factor) in dx.iter_mut().zip(dy).zip(factors::<T>(probability, draws)) {
        *dx += dy * factor;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use grawa_core::Purpose;

    /// Parts that begin at a multiple of four draw what the whole draws.
    #[test]
    fn parts_draw_what_the_whole_draws() {
        let (key, x) = (Key::new(3, Purpose::Dropout), [1.0f32; 50]);
        let (mut whole, mut parts) = ([0.0; 50], [0.0; 50]);
        forward(0.5, draws(key, 7, 0), &x, &mut whole);
        for (part, parts) in parts.chunks_mut(12).enumerate() {
            forward(0.5, draws(key, 7, 12 * part), &x[..parts.len()], parts);
        }
        assert_eq!(whole, parts);
        assert!(whole.contains(&0.0) && whole.contains(&2.0));
    }
}

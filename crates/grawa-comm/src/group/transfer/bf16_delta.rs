//! Vectors as differences to the last centre, in bf16: half the bytes.
//!
//! bf16 rounds a difference to within 1/256 of itself. So the error depends on how far the workers have moved, not on how large
//! their parameters are, and every round corrects the rounding of the last. Every member adds the same differences to the
//! same floats: all hold the same bits.

/// The nearest bf16, ties to even. Finite numbers stay finite.
fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    let rounded = ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16;
    // The largest numbers would become infinite.
    if x.is_finite() && rounded & 0x7fff == 0x7f80 { rounded - 1 } else { rounded }
}

fn from_bf16(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

/// The differences of a vector to a base.
pub(crate) fn encode(vector: &[f32], base: &[f32], deltas: &mut Vec<u16>) {
    deltas.clear();
    deltas.extend(vector.iter().zip(base).map(|(x, base)| to_bf16(x - base)));
}

/// The vector from its differences to a base.
pub(crate) fn decode(deltas: &[u16], base: &[f32], vector: &mut [f32]) {
    for ((x, delta), base) in vector.iter_mut().zip(deltas).zip(base) {
        *x = base + from_bf16(*delta);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_numbers_are_rounded_as_ieee_says() {
        // From the definition: 8 bits of significand, ties to even.
        for (x, half) in [
            (1.0, 0x3f80),
            (1.0 + 1.0 / 256.0, 0x3f80),
            (1.0 + 3.0 / 256.0, 0x3f82),
            (-2.5, 0xc020),
            (0.0, 0),
            (f32::MAX, 0x7f7f),
            (f32::INFINITY, 0x7f80),
            (1e-45, 0),
        ] {
            assert_eq!(to_bf16(x), half, "{x}");
        }
        assert!(from_bf16(to_bf16(f32::NAN)).is_nan());
    }

    proptest! {
        #[test]
        fn a_difference_is_off_by_at_most_a_256th_of_itself(x in -1e30f32..1e30, base in -1e30f32..1e30) {
            let (mut deltas, mut found) = (Vec::new(), [0.0]);
            encode(&[x], &[base], &mut deltas);
            decode(&deltas, &[base], &mut found);
            let exact = f64::from(x) - f64::from(base);
            let error = (f64::from(from_bf16(deltas[0])) - f64::from(x - base)).abs();
            prop_assert!(error <= exact.abs() / 255.9 + f64::from(f32::MIN_POSITIVE));
        }

        #[test]
        fn a_bf16_stays_the_same(half in 0u16..0x7f80) {
            prop_assert_eq!(to_bf16(from_bf16(half)), half);
        }
    }
}

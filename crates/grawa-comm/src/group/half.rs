//! Vectors at half their length on the wire: as bf16, and as differences to what all members hold.
//!
//! A difference to the last centre is small, and bf16 rounds it to within 1/256 of itself; so what is lost follows from how far
//! the workers have moved, not from how large their parameters are, and every round makes good what the last one rounded.
//! Every member adds the same halves to the same floats: all hold the same bits.

/// The nearest bf16, ties to even. What is finite stays finite.
fn narrow(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    let rounded = ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16;
    // The largest numbers would become infinite.
    if x.is_finite() && rounded & 0x7fff == 0x7f80 { rounded - 1 } else { rounded }
}

fn widen(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

/// The differences of a vector to a base.
pub(super) fn halve(vector: &[f32], base: &[f32], halves: &mut Vec<u16>) {
    halves.clear();
    halves.extend(vector.iter().zip(base).map(|(x, base)| narrow(x - base)));
}

/// The vector that the differences make of a base.
pub(super) fn restore(halves: &[u16], base: &[f32], vector: &mut [f32]) {
    for ((x, half), base) in vector.iter_mut().zip(halves).zip(base) {
        *x = base + widen(*half);
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
            assert_eq!(narrow(x), half, "{x}");
        }
        assert!(widen(narrow(f32::NAN)).is_nan());
    }

    proptest! {
        #[test]
        fn a_difference_is_off_by_a_256th_of_itself(x in -1e30f32..1e30, base in -1e30f32..1e30) {
            let (mut halves, mut found) = (Vec::new(), [0.0]);
            halve(&[x], &[base], &mut halves);
            restore(&halves, &[base], &mut found);
            let exact = f64::from(x) - f64::from(base);
            let error = (f64::from(widen(halves[0])) - f64::from(x - base)).abs();
            prop_assert!(error <= exact.abs() / 255.9 + f64::from(f32::MIN_POSITIVE));
        }

        #[test]
        fn what_is_a_half_already_stays(half in 0u16..0x7f80) {
            prop_assert_eq!(narrow(widen(half)), half);
        }
    }
}

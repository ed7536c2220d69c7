//! Digests: short numbers that tell whether members hold the same bits.
//!
//! The digest of a vector is the CRC-32C of its bytes, little-endian. That of a whole follows from those of its pieces, and a
//! piece's checksum is computed for the wire anyway, so knowing that all hold the same centre costs no pass over it. It
//! guards against accidents; against others there is the wire's encryption.

use std::collections::BTreeMap;

/// The bytes of a vector as they lie in memory and on the wire.
pub fn bytes(vector: &[f32]) -> &[u8] {
    const { assert!(cfg!(target_endian = "little"), "vectors cross the wire as they lie in memory") }
    #[allow(unsafe_code)]
    // SAFETY: every float is four bytes without padding, and bytes need no alignment.
    unsafe {
        std::slice::from_raw_parts(vector.as_ptr().cast(), size_of_val(vector))
    }
}

/// The same, to be written.
pub fn bytes_mut(vector: &mut [f32]) -> &mut [u8] {
    #[allow(unsafe_code)]
    // SAFETY: as above; and any four bytes are a float.
    unsafe {
        std::slice::from_raw_parts_mut(vector.as_mut_ptr().cast(), size_of_val(vector))
    }
}

/// The digest of a vector.
pub fn vector(vector: &[f32]) -> u32 {
    crc32c::crc32c(bytes(vector))
}

/// The digest of pieces one after the other, from each one's digest and length in floats.
pub fn pieces(pieces: impl IntoIterator<Item = (u32, usize)>) -> u32 {
    pieces.into_iter().fold(0, |whole, (piece, len)| crc32c::crc32c_combine(whole, piece, 4 * len))
}

/// The digest of a state: what is remembered, and the centre's digest.
pub fn state(memory: &[u8], centre: u32) -> u64 {
    u64::from(crc32c::crc32c(memory)) << 32 | u64::from(centre)
}

/// What most hold, and who holds something else. Where as many hold one as another, the lowest number's counts.
pub fn majority(held: &BTreeMap<u32, u64>) -> Option<(u64, Vec<u32>)> {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    held.values().for_each(|digest| *counts.entry(*digest).or_default() += 1);
    let most = *counts.values().max()?;
    let right = *held.values().find(|digest| counts[digest] == most)?;
    Some((right, held.iter().filter(|(_, digest)| **digest != right).map(|(worker, _)| *worker).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn most_are_right_and_the_lowest_number_decides_a_tie() {
        let held = |digests: &[u64]| (0..).zip(digests.iter().copied()).collect::<BTreeMap<u32, u64>>();
        assert_eq!(majority(&held(&[])), None);
        assert_eq!(majority(&held(&[5, 7, 7])), Some((7, vec![0])));
        assert_eq!(majority(&held(&[5, 7])), Some((5, vec![1])));
        assert_eq!(majority(&held(&[5, 5])), Some((5, vec![])));
    }

    /// The check value of the CRC-32C in RFC 3720.
    #[test]
    fn the_checksum_is_the_published_one() {
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
    }

    proptest! {
        #[test]
        fn pieces_give_the_digest_of_the_whole(whole in proptest::collection::vec(any::<f32>(), 0..300), cut in 0usize..300) {
            let cut = cut.min(whole.len());
            let (a, b) = whole.split_at(cut);
            prop_assert_eq!(pieces([(vector(a), a.len()), (vector(b), b.len())]), vector(&whole));
        }
    }
}

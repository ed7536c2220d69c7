//! Digests: short numbers that tell whether members hold the same bits.
//!
//! The digest of a vector is the CRC-32C of its bytes, little-endian. That of a vector that arrived in pieces is made from the
//! checksums of the pieces, which are computed anyway. It guards against accidents. Encryption guards against attackers.

use crc_fast::CrcAlgorithm::Crc32Iscsi;
use std::collections::BTreeMap;

/// A running CRC-32C.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crc(crc_fast::Digest);

impl Default for Crc {
    fn default() -> Self {
        Crc(crc_fast::Digest::new(Crc32Iscsi))
    }
}

impl Crc {
    /// Adds bytes.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum so far.
    pub(crate) fn get(&self) -> u32 {
        // The crate returns all checksums in 64 bits.
        self.0.finalize() as u32
    }
}

/// The CRC-32C of bytes.
pub(crate) fn crc(bytes: &[u8]) -> u32 {
    crc_fast::checksum(Crc32Iscsi, bytes) as u32
}

/// The bytes of a vector as they are in memory and on a connection.
pub(crate) fn bytes<T: bytemuck::NoUninit>(vector: &[T]) -> &[u8] {
    const { assert!(cfg!(target_endian = "little"), "vectors are sent as they are in memory") }
    bytemuck::cast_slice(vector)
}

/// The same, to be written.
pub(crate) fn bytes_mut<T: bytemuck::Pod>(vector: &mut [T]) -> &mut [u8] {
    bytemuck::cast_slice_mut(vector)
}

/// The digest of a state: of its memory and its centre.
pub(crate) fn state(memory: &[u8], centre: &[f32]) -> u64 {
    u64::from(crc(memory)) << 32 | u64::from(crc(bytes(centre)))
}

/// The digest that most members hold. In a tie the lowest number decides.
pub(crate) fn majority(held: &BTreeMap<u32, u64>) -> Option<u64> {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    held.values().for_each(|digest| *counts.entry(*digest).or_default() += 1);
    let most = *counts.values().max()?;
    held.values().copied().find(|digest| counts[digest] == most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_majority_is_right_and_the_lowest_number_decides_a_tie() {
        let held = |digests: &[u64]| (0..).zip(digests.iter().copied()).collect::<BTreeMap<u32, u64>>();
        assert_eq!(majority(&held(&[])), None);
        assert_eq!(majority(&held(&[5, 7, 7])), Some(7));
        assert_eq!(majority(&held(&[5, 7])), Some(5));
        assert_eq!(majority(&held(&[5, 5])), Some(5));
    }

    /// The check value of the CRC-32C in RFC 3720.
    #[test]
    fn the_checksum_is_the_published_one() {
        assert_eq!(crc(b"123456789"), 0xe306_9283);
    }
}

//! Digests: short numbers that tell whether members hold the same bits.
//!
//! The digest of a vector is the CRC-32C of its bytes, little-endian; that of a sum which came in pieces is taken from the
//! pieces' checksums, which are computed for the wire anyway. It guards against accidents; against others there is the
//! wire's encryption.

use crc_fast::CrcAlgorithm::Crc32Iscsi;
use std::collections::BTreeMap;

/// The CRC-32C of bytes that come one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Crc(crc_fast::Digest);

impl Default for Crc {
    fn default() -> Self {
        Crc(crc_fast::Digest::new(Crc32Iscsi))
    }
}

impl Crc {
    /// Takes in more bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum so far.
    pub fn get(&self) -> u32 {
        // The crate counts all its checksums in 64 bits.
        self.0.finalize() as u32
    }
}

/// The CRC-32C of bytes.
pub fn crc(bytes: &[u8]) -> u32 {
    let mut crc = Crc::default();
    crc.add(bytes);
    crc.get()
}

/// A number that is nothing but its bytes.
pub trait Plain: Copy {}
impl Plain for f32 {}
impl Plain for u16 {}

/// The bytes of a vector as they lie in memory and on the wire.
pub fn bytes<T: Plain>(vector: &[T]) -> &[u8] {
    const { assert!(cfg!(target_endian = "little"), "vectors cross the wire as they lie in memory") }
    #[allow(unsafe_code)]
    // SAFETY: floats and integers have no padding, and bytes need no alignment.
    unsafe {
        std::slice::from_raw_parts(vector.as_ptr().cast(), size_of_val(vector))
    }
}

/// The same, to be written.
pub fn bytes_mut<T: Plain>(vector: &mut [T]) -> &mut [u8] {
    #[allow(unsafe_code)]
    // SAFETY: as above; and any bytes are a float, or an integer.
    unsafe {
        std::slice::from_raw_parts_mut(vector.as_mut_ptr().cast(), size_of_val(vector))
    }
}

/// The digest of a vector.
pub fn vector(vector: &[f32]) -> u32 {
    crc(bytes(vector))
}

/// The digest of a state: what is remembered, and the centre's digest.
pub fn state(memory: &[u8], centre: u32) -> u64 {
    u64::from(crc(memory)) << 32 | u64::from(centre)
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
        assert_eq!(crc(b"123456789"), 0xe306_9283);
    }
}

//! What only the fuzzer calls.

use super::link::Record;
use std::io::Read;

/// Reads bytes as records of TLS, a few at a time: nothing is lost, and nothing beyond a record is taken.
pub fn records(bytes: &[u8]) {
    struct Drops<'a>(&'a [u8]);
    impl Read for Drops<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let few = buffer.len().min(7);
            self.0.read(&mut buffer[..few])
        }
    }
    let (mut from, mut taken) = (Drops(bytes), 0);
    let mut record = Record::default();
    while let Ok(true) = record.read(&mut from) {
        let len = usize::from(u16::from_be_bytes([record.bytes[3], record.bytes[4]]));
        assert_eq!(record.bytes.len(), 5 + len);
        assert_eq!(record.bytes, bytes[taken..taken + 5 + len]);
        taken += record.bytes.len();
        assert_eq!(taken + from.0.len(), bytes.len());
        record.bytes.clear();
    }
}

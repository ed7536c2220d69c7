//! What other workers send to a worker, for the fuzzer alone: no panic, and what is read is written and read back the same.

use crate::elastic::{Remembered, encode};
use crate::told::{pack, some, unpack};
use crate::word::{Word, from_bytes, to_bytes};

/// Reads bytes as everything a worker may hear, or a coordinator be told.
pub fn hear(bytes: &[u8]) {
    if let Ok(word) = Word::decode(0, bytes) {
        let written = word.encode();
        // Scores may be no numbers: the bytes are compared.
        assert_eq!(Word::decode(0, &written).expect("what was written can be read").encode(), written);
    }
    if let Ok(numbers) = from_bytes(0, bytes, bytes.len() / 8) {
        assert_eq!(to_bytes(&numbers), bytes);
    }
    if let Ok(remembered) = serde_json::from_slice::<Remembered>(bytes) {
        let written = encode(&remembered).expect("what was read can be written");
        serde_json::from_slice::<Remembered>(&written).expect("what was written can be read");
    }
    if let Ok(event) = unpack(bytes) {
        let written = pack(&event).expect("what was read can be written");
        unpack(&written).expect("what was written can be read");
    }
}

/// One of each, to begin with.
pub fn said() -> Vec<Vec<u8>> {
    let word = Word { scores: vec![1.0, f64::NAN], ..Word::default() };
    let remembered = encode(&Remembered::default());
    let events = some().map(|event| pack(&event).ok());
    [Some(word.encode()), remembered.ok()].into_iter().chain(events).flatten().collect()
}

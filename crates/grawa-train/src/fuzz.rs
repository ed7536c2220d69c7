//! What other workers send to a worker, for the fuzzer alone: no panic, and what is read is written and read back the same.

use crate::Event;
use crate::elastic::{Remembered, encode};
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
    if let Ok(event) = serde_json::from_slice::<Event>(bytes) {
        let written = serde_json::to_vec(&event).expect("what was read can be written");
        serde_json::from_slice::<Event>(&written).expect("what was written can be read");
    }
}

/// One of each, to begin with.
pub fn said() -> Vec<Vec<u8>> {
    let word = Word { scores: vec![1.0, f64::NAN], ..Word::default() };
    let fault = crate::Fault { at: crate::Place::default(), worker: Some(1), what: "lost".into() };
    let remembered = encode(&Remembered::default());
    let event = serde_json::to_vec(&Event::Fault(fault));
    [Some(word.encode()), remembered.ok(), event.ok()].into_iter().flatten().collect()
}

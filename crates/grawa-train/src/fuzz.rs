//! What other workers send to a worker, for the fuzzer alone: no panic, and what is read is written and read back the same.

use crate::elastic::{Remembered, encode};
use crate::event_codec::{Report, examples};
use crate::round_message::{RoundMessage, from_bytes, to_bytes};

/// Reads bytes as everything a worker may hear, or a coordinator be told.
pub fn hear(bytes: &[u8]) {
    if let Ok(word) = RoundMessage::decode(0, bytes) {
        let written = word.encode().expect("what was read can be written");
        // Scores may be no numbers: the bytes are compared.
        let again = RoundMessage::decode(0, &written).expect("what was written can be read");
        assert_eq!(again.encode().expect("what was read can be written"), written);
    }
    if let Ok(numbers) = from_bytes(0, bytes, bytes.len() / 8) {
        assert_eq!(to_bytes(&numbers), bytes);
    }
    if let Ok(remembered) = serde_json::from_slice::<Remembered>(bytes) {
        let written = encode(&remembered).expect("what was read can be written");
        serde_json::from_slice::<Remembered>(&written).expect("what was written can be read");
    }
    if let Ok(report) = Report::decode(bytes) {
        let written = report.encode().expect("what was read can be written");
        Report::decode(&written).expect("what was written can be read");
    }
}

/// One of each, to begin with.
pub fn said() -> Vec<Vec<u8>> {
    let word = RoundMessage { scores: vec![1.0, f64::NAN], ..RoundMessage::default() };
    let remembered = encode(&Remembered::default());
    let own = |event| Report::Own { sender: 1, number: 1, event }.encode().ok();
    let events = examples().map(own);
    [word.encode().ok(), remembered.ok()].into_iter().chain(events).flatten().collect()
}

//! Every decoder of what comes over the wire: frames, messages of both sides, greetings, heads of pieces, the log.
#![no_main]

use grawa_comm::group::message::{Down, Up, decode, encode};
use grawa_comm::group::{Greeting, HEAD, Head, Record, frame};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut numbers = frame::Numbers::default();
    let mut stream = bytes;
    while let Ok(Some(body)) = frame::read(&mut stream, &mut numbers, 1 << 16) {
        assert!(body.len() <= bytes.len());
    }
    if let Ok(up) = decode::<Up>(bytes) {
        assert_eq!(decode::<Up>(&encode(&up).unwrap()).unwrap(), up);
    }
    if let Ok(down) = decode::<Down>(bytes) {
        assert_eq!(decode::<Down>(&encode(&down).unwrap()).unwrap(), down);
    }
    let _ = decode::<Greeting>(bytes);
    let _ = decode::<Record>(bytes);
    let _ = decode::<Option<(Vec<u8>, u64)>>(bytes);
    if let Some(head) = bytes.first_chunk::<HEAD>()
        && let Ok(head) = Head::decode(head)
    {
        assert_eq!(Head::decode(&head.encode()).unwrap(), head);
    }
});

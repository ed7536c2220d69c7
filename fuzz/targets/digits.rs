//! The pack of digits: as it is, and with what is inside it fuzzed.
#![no_main]
use flate2::{Compression, write::ZlibEncoder};
use std::io::Write;
use std::path::Path;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    if let Some((head, inside)) = bytes.split_at_checked(12) {
        let mut packed = ZlibEncoder::new(head.to_vec(), Compression::none());
        packed.write_all(inside).expect("memory");
        check(&packed.finish().expect("memory"));
    }
});

fn check(bytes: &[u8]) {
    if let Ok((pixels, labels)) = grawa_data::parse_digits(bytes, Path::new("fuzzed")) {
        assert!(pixels.len() == labels.len() * 64 && pixels.iter().all(|&pixel| pixel <= 16));
    }
}

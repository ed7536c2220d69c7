//! JPEG and PNG files.
#![no_main]
use std::path::Path;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(picture) = grawa_data::decode(bytes, Path::new("fuzzed")) {
        assert_eq!(picture.pixels.len(), picture.height as usize * picture.width as usize * 3);
    }
});

//! The idx files of MNIST, plain and gzipped.
#![no_main]
use std::path::Path;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let path = Path::new("fuzzed");
    let unzipped = grawa_data::unzip(bytes, path);
    for bytes in [Some(bytes), unzipped.as_deref().ok()].into_iter().flatten() {
        if let Ok((shape, pixels)) = grawa_data::parse_idx_images(bytes, path) {
            assert_eq!(pixels.len() % shape.len(), 0);
        }
        if let Ok(labels) = grawa_data::parse_idx_labels(bytes, path, 10) {
            assert!(labels.iter().all(|&label| label < 10));
        }
    }
});

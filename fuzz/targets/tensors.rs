//! Safetensors files. What is read is written and read back the same.
#![no_main]
use grawa_nn::Tensors;
use std::path::Path;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(tensors) = Tensors::parse(bytes, Path::new("fuzzed"), "network") {
        let written = tensors.to_bytes().expect("what was read can be written");
        let again = Tensors::parse(&written, Path::new("fuzzed"), "network").expect("what was written can be read");
        assert!(tensors.names().eq(again.names()));
    }
});

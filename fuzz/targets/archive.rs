//! Downloaded archives: fuzzed as gzip, and fuzzed as the tar inside one.
#![no_main]
use flate2::{Compression, write::GzEncoder};
use std::io::Write;
use std::path::{Component, Path};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    let mut zipped = GzEncoder::new(Vec::new(), Compression::none());
    zipped.write_all(bytes).expect("memory");
    check(&zipped.finish().expect("memory"));
});

fn check(bytes: &[u8]) {
    let _ = grawa_data::archive::entries(bytes, Path::new("fuzzed"), "box", |name, from| {
        assert!(name.starts_with("box"));
        assert!(name.components().all(|part| matches!(part, Component::Normal(_))));
        // What a damaged entry holds does not matter here.
        let _ = std::io::copy(from, &mut std::io::sink());
        Ok(())
    });
}

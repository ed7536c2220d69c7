//! CIFAR's binary files.
#![no_main]
use std::path::Path;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let path = Path::new("fuzzed");
    let (mut images, mut labels) = (vec![], vec![]);
    if grawa_data::parse_cifar10(bytes, path, &mut images, &mut labels).is_ok() {
        assert!(images.len() == labels.len() * 3072 && labels.iter().all(|&label| label < 10));
    }
    let (mut images, mut labels) = (vec![], vec![]);
    if grawa_data::parse_cifar100(bytes, path, &mut images, &mut labels).is_ok() {
        assert!(images.len() == labels.len() * 3072 && labels.iter().all(|&label| label < 100));
    }
});

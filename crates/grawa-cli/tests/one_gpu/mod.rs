//! Several processes on one GPU, against one process with all workers on it.

#![allow(clippy::unwrap_used)]

use grawa_nn::{Data, Tensors};
use grawa_train::Checkpoint;
use std::path::Path;

/// Runs of 128 steps with 32 rounds on the first GPU, whose bits do not change from one to the next.
pub(crate) const RUN: [&str; 17] = [
    "--data",
    "digits",
    "--method",
    "lgrawa:period=4",
    "--seed",
    "7",
    "--budget",
    "128step",
    "--quiet",
    "--device",
    "cuda",
    "--set",
    "machine.cards=1",
    "--set",
    "machine.precision=f32",
    "--set",
    "machine.deterministic=true",
];

/// The models of two runs agree within what rounding in another order explains.
pub(crate) fn agree(found: &Path, expected: &Path) {
    let read = |folder: &Path| {
        let newest = Checkpoint::newest(folder).unwrap();
        Tensors::read(&newest.path().join("model.safetensors"), "the run").unwrap()
    };
    let (found, expected) = (read(found), read(expected));
    assert!(found.names().eq(expected.names()));
    for name in expected.names() {
        let data = |tensors: &Tensors| tensors.find(name).unwrap().data.clone();
        let (found, expected) = match (data(&found), data(&expected)) {
            (Data::F32(found), Data::F32(expected)) => (found, expected),
            (found, expected) => {
                assert_eq!(found, expected, "{name}");
                continue;
            }
        };
        let square = |sum: f32, x: f32| sum + x * x;
        let off = found.iter().zip(&expected).map(|(a, b)| a - b).fold(0.0, square).sqrt();
        let size = expected.iter().copied().fold(0.0, square).sqrt();
        assert!(off <= 1e-2 * size, "{name}: {off} off, of {size}");
    }
}

//! The checksum of model files, as `grawa_nn`'s `tensors.rs` computes it: Python would take minutes for a large one.

use pyo3::prelude::*;

/// The CRC-32C of these pieces, each with its length before it, so that no two lists have the same bytes.
#[pyfunction]
pub(crate) fn _crc32c(pieces: Vec<Bound<'_, pyo3::types::PyBytes>>) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    for piece in pieces {
        let bytes = piece.as_bytes();
        digest.update(&(bytes.len() as u64).to_le_bytes());
        digest.update(bytes);
    }
    digest.finalize() as u32
}

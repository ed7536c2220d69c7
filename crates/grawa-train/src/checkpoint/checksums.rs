//! `checksums.toml`: the CRC-32C of every other file of a checkpoint. What does not agree with it is not used.

use crate::Error;
use crate::bounded_read;
use crc_fast::CrcAlgorithm::Crc32Iscsi;
use std::collections::BTreeMap;
use std::path::Path;

/// The file in a checkpoint's folder.
pub(super) const CHECKSUMS: &str = "checksums.toml";

/// The checksum of each file, by name.
pub(super) type Checksums = BTreeMap<String, String>;

/// A CRC-32C, as it is written.
pub(crate) fn crc(bytes: &[u8]) -> String {
    crc_of(&[bytes])
}

/// The same of bytes that are in several places.
pub(super) fn crc_of(pieces: &[impl AsRef<[u8]>]) -> String {
    let mut digest = crc_fast::Digest::new(Crc32Iscsi);
    pieces.iter().for_each(|piece| digest.update(piece.as_ref()));
    format!("{:08x}", digest.finalize())
}

/// The checksums of a checkpoint; none if it was written before there were any.
pub(super) fn read(checkpoint: &Path) -> Result<Option<Checksums>, Error> {
    let path = checkpoint.join(CHECKSUMS);
    match std::fs::symlink_metadata(&path).is_ok() {
        true => super::read_toml(&path).map(Some),
        false => Ok(None),
    }
}

/// Reads a file of a checkpoint, and finds out whether it is what was written.
pub(super) fn read_file(
    checkpoint: &Path,
    name: &str,
    checksums: Option<&Checksums>,
) -> Result<Vec<u8>, Error> {
    let path = checkpoint.join(name);
    // What has vectors may be large.
    let most = if name.ends_with(".safetensors") { u64::MAX } else { bounded_read::SMALL };
    let bytes = bounded_read::read(&path, most).map_err(super::io("read", &path))?;
    let Some(checksums) = checksums else { return Ok(bytes) };
    let found = crc(&bytes);
    match checksums.get(name) {
        Some(expected) if *expected == found => Ok(bytes),
        expected => {
            let expected = expected.map_or("none", String::as_str);
            let why = format!(
                "it is damaged: its checksum is {found}, and {CHECKSUMS} has {expected}; use another checkpoint"
            );
            Err(Error::NotACheckpoint { path, why })
        }
    }
}

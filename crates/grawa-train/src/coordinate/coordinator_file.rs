//! `coordinator.toml` in the folder of a run: which run it is, where workers connect, and whether they need a key. With it another
//! coordinator can take the place of one that has ended. The state of the run is in the coordinator's log beside it.

use crate::checkpoint::crc;
use crate::folder::COORDINATOR as FILE;
use crate::{Error, bounded_read, durable};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, Hasher};
use std::path::Path;

/// The file, locked by one coordinator at a time.
#[derive(Debug)]
pub(super) struct CoordinatorFile {
    pub(super) run: u64,
    pub(super) address: String,
    /// The lock is held until this coordinator ends, however it ends.
    _file: File,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    run: String,
    address: String,
    wire: String,
    /// The CRC-32C of the others. Files of earlier versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    crc: Option<String>,
}

impl Content {
    fn checksum(&self) -> String {
        let Content { run, address, wire, .. } = self;
        crc(format!("{run}\n{address}\n{wire}").as_bytes())
    }
}

fn wire(keyed: bool) -> &'static str {
    if keyed { "key" } else { "plain" }
}

impl CoordinatorFile {
    /// The number of a new run. It is random, so that a worker of another run is not taken for one of this.
    pub(super) fn new_run() -> u64 {
        std::hash::RandomState::new().build_hasher().finish() | 1
    }

    /// Writes the file of a new run.
    pub(super) fn create(folder: &Path, run: u64, address: String, keyed: bool) -> Result<Self, Error> {
        let path = folder.join(FILE);
        let wrong = |why: String| Error::CoordinatorFile { path: path.clone(), why };
        let mut content =
            Content { run: format!("{run:016x}"), address, wire: wire(keyed).into(), crc: None };
        content.crc = Some(content.checksum());
        let text = toml::to_string(&content).map_err(|error| wrong(error.to_string()))?;
        let file = durable::place(&path, text.as_bytes()).map_err(|error| wrong(error.to_string()))?;
        let _ = file.try_lock();
        Ok(CoordinatorFile { run, address: content.address, _file: file })
    }

    /// Reads and locks the file of the run in this folder.
    pub(super) fn open(folder: &Path, keyed: bool) -> Result<Self, Error> {
        let path = folder.join(FILE);
        let wrong = |why: String| Error::CoordinatorFile { path: path.clone(), why };
        let text = bounded_read::read_text(&path, bounded_read::SMALL).map_err(|error| {
            wrong(format!("{error}; no run was coordinated there, or `grawa train --resume` continues it"))
        })?;
        let file = OpenOptions::new().write(true).open(&path).map_err(|error| wrong(error.to_string()))?;
        // Where files cannot be locked the user must see to it.
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            return Err(wrong("its coordinator is at work; only one can be at a time".into()));
        }
        let content: Content = toml::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        if content.crc.as_ref().is_some_and(|crc| *crc != content.checksum()) {
            return Err(wrong(
                "its checksum is wrong: it was changed or damaged. Put it back from a copy; or, if you have changed it, remove its line 'crc'"
                    .into(),
            ));
        }
        let run = u64::from_str_radix(&content.run, 16)
            .map_err(|error| wrong(format!("'{}' is no run number: {error}", content.run)))?;
        if content.wire != wire(keyed) {
            let (needs, give) = match keyed {
                true => ("without a key", "--wire plain"),
                false => {
                    ("with a key", "its --key FILE (after `grawa launch` that is run.key in this folder)")
                }
            };
            return Err(wrong(format!("its workers connect {needs}: give {give}")));
        }
        Ok(CoordinatorFile { run, address: content.address, _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_found_again_by_one_coordinator_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let open = |keyed| CoordinatorFile::open(folder.path(), keyed);
        let create = |run| CoordinatorFile::create(folder.path(), run, "127.0.0.1:7117".into(), true);
        assert!(open(true).unwrap_err().to_string().contains("no run was coordinated"));
        let first = create(0xfeed).unwrap();
        assert!(create(1).is_err(), "it was overwritten");
        assert!(open(true).unwrap_err().to_string().contains("is at work"));
        drop(first);
        assert!(open(false).unwrap_err().to_string().contains("give its --key FILE"));
        let again = open(true).unwrap();
        assert_eq!((again.run, again.address.as_str()), (0xfeed, "127.0.0.1:7117"));
        drop(again);
        std::fs::write(folder.path().join(FILE), "run = 7").unwrap();
        assert!(open(true).is_err());
    }

    /// Whatever bit is wrong and wherever the file ends, the run is the right one, or none. Another run's number would begin it anew.
    #[test]
    fn a_damaged_file_is_refused_or_names_the_same_run() {
        let folder = tempfile::tempdir().unwrap();
        drop(CoordinatorFile::create(folder.path(), 0xfeed, "127.0.0.1:7117".into(), false).unwrap());
        let path = folder.path().join(FILE);
        let whole = std::fs::read(&path).unwrap();
        let mut refused = 0;
        let mut opens = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            match CoordinatorFile::open(folder.path(), false) {
                Ok(file) => assert_eq!((file.run, file.address.as_str()), (0xfeed, "127.0.0.1:7117")),
                Err(_) => refused += 1,
            }
        };
        for bit in 0..8 * whole.len() {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            opens(&bytes);
        }
        (0..whole.len()).for_each(|end| opens(&whole[..end]));
        assert!(refused > 8 * whole.len() / 2, "{refused}");
        // That of an earlier version, which has no checksum, and one that the user has changed and says so.
        let text = String::from_utf8(whole).unwrap();
        let old = text.lines().filter(|line| !line.starts_with("crc")).collect::<Vec<_>>().join("\n");
        std::fs::write(&path, old.replace("7117", "7118")).unwrap();
        assert_eq!(CoordinatorFile::open(folder.path(), false).unwrap().address, "127.0.0.1:7118");
    }
}

//! What a coordinator leaves in the run's folder, so that another can go on in its place: which run it is, where workers look
//! for it, and whether they need a key. Where the run stands is in the coordinator's log beside it.

use crate::failure::Failure;
use grawa_train::durable;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};

const FILE: &str = "coordinator.toml";

/// Whose a folder is, held by one coordinator at a time.
pub(crate) struct Identity {
    pub(crate) run: u64,
    pub(crate) address: String,
    /// Locked until this coordinator ends, however it ends.
    _file: File,
}

#[derive(Serialize, Deserialize)]
struct Written {
    run: String,
    address: String,
    wire: String,
}

fn word(keyed: bool) -> &'static str {
    if keyed { "key" } else { "plain" }
}

fn wrong(path: PathBuf) -> impl Fn(String) -> Failure {
    move |why| Failure::Identity { path: path.clone(), why }
}

impl Identity {
    /// A run's number. Random, so that a worker of another run is not taken for one of this.
    pub(crate) fn number() -> u64 {
        std::hash::RandomState::new().build_hasher().finish() | 1
    }

    /// Writes down a new run.
    pub(crate) fn create(place: &Path, run: u64, address: String, keyed: bool) -> Result<Self, Failure> {
        let wrong = wrong(place.join(FILE));
        let written = Written { run: format!("{run:016x}"), address, wire: word(keyed).into() };
        let text = toml::to_string(&written).map_err(|error| wrong(error.to_string()))?;
        let file =
            durable::place(&place.join(FILE), text.as_bytes()).map_err(|error| wrong(error.to_string()))?;
        let _ = file.try_lock();
        Ok(Identity { run, address: written.address, _file: file })
    }

    /// The run that was coordinated in this folder.
    pub(crate) fn read(place: &Path, keyed: bool) -> Result<Self, Failure> {
        let wrong = wrong(place.join(FILE));
        let path = place.join(FILE);
        let text = std::fs::read_to_string(&path).map_err(|error| {
            wrong(format!("{error}; no run was coordinated there, or `grawa train --resume` goes on with it"))
        })?;
        let file = OpenOptions::new().write(true).open(&path).map_err(|error| wrong(error.to_string()))?;
        // Where files cannot be locked it is up to the user.
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            return Err(wrong("its coordinator is at work; only one at a time can be".into()));
        }
        let written: Written = toml::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        let run = u64::from_str_radix(&written.run, 16)
            .map_err(|error| wrong(format!("'{}' is no run's number: {error}", written.run)))?;
        if written.wire != word(keyed) {
            let (needs, found) = match keyed {
                true => ("without a key", "--wire plain"),
                false => {
                    ("with a key", "its --key FILE (after `grawa launch` that is run.key in this folder)")
                }
            };
            return Err(wrong(format!("its workers connect {needs}: give {found}")));
        }
        Ok(Identity { run, address: written.address, _file: file })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_run_is_found_again_by_one_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path();
        assert!(Identity::read(place, true).err().unwrap().to_string().contains("no run was coordinated"));
        let first = Identity::create(place, 0xfeed, "127.0.0.1:7117".into(), true).unwrap();
        assert!(Identity::create(place, 1, "x".into(), true).is_err(), "it was written over");
        assert!(Identity::read(place, true).err().unwrap().to_string().contains("is at work"));
        drop(first);
        assert!(Identity::read(place, false).err().unwrap().to_string().contains("give its --key FILE"));
        let again = Identity::read(place, true).unwrap();
        assert_eq!((again.run, again.address.as_str()), (0xfeed, "127.0.0.1:7117"));
        drop(again);
        std::fs::write(place.join(FILE), "run = 7").unwrap();
        assert!(Identity::read(place, true).is_err());
    }
}

//! A file that is made anew from what is known so far, and then grows.

use crate::Error;
use crate::checkpoint::io;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The file, open for writing.
#[derive(Debug)]
pub(super) struct Appended {
    path: PathBuf,
    file: File,
}

impl Appended {
    /// A new file with this content, which is written to `aside` first; an existing one is replaced.
    pub(super) fn create(path: PathBuf, aside: &Path, content: &[u8]) -> Result<Self, Error> {
        let write = || {
            fs::write(aside, content)?;
            fs::rename(aside, &path)?;
            OpenOptions::new().append(true).open(&path)
        };
        let file = write().map_err(io("write", &path))?;
        Ok(Appended { path, file })
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all(bytes).map_err(io("write", &self.path))
    }
}

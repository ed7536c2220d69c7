//! The coordinator's log: where the run stood, so that another coordinator can go on.
//!
//! A file of frames, one for each record, each written through to the disk before anyone acts on it. A frame that was cut
//! short by a crash is cut off.

use super::frame::{self, Numbers};
use super::message::{Record, decode, encode};
use crate::Error;
use std::fs::{File, OpenOptions};
use std::io::{BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// The log of a run.
#[derive(Debug)]
pub struct Log {
    file: File,
    path: PathBuf,
    numbers: Numbers,
}

impl Log {
    /// Opens the log in this file, which may be new, and reads what is in it.
    pub fn open(path: &Path) -> Result<(Self, Vec<Record>), Error> {
        let wrong = |why: String| Error::Log { path: path.into(), why };
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(path);
        let mut file = file.map_err(|error| wrong(error.to_string()))?;
        let (mut records, mut numbers, mut good) = (Vec::new(), Numbers::default(), 0);
        let mut reader = BufReader::new(&file);
        loop {
            let mut tried = numbers;
            let Ok(Some(body)) = frame::read(&mut reader, &mut tried, 1 << 10) else { break };
            let Ok(record) = decode::<Record>(&body) else { break };
            numbers = tried;
            good += (frame::HEAD + body.len()) as u64;
            records.push(record);
        }
        // Only what a crash left of the last record may be lost.
        let rest = file.metadata().map_err(|error| wrong(error.to_string()))?.len() - good;
        if rest > 2 * (frame::HEAD + size_of::<Record>()) as u64 {
            return Err(wrong(format!(
                "{rest} bytes after the first {good} are no records; move it away to start anew"
            )));
        }
        file.set_len(good)
            .and_then(|()| file.seek(SeekFrom::End(0)))
            .map_err(|error| wrong(error.to_string()))?;
        Ok((Log { file, path: path.into(), numbers }, records))
    }

    /// Writes a record down.
    pub fn keep(&mut self, record: &Record) -> Result<(), Error> {
        frame::write(&mut self.file, &mut self.numbers, &encode(record)?)?;
        self.file.sync_data().map_err(|error| Error::Log { path: self.path.clone(), why: error.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::Stand;

    #[test]
    fn a_log_survives_a_crash_at_any_byte() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let record =
            |op| Record { run: 7, epoch: op, stand: Stand { op, digest: u64::MAX - op }, members: 3 };
        let (mut log, none) = Log::open(&path).unwrap();
        assert!(none.is_empty());
        (0..3).for_each(|op| log.keep(&record(op)).unwrap());
        let whole = std::fs::read(&path).unwrap();
        for end in 0..=whole.len() {
            std::fs::write(&path, &whole[..end]).unwrap();
            let (mut log, mut found) = Log::open(&path).unwrap();
            assert!(found.iter().copied().eq((0..found.len() as u64).map(record)), "{end} bytes: {found:?}");
            assert!(found.len() + 1 > 3 * end / whole.len());
            // It goes on where the last whole record ends.
            log.keep(&record(9)).unwrap();
            found.push(record(9));
            assert_eq!(Log::open(&path).unwrap().1, found);
        }
    }

    #[test]
    fn another_file_is_not_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("thesis");
        std::fs::write(&path, "long ".repeat(100)).unwrap();
        assert!(Log::open(&path).unwrap_err().to_string().contains("are no records"));
        assert_eq!(std::fs::read(&path).unwrap().len(), 500);
    }
}

//! The coordinator's log: where the run stood, so that another coordinator can go on.
//!
//! A file of frames, one for each record, each written through to the disk before anyone acts on it. A frame that was cut
//! short by a crash is cut off.

use super::frame::{self, Numbers};
use super::message::{Record, decode, encode};
use crate::Error;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// A record without tokens is no longer than this, and one with those of thousands of members than that.
const SHORT: usize = 64;
const LONGEST: usize = 1 << 16;

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
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            // Two would each lead those who reach them. Where files cannot be locked that is the user's to see to.
            return Err(wrong("another coordinator is using it".into()));
        }
        let (records, numbers, good) = records(&mut BufReader::new(&file));
        // Only what a crash left of the last record may be lost.
        let rest = file.metadata().map_err(|error| wrong(error.to_string()))?.len() - good;
        let mut length = [0; 4];
        let start = file.seek(SeekFrom::Start(good)).and_then(|_| file.read_exact(&mut length));
        let length = start.map_or(0, |()| u32::from_le_bytes(length) as usize);
        let length = if length > LONGEST { 0 } else { length };
        if rest > (2 * (frame::HEAD + SHORT)).max(frame::HEAD + length) as u64 {
            return Err(wrong(format!(
                "{rest} bytes after the first {good} are no records; move it away to start anew"
            )));
        }
        file.set_len(good)
            .and_then(|()| file.seek(SeekFrom::End(0)))
            .map_err(|error| wrong(error.to_string()))?;
        #[cfg(unix)]
        if good == 0 {
            // A new file is there after a crash of the machine only once its folder is written.
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = File::open(folder.unwrap_or(Path::new(".")));
            folder.and_then(|folder| folder.sync_all()).map_err(|error| wrong(error.to_string()))?;
        }
        Ok((Log { file, path: path.into(), numbers }, records))
    }

    /// Writes records down.
    pub fn keep(&mut self, records: &[Record]) -> Result<(), Error> {
        for record in records {
            frame::write(&mut self.file, &mut self.numbers, &encode(record)?)?;
        }
        self.file.sync_data().map_err(|error| Error::Log { path: self.path.clone(), why: error.to_string() })
    }
}

/// The records at the beginning, the numbers that go on after them, and how many bytes they take.
pub fn records(from: &mut impl Read) -> (Vec<Record>, Numbers, u64) {
    let (mut records, mut numbers, mut good) = (Vec::new(), Numbers::default(), 0);
    loop {
        let mut tried = numbers;
        let Ok(Some(body)) = frame::read(from, &mut tried, LONGEST) else { break };
        let Ok(record) = decode::<Record>(&body) else { break };
        numbers = tried;
        good += (frame::HEAD + body.len()) as u64;
        records.push(record);
    }
    (records, numbers, good)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::Stand;

    #[test]
    fn a_log_survives_a_crash_at_any_byte() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let record = |op| Record {
            run: 7,
            epoch: op,
            stand: Stand { op, digest: u64::MAX - op },
            members: 3,
            tokens: vec![u64::MAX; 40],
        };
        let (mut log, none) = Log::open(&path).unwrap();
        assert!(none.is_empty());
        log.keep(&[record(0)]).unwrap();
        log.keep(&[record(1), record(2)]).unwrap();
        let whole = std::fs::read(&path).unwrap();
        drop(log);
        for end in 0..=whole.len() {
            std::fs::write(&path, &whole[..end]).unwrap();
            let (mut log, mut found) = Log::open(&path).unwrap();
            assert!(found.iter().cloned().eq((0..found.len() as u64).map(record)), "{end} bytes: {found:?}");
            assert!(found.len() + 1 > 3 * end / whole.len());
            // It goes on where the last whole record ends.
            log.keep(&[record(9)]).unwrap();
            found.push(record(9));
            drop(log);
            assert_eq!(Log::open(&path).unwrap().1, found);
        }
    }

    #[test]
    fn one_coordinator_at_a_time_has_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let first = Log::open(&path).unwrap();
        let error = Log::open(&path).unwrap_err();
        assert!(error.to_string().contains("another coordinator is using it"), "{error}");
        drop(first);
        assert!(Log::open(&path).is_ok());
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

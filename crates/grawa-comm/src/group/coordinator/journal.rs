//! The coordinator's journal: the committed states of a run, and its charter if a worker proposed it, so that another coordinator can continue it.
//!
//! A file of frames, one for each record. Each is synced to the disk before anyone acts on it. A frame that a crash cut short is
//! removed.

use crate::Error;
use crate::group::messages::{Entry, LONGEST_CHARTER};
use crate::group::wire::frame::{self, Numbers};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// The longest record without tokens, and the longest entry: a charter. The tokens of thousands of members take less.
const SHORT: usize = 64;
const LONGEST: usize = LONGEST_CHARTER + SHORT;

/// The journal of a run.
#[derive(Debug)]
pub(crate) enum Journal {
    File {
        file: File,
        path: PathBuf,
        numbers: Numbers,
    },
    #[cfg(test)]
    Simulated(crate::group::simulate::Disk),
}

impl Journal {
    /// Opens the journal in this file, which may be new. Returns its entries.
    pub(crate) fn open(path: &Path) -> Result<(Self, Vec<Entry>), Error> {
        let wrong = |why: String| Error::Log { path: path.into(), why };
        let failed = |error: std::io::Error| wrong(error.to_string());
        let mut options = OpenOptions::new();
        let mut file =
            options.read(true).write(true).create(true).truncate(false).open(path).map_err(failed)?;
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            // Each would lead the members that reach it. Where files cannot be locked, the user must prevent that.
            return Err(wrong("another coordinator is using it".into()));
        }
        let (entries, numbers, good) = entries(&mut BufReader::new(&file));
        // Only what a crash left of the last record may be removed.
        let rest = file.metadata().map_err(failed)?.len() - good;
        let mut length = [0; 4];
        let start = file.seek(SeekFrom::Start(good)).and_then(|_| file.read_exact(&mut length));
        let length = start.ok().map(|()| u32::from_le_bytes(length) as usize);
        let length = length.filter(|length| *length <= LONGEST).unwrap_or(0);
        if rest > (2 * (frame::HEADER + SHORT)).max(frame::HEADER + length) as u64 {
            return Err(wrong(format!(
                "{rest} bytes after the first {good} are no records; move it away to start anew"
            )));
        }
        file.set_len(good).and_then(|()| file.seek(SeekFrom::End(0))).map_err(failed)?;
        #[cfg(unix)]
        if good == 0 {
            // A new file survives a crash of the machine only once its folder is synced.
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = File::open(folder.unwrap_or(Path::new(".")));
            folder.and_then(|folder| folder.sync_all()).map_err(failed)?;
        }
        Ok((Journal::File { file, path: path.into(), numbers }, entries))
    }

    /// Appends entries, and syncs them.
    pub(crate) fn append(&mut self, entries: &[Entry]) -> Result<(), Error> {
        let (file, path, numbers) = match self {
            Journal::File { file, path, numbers } => (file, path, numbers),
            #[cfg(test)]
            Journal::Simulated(disk) => return disk.append(entries),
        };
        for entry in entries {
            frame::write(file, numbers, &entry.encode()?)?;
        }
        file.sync_data().map_err(|error| Error::Log { path: path.clone(), why: error.to_string() })
    }
}

/// The entries at the beginning, the numbers that follow them, and how many bytes they take.
pub fn entries(from: &mut impl Read) -> (Vec<Entry>, Numbers, u64) {
    let (mut entries, mut numbers, mut good) = (Vec::new(), Numbers::default(), 0);
    loop {
        let mut tried = numbers;
        let Ok(Some(body)) = frame::read(|buffer| from.read(buffer), &mut tried, LONGEST) else { break };
        let Ok(entry) = Entry::decode(&body) else { break };
        numbers = tried;
        good += (frame::HEADER + body.len()) as u64;
        entries.push(entry);
    }
    (entries, numbers, good)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::messages::{Proposal, Record, StateVersion};

    #[test]
    fn a_journal_survives_a_crash_at_any_byte() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        // The second is a charter.
        let record = |op| match op {
            1 => Entry::Adopted { run: 7, proposal: Proposal { charter: vec![7; 409], trigger: Some(9) } },
            op => Entry::Committed(Record {
                run: 7,
                epoch: op,
                version: StateVersion { op, digest: u64::MAX - op },
                members: 3,
                tokens: vec![u64::MAX; 40],
            }),
        };
        let (mut journal, none) = Journal::open(&path).unwrap();
        assert!(none.is_empty());
        journal.append(&[record(0)]).unwrap();
        journal.append(&[record(1), record(2)]).unwrap();
        let whole = std::fs::read(&path).unwrap();
        drop(journal);
        for end in 0..=whole.len() {
            std::fs::write(&path, &whole[..end]).unwrap();
            let (mut journal, mut found) = Journal::open(&path).unwrap();
            assert!(found.iter().cloned().eq((0..found.len() as u64).map(record)), "{end} bytes: {found:?}");
            assert!(found.len() + 1 > 3 * end / whole.len());
            // It continues after the last whole record.
            journal.append(&[record(9)]).unwrap();
            found.push(record(9));
            drop(journal);
            assert_eq!(Journal::open(&path).unwrap().1, found);
        }
    }

    #[test]
    fn one_coordinator_at_a_time_has_the_journal() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let first = Journal::open(&path).unwrap();
        let error = Journal::open(&path).unwrap_err();
        assert!(error.to_string().contains("another coordinator is using it"), "{error}");
        drop(first);
        assert!(Journal::open(&path).is_ok());
    }

    #[test]
    fn another_file_is_not_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("thesis");
        std::fs::write(&path, "long ".repeat(100)).unwrap();
        assert!(Journal::open(&path).unwrap_err().to_string().contains("are no records"));
        assert_eq!(std::fs::read(&path).unwrap().len(), 500);
    }
}

//! The coordinator's journal: the committed states of a run, and its charter if a worker proposed it, so that another coordinator can continue it.
//!
//! The file begins with [`MAGIC`]; then come entries, each synced to the disk before anyone acts on it:
//!
//! ```text
//! length of the body   4 bytes, little-endian
//! number               4 bytes: 0 for the first entry, then increasing by one
//! checksum             4 bytes: CRC-32C of length and number
//! checksum             4 bytes: CRC-32C of length, number and body
//! body
//! ```
//! The length has a checksum of its own: so what a crash left of the last entry is told from damage before it. What a crash left is cut off,
//! and kept beside the file. Damage is refused: a run that goes on without its records would begin anew. Journals of the protocol's versions
//! up to 9 are frames of a connection without a magic number. They are read, and continued in their form.

use crate::Error;
use crate::group::digest::crc;
use crate::group::messages::{Entry, LONGEST_CHARTER};
use crate::group::wire::frame::{self, Numbers};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The first bytes of a journal.
pub const MAGIC: &[u8; 16] = b"grawa journal 2\n";
/// The bytes before the body of an entry.
const HEADER: usize = 16;
/// The longest entry: a charter. The tokens of thousands of members take less.
const LONGEST: usize = LONGEST_CHARTER + 64;
/// By how much a record may be longer than the one before: two more members.
const GROWTH: usize = 20;

/// How the entries of a journal are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// The present one.
    Entries,
    /// That of the protocol's versions up to 9.
    Frames,
}

/// The journal of a run.
#[derive(Debug)]
pub(crate) enum Journal {
    File {
        file: File,
        path: PathBuf,
        form: Form,
        numbers: Numbers,
    },
    #[cfg(test)]
    Simulated(crate::group::simulate::Disk),
}

/// What the bytes of a journal hold.
#[derive(Debug)]
pub struct Content {
    pub(crate) form: Form,
    /// The entries at the beginning.
    pub entries: Vec<Entry>,
    numbers: Numbers,
    /// How many bytes they take.
    pub good: usize,
    /// Whether a crash while the last entry was written explains what follows them.
    pub is_torn: bool,
}

impl Journal {
    /// Opens the journal in this file, which may be new. Returns its entries. What follows them is cut off, and kept, if a crash explains it, or
    /// in any case if `may_cut`.
    pub(crate) fn open(path: &Path, may_cut: bool) -> Result<(Self, Vec<Entry>), Error> {
        let wrong = |why: String| Error::Log { path: path.into(), why };
        let failed = |error: std::io::Error| wrong(error.to_string());
        let mut options = OpenOptions::new();
        let mut file =
            options.read(true).write(true).create(true).truncate(false).open(path).map_err(failed)?;
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            // Each would lead the members that reach it. Where files cannot be locked, the user must prevent that.
            return Err(wrong("another coordinator is using it".into()));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed)?;
        let Content { form, entries, numbers, good, is_torn } = content(&bytes);
        let rest = &bytes[good..];
        if !is_torn && !may_cut {
            let (rest, count) = (rest.len(), entries.len());
            return Err(wrong(format!(
                "it is damaged: {rest} bytes after its first {count} records are no records"
            )));
        }
        if !rest.is_empty() {
            keep(path, rest).map_err(|error| wrong(format!("cannot keep a copy of its end: {error}")))?;
            file.set_len(good as u64).map_err(failed)?;
        }
        file.seek(SeekFrom::Start(good as u64)).map_err(failed)?;
        let form = if good == 0 { Form::Entries } else { form };
        if good == 0 {
            file.write_all(MAGIC).and_then(|()| file.sync_all()).map_err(failed)?;
            #[cfg(unix)]
            // A new file survives a crash of the machine only once its folder is synced.
            File::open(folder_of(path)).and_then(|folder| folder.sync_all()).map_err(failed)?;
        }
        Ok((Journal::File { file, path: path.into(), form, numbers }, entries))
    }

    /// Appends entries, and syncs them.
    pub(crate) fn append(&mut self, entries: &[Entry]) -> Result<(), Error> {
        let (file, path, form, numbers) = match self {
            Journal::File { file, path, form, numbers } => (file, path, form, numbers),
            #[cfg(test)]
            Journal::Simulated(disk) => return disk.append(entries),
        };
        let mut bytes = Vec::new();
        for entry in entries {
            let body = entry.encode()?;
            match form {
                Form::Frames => frame::write(&mut bytes, numbers, &body)?,
                Form::Entries => write(&mut bytes, numbers.give(), &body),
            }
        }
        let written = file.write_all(&bytes).and_then(|()| file.sync_data());
        written.map_err(|error| Error::Log { path: path.clone(), why: error.to_string() })
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Keeps what is cut off in a file of its own: `….cut`, `….cut-2` and so on.
fn keep(path: &Path, rest: &[u8]) -> std::io::Result<()> {
    let name = path.file_name().unwrap_or_default().display().to_string();
    for number in 1u32.. {
        let name = if number == 1 { format!("{name}.cut") } else { format!("{name}.cut-{number}") };
        match File::create_new(folder_of(path).join(name)) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            made => {
                let mut file = made?;
                return file.write_all(rest).and_then(|()| file.sync_all());
            }
        }
    }
    Ok(())
}

/// The header of an entry.
fn header(number: u32, body: &[u8]) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
    header[4..8].copy_from_slice(&number.to_le_bytes());
    let checksum = crc(&header[..8]);
    header[8..12].copy_from_slice(&checksum.to_le_bytes());
    let checksum = crc(&[&header[..8], body].concat());
    header[12..].copy_from_slice(&checksum.to_le_bytes());
    header
}

/// Appends an entry.
pub fn write(to: &mut Vec<u8>, number: u32, body: &[u8]) {
    to.extend_from_slice(&header(number, body));
    to.extend_from_slice(body);
}

/// What the bytes of a journal hold.
pub fn content(bytes: &[u8]) -> Content {
    let Some(mut rest) = bytes.strip_prefix(MAGIC) else {
        // A crash may have cut the first bytes short.
        return match MAGIC.starts_with(bytes) {
            true => Content {
                form: Form::Entries,
                entries: Vec::new(),
                numbers: Numbers::default(),
                good: 0,
                is_torn: true,
            },
            false => frames(bytes),
        };
    };
    let (mut entries, mut numbers, mut good) = (Vec::new(), Numbers::default(), MAGIC.len());
    let mut last = GROWTH;
    loop {
        let mut tried = numbers;
        let number = tried.give();
        // The length is trusted if its checksum fits.
        let length = rest.first_chunk::<HEADER>().and_then(|header| {
            let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|n| header[at + n]));
            let length = usize::try_from(word(0)).ok().filter(|length| *length <= LONGEST);
            length.filter(|_| word(4) == number && word(8) == crc(&header[..8]))
        });
        let body = length.and_then(|length| rest.get(HEADER..HEADER + length));
        let is_whole = |body: &&[u8]| rest[..HEADER] == header(number, body);
        let Some((body, entry)) =
            body.filter(is_whole).and_then(|body| Some((body, Entry::decode(body).ok()?)))
        else {
            // Of several entries that were written at once a crash may leave a part, and blocks of zeros after it.
            let written = rest.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
            let is_torn = match length {
                // The last one: a part of it, or all of it with blocks that were not written.
                Some(length) => written <= HEADER + length,
                // Less than a header; or the header itself was torn.
                None => written < HEADER || written <= last + GROWTH,
            };
            return Content { form: Form::Entries, entries, numbers, good, is_torn };
        };
        (numbers, last) = (tried, HEADER + body.len());
        good += last;
        rest = &rest[last..];
        entries.push(entry);
    }
}

/// The same for a journal of the protocol's versions up to 9.
fn frames(bytes: &[u8]) -> Content {
    let (mut entries, mut numbers, mut good, mut last) = (Vec::new(), Numbers::default(), 0, GROWTH);
    loop {
        let (mut tried, mut rest) = (numbers, &bytes[good..]);
        let body = frame::read(|buffer| rest.read(buffer), &mut tried, LONGEST);
        let decoded =
            |body: Vec<u8>| Entry::decode(&body).ok().map(|entry| (frame::HEADER + body.len(), entry));
        let Some((length, entry)) = body.ok().flatten().and_then(decoded) else {
            let rest = &bytes[good..];
            let claimed = rest.first_chunk::<4>().map_or(0, |length| u32::from_le_bytes(*length) as usize);
            // Only the first entry may be a charter, which is long.
            let is_charter =
                entries.is_empty() && claimed <= LONGEST && rest.len() <= frame::HEADER + claimed;
            let is_torn = match entries.is_empty() {
                true => is_charter || rest.len() < frame::HEADER,
                false => rest.len() <= last + GROWTH,
            };
            return Content { form: Form::Frames, entries, numbers, good, is_torn };
        };
        (numbers, last) = (tried, length);
        good += last;
        entries.push(entry);
    }
}

/// What else is known of a run that another coordinator continues.
#[derive(Clone, Copy, Debug)]
pub struct Past<'a> {
    /// The journal.
    pub journal: &'a Path,
    /// The last round that was recorded.
    pub rounds: u64,
    /// Whether to continue from the newest state that a worker brings, whatever the journal says.
    pub from_workers: bool,
}

/// Why this file is no journal of a run that was begun, if it is none: the journal is there, with its first bytes, before the run is.
pub(crate) fn lost(path: &Path) -> Option<String> {
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some("it is missing".into()),
        Ok(found) if found.len() < MAGIC.len() as u64 => Some("it is empty".into()),
        // What else is wrong is found when it is opened.
        _ => None,
    }
}

/// Why a run must not continue from these entries, if it must not: a run whose records are lost would begin anew, and its workers would replace
/// the checkpoints of the old one.
pub(crate) fn objection(entries: &[Entry], run: u64, rounds: u64) -> Option<String> {
    let records = || {
        entries.iter().filter_map(|entry| match entry {
            Entry::Committed(record) if record.members > 0 => Some(record),
            _ => None,
        })
    };
    if let Some(other) = records().find(|record| record.run != run) {
        return Some(format!(
            "it holds records of run {:016x}, and coordinator.toml beside it names run {run:016x}: one of the two is damaged, or of another run",
            other.run
        ));
    }
    // A round takes one operation or more. Its report may have arrived before its state was committed.
    let last = records().map(|record| record.version.op).max();
    match last {
        None if rounds > 0 => {
            Some(format!("it holds no committed state, and events.jsonl beside it {rounds} rounds"))
        }
        Some(op) if op + 1 < rounds => Some(format!(
            "it ends before operation {op}, and events.jsonl beside it holds {rounds} rounds: records are missing"
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::coordinator::{Action, Coordinator, Input, Settings};
    use crate::group::messages::{Hello, Proposal, Record, StateVersion, ToCoordinator, ToMember, VERSION};

    /// Several entries are written at once where the disk is slow. After a crash all of them, or all but a part, may be zeros.
    #[test]
    fn zeros_in_the_place_of_several_entries_are_torn() {
        let proposal = Proposal { charter: vec![7; 900], trigger: None, wait: Some(1) };
        let entry = Entry::Adopted { run: 7, proposal }.encode().unwrap();
        let mut bytes = MAGIC.to_vec();
        write(&mut bytes, 0, &entry);
        let first = bytes.len();
        write(&mut bytes, 1, &entry);
        for kept in first..bytes.len() {
            let mut crashed = bytes[..kept].to_vec();
            crashed.resize(bytes.len() + 5000, 0);
            let found = content(&crashed);
            assert!(found.is_torn && found.good == first && found.entries.len() == 1, "{kept}");
        }
        // Something after the zeros is damage.
        let mut damaged = bytes[..first].to_vec();
        damaged.resize(bytes.len() + 5000, 0);
        damaged.push(1);
        assert!(!content(&damaged).is_torn);
    }

    #[test]
    fn a_journal_survives_a_crash_at_any_byte() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        // The second is a charter.
        let record = |op| match op {
            1 => Entry::Adopted {
                run: 7,
                proposal: Proposal { charter: vec![7; 409], trigger: Some(9), wait: None },
            },
            op => Entry::Committed(Record {
                run: 7,
                epoch: op,
                version: StateVersion { op, digest: u64::MAX - op },
                members: 3,
                tokens: vec![u64::MAX; 40],
            }),
        };
        let (mut journal, none) = Journal::open(&path, false).unwrap();
        assert!(none.is_empty());
        journal.append(&[record(0)]).unwrap();
        journal.append(&[record(1), record(2)]).unwrap();
        let whole = std::fs::read(&path).unwrap();
        drop(journal);
        for end in 0..=whole.len() {
            std::fs::write(&path, &whole[..end]).unwrap();
            let (mut journal, mut found) = Journal::open(&path, false).unwrap();
            assert!(found.iter().cloned().eq((0..found.len() as u64).map(record)), "{end} bytes: {found:?}");
            assert!(found.len() + 1 > 3 * end.saturating_sub(MAGIC.len()) / whole.len());
            let _ = std::fs::remove_file(folder.path().join("log.cut"));
            // It continues after the last whole record.
            journal.append(&[record(9)]).unwrap();
            found.push(record(9));
            drop(journal);
            assert_eq!(Journal::open(&path, false).unwrap().1, found);
        }
    }

    /// The bytes of a journal in one form or the other.
    fn bytes(form: Form, entries: &[Entry]) -> Vec<u8> {
        let (mut bytes, mut numbers) = (Vec::new(), Numbers::default());
        if form == Form::Entries {
            bytes.extend_from_slice(MAGIC);
        }
        for entry in entries {
            let body = entry.encode().unwrap();
            match form {
                Form::Frames => frame::write(&mut bytes, &mut numbers, &body).unwrap(),
                Form::Entries => write(&mut bytes, numbers.give(), &body),
            }
        }
        bytes
    }

    fn committed(op: u64, run: u64) -> Entry {
        let version = StateVersion { op, digest: 1000 + op };
        Entry::Committed(Record { run, epoch: 1, version, members: 2, tokens: vec![1 << 60, 2 << 60] })
    }

    /// Whatever bit is wrong and wherever the file ends: the run continues from one of its last two states, or is refused. It never begins anew.
    /// What is cut off is kept, also when that happens again.
    #[test]
    fn damage_never_begins_a_run_anew() {
        let charter = Entry::Adopted {
            run: 7,
            proposal: Proposal { charter: vec![7; 90], trigger: None, wait: Some(7) },
        };
        let mut entries = vec![charter];
        entries.extend((0..6).map(|n| committed(2 * n, 7)));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        for (form, has_charter) in [Form::Entries, Form::Frames].into_iter().zip([true, false]) {
            let entries = &entries[usize::from(!has_charter)..];
            let whole = bytes(form, entries);
            assert_eq!(content(&whole).entries, entries);
            let flip = |bit: usize| {
                let mut bytes = whole.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                (bytes, true)
            };
            let flips = (0..8 * whole.len()).map(flip);
            let cuts = (0..whole.len()).map(|end| (whole[..end].to_vec(), false));
            let (mut refused, mut continued) = (0, 0);
            for (damaged, is_flip) in flips.chain(cuts) {
                let found = content(&damaged);
                let allowed = found.is_torn && objection(&found.entries, 7, 5).is_none();
                if !allowed {
                    refused += 1;
                    continue;
                }
                continued += 1;
                // All but the last, which a crash may have cut short; a shorter file of whole records cannot be told from an older one.
                let count = found.entries.len();
                assert_eq!(found.entries, entries[..count], "they are the first ones");
                assert!(!is_flip || count + 1 >= entries.len(), "{count} of {} are left", entries.len());
                // No worker's initial state counts.
                let mut coordinator =
                    Coordinator::new(Settings::default(), 7, Vec::new(), &found.entries).begun(false);
                for token in [5, 6] {
                    let (version, address) = (VERSION, "a:1".into());
                    let hello = Hello { version, run: 0, token, worker: None, address };
                    let enter = ToCoordinator::Enter(StateVersion { op: 0, digest: 1000 });
                    for message in [ToCoordinator::Hello(hello), enter] {
                        let input = Input::Message { session: token, message };
                        for action in coordinator.handle(input, std::time::Duration::from_secs(1)) {
                            assert!(
                                !matches!(action, Action::Send { message: ToMember::Ready { .. }, .. }),
                                "{count} records: a new worker may begin"
                            );
                        }
                    }
                }
            }
            println!("{form:?}: {refused} refused, {continued} continue");
            assert!(refused > 7 * whole.len() / 2 && continued > 100);
        }
        // The cut is kept, and not written over.
        let whole = bytes(Form::Entries, &entries);
        for _ in 0..3 {
            std::fs::write(&path, &whole[..whole.len() - 3]).unwrap();
            assert_eq!(Journal::open(&path, false).unwrap().1.len(), entries.len() - 1);
        }
        let last = &whole[bytes(Form::Entries, &entries[..entries.len() - 1]).len()..whole.len() - 3];
        for name in ["log.cut", "log.cut-2", "log.cut-3"] {
            assert_eq!(std::fs::read(folder.path().join(name)).unwrap(), last, "{name}");
        }
        // Damage in the middle is refused, and the file stays as it is; unless the user says that it may go.
        let mut damaged = whole.clone();
        damaged[MAGIC.len() + 2] ^= 0x10;
        std::fs::write(&path, &damaged).unwrap();
        let error = Journal::open(&path, false).unwrap_err().to_string();
        assert!(error.contains("it is damaged"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), damaged);
        assert_eq!(Journal::open(&path, true).unwrap().1, []);
        assert_eq!(std::fs::read(folder.path().join("log.cut-4")).unwrap(), damaged[MAGIC.len()..]);
    }

    /// A journal that is lost, of another run, or of a run that was much further, is no beginning.
    #[test]
    fn lost_records_are_noticed() {
        let of = |entries: &[Entry], rounds| objection(entries, 7, rounds).unwrap_or_default();
        assert!(of(&[], 1).contains("no committed state"));
        assert!(of(&[committed(4, 8)], 0).contains("records of run 0000000000000008"));
        assert!(of(&[committed(4, 7)], 74).contains("records are missing"));
        // The last report may be ahead of its record; and a run that went back has records of later states.
        for (entries, rounds) in
            [(vec![], 0), (vec![committed(0, 7)], 1), (vec![committed(90, 7), committed(4, 7)], 45)]
        {
            assert_eq!(of(&entries, rounds), "");
        }
    }

    /// Journals of earlier versions are read, and continued in their form.
    #[test]
    fn journals_of_earlier_versions_are_continued() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        std::fs::write(&path, bytes(Form::Frames, &[committed(2, 7)])).unwrap();
        let (mut journal, found) = Journal::open(&path, false).unwrap();
        assert_eq!(found, [committed(2, 7)]);
        journal.append(&[committed(4, 7)]).unwrap();
        drop(journal);
        assert_eq!(Journal::open(&path, false).unwrap().1, [committed(2, 7), committed(4, 7)]);
    }

    #[test]
    fn one_coordinator_at_a_time_has_the_journal() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let first = Journal::open(&path, false).unwrap();
        let error = Journal::open(&path, false).unwrap_err();
        assert!(error.to_string().contains("another coordinator is using it"), "{error}");
        drop(first);
        assert!(Journal::open(&path, false).is_ok());
    }

    #[test]
    fn another_file_is_not_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("thesis");
        std::fs::write(&path, "long ".repeat(100)).unwrap();
        assert!(Journal::open(&path, false).unwrap_err().to_string().contains("are no records"));
        assert_eq!(std::fs::read(&path).unwrap().len(), 500);
    }
}

//! The coordinator's disk, which lies: bytes, of which some are synced.
//!
//! When the coordinator dies, any part of what was not synced is there, also as blocks of zeros. Now and then the disk
//! has also lost the end of what it said was synced, or a bit is wrong. The next coordinator reads these bytes with
//! the code that reads the file.

use super::scheduler::Process;
use super::{RUN, Schedule};
use crate::Error;
use crate::group::coordinator::journal::{Content, MAGIC, content, objection, write};
use crate::group::messages::Entry;
use std::sync::Arc;
use std::time::Duration;

/// Of so many starts of a coordinator, one finds that the disk has lost synced bytes, and one finds a wrong bit.
const LIES: u64 = 6;

/// The bytes of the journal.
#[derive(Debug, Default)]
pub(super) struct Bytes {
    all: Vec<u8>,
    /// How many of them are synced.
    synced: usize,
    /// Entries in them, and how many were synced.
    entries: Vec<Entry>,
    synced_entries: usize,
    /// The run has begun after so many bytes: what a disk loses comes after them.
    begun: usize,
}

/// The disk as the server writes to it.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    pub(super) process: Process,
    pub(super) schedule: Arc<Schedule>,
}

impl Disk {
    pub(crate) fn append(&mut self, entries: &[Entry]) -> Result<(), Error> {
        let now = self.process.now();
        let time = self.schedule.kind.sync(now, |n| self.process.world.state().below(n));
        let time = Duration::from_millis(time);
        let mut known = self.schedule.known();
        known.journal.append(entries)?;
        drop(known);
        // What is written is not synced yet: the coordinator may die here.
        self.process.sleep(time);
        self.schedule.known().journal.sync();
        self.schedule.note_entries(&self.process, entries);
        Ok(())
    }
}

impl Bytes {
    fn append(&mut self, entries: &[Entry]) -> Result<(), Error> {
        if self.all.is_empty() {
            // The file is made before there is a coordinator, and its beginning is synced.
            self.all.extend_from_slice(MAGIC);
            self.synced = MAGIC.len();
        }
        for entry in entries {
            let number = self.entries.len() as u32;
            write(&mut self.all, number, &entry.encode()?);
            self.entries.push(entry.clone());
            if matches!(entry, Entry::Committed(record) if record.version.op > 0) && self.begun == 0 {
                self.begun = self.all.len();
            }
        }
        Ok(())
    }

    fn sync(&mut self) {
        (self.synced, self.synced_entries) = (self.all.len(), self.entries.len());
    }

    /// What the next coordinator finds after a crash: the entries; how many synced ones a lie of the disk has cost;
    /// and whether damage was found out, after which somebody brought the right file.
    pub(super) fn after_a_crash(
        &mut self,
        rounds: u64,
        mut below: impl FnMut(u64) -> u64,
    ) -> Result<(Vec<Entry>, Crash), String> {
        let (whole, mut crash) = (self.all.clone(), Crash::default());
        let kept = self.synced + below((whole.len() - self.synced) as u64 + 1) as usize;
        let mut bytes = whole[..kept].to_vec();
        if kept < whole.len() && below(4) == 0 {
            bytes.resize(whole.len(), 0);
        }
        let has_begun = self.begun > 0 && self.begun < self.synced;
        if has_begun && below(LIES) == 0 {
            let lost = below((self.synced - self.begun).min(300) as u64) as usize;
            bytes.truncate(self.synced - lost);
            crash.lied = lost > 0;
        }
        let flips = has_begun && below(LIES) == 0;
        if flips {
            let bit = below(8 * bytes.len() as u64) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let mut found = content(&bytes);
        if !found.is_torn || objection(&found.entries, RUN, rounds).is_some() {
            if !flips && !crash.lied {
                return Err(format!("what a crash left is refused: {found:?}, {rounds} rounds"));
            }
            crash = Crash { found_out: true, ..Crash::default() };
            found = content(&whole[..self.synced]);
        }
        let Content { entries, good, .. } = found;
        if entries != self.entries[..entries.len().min(self.entries.len())] {
            return Err(format!("the journal holds what was never written: {entries:?}"));
        }
        // One record, of which a crash may have torn a part, is all that a wrong bit may cost without a word.
        let least = self.synced_entries - usize::from(flips && !crash.found_out).min(self.synced_entries);
        if !crash.lied && entries.len() < least {
            return Err(format!(
                "{} of {} records are left, and nobody is told",
                entries.len(),
                self.synced_entries
            ));
        }
        crash.lost = self.synced_entries.saturating_sub(entries.len());
        self.all.truncate(good);
        self.entries.truncate(entries.len());
        if good < whole.len() && !crash.found_out {
            self.all = bytes[..good].to_vec();
        }
        self.sync();
        if self.begun > self.all.len() {
            self.begun = 0;
        }
        Ok((entries, crash))
    }
}

/// What a crash has cost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Crash {
    pub(super) lied: bool,
    pub(super) found_out: bool,
    pub(super) lost: usize,
}

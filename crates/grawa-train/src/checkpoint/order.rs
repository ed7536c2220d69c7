//! Which checkpoints there are, in which order they were written, and which may go.
//!
//! Step numbers do not tell which is newest: a run that went back to an earlier checkpoint writes smaller ones after larger ones.
//! So every checkpoint carries its number in the order of writing, and the last one written is the newest.

use super::{TIMING, checksums, parse_toml};
use crate::Error;
use crate::snapshot::Snapshot;
use serde::Deserialize;
use std::fmt;
use std::io::ErrorKind;
use std::path::Path;

/// How many are kept.
pub(super) const KEPT: usize = 2;

/// The name of a checkpoint's folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    /// Local steps per worker at the last round.
    steps: u64,
    /// Of a run that was asked to stop between two rounds: the local steps of all workers together.
    stopped: Option<u64>,
}

impl Name {
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let taken = || snapshot.parts.iter().map(|part| part.taken).sum();
        Name { steps: snapshot.at.steps, stopped: snapshot.stopped.then(taken) }
    }

    /// Reads a name; folders that are called otherwise are not ours.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("step-")?;
        let (steps, stopped) = match rest.split_once("-stopped-") {
            Some((steps, taken)) => (steps, Some(taken.parse().ok()?)),
            None => (rest, None),
        };
        Some(Name { steps: steps.parse().ok()?, stopped })
    }
}

impl Name {
    /// Whether its last round was after so many local steps of each worker.
    pub(crate) fn is_at(self, steps: u64) -> bool {
        self.steps == steps
    }

    /// The local steps of each of so many workers.
    pub(crate) fn steps_of_each(self, workers: u64) -> u64 {
        self.stopped.map_or(0, |taken| taken / workers.max(1)).max(self.steps)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.stopped {
            Some(taken) => write!(f, "step-{:08}-stopped-{taken:012}", self.steps),
            None => write!(f, "step-{:08}", self.steps),
        }
    }
}

/// A checkpoint of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: Name,
    /// Its number in the order of writing; those written before numbers were kept have 0. None if it cannot be read.
    pub(super) order: Option<u64>,
}

impl Entry {
    /// The newest is the greatest. One whose number cannot be read may be the newest, and must not be passed over without a word.
    fn age(&self) -> (u64, Name) {
        (self.order.unwrap_or(u64::MAX), self.name)
    }
}

/// What is read of `timing.toml` to know the order.
#[derive(Deserialize)]
struct Order {
    #[serde(default)]
    order: u64,
}

/// The number of a checkpoint, if its file is what was written.
fn order_of(checkpoint: &Path) -> Result<Order, Error> {
    let checksums = checksums::read(checkpoint)?;
    let bytes = checksums::read_file(checkpoint, TIMING, checksums.as_ref())?;
    parse_toml(&checkpoint.join(TIMING), &bytes)
}

/// The checkpoints in a folder, oldest first.
pub(super) fn entries(place: &Path) -> std::io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(place)? {
        let entry = entry?;
        if let Some(name) = Name::parse(&entry.file_name().to_string_lossy()) {
            match order_of(&entry.path()) {
                Ok(Order { order }) => entries.push(Entry { name, order: Some(order) }),
                // Another process has removed it meanwhile.
                Err(_) if !entry.path().exists() => {}
                // What cannot be read now may be whole: it must not count as damaged, or it would be removed.
                Err(Error::Io { source, .. })
                    if !matches!(source.kind(), ErrorKind::NotFound | ErrorKind::InvalidData) =>
                {
                    return Err(source);
                }
                Err(_) => entries.push(Entry { name, order: None }),
            }
        }
    }
    entries.sort_by_key(Entry::age);
    Ok(entries)
}

/// The number of the next one.
pub(super) fn next(entries: &[Entry]) -> u64 {
    entries.iter().filter_map(|entry| entry.order).max().unwrap_or(0) + 1
}

/// Those that may go now that one has been written: all but it and the newest before it. First go those that cannot be read, those
/// of a stop that was resumed from, and those of an abandoned time line: they were written before it and have more steps. What another process
/// has written since stays.
pub(super) fn superfluous(entries: &[Entry], written: &Entry) -> Vec<Name> {
    let mut older: Vec<&Entry> = (entries.iter())
        .filter(|entry| entry.name != written.name)
        .filter(|entry| entry.order.is_none() || entry.age() < written.age())
        .collect();
    older.sort_by_key(|entry| entry.age());
    let mut room = KEPT - 1;
    let mut gone = Vec::new();
    for entry in older.iter().rev() {
        let is_of_use = entry.order.is_some() && entry.name.stopped.is_none() && entry.name < written.name;
        if is_of_use && room > 0 {
            room -= 1;
        } else {
            gone.push(entry.name);
        }
    }
    gone
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(name: &str, order: impl Into<Option<u64>>) -> Entry {
        Entry { name: Name::parse(name).unwrap(), order: order.into() }
    }

    fn gone(all: &[Entry], written: &Entry) -> Vec<String> {
        superfluous(all, written).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn names_go_both_ways_and_others_are_left_alone() {
        for name in ["step-00000064", "step-00000064-stopped-000000000300", "step-100000000"] {
            assert_eq!(Name::parse(name).unwrap().to_string(), name);
        }
        for name in ["step-", "step-64-stopped-", "step-64-copy", ".partial-7", "step-00000064.bak"] {
            assert_eq!(Name::parse(name), None, "{name}");
        }
    }

    #[test]
    fn two_are_kept_and_stops_make_room_first() {
        let all = [entry("step-1", 1), entry("step-2", 2), entry("step-3", 3)];
        assert!(gone(&all[..1], &all[0]).is_empty() && gone(&all[..2], &all[1]).is_empty());
        assert_eq!(gone(&all, &all[2]), ["step-00000001"]);
        // A stop that was resumed from is the first to go, so that the rest is as without it.
        let all = [entry("step-1", 1), entry("step-1-stopped-5", 2), entry("step-2", 3)];
        assert_eq!(gone(&all, &all[2]), ["step-00000001-stopped-000000000005"]);
        let all = [entry("step-1", 1), entry("step-2", 2), entry("step-2-stopped-5", 3)];
        assert_eq!(gone(&all, &all[2]), ["step-00000001"]);
    }

    /// The run went back from step 1000 to 800: what it writes then is the newest and stays, and what it abandoned goes.
    #[test]
    fn after_a_run_went_back_the_new_ones_win() {
        let all = [entry("step-900", 9), entry("step-1000", 10), entry("step-850", 11)];
        assert_eq!(gone(&all, &all[2]), ["step-00001000", "step-00000900"]);
        let all = [entry("step-800", 8), entry("step-1000", 9), entry("step-850", 10)];
        assert_eq!(gone(&all, &all[2]), ["step-00001000"]);
    }

    /// Two workers keep checkpoints in one folder: the one that began earlier and took longer does not remove the newer one.
    #[test]
    fn what_another_process_wrote_since_stays() {
        let all = [entry("step-900", 8), entry("step-1000", 9), entry("step-1100", 9)];
        assert!(gone(&all, &all[1]).is_empty());
    }

    #[test]
    fn those_written_before_numbers_were_kept_sort_by_steps() {
        let place = tempfile::tempdir().unwrap();
        for (name, timing) in [
            ("step-00000064", "elapsed = 0.0"),
            ("step-00000064-stopped-000000000300", ""),
            ("step-100000000", "order = 0"),
            ("step-00000128", "order = 0"),
            ("step-00000032", "order = 1"),
            ("step-00000016", "order ="),
            (".partial-7", ""),
        ] {
            std::fs::create_dir(place.path().join(name)).unwrap();
            std::fs::write(place.path().join(name).join(TIMING), timing).unwrap();
        }
        let found: Vec<String> =
            entries(place.path()).unwrap().iter().map(|entry| entry.name.to_string()).collect();
        let expected = [
            "step-00000064",
            "step-00000064-stopped-000000000300",
            "step-00000128",
            "step-100000000",
            "step-00000032",
            "step-00000016",
        ];
        assert_eq!(found, expected);
        assert_eq!(next(&entries(place.path()).unwrap()), 2);
    }

    proptest! {
        /// Whatever was stopped, resumed and gone back to: the one just written stays, and of the older ones one at most.
        #[test]
        fn never_the_one_just_written(
            all in proptest::collection::vec((0u64..20, proptest::option::of(0u64..40), proptest::option::of(0u64..9)), 1..9),
            at: prop::sample::Index,
        ) {
            let mut entries: Vec<Entry> = all
                .iter()
                .map(|&(steps, stopped, order)| Entry { name: Name { steps, stopped }, order })
                .collect();
            entries.sort_by_key(|entry| entry.name);
            entries.dedup_by_key(|entry| entry.name);
            let at = at.index(entries.len());
            entries[at].order = Some(next(&entries));
            let written = entries[at];
            let gone = superfluous(&entries, &written);
            prop_assert!(!gone.contains(&written.name) && entries.len() - gone.len() <= KEPT);
            prop_assert!(gone.iter().all(|name| entries.iter().any(|entry| entry.name == *name)));
        }
    }
}

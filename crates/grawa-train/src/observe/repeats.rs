//! Events that are told more than once.
//!
//! A worker whose connection was lost says again what it said last, and one who speaks for another that was lost says what
//! that one may not have got out. [`Repeats`] tells which of it is new, also to one who only knows the run's files.

use super::log::split;
use crate::Event;
use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};

/// How many events are remembered. A worker says again what it said in the ten seconds before its connection was lost, when that
/// is found out: by then the others may have told of thousands of rounds.
const PAST: usize = 1 << 16;

/// What was told of late, as numbers that are hardly ever the same for two events.
#[derive(Debug, Default)]
pub struct Repeats {
    numbers: RandomState,
    known: HashSet<u64>,
    past: VecDeque<u64>,
}

impl Repeats {
    /// Whether an event was not told of late. What it says counts, not its times: they may have been lost with a crash.
    pub fn is_new(&mut self, event: &Event) -> bool {
        let said = self.numbers.hash_one(format!("{:?}", essence(event)));
        if !self.known.insert(said) {
            return false;
        }
        self.past.push_back(said);
        if self.past.len() > PAST
            && let Some(oldest) = self.past.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }
}

impl<'a> FromIterator<&'a Event> for Repeats {
    fn from_iter<T: IntoIterator<Item = &'a Event>>(events: T) -> Self {
        let mut repeats = Repeats::default();
        events.into_iter().for_each(|event| {
            repeats.is_new(event);
        });
        repeats
    }
}

fn essence(event: &Event) -> Event {
    match event {
        // In the files its path is that inside the folder.
        Event::Checkpoint { at, path } => {
            let path = path.file_name().map_or_else(|| path.clone(), Into::into);
            Event::Checkpoint { at: crate::Place { elapsed: 0.0, ..*at }, path }
        }
        event => match split(event).0.unwrap_or_else(|| event.clone()) {
            // The rate is that of the last step of whoever tells, and one that has just come has taken none.
            Event::Round(round) => Event::Round(crate::Round { rate: 0.0, ..round }),
            event => event,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::{Log, read, sample};

    #[test]
    fn what_was_told_is_known_and_known_again_from_the_files() {
        let folder = tempfile::tempdir().unwrap();
        let events = sample::run("lgrawa", 2, 8);
        let (mut log, mut repeats) = (Log::create(folder.path()).unwrap(), Repeats::default());
        for event in &events {
            assert!(repeats.is_new(event) && !repeats.is_new(event), "{event:?}");
            log.write(event, 1.0).unwrap();
        }
        let read: Vec<Event> = read(folder.path()).unwrap().into_iter().map(|(event, _)| event).collect();
        let mut repeats: Repeats = read.iter().collect();
        assert!(events.iter().all(|event| !repeats.is_new(event)));
        assert!(repeats.is_new(&sample::resumed(&events)));
    }

    /// One that was stopped for a while says what it said before, when the others have told of thousands of rounds.
    #[test]
    fn what_was_told_long_ago_is_known() {
        let events = sample::run("mgrawa", 2, 5000);
        let mut repeats = Repeats::default();
        assert!(events.iter().all(|event| repeats.is_new(event)));
        assert!(!events.iter().any(|event| repeats.is_new(event)));
        assert!(repeats.past.len() == repeats.known.len() && repeats.past.len() <= PAST);
    }
}

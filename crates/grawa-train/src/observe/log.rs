//! The event log: what happened in a run, as lines of JSON.
//!
//! `events.jsonl` holds what is reproducible: no times, no interruptions, resumptions and checkpoints. `journal.jsonl` holds the rest: for
//! each line of the events when it was written and how the time was spent; and sessions and checkpoints. So a run that was stopped and
//! resumed has the same `events.jsonl` as one that was not. Both files only grow, except that a resume truncates them to their length
//! at the checkpoint. An incomplete last line, as a power failure leaves it, is ignored.

use crate::checkpoint::{Name, io};
use crate::{Error, Evaluated, Event, Place, Reason, Round, Share, Started, Times, bounded_read};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The file of events.
pub const EVENTS: &str = "events.jsonl";
/// The file of times, sessions and checkpoints.
pub const JOURNAL: &str = "journal.jsonl";

/// A line of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Lines that the events had when this was written, its own one included.
    pub line: u64,
    /// When: seconds since 1970.
    pub wall: f64,
    /// Training time in seconds.
    pub elapsed: f64,
    /// Where the time of each worker of the event went.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub times: Vec<Times>,
    /// An event that has no line of its own among the events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<Event>,
}

/// The two files, open for writing.
#[derive(Debug)]
pub struct Log {
    folder: PathBuf,
    events: File,
    journal: File,
    lines: u64,
}

impl Log {
    /// New files in a folder that has none yet.
    pub fn create(folder: &Path) -> Result<Self, Error> {
        let new = |name: &str| {
            let path = folder.join(name);
            let opened = OpenOptions::new().append(true).create_new(true).open(&path);
            opened.map_err(io("create", &path))
        };
        Ok(Log { folder: folder.into(), events: new(EVENTS)?, journal: new(JOURNAL)?, lines: 0 })
    }

    /// The files of a run, cut back to where they stood at a checkpoint of it: the last one of that name.
    pub fn resume(folder: &Path, checkpoint: &Path) -> Result<Self, Error> {
        let (lines, keep, end) = Log::back_to(folder, checkpoint)?;
        let (events, journal) = (cut(folder, EVENTS, keep)?, cut(folder, JOURNAL, end)?);
        Ok(Log { folder: folder.into(), events, journal, lines })
    }

    /// Where the files stood at a checkpoint: the lines of the events, their bytes, and those of the journal. Nothing is changed.
    pub(super) fn back_to(folder: &Path, checkpoint: &Path) -> Result<(u64, usize, usize), Error> {
        let journal = Lines::read(&folder.join(JOURNAL))?;
        let (mut found, mut lines) = (None, 0);
        for (index, end) in journal.ends.iter().enumerate() {
            let entry: Entry = journal.parse(index)?;
            lines += u64::from(entry.event.is_none());
            if entry.line != lines {
                let why = format!(
                    "it belongs to line {} of {EVENTS}, and {lines} is next; it was changed or damaged",
                    entry.line
                );
                return Err(Error::Damaged { path: folder.join(JOURNAL), line: index + 1, why });
            }
            if is_checkpoint(&entry, checkpoint) {
                found = Some((entry.line, *end));
            }
            // A record that begins with this checkpoint does not contain it: a worker of a group wrote it, whose record is elsewhere.
            let is_start = |started: &Started| {
                let name = checkpoint.file_name().and_then(|name| Name::parse(&name.to_string_lossy()));
                started.resumed && name.is_none_or(|name| name.is_at(started.at.steps))
            };
            if index == 0 && matches!(&entry.event, Some(Event::Started(started)) if is_start(started)) {
                found = Some((0, 0));
            }
        }
        let (lines, end) = found.ok_or_else(|| Error::Damaged {
            path: folder.join(JOURNAL),
            line: journal.ends.len(),
            why: format!("it ends here, and {} is not in it", checkpoint.display()),
        })?;
        let events = Lines::read(&folder.join(EVENTS))?;
        let keep = match lines.checked_sub(1) {
            None => Some(0),
            Some(last) => events.ends.get(last as usize).copied(),
        };
        let keep = keep.ok_or_else(|| Error::Damaged {
            path: folder.join(EVENTS),
            line: events.ends.len(),
            why: format!(
                "it ends here, and the checkpoint {} was written after line {lines}: its end is missing",
                checkpoint.display()
            ),
        })?;
        // What cannot be read is found before anything is cut.
        (0..lines as usize).try_for_each(|index| events.parse::<Event>(index).map(drop))?;
        Ok((lines, keep, end))
    }

    /// The files of a run as they are, to be continued: only an incomplete last line is removed.
    pub fn reopen(folder: &Path, wall: f64) -> Result<Self, Error> {
        let events = Lines::read(&folder.join(EVENTS))?;
        let journal = Lines::read(&folder.join(JOURNAL))?;
        let lines = events.ends.len() as u64;
        let mut last = Entry { line: 0, wall, elapsed: 0.0, times: Vec::new(), event: None };
        let mut keep = 0;
        for (index, end) in journal.ends.iter().enumerate() {
            let entry: Entry = journal.parse(index)?;
            if entry.line > lines {
                break;
            }
            (last, keep) = (entry, *end);
        }
        let end = events.ends.last().copied().unwrap_or(0);
        let (events, journal) = (cut(folder, EVENTS, end)?, cut(folder, JOURNAL, keep)?);
        let mut log = Log { folder: folder.into(), events, journal, lines };
        // An event is written first, and then its line of the journal.
        for line in last.line + 1..=lines {
            let entry = Entry { line, wall, elapsed: last.elapsed, times: Vec::new(), event: None };
            append(&mut log.journal, &folder.join(JOURNAL), &entry)?;
        }
        Ok(log)
    }

    /// Adds an event at a time of day. When this returns after a checkpoint, all that belongs to it is on disk.
    pub fn write(&mut self, event: &Event, wall: f64) -> Result<(), Error> {
        let (fact, times) = split(event);
        let (elapsed, is_checkpoint) = (event.place().elapsed, matches!(event, Event::Checkpoint { .. }));
        let apart = if fact.is_none() { Some(self.inside(event)) } else { None };
        if let Some(fact) = &fact {
            append(&mut self.events, &self.folder.join(EVENTS), fact)?;
            self.lines += 1;
        }
        let entry = Entry { line: self.lines, wall, elapsed, times, event: apart };
        append(&mut self.journal, &self.folder.join(JOURNAL), &entry)?;
        if is_checkpoint {
            for (file, name) in [(&self.events, EVENTS), (&self.journal, JOURNAL)] {
                file.sync_data().map_err(io("write", &self.folder.join(name)))?;
            }
        }
        Ok(())
    }

    /// The event with paths relative to the run's folder, which may be moved.
    fn inside(&self, event: &Event) -> Event {
        match event {
            Event::Checkpoint { at, path } => {
                let path = path.strip_prefix(&self.folder).unwrap_or(path).to_owned();
                Event::Checkpoint { at: *at, path }
            }
            event => event.clone(),
        }
    }
}

/// Whether the run was resumed from this checkpoint before, and its record goes on from there.
pub(crate) fn record_continues_from(folder: &Path, checkpoint: &Path) -> bool {
    let Ok(journal) = Lines::read(&folder.join(JOURNAL)) else { return false };
    let entries: Vec<Entry> = (0..journal.ends.len()).map_while(|index| journal.parse(index).ok()).collect();
    let is_resume = |entry: &Entry| matches!(&entry.event, Some(Event::Started(started)) if started.resumed);
    entries.windows(2).any(|pair| is_checkpoint(&pair[0], checkpoint) && is_resume(&pair[1]))
}

/// Whether an entry of the journal is of this checkpoint.
fn is_checkpoint(entry: &Entry, checkpoint: &Path) -> bool {
    matches!(&entry.event, Some(Event::Checkpoint { path, .. }) if path.file_name() == checkpoint.file_name())
}

/// Truncates a file to `length` bytes and opens it to append.
fn cut(folder: &Path, name: &str, length: usize) -> Result<File, Error> {
    let path = folder.join(name);
    let open = || {
        let file = OpenOptions::new().append(true).open(&path)?;
        file.set_len(length as u64)?;
        file.sync_all()?;
        Ok(file)
    };
    open().map_err(io("cut", &path))
}

/// What is not reproducible in an event: the time at which it happened, and the times of workers.
fn timed(event: &mut Event) -> (&mut Place, &mut [Share]) {
    match event {
        Event::Started(started) => (&mut started.at, &mut []),
        Event::Round(round) => (&mut round.at, &mut round.workers),
        Event::Evaluated(evaluated) => (&mut evaluated.at, &mut []),
        Event::Checkpoint { at, .. } | Event::CheckpointWritten { at, .. } => (at, &mut []),
        Event::Fault(fault) => (&mut fault.at, &mut []),
        Event::Finished(finished) => (&mut finished.at, &mut finished.workers),
    }
}

/// The reproducible part of an event, if it has one, and the times.
pub(super) fn split(event: &Event) -> (Option<Event>, Vec<Times>) {
    let is_fact = match event {
        Event::Started(started) => !started.resumed,
        Event::Finished(finished) => finished.reason == Reason::Spent,
        Event::Checkpoint { .. } | Event::CheckpointWritten { .. } => false,
        Event::Round(_) | Event::Evaluated(_) | Event::Fault(_) => true,
    };
    let mut fact = event.clone();
    let (at, workers) = timed(&mut fact);
    at.elapsed = 0.0;
    let times = workers.iter_mut().map(|share| std::mem::take(&mut share.times)).collect();
    (is_fact.then_some(fact), times)
}

/// Puts the times back.
fn join(event: &mut Event, entry: &Entry) {
    let (at, workers) = timed(event);
    at.elapsed = entry.elapsed;
    workers.iter_mut().zip(&entry.times).for_each(|(share, times)| share.times = *times);
}

/// What happened in a run and when (seconds since 1970), in its order, with the times where the journal has them.
pub fn read(folder: &Path) -> Result<Vec<(Event, f64)>, Error> {
    Ok(without_replaced(read_all(folder)?))
}

/// The same with the rounds and evaluations that were done again.
pub(crate) fn read_all(folder: &Path) -> Result<Vec<(Event, f64)>, Error> {
    let events = Lines::read(&folder.join(EVENTS))?;
    let journal = Lines::read(&folder.join(JOURNAL))?;
    let mut all = Vec::new();
    let mut next = 0;
    for index in 0..journal.ends.len() {
        let entry: Entry = journal.parse(index)?;
        match &entry.event {
            Some(event) => all.push((event.clone(), entry.wall)),
            None if next < events.ends.len() => {
                let mut event: Event = events.parse(next)?;
                join(&mut event, &entry);
                all.push((event, entry.wall));
                next += 1;
            }
            None => {}
        }
    }
    // Events whose line of the journal was lost.
    let wall = all.last().map_or(0.0, |(_, wall)| *wall);
    for index in next..events.ends.len() {
        all.push((events.parse(index)?, wall));
    }
    Ok(all)
}

/// Without the rounds and evaluations that were done again: a group whose last states were lost continued from an earlier one, a fault says so,
/// and the files hold both. What was done last counts. Without such a fault between them, both are read: nothing else explains a round that was
/// recorded twice.
fn without_replaced(mut all: Vec<(Event, f64)>) -> Vec<(Event, f64)> {
    const NONE: (u64, u64) = (u64::MAX, u64::MAX);
    // The earliest round after the next such fault, and the earliest before it.
    let (mut replaced, mut first) = (NONE, NONE);
    // From the end: everything from the earliest later round on was replaced.
    let mut keep: Vec<bool> = (all.iter().rev())
        .map(|(event, _)| match event {
            Event::Round(Round { at, .. }) => {
                first = first.min((at.rounds, at.steps));
                (at.rounds, at.steps) < replaced
            }
            Event::Evaluated(Evaluated { at, .. }) => (at.rounds, at.steps) < replaced,
            Event::Fault(fault) => {
                if goes_back(&fault.what) {
                    replaced = replaced.min(first);
                }
                true
            }
            _ => true,
        })
        .collect();
    keep.reverse();
    let mut keep = keep.into_iter();
    all.retain(|_| keep.next() != Some(false));
    all
}

/// Whether a fault is that of [`CoordinatorEvent::Recovered`](grawa_comm::group::CoordinatorEvent::Recovered), from a state before the one that
/// was reached.
pub(crate) fn goes_back(what: &str) -> bool {
    let Some(rest) = what.strip_prefix("the run continues from operation ") else { return false };
    match rest.split_once("; it had reached ") {
        // How far it was is not known.
        None => true,
        Some((to, from)) => match (to.parse::<u64>(), from.parse::<u64>()) {
            (Ok(to), Ok(from)) => to < from,
            _ => false,
        },
    }
}

/// The whole lines of a file, and where each ends.
struct Lines {
    path: PathBuf,
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl Lines {
    fn read(path: &Path) -> Result<Self, Error> {
        let text = bounded_read::read(path, bounded_read::RECORD).map_err(io("read", path))?;
        let mut ends: Vec<usize> =
            text.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1).collect();
        // A power failure may leave a last line that ends and yet is not complete.
        let start = ends.len().checked_sub(2).map_or(0, |before| ends[before]);
        if let Some(&end) = ends.last()
            && serde_json::from_slice::<serde::de::IgnoredAny>(&text[start..end]).is_err()
        {
            ends.pop();
        }
        Ok(Lines { path: path.into(), text, ends })
    }

    fn parse<T: for<'de> Deserialize<'de>>(&self, index: usize) -> Result<T, Error> {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        serde_json::from_slice(&self.text[start..self.ends[index]]).map_err(|error| Error::Damaged {
            path: self.path.clone(),
            line: index + 1,
            why: format!("{error}; it was changed or damaged"),
        })
    }
}

fn append(file: &mut File, path: &Path, value: &impl Serialize) -> Result<(), Error> {
    // One write for a line: what another program reads meanwhile ends at a line, or almost.
    let mut line = serde_json::to_vec(value).map_err(|error| io("write", path)(error.into()))?;
    line.push(b'\n');
    file.write_all(&line).map_err(io("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::sample;
    use crate::{Fault, Place};
    use grawa_comm::group::{CoordinatorEvent, StateVersion};
    use proptest::prelude::*;
    use std::fs;

    fn write(folder: &Path, log: &mut Log, events: &[Event]) {
        for (event, second) in events.iter().zip(0..) {
            log.write(event, f64::from(second)).unwrap();
        }
        let read: Vec<Event> = read(folder).unwrap().into_iter().map(|(event, _)| event).collect();
        assert!(read.ends_with(events));
    }

    #[test]
    fn what_is_written_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = Log::create(folder.path()).unwrap();
        write(folder.path(), &mut log, &sample::run("lgrawa", 3, 8));
        assert!(Log::create(folder.path()).is_err(), "it was overwritten");
        let facts = fs::read_to_string(folder.path().join(EVENTS)).unwrap();
        for word in ["elapsed", "times", "checkpoint", "wall"] {
            assert!(!facts.contains(word), "{word} in {facts}");
        }
    }

    /// A run that was stopped at any event and resumed leaves the same events as one that was not.
    #[test]
    fn a_resumed_run_leaves_the_same_events() {
        let whole = tempfile::tempdir().unwrap();
        let events = sample::run("lgrawa", 2, 8);
        write(whole.path(), &mut Log::create(whole.path()).unwrap(), &events);
        let expected = fs::read_to_string(whole.path().join(EVENTS)).unwrap();
        for stop in 0..events.len() {
            let Some((at, checkpoint)) = sample::last_checkpoint(&events[..stop]) else { continue };
            let folder = tempfile::tempdir().unwrap();
            write(folder.path(), &mut Log::create(folder.path()).unwrap(), &events[..stop]);
            let mut log = Log::resume(folder.path(), checkpoint).unwrap();
            log.write(&sample::resumed(&events), 99.0).unwrap();
            write(folder.path(), &mut log, &events[at + 1..]);
            assert_eq!(
                fs::read_to_string(folder.path().join(EVENTS)).unwrap(),
                expected,
                "stopped after {stop}"
            );
        }
    }

    /// Whoever writes may die at any byte of either file: what was written is there once, and goes on.
    #[test]
    fn a_log_is_gone_on_with_wherever_it_was_torn() {
        let events = sample::run("lgrawa", 2, 4);
        let whole = tempfile::tempdir().unwrap();
        let mut log = Log::create(whole.path()).unwrap();
        for (number, event) in events.iter().enumerate() {
            let lengths = [EVENTS, JOURNAL].map(|name| fs::metadata(whole.path().join(name)).unwrap().len());
            log.write(event, 1.0).unwrap();
            let texts = [EVENTS, JOURNAL].map(|name| fs::read(whole.path().join(name)).unwrap());
            // The event's line grows first, then the journal's.
            let tears = (lengths[0]..=texts[0].len() as u64).step_by(7).map(|at| (at, lengths[1]));
            let tears = tears
                .chain((lengths[1]..=texts[1].len() as u64).step_by(7).map(|at| (texts[0].len() as u64, at)));
            for (event_end, journal_end) in tears {
                let folder = tempfile::tempdir().unwrap();
                fs::write(folder.path().join(EVENTS), &texts[0][..event_end as usize]).unwrap();
                fs::write(folder.path().join(JOURNAL), &texts[1][..journal_end as usize]).unwrap();
                let mut log = Log::reopen(folder.path(), 2.0).unwrap();
                let kept = read(folder.path()).unwrap().len();
                assert!((number..=number + 1).contains(&kept), "{kept} of {number}");
                events[kept..].iter().for_each(|event| log.write(event, 3.0).unwrap());
                let again: Vec<Event> =
                    read(folder.path()).unwrap().into_iter().map(|(event, _)| event).collect();
                let facts = |events: &[Event]| events.iter().map(|event| split(event).0).collect::<Vec<_>>();
                assert_eq!(facts(&again), facts(&events));
            }
        }
    }

    #[test]
    fn an_unknown_checkpoint_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &mut Log::create(folder.path()).unwrap(), &sample::run("lgrawa", 2, 8));
        let error = Log::resume(folder.path(), "checkpoints/12345".as_ref()).unwrap_err().to_string();
        assert!(error.contains("checkpoints/12345 is not in it"), "{error}");
    }

    /// A group that continued from an earlier state has held some rounds twice. Each is read once: as it was held last.
    #[test]
    fn rounds_that_were_held_again_are_read_once() {
        let events = sample::run("lgrawa", 2, 8);
        let is_shared = |event: &Event| matches!(event, Event::Round(_) | Event::Evaluated(_));
        let after = |rounds: u64| {
            events.iter().filter(move |event| is_shared(event) && event.place().rounds > rounds)
        };
        let state = |op| StateVersion { op, digest: op };
        for (reached, back) in [(5, 5), (5, 4), (8, 0), (7, 3)] {
            let folder = tempfile::tempdir().unwrap();
            let mut log = Log::create(folder.path()).unwrap();
            log.write(&events[0], 1.0).unwrap();
            let before: Vec<&Event> = after(0).filter(|event| event.place().rounds <= reached).collect();
            before.iter().for_each(|event| log.write(event, 2.0).unwrap());
            let from = (back > 0).then(|| state(2 * reached + 1));
            let what = CoordinatorEvent::Recovered { from, to: state(2 * back) }.to_string();
            let at = Place { rounds: reached, ..Place::default() };
            log.write(&Event::Fault(Fault { at, worker: None, what }), 2.5).unwrap();
            let again: Vec<&Event> = after(back).collect();
            again.iter().for_each(|event| log.write(event, 3.0).unwrap());
            let read = read(folder.path()).unwrap();
            let found: Vec<(u64, f64)> = (read.iter())
                .filter(|(event, _)| matches!(event, Event::Round(_)))
                .map(|(event, wall)| (event.place().rounds, *wall))
                .collect();
            let wall = |round: u64| if round > back { 3.0 } else { 2.0 };
            assert_eq!(
                found,
                (1..=8).map(|round| (round, wall(round))).collect::<Vec<_>>(),
                "{reached} to {back}"
            );
            let evaluated = |all: &mut dyn Iterator<Item = &Event>| {
                all.filter(|event| matches!(event, Event::Evaluated(_)))
                    .map(|event| event.place().steps)
                    .collect::<Vec<_>>()
            };
            assert_eq!(evaluated(&mut read.iter().map(|(event, _)| event)), evaluated(&mut after(0)));
        }
    }

    /// A round that was recorded twice is no round that was held again: whoever checks the record must see it.
    #[test]
    fn a_round_that_was_recorded_twice_is_read_twice() {
        let events = sample::run("lgrawa", 2, 8);
        let fifth = events.iter().find(|event| matches!(event, Event::Round(round) if round.at.rounds == 5));
        let state = |op| StateVersion { op, digest: op };
        let forward = CoordinatorEvent::Recovered { from: Some(state(9)), to: state(10) }.to_string();
        for fault in
            [None, Some("worker 1 was silent for 2 s: the others go on without it".into()), Some(forward)]
        {
            let folder = tempfile::tempdir().unwrap();
            let mut log = Log::create(folder.path()).unwrap();
            for event in &events {
                log.write(event, 1.0).unwrap();
                if Some(event) == fifth {
                    let written = |what| Event::Fault(Fault { at: *event.place(), worker: None, what });
                    fault.clone().map(written).iter().for_each(|fault| log.write(fault, 2.0).unwrap());
                    log.write(event, 3.0).unwrap();
                }
            }
            let read: Vec<Event> = read(folder.path()).unwrap().into_iter().map(|(event, _)| event).collect();
            let fifths = read.iter().filter(|event| Some(*event) == fifth).count();
            assert_eq!(fifths, 2, "with {fault:?} between them");
            let check = crate::check_record(folder.path(), &[]).unwrap();
            assert!(check.findings.iter().any(|it| it == "round 5 follows round 5"), "{:?}", check.findings);
        }
    }

    #[test]
    fn damage_in_the_middle_names_the_line() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &mut Log::create(folder.path()).unwrap(), &sample::run("lgrawa", 2, 8));
        let path = folder.path().join(EVENTS);
        let text = fs::read_to_string(&path).unwrap();
        let mut lines: Vec<&str> = text.lines().collect();
        lines[1] = "{\"event\":\"rou";
        fs::write(&path, lines.join("\n")).unwrap();
        let error = read(folder.path()).unwrap_err().to_string();
        assert!(error.contains("events.jsonl line 2"), "{error}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        /// Cut at any byte, the files are read up to the last whole line.
        #[test]
        fn a_torn_last_line_is_passed_over(events_at in 0.0f64..1.0, journal_at in 0.0f64..1.0, newline: bool) {
            let folder = tempfile::tempdir().unwrap();
            let events = sample::run("lgrawa", 2, 8);
            write(folder.path(), &mut Log::create(folder.path()).unwrap(), &events);
            for (name, at) in [(EVENTS, events_at), (JOURNAL, journal_at)] {
                let path = folder.path().join(name);
                let mut text = fs::read(&path).unwrap();
                text.truncate((text.len() as f64 * at) as usize);
                if newline { text.push(b'\n'); }
                fs::write(&path, text).unwrap();
            }
            let facts: Vec<Event> = events.iter().filter_map(|event| split(event).0).collect();
            for (event, _) in read(folder.path()).unwrap() {
                if let Some(fact) = split(&event).0 {
                    prop_assert!(facts.contains(&fact));
                }
            }
        }
    }
}

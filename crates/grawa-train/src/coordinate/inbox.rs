//! Which reports of the workers are new: each is recorded once, however often it was sent.

use crate::Event;
use crate::event::Place;
use crate::event_codec::{Report, Sequence};
use grawa_session::reporter::KEPT;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A checkpoint of a group's run.
#[derive(Clone, Debug, PartialEq)]
pub struct WrittenCheckpoint {
    /// The worker that wrote it.
    pub worker: u32,
    /// The run's folder on the worker's machine.
    pub folder: PathBuf,
    /// Where the run stood.
    pub step: u64,
}

/// A shared event that was recorded.
#[derive(Clone, Debug, PartialEq)]
struct Recorded {
    place: Place,
    is_evaluation: bool,
}

impl Recorded {
    fn of(event: &Event) -> Self {
        Recorded { place: *event.place(), is_evaluation: matches!(event, Event::Evaluated(_)) }
    }
}

/// What was received so far.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    pub(super) has_started: bool,
    /// The number of the last shared report.
    pub(super) last: Option<Sequence>,
    /// The last shared events, the newest last: after the run went back a member may send one of them again.
    recent: VecDeque<Recorded>,
    /// The name of the last checkpoint, if a worker has begun to write one.
    pub(super) checkpoint: Option<OsString>,
    /// The last one that a worker reported to this coordinator.
    pub(super) written: Option<WrittenCheckpoint>,
    /// Each worker's process and the number of its last own report.
    own: BTreeMap<u32, (u64, u64)>,
}

impl Inbox {
    /// Continues after what the files of a run hold.
    pub(crate) fn after<'a>(events: impl IntoIterator<Item = &'a Event>) -> Self {
        let mut inbox = Inbox::default();
        events.into_iter().for_each(|event| inbox.note(event));
        inbox
    }

    /// The run continues from an earlier round: its numbers come again, at another time.
    pub(crate) fn rewind(&mut self) {
        self.last = None;
    }

    /// The events of a report that are new. Each worker sends the start and the end of the run; the start counts once, and what to make of
    /// the end is up to the caller.
    pub(crate) fn accept(&mut self, worker: u32, report: Report) -> Vec<Event> {
        match report {
            Report::Shared { sequence, mut events, .. } => {
                if self.last.is_some_and(|last| sequence <= last) {
                    return Vec::new();
                }
                self.last = Some(sequence);
                events.retain(|event| Sequence::of(event).is_none_or(|of| of == sequence));
                events
                    .retain(|event| matches!(event, Event::Round(_) | Event::Evaluated(_) | Event::Fault(_)));
                let of_round = events.iter().find(|event| Sequence::of(event).is_some());
                if of_round.is_some_and(|event| self.recent.contains(&Recorded::of(event))) {
                    return Vec::new();
                }
                events.iter().for_each(|event| self.note_recorded(event));
                events
            }
            Report::Own { sender, number, event } => {
                let seen = self.own.insert(worker, (sender, number));
                if let Some(seen) = seen.filter(|(process, last)| *process == sender && number <= *last) {
                    self.own.insert(worker, seen);
                    return Vec::new();
                }
                let is_new = match &event {
                    Event::Started(_) => !self.has_started,
                    Event::Checkpoint { path, .. } => path.file_name() != self.checkpoint.as_deref(),
                    Event::Fault(_) | Event::Finished(_) => true,
                    Event::Round(_) | Event::Evaluated(_) | Event::CheckpointWritten { .. } => false,
                };
                self.note(&event);
                if let Event::Checkpoint { path, at } = &event {
                    let folder = path.parent().and_then(Path::parent);
                    let step = at.steps;
                    self.written =
                        folder.map(|folder| WrittenCheckpoint { worker, folder: folder.into(), step });
                }
                Vec::from_iter(is_new.then_some(event))
            }
        }
    }

    fn note_recorded(&mut self, event: &Event) {
        if Sequence::of(event).is_some() {
            let first = self.recent.len().saturating_sub(KEPT - 1);
            self.recent.drain(..first);
            self.recent.push_back(Recorded::of(event));
        }
    }

    fn note(&mut self, event: &Event) {
        self.note_recorded(event);
        match event {
            Event::Started(_) => self.has_started = true,
            Event::Checkpoint { path, .. } => self.checkpoint = path.file_name().map(Into::into),
            event => self.last = Sequence::of(event).or(self.last),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::{Log, read, sample};

    /// The events of a run as reports: shared ones from the reporter, the others from the same process.
    fn reports(events: &[Event]) -> Vec<Report> {
        let report = |(number, event): (u64, &Event)| match Sequence::of(event) {
            Some(sequence) => Report::Shared { sequence, events: vec![event.clone()], is_kept: true },
            None => Report::Own { sender: 7, number, event: event.clone() },
        };
        (1..).zip(events).map(report).collect()
    }

    /// A coordinator that continues from the files of another drops what is in them.
    #[test]
    fn a_report_is_accepted_once_also_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let mut events = sample::run("lgrawa", 2, 8);
        events.retain(|event| !matches!(event, Event::Fault(_) | Event::Finished(_)));
        let (mut log, mut inbox) = (Log::create(folder.path()).unwrap(), Inbox::default());
        for (report, event) in reports(&events).into_iter().zip(&events) {
            assert_eq!(inbox.accept(0, report.clone()), std::slice::from_ref(event));
            assert_eq!(inbox.accept(0, report), []);
            log.write(event, 1.0).unwrap();
        }
        assert!(inbox.has_started && inbox.checkpoint.is_some());
        let last = events.iter().rev().find(|event| matches!(event, Event::Checkpoint { .. })).unwrap();
        assert_eq!(inbox.written.unwrap().step, last.place().steps);
        let recorded: Vec<Event> = read(folder.path()).unwrap().into_iter().map(|(event, _)| event).collect();
        let mut inbox = Inbox::after(&recorded);
        for report in reports(&events).into_iter().rev().take(3) {
            assert_eq!(inbox.accept(0, report), []);
        }
        // The run goes back. What was recorded is sent again by one that took it with the state; the rounds after it come at another time.
        let report = |event: &Event| {
            let sequence = Sequence::of(event).unwrap();
            Report::Shared { sequence, events: vec![event.clone()], is_kept: true }
        };
        let mut rounds = events.iter().filter_map(|event| match event {
            Event::Round(round) => Some(round.clone()),
            _ => None,
        });
        let [first, second] = [rounds.next().unwrap(), rounds.next().unwrap()];
        let later = |round: &crate::Round| {
            let at = Place { elapsed: round.at.elapsed + 1.0, ..round.at };
            Event::Round(crate::Round { at, ..round.clone() })
        };
        inbox.rewind();
        assert_eq!(inbox.accept(1, report(&Event::Round(first.clone()))), []);
        assert_eq!(inbox.accept(1, report(&later(&first))), []);
        assert_eq!(inbox.accept(1, report(&later(&second))), [later(&second)]);
        inbox.rewind();
        assert_eq!(inbox.accept(1, report(&later(&first))), [later(&first)]);
    }

    /// A process that takes the number of one that was lost begins to count anew.
    #[test]
    fn own_reports_are_counted_by_process() {
        let fault = |what: &str| {
            Event::Fault(crate::Fault { at: crate::Place::default(), worker: None, what: what.into() })
        };
        let own = |sender, number, what| Report::Own { sender, number, event: fault(what) };
        let mut inbox = Inbox::default();
        assert_eq!(inbox.accept(0, own(7, 1, "a")).len() + inbox.accept(0, own(7, 2, "b")).len(), 2);
        assert_eq!(inbox.accept(0, own(7, 1, "a")), []);
        assert_eq!(inbox.accept(0, own(7, 2, "b")), []);
        assert_eq!(inbox.accept(0, own(8, 1, "c")).len(), 1);
        assert_eq!(inbox.accept(1, own(7, 1, "d")).len(), 1);
        let mut events = crate::observe::sample::run("lgrawa", 2, 2).into_iter();
        let round = events.find(|event| matches!(event, Event::Round(_))).unwrap();
        assert_eq!(inbox.accept(1, Report::Own { sender: 7, number: 2, event: round }), []);
    }
}

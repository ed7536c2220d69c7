//! Which member reports to the coordinator, and what the others keep in case it is lost.
//!
//! All members know the same events of a round. One of them, the reporter, sends them: the one with the lowest number. If it is lost, the next
//! one, of those that know all that the coordinator has not acknowledged, sends that again. The coordinator drops reports whose number it
//! has seen.

use crate::event::{Event, Place};
use crate::event_codec::{Report, Sequence};
use crate::round_message::ProcessMessage;
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};

/// Sends reports to the coordinator.
pub trait SendReport: Send + Sync {
    /// Sends one; it is kept until the coordinator has acknowledged it.
    fn send(&self, report: Vec<u8>) -> Result<(), grawa_comm::Error>;

    /// Reports that the coordinator has not acknowledged.
    fn unacknowledged(&self) -> u32;
}

#[cfg(feature = "group")]
impl SendReport for grawa_comm::group::Reporter {
    fn send(&self, report: Vec<u8>) -> Result<(), grawa_comm::Error> {
        self.report(report)
    }

    fn unacknowledged(&self) -> u32 {
        self.unacknowledged()
    }
}

/// The most reports that a member keeps.
pub const KEPT: usize = 64;

/// The shared reports of a member.
#[derive(Clone, Debug, Default)]
pub struct SharedReports {
    is_reporter: bool,
    /// Those that the coordinator may not have, the oldest first.
    pub pending: VecDeque<Report>,
}

impl SharedReports {
    pub fn is_reporter(&self) -> bool {
        self.is_reporter
    }

    /// How many reports it keeps.
    pub fn kept(&self) -> u16 {
        self.pending.len() as u16
    }

    /// All members have sent their messages: they know who reports. Returns what `worker` must send again.
    pub fn elect(&mut self, worker: u32, messages: &[(u32, ProcessMessage)]) -> Vec<Report> {
        if let Some((reporter, message)) = messages.iter().find(|(_, message)| message.is_reporter) {
            self.keep_last(message.unacknowledged.into());
            // A member with a lower number has joined. It takes over when nothing of the other is on its way.
            let first = messages.first().map_or(reporter, |(first, _)| first);
            self.is_reporter = worker == if message.unacknowledged == 0 { *first } else { *reporter };
            return Vec::new();
        }
        // A member that has joined since does not know the oldest ones.
        let next = messages.iter().max_by_key(|(id, message)| (message.kept, Reverse(*id)));
        self.is_reporter = next.is_some_and(|(next, _)| *next == worker);
        if self.is_reporter { self.pending.iter().cloned().collect() } else { Vec::new() }
    }

    /// Adds the report of these events, which all members make alike.
    pub fn add(&mut self, at: &Place, events: Vec<Event>, is_kept: bool) -> Report {
        let is_evaluation = matches!(events.first(), Some(Event::Evaluated(_)));
        let sequence = Sequence { rounds: at.rounds, steps: at.steps, is_evaluation };
        let report = Report::Shared { sequence, events, is_kept };
        self.pending.push_back(report.clone());
        self.keep_last(KEPT);
        report
    }

    fn keep_last(&mut self, count: usize) {
        self.pending.drain(..self.pending.len().saturating_sub(count));
    }
}

/// Numbers the reports that one process sends about itself.
#[derive(Debug)]
pub struct OwnReports {
    sender: u64,
    sent: u64,
}

impl Default for OwnReports {
    fn default() -> Self {
        OwnReports { sender: RandomState::new().build_hasher().finish(), sent: 0 }
    }
}

impl OwnReports {
    /// The next report.
    pub fn next(&mut self, event: Event) -> Report {
        self.sent += 1;
        Report::Own { sender: self.sender, number: self.sent, event }
    }
}

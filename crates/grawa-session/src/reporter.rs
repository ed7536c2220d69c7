//! Which member reports to the coordinator, and what the others keep in case it is lost.
//!
//! All members know the same events of a round. One of them, the reporter, sends them: the one with the lowest number. If it is lost, the next
//! one, of those that know all that the coordinator has not acknowledged, sends that again. The coordinator drops reports whose number it
//! has seen. One that joins takes what the others keep with their state: so whoever holds the state knows its reports.

use crate::Error;
use crate::event::{Event, Place};
use crate::event_codec::{Report, Sequence};
use crate::round_message::ProcessMessage;
use grawa_comm::MOST_REPORTS;
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
/// Bytes of a report's length.
const LENGTH: usize = 4;

/// The shared reports of a member.
#[derive(Clone, Debug, Default)]
pub struct SharedReports {
    is_reporter: bool,
    /// Those that the coordinator may not have, the oldest first.
    pub pending: VecDeque<Vec<u8>>,
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
    pub fn elect(&mut self, worker: u32, messages: &[(u32, ProcessMessage)]) -> Vec<Vec<u8>> {
        if let Some((reporter, message)) = messages.iter().find(|(_, message)| message.is_reporter) {
            self.keep_last(message.unacknowledged.into());
            // A member with a lower number has joined. It takes over when nothing of the other is on its way.
            let first = messages.first().map_or(reporter, |(first, _)| first);
            self.is_reporter = worker == if message.unacknowledged == 0 { *first } else { *reporter };
            return Vec::new();
        }
        // Members do not keep equally many: one that has joined took what its donor had published.
        let next = messages.iter().max_by_key(|(id, message)| (message.kept, Reverse(*id)));
        self.is_reporter = next.is_some_and(|(next, _)| *next == worker);
        if self.is_reporter { self.pending.iter().cloned().collect() } else { Vec::new() }
    }

    /// Adds the report of these events, which all members make alike. Returns it.
    pub fn add(&mut self, at: &Place, events: Vec<Event>, is_kept: bool) -> Result<&[u8], Error> {
        let is_evaluation = matches!(events.first(), Some(Event::Evaluated(_)));
        let sequence = Sequence { rounds: at.rounds, steps: at.steps, is_evaluation };
        let report = Report::Shared { sequence, events, is_kept };
        self.keep_last(KEPT - 1);
        self.pending.push_back(report.encode()?);
        Ok(self.pending.back().map_or(&[], |report| report))
    }

    /// What one that joins takes: the newest ones, each after its length.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut left = MOST_REPORTS;
        let fits = |report: &&Vec<u8>| {
            let rest = left.checked_sub(LENGTH + report.len());
            left = rest.unwrap_or(left);
            rest.is_some()
        };
        let newest = self.pending.iter().rev().take_while(fits).count();
        let mut bytes = Vec::with_capacity(MOST_REPORTS - left);
        for report in self.pending.iter().skip(self.pending.len() - newest) {
            bytes.extend((report.len() as u32).to_le_bytes());
            bytes.extend_from_slice(report);
        }
        bytes
    }

    /// What another member keeps. If it cannot be read, a round may be missing in the record; nothing else depends on it.
    pub fn of(bytes: &[u8]) -> Self {
        SharedReports { is_reporter: false, pending: SharedReports::read(bytes).unwrap_or_default() }
    }

    /// Shared reports in their order, at most as many as a member keeps.
    fn read(mut bytes: &[u8]) -> Option<VecDeque<Vec<u8>>> {
        let (mut found, mut last) = (VecDeque::new(), None);
        while !bytes.is_empty() {
            let (length, rest) = bytes.split_first_chunk::<LENGTH>()?;
            let (report, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            let Ok(Report::Shared { sequence, .. }) = Report::decode(report) else { return None };
            if found.len() == KEPT || last.is_some_and(|last| sequence < last) {
                return None;
            }
            (bytes, last) = (rest, Some(sequence));
            found.push_back(report.to_vec());
        }
        Some(found)
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

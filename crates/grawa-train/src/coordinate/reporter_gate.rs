//! From whom the record of a round is accepted. All members know the same rounds, and one of them reports: a false report of another must not take
//! the place of the true one.
//!
//! Members elect the reporter among themselves (`grawa_session::reporter`): the lowest number, or the one before it that still has reports on their
//! way. Reports of these two are accepted at once. One of another member is held until the round is over and the reporter has had time to send
//! its own: it is right if the coordinator was replaced, or the reporter was lost. Nobody reports rounds that have not begun.

use grawa_comm::group::Receipt;
use std::collections::VecDeque;
use std::time::Duration;

/// How long the reporter may take after a round is committed.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of reports that are held. The oldest make room.
const HELD: usize = 32 << 20;
/// Rounds that a coordinator may not know of when it takes the place of another: those whose reports were not acknowledged.
const UNKNOWN: u64 = 64;

/// What is known of the group when a report arrives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group<'a> {
    /// The members that take part.
    pub(super) active: &'a [u32],
    /// Rounds that have begun since this coordinator started.
    pub(super) begun: u64,
    /// The operation of the committed state.
    pub(super) committed: u64,
    pub(super) now: Duration,
}

/// A report of a round. Its sender keeps it until the receipt is dropped, and stays the reporter until then: so no round is recorded before one
/// that is held, which would then count as seen.
#[derive(Debug)]
pub(super) struct RoundReport {
    pub(super) worker: u32,
    pub(super) bytes: Vec<u8>,
    pub(super) receipt: Receipt,
}

/// A report that is not accepted yet.
#[derive(Debug)]
struct Held {
    report: RoundReport,
    committed: u64,
    at: Duration,
}

/// Whose reports of rounds are accepted.
#[derive(Debug, Default)]
pub(super) struct ReporterGate {
    reporter: Option<u32>,
    held: VecDeque<Held>,
    bytes: usize,
    /// Rounds that were held before this coordinator started, at most.
    before: u64,
}

impl ReporterGate {
    /// Continues a run with this many recorded rounds, whose committed state is before this operation. A round takes one operation or more.
    pub(super) fn after(rounds: u64, op: u64) -> Self {
        let before = if rounds.max(op) > 0 { rounds.max(op) + UNKNOWN } else { 0 };
        ReporterGate { before, ..Self::default() }
    }

    /// The run continues from a state before this operation.
    pub(super) fn continues(&mut self, op: u64) {
        self.before = self.before.max(op);
    }

    /// A report of so many rounds. It is returned if it is accepted now.
    pub(super) fn receive(
        &mut self,
        rounds: u64,
        report: RoundReport,
        group: Group<'_>,
    ) -> Option<RoundReport> {
        if rounds > self.before.saturating_add(group.begun) {
            return None;
        }
        if self.may_report(report.worker, group.active) {
            self.reporter = Some(report.worker);
            return Some(report);
        }
        self.bytes += report.bytes.len();
        self.held.push_back(Held { report, committed: group.committed, at: group.now });
        while self.bytes > HELD {
            self.last();
        }
        None
    }

    fn may_report(&self, worker: u32, active: &[u32]) -> bool {
        let reporter = self.reporter.filter(|reporter| active.contains(reporter));
        reporter == Some(worker) || active.iter().min() == Some(&worker)
    }

    pub(super) fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// The next report that has been held for long enough.
    pub(super) fn due(&mut self, group: Group<'_>) -> Option<RoundReport> {
        let is_due = |held: &Held| {
            let is_over = group.committed > held.committed && group.now.saturating_sub(held.at) > PATIENCE;
            is_over || self.may_report(held.report.worker, group.active)
        };
        let at = self.held.iter().position(is_due)?;
        let report = self.take(at)?;
        if group.active.contains(&report.worker) {
            self.reporter = Some(report.worker);
        }
        Some(report)
    }

    /// The next one that is held, at the end of the run.
    pub(super) fn last(&mut self) -> Option<RoundReport> {
        self.take(0)
    }

    fn take(&mut self, at: usize) -> Option<RoundReport> {
        let Held { report, .. } = self.held.remove(at)?;
        self.bytes -= report.bytes.len();
        Some(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of a report: the byte that it is made of, if it is accepted.
    fn receive(gate: &mut ReporterGate, worker: u32, rounds: u64, byte: u8, group: Group<'_>) -> Option<u8> {
        let report = RoundReport { worker, bytes: vec![byte], receipt: Receipt::default() };
        gate.receive(rounds, report, group).map(|report| report.bytes[0])
    }

    fn of(report: Option<RoundReport>) -> Option<(u32, u8)> {
        report.map(|report| (report.worker, report.bytes[0]))
    }

    fn group(begun: u64, seconds: u64) -> Group<'static> {
        Group { active: &[0, 1, 2], begun, committed: 2 * begun, now: Duration::from_secs(seconds) }
    }

    /// Whenever a false report of a member that is not the reporter comes, the true one is accepted first.
    #[test]
    fn a_false_report_does_not_hide_a_true_one() {
        for early in [0, 100] {
            let mut gate = ReporterGate::default();
            // In the fifth round, at its beginning or long after.
            assert_eq!(receive(&mut gate, 2, 5, 66, group(5, early)), None);
            assert_eq!(of(gate.due(group(5, 1000))), None, "the round is not over");
            assert_eq!(receive(&mut gate, 0, 5, 1, group(5, 1000)), Some(1));
            // What is seen twice is dropped by the inbox.
            assert_eq!(of(gate.due(group(6, 1000))), Some((2, 66)));
        }
        // Rounds that have not begun are nobody's.
        let mut gate = ReporterGate::default();
        for worker in 0..3 {
            assert_eq!(receive(&mut gate, worker, 6, 66, group(5, 0)), None);
        }
        assert_eq!(of(gate.last()), None);
    }

    /// Whoever the members have elected, nothing true is lost.
    #[test]
    fn the_reporter_may_change() {
        let mut gate = ReporterGate::after(40, 90);
        // After a restart the coordinator does not know that 1 reports, and has not heard of the last rounds.
        assert_eq!(receive(&mut gate, 1, 43, 43, group(1, 0)), None);
        assert_eq!(of(gate.due(group(2, 3))), Some((1, 43)));
        assert_eq!(receive(&mut gate, 1, 44, 44, group(2, 4)), Some(44));
        // It hands over to the lowest, and that one is lost.
        assert_eq!(receive(&mut gate, 0, 45, 45, group(3, 5)), Some(45));
        let without = Group { active: &[1, 2], ..group(4, 6) };
        assert_eq!(receive(&mut gate, 1, 46, 46, without), Some(46));
        // At the end nothing stays behind.
        assert_eq!(receive(&mut gate, 2, 47, 47, Group { begun: 5, ..without }), None);
        assert_eq!((of(gate.last()), of(gate.last())), (Some((2, 47)), None));
        // A run that continues from a worker's state.
        let mut gate = ReporterGate::default();
        gate.continues(500);
        assert_eq!(receive(&mut gate, 0, 240, 1, group(1, 0)), Some(1));
    }
}

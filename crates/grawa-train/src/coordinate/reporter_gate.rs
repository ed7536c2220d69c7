//! From whom the record of a round is accepted. All members know the same rounds, and one of them reports: a false report of another must not take
//! the place of the true one.
//!
//! Members elect the reporter among themselves (`grawa_session::reporter`): the lowest number, or the one before it that still has reports on their
//! way. Reports of these two are accepted at once. It sends the report of a round before it arrives at the next one. So one that has reported nothing
//! though another round came and went is no longer the reporter: it was lost, or the coordinator was replaced. Reports of the others are held
//! until then. Whose are accepted next is the reporter. Nobody reports rounds that have not begun, and what is recorded already elects nobody.

use crate::event_codec::Sequence;
use grawa_comm::group::Receipt;
use std::time::Duration;

/// How long reports that have arrived may wait to be handled.
const PATIENCE: Duration = Duration::from_secs(2);
/// Rounds that begin after the last report until the reporter is taken to be lost: the next one, and the one after it, which begins when that is over.
const SILENT: u64 = 2;
/// Bytes of reports that are held. The oldest of whoever has most of them make room.
const HELD: usize = 32 << 20;
/// Rounds that a coordinator may not know of when it takes the place of another: the last one, whose state was not in its log.
const UNKNOWN: u64 = 2;
/// Operations that a round takes at least: a gather and a mix.
const OPERATIONS: u64 = 2;

/// What is known of the group when a report arrives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group<'a> {
    /// The members that take part.
    pub(super) active: &'a [u32],
    /// Rounds that have begun since this coordinator started.
    pub(super) begun: u64,
    /// The last report that was recorded.
    pub(super) recorded: Option<Sequence>,
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
    sequence: Sequence,
    report: RoundReport,
}

/// Whose reports of rounds are accepted.
#[derive(Debug, Default)]
pub(super) struct ReporterGate {
    reporter: Option<u32>,
    /// In the order in which they arrived.
    held: Vec<Held>,
    /// Rounds that had begun when the last report was accepted.
    heard: u64,
    /// Since when the reporter is taken to be lost.
    silent: Option<Duration>,
    /// Rounds that were held before this coordinator started, at most.
    before: u64,
}

impl ReporterGate {
    /// Continues a run with this many recorded rounds, whose committed state is before this operation.
    pub(super) fn after(rounds: u64, op: u64) -> Self {
        let before = rounds.max(op / OPERATIONS);
        let before = if before > 0 { before + UNKNOWN } else { 0 };
        ReporterGate { before, ..Self::default() }
    }

    /// The run continues from a state before this operation.
    pub(super) fn continues(&mut self, op: u64) {
        self.before = self.before.max(op / OPERATIONS);
    }

    /// The run continues from an earlier round: what is held is of rounds that come again.
    pub(super) fn rewind(&mut self) {
        self.held.clear();
    }

    /// A report with this number. It is returned if it is accepted now.
    pub(super) fn receive(
        &mut self,
        sequence: Sequence,
        report: RoundReport,
        group: Group<'_>,
    ) -> Option<RoundReport> {
        let has_begun = sequence.rounds <= self.before.saturating_add(group.begun);
        if !has_begun || group.recorded.is_some_and(|last| sequence <= last) {
            return None;
        }
        // Its earlier ones come first.
        let is_held = self.held.iter().any(|held| held.report.worker == report.worker);
        if !is_held && self.may_report(report.worker, group.active) {
            return Some(self.accept(report, group));
        }
        self.held.push(Held { sequence, report });
        while self.held.iter().map(|held| held.report.bytes.len()).sum::<usize>() > HELD {
            self.drop_oldest();
        }
        None
    }

    fn may_report(&self, worker: u32, active: &[u32]) -> bool {
        let reporter = self.reporter.filter(|reporter| active.contains(reporter));
        reporter == Some(worker) || active.iter().min() == Some(&worker)
    }

    fn accept(&mut self, report: RoundReport, group: Group<'_>) -> RoundReport {
        if group.active.contains(&report.worker) {
            self.reporter = Some(report.worker);
        }
        (self.heard, self.silent) = (group.begun, None);
        report
    }

    /// Nobody can make room at the cost of another.
    fn drop_oldest(&mut self) {
        let bytes = |worker: u32| {
            let held = self.held.iter().filter(|held| held.report.worker == worker);
            held.map(|held| held.report.bytes.len()).sum::<usize>()
        };
        let most = self.held.iter().map(|held| held.report.worker).max_by_key(|worker| bytes(*worker));
        let oldest = self.held.iter().position(|held| Some(held.report.worker) == most);
        oldest.map(|at| self.held.remove(at));
    }

    pub(super) fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// The next report that has been held for long enough. Of several members the one with the lowest number is believed: so members elect.
    pub(super) fn due(&mut self, group: Group<'_>) -> Option<RoundReport> {
        self.held.retain(|held| group.recorded.is_none_or(|last| held.sequence > last));
        let is_silent = group.begun >= self.heard.saturating_add(SILENT);
        self.silent = is_silent.then(|| self.silent.unwrap_or(group.now));
        let is_lost = self.silent.is_some_and(|since| group.now.saturating_sub(since) > PATIENCE);
        let is_due = |held: &Held| is_lost || self.may_report(held.report.worker, group.active);
        let is_gone = |held: &Held| !group.active.contains(&held.report.worker);
        let order = |held: &Held| (is_gone(held), held.report.worker, held.sequence);
        let due = self.held.iter().enumerate().filter(|(_, held)| is_due(held));
        let (at, _) = due.min_by_key(|(_, held)| order(held))?;
        let Held { report, .. } = self.held.remove(at);
        Some(self.accept(report, group))
    }

    /// The next one that is held, at the end of the run.
    pub(super) fn last(&mut self) -> Option<RoundReport> {
        let order = |held: &Held| (held.report.worker, held.sequence);
        let (at, _) = self.held.iter().enumerate().min_by_key(|(_, held)| order(held))?;
        Some(self.held.remove(at).report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn number(rounds: u64) -> Sequence {
        Sequence { rounds, steps: 4 * rounds, is_evaluation: false }
    }

    /// What becomes of a report: the byte that it is made of, if it is accepted.
    fn receive(gate: &mut ReporterGate, worker: u32, rounds: u64, byte: u8, group: Group<'_>) -> Option<u8> {
        let report = RoundReport { worker, bytes: vec![byte], receipt: Receipt::default() };
        gate.receive(number(rounds), report, group).map(|report| report.bytes[0])
    }

    fn of(report: Option<RoundReport>) -> Option<(u32, u8)> {
        report.map(|report| (report.worker, report.bytes[0]))
    }

    /// So many rounds have begun, and all but the last are recorded.
    fn group(begun: u64, seconds: u64) -> Group<'static> {
        let recorded = begun.checked_sub(1).map(number);
        Group { active: &[0, 1, 2], begun, recorded, now: Duration::from_secs(seconds) }
    }

    /// Whenever a false report of a member that is not the reporter comes, the true one is accepted first.
    #[test]
    fn a_false_report_does_not_hide_a_true_one() {
        for early in [0, 100] {
            let mut gate = ReporterGate::default();
            assert_eq!(
                receive(&mut gate, 0, 4, 1, Group { recorded: Some(number(3)), ..group(4, 0) }),
                Some(1)
            );
            // In the fifth round, at its beginning or long after.
            assert_eq!(receive(&mut gate, 2, 5, 66, group(5, early)), None);
            assert_eq!(of(gate.due(group(5, 1000))), None, "the round is not over");
            assert_eq!(receive(&mut gate, 0, 5, 1, group(5, 1000)), Some(1));
            // It is old by now, and whoever sent it is no reporter.
            assert_eq!(of(gate.due(group(6, 1000))), None);
            assert_eq!(receive(&mut gate, 2, 5, 66, group(6, 1000)), None);
            assert!(
                !gate.is_holding(),
                "nobody is elected by what is recorded, even if the reporter is lost next"
            );
            assert_eq!(of(gate.due(group(6, 2000))), None);
            assert_eq!(receive(&mut gate, 0, 6, 1, group(6, 2001)), Some(1));
            assert_eq!(receive(&mut gate, 2, 7, 66, group(7, 2001)), None);
            assert_eq!(of(gate.due(group(7, 9000))), None);
            assert!(gate.is_holding());
        }
        // Rounds that have not begun are nobody's; after a restart those that the log does not allow for.
        for (mut gate, rounds) in [(ReporterGate::default(), 6), (ReporterGate::after(40, 80), 40 + 2 + 6)] {
            for worker in 0..3 {
                assert_eq!(receive(&mut gate, worker, rounds, 66, group(5, 0)), None);
            }
            assert_eq!(of(gate.last()), None);
        }
    }

    /// Whoever the members have elected, nothing true is lost.
    #[test]
    fn the_reporter_may_change() {
        let mut gate = ReporterGate::after(40, 86);
        let group = |begun, seconds, last| Group { recorded: Some(number(last)), ..group(begun, seconds) };
        // After a restart the coordinator does not know that 1 reports, and has not heard of the last rounds.
        assert_eq!(receive(&mut gate, 1, 43, 43, group(1, 0, 40)), None);
        assert_eq!(receive(&mut gate, 1, 44, 44, group(2, 3, 40)), None);
        assert_eq!(of(gate.due(group(2, 3, 40))), None);
        // While its earlier ones are held the others wait, even if it is the lowest now.
        let alone = Group { active: &[1, 2], ..group(2, 6, 40) };
        assert_eq!(receive(&mut gate, 1, 45, 45, alone), None);
        assert_eq!(of(gate.due(group(2, 6, 40))), Some((1, 43)));
        assert_eq!(of(gate.due(group(2, 6, 43))), Some((1, 44)));
        assert_eq!(of(gate.due(group(2, 6, 44))), Some((1, 45)));
        assert_eq!(receive(&mut gate, 1, 46, 46, group(4, 7, 45)), Some(46));
        // It hands over to the lowest, and that one is lost.
        assert_eq!(receive(&mut gate, 0, 47, 47, group(5, 8, 46)), Some(47));
        let without = Group { active: &[1, 2], ..group(6, 9, 47) };
        assert_eq!(receive(&mut gate, 1, 48, 48, without), Some(48));
        // At the end nothing stays behind.
        assert_eq!(receive(&mut gate, 2, 49, 49, Group { begun: 7, ..without }), None);
        assert_eq!((of(gate.last()), of(gate.last())), (Some((2, 49)), None));
        // A run that continues from a worker's state.
        let mut gate = ReporterGate::default();
        gate.continues(500);
        assert_eq!(receive(&mut gate, 0, 250, 1, group(1, 0, 0)), Some(1));
    }

    /// One that fills what may be held drops its own reports.
    #[test]
    fn nobody_makes_room_at_the_cost_of_another() {
        let mut gate = ReporterGate::after(1000, 0);
        let report =
            |worker, bytes| RoundReport { worker, bytes: vec![0; bytes], receipt: Receipt::default() };
        assert!(gate.receive(number(1), report(1, 100), group(1, 0)).is_none());
        for rounds in 2..40 {
            assert!(gate.receive(number(rounds), report(2, 4 << 20), group(1, 0)).is_none());
        }
        assert_eq!(gate.last().map(|report| report.worker), Some(1));
        assert_eq!(gate.held.len(), 7);
    }

    proptest! {
        /// The reporter is the lowest, or 1 where 0 has joined since; 2 lies: it reports any round at any moment, as often as it likes. The reporter
        /// reports a round before the next one begins. Rounds take a tenth of a second or an hour.
        #[test]
        fn no_order_of_false_reports_hides_a_true_one(
            honest in 0u32..2,
            is_slow: bool,
            is_restarted: bool,
            lies in proptest::collection::vec((0u64..400, 0u8..60, any::<bool>()), 0..200),
        ) {
            let moment = Duration::from_millis(if is_slow { 360_000 } else { 10 });
            let base = if is_restarted { 7 } else { 0 };
            let mut gate = ReporterGate::after(base, 2 * base);
            let (mut recorded, mut found) = ((base > 0).then(|| number(base)), Vec::new());
            for at in 0..400 {
                let begun = at / 10 + 1;
                let lies = lies.iter().filter(|(when, ..)| *when == at);
                let mut sent: Vec<(u32, [u8; 2])> =
                    lies.map(|(_, rounds, more)| (2, [*rounds, u8::from(*more)])).collect();
                if at % 10 == 9 {
                    sent.push((honest, [(base + begun) as u8, 0]));
                }
                for (worker, [rounds, more]) in sent {
                    let of = |bytes: &[u8]| {
                        let number = number(bytes[0].into());
                        Sequence { steps: number.steps + u64::from(bytes[1]), ..number }
                    };
                    let bytes = vec![rounds, more, worker as u8];
                    let (sequence, receipt) = (of(&bytes), Receipt::default());
                    let now = moment * at as u32;
                    let group = |recorded| Group { active: &[0, 1, 2], begun, recorded, now };
                    let report = RoundReport { worker, bytes, receipt };
                    let mut next = gate.receive(sequence, report, group(recorded));
                    next = next.or_else(|| gate.due(group(recorded)));
                    while let Some(report) = next {
                        recorded = Some(of(&report.bytes));
                        found.push((report.worker, recorded));
                        next = gate.due(group(recorded));
                    }
                }
            }
            let truth: Vec<_> = (base + 1..=base + 40).map(|rounds| (honest, Some(number(rounds)))).collect();
            prop_assert_eq!(found, truth);
        }
    }
}

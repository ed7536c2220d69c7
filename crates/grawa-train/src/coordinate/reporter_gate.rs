//! From whom the record of a round is accepted. All members know the same rounds, and one of them reports: a false report of another must not take
//! the place of the true one.
//!
//! Members elect the reporter among themselves (`grawa_session::reporter`): the lowest number of those that know all rounds that are not recorded, or
//! the one before it that still has reports on their way. Reports of that one, and of those that may have been elected since, are accepted at once.
//! The reporter sends the report of a round before it arrives at the next one. So one that has reported nothing though another round came and went
//! is no longer the reporter: it was lost, or the coordinator was replaced. Reports of the others are held until then. Whose are accepted next is
//! the reporter. Nobody reports rounds that have not begun, and what is recorded already elects nobody.
//!
//! A report that is held outlives its sender. If nobody who is here took part in that round, it comes before a later one of the reporter, which
//! would have sent it if it knew of it.

use crate::event_codec::Sequence;
use grawa_comm::group::{MemberStatus, Receipt};
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

/// A process that reports. One that takes the number of another that was lost has a token of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Sender {
    pub(super) worker: u32,
    pub(super) token: u64,
}

/// A member that takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) sender: Sender,
    /// The first round it took part in, as [`Group::begun`] counts.
    pub(super) since: u64,
}

impl Member {
    pub(super) fn of(status: &MemberStatus) -> Self {
        let MemberStatus { worker, token, since, .. } = *status;
        Member { sender: Sender { worker, token }, since }
    }
}

/// What is known of the group when a report arrives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group<'a> {
    /// The members that take part.
    pub(super) active: &'a [Member],
    /// Rounds that have begun since this coordinator started.
    pub(super) begun: u64,
    /// The last report that was recorded.
    pub(super) recorded: Option<Sequence>,
    pub(super) now: Duration,
}

impl Group<'_> {
    fn member(&self, sender: Sender) -> Option<&Member> {
        self.active.iter().find(|one| one.sender == sender)
    }

    /// Whether members may have elected this one: those with a lower number do not know all that it knows. Sure for the lowest number.
    fn may_elect(&self, sender: Sender) -> bool {
        let Some(own) = self.member(sender) else { return false };
        let comes_first = |one: &Member| one.sender.worker < sender.worker && one.since <= own.since;
        !self.active.iter().any(comes_first)
    }
}

/// A report of a round. Its sender keeps it until the receipt is dropped, and stays the reporter until then: so no round is recorded before one
/// that is held, which would then count as seen.
#[derive(Debug)]
pub(super) struct RoundReport {
    pub(super) sender: Sender,
    pub(super) bytes: Vec<u8>,
    pub(super) receipt: Receipt,
}

/// A report that is not accepted yet.
#[derive(Debug)]
struct Held {
    sequence: Sequence,
    /// Rounds that had begun when it was held.
    begun: u64,
    report: RoundReport,
}

impl Held {
    /// Whether it is of a round before what the reporter reports, and nobody who is here took part in it.
    fn fills_gap(&self, offered: Option<u64>, group: Group<'_>) -> bool {
        offered.is_some_and(|rounds| self.sequence.rounds < rounds) && self.is_orphan(group)
    }

    /// Its sender is gone, and nobody who is here took part in that round.
    fn is_orphan(&self, group: Group<'_>) -> bool {
        let is_later = |one: &Member| self.begun < one.since;
        group.member(self.report.sender).is_none()
            && !group.active.is_empty()
            && group.active.iter().all(is_later)
    }
}

/// Whose reports of rounds are accepted.
#[derive(Debug, Default)]
pub(super) struct ReporterGate {
    reporter: Option<Member>,
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
        let is_held = self.held.iter().any(|held| held.report.sender == report.sender);
        let comes_first = |held: &Held| held.sequence.rounds < sequence.rounds && held.is_orphan(group);
        if !is_held && self.may_report(report.sender, group) && !self.held.iter().any(comes_first) {
            return Some(self.accept(report, group));
        }
        self.held.push(Held { sequence, begun: group.begun, report });
        while self.held.iter().map(|held| held.report.bytes.len()).sum::<usize>() > HELD {
            self.drop_oldest();
        }
        None
    }

    /// While the reporter is here, only a lower number can take over from it.
    fn may_report(&self, sender: Sender, group: Group<'_>) -> bool {
        match self.reporter.filter(|reporter| group.active.contains(reporter)) {
            Some(reporter) if sender >= reporter.sender => sender == reporter.sender,
            _ => group.may_elect(sender),
        }
    }

    fn accept(&mut self, report: RoundReport, group: Group<'_>) -> RoundReport {
        self.reporter = group.member(report.sender).copied().or(self.reporter);
        (self.heard, self.silent) = (group.begun, None);
        report
    }

    /// Nobody can make room at the cost of another.
    fn drop_oldest(&mut self) {
        let bytes = |sender: Sender| {
            let held = self.held.iter().filter(|held| held.report.sender == sender);
            held.map(|held| held.report.bytes.len()).sum::<usize>()
        };
        let most = self.held.iter().map(|held| held.report.sender).max_by_key(|sender| bytes(*sender));
        let oldest = self.held.iter().position(|held| Some(held.report.sender) == most);
        oldest.map(|at| self.held.remove(at));
    }

    pub(super) fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// The next report that has been held for long enough.
    pub(super) fn due(&mut self, group: Group<'_>) -> Option<RoundReport> {
        self.held.retain(|held| group.recorded.is_none_or(|last| held.sequence > last));
        let is_silent = group.begun >= self.heard.saturating_add(SILENT);
        self.silent = is_silent.then(|| self.silent.unwrap_or(group.now));
        let is_lost = self.silent.is_some_and(|since| group.now.saturating_sub(since) > PATIENCE);
        let offered = self.offered(group);
        let is_due = |held: &Held| {
            is_lost || held.fills_gap(offered, group) || self.may_report(held.report.sender, group)
        };
        let first = self.first_held(group, is_due)?;
        let Held { report, .. } = self.held.remove(first);
        Some(self.accept(report, group))
    }

    /// The last round of which a report is held that would be accepted at once, if there is one.
    fn offered(&self, group: Group<'_>) -> Option<u64> {
        let is_offered = |held: &&Held| {
            let sender = held.report.sender;
            group.member(sender).is_some() && self.may_report(sender, group)
        };
        self.held.iter().filter(is_offered).map(|held| held.sequence.rounds).max()
    }

    /// Of several members the one with the lowest number is believed: so members elect.
    fn first_held(&self, group: Group<'_>, is_due: impl Fn(&Held) -> bool) -> Option<usize> {
        let offered = self.offered(group);
        let order = |held: &Held| {
            let Held { sequence, report: RoundReport { sender, .. }, .. } = held;
            let fills_gap = held.fills_gap(offered, group);
            let rounds = if fills_gap { sequence.rounds } else { 0 };
            (!fills_gap, rounds, group.member(*sender).is_none(), *sender, *sequence)
        };
        let due = self.held.iter().enumerate().filter(|(_, held)| is_due(held));
        due.min_by_key(|(_, held)| order(held)).map(|(at, _)| at)
    }

    /// The next one that is held, at the end of the run.
    pub(super) fn last(&mut self, group: Group<'_>) -> Option<RoundReport> {
        let first = self.first_held(group, |_| true)?;
        Some(self.held.remove(first).report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn number(rounds: u64) -> Sequence {
        Sequence { rounds, steps: 4 * rounds, is_evaluation: false }
    }

    const ALL: [Member; 3] = [founder(0), founder(1), founder(2)];

    const fn founder(worker: u32) -> Member {
        Member { sender: process(worker), since: 0 }
    }

    /// The process that has had this number from the start.
    const fn process(worker: u32) -> Sender {
        Sender { worker, token: 100 + worker as u64 }
    }

    /// What becomes of a report: the byte that it is made of, if it is accepted.
    fn receive(gate: &mut ReporterGate, worker: u32, rounds: u64, byte: u8, group: Group<'_>) -> Option<u8> {
        let report = RoundReport { sender: process(worker), bytes: vec![byte], receipt: Receipt::default() };
        gate.receive(number(rounds), report, group).map(|report| report.bytes[0])
    }

    fn of(report: Option<RoundReport>) -> Option<(u32, u8)> {
        report.map(|report| (report.sender.worker, report.bytes[0]))
    }

    /// So many rounds have begun, and all but the last are recorded.
    fn group(begun: u64, seconds: u64) -> Group<'static> {
        let recorded = begun.checked_sub(1).map(number);
        Group { active: &ALL, begun, recorded, now: Duration::from_secs(seconds) }
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
            assert_eq!(of(gate.last(group(5, 0))), None);
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
        let alone = Group { active: &ALL[1..], ..group(2, 6, 40) };
        assert_eq!(receive(&mut gate, 1, 45, 45, alone), None);
        assert_eq!(of(gate.due(group(2, 6, 40))), Some((1, 43)));
        assert_eq!(of(gate.due(group(2, 6, 43))), Some((1, 44)));
        assert_eq!(of(gate.due(group(2, 6, 44))), Some((1, 45)));
        assert_eq!(receive(&mut gate, 1, 46, 46, group(4, 7, 45)), Some(46));
        // It hands over to the lowest, and that one is lost.
        assert_eq!(receive(&mut gate, 0, 47, 47, group(5, 8, 46)), Some(47));
        let without = Group { active: &ALL[1..], ..group(6, 9, 47) };
        assert_eq!(receive(&mut gate, 1, 48, 48, without), Some(48));
        // At the end nothing stays behind.
        assert_eq!(receive(&mut gate, 2, 49, 49, Group { begun: 7, ..without }), None);
        assert_eq!((of(gate.last(without)), of(gate.last(without))), (Some((2, 49)), None));
        // A run that continues from a worker's state.
        let mut gate = ReporterGate::default();
        gate.continues(500);
        assert_eq!(receive(&mut gate, 0, 250, 1, group(1, 0, 0)), Some(1));
    }

    /// The reporter is lost, and a process that does not know the last round takes its number. The only one that knows it is lost next.
    #[test]
    fn the_number_of_a_lost_process_does_not_report_for_it() {
        let send = |gate: &mut ReporterGate, sender, rounds, group| {
            let report = RoundReport { sender, bytes: vec![rounds as u8], receipt: Receipt::default() };
            of(gate.receive(number(rounds), report, group))
        };
        let zero = Sender { token: 999, ..process(0) };
        let both = [Member { sender: zero, since: 9 }, founder(1)];
        let now = |active, begun, last| Group { active, recorded: Some(number(last)), ..group(begun, 1) };
        let mut gate = ReporterGate::default();
        assert_eq!(receive(&mut gate, 0, 7, 7, group(7, 0)), Some(7));
        assert_eq!(send(&mut gate, process(1), 8, now(&both, 9, 7)), Some((1, 8)));

        // The same where another one is believed to be the reporter. What has arrived comes before what others know.
        let mut gate = ReporterGate::default();
        let two = [Member { since: 6, ..founder(0) }, founder(1)];
        assert_eq!(receive(&mut gate, 0, 7, 7, now(&two, 7, 6)), Some(7));
        assert_eq!(send(&mut gate, process(1), 8, now(&two, 8, 7)), None);
        assert_eq!(of(gate.due(now(&two, 8, 7))), None);
        let alone = [Member { sender: zero, since: 9 }];
        assert_eq!(send(&mut gate, zero, 9, now(&alone, 9, 7)), None);
        let found: Vec<_> = (7..10).filter_map(|last| of(gate.due(now(&alone, 9, last)))).collect();
        assert_eq!(found, [(1, 8), (0, 9)]);
        assert_eq!(send(&mut gate, zero, 10, now(&alone, 10, 9)), Some((0, 10)));

        // A report of a round that has not come yet fills no gap, though its sender is gone.
        let mut gate = ReporterGate::after(40, 300);
        assert_eq!(send(&mut gate, process(2), 120, now(&ALL, 1, 40)), None);
        assert_eq!(send(&mut gate, zero, 43, now(&alone, 9, 42)), Some((0, 43)));
        assert_eq!(of(gate.due(now(&alone, 9, 43))), None);
    }

    /// One that fills what may be held drops its own reports.
    #[test]
    fn nobody_makes_room_at_the_cost_of_another() {
        let mut gate = ReporterGate::after(1000, 0);
        let report = |worker, bytes| RoundReport {
            sender: process(worker),
            bytes: vec![0; bytes],
            receipt: Receipt::default(),
        };
        assert!(gate.receive(number(1), report(1, 100), group(1, 0)).is_none());
        for rounds in 2..40 {
            assert!(gate.receive(number(rounds), report(2, 4 << 20), group(1, 0)).is_none());
        }
        assert_eq!(gate.last(group(1, 0)).map(|report| report.sender.worker), Some(1));
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
                    let group = |recorded| Group { active: &ALL, begun, recorded, now };
                    let report = RoundReport { sender: process(worker), bytes, receipt };
                    let mut next = gate.receive(sequence, report, group(recorded));
                    next = next.or_else(|| gate.due(group(recorded)));
                    while let Some(report) = next {
                        recorded = Some(of(&report.bytes));
                        found.push((report.sender.worker, recorded));
                        next = gate.due(group(recorded));
                    }
                }
            }
            let truth: Vec<_> = (base + 1..=base + 40).map(|rounds| (honest, Some(number(rounds)))).collect();
            prop_assert_eq!(found, truth);
        }
    }
}

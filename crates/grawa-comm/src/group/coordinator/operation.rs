//! An operation as the coordinator sees it: who has arrived, when it begins, and how it ends.
//!
//! Inside a round all members of the round are waited for. The first operation of a round is *open*: joiners that hold the
//! committed state may take part, and it begins without members that do not arrive in time. If data is transferred between
//! members, all must report the same digest of the result before any of them may use it.

use super::Coordinator;
use super::event::CoordinatorEvent;
use super::roster::{MemberRecord, MemberState};
use crate::group::digest::majority;
use crate::group::messages::{AttemptId, Call, End, Peer, ToMember};
#[cfg(test)]
use crate::group::simulate::Mutation;
use crate::{Lost, Why};
use std::collections::BTreeMap;
use std::time::Duration;

/// How often a transfer is attempted.
const ATTEMPTS: u32 = 3;
/// From a failed attempt to the next. A member that died is known to be lost by then.
const PAUSE: Duration = Duration::from_millis(200);
/// A run that is told to stop waits this long for members that are late. A launcher ends all processes after twice the time.
const LATE_FOR_STOP: Duration = Duration::from_secs(30);
/// The others wait for a member whose restored state was outdated this many times in a row, but not for ever.
const LATE_RESTORES: std::ops::RangeInclusive<u32> = 2..=4;

/// The next operation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Operation {
    /// When the first active member arrived.
    pub(super) began: Option<Duration>,
    pub(super) arrived: BTreeMap<u32, Arrival>,
    pub(super) transfer: Option<Transfer>,
}

/// A member that has arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(super) call: Call,
    pub(super) steps: u64,
    /// The epoch whose members it knows.
    pub(super) known_epoch: u64,
}

/// Data is being transferred.
#[derive(Clone, Debug)]
pub(crate) struct Transfer {
    pub(super) members: Vec<Peer>,
    /// Members lost before it began.
    before: Vec<Lost>,
    pub(super) attempt: u32,
    /// The digests of those that are done.
    pub(super) done: BTreeMap<u32, u64>,
    /// Those that have all messages and cannot read one: whose, and why.
    unreadable: BTreeMap<u32, (u32, String)>,
    /// Who could not reach whom, and why.
    complaints: Vec<(u32, u32, String)>,
    /// When to try again.
    pub(super) retry_at: Option<Duration>,
}

impl Transfer {
    fn has(&self, worker: u32) -> bool {
        self.members.iter().any(|peer| peer.worker == worker)
    }
}

impl Operation {
    /// Whether most of those that have arrived wait for every connected member: their budget is spent.
    pub(super) fn is_final_barrier(&self) -> bool {
        let calls = self.arrived.values().filter(|arrival| arrival.call == Call::FinalBarrier).count();
        2 * calls > self.arrived.len()
    }

    /// Since when an operation has waited for this member. Without a member that `must_arrive` it cannot begin.
    pub(super) fn waits_for(&self, worker: u32, must_arrive: bool) -> Option<Duration> {
        let is_late = match &self.transfer {
            Some(transfer) => !transfer.done.contains_key(&worker) && transfer.has(worker),
            None => must_arrive && !self.arrived.contains_key(&worker),
        };
        self.began.filter(|_| is_late)
    }
}

impl Coordinator {
    pub(super) fn on_arrive(&mut self, worker: u32, op: u64, arrival: Arrival, now: Duration) {
        let Some(record) = self.roster.get_mut(&worker) else { return };
        record.progressed_at = now;
        let takes_part = matches!(record.state, MemberState::Active | MemberState::Ready);
        if op == self.op {
            record.is_assigned = false;
        }
        if op < self.op || !takes_part {
            let took_part = record.last_op.is_some_and(|last| op <= last);
            match (&self.last, self.round_began) {
                // It took part, and its connection broke before it received the end.
                (Some((last, message)), _) if took_part && *last == op => {
                    let message = message.clone();
                    self.send(worker, message);
                }
                (_, Some((round, began))) if !took_part && round == op => {
                    self.deadline.saw(now.saturating_sub(began));
                }
                _ => {}
            }
            return;
        }
        if op > self.op {
            // It was inside a round that another coordinator did not end, and has not heard yet that this one begins it again.
            if self.roster.get(&worker).is_some_and(|record| record.is_assigned) {
                return;
            }
            let why = format!("it called operation {op}, and the next is {}", self.op);
            self.send(worker, ToMember::Refused { why });
            return self.remove(worker, Why::Differs);
        }
        if self.operation.transfer.is_some() {
            // It takes part, and its connection broke. A member that does not take part must wait.
            if let Some(before) = self.operation.arrived.get_mut(&worker) {
                before.known_epoch = arrival.known_epoch;
                self.send(worker, self.begin_message(arrival.known_epoch));
            }
            return;
        }
        // A member that has just fetched the state arrives early: nobody is late yet.
        if self.roster.get(&worker).is_some_and(|record| record.state == MemberState::Active) {
            let began = *self.operation.began.get_or_insert(now);
            if self.begins_round() && !self.operation.arrived.contains_key(&worker) {
                self.deadline.saw(now.saturating_sub(began));
            }
        }
        self.operation.arrived.entry(worker).or_insert(arrival).known_epoch = arrival.known_epoch;
    }

    /// Begins the operation if all have arrived that must, or those that have not were waited for long enough.
    pub(super) fn advance(&mut self, now: Duration) {
        if self.operation.transfer.is_some() {
            return self.retry(now);
        }
        if self.awaits_former_members(now) {
            return;
        }
        if self.operation.arrived.is_empty() {
            self.operation.began = None;
        } else if self.active().next().is_none() {
            self.operation.began.get_or_insert(now);
        }
        let Some(began) = self.operation.began else { return };
        let waited = now.saturating_sub(began);
        let founding = self.committed.is_none();
        let wanted = if founding { self.settings.founders } else { 1 };
        if self.workers_of(self.operation.arrived.keys()) < u64::from(wanted.max(1)) {
            return;
        }
        // A joiner takes no steps before its first round, and so arrives before the founders. It must not replace one, even if
        // that one still prepares its first steps.
        let mut founders = self.roster.range(..self.settings.founders);
        if founding && founders.any(|(worker, _)| !self.has_arrived(*worker)) {
            return;
        }
        let missing = self.missing();
        let is_patient = self.told_to_stop.is_none_or(|at| now.saturating_sub(at) < LATE_FOR_STOP);
        if self.awaits_all() {
            // Until there is a committed state nobody can catch up with it.
            if missing.is_empty() {
                self.agree_on_state(true);
            }
            // Also members that are late or catch up. One that hangs or is silent is lost by the rules for any operation.
            if is_patient && self.roster.keys().any(|worker| !self.has_arrived(*worker)) {
                return;
            }
            self.begin_round(&missing, now);
        } else if self.begins_round() {
            // Until it has fetched the state, and then until it has called the round.
            let is_behind = |(worker, record): (&u32, &MemberRecord)| {
                let is_on_its_way = matches!(record.state, MemberState::Restoring(_) | MemberState::Ready);
                LATE_RESTORES.contains(&record.late_restores) && is_on_its_way && !self.has_arrived(*worker)
            };
            let is_behind = self.roster.iter().any(is_behind);
            let alone = !founding && self.active().next().is_none();
            let wait = || match is_behind {
                true => self.settings.round_wait().longest,
                false => self.deadline.wait(&self.settings.round_wait()),
            };
            if (!missing.is_empty() || is_behind || alone) && is_patient && waited < wait() {
                return;
            }
            self.begin_round(&missing, now);
        } else if !missing.is_empty() {
            return;
        }
        self.begin(now);
    }

    /// Begins a round. Its members are those that have arrived.
    fn begin_round(&mut self, missing: &[u32], now: Duration) {
        // All that have arrived have reported their state.
        self.agree_on_state(true);
        // One that is begun again from the same state, because all were lost, is the same round.
        self.rounds += u64::from(self.round_began.is_none_or(|(op, _)| op != self.op));
        let after = self.operation.began.map_or(Duration::ZERO, |began| now.saturating_sub(began));
        if let Some(began) = self.operation.began {
            if let Some((_, before)) = self.round_began {
                self.deadline.cycle_took(began.saturating_sub(before));
            }
            self.round_began = Some((self.op, began));
        }
        for worker in missing {
            if self.roster.get(worker).is_some_and(|record| record.state == MemberState::Active) {
                self.exclude(*worker, Why::Late { after });
            }
        }
        if !missing.is_empty() {
            self.emit(CoordinatorEvent::BeganWithout { op: self.op, without: missing.to_vec(), after });
        }
        for (worker, record) in &mut self.roster {
            if record.state == MemberState::Active {
                // The round that all had begun and nobody has committed is begun again.
                record.since = record.since.min(self.rounds);
            }
            if record.state == MemberState::Ready {
                if self.operation.arrived.contains_key(worker) {
                    (record.state, record.late_restores) = (MemberState::Active, 0);
                    record.since = self.rounds;
                    let event = CoordinatorEvent::Joined { worker: *worker, op: self.op };
                    self.actions.push(super::Action::Emit(event));
                } else {
                    record.state = MemberState::Waiting;
                }
            }
        }
        // A straggler brings steps to the end that count for nothing.
        if !self.operation.is_final_barrier() {
            self.count_extra_steps();
        }
    }

    /// All have arrived: begins the operation that most of them call.
    fn begin(&mut self, now: Duration) {
        let arrived = &self.operation.arrived;
        let agree = |call: Call| arrived.values().filter(|arrival| arrival.call == call).count();
        let Some(call) = arrived.values().map(|arrival| arrival.call).max_by_key(|call| agree(*call)) else {
            return;
        };
        if 2 * agree(call) <= arrived.len() {
            let calls = arrived.iter().map(|(worker, arrival)| (*worker, arrival.call)).collect();
            return self.finish(ToMember::Ended { op: self.op, end: End::OutOfStep { calls } });
        }
        // A few that call something else do not end the run for the others.
        let others = arrived.iter().filter(|(_, arrival)| arrival.call != call);
        for worker in others.map(|(worker, _)| *worker).collect::<Vec<_>>() {
            self.exclude(worker, Why::OutOfStep);
            self.emit(CoordinatorEvent::Lost(Lost { worker, why: Why::OutOfStep }));
        }
        // A plan that a lost member was part of is not carried out.
        let transfers = call.is_gather() || self.lost.is_empty();
        #[cfg(test)]
        let transfers = transfers || self.has(Mutation::OldPlan);
        let members: Vec<Peer> = (self.operation.arrived.keys())
            .filter_map(|worker| self.roster.get(worker).map(|record| record.peer(*worker)))
            .collect();
        if self.members != members {
            // A member that knows the members of an epoch does not get them again: they must not change within it.
            self.members.clone_from(&members);
            self.epoch += 1;
            #[cfg(test)]
            if self.has(Mutation::SameEpoch) {
                self.epoch -= 1;
            }
        }
        if !transfers {
            return self.finish(self.begin_message(0));
        }
        self.operation.transfer = Some(Transfer {
            members,
            before: std::mem::take(&mut self.lost),
            attempt: 1,
            done: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            complaints: Vec::new(),
            retry_at: None,
        });
        // Those that have waited long for the others have not hung.
        for worker in self.operation.arrived.keys() {
            if let Some(record) = self.roster.get_mut(worker) {
                record.progressed_at = now;
            }
        }
        self.send_begin();
    }

    /// Whether the operation that members have called begins when every connected member has arrived.
    pub(super) fn awaits_all(&self) -> bool {
        #[cfg(test)]
        if self.has(Mutation::EarlyEnd) {
            return false;
        }
        self.begins_round() && self.operation.transfer.is_none() && self.operation.is_final_barrier()
    }

    fn begin_message(&self, known_epoch: u64) -> ToMember {
        let transfer = self.operation.transfer.as_ref();
        ToMember::Begin {
            epoch: self.epoch,
            op: self.op,
            members: (known_epoch != self.epoch).then(|| self.members.clone()),
            lost: transfer.map_or(&self.lost, |transfer| &transfer.before).clone(),
            attempt: transfer.map(|transfer| transfer.attempt),
        }
    }

    fn send_begin(&mut self) {
        for (worker, arrival) in self.operation.arrived.clone() {
            self.send(worker, self.begin_message(arrival.known_epoch));
        }
    }

    /// The operation is over. Its members get this message.
    fn finish(&mut self, message: ToMember) {
        let operation = std::mem::take(&mut self.operation);
        let is_commit = matches!(&message, ToMember::Ended { end: End::Commit { .. }, .. });
        let calls_finish = |arrival: &Arrival| arrival.call == Call::Finish;
        // Those that call something else were dropped before it began.
        if is_commit && operation.arrived.values().any(calls_finish) {
            self.end_run(&operation);
        }
        for worker in operation.arrived.keys() {
            if let Some(record) = self.roster.get_mut(worker) {
                (record.last_op, record.blames, record.is_left_out) = (Some(self.op), 0, false);
            }
            self.send(*worker, message.clone());
        }
        if self.finished.is_some() {
            let others = self.roster.iter().filter(|(_, record)| record.state != MemberState::Active);
            let others: Vec<u32> = others.map(|(worker, _)| *worker).collect();
            others.into_iter().for_each(|worker| self.send(worker, ToMember::Over));
        }
        self.last = Some((self.op, message));
        self.lost.clear();
        // A misbehaving member may have brought the run to the largest number.
        self.op = self.op.saturating_add(1);
    }

    /// The run is over for the coordinator, unless most of those that took part are missing because others complained about them: one
    /// member that complains about all others cannot end the run.
    fn end_run(&mut self, operation: &Operation) {
        let has_arrived = |worker: &u32| operation.arrived.contains_key(worker);
        let blamed = |record: &MemberRecord| record.is_connected() && record.is_left_out;
        let missing = self.roster.iter().filter(|(worker, record)| !has_arrived(worker) && blamed(record));
        if operation.arrived.len() > missing.count() {
            let records = operation.arrived.keys().filter_map(|worker| self.roster.get(worker));
            self.finished = Some(records.map(|record| record.token).collect());
        }
    }

    fn is_current(&self, attempt: AttemptId) -> bool {
        let transfer = self.operation.transfer.as_ref();
        #[cfg(test)]
        if self.has(Mutation::AnyAttempt) {
            return transfer.is_some() && (attempt.0, attempt.1) == (self.epoch, self.op);
        }
        transfer.is_some_and(|transfer| attempt == (self.epoch, self.op, transfer.attempt))
    }

    pub(super) fn on_done(&mut self, worker: u32, attempt: AttemptId, digest: u64) {
        let is_member = self.roster.get(&worker).is_some_and(|it| it.state == MemberState::Active);
        if let Some((last, message)) = self.last.clone()
            && last == attempt.1
            && is_member
        {
            return self.send(worker, message);
        }
        let is_current = self.is_current(attempt);
        #[cfg(test)]
        let (any_digest, one_missing) = (self.has(Mutation::AnyDigest), self.has(Mutation::OneMissing));
        let transfer = self.operation.transfer.as_mut().filter(|it| is_current && it.retry_at.is_none());
        let Some(transfer) = transfer else { return };
        if transfer.has(worker) {
            transfer.done.insert(worker, digest);
        }
        if !transfer.unreadable.is_empty() {
            return self.judge_unreadable();
        }
        let needed = transfer.members.len();
        #[cfg(test)]
        let needed = needed - usize::from(needed > 1 && one_missing);
        if transfer.done.len() < needed {
            return;
        }
        let Some(right) = majority(&transfer.done) else { return };
        let done = std::mem::take(&mut transfer.done);
        #[cfg(test)]
        let done = if any_digest { BTreeMap::new() } else { done };
        // A member that differs gets no answer now. It fetches the state of the others when the round is over.
        self.epoch += done.values().filter(|digest| **digest != right).count() as u64;
        self.exclude_differing(&done, right);
        let end = End::Commit { lost: self.lost.clone() };
        self.finish(ToMember::Ended { op: self.op, end });
    }

    pub(super) fn on_unreadable(&mut self, worker: u32, attempt: AttemptId, peer: u32, why: String) {
        let is_current = self.is_current(attempt);
        let transfer = self.operation.transfer.as_mut().filter(|it| is_current && it.retry_at.is_none());
        let Some(transfer) = transfer else { return };
        // Like any complaint: only between members of the operation.
        if worker == peer
            || !transfer.has(worker)
            || !transfer.has(peer)
            || transfer.done.contains_key(&worker)
        {
            return;
        }
        transfer.unreadable.insert(worker, (peer, why));
        self.judge_unreadable();
    }

    /// All members hold the same messages, and some cannot read one. Once all have said whether they can: a member whose message more than half of
    /// the others cannot read is dropped. If there is none, those are that complain alone: but not for good, since nobody can tell a member that
    /// complains falsely from one that was sent another message than the others.
    fn judge_unreadable(&mut self) {
        let Some(transfer) = &self.operation.transfer else { return };
        let (members, complaints) = (transfer.members.len(), &transfer.unreadable);
        if transfer.done.len() + complaints.len() < members {
            return;
        }
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        complaints.values().for_each(|(peer, _)| *counts.entry(*peer).or_default() += 1);
        let most = counts.into_iter().max_by_key(|(worker, count)| (*count, *worker));
        let proven = most.filter(|(_, count)| 2 * count > members - 1).map(|(worker, _)| worker);
        let guilty: Vec<u32> = proven.map_or_else(|| complaints.keys().copied().collect(), |it| vec![it]);
        let words = |(by, (of, why)): (&u32, &(u32, String))| {
            format!("worker {by} cannot read what worker {of} sent ({why})")
        };
        let told =
            complaints.iter().find(|(by, (of, _))| guilty.contains(of) || guilty.contains(by)).map(words);
        let told = told.unwrap_or_default();
        self.epoch += 1;
        for worker in &guilty {
            self.emit(CoordinatorEvent::Unreadable { worker: *worker, why: told.clone() });
            match proven {
                Some(_) => self.blame(*worker, &told),
                None => self.leave_out(*worker),
            }
        }
        // The members have changed: the operation ends for the others, and nothing counts. Where one was removed for good, it has
        // ended already: a second end would skip an operation, which the members would call in vain.
        if self.operation.transfer.is_some() {
            let end = End::Shrunk { lost: self.lost.clone() };
            self.finish(ToMember::Ended { op: self.op, end });
        }
    }

    /// A member has no part in the operation because of others' complaints; the third time in a row it is refused.
    fn blame(&mut self, worker: u32, why: &str) {
        let Some(record) = self.roster.get_mut(&worker) else { return };
        record.blames += 1;
        if record.blames >= ATTEMPTS {
            let address = &record.address;
            let why = format!(
                "the others cannot exchange data with worker {worker} at {address} ({why}): is the port open to them, and do all run the same build?"
            );
            self.send(worker, ToMember::Refused { why });
            return self.remove(worker, Why::Unreachable);
        }
        self.leave_out(worker);
    }

    /// The same, however often.
    fn leave_out(&mut self, worker: u32) {
        if let Some(record) = self.roster.get_mut(&worker) {
            record.is_left_out = true;
        }
        self.exclude(worker, Why::Unreachable);
        self.emit(CoordinatorEvent::Lost(Lost { worker, why: Why::Unreachable }));
    }

    pub(super) fn on_failed(
        &mut self,
        worker: u32,
        attempt: AttemptId,
        peer: u32,
        why: String,
        now: Duration,
    ) {
        let is_current = self.is_current(attempt);
        let Some(transfer) = self.operation.transfer.as_mut().filter(|_| is_current) else { return };
        // A complaint by or about a member that has no part in it would leave nobody to blame, and the round waiting.
        if worker == peer || !transfer.has(worker) || !transfer.has(peer) {
            return;
        }
        if !transfer.complaints.iter().any(|(by, of, _)| (*by, *of) == (worker, peer)) {
            transfer.complaints.push((worker, peer, why));
        }
        transfer.retry_at.get_or_insert(now + PAUSE);
    }

    /// Tries again after a failure, or excludes the member that the others cannot reach.
    fn retry(&mut self, now: Duration) {
        let Some(transfer) = &mut self.operation.transfer else { return };
        if transfer.retry_at.is_none_or(|at| now < at) {
            return;
        }
        // A member whose connection ended is lost, or back, within the grace period.
        let is_open = |peer: &Peer| self.roster.get(&peer.worker).is_some_and(MemberRecord::is_connected);
        if !transfer.members.iter().all(is_open) {
            return;
        }
        if transfer.attempt < ATTEMPTS {
            transfer.attempt += 1;
            transfer.retry_at = None;
            transfer.done.clear();
            transfer.unreadable.clear();
            let attempt = transfer.attempt;
            if let Some((worker, peer, why)) = transfer.complaints.last().cloned() {
                self.emit(CoordinatorEvent::Retry { worker, peer, attempt, why });
            }
            return self.send_begin();
        }
        let Some(worker) = blame(&transfer.complaints) else { return };
        let about = transfer.complaints.iter().rev().find(|(_, peer, _)| *peer == worker);
        let why = about.map(|(.., why)| why.clone()).unwrap_or_default();
        self.epoch += 1;
        self.blame(worker, &why);
        self.abort_without(worker);
    }

    /// If this member was part of the transfer, the transfer ends, and its result must not be used.
    pub(super) fn abort_without(&mut self, worker: u32) {
        #[cfg(test)]
        if self.has(Mutation::NoAbort) {
            return;
        }
        if self.operation.transfer.as_ref().is_some_and(|transfer| transfer.has(worker)) {
            let end = End::Shrunk { lost: self.lost.clone() };
            self.finish(ToMember::Ended { op: self.op, end });
        }
    }
}

/// The member that most others complain about; of several, the highest number. So of two that complain about each other it is
/// the one that joined later.
fn blame(complaints: &[(u32, u32, String)]) -> Option<u32> {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    complaints.iter().for_each(|(_, peer, _)| *counts.entry(*peer).or_default() += 1);
    counts.into_iter().max_by_key(|(worker, count)| (*count, *worker)).map(|(worker, _)| worker)
}

#[cfg(test)]
mod tests {
    use super::super::deadline::RoundWait;
    use super::super::{Input, Settings};
    use super::*;
    use crate::group::messages::{Hello, StateVersion, ToCoordinator, VERSION};

    fn receive(coordinator: &mut Coordinator, session: u64, message: ToCoordinator, now: Duration) {
        coordinator.handle(Input::Message { session, message }, now);
    }

    /// Two founders and a joiner have connected, and the founders are ready, or only the first. The joiner and the first founder
    /// have arrived.
    fn founding(is_second_ready: bool) -> Coordinator {
        let mut coordinator =
            Coordinator::new(Settings { founders: 2, ..Settings::default() }, 7, vec![], &[]);
        for session in 0..3 {
            let (version, address) = (VERSION, "here".into());
            let hello = Hello { version, run: 0, token: session, worker: None, address };
            receive(&mut coordinator, session, ToCoordinator::Hello(hello), Duration::ZERO);
            if session != 1 || is_second_ready {
                receive(&mut coordinator, session, enter(), Duration::ZERO);
            }
        }
        for session in [2, 0] {
            receive(&mut coordinator, session, arrive(), Duration::ZERO);
        }
        coordinator
    }

    /// A cycle of ten minutes is worth a longer wait than one of a second.
    #[test]
    fn the_wait_follows_the_length_of_a_cycle() {
        let wait_after = |cycle: u64| {
            let silence = Duration::from_secs(100_000);
            let mut coordinator =
                Coordinator::new(Settings { silence, ..Settings::default() }, 7, vec![], &[]);
            let (version, address) = (VERSION, "here".into());
            let hello = Hello { version, run: 0, token: 1, worker: None, address };
            receive(&mut coordinator, 1, ToCoordinator::Hello(hello), Duration::ZERO);
            receive(&mut coordinator, 1, enter(), Duration::ZERO);
            for op in 0..32 {
                let now = Duration::from_secs(op * cycle + 100);
                receive(&mut coordinator, 1, ToCoordinator::Holds(StateVersion { op, digest: 5 }), now);
                let arrive = ToCoordinator::Arrive { op, call: Call::Gather, steps: 0, known_epoch: 0 };
                receive(&mut coordinator, 1, arrive, now);
                coordinator.handle(Input::Tick, now + Duration::from_secs(100));
                let attempt = (coordinator.epoch, op, 1);
                receive(&mut coordinator, 1, ToCoordinator::Done { attempt, digest: 1 }, now);
                assert_eq!(coordinator.op, op + 1);
            }
            coordinator.deadline.wait(&coordinator.settings.round_wait())
        };
        assert!(wait_after(600) >= 10 * wait_after(1), "{:?} and {:?}", wait_after(600), wait_after(1));
    }

    /// Whoever runs the coordinator does not wait for a member that sleeps at the end.
    #[test]
    fn a_run_that_is_told_to_stop_does_not_wait_long() {
        let silence = Duration::from_secs(1000);
        let mut coordinator = Coordinator::new(Settings { silence, ..Settings::default() }, 7, vec![], &[]);
        for session in 0..2 {
            let (version, address) = (VERSION, "here".into());
            let hello = Hello { version, run: 0, token: session, worker: None, address };
            receive(&mut coordinator, session, ToCoordinator::Hello(hello), Duration::ZERO);
            receive(&mut coordinator, session, enter(), Duration::ZERO);
        }
        let barrier = ToCoordinator::Arrive { op: 0, call: Call::FinalBarrier, steps: 0, known_epoch: 0 };
        receive(&mut coordinator, 0, barrier, Duration::ZERO);
        let mut at = |second: u64, input| {
            coordinator.handle(input, Duration::from_secs(second));
            begun(&coordinator)
        };
        assert_eq!(at(100, Input::Tick), (false, vec![]));
        assert_eq!(at(100, Input::AskToStop), (false, vec![]));
        assert_eq!(at(129, Input::Tick), (false, vec![]));
        assert_eq!(at(131, Input::Tick), (true, vec![0]));
    }

    fn enter() -> ToCoordinator {
        ToCoordinator::Enter(StateVersion { op: 0, digest: 5 })
    }

    fn arrive() -> ToCoordinator {
        ToCoordinator::Arrive { op: 0, call: Call::Gather, steps: 0, known_epoch: 0 }
    }

    /// Whether the first operation has begun, and with which members.
    fn begun(coordinator: &Coordinator) -> (bool, Vec<u32>) {
        let members = coordinator.active().map(|(worker, _)| worker).collect();
        (coordinator.operation.transfer.is_some(), members)
    }

    /// Processes with several workers get numbers that follow each other, and take those of processes that left.
    #[test]
    fn workers_of_a_process_have_numbers_that_follow_each_other() {
        let mut coordinator =
            Coordinator::new(Settings { founders: 6, ..Settings::default() }, 7, vec![], &[]);
        let join = |coordinator: &mut Coordinator, session: u64, workers: u32| {
            let address = "a:1".into();
            let hello = Hello { version: VERSION, run: 0, token: session, worker: None, address };
            let message = ToCoordinator::HelloOfSet { workers, hello };
            coordinator.handle(Input::Message { session, message }, Duration::ZERO);
            coordinator.roster.iter().find(|(_, record)| record.token == session).map(|(worker, _)| *worker)
        };
        let found =
            [(1, 2), (2, 3), (3, 1)].map(|(session, workers)| join(&mut coordinator, session, workers));
        assert_eq!(found, [Some(0), Some(2), Some(5)]);
        assert_eq!([0, u32::MAX].map(|workers| join(&mut coordinator, 4, workers)), [None, None]);
        coordinator.handle(Input::Message { session: 2, message: ToCoordinator::Leave }, Duration::ZERO);
        let found =
            [(6, 4), (7, 2), (8, 1)].map(|(session, workers)| join(&mut coordinator, session, workers));
        assert_eq!(found, [Some(6), Some(2), Some(4)]);
    }

    /// A joiner takes no step, and so arrives before the founders. It takes nobody's place in the first round.
    #[test]
    fn the_first_round_waits_for_founders_that_are_connected() {
        for is_ready in [true, false] {
            let mut coordinator = founding(is_ready);
            assert_eq!(begun(&coordinator), (false, vec![]));
            if !is_ready {
                receive(&mut coordinator, 1, enter(), Duration::from_secs(1));
            }
            receive(&mut coordinator, 1, arrive(), Duration::from_secs(1));
            assert_eq!(begun(&coordinator), (true, vec![0, 1, 2]));
        }
    }

    /// A round that waits for a joiner which could not keep up waits until that has called it, not only until it has the state.
    #[test]
    fn a_late_joiner_is_waited_for_until_it_calls_the_round() {
        let second = Duration::from_secs(1);
        let mut coordinator =
            Coordinator::new(Settings { founders: 2, ..Settings::default() }, 7, vec![], &[]);
        let join = |coordinator: &mut Coordinator, session: u64| {
            let (version, address) = (VERSION, "here".into());
            let hello = Hello { version, run: 0, token: session, worker: None, address };
            receive(coordinator, session, ToCoordinator::Hello(hello), Duration::ZERO);
            receive(coordinator, session, enter(), Duration::ZERO);
        };
        (0..2).for_each(|session| join(&mut coordinator, session));
        operate(&mut coordinator, 0, Call::Gather, &[0, 1], Duration::ZERO);
        let held = StateVersion { op: 1, digest: 6 };
        (0..2).for_each(|session| receive(&mut coordinator, session, ToCoordinator::Holds(held), second));
        join(&mut coordinator, 2);
        for _ in 0..*LATE_RESTORES.start() {
            receive(&mut coordinator, 2, ToCoordinator::NotRestored { donor: 0 }, second);
        }
        let call = ToCoordinator::Arrive { op: 1, call: Call::Gather, steps: 0, known_epoch: 0 };
        (0..2).for_each(|session| receive(&mut coordinator, session, call.clone(), second));
        assert!(!begun(&coordinator).0, "it fetches the state");
        receive(&mut coordinator, 2, ToCoordinator::Enter(held), second);
        assert!(!begun(&coordinator).0, "it has the state");
        receive(&mut coordinator, 2, call, second);
        assert_eq!(begun(&coordinator), (true, vec![0, 1, 2]));
    }

    /// A founder that sends heartbeats and takes no step is waited for as long as inside a round.
    #[test]
    fn a_founder_that_makes_no_progress_is_lost() {
        let mut coordinator = founding(true);
        let stall = coordinator.settings.stall;
        for second in 0..stall.as_secs() {
            for session in 0..3 {
                let heartbeat = ToCoordinator::Heartbeat { steps: 0, progress: 0, workers: 1 };
                receive(&mut coordinator, session, heartbeat, Duration::from_secs(second));
            }
            assert_eq!(begun(&coordinator), (false, vec![]), "after {second} s");
        }
        coordinator.handle(Input::Tick, stall);
        assert_eq!(begun(&coordinator), (true, vec![0, 2]));
    }

    /// A round that begins again from the same state, because all of its members were lost, is the same round.
    #[test]
    fn a_round_that_begins_again_is_counted_once() {
        let mut coordinator = founding(true);
        receive(&mut coordinator, 1, arrive(), Duration::ZERO);
        assert_eq!((begun(&coordinator).0, coordinator.rounds), (true, 1));
        (0..3).for_each(|session| receive(&mut coordinator, session, ToCoordinator::Leave, Duration::ZERO));
        let hello = Hello { version: VERSION, run: 0, token: 9, worker: None, address: "here".into() };
        for message in [ToCoordinator::Hello(hello), enter(), arrive()] {
            receive(&mut coordinator, 9, message, Duration::ZERO);
        }
        coordinator.handle(Input::Tick, Duration::from_millis(2400));
        assert_eq!((begun(&coordinator).0, coordinator.rounds), (true, 1));
    }

    /// However long a founder loads its data: it is alive, and is waited for.
    #[test]
    fn a_founder_that_loads_its_data_is_not_lost() {
        let mut coordinator = founding(false);
        let mut now = Duration::ZERO;
        while now < 3 * coordinator.settings.stall {
            now += Duration::from_secs(1);
            beat(&mut coordinator, now, &[0, 2], now.as_secs());
            beat(&mut coordinator, now, &[1], 0);
        }
        receive(&mut coordinator, 1, enter(), now);
        receive(&mut coordinator, 1, arrive(), now);
        assert_eq!(begun(&coordinator), (true, vec![0, 1, 2]));
    }

    /// These members are alive, and make progress or not.
    fn beat(coordinator: &mut Coordinator, now: Duration, sessions: &[u64], progress: u64) {
        for session in sessions {
            let heartbeat = ToCoordinator::Heartbeat { steps: 0, progress, workers: 1 };
            receive(coordinator, *session, heartbeat, now);
        }
    }

    /// These members call an operation, and are done with its transfer.
    fn operate(coordinator: &mut Coordinator, op: u64, call: Call, sessions: &[u64], now: Duration) {
        for session in sessions {
            let arrive = ToCoordinator::Arrive { op, call, steps: 0, known_epoch: 0 };
            receive(coordinator, *session, arrive, now);
        }
        // Those that are late are not waited for longer than this.
        let begins = now + Duration::from_secs(1);
        coordinator.handle(Input::Tick, begins);
        let attempt = (coordinator.epoch, op, 1);
        for session in sessions {
            receive(coordinator, *session, ToCoordinator::Done { attempt, digest: 3 }, begins);
        }
        assert_eq!(coordinator.op, op + 1);
    }

    const FINAL: StateVersion = StateVersion { op: 2, digest: 7 };
    const CALL: ToCoordinator =
        ToCoordinator::Arrive { op: 2, call: Call::FinalBarrier, steps: 0, known_epoch: 0 };

    /// Two of three founders have held the last round, and wait at the final barrier; the third was late for the round. At second 2.
    fn at_the_end() -> Coordinator {
        let second = Duration::from_secs(1);
        let round_wait = RoundWait { shortest: second, longest: second, ..RoundWait::default() };
        let settings = Settings { founders: 3, round_wait, ..Settings::default() };
        let mut coordinator = Coordinator::new(settings, 7, vec![], &[]);
        for session in 0..3 {
            let (version, address) = (VERSION, "here".into());
            let hello = Hello { version, run: 0, token: session, worker: None, address };
            receive(&mut coordinator, session, ToCoordinator::Hello(hello), Duration::ZERO);
            receive(&mut coordinator, session, enter(), Duration::ZERO);
        }
        operate(&mut coordinator, 0, Call::Gather, &[0, 1, 2], Duration::ZERO);
        for session in 0..3 {
            let holds = ToCoordinator::Holds(StateVersion { op: 1, digest: 6 });
            receive(&mut coordinator, session, holds, second);
        }
        beat(&mut coordinator, second, &[0, 1, 2], 1);
        operate(&mut coordinator, 1, Call::Gather, &[0, 1], second);
        beat(&mut coordinator, 2 * second, &[0, 1, 2], 2);
        for session in 0..2 {
            receive(&mut coordinator, session, ToCoordinator::Holds(FINAL), 2 * second);
            receive(&mut coordinator, session, CALL, 2 * second);
        }
        assert_eq!(begun(&coordinator), (false, vec![0, 1]));
        coordinator
    }

    /// However late a worker is: the end waits for it as long as it makes progress.
    #[test]
    fn the_final_barrier_waits_for_a_straggler_without_limit() {
        let mut coordinator = at_the_end();
        for second in 2..5000 {
            // Those that wait make no progress meanwhile, and have not hung.
            beat(&mut coordinator, Duration::from_secs(second), &[0, 1], 2);
            beat(&mut coordinator, Duration::from_secs(second), &[2], second);
            assert!(!begun(&coordinator).0, "after {second} s");
        }
        let now = Duration::from_secs(5000);
        (0..3).for_each(|session| beat(&mut coordinator, now, &[session], 2 + session));
        assert_eq!(coordinator.awaited(), [2]);
        receive(&mut coordinator, 2, ToCoordinator::Enter(FINAL), now);
        assert!(!begun(&coordinator).0);
        receive(&mut coordinator, 2, CALL, now);
        coordinator.handle(Input::Tick, now + Duration::from_secs(1));
        assert_eq!(begun(&coordinator), (true, vec![0, 1, 2]));
    }

    /// A joiner that comes meanwhile is waited for, too.
    #[test]
    fn the_final_barrier_waits_for_a_joiner() {
        let (mut coordinator, now) = (at_the_end(), Duration::from_secs(2));
        let hello = Hello { version: VERSION, run: 0, token: 9, worker: None, address: "here".into() };
        receive(&mut coordinator, 9, ToCoordinator::Hello(hello), now);
        receive(&mut coordinator, 9, enter(), now);
        for session in [2, 9] {
            assert!(!begun(&coordinator).0);
            receive(&mut coordinator, session, ToCoordinator::Enter(FINAL), now);
            receive(&mut coordinator, session, CALL, now);
        }
        assert_eq!(begun(&coordinator), (true, vec![0, 1, 2, 3]));
    }

    /// A worker that leaves, is silent, or hangs is not waited for.
    #[test]
    fn the_final_barrier_does_not_wait_for_a_lost_worker() {
        let mut coordinator = at_the_end();
        receive(&mut coordinator, 2, ToCoordinator::Leave, Duration::from_secs(2));
        assert_eq!(begun(&coordinator), (true, vec![0, 1]), "it left");
        let mut coordinator = at_the_end();
        for second in [3, 4, 5] {
            beat(&mut coordinator, Duration::from_secs(second), &[0, 1], second);
        }
        assert_eq!(begun(&coordinator), (true, vec![0, 1]), "it is silent");
        let mut coordinator = at_the_end();
        let stall = coordinator.settings.stall.as_secs();
        for second in 3..stall + 2 {
            beat(&mut coordinator, Duration::from_secs(second), &[0, 1, 2], 2);
            assert!(!begun(&coordinator).0, "after {second} s");
        }
        beat(&mut coordinator, Duration::from_secs(stall + 2), &[0, 1, 2], 2);
        assert_eq!(begun(&coordinator), (true, vec![0, 1]), "it hangs");
    }

    /// Of two that hold different states none has the majority: one is decided on, and the other and the straggler fetch it.
    #[test]
    fn the_final_barrier_decides_on_a_state() {
        let mut coordinator = at_the_end();
        let now = Duration::from_secs(2);
        operate_after_straggler(&mut coordinator, now);
        let other = StateVersion { op: 3, digest: 9 };
        receive(&mut coordinator, 0, ToCoordinator::Holds(StateVersion { op: 3, digest: 8 }), now);
        receive(&mut coordinator, 1, ToCoordinator::Holds(other), now);
        let call = |op| ToCoordinator::Arrive { op, call: Call::FinalBarrier, steps: 0, known_epoch: 0 };
        receive(&mut coordinator, 0, call(3), now);
        receive(&mut coordinator, 1, call(3), now);
        let committed = coordinator.committed.unwrap();
        assert_eq!(committed.op, 3);
        for session in 0..3 {
            if !coordinator.has_arrived(session as u32) {
                assert!(!begun(&coordinator).0);
                receive(&mut coordinator, session, ToCoordinator::Enter(committed), now);
                receive(&mut coordinator, session, call(3), now);
            }
        }
        assert_eq!(begun(&coordinator), (true, vec![0, 1, 2]));
    }

    /// The straggler misses another round.
    fn operate_after_straggler(coordinator: &mut Coordinator, now: Duration) {
        coordinator.operation = Operation::default();
        operate(coordinator, 2, Call::Gather, &[0, 1], now);
        beat(coordinator, now, &[0, 1, 2], 3);
    }
}

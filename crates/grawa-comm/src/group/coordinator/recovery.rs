//! Where the run continues when the members that hold the committed state are gone, or have a later state than the
//! coordinator knows of.

use super::Coordinator;
use super::event::CoordinatorEvent;
use super::operation::Operation;
use super::roster::{MemberRecord, MemberState};
use crate::group::messages::StateVersion;
#[cfg(test)]
use crate::group::simulate::Mutation;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

impl Coordinator {
    /// The run continues from this state. Every member is assigned anew.
    pub(super) fn continue_from(&mut self, version: StateVersion) {
        self.epoch += 1;
        if self.committed != Some(version) {
            self.emit(CoordinatorEvent::Recovered { from: self.committed, to: version });
            self.commit(version);
        }
        self.op = version.op;
        self.operation = Operation::default();
        (self.last, self.round_due) = (None, None);
        self.lost.clear();
        for record in self.roster.values_mut() {
            if matches!(record.state, MemberState::Ready | MemberState::Active) {
                record.state = MemberState::Waiting;
            }
        }
    }

    /// The members may hold a later state than the coordinator, or the one before it, has heard of. If more than half of them
    /// hold the same later state, the run continues there. Joiners do not count.
    pub(super) fn catch_up(&mut self) {
        let may_be = self.returning.is_some() || self.active().next().is_none();
        let Some(reached) = self.reached().filter(|_| may_be) else { return };
        // A token has one vote.
        let mut later: BTreeMap<StateVersion, BTreeSet<u64>> = BTreeMap::new();
        for record in self.roster.values().filter(|record| self.former.contains(&record.token)) {
            if let Some(version) = record.version.filter(|version| version.op > reached) {
                later.entry(version).or_default().insert(record.token);
            }
        }
        let most = self.former_members() as usize;
        if let Some((version, _)) = later.into_iter().find(|(_, tokens)| 2 * tokens.len() > most) {
            self.continue_from(version);
            self.assign_all();
        }
    }

    /// Whether members of the coordinator before this one may still come back.
    pub(super) fn awaits_former_members(&mut self, now: Duration) -> bool {
        let Some(until) = &mut self.returning else { return false };
        let until = *until.get_or_insert(now + self.settings.round_wait.shortest);
        let all = self.active().count() >= self.former_members() as usize;
        if all || now >= until {
            self.returning = None;
        }
        self.returning.is_some()
    }

    /// The operation that the run has reached: 0 if rounds were held, and the journal does not say how far they went.
    fn reached(&self) -> Option<u64> {
        self.committed.map(|committed| committed.op).or(self.has_begun.then_some(0))
    }

    /// If no member holds the committed state any more, the run continues, after a while, from the newest state that a member
    /// holds and that was committed, or comes after one that was. The initial state of a new worker never is such a state.
    pub(super) fn recover(&mut self, now: Duration) {
        let Some(reached) = self.reached() else { return };
        let committed = self.committed;
        let holds = |record: &MemberRecord| {
            record.state == MemberState::Active || committed.is_some() && record.version == committed
        };
        // Without a committed state one is waited for that a round has made.
        let may_hold = |record: &MemberRecord| {
            committed.is_some() || record.version.is_some_and(|version| version.op > 0)
        };
        let waits = |record: &&MemberRecord| {
            matches!(record.state, MemberState::Waiting | MemberState::Restoring(_))
                && record.session.is_some()
                && may_hold(record)
        };
        if self.roster.values().any(holds) || !self.roster.values().any(|record| waits(&record)) {
            self.orphaned = None;
            return;
        }
        let Some(since) = self.orphaned else {
            self.orphaned = Some(now);
            let version = committed.unwrap_or(StateVersion { op: 0, digest: 0 });
            return self.emit(CoordinatorEvent::Orphaned { version });
        };
        let waited = now.saturating_sub(since);
        // Not the initial state.
        let first = 1;
        #[cfg(test)]
        let first = first - u64::from(self.settings.mutation == Some(Mutation::AnyState));
        let versions = || self.roster.values().filter(waits).filter_map(|record| record.version);
        let held = || versions().filter(|version| version.op >= first);
        // A later state was committed, and the coordinator before this one ended before it had heard of it.
        let is_ahead = committed.is_some() && held().any(|version| version.op > reached);
        if waited < if is_ahead { self.settings.recovery_wait / 6 } else { self.settings.recovery_wait } {
            return;
        }
        let was_committed = |version: &StateVersion| {
            version.op > reached || self.history.get(&version.op) == Some(&version.digest)
        };
        if let Some(newest) = held().filter(was_committed).max_by_key(|version| version.op) {
            for record in self.roster.values_mut() {
                if matches!(record.state, MemberState::Restoring(_)) {
                    record.state = MemberState::Waiting;
                }
            }
            self.continue_from(newest);
            self.assign_all();
        }
    }
}

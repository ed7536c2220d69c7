//! Where the run continues when the members that hold the committed state are gone, or have a later state than the
//! coordinator knows of.

use super::Coordinator;
use super::event::CoordinatorEvent;
use super::operation::Operation;
use super::roster::{MemberRecord, MemberState};
use crate::group::messages::StateVersion;
#[cfg(test)]
use crate::group::simulate::Mutation;
use std::collections::BTreeMap;
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
        let Some(committed) = self.committed.filter(|_| may_be) else { return };
        let mut later: BTreeMap<StateVersion, u32> = BTreeMap::new();
        let former = self.roster.values().filter(|record| self.former.contains(&record.token));
        for version in former.filter_map(|record| record.version).filter(|it| it.op > committed.op) {
            *later.entry(version).or_default() += 1;
        }
        if let Some((version, _)) = later.into_iter().find(|(_, count)| 2 * count > self.former_members()) {
            self.continue_from(version);
            self.assign_all();
        }
    }

    /// Whether members of the coordinator before this one may still come back.
    pub(super) fn awaits_former_members(&mut self, now: Duration) -> bool {
        let Some(until) = &mut self.returning else { return false };
        let until = *until.get_or_insert(now + self.settings.round_wait.0);
        let all = self.active().count() >= self.former_members() as usize;
        if all || now >= until {
            self.returning = None;
        }
        self.returning.is_some()
    }

    /// If no member holds the committed state any more, the run continues, after a while, from the newest state that a member
    /// holds and that was committed, or comes after one that was. The initial state of a new worker never is such a state.
    pub(super) fn recover(&mut self, now: Duration) {
        let Some(committed) = self.committed else { return };
        let holds =
            |record: &MemberRecord| record.state == MemberState::Active || record.version == Some(committed);
        let waits = |record: &&MemberRecord| {
            matches!(record.state, MemberState::Waiting | MemberState::Restoring(_))
                && record.session.is_some()
        };
        if self.roster.values().any(holds) || !self.roster.values().any(|record| waits(&record)) {
            self.orphaned = None;
            return;
        }
        let Some(since) = self.orphaned else {
            self.orphaned = Some(now);
            return self.emit(CoordinatorEvent::Orphaned { version: committed });
        };
        let waited = now.saturating_sub(since);
        // Not the initial state.
        let first = 1;
        #[cfg(test)]
        let first = first - u64::from(self.settings.mutation == Some(Mutation::AnyState));
        let versions = || self.roster.values().filter(waits).filter_map(|record| record.version);
        let held = || versions().filter(|version| version.op >= first);
        // A later state was committed, and the coordinator before this one ended before it had heard of it.
        let is_ahead = held().any(|version| version.op > committed.op);
        if waited < if is_ahead { self.settings.recovery_wait / 6 } else { self.settings.recovery_wait } {
            return;
        }
        let was_committed = |version: &StateVersion| {
            version.op > committed.op || self.history.get(&version.op) == Some(&version.digest)
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

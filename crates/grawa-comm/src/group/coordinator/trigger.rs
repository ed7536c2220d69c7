//! At a free pace: when a round is due, and how many steps too many were taken.

use super::Coordinator;
use super::event::CoordinatorEvent;
use super::roster::{MemberRecord, MemberState};
use crate::group::messages::ToMember;

impl Coordinator {
    /// At a free pace a round is due when the M workers of all members have taken M·τ steps, according to their heartbeats.
    pub(super) fn check_trigger(&mut self) {
        let Some(period) = self.settings.trigger else { return };
        if !self.is_open() || self.round_due == Some(self.op) {
            return;
        }
        let wanted = if self.committed.is_none() { self.settings.founders } else { 1 };
        let state = if self.active().next().is_some() { MemberState::Active } else { MemberState::Ready };
        let members: Vec<&MemberRecord> =
            self.roster.values().filter(|record| record.state == state).collect();
        // A member that still holds an older state reports steps that were counted before. A wrong count must not overflow.
        let is_current =
            |record: &&&MemberRecord| record.version.is_some_and(|version| version.op == self.op);
        let taken = members.iter().filter(is_current).map(|record| record.steps);
        let taken = taken.fold(0, u64::saturating_add);
        let workers: u64 = members.iter().map(|record| u64::from(record.workers)).sum();
        if workers >= u64::from(wanted.max(1)) && taken >= period.saturating_mul(workers) {
            self.round_due = Some(self.op);
            let all: Vec<u32> = self.roster.keys().copied().collect();
            all.into_iter().for_each(|worker| self.send_round_due(worker));
        }
    }

    /// Tells a member that the round is due, if it is.
    pub(super) fn send_round_due(&mut self, worker: u32) {
        if let Some(op) = self.round_due.filter(|op| *op == self.op) {
            self.send(worker, ToMember::StartRound { op });
        }
    }

    /// At a free pace: counts the steps beyond those asked for.
    pub(super) fn count_extra_steps(&mut self, steps: u64, workers: u64) {
        let Some(period) = self.settings.trigger else { return };
        let steps = steps.saturating_sub(period.saturating_mul(workers));
        if steps > 0 {
            self.extra_steps = self.extra_steps.saturating_add(steps);
            self.emit(CoordinatorEvent::ExtraSteps { op: self.op, steps });
        }
    }
}

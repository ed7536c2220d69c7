//! At a free pace: when a round is due, and how many steps too many were taken.

use super::Coordinator;
use super::event::CoordinatorEvent;
use super::roster::{MemberRecord, MemberState};
use crate::group::messages::ToMember;

impl Coordinator {
    /// At a free pace a round is due when the M workers that are left have taken M·τ steps, according to their heartbeats.
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
        let left: u64 = members.iter().map(|record| u64::from(record.workers_left)).sum();
        if workers >= u64::from(wanted.max(1)) && taken >= period.saturating_mul(left) {
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

    /// At a free pace: counts the steps of a round that begins beyond those asked for.
    pub(super) fn count_extra_steps(&mut self) {
        let Some(period) = self.settings.trigger else { return };
        let arrived = &self.operation.arrived;
        let taken = arrived.values().map(|arrival| arrival.steps).fold(0, u64::saturating_add);
        let records = arrived.keys().filter_map(|worker| self.roster.get(worker));
        let left: u64 = records.map(|record| u64::from(record.workers_left)).sum();
        let steps = taken.saturating_sub(period.saturating_mul(left));
        if steps > 0 {
            self.extra_steps = self.extra_steps.saturating_add(steps);
            self.emit(CoordinatorEvent::ExtraSteps { op: self.op, steps });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Action, Input, Settings};
    use super::*;
    use crate::group::messages::{Hello, StateVersion, ToCoordinator, VERSION};
    use std::time::Duration;

    /// Workers that failed take no steps: nobody waits for those.
    #[test]
    fn workers_that_are_lost_are_not_counted() {
        let settings = Settings { founders: 5, trigger: Some(10), ..Settings::default() };
        let mut coordinator = Coordinator::new(settings, 7, Vec::new(), &[]);
        let mut send = |session: u64, message: ToCoordinator| {
            let actions = coordinator.handle(Input::Message { session, message }, Duration::ZERO);
            actions.iter().any(|it| matches!(it, Action::Send { message: ToMember::StartRound { .. }, .. }))
        };
        for (session, workers) in [(0, 4), (1, 1)] {
            let hello = Hello { version: VERSION, run: 0, token: session, worker: None, address: "a".into() };
            send(session, ToCoordinator::HelloOfSet { workers, hello });
            send(session, ToCoordinator::Enter(StateVersion { op: 0, digest: 5 }));
        }
        let heartbeat = |steps, workers| ToCoordinator::Heartbeat { steps, progress: steps, workers };
        assert!(!send(1, heartbeat(10, 1)) && !send(0, heartbeat(39, 4)));
        assert!(!send(0, heartbeat(29, 3)));
        assert!(send(0, heartbeat(30, 3)), "three of four and another have taken ten steps each");
    }
}

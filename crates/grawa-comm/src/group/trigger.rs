//! At a free pace: when a round is due, and what was too much.

use super::coordinator::Coordinator;
use super::message::Down;
use super::notice::Notice;
use super::seat::{Seat, State};

impl Coordinator {
    /// At a free pace a round is due when all members together have taken M·τ steps, as far as their signs of life tell.
    pub(super) fn pull_trigger(&mut self) {
        let Some(period) = self.settings.trigger else { return };
        if !self.is_open() || self.called == Some(self.op) {
            return;
        }
        let wanted = if self.truth.is_none() { self.settings.founders } else { self.settings.at_least };
        let state = if self.active().next().is_some() { State::Active } else { State::Ready };
        let members: Vec<&Seat> = self.seats.values().filter(|seat| seat.state == state).collect();
        // Who has not said that the last cycle is over speaks of steps that were counted. What is said is believed, and must
        // not overflow.
        let stands = |seat: &&&Seat| seat.stand.is_some_and(|stand| stand.op == self.op);
        let taken = members.iter().filter(stands).fold(0u64, |taken, seat| taken.saturating_add(seat.steps));
        if members.len() >= wanted.max(1) as usize && taken >= period * members.len() as u64 {
            self.call_all(self.op);
        }
    }

    /// Calls everyone to a round.
    pub(super) fn call_all(&mut self, op: u64) {
        self.called = Some(op);
        let all: Vec<u32> = self.seats.keys().copied().collect();
        all.into_iter().for_each(|worker| self.send(worker, Down::Round { op }));
    }

    /// Calls one who was not there when all were called.
    pub(super) fn call(&mut self, worker: u32) {
        if let Some(op) = self.called.filter(|op| *op == self.op) {
            self.send(worker, Down::Round { op });
        }
    }

    /// At a free pace: so many came to a round with so many steps in all.
    pub(super) fn overshoot(&mut self, op: u64, steps: u64, members: u64) {
        let Some(period) = self.settings.trigger else { return };
        let steps = steps.saturating_sub(period.saturating_mul(members));
        if steps > 0 {
            self.overshot = self.overshot.saturating_add(steps);
            self.say(Notice::Overshot { op, steps });
        }
    }
}

//! How a run ends: all wait for each other, all have one final state, and all say so.
//!
//! When the budget is spent the members of an elastic group publish the final state and hold the *final barrier*, which waits for every
//! connected process. One that missed the last round takes the final state first: its parameters become the centre, and its steps since its
//! last round are dropped. It gets the evaluated model like all others, but has no part in it: that is made of the workers of the last
//! round.
//!
//! Sessions that were asked to stop hold it, too: the state that they publish then says that the run was stopped, so that one that was late
//! comes to the barrier as well.

use super::{Note, Process};
use crate::Error;
use crate::event::{Event, Fault, Reason};
use crate::membership::Membership;
use crate::milestones::Position;
use crate::round_message::{ProcessMessage, RoundMessage, Tally};
use crate::worker_set::WorkerState;
use grawa_comm::Error as CommError;
use grawa_core::StateKind;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// Which exchange of messages this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exchange {
    /// The first: whose parameters all start from.
    Start,
    /// The reports to a round of this level.
    Level(usize),
    /// The one that waits for all.
    FinalBarrier,
    /// The last one.
    Finish,
}

impl Process {
    /// Whether the budget is spent at the position of the run.
    pub(crate) fn is_spent(&self) -> bool {
        self.common.milestones.is_spent(&self.at)
    }

    /// All have stopped together. The state is published once more, for those that are late.
    pub(crate) fn stop_here(&mut self) {
        if !self.is_stopped
            && let Some(elastic) = self.membership.elastic_mut()
        {
            (self.is_stopped, elastic.has_published) = (true, false);
        }
    }

    /// The budget is spent, or all have stopped: publishes the final state, and waits for all that are connected. Where processes stay the
    /// same nobody is late.
    pub(crate) fn final_barrier(&mut self) -> Result<(), Error> {
        if !self.membership.is_elastic() {
            return Ok(());
        }
        self.publish_state()?;
        let counts = !self.is_late;
        let message = |worker: &WorkerState| {
            let finite = counts && worker.finite;
            (worker.id, RoundMessage { finite, taken: worker.taken, ..RoundMessage::default() })
        };
        let mine = ProcessMessage {
            keeps: self.common.snapshots.is_some(),
            workers: self.workers.iter().map(message).collect(),
            ..self.reporter_state()
        };
        let heads = self.gather(Exchange::FinalBarrier, mine)?;
        self.note_writers(&heads);
        self.elect_reporter(&heads);
        let workers = || heads.iter().flat_map(|(_, head)| &head.workers);
        let ids = |finite: bool| workers().filter(move |(_, it)| it.finite == finite).map(|(id, _)| *id);
        self.without_part = match ids(true).next() {
            Some(_) => ids(false).collect(),
            // All of the last round are gone, or not finite: all that are left have the final centre.
            None => BTreeSet::new(),
        };
        Ok(())
    }

    /// A worker that missed the last round takes the final state: nothing is trained on its own parameters any more.
    pub(crate) fn take_final_state(&mut self, centre: &[f32]) -> Result<(), Error> {
        self.is_late = true;
        let model = &centre[..self.common.layout.len()];
        for worker in &mut self.workers {
            self.set.put(worker.index, StateKind::Parameters, model)?;
            self.set.reset(worker.index);
            let dropped = std::mem::take(&mut worker.in_cycle);
            worker.taken = worker.taken.saturating_sub(dropped);
            if dropped > 0 {
                let what = format!(
                    "worker {} was late for the end of the run: it takes the final state, and {dropped} steps that no round has \
                     counted are dropped",
                    worker.id
                );
                let place = self.common.milestones.place(&self.at);
                let fault = Event::Fault(Fault { at: place, worker: Some(worker.id), what });
                let _ = self.common.notes.send(Note::Own(fault));
            }
        }
        Ok(())
    }

    /// Whether it took part in the cycle that ended at this position, so that its own parameters belong to that state.
    pub(crate) fn was_there(&self, at: &Position, centre: &[f32]) -> bool {
        let is_same = |own: &Position| (own.steps, own.total, own.rounds) == (at.steps, at.total, at.rounds);
        let bits = |x: &f32| x.to_bits();
        is_same(&self.at) && self.all_centre.iter().map(bits).eq(centre.iter().map(bits))
    }

    /// Those that have no part in the evaluated model. If all that have one are lost, all that are present have.
    pub(crate) fn without_part(&self, present: impl IntoIterator<Item = u32>) -> BTreeSet<u32> {
        let is_left = present.into_iter().any(|worker| !self.without_part.contains(&worker));
        if is_left { self.without_part.clone() } else { BTreeSet::new() }
    }

    /// Says how the run ended.
    pub(crate) fn finish(&mut self, reason: Reason) -> Result<(), Error> {
        let message = |worker: &mut WorkerState| {
            worker.past.add(&worker.tally);
            worker.tally = Tally::default();
            let tally =
                Tally { steps: worker.taken, loss: 0.0, times: worker.past.times, bytes: worker.past.bytes };
            (worker.id, RoundMessage { taken: worker.taken, tally, ..RoundMessage::default() })
        };
        let workers = self.workers.iter_mut().map(message).collect();
        let mine = ProcessMessage { workers, ..self.reporter_state() };
        match self.gather(Exchange::Finish, mine.clone()) {
            Ok(heads) => {
                self.elect_reporter(&heads);
                self.report_end(&heads, reason);
            }
            // All is done, and nobody is left to agree with.
            Err(Error::Comm(error @ (CommError::Over | CommError::OutOfContact))) => {
                self.has_missed_finish = error == CommError::Over;
                self.finish_alone(mine, reason);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// The same without the others.
    pub(crate) fn end_alone(&mut self, reason: Reason) {
        let message = |worker: &WorkerState| {
            let tally = Tally { times: worker.past.times, bytes: worker.past.bytes, ..Tally::default() };
            (worker.id, RoundMessage { taken: worker.taken, tally, ..RoundMessage::default() })
        };
        let workers = self.workers.iter().map(message).collect();
        self.finish_alone(ProcessMessage { workers, ..ProcessMessage::default() }, reason);
    }

    fn finish_alone(&mut self, mine: ProcessMessage, reason: Reason) {
        let id = self.membership.id();
        self.report_end(&[(id, mine)], reason);
    }

    /// Whether all were asked to stop together: then it is no error that they have, before this process could join them.
    pub(crate) fn is_asked_to_stop_together(&self) -> bool {
        matches!(self.membership, Membership::Elastic(..)) && self.common.together.load(Ordering::Relaxed)
    }
}

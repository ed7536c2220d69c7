//! A set of one worker whose steps the caller of a session takes, and whose parameters the caller has.

use crate::Error;
use crate::evaluate::Counts;
use crate::worker_set::{
    Cycle, Evaluation, Measured, PerWorker, Shard, Slot, Vectors, WorkerSet, WorkerState,
};
use grawa_comm::{Heartbeat, Outcome};
use grawa_core::{Key, Layout, Optimizer, Plan, StateKind, mix, pull_part};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a session and the set in its loop share.
#[derive(Clone, Default)]
pub(crate) struct Pushed(Arc<Mutex<CallersVectors>>);

/// The vectors of the worker.
#[derive(Default)]
pub(crate) struct CallersVectors {
    /// A copy of the caller's parameters during a round.
    pub(crate) parameters: Vec<f32>,
    /// The norms of the caller's score batch.
    pub(crate) scores: Vec<f64>,
    /// The parameters were replaced, so that the state of the optimizer is of no use.
    pub(crate) was_replaced: bool,
    pub(crate) centre: Arc<Vec<f32>>,
    pub(crate) view: Arc<Vec<f32>>,
    pub(crate) heartbeat: Option<Heartbeat>,
}

impl CallersVectors {
    fn slot(&mut self, slot: Slot) -> &mut Arc<Vec<f32>> {
        if slot == Slot::View { &mut self.view } else { &mut self.centre }
    }
}

impl Pushed {
    pub(crate) fn lock(&self) -> MutexGuard<'_, CallersVectors> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The set of the worker.
pub(crate) struct PushedWorker {
    pub(crate) layout: Layout,
    pub(crate) shared: Pushed,
}

/// [`crate::Settings::check`] refuses methods that need it.
fn none<T>() -> PerWorker<T> {
    Vec::new()
}

impl WorkerSet for PushedWorker {
    /// The steps have been taken.
    fn local_steps(&mut self, _: &Arc<Cycle>, workers: Vec<WorkerState>) -> PerWorker<WorkerState> {
        workers.into_iter().map(|worker| (worker.index, Ok(worker))).collect()
    }

    fn gradients(&mut self, _: &[(usize, Key)], _: Option<f32>) -> PerWorker<(f64, Vec<f64>)> {
        none()
    }

    fn descend(&mut self, _: &[usize], _: Optimizer, _: f32, _: [f32; 2]) -> PerWorker<bool> {
        none()
    }

    fn score(&mut self, keys: &[(usize, Key)], _: bool) -> PerWorker<Vec<f64>> {
        let scores = self.shared.lock().scores.clone();
        keys.iter().map(|(index, _)| (*index, Ok(scores.clone()))).collect()
    }

    fn mix(&mut self, slot: Slot, plan: &Plan, _: &[usize], _: Vectors) -> Result<(), Error> {
        let mut shared = self.shared.lock();
        let mut parameters = std::mem::take(&mut shared.parameters);
        let centre = Arc::make_mut(shared.slot(slot));
        centre.resize(plan.centre.state_len(self.layout.len()).max(centre.len()), 0.0);
        let mixed = mix(plan, &self.layout, &mut [&mut parameters], centre);
        shared.parameters = parameters;
        Ok(mixed?)
    }

    fn combine(
        &mut self,
        _: &Plan,
        _: &[usize],
        _: Vectors,
        send: &mut dyn FnMut(&[f32]) -> Result<Outcome, grawa_comm::Error>,
    ) -> Result<Outcome, Error> {
        Ok(send(&self.shared.lock().parameters)?)
    }

    fn pull(
        &mut self,
        plan: &Plan,
        members: &[(usize, usize)],
        (before, after): (&Arc<Vec<f32>>, &Arc<Vec<f32>>),
        _: Vectors,
    ) -> Result<(), Error> {
        for (rank, _) in members {
            pull_part(plan, *rank, &mut self.shared.lock().parameters, before, after);
        }
        Ok(())
    }

    fn centre(&self, slot: Slot) -> Result<Arc<Vec<f32>>, Error> {
        Ok(Arc::clone(self.shared.lock().slot(slot)))
    }

    fn set_centre(&mut self, slot: Slot, centre: Arc<Vec<f32>>) -> Result<(), Error> {
        *self.shared.lock().slot(slot) = centre;
        Ok(())
    }

    fn reset(&mut self, _: usize) {
        self.shared.lock().was_replaced = true;
    }

    fn copy(&mut self, _: usize, what: StateKind) -> Result<Vec<f32>, Error> {
        let has = what == StateKind::Parameters;
        Ok(if has { self.shared.lock().parameters.clone() } else { Vec::new() })
    }

    fn put(&mut self, _: usize, what: StateKind, values: &[f32]) -> Result<(), Error> {
        if what == StateKind::Parameters {
            self.shared.lock().parameters = values.to_vec();
        }
        Ok(())
    }

    /// The caller asks for its shard.
    fn assign_shard(&mut self, _: usize, _: u32, _: u32) -> Result<(), Error> {
        Ok(())
    }

    /// The caller evaluates.
    fn evaluation(&self) -> Option<Evaluation> {
        None
    }

    fn recalibrate(&mut self, _: Measured, _: &[Shard]) -> PerWorker<(Vec<f64>, u64)> {
        none()
    }

    fn test(&mut self, _: Measured, _: &[Shard], _: &[Arc<Vec<f32>>]) -> PerWorker<Counts> {
        none()
    }

    fn set_heartbeat(&mut self, heartbeat: Heartbeat) {
        self.shared.lock().heartbeat = Some(heartbeat);
    }

    fn waits(&mut self, _: usize) -> (f64, f64) {
        (0.0, 0.0)
    }
}

//! The workers of one process.
//!
//! One loop drives all workers of a process. A set does what the loop asks for with all workers at once: on threads
//! (`ThreadSet` of grawa-train), or in lock-step on GPUs. The set holds the vectors: those of the workers, and the centres. Where a group has workers in
//! other processes, the set makes one vector of its own workers and pulls them toward the centre that comes back. A worker that fails is
//! part of the answer, and the others continue.

pub mod conformance;
mod worker_state;

pub use worker_state::{Cycle, StepTaken, WorkerState};

use crate::BatchNorm;
use crate::Error;
use crate::evaluate::Counts;
use grawa_comm::{Heartbeat, Outcome};
use grawa_core::{Key, Layout, Optimizer, Plan, StateKind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Which vectors of the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vectors {
    /// Their parameters.
    Parameters,
    /// Their last gradients.
    Gradients,
}

/// Which centre of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// That of all workers.
    All,
    /// That of an inner group, counted from the first one that has workers here.
    Inner(usize),
    /// The model to be evaluated.
    View,
}

/// The model that a worker measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measured {
    /// A centre.
    Centre(Slot),
    /// Each measures its own parameters.
    Own,
}

/// What a worker measures: every `of`-th batch, beginning with number `shard`.
#[derive(Clone, Debug)]
pub struct Shard {
    /// The worker's index in the set.
    pub index: usize,
    /// The first batch.
    pub shard: usize,
    /// The number of shards.
    pub of: usize,
}

/// The results of workers, by their index in the set. One that is an error is lost, and the set has dropped it.
pub type PerWorker<T> = Vec<(usize, Result<T, Error>)>;

/// A vector of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateVector {
    /// A part of a worker's state.
    Worker(usize, StateKind),
    /// A centre; the velocity of its outer optimizer follows it.
    Centre(Slot),
}

/// Fetches copies of vectors, on any thread.
pub type Fetch = Box<dyn FnOnce() -> Result<Vec<Vec<f32>>, Error> + Send>;

/// How the set evaluates.
#[derive(Debug)]
pub struct Evaluation {
    /// Where the statistics of the evaluated model come from.
    pub policy: BatchNorm,
    /// The layout of the statistics.
    pub statistics: Layout,
}

/// The workers of one process. They are named by their index in the set.
pub trait WorkerSet: Send {
    /// Local steps until the cycle is full or a stop is requested. Returns the new states, which know whether their cycle is full.
    fn local_steps(&mut self, cycle: &Arc<Cycle>, workers: Vec<WorkerState>) -> PerWorker<WorkerState>;

    /// The gradients of these workers, to be shared: SAM's where there is a radius. Returns the losses, and the norms of the gradients by
    /// span.
    fn gradients(&mut self, keys: &[(usize, Key)], radius: Option<f32>) -> PerWorker<(f64, Vec<f64>)>;

    /// A step of these workers with their gradients. Returns whether their parameters are finite.
    fn descend(
        &mut self,
        workers: &[usize],
        optimizer: Optimizer,
        rate: f32,
        prox: [f32; 2],
    ) -> PerWorker<bool>;

    /// The norms of these workers' gradients on their score batches, by span.
    fn score(&mut self, keys: &[(usize, Key)], dropout: bool) -> PerWorker<Vec<f64>>;

    /// Makes the centre of a group whose workers are all here, and pulls them. `members` are those of the plan, in its order.
    fn mix(&mut self, slot: Slot, plan: &Plan, members: &[usize], vectors: Vectors) -> Result<(), Error>;

    /// Makes one vector of these workers and shows it to `send`. `plan` is their part of the plan, see [`Plan::within`].
    fn combine(
        &mut self,
        plan: &Plan,
        members: &[usize],
        vectors: Vectors,
        send: &mut dyn FnMut(&[f32]) -> Result<Outcome, grawa_comm::Error>,
    ) -> Result<Outcome, Error>;

    /// Pulls workers toward the centre that [`WorkerSet::combine`] led to. `members` are ranks in the plan, and workers; `centres` those
    /// before and after.
    fn pull(
        &mut self,
        plan: &Plan,
        members: &[(usize, usize)],
        centres: (&Arc<Vec<f32>>, &Arc<Vec<f32>>),
        vectors: Vectors,
    ) -> Result<(), Error>;

    /// A centre; the velocity of its outer optimizer follows it.
    fn centre(&self, slot: Slot) -> Result<Arc<Vec<f32>>, Error>;

    /// Replaces a centre.
    fn set_centre(&mut self, slot: Slot, centre: Arc<Vec<f32>>) -> Result<(), Error>;

    /// Forgets the state of the optimizer of a worker whose parameters were replaced.
    fn reset(&mut self, worker: usize);

    /// A copy of a part of a worker's state.
    fn copy(&mut self, worker: usize, what: StateKind) -> Result<Vec<f32>, Error>;

    /// Copies of vectors as they are now, to be fetched while the set goes on. A set may copy them at once; on a GPU that would take long.
    fn copy_later(&mut self, wanted: &[StateVector]) -> Result<Fetch, Error> {
        copy_now(self, wanted)
    }

    /// Restores a part of a worker's state.
    fn put(&mut self, worker: usize, what: StateKind, values: &[f32]) -> Result<(), Error>;

    /// A worker reads another shard of the examples from now on.
    fn assign_shard(&mut self, worker: usize, shard: u32, of: u32) -> Result<(), Error>;

    /// How models are evaluated, if they are.
    fn evaluation(&self) -> Option<Evaluation>;

    /// For each shard the sum of the batch statistics of its recalibration batches, and the number of batches.
    fn recalibrate(&mut self, model: Measured, shards: &[Shard]) -> PerWorker<(Vec<f64>, u64)>;

    /// The counts of each shard's test batches, with these statistics.
    fn test(&mut self, model: Measured, shards: &[Shard], statistics: &[Arc<Vec<f32>>]) -> PerWorker<Counts>;

    /// A function to be called after every step and every measured batch.
    fn set_heartbeat(&mut self, heartbeat: Heartbeat);

    /// Once this is true evaluations may end early: what they return then is not used. A set that does not look at it
    /// measures to the end, and only then does the run stop.
    fn set_stop(&mut self, _stop: Arc<AtomicBool>) {}

    /// Seconds that a worker waited for a core and for data since the last call.
    fn waits(&mut self, worker: usize) -> (f64, f64);
}

/// Copies vectors of a set at once.
pub fn copy_now(set: &mut (impl WorkerSet + ?Sized), wanted: &[StateVector]) -> Result<Fetch, Error> {
    let copy = |vector: &StateVector| match *vector {
        StateVector::Worker(worker, what) => set.copy(worker, what),
        StateVector::Centre(slot) => Ok(set.centre(slot)?.to_vec()),
    };
    let copies: Vec<Vec<f32>> = wanted.iter().map(copy).collect::<Result<_, _>>()?;
    Ok(Box::new(|| Ok(copies)))
}

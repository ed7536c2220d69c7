//! The rendezvous of a GPU's workers: the GPU does one operation at a time, for all of them.
//!
//! Each worker is a thread, as on the CPU, and makes its own requests. When all have requested, the last one executes
//! the operation for all. So the run's loop, its rounds and its checkpoints are the same as on the CPU, while every
//! kernel serves all workers. If one worker ends, the others cannot continue and get its error. Each GPU has its own
//! rendezvous.

use crate::Error;
use crate::engine::cpu_replica::replica_error;
use grawa_nn::cuda::ReplicaSet;
use std::any::Any;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

type Boxed = Box<dyn Any + Send>;

/// The workers of a GPU, and its replica set.
#[derive(Debug)]
pub(crate) struct Lockstep {
    set: Mutex<ReplicaSet>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    requests: Vec<Option<Boxed>>,
    results: Vec<Option<Boxed>>,
    /// Why nothing more can be done. Every worker gets a copy, with its cause.
    broken: Option<grawa_core::Error>,
}

impl Lockstep {
    pub(super) fn new(set: ReplicaSet) -> Self {
        let workers = set.settings().workers;
        let places = || (0..workers).map(|_| None).collect();
        let state = State { requests: places(), results: places(), broken: None };
        Lockstep { set: Mutex::new(set), state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The replica set, locked for this thread.
    pub(super) fn set(&self) -> MutexGuard<'_, ReplicaSet> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something that concerns no other worker.
    pub(super) fn alone<T>(&self, act: impl FnOnce(&mut ReplicaSet) -> T) -> T {
        act(&mut self.set())
    }

    /// Waits for the requests of all workers, executes them once, and returns this worker's result.
    pub(super) fn together<I: Send + 'static, O: Send + 'static>(
        &self,
        worker: usize,
        mine: I,
        act: impl FnOnce(&mut ReplicaSet, Vec<I>) -> Result<Vec<O>, Error>,
    ) -> Result<O, Error> {
        let mut state = self.lock();
        if let Some(why) = &state.broken {
            return Err(why.clone().into());
        }
        state.requests[worker] = Some(Box::new(mine));
        if state.requests.iter().all(Option::is_some) {
            let asked: Vec<I> = (state.requests.iter_mut())
                .filter_map(|boxed| boxed.take()?.downcast().ok())
                .map(|boxed| *boxed)
                .collect();
            let done = match asked.len() == state.requests.len() {
                true => self.alone(|set| act(set, asked)),
                false => Err(broken("the workers of the GPU requested different operations")),
            };
            match done {
                Ok(done) => {
                    let boxed = done.into_iter().map(|one| Some(Box::new(one) as Boxed));
                    state.results.iter_mut().zip(boxed).for_each(|(place, boxed)| *place = boxed);
                }
                Err(error) => {
                    let error = replica_error(error);
                    state.broken = Some(error.clone());
                    self.changed.notify_all();
                    return Err(error.into());
                }
            }
            self.changed.notify_all();
        }
        loop {
            if let Some(boxed) = state.results[worker].take() {
                let mistaken = || broken("the GPU returned another result");
                return boxed.downcast().map(|one| *one).map_err(|_| mistaken());
            }
            if let Some(why) = &state.broken {
                return Err(why.clone().into());
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A worker ends. Every worker that waits for it gets an error.
    pub(super) fn leave(&self, worker: u32) {
        let mut state = self.lock();
        state.broken.get_or_insert_with(|| {
            grawa_core::Error::replica(format!(
                "worker {worker} ended, and the workers of a GPU cannot continue without it"
            ))
        });
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn broken(why: &str) -> Error {
    grawa_core::Error::replica(why).into()
}

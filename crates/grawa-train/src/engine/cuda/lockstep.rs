//! Where the workers of a GPU come together: the GPU does one thing at a time, and for all of them.
//!
//! Each worker is a thread as on the CPU and asks for itself; when all have asked, the last one to come has the GPU do it
//! for all. So the run's loop, its rounds and its checkpoints are the same as anywhere, and yet every kernel serves all
//! workers. If one of them leaves, the others cannot go on: they live on one GPU, and hear why. Workers of other GPUs meet
//! at decks of their own.

use crate::Error;
use crate::engine::cpu_replica::replica_error;
use grawa_nn::cuda::ReplicaSet;
use std::any::Any;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

type Parcel = Box<dyn Any + Send>;

/// The workers of a GPU, and the GPU's work.
#[derive(Debug)]
pub(crate) struct Lockstep {
    set: Mutex<ReplicaSet>,
    table: Mutex<Table>,
    changed: Condvar,
}

#[derive(Debug)]
struct Table {
    asked: Vec<Option<Parcel>>,
    done: Vec<Option<Parcel>>,
    /// Why nothing can be done any more: every worker gets a copy, with its cause.
    broken: Option<grawa_core::Error>,
}

impl Lockstep {
    pub(super) fn new(set: ReplicaSet) -> Self {
        let workers = set.settings().workers;
        let places = || (0..workers).map(|_| None).collect();
        let table = Table { asked: places(), done: places(), broken: None };
        Lockstep { set: Mutex::new(set), table: Mutex::new(table), changed: Condvar::new() }
    }

    /// The GPU's memory and work, for this thread alone.
    pub(super) fn set(&self) -> MutexGuard<'_, ReplicaSet> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the GPU do something that concerns nobody else.
    pub(super) fn alone<T>(&self, act: impl FnOnce(&mut ReplicaSet) -> T) -> T {
        act(&mut self.set())
    }

    /// Waits until all workers ask; the GPU then does it once, from what all hand in to what each gets.
    pub(super) fn together<I: Send + 'static, O: Send + 'static>(
        &self,
        worker: usize,
        mine: I,
        act: impl FnOnce(&mut ReplicaSet, Vec<I>) -> Result<Vec<O>, Error>,
    ) -> Result<O, Error> {
        let mut table = self.lock();
        if let Some(why) = &table.broken {
            return Err(why.clone().into());
        }
        table.asked[worker] = Some(Box::new(mine));
        if table.asked.iter().all(Option::is_some) {
            let asked: Vec<I> = (table.asked.iter_mut())
                .filter_map(|parcel| parcel.take()?.downcast().ok())
                .map(|parcel| *parcel)
                .collect();
            let done = match asked.len() == table.asked.len() {
                true => self.alone(|set| act(set, asked)),
                false => Err(broken("the workers of the GPU asked for different things")),
            };
            match done {
                Ok(done) => {
                    let parcels = done.into_iter().map(|one| Some(Box::new(one) as Parcel));
                    table.done.iter_mut().zip(parcels).for_each(|(place, parcel)| *place = parcel);
                }
                Err(error) => {
                    let error = replica_error(error);
                    table.broken = Some(error.clone());
                    self.changed.notify_all();
                    return Err(error.into());
                }
            }
            self.changed.notify_all();
        }
        loop {
            if let Some(parcel) = table.done[worker].take() {
                let mistaken = || broken("the GPU answered something else");
                return parcel.downcast().map(|one| *one).map_err(|_| mistaken());
            }
            if let Some(why) = &table.broken {
                return Err(why.clone().into());
            }
            table = self.changed.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A worker goes. Whoever waits for it, or will, hears of it.
    pub(super) fn leave(&self, worker: u32) {
        let mut table = self.lock();
        table.broken.get_or_insert_with(|| {
            grawa_core::Error::replica(format!("worker {worker} is gone, and a GPU's workers go together"))
        });
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn broken(why: &str) -> Error {
    grawa_core::Error::replica(why).into()
}

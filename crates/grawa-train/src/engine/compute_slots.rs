//! The cores as compute slots: a slot holds what one pass at a time needs, and a worker borrows one for a step.
//!
//! Slots are given out in the order of the requests, so that workers of equal speed take equal turns. A worker that
//! fails returns its slot.

use crate::Error;
use grawa_data::{Batch, Feed};
use grawa_nn::{Arena, Program};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The memory of a pass.
#[derive(Debug)]
pub(super) struct ComputeSlot {
    pub(super) arena: Arena,
    /// The gradient of a step, if workers do not keep their own.
    pub(super) gradient: Vec<f32>,
    /// The parameters that SAM restores.
    pub(super) saved: Vec<f32>,
    /// A score batch, or a batch of an evaluation.
    pub(super) batch: Batch,
}

/// All compute slots of a process.
#[derive(Debug)]
pub(super) struct ComputeSlots {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug)]
struct Queue {
    free: Vec<ComputeSlot>,
    /// The ticket of whoever comes next, and of whose turn it is.
    next: u64,
    turn: u64,
}

impl ComputeSlots {
    /// As many slots as cores, but no more than workers. With fewer workers the cores of a slot share each pass.
    pub(super) fn new(program: &Program, feed: &Feed, workers: usize, cores: usize) -> Result<Self, Error> {
        let count = workers.min(cores).max(1);
        let parameters = program.graph().parameters().len();
        let mut free = Vec::with_capacity(count);
        for _ in 0..count {
            free.push(ComputeSlot {
                arena: Arena::new(program, cores / count)?,
                gradient: vec![0.0; parameters],
                saved: Vec::new(),
                batch: Batch::new(feed, program.batch()),
            });
        }
        let queue = Queue { free, next: 0, turn: 0 };
        Ok(ComputeSlots { queue: Mutex::new(queue), changed: Condvar::new() })
    }

    /// Borrows a slot when it is this worker's turn.
    pub(super) fn borrow(self: &Arc<Self>) -> SlotGuard {
        let mut queue = self.lock();
        let ticket = queue.next;
        queue.next += 1;
        loop {
            if queue.turn == ticket
                && let Some(slot) = queue.free.pop()
            {
                queue.turn += 1;
                if !queue.free.is_empty() {
                    self.changed.notify_all();
                }
                return SlotGuard { slots: Arc::clone(self), slot: Some(slot) };
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // The queue is consistent whenever the lock is free: nothing panics while it is held.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A borrowed slot; dropping it returns it.
#[derive(Debug)]
pub(super) struct SlotGuard {
    slots: Arc<ComputeSlots>,
    slot: Option<ComputeSlot>,
}

impl Deref for SlotGuard {
    type Target = ComputeSlot;

    fn deref(&self) -> &ComputeSlot {
        self.slot.as_ref().expect("a slot is borrowed until it is dropped")
    }
}

impl DerefMut for SlotGuard {
    fn deref_mut(&mut self) -> &mut ComputeSlot {
        self.slot.as_mut().expect("a slot is borrowed until it is dropped")
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.slots.lock().free.push(slot);
            self.slots.changed.notify_all();
        }
    }
}

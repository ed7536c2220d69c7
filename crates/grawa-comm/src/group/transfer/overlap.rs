//! A transfer that overlaps with training.
//!
//! At a round every worker is pulled toward the centre of the round before, and starts to transfer its vector. The new centre is
//! taken at the next operation. A member can publish its state when the transfer is finished *and* the worker has
//! provided its memory, whichever is later. So joiners need not wait for the next operation.

use crate::group::environment::{Environment, Monitor, POLL};
use crate::group::member::socket_member::Caller;
use crate::{Error, Lost};
use std::sync::Arc;

/// The result of a transfer.
#[derive(Debug)]
pub(crate) struct Finished {
    /// With the new centre. If a member was lost meanwhile, the old one stays.
    pub(crate) caller: Caller,
    pub(crate) lost: Vec<Lost>,
    pub(crate) send_buffer: Vec<f32>,
}

#[derive(Debug)]
pub(crate) struct Overlap(Monitor<State>);

#[derive(Debug, Default)]
struct State {
    result: Option<Result<Finished, Error>>,
    is_finished: bool,
    memory: Option<Vec<u8>>,
}

impl Overlap {
    pub(crate) fn new(environment: &Environment) -> Self {
        Overlap(Monitor::new(environment, State::default()))
    }

    /// The transfer is finished. The state is published before anyone is told, and so before the next operation.
    pub(crate) fn finish(&self, result: Result<Finished, Error>) {
        let mut state = self.0.lock();
        if let (Ok(finished), Some(memory)) = (&result, state.memory.take()) {
            finished.caller.publish(memory);
        }
        (state.result, state.is_finished) = (Some(result), true);
        drop(state);
        self.0.notify();
    }

    /// The round is over, and this is its memory.
    pub(crate) fn publish(&self, memory: &[u8]) {
        let mut state = self.0.lock();
        match &state.result {
            None => state.memory = Some(memory.into()),
            Some(Ok(finished)) => finished.caller.publish(memory.into()),
            // There is no state to publish. The next operation returns the error.
            Some(Err(_)) => {}
        }
    }

    /// Whether the transfer has failed.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.0.lock().result, Some(Err(_)))
    }

    /// Waits until the transfer is finished.
    pub(crate) fn wait(&self) {
        let mut state = self.0.lock();
        while !state.is_finished {
            state = self.0.wait(state, POLL);
        }
    }

    /// The centre after the transfer.
    pub(crate) fn centre(&self) -> Result<Arc<Vec<f32>>, Error> {
        self.wait();
        match &self.0.lock().result {
            Some(Ok(finished)) => Ok(Arc::clone(&finished.caller.centre)),
            // The next operation returns the error.
            Some(Err(_)) | None => Err(Error::Behind),
        }
    }

    /// The result, once.
    pub(crate) fn take(&self) -> Result<Finished, Error> {
        self.wait();
        let taken = Err(Error::Connection { why: "the result of a round was taken twice".into() });
        self.0.lock().result.take().unwrap_or(taken)
    }
}

//! A round whose vectors are on their way while the workers go on.
//!
//! At a round everyone is pulled toward the centre there is, of the round before, and sends off its vector; the new centre is
//! taken up at the next meeting. Where a member stands can be said when its vectors have landed *and* it has said what it
//! remembers, whichever comes last: so newcomers need not wait until the next meeting.

use super::line::Shared;
use crate::{Error, Lost};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// How vectors travel between the members of a group. All must travel alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Travel {
    /// While workers go on with local steps, which are then pulled toward the centre of the round before.
    pub overlap: bool,
    /// As differences to the last centre in bf16: half the bytes, rounded.
    pub bf16: bool,
}

/// What a flight came to.
#[derive(Debug)]
pub(super) struct Landed {
    /// None if someone was lost on the way: the old one stays.
    pub(super) centre: Option<Arc<Vec<f32>>>,
    pub(super) members: Vec<u32>,
    pub(super) lost: Vec<Lost>,
    /// The memory that the vector took.
    pub(super) mine: Vec<f32>,
}

#[derive(Debug, Default)]
pub(super) struct Flight {
    state: Mutex<State>,
    landed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    ended: Option<Result<Landed, Error>>,
    is_over: bool,
    memory: Option<Vec<u8>>,
}

impl Flight {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It has landed. What is said then is said before anyone is told, so that it comes before the next meeting.
    pub(super) fn end(&self, ended: Result<Landed, Error>, shared: &Shared, before: &Arc<Vec<f32>>) {
        let mut state = self.lock();
        if let (Ok(landed), Some(memory)) = (&ended, state.memory.take()) {
            shared.stand(memory, Arc::clone(landed.centre.as_ref().unwrap_or(before)));
        }
        (state.ended, state.is_over) = (Some(ended), true);
        self.landed.notify_all();
    }

    /// The cycle is over, and this is remembered of it.
    pub(super) fn settle(&self, memory: &[u8], shared: &Shared, before: &Arc<Vec<f32>>) {
        let mut state = self.lock();
        match &state.ended {
            None => state.memory = Some(memory.into()),
            Some(Ok(landed)) => {
                shared.stand(memory.into(), Arc::clone(landed.centre.as_ref().unwrap_or(before)));
            }
            // It does not stand anywhere; the next meeting will tell.
            Some(Err(_)) => {}
        }
    }

    /// Waits until it has landed.
    pub(super) fn wait(&self) {
        let over = self.landed.wait_while(self.lock(), |state| !state.is_over);
        drop(over.unwrap_or_else(PoisonError::into_inner));
    }

    /// The centre it came to, if it came to one, once it has landed; nothing is taken up yet.
    pub(super) fn centre(&self) -> Result<Option<Arc<Vec<f32>>>, Error> {
        self.wait();
        match &self.lock().ended {
            Some(Ok(landed)) => Ok(landed.centre.clone()),
            // The next meeting will tell more.
            Some(Err(_)) | None => Err(Error::Behind),
        }
    }

    /// What it came to, once.
    pub(super) fn take(&self) -> Result<Landed, Error> {
        self.wait();
        let lost = Err(Error::Connection { why: "what a round came to was asked for twice".into() });
        self.lock().ended.take().unwrap_or(lost)
    }
}

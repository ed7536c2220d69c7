//! Numbers that lie with the first rank and that all ranks add to, one message each.

use super::Running;
use super::call::Window;
use crate::Error;
use std::sync::Arc;

/// Counters that all ranks share. Where the network cannot add by itself, the first rank does, whenever it is inside MPI: a
/// rank that computes for long should call [`Collective::alive`](crate::Collective::alive) now and then.
#[derive(Debug)]
pub struct Counters<const N: usize> {
    window: Window,
    /// MPI goes on as long as this is there.
    _running: Arc<Running>,
}

impl<const N: usize> Counters<N> {
    pub(super) fn new(window: Window, running: Arc<Running>) -> Self {
        Counters { window, _running: running }
    }

    /// Takes the next number of a counter: 0, 1, 2, …, each for one rank alone.
    pub fn take(&self, counter: usize) -> Result<u64, Error> {
        self.add(counter, 1)
    }

    /// Lets a counter begin at 0 again. One rank does it, while nobody takes from it.
    pub fn clear(&self, counter: usize) -> Result<(), Error> {
        let reached = self.add(counter, 0)?;
        self.add(counter, -(reached as i64)).map(|_| ())
    }

    fn add(&self, counter: usize, amount: i64) -> Result<u64, Error> {
        assert!(counter < N, "there are {N} counters");
        Ok(self.window.add(counter, amount)? as u64)
    }
}

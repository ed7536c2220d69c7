//! Counters in the memory of the first rank. All ranks add to them, with one message each.

use super::Running;
use super::call::Window;
use crate::Error;
use std::sync::Arc;

/// Counters that all ranks share. If the network cannot add, the first rank does so while it is inside MPI: a rank that computes
/// for long should call its [`Heartbeat`](crate::Heartbeat) from time to time.
#[derive(Debug)]
pub struct Counters<const N: usize> {
    window: Window,
    /// Keeps MPI running.
    _running: Arc<Running>,
}

impl<const N: usize> Counters<N> {
    pub(super) fn new(window: Window, running: Arc<Running>) -> Self {
        Counters { window, _running: running }
    }

    /// The next number of a counter: 0, 1, 2, … No two ranks get the same.
    pub fn take(&self, counter: usize) -> Result<u64, Error> {
        self.add(counter, 1)
    }

    /// Resets a counter to 0. One rank does so while no other uses it.
    pub fn clear(&self, counter: usize) -> Result<(), Error> {
        let reached = self.add(counter, 0)?;
        self.add(counter, -(reached as i64)).map(|_| ())
    }

    fn add(&self, counter: usize, amount: i64) -> Result<u64, Error> {
        assert!(counter < N, "there are {N} counters");
        Ok(self.window.add(counter, amount)? as u64)
    }
}

//! What a run needs of processes that stay the same: their number, and groups of them.

use crate::{Collective, Error};
use std::ops::Range;

/// One process of a fixed number, for a run with workers in all of them. All processes must make the same calls in the same order.
pub trait Transport {
    /// Which process this is, from 0.
    fn rank(&self) -> u32;

    /// How many processes there are.
    fn size(&self) -> u32;

    /// Connects these ranks. The others get nothing, but must call it, too. The centre starts as `centre`; it may be empty for a group
    /// that only gathers.
    fn group(&self, ranks: Range<u32>, centre: Vec<f32>) -> Result<Option<Box<dyn Collective>>, Error>;

    /// The first process makes a message for each process. Returns that of this one.
    fn scatter(&self, make: &mut dyn FnMut(u32) -> Result<Vec<u8>, Error>) -> Result<Vec<u8>, Error> {
        let mut all = self.group(0..self.size(), Vec::new())?.ok_or(Error::NotInGroup)?;
        let mut mine = Vec::new();
        // One gather for each process, in which the first one speaks: messages may be long.
        for rank in 0..self.size() {
            let message = if self.rank() == 0 { make(rank)? } else { Vec::new() };
            let first = all.gather(&message)?.messages.swap_remove(0).1;
            if rank == self.rank() {
                mine = first;
            }
        }
        Ok(mine)
    }

    /// Tickets for the steps of a free pace, which all processes take from.
    fn tickets(&self) -> Result<Box<dyn Tickets>, Error> {
        Err(Error::NoTickets)
    }
}

/// Two counters that all processes share.
pub trait Tickets: Send {
    /// Adds one to a counter, and returns what it was.
    fn take(&mut self, counter: usize) -> Result<u64, Error>;

    /// Sets a counter to zero. Only the first process calls it.
    fn clear(&mut self, counter: usize) -> Result<(), Error>;
}

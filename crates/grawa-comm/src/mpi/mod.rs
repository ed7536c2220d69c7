//! The ranks of an MPI job: a fixed number of processes.
//!
//! [`Job::start`] starts MPI. [`Job::group`] connects ranks, with the bits of [`grawa_core::mix()`]. [`Job::counters`] are numbers
//! that all ranks add to; they distribute the steps of a free pace. An MPI group cannot shrink: a rank that fails reports
//! why and calls [`Job::abort`], which ends all others.
//!
//! MPI is called from one thread at a time: a call waits for the call of another thread to return, even if that one waits for other
//! ranks. Members and counters may move to a thread of their own. MPI runs until the job and all of them are dropped. All
//! ranks of a group must make their collective calls in the same order.

mod call;
mod counters;
mod member;

pub use counters::Counters;
pub use member::Member;

use crate::{Collective, Error, Tickets, Transport};
use call::{Comm, Window, turn};
use mpi::Threading;
use mpi::environment::Universe;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;

/// One rank of an MPI job. When it and all its members and counters are dropped, MPI ends; that waits for all other ranks.
#[derive(Debug)]
pub struct Job(Arc<Running>);

/// A running MPI. Dropping it ends MPI.
struct Running {
    world: Comm,
    rank: u32,
    size: u32,
    windows: Mutex<Vec<Window>>,
    /// The thread that started MPI, which alone may end it.
    starter: ThreadId,
    universe: Option<Universe>,
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("rank", &self.rank).field("size", &self.size).finish_non_exhaustive()
    }
}

impl Job {
    /// Starts MPI. A process that was not started by `mpirun` is a job of one rank.
    pub fn start() -> Result<Self, Error> {
        let wrong = |why: &str| Error::Mpi { call: "start", why: why.into() };
        let Some((universe, threading)) = mpi::initialize_with_threading(Threading::Serialized) else {
            return Err(wrong("it was started before"));
        };
        if threading < Threading::Serialized {
            return Err(wrong("it does not allow calls from a thread of their own (MPI_THREAD_SERIALIZED)"));
        }
        let world = Comm::world()?;
        let (rank, size) = (world.rank()? as u32, world.size()? as u32);
        let (starter, universe) = (std::thread::current().id(), Some(universe));
        Ok(Job(Arc::new(Running { world, rank, size, windows: Mutex::default(), starter, universe })))
    }

    /// Which rank this is, from 0.
    pub fn rank(&self) -> u32 {
        self.0.rank
    }

    /// How many ranks there are.
    pub fn size(&self) -> u32 {
        self.0.size
    }

    /// The name of this machine.
    pub fn machine(&self) -> String {
        let _turn = turn();
        mpi::environment::processor_name().unwrap_or_else(|_| "a machine without a name".into())
    }

    /// How many ranks share this machine. All ranks must call it.
    pub fn on_this_machine(&self) -> Result<u32, Error> {
        Ok(self.0.world.on_this_machine()? as u32)
    }

    /// Connects these ranks. The others get nothing, but must call it, too. The centre starts as `centre`; it may be empty for a
    /// group that only gathers.
    pub fn group(&self, workers: Range<u32>, centre: Vec<f32>) -> Result<Option<Member>, Error> {
        let is_in = workers.contains(&self.0.rank);
        let comm = self.0.world.split(is_in)?;
        let rank = self.0.rank.saturating_sub(workers.start) as usize;
        let (members, centre, _running) = (workers.collect(), Arc::new(centre), Arc::clone(&self.0));
        Ok(comm.map(|comm| Member { comm, rank, members, centre, _running }))
    }

    /// Counters that all ranks add to, at zero. All ranks must call it.
    pub fn counters<const N: usize>(&self) -> Result<Counters<N>, Error> {
        let window = self.0.world.window(N)?;
        self.0.windows.lock().unwrap_or_else(PoisonError::into_inner).push(window);
        Ok(Counters::new(window, Arc::clone(&self.0)))
    }

    /// Ends all ranks of the job at once, with this exit code.
    pub fn abort(&self, code: u8) -> ! {
        self.0.world.abort(code.into())
    }
}

impl Transport for Job {
    fn rank(&self) -> u32 {
        Job::rank(self)
    }

    fn size(&self) -> u32 {
        Job::size(self)
    }

    fn group(&self, ranks: Range<u32>, centre: Vec<f32>) -> Result<Option<Box<dyn Collective>>, Error> {
        Ok(Job::group(self, ranks, centre)?.map(|member| Box::new(member) as Box<dyn Collective>))
    }

    fn scatter(&self, make: &mut dyn FnMut(u32) -> Result<Vec<u8>, Error>) -> Result<Vec<u8>, Error> {
        let mut all = Job::group(self, 0..self.size(), Vec::new())?.ok_or(Error::NotInGroup)?;
        all.scatter(make)
    }

    fn tickets(&self) -> Result<Box<dyn Tickets>, Error> {
        Ok(Box::new(self.counters::<2>()?))
    }
}

impl Tickets for Counters<2> {
    fn take(&mut self, counter: usize) -> Result<u64, Error> {
        Counters::take(self, counter)
    }

    fn clear(&mut self, counter: usize) -> Result<(), Error> {
        Counters::clear(self, counter)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The others would wait for this rank for ever.
            self.abort(1);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let universe = self.universe.take();
        if std::thread::current().id() != self.starter {
            // Only the thread that started MPI may end it. `mpirun` reports a process that ends without.
            std::mem::forget(universe);
            return;
        }
        self.windows.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..).for_each(Window::free);
        let _turn = turn();
        drop(universe);
    }
}

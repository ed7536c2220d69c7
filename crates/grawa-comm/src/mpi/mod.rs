//! The ranks of an MPI job: one worker a rank, as many from the first step to the last.
//!
//! [`Job::start`] starts MPI; [`Job::group`] connects ranks, with the bits of [`grawa_core::mix()`]; [`Job::counters`] are
//! numbers that all ranks add to, which share out the steps of a free pace. MPI knows no group that shrinks: a rank that
//! fails says why and calls [`Job::abort`], and all others end with it.
//!
//! MPI is called from one thread at a time. Members and counters may move to a thread of their own, if nobody else calls
//! MPI meanwhile. Calls that all ranks of a group must make, they must make in the same order.

mod call;
mod counters;
mod member;

pub use counters::Counters;
pub use member::Member;

use crate::Error;
use call::{Comm, Window};
use mpi::Threading;
use mpi::environment::Universe;
use std::fmt;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// An MPI job, as one of its ranks has it. Dropping it ends MPI, for which it waits for all other ranks.
pub struct Job {
    world: Comm,
    rank: u32,
    size: u32,
    windows: Mutex<Vec<Window>>,
    // Dropped last: it ends MPI.
    _universe: Universe,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("rank", &self.rank).field("size", &self.size).finish_non_exhaustive()
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
        Ok(Job { world, rank, size, windows: Mutex::default(), _universe: universe })
    }

    /// Which rank this is, from 0.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many ranks there are.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The name of this machine.
    pub fn machine(&self) -> String {
        mpi::environment::processor_name().unwrap_or_else(|_| "a machine without a name".into())
    }

    /// How many ranks share this machine. All ranks must call it.
    pub fn on_this_machine(&self) -> Result<u32, Error> {
        Ok(self.world.on_this_machine()? as u32)
    }

    /// Connects these ranks; the others get nothing, but must call it too. The centre starts as `centre`; it may be empty for
    /// a group that only talks.
    pub fn group(&self, workers: Range<u32>, centre: Vec<f32>) -> Result<Option<Member>, Error> {
        let is_in = workers.contains(&self.rank);
        let comm = self.world.split(is_in)?;
        let seat = self.rank.saturating_sub(workers.start) as usize;
        Ok(comm.map(|comm| Member::new(comm, seat, workers.collect(), centre)))
    }

    /// Counters that all ranks add to, at zero. All ranks must call it.
    pub fn counters<const N: usize>(&self) -> Result<Counters<N>, Error> {
        let window = self.world.window(N)?;
        self.windows.lock().unwrap_or_else(PoisonError::into_inner).push(window);
        Ok(Counters::new(window))
    }

    /// Ends all ranks of the job, at once and with this exit code.
    pub fn abort(&self, code: u8) -> ! {
        self.world.abort(code.into())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The others would wait for this rank for ever.
            self.abort(1);
        }
        self.windows.lock().unwrap_or_else(PoisonError::into_inner).drain(..).for_each(Window::free);
    }
}

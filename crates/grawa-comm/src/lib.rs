//! Collectives between workers: they exchange small reports, mix their vectors as a plan says, and learn who was lost.
//!
//! A [`Collective`] is one worker's end of a group. Every member calls the same operations in the same order; each call
//! ends for all of them with the same [`Outcome`], so that all take the same decisions from it. A member that left, broke
//! down or stalled is named in the outcome; the others go on without it. [`threads`] connects the workers of one process,
//! [`group`] those of any machines, who may come and go, and with the feature `mpi` the module of that name the ranks of an
//! MPI job; what every transport must promise is written down as tests in [`conformance`].
//!
//! ```
//! use grawa_comm::{Collective, threads};
//! use std::time::Duration;
//!
//! let members = threads::group(0..3, vec![0.0; 8], Duration::from_secs(60));
//! std::thread::scope(|scope| {
//!     for mut member in members {
//!         scope.spawn(move || {
//!             let worker = member.worker();
//!             let all = member.gather(&[worker as u8])?;
//!             assert_eq!(all.messages, [(0, vec![0]), (1, vec![1]), (2, vec![2])]);
//!             Ok::<(), grawa_comm::Error>(())
//!         });
//!     }
//! });
//! ```
#![deny(missing_docs)]

pub mod conformance;
mod error;
pub mod group;
#[cfg(feature = "mpi")]
pub mod mpi;
mod printable;
mod shard;
pub mod threads;

pub use error::Error;
pub use printable::printable;

use grawa_core::{Layout, Plan};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// One worker's end of a group of workers.
///
/// The group keeps the centre, since where it lies depends on the transport: once for all threads of a process, once for
/// every machine otherwise. Vectors are handed in as `Buffer`, the same as the replica's: plain slices for threads, memory
/// of a card elsewhere.
pub trait Collective {
    /// What holds a flat vector.
    type Buffer: ?Sized;

    /// Which worker this is the end of.
    fn worker(&self) -> u32;

    /// The workers that were in the group when it last met, in order.
    fn members(&self) -> &[u32];

    /// Hands a small message to all, and returns those of all.
    fn gather(&mut self, message: &[u8]) -> Result<Gathered, Error>;

    /// Hands a message to the first member, who gets those of all; the others get none. For what is too large to be given
    /// to everyone.
    fn hand_in(&mut self, message: Vec<u8>) -> Result<Gathered, Error> {
        let mut gathered = self.gather(&message)?;
        if self.members().first() != Some(&self.worker()) {
            gathered.messages.clear();
        }
        Ok(gathered)
    }

    /// Carries out a plan, which all members must have made from the same reports: the centre is made and every member
    /// pulled, with the bits of [`grawa_core::mix()`]. If a worker of the plan is lost by now nothing is changed and the error
    /// is [`Error::Shrunk`]: plan again.
    fn mix(&mut self, plan: &Plan, layout: &Layout, mine: &mut Self::Buffer) -> Result<Outcome, Error>;

    /// Copies the vector of `leader` to all.
    fn broadcast(&mut self, leader: u32, mine: &mut Self::Buffer) -> Result<Outcome, Error>;

    /// Waits until all are here.
    fn barrier(&mut self) -> Result<Outcome, Error>;

    /// The centre after the last [`Collective::mix`].
    fn centre(&self) -> &Self::Buffer;

    /// A number that is another after every operation that may have changed the centre.
    fn centre_version(&self) -> u64;

    /// A copy of it, wherever it lies.
    fn copy_centre(&self) -> Result<Vec<f32>, Error>;

    /// A sign of life: who gives one is not taken for stalled, however long its work takes.
    fn alive(&self) {}

    /// Where whoever coordinates counts the steps of all: whether enough were taken, and all are called to meet.
    fn is_called(&self) -> bool {
        false
    }

    /// The number of the next meeting, where they are numbered.
    fn meeting(&self) -> u64 {
        0
    }

    /// A cycle is over: this and the centre are what one who comes, or comes back, takes over. Groups that never grow need
    /// not know.
    fn settle(&mut self, memory: &[u8]) -> Result<(), Error> {
        let _ = memory;
        Ok(())
    }

    /// After [`Error::Behind`]: takes over the centre the others hold, and returns what they remember. Where nobody can come
    /// back there is nothing to take over.
    fn rejoin(&mut self) -> Result<Vec<u8>, Error> {
        Err(Error::Behind)
    }

    /// Gives up a worker that another group of this worker has lost, so that it is not waited for here as well.
    fn forget(&self, lost: &Lost) {
        let _ = lost;
    }
}

/// How an operation went. All members get the same, times excepted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Who took part, in order.
    pub members: Vec<u32>,
    /// Who was lost since the last operation, and why.
    pub lost: Vec<Lost>,
    /// Bytes this member handed over: what a transport has to carry at least.
    pub bytes: u64,
    /// How long this member waited for the others to come.
    pub wait: Duration,
    /// How long the operation took when all were there.
    pub work: Duration,
}

/// The messages of all members.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gathered {
    /// Every member's message, in the order of the workers.
    pub messages: Vec<(u32, Vec<u8>)>,
    /// How it went.
    pub outcome: Outcome,
}

/// A worker that is no longer in the group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// The worker.
    pub worker: u32,
    /// Why.
    pub why: Why,
}

/// Why a worker is lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Why {
    /// It ended its work.
    Left,
    /// It broke down.
    Panicked,
    /// It gave no sign of life for so long.
    Stalled {
        /// How long was waited.
        after: Duration,
    },
    /// Its connection ended and did not come back.
    Disconnected,
    /// Others could not exchange vectors with it.
    Unreachable,
    /// It did not come to the meeting in time; it may come to a later one.
    Late {
        /// How long was waited.
        after: Duration,
    },
    /// It holds other bits than the others.
    Differs,
    /// It called another operation than most others.
    OutOfStep,
    /// It sent more than a member may.
    Excess,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let worker = self.worker;
        match &self.why {
            Why::Left => write!(f, "worker {worker} left"),
            Why::Panicked => write!(f, "worker {worker} broke down"),
            Why::Stalled { after } => {
                write!(f, "worker {worker} gave no sign of life for {:.1} s", after.as_secs_f64())
            }
            Why::Disconnected => write!(f, "worker {worker} lost its connection"),
            Why::Unreachable => write!(f, "worker {worker} cannot be reached by the others"),
            Why::Late { after } => {
                write!(f, "worker {worker} did not come within {:.1} s", after.as_secs_f64())
            }
            Why::Differs => write!(f, "worker {worker} holds other bits than the others"),
            Why::OutOfStep => write!(f, "worker {worker} called another operation than most others"),
            Why::Excess => write!(f, "worker {worker} sent more than a member may"),
        }
    }
}

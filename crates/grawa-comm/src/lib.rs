#![doc = include_str!("../README.md")]
//!
//! ## Where things are
//!
//! A [`Collective`] is one member's end of a group. Every member calls the same operations in the same order. Each operation ends
//! with the same [`Outcome`] for all of them, so that all take the same decisions from it. A member that left, panicked
//! or stalled is named in the outcome, and the others continue without it. [`threads`] connects the workers of one process;
//! with the feature `group` (on by default), [`group`] connects workers on any machines, which may join and leave; with the
//! feature `mpi`, `mpi` connects the ranks of an MPI job. A [`Transport`] connects groups of processes that stay the same.
//! [`conformance`] has the checks that every transport must pass.
#![deny(missing_docs)]

mod call;
pub mod conformance;
mod error;
#[cfg(feature = "group")]
pub mod group;
#[cfg(feature = "mpi")]
pub mod mpi;
mod printable;
#[cfg(any(feature = "group", feature = "mpi"))]
mod shard;
pub mod threads;
mod transport;

pub use error::Error;
pub use printable::printable;
pub use transport::{Tickets, Transport};

use grawa_core::{Layout, Plan, pull_part};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// One member's end of a group: usually one process, with one or more workers.
///
/// Vectors are plain slices in host memory. The group keeps the centre.
pub trait Collective: Send {
    /// This member's number.
    fn id(&self) -> u32;

    /// The members of the last operation, in order.
    fn members(&self) -> &[u32];

    /// Sends a small message to all, and returns those of all.
    fn gather(&mut self, message: &[u8]) -> Result<Gathered, Error>;

    /// The same for messages that all must be able to use: `check` says what is wrong with one. An elastic group continues without a member
    /// whose messages the others cannot use. Elsewhere it is an error.
    fn gather_readable(&mut self, message: &[u8], check: Check<'_>) -> Result<Gathered, Error> {
        let gathered = self.gather(message)?;
        let members: Vec<u32> = gathered.messages.iter().map(|(member, _)| *member).collect();
        for (numbers, (_, bytes)) in numbers(&members).zip(&gathered.messages) {
            check(numbers, bytes).map_err(|why| Error::Message { why })?;
        }
        Ok(gathered)
    }

    /// Sends a message to the first member, which gets those of all. The others get none. For messages that are too large for all.
    fn hand_in(&mut self, message: Vec<u8>) -> Result<Gathered, Error> {
        let mut gathered = self.gather(&message)?;
        if self.members().first() != Some(&self.id()) {
            gathered.messages.clear();
        }
        Ok(gathered)
    }

    /// Makes the next centre of the vectors of all members, as a plan says that all members made from the same reports, with the
    /// bits of [`grawa_core::centre_part`] and [`grawa_core::finish_centre`]. The caller pulls its workers toward the centre. If a member of the plan is lost, nothing
    /// changes and the error is [`Error::Shrunk`]: plan again.
    fn mix(&mut self, plan: &Plan, layout: &Layout, mine: &[f32]) -> Result<Outcome, Error>;

    /// The same, and pulls this member's vector: a round of members with one worker each.
    fn mix_and_pull(&mut self, plan: &Plan, layout: &Layout, mine: &mut [f32]) -> Result<Outcome, Error> {
        let before = Arc::clone(self.centre());
        let outcome = self.mix(plan, layout, mine)?;
        if let Some(rank) = plan.index_of(self.id()) {
            pull_part(plan, rank, mine, &before, self.centre());
        }
        Ok(outcome)
    }

    /// Waits for all members.
    fn barrier(&mut self) -> Result<Outcome, Error> {
        Ok(self.gather(&[])?.outcome)
    }

    /// The centre after the last [`Collective::mix`]; the velocity of an outer optimizer follows it.
    fn centre(&self) -> &Arc<Vec<f32>>;

    /// A function that reports progress: a member that calls it after every step does not count as stalled.
    fn heartbeat(&self) -> Heartbeat {
        Arc::new(|| {})
    }

    /// Removes a member that another group of this member has lost, so that nobody waits for it here, too.
    fn forget(&self, lost: &Lost) {
        let _ = lost;
    }
}

/// Says what is wrong with a member's message, if something is, given the numbers that its workers may have, from its own on, and its bytes.
/// All members must judge alike, so it goes by what they all know, and not by their own time or progress.
pub type Check<'a> = &'a dyn Fn(Range<u32>, &[u8]) -> Result<(), String>;

/// The most workers of a member.
const MOST_WORKERS: u32 = 4096;

/// The numbers that the workers of each member may have: from its own to the next member's.
fn numbers(members: &[u32]) -> impl Iterator<Item = Range<u32>> {
    let ends = members.iter().skip(1).copied().chain([u32::MAX]);
    members.iter().zip(ends).map(|(first, end)| *first..end.min(first.saturating_add(MOST_WORKERS)))
}

/// The most bytes that [`Elastic::keep_reports`] takes.
pub const MOST_REPORTS: usize = 4 << 20;

/// Reports progress, from any thread.
pub type Heartbeat = Arc<dyn Fn() + Send + Sync>;

/// A group that members join and leave while it works.
pub trait Elastic: Collective {
    /// A function that tells whether the coordinator has counted enough steps of all, and the round is due.
    fn round_due(&self) -> Arc<dyn Fn() -> bool + Send + Sync>;

    /// The number of the next operation.
    fn next_operation(&self) -> u64;

    /// The newest centre, which may be newer than [`Collective::centre`] where rounds overlap with training.
    fn newest_centre(&self) -> Result<Arc<Vec<f32>>, Error>;

    /// How many workers of this member are left. At a free pace a round is due after as many steps as those that are left should
    /// take.
    fn set_workers(&mut self, workers: u32);

    /// A round is over: this memory and the centre are the state that a joiner gets.
    fn publish(&mut self, memory: &[u8]) -> Result<(), Error>;

    /// Reports that the coordinator may not have. Whoever takes the state that is published next gets them, too: if the members that sent them
    /// are lost, it sends them again. They need not be the same at all members. More than [`MOST_REPORTS`] bytes are not kept.
    fn keep_reports(&mut self, reports: Vec<u8>);

    /// The reports that go with the state that was published or taken last.
    fn kept_reports(&self) -> Vec<u8>;

    /// Gathers messages when the budget is spent. It begins when every connected member has called it, however late; one that was left
    /// behind takes the published state first, see [`Elastic::rejoin`].
    fn final_barrier(&mut self, message: &[u8], check: Check<'_>) -> Result<Gathered, Error>;

    /// Gathers messages for the last time. Afterwards the run is over for the coordinator: only those that took part say how it ended, and
    /// a member that comes later gets [`Error::Over`].
    fn finish(&mut self, message: &[u8], check: Check<'_>) -> Result<Gathered, Error>;

    /// After [`Error::Behind`]: gets the centre of the others, and returns their memory.
    fn rejoin(&mut self) -> Result<Vec<u8>, Error>;
}

/// How an operation went. All members get the same, except for times.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The members, in order.
    pub members: Vec<u32>,
    /// Members lost since the last operation, and why.
    pub lost: Vec<Lost>,
    /// Bytes of this member's message or vector.
    pub bytes: u64,
    /// How long this member waited for the others.
    pub wait: Duration,
    /// How long the operation took after that.
    pub work: Duration,
}

/// The messages of all members.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gathered {
    /// The messages, in the order of the workers.
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
    /// It left.
    Left,
    /// It panicked.
    Panicked,
    /// It sent no heartbeat, or made no progress.
    Stalled {
        /// For how long.
        after: Duration,
    },
    /// Its connection ended and did not come back.
    Disconnected,
    /// Others could not exchange data with it, or could not read its messages.
    Unreachable,
    /// It did not arrive in time. It may take part in a later round.
    Late {
        /// How long the others waited.
        after: Duration,
    },
    /// It holds other bits than the others.
    Differs,
    /// It called another operation than most others.
    OutOfStep,
    /// It sent more than a member may.
    Excess,
}

impl Lost {
    /// Whether it left by itself, and so knows of it.
    pub fn is_left(&self) -> bool {
        matches!(self.why, Why::Left | Why::Panicked)
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker {} ", self.worker)?;
        match &self.why {
            Why::Left => f.write_str("left"),
            Why::Panicked => f.write_str("panicked"),
            Why::Stalled { after } => write!(f, "was silent for {:.1} s", after.as_secs_f64()),
            Why::Disconnected => f.write_str("lost its connection"),
            Why::Unreachable => f.write_str("cannot exchange data with the others"),
            Why::Late { after } => write!(f, "did not arrive within {:.1} s", after.as_secs_f64()),
            Why::Differs => f.write_str("holds other bits than the others"),
            Why::OutOfStep => f.write_str("called another operation than most others"),
            Why::Excess => f.write_str("sent more than a member may"),
        }
    }
}

//! Errors of collectives.

use crate::Lost;
use std::time::Duration;
use thiserror::Error;

/// An error. The text says what was found, what was expected, and what to do.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the methods.
    #[error(transparent)]
    Core(#[from] grawa_core::Error),
    /// A worker of the plan was lost before the plan was carried out. Nothing changed.
    #[error("{}; nothing was mixed: plan again without it", lost.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Shrunk {
        /// The lost workers.
        lost: Vec<Lost>,
    },
    /// The others continue without this worker.
    #[error("the others continue without worker {worker}, which was silent for {:.1} s", after.as_secs_f64())]
    Expelled {
        /// This worker.
        worker: u32,
        /// For how long.
        after: Duration,
    },
    /// Members called different operations.
    #[error("the workers are out of step: {}", calls.iter().map(|(worker, call)| format!("worker {worker} calls {call}")).collect::<Vec<_>>().join(", "))]
    OutOfStep {
        /// What each called.
        calls: Vec<(u32, &'static str)>,
    },
    /// Members made different plans.
    #[error(
        "workers {first} and {other} made different plans; all must plan from the same reports and the same memory"
    )]
    PlansDiffer {
        /// One.
        first: u32,
        /// The other.
        other: u32,
    },
    /// A process that a group was made without.
    #[error("this process is not in the group")]
    NotInGroup,
    /// A transport without counters.
    #[error("this transport has no tickets for a free pace; set train.pace = 'even'")]
    NoTickets,
    /// A message that is too long.
    #[error("a message of {found} bytes, where {longest} are allowed: send less at a time")]
    LongMessage {
        /// Its bytes.
        found: usize,
        /// The bytes it may have.
        longest: usize,
    },
    /// A message that cannot be encoded or decoded.
    #[error("a message cannot be read: {why}; do all run the same version?")]
    Message {
        /// What is wrong with it.
        why: String,
    },
    /// Received bytes that are no frame.
    #[error("received bytes are not a frame: {why}; the connection ends")]
    Frame {
        /// What is wrong with it.
        why: String,
    },
    /// A key that cannot be used.
    #[error("the key {}: {why}", path.display())]
    Key {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A journal that cannot be used.
    #[error("the coordinator's journal {}: {why}", path.display())]
    Log {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A round that cannot overlap with training.
    #[error("this round cannot overlap with training: {why}")]
    NoOverlap {
        /// Why, and what to do.
        why: &'static str,
    },
    /// The others continued without this worker: it must fetch their state by `rejoin` before its next operation.
    #[error("the others continued without this worker")]
    Behind,
    /// The coordinator cannot be reached. A worker at the beginning of a round may continue to train and try again.
    #[error("the coordinator cannot be reached")]
    OutOfContact,
    /// The run ended without this worker.
    #[error(
        "the run is over: the others ended it while this worker was away, and it has none of their last model; take that from \
         where they saved it"
    )]
    Over,
    /// Not all workers that the run begins with have come.
    #[error(
        "{joined} of the {founders} workers that the run begins with have come within {:.0} s: start the others, or fewer in all",
        waited.as_secs_f64()
    )]
    TooFew {
        /// Workers that have joined.
        joined: u32,
        /// Workers that the run begins with.
        founders: u32,
        /// How long this one has waited.
        waited: std::time::Duration,
    },
    /// The coordinator refused this worker.
    #[error("the coordinator refused this worker: {why}")]
    Refused {
        /// Why.
        why: String,
    },
    /// A call of MPI that failed.
    #[error("MPI cannot {call}: {why}")]
    Mpi {
        /// The call.
        call: &'static str,
        /// Why.
        why: String,
    },
    /// An address of a coordinator without a host or a port.
    #[error("'{found}' is no address of a coordinator: expected HOST:PORT, such as 192.0.2.1:7117")]
    Address {
        /// What was given.
        found: String,
    },
    /// A peer with another key.
    #[error("the peer has another key, or none: {why}")]
    WrongKey {
        /// What failed.
        why: String,
    },
    /// A connection that failed.
    #[error("the connection failed: {why}")]
    Connection {
        /// Why.
        why: String,
    },
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Error::Connection { why: error.to_string() }
    }
}

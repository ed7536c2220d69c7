//! What can go wrong between workers.

use crate::Lost;
use std::time::Duration;
use thiserror::Error;

/// What went wrong; the text says what was found, what was expected, what to do.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum Error {
    /// Something the methods refuse.
    #[error(transparent)]
    Core(#[from] grawa_core::Error),
    /// A worker of the plan was lost before it was carried out. Nothing was changed.
    #[error("{}; nothing was mixed: plan again without", lost.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Shrunk {
        /// Who.
        lost: Vec<Lost>,
    },
    /// This worker came too late: the others went on without it.
    #[error("the others gave up on worker {worker} after {:.1} s without a sign of life", after.as_secs_f64())]
    Expelled {
        /// This worker.
        worker: u32,
        /// How long they had waited.
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
    /// A leader who is not in the group.
    #[error("worker {leader} cannot lead: the group has workers {members:?}")]
    NoSuchLeader {
        /// Who should lead.
        leader: u32,
        /// Who is there.
        members: Vec<u32>,
    },
    /// A word that is too long to be exchanged.
    #[error("a word of {found} bytes, where {longest} are allowed: say less at a time")]
    LongWord {
        /// How many bytes it has.
        found: usize,
        /// How many it may have.
        longest: usize,
    },
    /// A message that cannot be read or written.
    #[error("a message cannot be read: {why}; do all run the same version?")]
    Message {
        /// What is wrong with it.
        why: String,
    },
    /// Something on the wire that is no frame.
    #[error("what came over the wire is not a frame: {why}; the connection is given up")]
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
    /// A log that cannot be used.
    #[error("the coordinator's log {}: {why}", path.display())]
    Log {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The others went on without this worker: it must take over what they hold, by `rejoin`, before it meets them again.
    #[error("the others went on without this worker")]
    Behind,
    /// The coordinator cannot be reached. A worker at the beginning of a round may go on training and come again.
    #[error("the coordinator cannot be reached")]
    OutOfContact,
    /// The coordinator turned this worker away.
    #[error("the coordinator turned this worker away: {why}")]
    Refused {
        /// Why.
        why: String,
    },
    /// An MPI that cannot do what was asked of it.
    #[error("MPI cannot {call}: {why}")]
    Mpi {
        /// What was asked.
        call: &'static str,
        /// Why not.
        why: String,
    },
    /// Another side that cannot prove what this one expects.
    #[error("the other side has another key, or none: {why}")]
    Strange {
        /// What it could not.
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

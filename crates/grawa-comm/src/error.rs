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
}

//! What the coordinator decided, and why.

use crate::Lost;
use crate::group::messages::StateVersion;
use std::fmt;
use std::time::Duration;

/// A decision of the coordinator.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum CoordinatorEvent {
    /// A worker takes part for the first time, or again.
    Joined {
        /// The worker.
        worker: u32,
        /// Its first operation.
        op: u64,
    },
    /// A member is lost, or late.
    Lost(Lost),
    /// A worker fetches the committed state.
    Restores {
        /// The worker.
        worker: u32,
        /// The member that it fetches the state from.
        donor: u32,
        /// The state.
        version: StateVersion,
    },
    /// A member holds other bits than the others.
    Differs {
        /// The member.
        worker: u32,
        /// What it holds.
        found: StateVersion,
        /// The digest of what the others hold.
        expected: u64,
    },
    /// A peer was refused.
    Refused {
        /// Why.
        why: String,
    },
    /// A transfer failed and is attempted again.
    Retry {
        /// The member that reported the failure.
        worker: u32,
        /// The member that it could not exchange data with.
        peer: u32,
        /// The next attempt.
        attempt: u32,
        /// Why it failed.
        why: String,
    },
    /// A member's message cannot be read by others, or it says so of theirs: it is dropped.
    Unreadable {
        /// Who is dropped.
        worker: u32,
        /// Who cannot read what, in words.
        why: String,
    },
    /// No connected member holds the committed state.
    Orphaned {
        /// The committed state.
        version: StateVersion,
    },
    /// The run continues from another state.
    Recovered {
        /// The state that was committed.
        from: Option<StateVersion>,
        /// The state from which it continues.
        to: StateVersion,
    },
    /// At a free pace: a round began with more steps than it should have.
    ExtraSteps {
        /// The operation that began it.
        op: u64,
        /// By how many.
        steps: u64,
    },
    /// A round began without members that did not arrive in time.
    BeganWithout {
        /// The operation that began it.
        op: u64,
        /// Those members.
        without: Vec<u32>,
        /// How long the others waited.
        after: Duration,
    },
}

impl fmt::Display for CoordinatorEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Joined { worker, op } => write!(f, "worker {worker} takes part from operation {op} on"),
            Self::Lost(lost) => write!(f, "{lost}: the others go on without it"),
            Self::Restores { worker, donor, version } => {
                write!(f, "worker {worker} fetches the state at operation {} from worker {donor}", version.op)
            }
            Self::Differs { worker, found, expected } => write!(
                f,
                "worker {worker} holds other bits than the others ({:016x}, not {expected:016x}): it fetches theirs",
                found.digest
            ),
            Self::Refused { why } => write!(f, "refused: {why}"),
            Self::Retry { worker, peer, attempt, why } => {
                write!(
                    f,
                    "worker {worker} could not exchange data with worker {peer} ({why}): attempt {attempt}"
                )
            }
            Self::Unreadable { worker, why } => {
                write!(f, "{why}: the others go on without worker {worker}; do all run the same build?")
            }
            Self::Orphaned { version } if version.op == 0 => {
                f.write_str("a worker brings a state of this run: waiting for a newer one")
            }
            Self::Orphaned { version } => write!(
                f,
                "no worker holds the committed state of operation {}: waiting for one that does",
                version.op
            ),
            Self::Recovered { from: Some(from), to } => {
                write!(f, "the run continues from operation {}; it had reached {}", to.op, from.op)
            }
            Self::Recovered { from: None, to } => write!(f, "the run continues from operation {}", to.op),
            Self::ExtraSteps { op, steps } => {
                write!(f, "{steps} steps more than asked for were taken before operation {op}")
            }
            Self::BeganWithout { op, without, after } => {
                let after = after.as_secs_f64();
                write!(f, "operation {op} began without workers {without:?} after {after:.1} s")
            }
        }
    }
}

//! What the coordinator decided and why, in words for whoever watches.

use super::message::Stand;
use crate::Lost;
use std::fmt;
use std::time::Duration;

/// Something the coordinator decided.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Notice {
    /// A worker took part for the first time, or again.
    Joined {
        /// Who.
        worker: u32,
        /// At which meeting.
        op: u64,
    },
    /// A member is no longer there, or not in time.
    Lost(Lost),
    /// A worker takes over what another holds.
    Takes {
        /// Who.
        worker: u32,
        /// From whom.
        donor: u32,
        /// What.
        stand: Stand,
    },
    /// A member holds other bits than the others.
    Differs {
        /// Who.
        worker: u32,
        /// What it holds.
        found: Stand,
        /// What the others hold.
        expected: u64,
    },
    /// Someone was turned away.
    Refused {
        /// Why.
        why: String,
    },
    /// Moving vectors failed and is tried again.
    Again {
        /// Who said so.
        worker: u32,
        /// Of whom.
        peer: u32,
        /// Which attempt comes now.
        attempt: u32,
        /// What went wrong.
        why: String,
    },
    /// Nobody who is there holds what the run had come to.
    Orphaned {
        /// Where the run stood.
        stand: Stand,
    },
    /// The run goes on from what someone still holds.
    Succession {
        /// Where the run stood.
        from: Option<Stand>,
        /// Where it goes on.
        to: Stand,
    },
    /// A cycle ended with more steps than it should have.
    Overshot {
        /// The meeting.
        op: u64,
        /// By how many.
        steps: u64,
    },
    /// A meeting went on without some who should have come.
    WentOn {
        /// The meeting.
        op: u64,
        /// Without whom.
        without: Vec<u32>,
        /// How long was waited.
        after: Duration,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Joined { worker, op } => write!(f, "worker {worker} takes part from meeting {op} on"),
            Notice::Lost(lost) => write!(f, "{lost}: the others go on without it"),
            Notice::Takes { worker, donor, stand } => {
                write!(f, "worker {worker} takes over what worker {donor} holds at meeting {}", stand.op)
            }
            Notice::Differs { worker, found, expected } => write!(
                f,
                "worker {worker} holds other bits than the others ({:016x}, not {expected:016x}): it takes theirs over",
                found.digest
            ),
            Notice::Refused { why } => write!(f, "refused: {why}"),
            Notice::Again { worker, peer, attempt, why } => {
                write!(f, "worker {worker} could not exchange with worker {peer} ({why}): attempt {attempt}")
            }
            Notice::Orphaned { stand } => write!(
                f,
                "nobody here holds what the run had come to at meeting {}: waiting for one who does",
                stand.op
            ),
            Notice::Succession { from: Some(from), to } => {
                write!(f, "the run goes on from meeting {}; it had come to {}", to.op, from.op)
            }
            Notice::Succession { from: None, to } => write!(f, "the run goes on from meeting {}", to.op),
            Notice::Overshot { op, steps } => {
                write!(f, "{steps} steps more than asked for were taken before meeting {op}")
            }
            Notice::WentOn { op, without, after } => {
                write!(
                    f,
                    "meeting {op} went on without workers {without:?} after {:.1} s",
                    after.as_secs_f64()
                )
            }
        }
    }
}

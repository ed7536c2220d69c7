//! The operations that members call, and what is wrong if they call different ones, or bring vectors of other lengths.

// Public as a part of the messages of a group.
#![cfg_attr(not(feature = "group"), allow(unreachable_pub))]

use crate::Error;
use grawa_core::Layout;
use serde::{Deserialize, Serialize};

/// An operation that a member calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// Exchange messages.
    Gather,
    /// Carry out a plan.
    Mix {
        /// The digest of the plan.
        plan: u64,
        /// Which of the group's centres.
        centre: u8,
    },
    /// Exchange messages when the budget is spent: it begins when every connected member has arrived, however late.
    FinalBarrier,
    /// Exchange messages for the last time. When it is committed the run is over.
    Finish,
}

impl Call {
    /// Its name, for error messages.
    pub fn name(self) -> &'static str {
        match self {
            Call::Gather => "gather",
            Call::Mix { .. } => "mix",
            Call::FinalBarrier => "final barrier",
            Call::Finish => "finish",
        }
    }

    /// Whether it moves messages. A plan that a lost member was part of is not carried out; messages are gathered without it.
    #[cfg(feature = "group")]
    pub(crate) fn is_gather(self) -> bool {
        !matches!(self, Call::Mix { .. })
    }
}

/// The error of members that do not all call the same.
pub(crate) fn out_of_step(calls: &[(u32, Call)]) -> Error {
    let is_mix = |(_, call): &(u32, Call)| matches!(call, Call::Mix { .. });
    match calls.iter().find(|(_, call)| *call != calls[0].1) {
        Some((other, _)) if calls.iter().all(is_mix) => {
            Error::PlansDiffer { first: calls[0].0, other: *other }
        }
        _ => Error::OutOfStep { calls: calls.iter().map(|(worker, call)| (*worker, call.name())).collect() },
    }
}

/// Checks that the vectors of members, by their lengths, and the centre are as long as the layout. The velocity of an outer
/// optimizer may follow the centre.
pub(crate) fn check_lengths(
    vectors: impl IntoIterator<Item = (u32, usize)>,
    centre: usize,
    layout: &Layout,
) -> Result<(), Error> {
    let expected = layout.len();
    let vectors = vectors.into_iter().map(|(worker, len)| (format!("the vector of worker {worker}"), len));
    let centre = if centre == 2 * expected { expected } else { centre };
    let centre = ("the centre of the group".to_owned(), centre);
    match vectors.chain([centre]).find(|(_, found)| *found != expected) {
        None => Ok(()),
        Some((what, found)) => Err(grawa_core::Error::WrongLength { what, found, expected }.into()),
    }
}

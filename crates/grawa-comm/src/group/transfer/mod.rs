//! Transfers of data between members.

pub(crate) mod all_gather;
pub(crate) mod all_reduce;
pub(crate) mod bf16_delta;
pub(crate) mod header;
pub(crate) mod overlap;

use super::environment::Environment;
use super::messages::AttemptId;
use super::wire::connection::{KeepGoing, Reader, Writer};
use crate::Error;
use std::sync::OnceLock;

/// How vectors are transferred. All members must use the same options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferOptions {
    /// During the next local steps. Workers are then pulled toward the centre of the round before. A plan with pull 1 or an outer
    /// optimizer is refused, see [`grawa_core::Plan::overlap_objection`].
    pub overlap: bool,
    /// As differences to the committed centre in bf16: half the bytes, rounded.
    pub bf16: bool,
}

/// What a transfer works with.
pub(crate) struct Links<'a> {
    pub(crate) environment: &'a Environment,
    pub(crate) attempt: AttemptId,
    /// The index of this member.
    pub(crate) rank: usize,
    /// The connections to and from the members, by rank; none for this member.
    pub(crate) writers: &'a mut [Option<Writer>],
    pub(crate) readers: &'a mut [Option<Reader>],
    /// Memory for what arrives, by rank, which the next transfer uses again.
    pub(crate) scratch: &'a mut Vec<Vec<f32>>,
    pub(crate) keep_going: KeepGoing<'a>,
}

/// Why a transfer failed, and with which member if that is known.
#[derive(Debug)]
pub(crate) struct TransferError {
    pub(crate) rank: Option<usize>,
    pub(crate) why: Error,
}

impl TransferError {
    pub(crate) fn with(rank: usize) -> impl Fn(Error) -> Self {
        move |why| TransferError { rank: Some(rank), why }
    }

    fn stopped(why: &str) -> Self {
        TransferError { rank: None, why: Error::Connection { why: why.into() } }
    }
}

/// Sends on a thread of its own and receives on this one: members that all send first would wait for each other. If one side
/// fails, the other one stops, and the error is the first.
fn exchange<T>(
    (environment, keep_going): (&Environment, KeepGoing<'_>),
    send: impl FnOnce(KeepGoing<'_>) -> Result<(), TransferError> + Send,
    receive: impl FnOnce(KeepGoing<'_>) -> Result<T, TransferError>,
) -> Result<T, TransferError> {
    let cause = OnceLock::new();
    let keep_going = || cause.get().is_none() && keep_going();
    let fail = |error: TransferError| drop(cause.set(error));
    let send = || send(&keep_going).map_err(fail).ok();
    let receive = || receive(&keep_going).map_err(fail).ok();
    let (sent, received) = environment.run_both(send, receive);
    let failed = || cause.into_inner().unwrap_or_else(|| TransferError::stopped("a thread panicked"));
    sent.flatten().and(received).ok_or_else(failed)
}

/// The connection to or from another member.
fn connected<T>(link: &mut Option<T>) -> Result<&mut T, Error> {
    link.as_mut().ok_or_else(|| Error::Connection { why: "there is no connection".into() })
}

/// The members that this one sends to, in order. It begins with the next rank, so that no two send to the same one at once.
fn receivers(rank: usize, members: usize) -> impl Iterator<Item = usize> {
    (1..members).map(move |n| (rank + n) % members)
}

/// The members that this one receives from, in the order in which they send.
fn senders(rank: usize, members: usize) -> impl Iterator<Item = usize> {
    (1..members).map(move |n| (rank + members - n) % members)
}

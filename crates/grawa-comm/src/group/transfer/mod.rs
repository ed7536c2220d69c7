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

/// How vectors are transferred. All members must use the same options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferOptions {
    /// During the next local steps. Workers are then pulled toward the centre of the round before.
    pub overlap: bool,
    /// As differences to the last centre in bf16: half the bytes, rounded.
    pub bf16: bool,
}

/// What a transfer works with.
pub(crate) struct Links<'a> {
    pub(crate) environment: &'a Environment,
    pub(crate) attempt: AttemptId,
    /// The index of this member.
    pub(crate) rank: usize,
    /// The connections to and from the members, by rank; none for this member.
    pub(crate) writers: Vec<Option<Writer>>,
    pub(crate) readers: Vec<Option<Reader>>,
    pub(crate) keep_going: KeepGoing<'a>,
}

/// A transfer that is done.
#[derive(Debug)]
pub(crate) struct Transferred {
    /// Of the result.
    pub(crate) digest: u32,
    /// Bytes sent.
    pub(crate) bytes: u64,
    pub(crate) writers: Vec<Option<Writer>>,
    pub(crate) readers: Vec<Option<Reader>>,
}

impl Transferred {
    /// Nothing was to be transferred.
    pub(crate) fn nothing(Links { writers, readers, .. }: Links<'_>) -> Self {
        Transferred { digest: 0, bytes: 0, writers, readers }
    }
}

/// Why a transfer failed, and with which member if that is known.
#[derive(Debug)]
pub(crate) struct TransferError {
    pub(crate) rank: Option<usize>,
    pub(crate) why: Error,
}

impl TransferError {
    fn panicked() -> Self {
        TransferError { rank: None, why: Error::Connection { why: "a thread panicked".into() } }
    }
}

/// The members that this one sends to, in order. It begins with the next rank, so that no two send to the same one at once.
fn receivers(rank: usize, members: usize) -> impl Iterator<Item = usize> {
    (1..members).map(move |n| (rank + n) % members)
}

/// The members that this one receives from, in the order in which they send.
fn senders(rank: usize, members: usize) -> impl Iterator<Item = usize> {
    (1..members).map(move |n| (rank + members - n) % members)
}

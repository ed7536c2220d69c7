//! All-reduce: every member sends every other its shard of a stripe, reduces its own, and sends the result to all.
//!
//! A member sends 2·(M−1)/M of a vector, which is the minimum. Stripes are short: what was received is reduced while it is in
//! cache, and while one stripe is reduced the next is transferred. Summands are taken in the order of the members, and each
//! shard is reduced by one member for all: all get the same bits. A piece carries a checksum. A member without weight in a
//! shard does not send it. Pieces may be sent as differences in bf16 ([`bf16_delta`](super::bf16_delta)).

use super::bf16_delta::{decode, encode};
use super::header::{FRONT, HEADER, Header, Kind};
use super::{Links, TransferError, Transferred, receivers, senders};
use crate::Error;
use crate::group::digest::{Crc, bytes, bytes_mut};
use crate::group::environment::{POLL, Queue};
use crate::group::messages::AttemptId;
use crate::group::wire::connection::{KeepGoing, Reader, Writer};
use crate::shard::{shard, stripes};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Floats of a stripe for each member: after the checksum they are in cache for the receiver. With fewer, or with fewer stripes
/// under way, processes that share cores wait for each other.
pub(crate) const SHARD: usize = 1 << 17;
/// Floats that are reduced at a time.
const PART: usize = 1 << 14;
/// Stripes that are reduced before the first result is awaited.
pub(crate) const LAG: usize = 2;

/// What pieces are differences to, if they are sent in bf16.
pub(crate) type Base<'a> = Option<&'a [f32]>;

/// Whether the member of a rank contributes to a shard.
pub(crate) type Contributes<'a> = &'a (dyn Fn(usize, &Range<usize>) -> bool + Sync);

/// A reduction of the vectors of all members.
pub(crate) struct AllReduce<'a> {
    pub(crate) links: Links<'a>,
    pub(crate) contributes: Contributes<'a>,
    pub(crate) base: Base<'a>,
}

fn at(rank: usize) -> impl Fn(Error) -> TransferError {
    move |why| TransferError { rank: Some(rank), why }
}

/// A vector divided into the shards of its stripes, each of which is filled once.
type Shards<'a> = Vec<Vec<&'a mut [f32]>>;

fn divide(mut vector: &mut [f32], members: usize) -> Shards<'_> {
    let len = vector.len();
    let mut take = |len: usize| {
        let (taken, rest) = std::mem::take(&mut vector).split_at_mut(len);
        vector = rest;
        taken
    };
    stripes(len, SHARD * members)
        .map(|stripe| (0..members).map(|rank| take(shard(&stripe, rank, members).len())).collect())
        .collect()
}

impl AllReduce<'_> {
    /// `mine` is the summand of this member, `result` becomes the result. `reduce` makes a part of it from the summands.
    pub(crate) fn run(
        self,
        mine: &[f32],
        result: &mut [f32],
        reduce: &mut impl FnMut(&Range<usize>, &[&[f32]], &mut [f32]) -> Result<(), Error>,
    ) -> Result<Transferred, TransferError> {
        let AllReduce { links, contributes, base } = self;
        let Links { environment, attempt, rank, mut writers, mut readers, keep_going: asked } = links;
        let (members, has_failed) = (writers.len(), AtomicBool::new(false));
        let keep_going = || !has_failed.load(Ordering::Relaxed) && asked();
        let reduced = Queue::new(environment, usize::MAX);
        let work = Work {
            attempt,
            me: rank,
            members,
            contributes,
            base,
            keep_going: &keep_going,
            reduced: &reduced,
        };
        let shards = divide(result, members);
        let mut digests = vec![Vec::new(); members];
        let send = || {
            let sent = Sending { work, deltas: Vec::new() }.run(mine, &mut writers);
            has_failed.fetch_or(sent.is_err(), Ordering::Relaxed);
            sent
        };
        let receive = || {
            let receiving = Receiving { work, digests: &mut digests, deltas: Vec::new() };
            let received = receiving.run(mine, shards, reduce, &mut readers);
            has_failed.fetch_or(received.is_err(), Ordering::Relaxed);
            reduced.close();
            received
        };
        let (sent, received) = environment.run_both(send, receive);
        let bytes = match (received, sent.unwrap_or_else(|| Err(TransferError::panicked()))) {
            (Ok(()), Ok(bytes)) => bytes,
            // The thread that names a member has found the cause. The other one was stopped for it.
            (Err(error), Err(other)) => return Err(if error.rank.is_some() { error } else { other }),
            (Err(error), _) | (_, Err(error)) => return Err(error),
        };
        let mut digest = Crc::default();
        digests.iter().flatten().for_each(|piece: &u32| digest.add(&piece.to_le_bytes()));
        Ok(Transferred { digest: digest.get(), bytes, writers, readers })
    }
}

/// What both threads know.
#[derive(Clone, Copy)]
struct Work<'a, 's> {
    attempt: AttemptId,
    me: usize,
    members: usize,
    contributes: Contributes<'a>,
    base: Base<'a>,
    keep_going: KeepGoing<'a>,
    /// The results of this member's shards, for the thread that sends.
    reduced: &'a Queue<Reduced<'s>>,
}

/// The result of a shard: its values, these as they are sent if that differs, and the checksum.
struct Reduced<'s> {
    values: &'s [f32],
    deltas: Vec<u16>,
    checksum: u32,
}

struct Sending<'a, 's> {
    work: Work<'a, 's>,
    deltas: Vec<u16>,
}

impl Sending<'_, '_> {
    fn run(&mut self, mine: &[f32], writers: &mut [Option<Writer>]) -> Result<u64, TransferError> {
        let Work { me, members, contributes, base, .. } = self.work;
        let mut bytes = 0;
        let mut behind = VecDeque::new();
        for stripe in stripes(mine.len(), SHARD * members) {
            for rank in receivers(me, members) {
                let shard = shard(&stripe, rank, members);
                if contributes(me, &shard) {
                    let values = &mine[shard.clone()];
                    let mut deltas = std::mem::take(&mut self.deltas);
                    if let Some(base) = base {
                        encode(values, &base[shard.clone()], &mut deltas);
                    }
                    bytes +=
                        self.piece(Kind::Summand, shard.start, (values, &deltas), None, rank, writers)?;
                    self.deltas = deltas;
                }
            }
            behind.push_back(stripe);
            if behind.len() > LAG {
                bytes += behind.pop_front().map_or(Ok(0), |stripe| self.result(&stripe, writers))?;
            }
        }
        for stripe in behind {
            bytes += self.result(&stripe, writers)?;
        }
        Ok(bytes)
    }

    fn result(&self, stripe: &Range<usize>, writers: &mut [Option<Writer>]) -> Result<u64, TransferError> {
        let Work { me, members, reduced, .. } = self.work;
        let Reduced { values, deltas, checksum } = loop {
            if let Some(reduced) = reduced.pop(POLL) {
                break reduced;
            }
            if reduced.is_done() {
                // The other thread has failed, and knows why.
                return Err(TransferError {
                    rank: None,
                    why: Error::Connection { why: "it was given up".into() },
                });
            }
        };
        let start = shard(stripe, me, members).start;
        let mut bytes = 0;
        for rank in receivers(me, members) {
            bytes += self.piece(Kind::Result, start, (values, &deltas), Some(checksum), rank, writers)?;
        }
        Ok(bytes)
    }

    fn piece(
        &self,
        kind: Kind,
        start: usize,
        (values, deltas): (&[f32], &[u16]),
        checksum: Option<u32>,
        rank: usize,
        writers: &mut [Option<Writer>],
    ) -> Result<u64, TransferError> {
        let Some(writer) = writers[rank].as_mut().filter(|_| !values.is_empty()) else { return Ok(0) };
        let Work { attempt, base, keep_going, .. } = self.work;
        let header = Header { kind, attempt, start: start as u64, len: values.len() as u32 };
        let body = if base.is_some() { bytes(deltas) } else { bytes(values) };
        writer.write_bulk(&header.encode(), body, checksum, keep_going).map_err(at(rank))?;
        Ok((FRONT + body.len()) as u64)
    }
}

struct Receiving<'a, 's> {
    work: Work<'a, 's>,
    digests: &'a mut Vec<Vec<u32>>,
    deltas: Vec<u16>,
}

impl<'s> Receiving<'_, 's> {
    fn run(
        mut self,
        mine: &[f32],
        shards: Shards<'s>,
        reduce: &mut impl FnMut(&Range<usize>, &[&[f32]], &mut [f32]) -> Result<(), Error>,
        readers: &mut [Option<Reader>],
    ) -> Result<(), TransferError> {
        let Work { me, members, contributes, reduced, .. } = self.work;
        let mut scratch = vec![Vec::new(); members];
        let mut behind = VecDeque::new();
        for (stripe, mut shards) in stripes(mine.len(), SHARD * members).zip(shards) {
            let own = shard(&stripe, me, members);
            for rank in senders(me, members) {
                let contributes = !own.is_empty() && contributes(rank, &own);
                scratch[rank].resize(if contributes { own.len() } else { 0 }, 0.0);
                if contributes {
                    self.piece(Kind::Summand, &own, &mut scratch[rank], rank, readers)?;
                }
            }
            let summands: Vec<&[f32]> = (0..members)
                .map(|rank| if rank == me { &mine[own.clone()] } else { &scratch[rank][..] })
                .collect();
            let result = self.reduce(&own, &summands, std::mem::take(&mut shards[me]), reduce)?;
            self.digests[me].push(result.checksum);
            reduced.push(result);
            behind.push_back((stripe, shards));
            if behind.len() > LAG {
                behind
                    .pop_front()
                    .map_or(Ok(()), |(stripe, shards)| self.results(&stripe, shards, readers))?;
            }
        }
        behind.into_iter().try_for_each(|(stripe, shards)| self.results(&stripe, shards, readers))
    }

    /// Reduces this member's shard, in parts that stay in cache until their checksum is computed.
    fn reduce(
        &self,
        own: &Range<usize>,
        summands: &[&[f32]],
        result: &'s mut [f32],
        reduce: &mut impl FnMut(&Range<usize>, &[&[f32]], &mut [f32]) -> Result<(), Error>,
    ) -> Result<Reduced<'s>, TransferError> {
        let (mut checksum, mut deltas, mut some) = (Crc::default(), Vec::new(), Vec::new());
        for (n, to) in result.chunks_mut(PART).enumerate() {
            let part = n * PART..n * PART + to.len();
            let summands: Vec<&[f32]> =
                summands.iter().map(|summand| summand.get(part.clone()).unwrap_or(&[])).collect();
            let at = own.start + part.start..own.start + part.end;
            reduce(&at, &summands, to).map_err(|why| TransferError { rank: None, why })?;
            if let Some(base) = self.work.base {
                // This member keeps what the others will decode.
                encode(to, &base[at.clone()], &mut some);
                decode(&some, &base[at], to);
                checksum.add(bytes(&some));
                deltas.extend_from_slice(&some);
            } else {
                checksum.add(bytes(to));
            }
        }
        Ok(Reduced { values: result, deltas, checksum: checksum.get() })
    }

    fn results(
        &mut self,
        stripe: &Range<usize>,
        mut shards: Vec<&mut [f32]>,
        readers: &mut [Option<Reader>],
    ) -> Result<(), TransferError> {
        let Work { me, members, .. } = self.work;
        for rank in senders(me, members) {
            let theirs = shard(stripe, rank, members);
            let checksum = match theirs.is_empty() {
                true => 0,
                false => self.piece(Kind::Result, &theirs, shards[rank], rank, readers)?,
            };
            self.digests[rank].push(checksum);
        }
        Ok(())
    }

    fn piece(
        &mut self,
        kind: Kind,
        shard: &Range<usize>,
        to: &mut [f32],
        rank: usize,
        readers: &mut [Option<Reader>],
    ) -> Result<u32, TransferError> {
        let wrong = |why: String| TransferError { rank: Some(rank), why: Error::Frame { why } };
        let Some(reader) = readers[rank].as_mut() else { return Err(wrong("there is no connection".into())) };
        let Work { attempt, base, keep_going, .. } = self.work;
        let mut header = [0; HEADER];
        let checksum = reader.read_header(&mut header, keep_going).map_err(at(rank))?;
        let header = Header::decode(&header).map_err(at(rank))?;
        let expected = Header { kind, attempt, start: shard.start as u64, len: to.len() as u32 };
        if header != expected {
            return Err(wrong(format!("{header:?} came where {expected:?} was next")));
        }
        let Some(base) = base else {
            reader.read_body(bytes_mut(to), checksum, keep_going).map_err(at(rank))?;
            return Ok(checksum);
        };
        self.deltas.resize(to.len(), 0);
        reader.read_body(bytes_mut(&mut self.deltas), checksum, keep_going).map_err(at(rank))?;
        decode(&self.deltas, &base[shard.clone()], to);
        Ok(checksum)
    }
}

//! All-reduce: every member sends every other its shard of a stripe, reduces its own, and sends the result to all.
//!
//! A member sends 2·(M−1)/M of a vector, which is the minimum. Stripes are short: what was received is reduced while it is in
//! cache, and while one stripe is reduced the next is transferred. Summands are taken in the order of the members, and each
//! shard is reduced by one member for all: all get the same bits. A piece carries a checksum. A member without weight
//! sends no summands. Pieces may be sent as differences in bf16 ([`bf16_delta`](super::bf16_delta)). The digest is that of the
//! values which members keep, not of what was sent: members that decode it to other values notice.

use super::bf16_delta::{decode, encode};
use super::header::{HEADER, Header, Kind};
use super::{Links, TransferError, connected, exchange, receivers, senders};
use crate::Error;
use crate::group::digest::{Crc, bytes, bytes_mut};
use crate::group::environment::{Monitor, POLL};
use crate::group::messages::AttemptId;
#[cfg(test)]
use crate::group::simulate::Mutation;
use crate::group::wire::connection::{KeepGoing, Reader, Writer};
use crate::shard::{shard, stripes};
use std::collections::VecDeque;
use std::ops::Range;

/// Floats of a stripe for each member: after the checksum they are in cache for the receiver. With fewer, or with fewer stripes
/// under way, processes that share cores wait for each other.
pub(crate) const SHARD: usize = 1 << 17;
/// Floats that are reduced at a time.
const PART: usize = 1 << 14;
/// Stripes that are reduced before the first result is awaited.
pub(crate) const LAG: usize = 2;

/// What pieces are differences to, if they are sent in bf16.
pub(crate) type Base<'a> = Option<&'a [f32]>;

/// Makes a part of the result from the summands.
pub(crate) type Reduce<'a> = &'a mut dyn FnMut(&Range<usize>, &[&[f32]], &mut [f32]) -> Result<(), Error>;

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

/// Reduces the vectors of all members. `mine` is the summand of this member, `result` becomes the result. Returns its digest.
pub(crate) fn all_reduce(
    links: Links<'_>,
    contributes: &[bool],
    base: Base<'_>,
    mine: &[f32],
    result: &mut [f32],
    reduce: Reduce<'_>,
) -> Result<u32, TransferError> {
    let Links { environment, attempt, rank: me, writers, readers, scratch, keep_going } = links;
    let members = writers.len();
    let reduced = Monitor::new(environment, VecDeque::new());
    let work = Work {
        attempt,
        me,
        members,
        contributes,
        base,
        keep_going,
        reduced: &reduced,
        #[cfg(test)]
        digests_sent: environment.mutation() == Some(Mutation::OwnBase),
    };
    let shards = divide(result, members);
    let send = |keep_going: KeepGoing<'_>| Work { keep_going, ..work }.send(mine, writers);
    scratch.resize_with(members, Vec::new);
    let receive = |keep_going: KeepGoing<'_>| {
        Work { keep_going, ..work }.receive(mine, shards, scratch, reduce, readers)
    };
    let digests = exchange((environment, keep_going), send, receive)?;
    let mut digest = Crc::default();
    digests.iter().flatten().for_each(|piece| digest.add(&piece.to_le_bytes()));
    Ok(digest.get())
}

/// What both threads know.
#[derive(Clone, Copy)]
struct Work<'a, 's> {
    attempt: AttemptId,
    me: usize,
    members: usize,
    /// Whether the members contribute, by rank.
    contributes: &'a [bool],
    base: Base<'a>,
    keep_going: KeepGoing<'a>,
    /// The results of this member's shards, for the thread that sends.
    reduced: &'a Monitor<VecDeque<Reduced<'s>>>,
    /// A defect: the digest is that of what was sent.
    #[cfg(test)]
    digests_sent: bool,
}

/// The result of a shard: its values, these as they are sent if that differs, the checksum of what is sent, and the digest of the
/// values.
struct Reduced<'s> {
    values: &'s [f32],
    deltas: Vec<u16>,
    checksum: u32,
    digest: u32,
}

/// Decodes differences. Returns the digest of the values: of each part while it is in cache.
fn decode_result(deltas: &[u16], base: &[f32], values: &mut [f32]) -> u32 {
    let mut digest = Crc::default();
    for ((values, deltas), base) in values.chunks_mut(PART).zip(deltas.chunks(PART)).zip(base.chunks(PART)) {
        decode(deltas, base, values);
        digest.add(bytes(values));
    }
    digest.get()
}

impl<'s> Work<'_, 's> {
    /// Sends all pieces.
    fn send(&self, mine: &[f32], writers: &mut [Option<Writer>]) -> Result<(), TransferError> {
        let Work { me, members, .. } = *self;
        let (stripes, mut deltas) = (stripes(mine.len(), SHARD * members).collect::<Vec<_>>(), Vec::new());
        for n in 0..stripes.len() + LAG {
            if let Some(stripe) = stripes.get(n) {
                for rank in receivers(me, members).filter(|_| self.contributes[me]) {
                    let part = shard(stripe, rank, members);
                    let values = &mine[part.clone()];
                    if let Some(base) = self.base {
                        encode(values, &base[part.clone()], &mut deltas);
                    }
                    self.send_piece((Kind::Summand, part.start, None), values, &deltas, rank, writers)?;
                }
            }
            if let Some(stripe) = n.checked_sub(LAG).and_then(|n| stripes.get(n)) {
                let Reduced { values, deltas, checksum, .. } = self.next_result()?;
                let piece = (Kind::Result, shard(stripe, me, members).start, Some(checksum));
                for rank in receivers(me, members) {
                    self.send_piece(piece, values, &deltas, rank, writers)?;
                }
            }
        }
        Ok(())
    }

    /// The next result of this member's shards, when there is one.
    fn next_result(&self) -> Result<Reduced<'s>, TransferError> {
        let mut waiting = self.reduced.lock();
        loop {
            if let Some(next) = waiting.pop_front() {
                return Ok(next);
            }
            if !(self.keep_going)() {
                return Err(TransferError::stopped("it was given up"));
            }
            waiting = self.reduced.wait(waiting, POLL);
        }
    }

    fn send_piece(
        &self,
        (kind, start, checksum): (Kind, usize, Option<u32>),
        values: &[f32],
        deltas: &[u16],
        rank: usize,
        writers: &mut [Option<Writer>],
    ) -> Result<(), TransferError> {
        if values.is_empty() {
            return Ok(());
        }
        let header = Header { kind, attempt: self.attempt, start: start as u64, len: values.len() as u32 };
        let body = if self.base.is_some() { bytes(deltas) } else { bytes(values) };
        connected(&mut writers[rank])
            .and_then(|writer| writer.write_bulk(&header.encode(), body, checksum, self.keep_going))
            .map_err(TransferError::with(rank))
    }

    /// Receives all pieces, and reduces this member's shards. Returns the digests of the results, by rank.
    fn receive(
        &self,
        mine: &[f32],
        mut shards: Shards<'s>,
        scratch: &mut [Vec<f32>],
        reduce: Reduce<'_>,
        readers: &mut [Option<Reader>],
    ) -> Result<Vec<Vec<u32>>, TransferError> {
        let Work { me, members, .. } = *self;
        let (mut digests, mut deltas) = (vec![Vec::new(); members], Vec::new());
        let stripes = stripes(mine.len(), SHARD * members).collect::<Vec<_>>();
        let mut receive = |kind: Kind, start: usize, to: &mut [f32], rank: usize| {
            let received = self.receive_piece(kind, start, to, &mut deltas, &mut readers[rank]);
            received.map_err(TransferError::with(rank))
        };
        for n in 0..stripes.len() + LAG {
            if let Some(stripe) = stripes.get(n) {
                let own = shard(stripe, me, members);
                for rank in senders(me, members) {
                    let len = if self.contributes[rank] { own.len() } else { 0 };
                    scratch[rank].resize(len, 0.0);
                    receive(Kind::Summand, own.start, &mut scratch[rank], rank)?;
                }
                let summands: Vec<&[f32]> = (0..members)
                    .map(|rank| if rank == me { &mine[own.clone()] } else { &scratch[rank][..] })
                    .collect();
                let result = self.reduce(&own, &summands, std::mem::take(&mut shards[n][me]), reduce)?;
                digests[me].push(result.digest);
                self.reduced.lock().push_back(result);
                self.reduced.notify();
            }
            if let Some((n, stripe)) = n.checked_sub(LAG).and_then(|n| Some((n, stripes.get(n)?))) {
                for rank in senders(me, members) {
                    let start = shard(stripe, rank, members).start;
                    digests[rank].push(receive(Kind::Result, start, shards[n][rank], rank)?);
                }
            }
        }
        Ok(digests)
    }

    /// Reduces this member's shard, in parts that stay in cache until checksum and digest are computed.
    fn reduce(
        &self,
        own: &Range<usize>,
        summands: &[&[f32]],
        result: &'s mut [f32],
        reduce: Reduce<'_>,
    ) -> Result<Reduced<'s>, TransferError> {
        let (mut checksum, mut digest) = (Crc::default(), Crc::default());
        let (mut deltas, mut some) = (Vec::new(), Vec::new());
        for (n, to) in result.chunks_mut(PART).enumerate() {
            let part = n * PART..n * PART + to.len();
            let summands: Vec<&[f32]> =
                summands.iter().map(|summand| summand.get(part.clone()).unwrap_or(&[])).collect();
            let at = own.start + part.start..own.start + part.end;
            reduce(&at, &summands, to).map_err(|why| TransferError { rank: None, why })?;
            if let Some(base) = self.base {
                // This member keeps what the others will decode.
                encode(to, &base[at.clone()], &mut some);
                decode(&some, &base[at], to);
                checksum.add(bytes(&some));
                deltas.extend_from_slice(&some);
            }
            digest.add(bytes(to));
        }
        // What is sent are the values themselves, unless it is differences.
        let digest = digest.get();
        let checksum = if self.base.is_some() { checksum.get() } else { digest };
        #[cfg(test)]
        let digest = if self.digests_sent { checksum } else { digest };
        Ok(Reduced { values: result, deltas, checksum, digest })
    }

    /// Receives a piece, unless it is empty. Returns the digest of a result.
    fn receive_piece(
        &self,
        kind: Kind,
        start: usize,
        to: &mut [f32],
        deltas: &mut Vec<u16>,
        reader: &mut Option<Reader>,
    ) -> Result<u32, Error> {
        if to.is_empty() {
            return Ok(0);
        }
        let reader = connected(reader)?;
        let expected = Header { kind, attempt: self.attempt, start: start as u64, len: to.len() as u32 };
        let mut header = [0; HEADER];
        let checksum = reader.read_header(&mut header, self.keep_going)?;
        Header::decode(&header)?.check(expected)?;
        let Some(base) = self.base else {
            reader.read_body(bytes_mut(to), checksum, self.keep_going)?;
            return Ok(checksum);
        };
        deltas.resize(to.len(), 0);
        reader.read_body(bytes_mut(deltas), checksum, self.keep_going)?;
        let base = &base[start..start + to.len()];
        if kind == Kind::Summand {
            decode(deltas, base, to);
            return Ok(checksum);
        }
        #[cfg(test)]
        if self.digests_sent {
            decode(deltas, base, to);
            return Ok(checksum);
        }
        Ok(decode_result(deltas, base, to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::digest::crc;

    /// The same differences are other values to a member with another base, if it differs anywhere by the smallest amount.
    #[test]
    fn the_digest_is_that_of_the_decoded_values() {
        let values: Vec<f32> = (0..2 * PART + 5).map(|n| (n as f32 * 0.37).sin()).collect();
        let base: Vec<f32> = values.iter().map(|x| x + 0.01 * x.cos()).collect();
        let (mut deltas, mut found) = (Vec::new(), vec![0.0; values.len()]);
        encode(&values, &base, &mut deltas);
        let digest = decode_result(&deltas, &base, &mut found);
        assert_eq!(digest, crc(bytes(&found)));
        for at in [0, PART - 1, PART, values.len() - 1] {
            let mut other = base.clone();
            other[at] = f32::from_bits(other[at].to_bits() + 1);
            assert_ne!(decode_result(&deltas, &other, &mut found), digest, "{at}");
        }
    }
}

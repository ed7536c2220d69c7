//! Moving vectors between members: everyone sends everyone its share of a stripe, sums up its own, and sends the sum to all.
//!
//! A member sends 2·(M−1)/M of a vector a round, which is the least there is. Stripes are short, so that what was received is
//! summed while it is in cache, and while one stripe is summed the next is on its way. Summands are taken in the order of
//! the members whatever the timing, and a sum is made by one member for all: all get the same bits. A piece carries a
//! checksum, and who weighs nothing in a share does not send it. Pieces may travel at half their length ([`super::half`]).

use super::digest::{Crc, bytes, bytes_mut};
use super::half::{halve, restore};
use super::link::{GoOn, In, Out};
use crate::Error;
use crate::cut::{share, stripes};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

/// Floats of a stripe for each member: their checksum leaves them in cache for the receiver. Measured: with fewer, or with fewer
/// stripes on their way, processes that share cores wait for each other's turn.
pub(super) const SHARE: usize = 1 << 17;
/// Floats that are summed at a time.
const PART: usize = 1 << 14;
/// Stripes that are summed before the first sum is asked for.
pub(super) const LAG: usize = 2;

/// Which move: the epoch, the meeting, the attempt.
pub type Tag = (u64, u64, u32);

/// What pieces are differences to, if they travel as halves.
pub(super) type Base<'a> = Option<&'a [f32]>;

/// Whether the member at a seat has something to add to a share.
pub(super) type Adds<'a> = &'a (dyn Fn(usize, &Range<usize>) -> bool + Sync);

/// The bytes before a piece.
pub const HEAD: usize = 36;

/// The bytes before a piece, with the checksums of both.
pub(super) const FRONT: usize = HEAD + 8;

/// What comes before a piece on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Whether it is part of the sum; else of a summand.
    pub is_sum: bool,
    /// Of which move.
    pub tag: Tag,
    /// Where it begins.
    pub start: u64,
    /// How many floats it has.
    pub floats: u32,
}

impl Head {
    /// The bytes.
    pub fn encode(&self) -> [u8; HEAD] {
        let (epoch, op, attempt) = self.tag;
        let mut bytes = [0; HEAD];
        bytes[..4].copy_from_slice(if self.is_sum { b"gSUM" } else { b"gADD" });
        bytes[4..8].copy_from_slice(&attempt.to_le_bytes());
        bytes[8..16].copy_from_slice(&epoch.to_le_bytes());
        bytes[16..24].copy_from_slice(&op.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.start.to_le_bytes());
        bytes[32..].copy_from_slice(&self.floats.to_le_bytes());
        bytes
    }

    /// From the bytes.
    pub fn decode(bytes: &[u8; HEAD]) -> Result<Self, Error> {
        let short = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(short(at)) | u64::from(short(at + 4)) << 32;
        let is_sum = match &bytes[..4] {
            b"gSUM" => true,
            b"gADD" => false,
            other => {
                return Err(Error::Frame { why: format!("{other:02x?} is not the beginning of a piece") });
            }
        };
        let tag = (long(8), long(16), short(4));
        Ok(Head { is_sum, tag, start: long(24), floats: short(32) })
    }
}

/// What is moved between whom.
pub(super) struct Move<'a> {
    pub(super) tag: Tag,
    pub(super) seat: usize,
    /// The ends of the connections by seat; none at one's own.
    pub(super) outs: Vec<Option<Out>>,
    pub(super) ins: Vec<Option<In>>,
    pub(super) adds: Adds<'a>,
    pub(super) base: Base<'a>,
    pub(super) go_on: GoOn<'a>,
}

/// How it ended well.
#[derive(Debug)]
pub(super) struct Moved {
    pub(super) digest: u32,
    pub(super) bytes: u64,
    pub(super) outs: Vec<Option<Out>>,
    pub(super) ins: Vec<Option<In>>,
}

/// Whom it failed with, if it is known, and why.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) seat: Option<usize>,
    pub(super) why: Error,
}

fn at(seat: usize) -> impl Fn(Error) -> Failed {
    move |why| Failed { seat: Some(seat), why }
}

/// A vector cut into the shares of its stripes, each of which is filled once.
type Cut<'a> = Vec<Vec<&'a mut [f32]>>;

fn cut(mut vector: &mut [f32], members: usize) -> Cut<'_> {
    let len = vector.len();
    let mut take = |len: usize| {
        let (taken, rest) = std::mem::take(&mut vector).split_at_mut(len);
        vector = rest;
        taken
    };
    stripes(len, SHARE * members)
        .map(|stripe| (0..members).map(|seat| take(share(&stripe, seat, members).len())).collect())
        .collect()
}

impl Move<'_> {
    /// Moves: `mine` is this member's summand, `sums` becomes what all come to. `sum` makes a share of it from the summands.
    pub(super) fn run(
        mut self,
        mine: &[f32],
        sums: &mut [f32],
        mut sum: impl FnMut(&Range<usize>, &[&[f32]], &mut [f32]) -> Result<(), Error>,
    ) -> Result<Moved, Failed> {
        let (members, failed) = (self.outs.len(), AtomicBool::new(false));
        let asked = self.go_on;
        let go_on = || !failed.load(Ordering::Relaxed) && asked();
        let (hand_over, handed) = channel();
        let (mut outs, mut ins) = (std::mem::take(&mut self.outs), std::mem::take(&mut self.ins));
        let plan = Plan { tag: self.tag, me: self.seat, members, adds: self.adds, base: self.base };
        let sums = cut(sums, members);
        let mut digests = vec![Vec::new(); members];
        let (sent, received) = std::thread::scope(|scope| {
            let (failed, outs, go_on) = (&failed, &mut outs, &go_on);
            let sender = scope.spawn(move || {
                let sent = Sending { plan, go_on, handed, halves: Vec::new() }.run(mine, outs);
                if sent.is_err() {
                    failed.store(true, Ordering::Relaxed);
                }
                sent
            });
            let receiving = Receiving { plan, go_on, hand_over, digests: &mut digests, halves: Vec::new() };
            let received = receiving.run(mine, sums, &mut sum, &mut ins);
            if received.is_err() {
                failed.store(true, Ordering::Relaxed);
            }
            let broke_down =
                Failed { seat: None, why: Error::Connection { why: "a thread broke down".into() } };
            let sent = sender.join().unwrap_or(Err(broke_down));
            (sent, received.map(|()| ins))
        });
        // Who was waited for in vain is to blame, not the thread that was told to stop for it.
        let (ins, bytes) = match (received, sent) {
            (Ok(ins), Ok(bytes)) => (ins, bytes),
            (Err(failed), Err(other)) => return Err(if failed.seat.is_some() { failed } else { other }),
            (Err(failed), _) | (_, Err(failed)) => return Err(failed),
        };
        let mut digest = Crc::default();
        digests.iter().flatten().for_each(|piece| digest.add(&piece.to_le_bytes()));
        Ok(Moved { digest: digest.get(), bytes, outs, ins })
    }
}

#[derive(Clone, Copy)]
struct Plan<'a> {
    tag: Tag,
    me: usize,
    members: usize,
    adds: Adds<'a>,
    base: Base<'a>,
}

/// One's own sum, where it lies, as it travels if that is something else, and its checksum.
struct Handed<'s> {
    values: &'s [f32],
    halves: Vec<u16>,
    checksum: u32,
}

struct Sending<'a, 's> {
    plan: Plan<'a>,
    go_on: GoOn<'a>,
    handed: Receiver<Handed<'s>>,
    halves: Vec<u16>,
}

impl Sending<'_, '_> {
    fn run(&mut self, mine: &[f32], outs: &mut [Option<Out>]) -> Result<u64, Failed> {
        let Plan { me, members, adds, base, .. } = self.plan;
        let mut bytes = 0;
        let mut behind = VecDeque::new();
        for stripe in stripes(mine.len(), SHARE * members) {
            for (seat, share) in self.others(&stripe) {
                if adds(me, &share) {
                    let values = &mine[share.clone()];
                    let mut halves = std::mem::take(&mut self.halves);
                    if let Some(base) = base {
                        halve(values, &base[share.clone()], &mut halves);
                    }
                    bytes += self.piece(false, &share, values, &halves, None, seat, outs)?;
                    self.halves = halves;
                }
            }
            behind.push_back(stripe);
            if behind.len() > LAG {
                bytes += behind.pop_front().map_or(Ok(0), |stripe| self.sum(&stripe, outs))?;
            }
        }
        for stripe in behind {
            bytes += self.sum(&stripe, outs)?;
        }
        Ok(bytes)
    }

    /// The others, each with its share, beginning with the next seat: so no two send to the same one at the same time.
    fn others(&self, stripe: &Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
        let (me, members, stripe) = (self.plan.me, self.plan.members, stripe.clone());
        (1..members).map(move |n| (me + n) % members).map(move |seat| (seat, share(&stripe, seat, members)))
    }

    fn sum(&self, stripe: &Range<usize>, outs: &mut [Option<Out>]) -> Result<u64, Failed> {
        // If nothing is handed over any more, the other thread says why.
        let given_up = |_| Failed { seat: None, why: Error::Connection { why: "it was given up".into() } };
        let Handed { values, halves, checksum } = self.handed.recv().map_err(given_up)?;
        let own = share(stripe, self.plan.me, self.plan.members);
        let mut bytes = 0;
        for (seat, _) in self.others(stripe) {
            bytes += self.piece(true, &own, values, &halves, Some(checksum), seat, outs)?;
        }
        Ok(bytes)
    }

    #[allow(clippy::too_many_arguments)]
    fn piece(
        &self,
        is_sum: bool,
        share: &Range<usize>,
        values: &[f32],
        halves: &[u16],
        checksum: Option<u32>,
        seat: usize,
        outs: &mut [Option<Out>],
    ) -> Result<u64, Failed> {
        let Some(out) = outs[seat].as_mut().filter(|_| !values.is_empty()) else { return Ok(0) };
        let (start, floats) = (share.start as u64, values.len() as u32);
        let head = Head { is_sum, tag: self.plan.tag, start, floats };
        let body = if self.plan.base.is_some() { bytes(halves) } else { bytes(values) };
        out.write_bulk(&head.encode(), body, checksum, self.go_on).map_err(at(seat))?;
        Ok((FRONT + body.len()) as u64)
    }
}

struct Receiving<'a, 's> {
    plan: Plan<'a>,
    go_on: GoOn<'a>,
    hand_over: Sender<Handed<'s>>,
    digests: &'a mut Vec<Vec<u32>>,
    halves: Vec<u16>,
}

impl<'s> Receiving<'_, 's> {
    fn run(
        mut self,
        mine: &[f32],
        sums: Cut<'s>,
        sum: &mut impl FnMut(&Range<usize>, &[&[f32]], &mut [f32]) -> Result<(), Error>,
        ins: &mut [Option<In>],
    ) -> Result<(), Failed> {
        let Plan { me, members, adds, .. } = self.plan;
        let mut scratch = vec![Vec::new(); members];
        let mut behind = VecDeque::new();
        for (stripe, mut shares) in stripes(mine.len(), SHARE * members).zip(sums) {
            let own = share(&stripe, me, members);
            for seat in self.others() {
                let adds = !own.is_empty() && adds(seat, &own);
                scratch[seat].resize(if adds { own.len() } else { 0 }, 0.0);
                if adds {
                    self.piece(false, &own, &mut scratch[seat], seat, ins)?;
                }
            }
            let summands: Vec<&[f32]> = (0..members)
                .map(|seat| if seat == me { &mine[own.clone()] } else { &scratch[seat][..] })
                .collect();
            let handed = self.add_up(&own, &summands, std::mem::take(&mut shares[me]), sum)?;
            self.digests[me].push(handed.checksum);
            // The other thread may have ended, and says why.
            let _ = self.hand_over.send(handed);
            behind.push_back((stripe, shares));
            if behind.len() > LAG {
                behind.pop_front().map_or(Ok(()), |(stripe, shares)| self.sums(&stripe, shares, ins))?;
            }
        }
        behind.into_iter().try_for_each(|(stripe, shares)| self.sums(&stripe, shares, ins))
    }

    /// The sum of one's own share, in parts that stay in cache between sum and checksum.
    fn add_up(
        &self,
        own: &Range<usize>,
        summands: &[&[f32]],
        result: &'s mut [f32],
        sum: &mut impl FnMut(&Range<usize>, &[&[f32]], &mut [f32]) -> Result<(), Error>,
    ) -> Result<Handed<'s>, Failed> {
        let (mut checksum, mut halves, mut some) = (Crc::default(), Vec::new(), Vec::new());
        for (n, to) in result.chunks_mut(PART).enumerate() {
            let part = n * PART..n * PART + to.len();
            let summands: Vec<&[f32]> =
                summands.iter().map(|summand| summand.get(part.clone()).unwrap_or(&[])).collect();
            let at = own.start + part.start..own.start + part.end;
            sum(&at, &summands, to).map_err(|why| Failed { seat: None, why })?;
            if let Some(base) = self.plan.base {
                // Its owner holds what the others will be able to make of it.
                halve(to, &base[at.clone()], &mut some);
                restore(&some, &base[at], to);
                checksum.add(bytes(&some));
                halves.extend_from_slice(&some);
            } else {
                checksum.add(bytes(to));
            }
        }
        Ok(Handed { values: result, halves, checksum: checksum.get() })
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (me, members) = (self.plan.me, self.plan.members);
        (1..members).map(move |n| (me + members - n) % members)
    }

    fn sums(
        &mut self,
        stripe: &Range<usize>,
        mut shares: Vec<&mut [f32]>,
        ins: &mut [Option<In>],
    ) -> Result<(), Failed> {
        for seat in self.others() {
            let theirs = share(stripe, seat, self.plan.members);
            let checksum = match theirs.is_empty() {
                true => 0,
                false => self.piece(true, &theirs, shares[seat], seat, ins)?,
            };
            self.digests[seat].push(checksum);
        }
        Ok(())
    }

    fn piece(
        &mut self,
        is_sum: bool,
        share: &Range<usize>,
        to: &mut [f32],
        seat: usize,
        ins: &mut [Option<In>],
    ) -> Result<u32, Failed> {
        let wrong = |why: String| Failed { seat: Some(seat), why: Error::Frame { why } };
        let Some(from) = ins[seat].as_mut() else { return Err(wrong("there is no connection".into())) };
        let go_on = self.go_on;
        let mut head = [0; HEAD];
        let checksum = from.read_head(&mut head, go_on).map_err(at(seat))?;
        let head = Head::decode(&head).map_err(at(seat))?;
        let (start, floats) = (share.start as u64, to.len() as u32);
        let expected = Head { is_sum, tag: self.plan.tag, start, floats };
        if head != expected {
            return Err(wrong(format!("{head:?} came where {expected:?} was next")));
        }
        let Some(base) = self.plan.base else {
            from.read_body(bytes_mut(to), checksum, go_on).map_err(at(seat))?;
            return Ok(checksum);
        };
        self.halves.resize(to.len(), 0);
        from.read_body(bytes_mut(&mut self.halves), checksum, go_on).map_err(at(seat))?;
        restore(&self.halves, &base[share.clone()], to);
        Ok(checksum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn heads_go_both_ways(is_sum: bool, tag: (u64, u64, u32), start: u64, floats: u32) {
            let head = Head { is_sum, tag, start, floats };
            prop_assert_eq!(Head::decode(&head.encode()).unwrap(), head);
        }
    }

    #[test]
    fn any_other_beginning_is_refused() {
        assert!(Head::decode(&[7; HEAD]).unwrap_err().to_string().contains("not the beginning of a piece"));
    }
}

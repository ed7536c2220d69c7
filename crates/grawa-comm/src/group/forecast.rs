//! What a transfer costs on links of a given rate, in bytes and seconds.
//!
//! The bytes are exactly those that [`all_reduce`](super::transfer::all_reduce) sends. The seconds follow from the order of its
//! pieces: a member sends one piece after the other and receives one after the other, both at once, and sends a result when
//! all summands have arrived. Reducing, checksums and encryption are not included.

use super::transfer::all_reduce::{LAG, SHARD};
use super::transfer::header::FRONT;
use crate::shard::{shard, stripes};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// The link of every member: full duplex, to a switch that is never the bottleneck.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Link {
    /// Bytes per second, each way.
    pub(super) rate: f64,
    /// Seconds from the first byte sent to the first byte received.
    pub(super) latency: f64,
}

/// The cost of a transfer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cost {
    /// Bytes that every member sends, by rank.
    pub(super) bytes: Vec<u64>,
    /// Seconds until the last member has everything.
    pub(super) seconds: f64,
}

/// The cost of an all-reduce of this many floats. `contributes` says which members have weight.
pub(super) fn all_reduce(contributes: &[bool], floats: usize, link: Link) -> Cost {
    let members = contributes.len();
    let mut queues: Vec<Queue> = (0..members).map(|rank| Queue::new(rank, contributes, floats)).collect();
    let bytes = queues.iter().map(|queue| queue.pieces.iter().map(|piece| piece.bytes).sum()).collect();
    // When the next piece of a member is ready, the earliest first. Times are not negative, so their bits have the same order.
    let mut ready: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    (0..members).for_each(|rank| ready.push(Reverse((0, rank))));
    let mut seconds = 0.0f64;
    while let Some(Reverse((bits, rank))) = ready.pop() {
        let at = f64::from_bits(bits);
        let Some(piece) = queues[rank].pieces.front().copied() else { continue };
        let ready_at = if piece.is_result { queues[rank].reduced_at(piece.stripe) } else { Some(0.0) };
        // It is tried again when the last summand has arrived.
        let Some(ready_at) = ready_at else { continue };
        let start = at.max(queues[rank].sends_at).max(ready_at);
        if start > at {
            ready.push(Reverse((start.to_bits(), rank)));
            continue;
        }
        queues[rank].pieces.pop_front();
        let takes = piece.bytes as f64 / link.rate;
        queues[rank].sends_at = start + takes;
        ready.push(Reverse(((start + takes).to_bits(), rank)));
        let to = &mut queues[piece.to];
        to.has_at = to.has_at.max(start + link.latency) + takes;
        seconds = seconds.max(to.has_at);
        if !piece.is_result {
            let (missing, last) = &mut to.summands[piece.stripe];
            (*missing, *last) = (*missing - 1, last.max(to.has_at));
            if *missing == 0 {
                ready.push(Reverse((last.to_bits(), piece.to)));
            }
        }
    }
    Cost { bytes, seconds }
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    to: usize,
    bytes: u64,
    stripe: usize,
    /// Whether it is a piece of the result. Otherwise it is one of a summand.
    is_result: bool,
}

/// What a member has still to send, and what it waits for.
#[derive(Debug)]
struct Queue {
    pieces: VecDeque<Piece>,
    sends_at: f64,
    has_at: f64,
    /// For every stripe: how many summands are missing, and when the last one arrived.
    summands: Vec<(usize, f64)>,
}

impl Queue {
    fn new(rank: usize, contributes: &[bool], floats: usize) -> Self {
        let members = contributes.len();
        let others = || (1..members).map(move |n| (rank + n) % members);
        let stripes = || stripes(floats, SHARD * members).enumerate();
        let mut pieces = VecDeque::new();
        let mut put = |to: usize, floats: usize, stripe: usize, is_result: bool| {
            if floats > 0 {
                pieces.push_back(Piece { to, bytes: (FRONT + 4 * floats) as u64, stripe, is_result });
            }
        };
        let mut behind = VecDeque::new();
        for (n, stripe) in stripes() {
            others()
                .filter(|_| contributes[rank])
                .for_each(|to| put(to, shard(&stripe, to, members).len(), n, false));
            behind.push_back((n, shard(&stripe, rank, members).len()));
            if behind.len() > LAG
                && let Some((n, own)) = behind.pop_front()
            {
                others().for_each(|to| put(to, own, n, true));
            }
        }
        for (n, own) in behind {
            others().for_each(|to| put(to, own, n, true));
        }
        let summands = stripes().map(|(_, stripe)| {
            let is_empty = shard(&stripe, rank, members).is_empty();
            let missing = others().filter(|&other| contributes[other] && !is_empty).count();
            (missing, 0.0)
        });
        let summands = summands.collect();
        Queue { pieces, sends_at: 0.0, has_at: 0.0, summands }
    }

    /// When a stripe was reduced, if it is. Stripes are reduced one after the other.
    fn reduced_at(&self, stripe: usize) -> Option<f64> {
        let before = &self.summands[..=stripe];
        before
            .iter()
            .all(|(missing, _)| *missing == 0)
            .then(|| before.iter().fold(0.0, |at, (_, last)| last.max(at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_vector_takes_the_time_of_its_bytes() {
        let gigabit = Link { rate: 125e6, latency: 0.0 };
        let cost = all_reduce(&[true; 4], 25_000_000, gigabit);
        // Each sends 3/4 of 100 MB twice: 1.2 seconds.
        assert!(cost.bytes.iter().all(|&bytes| (150_000_000..150_020_000).contains(&bytes)));
        assert!((1.2..1.3).contains(&cost.seconds), "{}", cost.seconds);
    }

    proptest! {
        /// It is as fast as the links allow: all send all the time, except for the latency, twice, and the first and last
        /// pieces. Shards differ by a cache line at most.
        #[test]
        fn nobody_waits_long(members in 2usize..24, lines in 64usize..8000, latency in 0.0f64..0.01) {
            let (link, floats) = (Link { rate: 1e8, latency }, 16 * lines * members);
            let cost = all_reduce(&vec![true; members], floats, link);
            let most = *cost.bytes.iter().max().unwrap() as f64;
            let piece = (FRONT + 4 * SHARD.min(floats / members)) as f64;
            prop_assert!(cost.seconds >= most / link.rate);
            prop_assert!(cost.seconds <= (1.05 * most + 3.0 * piece) / link.rate + 3.0 * latency,
                "{} s for {most} bytes in pieces of {piece}", cost.seconds);
        }

        #[test]
        fn members_send_the_bytes_of_the_protocol(members in 2usize..24, floats in 1000usize..3_000_000) {
            let cost = all_reduce(&vec![true; members], floats, Link { rate: 1e8, latency: 0.0 });
            let all: u64 = cost.bytes.iter().sum();
            let stripes = floats.div_ceil(SHARD * members);
            let heads = 2 * members * (members - 1) * stripes * FRONT;
            let vectors = 2 * (members - 1) * 4 * floats;
            prop_assert!(all <= (vectors + heads) as u64 && all >= vectors as u64);
        }
    }

    /// Members without weight send half.
    #[test]
    fn members_without_weight_send_half() {
        let link = Link { rate: 1e8, latency: 0.0 };
        let adds: Vec<bool> = (0..8).map(|rank| rank == 3).collect();
        let (one, all) = (all_reduce(&adds, 1 << 20, link), all_reduce(&[true; 8], 1 << 20, link));
        assert_eq!(one.bytes[3], all.bytes[3]);
        assert!(one.bytes.iter().enumerate().all(|(rank, bytes)| rank == 3 || 2 * bytes == all.bytes[rank]));
    }
}

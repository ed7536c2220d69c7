//! What moving vectors costs on links of a given rate: bytes and seconds, before anyone has moved anything.
//!
//! Bytes are those the exchange sends, to the last one. Seconds come from the order in which it sends and awaits its pieces: a
//! member sends one piece after the other and receives one after the other, both at once, and a sum leaves when all that
//! is in it has come. The wire is all there is: adding up, checksums and encryption take time of their own.

use super::exchange::{FRONT, LAG, SHARE};
use super::words;
use crate::cut::{share, stripes};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// The link of every member: one, both ways at once, to a switch that is never the bottleneck.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bytes a second, each way.
    pub rate: f64,
    /// Seconds from the first byte sent to the first byte received.
    pub latency: f64,
}

/// What a move costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    /// Bytes every member sends, by seat.
    pub bytes: Vec<u64>,
    /// Seconds until the last member has everything.
    pub seconds: f64,
}

/// Moving a vector of so many floats between members, of whom those that weigh something are told by `adds`.
///
/// ```
/// use grawa_comm::group::forecast::{Link, exchange};
/// let gigabit = Link { rate: 125e6, latency: 0.0 };
/// let cost = exchange(&[true; 4], 25_000_000, gigabit);
/// // Each sends 3/4 of 100 MB twice: 1.2 seconds.
/// assert!(cost.bytes.iter().all(|&bytes| (150_000_000..150_020_000).contains(&bytes)));
/// assert!((1.2..1.3).contains(&cost.seconds), "{}", cost.seconds);
/// ```
pub fn exchange(adds: &[bool], floats: usize, link: Link) -> Cost {
    let members = adds.len();
    let mut desks: Vec<Desk> = (0..members).map(|seat| Desk::new(seat, adds, floats)).collect();
    let bytes = desks.iter().map(|desk| desk.program.iter().map(|piece| piece.bytes).sum()).collect();
    // Whose next piece is ready when, the earliest first. Times are not negative, so that their bits are in their order.
    let mut ready: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    (0..members).for_each(|seat| ready.push(Reverse((0, seat))));
    let mut seconds = 0.0f64;
    while let Some(Reverse((bits, seat))) = ready.pop() {
        let at = f64::from_bits(bits);
        let Some(piece) = desks[seat].program.front().copied() else { continue };
        let handed = if piece.is_sum { desks[seat].summed(piece.stripe) } else { Some(0.0) };
        // It is looked at again when the last summand has come.
        let Some(handed) = handed else { continue };
        let start = at.max(desks[seat].sends_at).max(handed);
        if start > at {
            ready.push(Reverse((start.to_bits(), seat)));
            continue;
        }
        desks[seat].program.pop_front();
        let takes = piece.bytes as f64 / link.rate;
        desks[seat].sends_at = start + takes;
        ready.push(Reverse(((start + takes).to_bits(), seat)));
        let to = &mut desks[piece.to];
        to.has_at = to.has_at.max(start + link.latency) + takes;
        seconds = seconds.max(to.has_at);
        if !piece.is_sum {
            let (missing, last) = &mut to.summands[piece.stripe];
            (*missing, *last) = (*missing - 1, last.max(to.has_at));
            if *missing == 0 {
                ready.push(Reverse((last.to_bits(), piece.to)));
            }
        }
    }
    Cost { bytes, seconds }
}

/// Exchanging words of so many bytes: everyone sends its own to one after the other, and no two to the same one at once.
pub fn words(members: usize, bytes: usize, link: Link) -> Cost {
    let parts = bytes.div_ceil(words::PART).max(1);
    let sent = (members.saturating_sub(1) * (bytes + parts * (words::HEAD + 8))) as u64;
    Cost { bytes: vec![sent; members], seconds: sent as f64 / link.rate + link.latency }
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    to: usize,
    bytes: u64,
    stripe: usize,
    /// Whether it is part of the sum; else of a summand.
    is_sum: bool,
}

/// A member: what it has still to send, and what it waits for.
#[derive(Debug)]
struct Desk {
    program: VecDeque<Piece>,
    sends_at: f64,
    has_at: f64,
    /// Of every stripe: how many summands of its own share are missing, and when the last one came.
    summands: Vec<(usize, f64)>,
}

impl Desk {
    fn new(seat: usize, adds: &[bool], floats: usize) -> Self {
        let members = adds.len();
        let others = || (1..members).map(move |n| (seat + n) % members);
        let stripes = || stripes(floats, SHARE * members).enumerate();
        let mut program = VecDeque::new();
        let mut put = |to: usize, floats: usize, stripe: usize, is_sum: bool| {
            if floats > 0 {
                program.push_back(Piece { to, bytes: (FRONT + 4 * floats) as u64, stripe, is_sum });
            }
        };
        let mut behind = VecDeque::new();
        for (n, stripe) in stripes() {
            others()
                .filter(|_| adds[seat])
                .for_each(|to| put(to, share(&stripe, to, members).len(), n, false));
            behind.push_back((n, share(&stripe, seat, members).len()));
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
            let is_empty = share(&stripe, seat, members).is_empty();
            let adding = others().filter(|&other| adds[other] && !is_empty).count();
            (adding, 0.0)
        });
        let summands = summands.collect();
        Desk { program, sends_at: 0.0, has_at: 0.0, summands }
    }

    /// When the sum of a stripe was there, if it is: they are made one after the other.
    fn summed(&self, stripe: usize) -> Option<f64> {
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

    proptest! {
        /// As quick as links allow: all send all the time, but for the way there, twice, and the first and last pieces, which
        /// nobody can begin before others are through. Shares differ by a cache line, which is little of these.
        #[test]
        fn nobody_waits_long(members in 2usize..24, lines in 64usize..8000, latency in 0.0f64..0.01) {
            let (link, floats) = (Link { rate: 1e8, latency }, 16 * lines * members);
            let cost = exchange(&vec![true; members], floats, link);
            let most = *cost.bytes.iter().max().unwrap() as f64;
            let piece = (FRONT + 4 * SHARE.min(floats / members)) as f64;
            prop_assert!(cost.seconds >= most / link.rate);
            prop_assert!(cost.seconds <= (1.05 * most + 3.0 * piece) / link.rate + 3.0 * latency,
                "{} s for {most} bytes in pieces of {piece}", cost.seconds);
        }

        #[test]
        fn each_sends_what_the_protocol_says(members in 2usize..24, floats in 1000usize..3_000_000) {
            let cost = exchange(&vec![true; members], floats, Link { rate: 1e8, latency: 0.0 });
            let all: u64 = cost.bytes.iter().sum();
            let stripes = floats.div_ceil(SHARE * members);
            let heads = 2 * members * (members - 1) * stripes * FRONT;
            let vectors = 2 * (members - 1) * 4 * floats;
            prop_assert!(all <= (vectors + heads) as u64 && all >= vectors as u64);
        }
    }

    /// Where one leads, the others send half.
    #[test]
    fn who_weighs_nothing_sends_half() {
        let link = Link { rate: 1e8, latency: 0.0 };
        let adds: Vec<bool> = (0..8).map(|seat| seat == 3).collect();
        let (one, all) = (exchange(&adds, 1 << 20, link), exchange(&[true; 8], 1 << 20, link));
        assert_eq!(one.bytes[3], all.bytes[3]);
        assert!(one.bytes.iter().enumerate().all(|(seat, bytes)| seat == 3 || 2 * bytes == all.bytes[seat]));
    }
}

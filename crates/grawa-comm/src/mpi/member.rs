//! One rank's end of a group.

use super::Running;
use super::call::Comm;
use crate::call::check_lengths;
use crate::shard::{shard, stripes};
use crate::{Collective, Error, Gathered, Heartbeat, Outcome};
use grawa_core::{Layout, Plan, centre_part, finish_centre};
use std::sync::Arc;
use std::time::Instant;

/// Floats of a stripe for each member: what is received stays small, and is reduced soon after.
const SHARE: usize = 1 << 18;
/// The most bytes of one call.
const PIECE: usize = 1 << 26;

/// What a member calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Gather,
    HandIn,
    Scatter,
    Mix,
}

/// Their names, in this order.
const NAMES: [&str; 4] = ["gather", "hand in", "scatter", "mix"];

/// What every member sends first: its call, the digest of its plan, and a length.
type Brought = [u64; 3];

/// One rank's end of a group. No member leaves: a rank that dies ends the job.
#[derive(Debug)]
pub struct Member {
    pub(super) comm: Comm,
    pub(super) rank: usize,
    pub(super) members: Vec<u32>,
    pub(super) centre: Arc<Vec<f32>>,
    /// Keeps MPI running.
    pub(super) _running: Arc<Running>,
}

impl Member {
    /// The first member makes a message for each member, one at a time, and sends it. For messages that are too large to hold at
    /// once.
    pub fn scatter(&mut self, make: &mut dyn FnMut(u32) -> Result<Vec<u8>, Error>) -> Result<Vec<u8>, Error> {
        self.meet(Call::Scatter, 0, 0)?;
        if self.rank > 0 {
            return self.receive(0);
        }
        for rank in 1..self.members.len() {
            self.send(rank, &make(self.members[rank])?)?;
        }
        make(self.members[0])
    }

    /// Checks that all members have called the same operation, with the same plan.
    fn meet(&mut self, call: Call, plan: u64, length: usize) -> Result<(Vec<Brought>, Outcome), Error> {
        let start = Instant::now();
        let brought = self.comm.all_words([call as u64, plan, length as u64])?;
        let differs = |at: usize| brought.iter().position(|other| other[at] != brought[0][at]);
        if differs(0).is_some() {
            let name = |code: u64| NAMES.get(code as usize).copied().unwrap_or("something else");
            let calls = self.members.iter().zip(&brought).map(|(&worker, other)| (worker, name(other[0])));
            return Err(Error::OutOfStep { calls: calls.collect() });
        }
        if let Some(other) = differs(1) {
            return Err(Error::PlansDiffer { first: self.members[0], other: self.members[other] });
        }
        let outcome = Outcome { members: self.members.clone(), wait: start.elapsed(), ..Outcome::default() };
        Ok((brought, outcome))
    }

    fn send(&self, rank: usize, bytes: &[u8]) -> Result<(), Error> {
        self.comm.send(rank, &(bytes.len() as u64).to_le_bytes())?;
        bytes.chunks(PIECE).try_for_each(|piece| self.comm.send(rank, piece))
    }

    fn receive(&self, rank: usize) -> Result<Vec<u8>, Error> {
        let mut length = [0; 8];
        self.comm.receive(rank, &mut length)?;
        let mut bytes = vec![0; u64::from_le_bytes(length) as usize];
        bytes.chunks_mut(PIECE).try_for_each(|piece| self.comm.receive(rank, piece))?;
        Ok(bytes)
    }

    /// Every member sends every other its shard of each stripe, reduces its own in the order of the members, and sends the result
    /// to all: 2·(M−1)/M of a vector. A member without weight does not send its shards.
    fn mix_all(&mut self, plan: &Plan, layout: &Layout, mine: &[f32]) -> Result<(), Error> {
        let count = self.members.len();
        let has_weight: Vec<bool> =
            (0..count).map(|rank| plan.weights.rows().any(|row| row[rank] > 0.0)).collect();
        // Whoever still reads the old centre keeps it.
        let mut made = self.centre[..layout.len()].to_vec();
        let centre = &mut made[..];
        let mut theirs = Vec::new();
        for stripe in stripes(layout.len(), SHARE * count) {
            let shards: Vec<usize> = (0..count).map(|rank| shard(&stripe, rank, count).len()).collect();
            let own = shard(&stripe, self.rank, count);
            let sent = if has_weight[self.rank] { shards.clone() } else { vec![0; count] };
            let received: Vec<usize> =
                has_weight.iter().map(|&has_weight| if has_weight { own.len() } else { 0 }).collect();
            theirs.resize(received.iter().sum(), 0.0);
            self.comm.exchange(&mine[stripe.clone()], &mut theirs, (&sent, &received))?;
            let mut pieces: Vec<&[f32]> = Vec::with_capacity(count);
            let mut rest = theirs.as_slice();
            for length in received {
                let (piece, others) = rest.split_at(length);
                pieces.push(piece);
                rest = others;
            }
            let mut sum = centre[own.clone()].to_vec();
            centre_part(plan, layout, own.start, &pieces, &mut sum)?;
            self.comm.all_parts(&sum, &mut centre[stripe], &shards)?;
        }
        self.centre = Arc::new(finish_centre(plan, &self.centre, made));
        Ok(())
    }
}

impl Collective for Member {
    fn id(&self) -> u32 {
        self.members[self.rank]
    }

    fn members(&self) -> &[u32] {
        &self.members
    }

    fn gather(&mut self, message: &[u8]) -> Result<Gathered, Error> {
        let (brought, mut outcome) = self.meet(Call::Gather, 0, message.len())?;
        let start = Instant::now();
        let lengths: Vec<usize> = brought.iter().map(|other| other[2] as usize).collect();
        let mut messages: Vec<(u32, Vec<u8>)> =
            self.members.iter().map(|&worker| (worker, Vec::new())).collect();
        let (piece, longest) = (PIECE / self.members.len(), lengths.iter().max().copied().unwrap_or(0));
        for from in (0..longest).step_by(piece) {
            let part = |length: usize| from.min(length)..(from + piece).min(length);
            let counts: Vec<usize> = lengths.iter().map(|&length| part(length).len()).collect();
            let mut all = vec![0; counts.iter().sum()];
            self.comm.all_parts(&message[part(message.len())], &mut all, &counts)?;
            let mut rest = all.as_slice();
            for ((_, message), count) in messages.iter_mut().zip(counts) {
                let (piece, others) = rest.split_at(count);
                message.extend_from_slice(piece);
                rest = others;
            }
        }
        (outcome.bytes, outcome.work) = (message.len() as u64, start.elapsed());
        Ok(Gathered { messages, outcome })
    }

    fn hand_in(&mut self, message: Vec<u8>) -> Result<Gathered, Error> {
        let (_, mut outcome) = self.meet(Call::HandIn, 0, message.len())?;
        let start = Instant::now();
        outcome.bytes = message.len() as u64;
        let mut messages = Vec::new();
        if self.rank == 0 {
            messages.push((self.members[0], message));
            for rank in 1..self.members.len() {
                messages.push((self.members[rank], self.receive(rank)?));
            }
        } else {
            self.send(0, &message)?;
        }
        outcome.work = start.elapsed();
        Ok(Gathered { messages, outcome })
    }

    fn mix(&mut self, plan: &Plan, layout: &Layout, mine: &[f32]) -> Result<Outcome, Error> {
        let (brought, mut outcome) = self.meet(Call::Mix, plan.digest(), mine.len())?;
        let start = Instant::now();
        let lengths = self.members.iter().zip(&brought).map(|(worker, other)| (*worker, other[2] as usize));
        check_lengths(lengths, self.centre.len(), layout)?;
        if plan.workers != self.members {
            return Err(grawa_core::Error::WrongWorkers { found: plan.workers.clone() }.into());
        }
        self.mix_all(plan, layout, mine)?;
        (outcome.bytes, outcome.work) = (4 * mine.len() as u64, start.elapsed());
        Ok(outcome)
    }

    fn centre(&self) -> &Arc<Vec<f32>> {
        &self.centre
    }

    /// No member counts as stalled here, but others may wait for access to the memory of this rank.
    fn heartbeat(&self) -> Heartbeat {
        let comm = self.comm;
        Arc::new(move || comm.attend())
    }
}

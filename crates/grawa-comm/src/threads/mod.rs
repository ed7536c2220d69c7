//! The workers of one process: vectors are mixed where they lie, each worker reducing its share of all of them.
//!
//! An operation is a meeting: every member brings an offer (a message, or its vector on loan) and none leaves before
//! all have come. Mixing has a second meeting at its end, so that no vector is touched when its owner has it back. The
//! sum is taken in the order of the workers whatever the timing, so results are the same bits every time.

mod lend;
mod meeting;

use crate::{Collective, Error, Gathered, Lost, Outcome};
use grawa_core::{Layout, Plan, Share, mix_part};
use lend::{Cells, Lent};
use meeting::{Call, Offer, Table};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Connects these workers, in rank order. The centre starts as `centre`; it may be empty for a group that only talks. A
/// member that gives no sign of life for `deadline` while others wait for it is given up.
pub fn group(workers: impl IntoIterator<Item = u32>, centre: Vec<f32>, deadline: Duration) -> Vec<Member> {
    let mut workers: Vec<u32> = workers.into_iter().collect();
    workers.sort_unstable();
    workers.dedup();
    let table = Arc::new(Table::new(&workers, Arc::new(Cells::new(centre)), deadline));
    let member = |seat| Member {
        seat,
        worker: workers[seat],
        members: workers.clone(),
        centre: table.centre(),
        version: 0,
        table: Arc::clone(&table),
    };
    (0..workers.len()).map(member).collect()
}

/// One thread's end of a group. Dropping it tells the others that the worker left.
#[derive(Debug)]
pub struct Member {
    table: Arc<Table>,
    seat: usize,
    worker: u32,
    members: Vec<u32>,
    centre: Arc<Cells>,
    version: u64,
}

impl Member {
    /// A meeting, checked: all must have called the same.
    fn meet(&mut self, offer: Offer) -> Result<(Arc<meeting::Met>, Outcome), Error> {
        let start = Instant::now();
        let met = self.table.meet(self.seat, offer)?;
        let members: Vec<u32> = met.offers.iter().map(|(worker, _)| *worker).collect();
        self.members.clone_from(&members);
        self.centre = Arc::clone(&met.centre);
        let first = met.offers[0].1.call.name();
        if met.offers.iter().any(|(_, offer)| offer.call.name() != first) {
            let calls = met.offers.iter().map(|(worker, offer)| (*worker, offer.call.name())).collect();
            return Err(Error::OutOfStep { calls });
        }
        let outcome =
            Outcome { members, lost: met.lost.clone(), wait: start.elapsed(), ..Outcome::default() };
        Ok((met, outcome))
    }

    /// Lends the vector, does this member's part when all have lent theirs, and returns when all have done theirs.
    fn together(
        &mut self,
        call: Call,
        mine: &mut [f32],
        part: impl FnOnce(&Self, &meeting::Met) -> Result<(), Error>,
    ) -> Result<Outcome, Error> {
        let len = mine.len();
        let (met, mut outcome) =
            self.meet(Offer { call, message: Vec::new(), lent: Some(Lent::new(mine)) })?;
        let start = Instant::now();
        // Whatever happens in the part, the vectors are on loan until the second meeting: even a panic waits for it.
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| part(self, &met)));
        self.table.end(self.seat);
        outcome.work = start.elapsed();
        outcome.bytes = 4 * len as u64;
        match done {
            Ok(result) => result.map(|()| outcome),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    fn mix_share(&self, plan: &Plan, layout: &Layout, met: &meeting::Met) -> Result<(), Error> {
        let (first, mine) = (&met.offers[0], plan.digest());
        for (worker, offer) in &met.offers {
            if offer.call != first.1.call {
                return Err(Error::PlansDiffer { first: first.0, other: *worker });
            }
            let found = offer.lent.as_ref().map_or(0, Lent::len);
            if found != layout.len() {
                let what = format!("the vector of worker {worker}");
                return Err(grawa_core::Error::WrongLength { what, found, expected: layout.len() }.into());
            }
        }
        debug_assert_eq!(first.1.call, Call::Mix { digest: mine });
        if self.centre.len() != layout.len() {
            let (what, found) = ("the centre of the group".into(), self.centre.len());
            return Err(grawa_core::Error::WrongLength { what, found, expected: layout.len() }.into());
        }
        if plan.workers != self.members {
            return Err(Error::Shrunk { lost: met.lost.clone() });
        }
        let Some(seat) = self.members.iter().position(|&worker| worker == self.worker) else {
            return Err(Error::Expelled { worker: self.worker, after: Duration::ZERO });
        };
        let share = share(layout.len(), seat, self.members.len());
        #[allow(unsafe_code)]
        // SAFETY: all members are between their two meetings, from which none returns before all have come to the second: every
        // vector is lent, and nobody reads this centre. There is one share for each member, and they do not overlap.
        let (mut vectors, centre) = unsafe {
            let vectors: Vec<&mut [f32]> = (met.offers.iter())
                .filter_map(|(_, offer)| offer.lent.as_ref())
                .map(|lent| lent.stretch(share.clone()))
                .collect();
            (vectors, self.centre.stretch(share.clone()))
        };
        if plan.share == Share::Gradients {
            // Gradients have no past: where nobody's is finite, the step is none, not the last one again.
            centre.fill(0.0);
        }
        Ok(mix_part(plan, layout, share.start, &mut vectors, centre)?)
    }
}

impl Collective for Member {
    type Buffer = [f32];

    fn worker(&self) -> u32 {
        self.worker
    }

    fn members(&self) -> &[u32] {
        &self.members
    }

    fn gather(&mut self, message: &[u8]) -> Result<Gathered, Error> {
        let offer = Offer { call: Call::Gather, message: message.into(), lent: None };
        let (met, mut outcome) = self.meet(offer)?;
        let start = Instant::now();
        let messages = met.offers.iter().map(|(worker, offer)| (*worker, offer.message.clone())).collect();
        outcome.bytes = message.len() as u64;
        outcome.work = start.elapsed();
        Ok(Gathered { messages, outcome })
    }

    fn mix(&mut self, plan: &Plan, layout: &Layout, mine: &mut [f32]) -> Result<Outcome, Error> {
        let call = Call::Mix { digest: plan.digest() };
        self.version += 1;
        self.together(call, mine, |member, met| member.mix_share(plan, layout, met))
    }

    fn broadcast(&mut self, leader: u32, mine: &mut [f32]) -> Result<Outcome, Error> {
        self.together(Call::Broadcast { leader }, mine, |member, met| {
            let lent = |worker: u32| {
                met.offers.iter().find(|offer| offer.0 == worker).and_then(|(_, offer)| offer.lent.as_ref())
            };
            if met.offers.iter().any(|(_, offer)| offer.call != Call::Broadcast { leader }) {
                let calls = met.offers.iter().map(|(worker, _)| (*worker, "broadcast of another leader"));
                return Err(Error::OutOfStep { calls: calls.collect() });
            }
            let (Some(from), Some(to)) = (lent(leader), lent(member.worker)) else {
                return Err(Error::NoSuchLeader { leader, members: member.members.clone() });
            };
            if from.len() != to.len() {
                let (what, found) = (format!("the vector of worker {leader}"), from.len());
                return Err(grawa_core::Error::WrongLength { what, found, expected: to.len() }.into());
            }
            if leader != member.worker {
                #[allow(unsafe_code)]
                // SAFETY: between the two meetings the leader's vector is only read, and this one is touched by its
                // owner alone.
                unsafe {
                    to.stretch(0..to.len()).copy_from_slice(from.read());
                }
            }
            Ok(())
        })
    }

    fn barrier(&mut self) -> Result<Outcome, Error> {
        Ok(self.meet(Offer::plain(Call::Barrier))?.1)
    }

    fn centre(&self) -> &[f32] {
        #[allow(unsafe_code)]
        // SAFETY: the centre is written between the two meetings of `mix` only, and every member that shares it is then
        // inside its own `mix`, so that no such borrow is left. One that is not waited for any more keeps the centre it had,
        // whyever it was lost: the others have a new one.
        unsafe {
            self.centre.read()
        }
    }

    fn centre_version(&self) -> u64 {
        self.version
    }

    fn copy_centre(&self) -> Result<Vec<f32>, Error> {
        Ok(self.centre().to_vec())
    }

    fn alive(&self) {
        self.table.alive(self.seat);
    }

    fn forget(&self, lost: &Lost) {
        self.table.forget(self.seat, lost);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.table.leave(self.seat, std::thread::panicking());
    }
}

/// The share of a vector that a member reduces, cut at whole cache lines.
fn share(len: usize, seat: usize, members: usize) -> std::ops::Range<usize> {
    const LINE: usize = 16;
    let lines = len.div_ceil(LINE);
    let cut = |seat: usize| (lines * seat / members * LINE).min(len);
    cut(seat)..cut(seat + 1)
}

#[cfg(test)]
mod tests;

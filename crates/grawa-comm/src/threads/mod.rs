//! The workers of one process. Vectors are mixed in place; each worker reduces one shard of all of them.
//!
//! An operation is a rendezvous: every member brings an offer (a message, or its vector on loan), and none returns before all have
//! arrived. Mixing has a second rendezvous at its end, so that no vector is touched once its owner has it back. Sums are
//! taken in the order of the workers, so results are the same bits every time.

mod rendezvous;
mod shared_slice;

use crate::shard::shard;
use crate::{Collective, Error, Gathered, Lost, Outcome};
use grawa_core::{Layout, Plan, Share, mix_part};
use rendezvous::{Call, Met, Offer, Rendezvous};
use shared_slice::{Lent, SharedSlice};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Connects these workers, in rank order. The centre starts as `centre`; it may be empty for a group that only gathers. A member
/// that makes no progress for `deadline` while others wait for it is lost.
pub fn group(workers: impl IntoIterator<Item = u32>, centre: Vec<f32>, deadline: Duration) -> Vec<Member> {
    let mut workers: Vec<u32> = workers.into_iter().collect();
    workers.sort_unstable();
    workers.dedup();
    let rendezvous = Arc::new(Rendezvous::new(&workers, Arc::new(SharedSlice::new(centre)), deadline));
    let member = |place| Member {
        place,
        worker: workers[place],
        members: workers.clone(),
        centre: rendezvous.centre(),
        version: 0,
        rendezvous: Arc::clone(&rendezvous),
    };
    (0..workers.len()).map(member).collect()
}

/// One thread's end of a group. When it is dropped, the worker leaves.
#[derive(Debug)]
pub struct Member {
    rendezvous: Arc<Rendezvous>,
    place: usize,
    worker: u32,
    members: Vec<u32>,
    centre: Arc<SharedSlice>,
    version: u64,
}

impl Member {
    /// A rendezvous. All must have called the same operation.
    fn meet(&mut self, offer: Offer) -> Result<(Arc<Met>, Outcome), Error> {
        let start = Instant::now();
        let met = self.rendezvous.meet(self.place, offer)?;
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

    /// Lends the vector, does this member's part once all have lent theirs, and returns when all parts are done.
    fn together(
        &mut self,
        call: Call,
        mine: &mut [f32],
        part: impl FnOnce(&Self, &Met) -> Result<(), Error>,
    ) -> Result<Outcome, Error> {
        let len = mine.len();
        let (met, mut outcome) =
            self.meet(Offer { call, message: Vec::new(), lent: Some(Lent::new(mine)) })?;
        let start = Instant::now();
        // The vectors are on loan until the second rendezvous: even a panic waits for it.
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| part(self, &met)));
        self.rendezvous.end(self.place);
        outcome.work = start.elapsed();
        outcome.bytes = 4 * len as u64;
        match done {
            Ok(result) => result.map(|()| outcome),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    fn mix_share(&self, plan: &Plan, layout: &Layout, met: &Met) -> Result<(), Error> {
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
        let Some(rank) = self.members.iter().position(|&worker| worker == self.worker) else {
            return Err(Error::Expelled { worker: self.worker, after: Duration::ZERO });
        };
        let shard = shard(&(0..layout.len()), rank, self.members.len());
        #[allow(unsafe_code)]
        // SAFETY: all members are between their two rendezvous, and none returns before all have arrived at the second: every
        // vector is lent, and nobody reads this centre. There is one shard for each member, and they do not overlap.
        let (mut vectors, centre) = unsafe {
            let vectors: Vec<&mut [f32]> = (met.offers.iter())
                .filter_map(|(_, offer)| offer.lent.as_ref())
                .map(|lent| lent.part(shard.clone()))
                .collect();
            (vectors, self.centre.part(shard.clone()))
        };
        if plan.share == Share::Gradients {
            // Gradients have no past: where no worker has a finite one, the step is zero, not the last one again.
            centre.fill(0.0);
        }
        Ok(mix_part(plan, layout, shard.start, &mut vectors, centre)?)
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
                // SAFETY: between the two rendezvous the leader's vector is only read, and this one is touched by its
                // owner alone.
                unsafe {
                    to.part(0..to.len()).copy_from_slice(from.read());
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
        // SAFETY: the centre is written between the two rendezvous of `mix` only, and every member that shares it is then
        // inside its own `mix`, so that no such borrow is left. A member that was lost keeps the centre it had: the others
        // have a new one.
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
        self.rendezvous.alive(self.place);
    }

    fn forget(&self, lost: &Lost) {
        self.rendezvous.forget(self.place, lost);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.rendezvous.leave(self.place, std::thread::panicking());
    }
}

#[cfg(test)]
mod tests;

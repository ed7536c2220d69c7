//! Members that are threads of one process: for tests, and for programs whose workers are threads of their own.
//!
//! An operation is a rendezvous: every member brings an offer (a message, or a copy of its vector), and none returns before all have
//! arrived. Every member then makes the whole centre itself, in the order of the members, so that all have the same bits.

mod rendezvous;

use crate::call::{Call, check_lengths, out_of_step};
use crate::{Collective, Error, Gathered, Heartbeat, Lost, Outcome, Tickets, Transport};
use grawa_core::{Layout, Plan, centre_part, finish_centre};
use rendezvous::{Met, Offer, Rendezvous};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Connects these members, in rank order. The centre starts as `centre`; it may be empty for a group that only gathers. A member
/// that makes no progress for `deadline` while others wait for it is lost.
pub fn group(members: impl IntoIterator<Item = u32>, centre: Vec<f32>, deadline: Duration) -> Vec<Member> {
    let mut members: Vec<u32> = members.into_iter().collect();
    members.sort_unstable();
    members.dedup();
    let (rendezvous, centre) = (Arc::new(Rendezvous::new(&members, deadline)), Arc::new(centre));
    let member = |place| Member {
        place,
        id: members[place],
        members: members.clone(),
        centre: Arc::clone(&centre),
        rendezvous: Arc::clone(&rendezvous),
    };
    (0..members.len()).map(member).collect()
}

/// One thread's end of a group. When it is dropped, the member leaves.
#[derive(Debug)]
pub struct Member {
    rendezvous: Arc<Rendezvous>,
    place: usize,
    id: u32,
    members: Vec<u32>,
    centre: Arc<Vec<f32>>,
}

impl Member {
    /// A rendezvous. All must have called the same operation.
    fn meet(&mut self, call: Call, message: &[u8], vector: &[f32]) -> Result<(Arc<Met>, Outcome), Error> {
        let start = Instant::now();
        let offer = Offer { call, message: message.into(), vector: vector.into() };
        let met = self.rendezvous.meet(self.place, offer)?;
        let members: Vec<u32> = met.offers.iter().map(|(member, _)| *member).collect();
        self.members.clone_from(&members);
        let calls: Vec<_> = met.offers.iter().map(|(member, offer)| (*member, offer.call)).collect();
        if calls.iter().any(|(_, other)| *other != call) {
            return Err(out_of_step(&calls));
        }
        let bytes = (message.len() + size_of_val(vector)) as u64;
        let outcome =
            Outcome { members, lost: met.lost.clone(), bytes, wait: start.elapsed(), ..Outcome::default() };
        Ok((met, outcome))
    }

    /// The centre that the vectors of all make.
    fn make_centre(&self, plan: &Plan, layout: &Layout, met: &Met) -> Result<Vec<f32>, Error> {
        let lengths = met.offers.iter().map(|(member, offer)| (*member, offer.vector.len()));
        check_lengths(lengths, self.centre.len(), layout)?;
        if plan.workers != self.members {
            return Err(Error::Shrunk { lost: met.lost.clone() });
        }
        let vectors: Vec<&[f32]> = met.offers.iter().map(|(_, offer)| offer.vector.as_slice()).collect();
        let mut centre = self.centre[..layout.len()].to_vec();
        centre_part(plan, layout, 0, &vectors, &mut centre)?;
        Ok(finish_centre(plan, &self.centre, centre))
    }
}

impl Collective for Member {
    fn id(&self) -> u32 {
        self.id
    }

    fn members(&self) -> &[u32] {
        &self.members
    }

    fn gather(&mut self, message: &[u8]) -> Result<Gathered, Error> {
        let (met, mut outcome) = self.meet(Call::Gather, message, &[])?;
        let start = Instant::now();
        let messages = met.offers.iter().map(|(member, offer)| (*member, offer.message.clone())).collect();
        outcome.work = start.elapsed();
        Ok(Gathered { messages, outcome })
    }

    fn mix(&mut self, plan: &Plan, layout: &Layout, mine: &[f32]) -> Result<Outcome, Error> {
        let (met, mut outcome) = self.meet(Call::Mix { plan: plan.digest(), centre: 0 }, &[], mine)?;
        let start = Instant::now();
        self.centre = Arc::new(self.make_centre(plan, layout, &met)?);
        outcome.work = start.elapsed();
        Ok(outcome)
    }

    fn centre(&self) -> &Arc<Vec<f32>> {
        &self.centre
    }

    fn heartbeat(&self) -> Heartbeat {
        let (rendezvous, place) = (Arc::clone(&self.rendezvous), self.place);
        Arc::new(move || rendezvous.alive(place))
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

/// Threads that play the processes of a run: each takes one.
///
/// ```
/// use grawa_comm::{Transport, threads};
/// let processes = threads::transports(2, std::time::Duration::from_secs(60));
/// std::thread::scope(|scope| {
///     for process in processes {
///         scope.spawn(move || {
///             let mut all = process.group(0..2, Vec::new())?.expect("both ranks are in it");
///             assert_eq!(all.gather(&[process.rank() as u8])?.messages.len(), 2);
///             Ok::<(), grawa_comm::Error>(())
///         });
///     }
/// });
/// ```
pub fn transports(size: u32, deadline: Duration) -> Vec<ThreadTransport> {
    let shared = Arc::new(Shared { deadline, groups: Mutex::default(), tickets: Default::default() });
    (0..size)
        .map(|rank| ThreadTransport { rank, size, calls: AtomicUsize::new(0), shared: Arc::clone(&shared) })
        .collect()
}

/// One thread's end of [`transports`].
#[derive(Debug)]
pub struct ThreadTransport {
    rank: u32,
    size: u32,
    /// Groups that this thread has asked for.
    calls: AtomicUsize,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    deadline: Duration,
    /// The members of each group that were not taken yet, in the order of the calls.
    groups: Mutex<Vec<Vec<Member>>>,
    tickets: [AtomicU64; 2],
}

impl Transport for ThreadTransport {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn group(&self, ranks: Range<u32>, centre: Vec<f32>) -> Result<Option<Box<dyn Collective>>, Error> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let mut groups = self.shared.groups.lock().unwrap_or_else(PoisonError::into_inner);
        if groups.len() == number {
            groups.push(group(ranks, centre, self.shared.deadline));
        }
        let own = groups[number].iter().position(|member| member.id == self.rank);
        Ok(own.map(|own| Box::new(groups[number].swap_remove(own)) as Box<dyn Collective>))
    }

    fn tickets(&self) -> Result<Box<dyn Tickets>, Error> {
        Ok(Box::new(SharedTickets(Arc::clone(&self.shared))))
    }
}

struct SharedTickets(Arc<Shared>);

impl Tickets for SharedTickets {
    fn take(&mut self, counter: usize) -> Result<u64, Error> {
        Ok(self.0.tickets[counter % 2].fetch_add(1, Ordering::Relaxed))
    }

    fn clear(&mut self, counter: usize) -> Result<(), Error> {
        self.0.tickets[counter % 2].store(0, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests;

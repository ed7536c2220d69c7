//! How many steps each worker takes in a cycle.
//!
//! At an even pace each worker takes its quota. At a free pace all take from one pool until M times the quota is taken, without a server:
//! a process takes a ticket, which is a lease of several steps, and its workers share those. In an elastic group all take steps until the coordinator calls. A recording of a free run gives each worker the steps it took then.

use crate::Error;
use crate::event::Event;
use grawa_comm::Tickets;
use grawa_core::Trigger;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Who takes how many steps.
pub enum Pacing {
    /// Each its quota.
    Even,
    /// First come, first served.
    Leased(Leases),
    /// Until the coordinator has counted enough steps and calls.
    Called,
    /// As recorded, of a run whose pace was even or not.
    Replay {
        /// The recording.
        recording: Recording,
        /// Whether its pace was even.
        even: bool,
    },
}

impl Pacing {
    /// Whether a worker that took `own` steps of the cycle that began at step `from` may take another. At a free pace the
    /// answer uses up a ticket.
    pub fn may_step(
        &self,
        worker: u32,
        own: u64,
        quota: u64,
        (from, cycle, members): (u64, u64, usize),
        is_called: impl FnOnce() -> bool,
    ) -> Result<bool, Error> {
        match self {
            Pacing::Even => Ok(own < quota),
            // Before the first round some founders may still have to join, for hours: no worker goes beyond the first cycle without them.
            Pacing::Called => Ok(quota > 0 && !is_called() && (from > 0 || own < quota)),
            Pacing::Leased(leases) => leases.may_step(quota, cycle, members),
            Pacing::Replay { recording, .. } => Ok(own < recording.after(from)?.steps(worker)),
        }
    }

    /// A free pace inside one process, which goes on in a cycle of which `taken` steps are done.
    pub fn free(cycle: u64, taken: u64) -> Self {
        Pacing::Leased(Leases::new(Box::new(OwnTickets([0; 2])), true, cycle, taken))
    }

    /// All workers have met at the end of this cycle: its tickets are for the one after the next.
    pub fn renew(&self, cycle: u64) -> Result<(), Error> {
        match self {
            Pacing::Leased(leases) => leases.renew(cycle),
            Pacing::Even | Pacing::Called | Pacing::Replay { .. } => Ok(()),
        }
    }

    /// Whether all workers are at the same step.
    pub fn is_even(&self) -> bool {
        matches!(self, Pacing::Even | Pacing::Replay { even: true, .. })
    }

    /// The training time at the end of the cycle that began at step `from`: recorded, or as the clock has it.
    pub fn elapsed(&self, from: u64, clock: Duration) -> Duration {
        match self {
            Pacing::Replay { recording, .. } => recording.after(from).map_or(clock, |cycle| cycle.elapsed),
            _ => clock,
        }
    }
}

/// The tickets of a run in one process.
struct OwnTickets([u64; 2]);

impl Tickets for OwnTickets {
    fn take(&mut self, counter: usize) -> Result<u64, grawa_comm::Error> {
        self.0[counter] += 1;
        Ok(self.0[counter] - 1)
    }

    fn clear(&mut self, counter: usize) -> Result<(), grawa_comm::Error> {
        self.0[counter] = 0;
        Ok(())
    }
}

/// The steps of a free pace, shared out: tickets lie with the first rank, and each is a lease.
pub struct Leases {
    /// Whether this is the rank that clears the tickets.
    clears: bool,
    /// The cycle that the run goes on in, and how many of its steps are done.
    begun: (u64, u64),
    held: std::sync::Mutex<Held>,
}

/// What is asked for and used up.
struct Held {
    /// Tickets in two counters by turns: one may still be cleared by a late rank while the next cycle takes from the other.
    tickets: Box<dyn Tickets>,
    /// The cycle of the lease at hand, and how many of its steps are left.
    cycle: u64,
    left: u64,
}

impl Leases {
    /// Leases for a run that goes on in a cycle of which `taken` steps are done.
    pub fn new(tickets: Box<dyn Tickets>, clears: bool, cycle: u64, taken: u64) -> Self {
        let held = Held { tickets, cycle, left: 0 };
        Leases { clears, begun: (cycle, taken), held: std::sync::Mutex::new(held) }
    }

    fn may_step(&self, quota: u64, cycle: u64, members: usize) -> Result<bool, Error> {
        let mut held = self.lock();
        if held.cycle != cycle || held.left == 0 {
            held.cycle = cycle;
            held.left = 0;
            if quota > 0 {
                let trigger = Trigger::new(members as u32, u32::try_from(quota).unwrap_or(u32::MAX))?;
                let taken = if cycle == self.begun.0 { self.begun.1 } else { 0 };
                held.left = trigger.lease(taken, held.tickets.take(cycle as usize % 2)?);
            }
        }
        let may = held.left > 0;
        held.left -= u64::from(may);
        Ok(may)
    }

    fn renew(&self, cycle: u64) -> Result<(), Error> {
        // The others are in the next cycle at most, and its tickets are the other ones.
        if self.clears { Ok(self.lock().tickets.clear(cycle as usize % 2)?) } else { Ok(()) }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The rounds of a run that was: who took how many steps, and when.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    cycles: Vec<Cycle>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Cycle {
    /// Local steps a worker when it was over.
    end: u64,
    steps: Vec<(u32, u64)>,
    elapsed: Duration,
}

impl Cycle {
    fn steps(&self, worker: u32) -> u64 {
        // One who was lost by then took none.
        self.steps.iter().find(|(who, _)| *who == worker).map_or(0, |(_, steps)| *steps)
    }
}

impl Recording {
    /// The recording that a run's events hold. What was done again after a resume counts as it was done last.
    pub fn of<'a>(events: impl IntoIterator<Item = &'a Event>) -> Self {
        let mut cycles: Vec<Cycle> = Vec::new();
        for event in events {
            let Event::Round(round) = event else { continue };
            cycles.retain(|cycle| cycle.end < round.at.steps);
            cycles.push(Cycle {
                end: round.at.steps,
                steps: round.workers.iter().map(|share| (share.worker, share.steps)).collect(),
                elapsed: Duration::try_from_secs_f64(round.at.elapsed).unwrap_or_default(),
            });
        }
        Recording { cycles }
    }

    /// How many rounds were recorded.
    pub fn rounds(&self) -> u64 {
        self.cycles.len() as u64
    }

    /// The cycle that began at step `from`.
    fn after(&self, from: u64) -> Result<&Cycle, Error> {
        let at = self.cycles.partition_point(|cycle| cycle.end <= from);
        let begins = at.checked_sub(1).map_or(0, |before| self.cycles[before].end);
        let cycle = self.cycles.get(at).filter(|_| begins == from);
        cycle.ok_or(Error::NotRecorded { from, rounds: self.rounds() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Place, Round, Share, Times};

    fn round(end: u64, steps: [u64; 2]) -> Event {
        let share = |(worker, steps)| Share { worker, steps, total: 0, loss: None, times: Times::default() };
        Event::Round(Round {
            at: Place { steps: end, elapsed: end as f64, ..Place::default() },
            rate: 0.1,
            loss: None,
            workers: (0..).zip(steps).map(share).collect(),
            mixed: Vec::new(),
            bytes: 0,
        })
    }

    #[test]
    fn free_tickets_are_shared_out() {
        let pacing = Pacing::free(0, 1);
        let grants: Vec<bool> =
            (0..7).map(|_| pacing.may_step(0, 0, 3, (0, 0, 2), || false).unwrap()).collect();
        assert_eq!(grants, [true, true, true, true, true, false, false]);
        // A quick worker is in the next cycle before a slow one has cleared this.
        assert!(pacing.may_step(1, 99, 3, (3, 1, 2), || false).unwrap());
        pacing.renew(0).unwrap();
        let left = (0..7).filter(|_| pacing.may_step(0, 0, 3, (3, 1, 2), || false).unwrap()).count();
        assert_eq!(left, 5);
        assert!(pacing.may_step(1, 0, 3, (6, 2, 2), || false).unwrap());
    }

    #[test]
    fn a_recording_gives_the_steps_back_and_says_where_it_ends() {
        let events = [round(2, [3, 1]), round(4, [9, 9]), round(4, [1, 3]), round(5, [1, 1])];
        let recording = Recording::of(&events);
        assert_eq!(recording.rounds(), 3);
        let cycle = recording.after(2).unwrap();
        assert_eq!((cycle.steps(0), cycle.steps(1), cycle.steps(2)), (1, 3, 0));
        assert!(recording.after(3).is_err());
        let pacing = Pacing::Replay { recording, even: false };
        assert!(
            pacing.may_step(0, 2, 0, (0, 0, 2), || false).unwrap()
                && !pacing.may_step(1, 1, 9, (0, 0, 2), || false).unwrap()
        );
        assert_eq!(pacing.elapsed(2, Duration::ZERO), Duration::from_secs(4));
        let error = pacing.may_step(0, 0, 9, (5, 0, 2), || false).unwrap_err().to_string();
        assert!(error.contains("no cycle that begins at step 5"), "{error}");
    }
}

//! When a round starts: after M·τ local steps of all workers together.
//!
//! Workers take numbered tickets from one shared counter, such as an atomic; the caller implements it. What a ticket
//! grants is a pure function of its number: each cycle of M·τ + M tickets grants M·τ local steps in the order of the
//! requests, then one round to each worker. A fast worker takes more of the steps; there is no server.
//!
//! ```
//! use grawa_core::{Grant, Trigger};
//! let trigger = Trigger::new(2, 2)?;
//! let grants: Vec<_> = (0..8).map(|ticket| trigger.grant(ticket)).collect();
//! use Grant::{Round, Step};
//! assert_eq!(grants, [Step, Step, Step, Step, Round, Round, Step, Step]);
//! # Ok::<(), grawa_core::Error>(())
//! ```

use crate::Error;

/// A lease grants an even share of the remaining steps divided by this: a slow worker then holds little when the others
/// are done.
const PARTS: u64 = 8;

/// The rule that starts a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trigger {
    steps: u64,
    workers: u64,
}

/// What a ticket allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// Take one local step.
    Step,
    /// Take part in the round.
    Round,
}

impl Trigger {
    /// The trigger of `workers` workers and period τ.
    pub fn new(workers: u32, period: u32) -> Result<Self, Error> {
        for (knob, found) in [("workers", workers), ("period", period)] {
            if found == 0 {
                let why = "is 0, but must be at least 1".into();
                return Err(Error::WrongKnob { method: "the trigger".into(), knob: knob.into(), why });
            }
        }
        Ok(Trigger { steps: u64::from(workers) * u64::from(period), workers: workers.into() })
    }

    /// What the ticket of this number grants.
    pub fn grant(&self, ticket: u64) -> Grant {
        if ticket % (self.steps + self.workers) < self.steps { Grant::Step } else { Grant::Round }
    }

    /// How many steps the lease of this number (0, 1, …) in a cycle grants; `taken` steps were made before the first lease.
    /// Where a ticket costs a message, a lease grants several steps: many while many remain, at the end single ones. The
    /// assignment of steps depends only on the order of the requests, and no step is granted twice. A worker that is
    /// granted nothing goes to the round.
    ///
    /// ```
    /// use grawa_core::Trigger;
    /// let trigger = Trigger::new(2, 32)?;
    /// let leases: Vec<_> = (0..44).map(|number| trigger.lease(0, number)).collect();
    /// assert_eq!(leases[..6], [4, 3, 3, 3, 3, 3]);
    /// assert_eq!((leases.iter().sum(), leases[43]), (64, 1));
    /// assert_eq!(trigger.lease(63, 0), 1);
    /// assert_eq!(trigger.lease(63, 1), 0);
    /// # Ok::<(), grawa_core::Error>(())
    /// ```
    pub fn lease(&self, taken: u64, number: u64) -> u64 {
        let granted = |left: u64| (left / (PARTS * self.workers)).max(1).min(left);
        let mut left = self.steps.saturating_sub(taken);
        for _ in 0..number {
            if left == 0 {
                break;
            }
            left -= granted(left);
        }
        granted(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn answers(workers: u32, period: u32, n: u64) -> Vec<u8> {
        let trigger = Trigger::new(workers, period).unwrap();
        (0..n).map(|ticket| u8::from(trigger.grant(ticket) == Grant::Round)).collect()
    }

    /// The answers of the authors' server, in the order of the requests.
    #[test]
    fn the_golden_answers() {
        assert_eq!(answers(4, 1, 16), [0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(answers(2, 2, 12), [0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1]);
    }

    #[test]
    fn nothing_may_be_zero() {
        assert!(Trigger::new(0, 4).is_err() && Trigger::new(4, 0).is_err());
    }

    proptest! {
        /// Workers of any speed with leases: M·τ steps in all and no more, nobody is sent to the round while steps are
        /// left, and nobody holds more than a small part of those.
        #[test]
        fn leases_share_out_every_step_once(
            speeds in proptest::collection::vec(1u64..20, 1..9), period in 1u32..200, done in 0u64..500,
        ) {
            let trigger = Trigger::new(speeds.len() as u32, period).unwrap();
            let (mut number, mut granted) = (0, done.min(trigger.steps));
            let mut ready = speeds.clone();
            let mut held = vec![0u64; speeds.len()];
            let mut at_round = vec![false; speeds.len()];
            while let Some(next) = (0..speeds.len()).filter(|&w| !at_round[w]).min_by_key(|&w| ready[w]) {
                let lease = trigger.lease(done, number);
                number += 1;
                prop_assert_eq!(lease == 0, granted == trigger.steps);
                let left = trigger.steps - granted;
                prop_assert!(lease <= 1 || lease * speeds.len() as u64 * PARTS <= left);
                granted += lease;
                held[next] += lease;
                ready[next] += lease * speeds[next];
                at_round[next] = lease == 0;
            }
            prop_assert_eq!(held.iter().sum::<u64>() + done.min(granted), trigger.steps);
        }

        /// Workers of any speed: every cycle has M·τ steps in total and one round for each worker.
        #[test]
        fn uneven_workers_share_the_steps(speeds in proptest::collection::vec(1u64..20, 1..9), period in 1u32..7) {
            let workers = speeds.len();
            let trigger = Trigger::new(workers as u32, period).unwrap();
            let mut ticket = 0;
            for cycle in 0..5 {
                let mut at_round = vec![false; workers];
                let mut ready: Vec<u64> = speeds.clone();
                let mut steps = 0;
                // The next free worker takes the next ticket; one that waits for the round takes no more.
                while let Some(next) = (0..workers).filter(|&w| !at_round[w]).min_by_key(|&w| ready[w]) {
                    match trigger.grant(ticket) {
                        Grant::Step => { steps += 1; ready[next] += speeds[next]; }
                        Grant::Round => at_round[next] = true,
                    }
                    ticket += 1;
                }
                prop_assert_eq!(steps, trigger.steps);
                prop_assert_eq!(ticket, (cycle + 1) * (trigger.steps + trigger.workers));
            }
        }
    }
}

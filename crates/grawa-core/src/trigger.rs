//! When a round starts: after M·τ local steps of all workers together.
//!
//! Workers take numbered leases from one shared counter, such as an atomic; the caller implements it. What a lease grants is a pure
//! function of its number: steps while there are any, in the order of the requests, and then nothing, which sends the worker to the
//! round. A fast worker takes more of the steps; there is no server.

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
        let cycle = trigger.steps + trigger.workers;
        (0..n).map(|ticket| u8::from(trigger.lease(0, ticket % cycle) == 0)).collect()
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
    }
}

//! How long the members that have arrived for a round wait for the others.
//!
//! The wait is the median of past delays plus a multiple of their spread (the median distance from it), between two bounds. No
//! fixed wait fits both a group whose members always differ a little and one whose members never do. A member that is not waited for
//! loses the steps of its cycle, so the wait also is a share of how long a cycle takes.

use std::collections::VecDeque;
use std::time::Duration;

/// Delays that are remembered, and how many are enough to decide from.
const PAST: usize = 64;
const ENOUGH: usize = 4;

/// How long the members that have arrived for a round wait for those that are late.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundWait {
    /// At least this long.
    pub shortest: Duration,
    /// At most this long; also while few delays are known.
    pub longest: Duration,
    /// Spreads of past delays beyond their median.
    pub spreads: f64,
    /// The share of a cycle's duration, though no longer than `longest`.
    pub share: f64,
}

impl Default for RoundWait {
    fn default() -> Self {
        let (shortest, longest) = (Duration::from_secs(2), Duration::from_secs(60));
        RoundWait { shortest, longest, spreads: 8.0, share: 0.1 }
    }
}

/// Past delays and cycles, and the wait that follows from them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deadline {
    past: VecDeque<Duration>,
    /// How long the last cycle took.
    cycle: Duration,
}

impl Deadline {
    /// A member arrived this long after the first.
    pub(crate) fn saw(&mut self, delay: Duration) {
        if self.past.len() == PAST {
            self.past.pop_front();
        }
        self.past.push_back(delay);
    }

    /// A round began this long after the one before.
    pub(crate) fn cycle_took(&mut self, time: Duration) {
        self.cycle = time;
    }

    /// How long the first member waits for the others: the median and `spreads` times the spread, or a share of the last cycle if that is
    /// longer, between two bounds. While few delays are known, this is the upper bound.
    pub(crate) fn wait(&self, wait: &RoundWait) -> Duration {
        let RoundWait { shortest, longest, spreads, share } = *wait;
        if self.past.len() < ENOUGH {
            return longest;
        }
        let mut past: Vec<f64> = self.past.iter().map(Duration::as_secs_f64).collect();
        let middle = median(&mut past);
        let mut distances: Vec<f64> = past.iter().map(|x| (x - middle).abs()).collect();
        let wait = (middle + spreads * median(&mut distances)).max(share * self.cycle.as_secs_f64());
        Duration::try_from_secs_f64(wait).unwrap_or(longest).clamp(shortest, longest)
    }
}

/// The middle number, or the mean of the two in the middle.
fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    match numbers.len() {
        0 => 0.0,
        n if n % 2 == 1 => numbers[n / 2],
        n => (numbers[n / 2 - 1] + numbers[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bounds(shortest: Duration, longest: Duration) -> RoundWait {
        RoundWait { shortest, longest, ..RoundWait::default() }
    }

    #[test]
    fn one_outlier_changes_nothing() {
        let second = Duration::from_secs(1);
        let (mut deadline, bounds) = (Deadline::default(), bounds(second, 100 * second));
        assert_eq!(deadline.wait(&bounds), 100 * second);
        [2, 3, 4, 3, 90].into_iter().for_each(|delay| deadline.saw(delay * second));
        // The median is 3 s, the spread 1 s.
        assert_eq!(deadline.wait(&bounds), 11 * second);
    }

    /// A period of five minutes is not thrown away for three seconds.
    #[test]
    fn a_long_cycle_is_worth_a_longer_wait() {
        let (second, mut deadline) = (Duration::from_secs(1), Deadline::default());
        let bounds = RoundWait::default();
        (0..ENOUGH).for_each(|_| deadline.saw(Duration::from_millis(10)));
        assert_eq!(deadline.wait(&bounds), 2 * second);
        for (cycle, expected) in [(1, 2), (100, 10), (300, 30), (3600, 60)] {
            deadline.cycle_took(cycle * second);
            assert_eq!(deadline.wait(&bounds), expected * second, "cycles of {cycle} s");
        }
    }

    proptest! {
        #[test]
        fn the_wait_stays_in_its_bounds(past in proptest::collection::vec(0u64..1_000_000, 0..200), cycle in 0u64..1_000_000) {
            let (shortest, longest) = (Duration::from_millis(500), Duration::from_secs(60));
            let mut deadline = Deadline::default();
            deadline.cycle_took(Duration::from_millis(cycle));
            past.into_iter().for_each(|ms| deadline.saw(Duration::from_millis(ms)));
            prop_assert!((shortest..=longest).contains(&deadline.wait(&bounds(shortest, longest))));
        }

        /// Less than half of the arrivals, however late, do not change the wait.
        #[test]
        fn a_minority_does_not_rule(late in 1usize..31, at in 0u64..1_000_000) {
            let mut deadline = Deadline::default();
            (0..PAST - late).for_each(|_| deadline.saw(Duration::from_secs(1)));
            (0..late).for_each(|_| deadline.saw(Duration::from_secs(at)));
            prop_assert_eq!(deadline.wait(&bounds(Duration::ZERO, Duration::MAX)), Duration::from_secs(1));
        }
    }
}

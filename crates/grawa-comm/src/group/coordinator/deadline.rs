//! How long the members that have arrived for a round wait for the others.
//!
//! The wait is the median of past delays plus a multiple of their spread (the median distance from it), between two bounds. No
//! fixed wait fits both a group whose members always differ a little and one whose members never do.

use std::collections::VecDeque;
use std::time::Duration;

/// Delays that are remembered, and how many are enough to decide from.
const PAST: usize = 64;
const ENOUGH: usize = 4;

/// Past delays, and the wait that follows from them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deadline {
    past: VecDeque<Duration>,
}

impl Deadline {
    /// A member arrived this long after the first.
    pub(crate) fn saw(&mut self, delay: Duration) {
        if self.past.len() == PAST {
            self.past.pop_front();
        }
        self.past.push_back(delay);
    }

    /// How long the first member waits for the others: the median and `spreads` times the spread, between two bounds. While few
    /// delays are known, this is the upper bound.
    pub(crate) fn wait(&self, (shortest, longest, spreads): (Duration, Duration, f64)) -> Duration {
        let longest = longest.max(shortest);
        if self.past.len() < ENOUGH {
            return longest;
        }
        let mut past: Vec<f64> = self.past.iter().map(Duration::as_secs_f64).collect();
        let middle = median(&mut past);
        let mut distances: Vec<f64> = past.iter().map(|x| (x - middle).abs()).collect();
        let wait = middle + spreads * median(&mut distances);
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

    #[test]
    fn one_outlier_changes_nothing() {
        let second = Duration::from_secs(1);
        let (mut deadline, bounds) = (Deadline::default(), (second, 100 * second, 8.0));
        assert_eq!(deadline.wait(bounds), 100 * second);
        [2, 3, 4, 3, 90].into_iter().for_each(|delay| deadline.saw(delay * second));
        // The median is 3 s, the spread 1 s.
        assert_eq!(deadline.wait(bounds), 11 * second);
    }

    proptest! {
        #[test]
        fn the_wait_stays_in_its_bounds(past in proptest::collection::vec(0u64..1_000_000, 0..200)) {
            let (shortest, longest) = (Duration::from_millis(500), Duration::from_secs(60));
            let mut deadline = Deadline::default();
            past.into_iter().for_each(|ms| deadline.saw(Duration::from_millis(ms)));
            prop_assert!((shortest..=longest).contains(&deadline.wait((shortest, longest, 8.0))));
        }

        /// Less than half of the arrivals, however late, do not change the wait.
        #[test]
        fn a_minority_does_not_rule(late in 1usize..31, at in 0u64..1_000_000) {
            let mut deadline = Deadline::default();
            (0..PAST - late).for_each(|_| deadline.saw(Duration::from_secs(1)));
            (0..late).for_each(|_| deadline.saw(Duration::from_secs(at)));
            prop_assert_eq!(deadline.wait((Duration::ZERO, Duration::MAX, 8.0)), Duration::from_secs(1));
        }
    }
}

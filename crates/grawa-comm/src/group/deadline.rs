//! How long those who have come to a meeting wait for the others.
//!
//! The wait is the median of past latenesses and some times their spread (the median of the distances from it), between two
//! bounds. A fixed wait is wrong both ways: too short for a group that is always a little apart, too long for one that never is.

use std::collections::VecDeque;
use std::time::Duration;

/// Latenesses that are remembered, and so many that they tell something.
const PAST: usize = 64;
const ENOUGH: usize = 4;

/// What was seen, and the wait that follows from it.
#[derive(Clone, Debug)]
pub struct Deadline {
    shortest: Duration,
    longest: Duration,
    spreads: f64,
    past: VecDeque<Duration>,
}

impl Deadline {
    /// A wait of the median and `spreads` times the spread, between two bounds.
    pub fn new(shortest: Duration, longest: Duration, spreads: f64) -> Self {
        Deadline { shortest, longest: longest.max(shortest), spreads, past: VecDeque::with_capacity(PAST) }
    }

    /// A member came so long after the first.
    pub fn saw(&mut self, lateness: Duration) {
        if self.past.len() == PAST {
            self.past.pop_front();
        }
        self.past.push_back(lateness);
    }

    /// How long the first to come waits for the others; as long as may be while little was seen.
    ///
    /// ```
    /// use grawa_comm::group::Deadline;
    /// use std::time::Duration;
    /// let second = Duration::from_secs(1);
    /// let mut deadline = Deadline::new(second, 100 * second, 8.0);
    /// assert_eq!(deadline.wait(), 100 * second);
    /// for lateness in [2, 3, 4, 3, 90] {
    ///     deadline.saw(lateness * second);
    /// }
    /// // The median is 3 s, the spread 1 s: one outlier changes nothing.
    /// assert_eq!(deadline.wait(), 11 * second);
    /// ```
    pub fn wait(&self) -> Duration {
        if self.past.len() < ENOUGH {
            return self.longest;
        }
        let mut past: Vec<f64> = self.past.iter().map(Duration::as_secs_f64).collect();
        let middle = median(&mut past);
        let mut distances: Vec<f64> = past.iter().map(|x| (x - middle).abs()).collect();
        let wait = middle + self.spreads * median(&mut distances);
        Duration::try_from_secs_f64(wait).unwrap_or(self.longest).clamp(self.shortest, self.longest)
    }
}

/// The middle one; the mean of the two middle ones where there are two.
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

    proptest! {
        #[test]
        fn the_wait_stays_in_its_bounds(past in proptest::collection::vec(0u64..1_000_000, 0..200)) {
            let (shortest, longest) = (Duration::from_millis(500), Duration::from_secs(60));
            let mut deadline = Deadline::new(shortest, longest, 8.0);
            past.into_iter().for_each(|ms| deadline.saw(Duration::from_millis(ms)));
            prop_assert!((shortest..=longest).contains(&deadline.wait()));
        }

        /// Fewer than half of the arrivals, however late, do not move the wait beyond what the others span.
        #[test]
        fn a_minority_does_not_rule(late in 1usize..31, at in 0u64..1_000_000) {
            let mut deadline = Deadline::new(Duration::ZERO, Duration::MAX, 8.0);
            (0..PAST - late).for_each(|_| deadline.saw(Duration::from_secs(1)));
            (0..late).for_each(|_| deadline.saw(Duration::from_secs(at)));
            prop_assert_eq!(deadline.wait(), Duration::from_secs(1));
        }
    }
}

//! A token bucket: an average rate, and what may be used at once after an idle time.
//!
//! It limits how much a member may send to the coordinator, and how much of a core a listener may use for peers that are not
//! authenticated.

use std::time::Duration;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TokenBucket {
    per_second: f64,
    most: f64,
    /// Negative if more was used.
    left: f64,
    at: Duration,
}

impl TokenBucket {
    pub(crate) fn new(per_second: f64, most: f64, now: Duration) -> Self {
        TokenBucket { per_second, most, left: most, at: now }
    }

    /// Uses an amount if that much is left.
    pub(crate) fn try_use(&mut self, amount: f64, now: Duration) -> bool {
        self.refill(now);
        let is_enough = amount <= self.left;
        self.left -= if is_enough { amount } else { 0.0 };
        is_enough
    }

    /// Uses an amount in any case. Returns how long to wait until no more than the rate was used.
    pub(crate) fn use_anyway(&mut self, amount: f64, now: Duration) -> Duration {
        self.refill(now);
        self.left -= amount;
        Duration::from_secs_f64((-self.left / self.per_second).clamp(0.0, 1.0))
    }

    pub(crate) fn give_back(&mut self, amount: f64) {
        self.left += amount;
    }

    /// Whether nothing was used of late.
    pub(crate) fn is_full(mut self, now: Duration) -> bool {
        self.refill(now);
        self.left >= self.most
    }

    fn refill(&mut self, now: Duration) {
        let earned = now.saturating_sub(self.at).as_secs_f64() * self.per_second;
        (self.left, self.at) = ((self.left + earned).min(self.most), now.max(self.at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZERO: Duration = Duration::ZERO;

    #[test]
    fn a_burst_is_allowed_and_then_the_rate() {
        let mut bucket = TokenBucket::new(2.0, 31.5, ZERO);
        assert_eq!((0..100).filter(|_| bucket.try_use(1.0, ZERO)).count(), 31);
        // Half a second earns one, however often one is tried.
        let tries = (0..10_000).filter(|tick| bucket.try_use(1.0, Duration::from_micros(500 * tick)));
        let found = tries.count();
        assert!((9..=11).contains(&found), "{found} in five seconds");
        assert!(!bucket.is_full(Duration::from_secs(6)) && bucket.is_full(Duration::from_secs(60)));
    }

    /// A thread that works whenever it may uses its share and no more.
    #[test]
    fn no_more_than_the_rate_is_used() {
        let mut bucket = TokenBucket::new(0.05, 0.25, ZERO);
        let (mut now, mut used, step) = (ZERO, ZERO, Duration::from_millis(3));
        while now < Duration::from_secs(100) {
            used += step;
            now += step;
            now += bucket.use_anyway(step.as_secs_f64(), now);
        }
        let most = Duration::from_millis(5250) + step;
        assert!(used <= most && used > most / 2, "{used:?} of {most:?}");
    }

    #[test]
    fn what_is_given_back_does_not_count() {
        let mut bucket = TokenBucket::new(0.05, 0.25, ZERO);
        for ms in 0..10_000 {
            bucket.give_back(0.001);
            assert_eq!(bucket.use_anyway(0.001, Duration::from_millis(ms)), ZERO);
        }
    }
}

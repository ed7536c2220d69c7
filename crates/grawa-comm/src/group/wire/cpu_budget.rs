//! How much of a core a thread may use for peers that are not authenticated.
//!
//! A handshake costs the listener more than the peer. Beyond its share the thread sleeps, and the peers wait.

use std::time::Duration;

/// The share of a core.
const SHARE: f64 = 0.05;
/// What may be used at once after an idle time: some hundred handshakes.
const MOST: Duration = Duration::from_millis(250);

/// CPU time that may still be used; negative if more was used.
#[derive(Debug)]
pub(super) struct CpuBudget {
    seconds: f64,
    at: Duration,
}

impl CpuBudget {
    pub(super) fn new(now: Duration) -> Self {
        CpuBudget { seconds: MOST.as_secs_f64(), at: now }
    }

    /// Counts CPU time. Returns how long to sleep.
    pub(super) fn spend(&mut self, used: Duration, now: Duration) -> Duration {
        let earned = now.saturating_sub(self.at).as_secs_f64() * SHARE;
        self.at = now;
        self.seconds = (self.seconds + earned).min(MOST.as_secs_f64()) - used.as_secs_f64();
        Duration::from_secs_f64((-self.seconds / SHARE).clamp(0.0, 1.0))
    }

    /// CPU time that was used for a peer that is authenticated by now does not count.
    pub(super) fn give_back(&mut self, used: Duration) {
        self.seconds += used.as_secs_f64();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that works whenever it may uses its share and no more.
    #[test]
    fn no_more_than_the_share_is_used() {
        let mut budget = CpuBudget::new(Duration::ZERO);
        let (mut now, mut used, step) = (Duration::ZERO, Duration::ZERO, Duration::from_millis(3));
        while now < Duration::from_secs(100) {
            used += step;
            now += step;
            now += budget.spend(step, now);
        }
        let most = Duration::from_secs(5) + MOST + step;
        assert!(used <= most && used > most / 2, "{used:?} of {most:?}");
    }

    #[test]
    fn time_for_authenticated_peers_does_not_count() {
        let mut budget = CpuBudget::new(Duration::ZERO);
        for ms in 0..10_000 {
            budget.give_back(Duration::from_millis(1));
            assert_eq!(budget.spend(Duration::from_millis(1), Duration::from_millis(ms)), Duration::ZERO);
        }
    }
}

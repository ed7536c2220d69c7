//! A share of a core: how much a thread may work for peers that are not authenticated.
//!
//! A handshake costs the listener more than it costs whoever asks for it. Where more is asked for than the share, the thread
//! rests, and they wait.

use std::time::Duration;

/// The share of a core.
const SHARE: f64 = 0.05;
/// What may be used at once after a quiet time: some hundred handshakes.
const MOST: Duration = Duration::from_millis(250);

/// Time on a core that may still be used; less than none if more was.
#[derive(Debug)]
pub(super) struct Allowance {
    seconds: f64,
    at: Duration,
}

impl Allowance {
    pub(super) fn new(now: Duration) -> Self {
        Allowance { seconds: MOST.as_secs_f64(), at: now }
    }

    /// So much was used until now. Returns how long to rest.
    pub(super) fn spend(&mut self, used: Duration, now: Duration) -> Duration {
        let earned = now.saturating_sub(self.at).as_secs_f64() * SHARE;
        self.at = now;
        self.seconds = (self.seconds + earned).min(MOST.as_secs_f64()) - used.as_secs_f64();
        Duration::from_secs_f64((-self.seconds / SHARE).clamp(0.0, 1.0))
    }

    /// So much of it was used for a peer that proved to be authenticated: it does not count.
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
        let mut allowance = Allowance::new(Duration::ZERO);
        let (mut now, mut used, step) = (Duration::ZERO, Duration::ZERO, Duration::from_millis(3));
        while now < Duration::from_secs(100) {
            used += step;
            now += step;
            now += allowance.spend(step, now);
        }
        let most = Duration::from_secs(5) + MOST + step;
        assert!(used <= most && used > most / 2, "{used:?} of {most:?}");
    }

    #[test]
    fn what_is_for_authenticated_peers_does_not_count() {
        let mut allowance = Allowance::new(Duration::ZERO);
        for ms in 0..10_000 {
            allowance.give_back(Duration::from_millis(1));
            assert_eq!(allowance.spend(Duration::from_millis(1), Duration::from_millis(ms)), Duration::ZERO);
        }
    }
}

//! How much a member may send to the coordinator. A member that sends more is refused: it could fill the disk or keep the
//! coordinator busy.

use std::time::Duration;

/// Bytes that a member may send at once: a few of the largest reports.
const BURST: u64 = 32 << 20;
/// Bytes per second on average: thousands of reports of small rounds.
const PER_SECOND: u64 = 2 << 20;
/// What a message costs beside its bytes.
const PER_MESSAGE: u64 = 128;

/// A token bucket.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RateLimit {
    left: u64,
    at: Duration,
}

impl RateLimit {
    pub(crate) fn new(now: Duration) -> Self {
        RateLimit { left: BURST, at: now }
    }

    /// Counts a message. Returns whether it is within the limit.
    pub(crate) fn spend(&mut self, bytes: usize, now: Duration) -> bool {
        self.refill(now);
        let left = self.left.checked_sub(PER_MESSAGE + bytes as u64);
        self.left = left.unwrap_or(self.left);
        left.is_some()
    }

    /// Whether a member with this limit has sent nothing of late.
    pub(crate) fn is_full(mut self, now: Duration) -> bool {
        self.refill(now);
        self.left == BURST
    }

    fn refill(&mut self, now: Duration) {
        let earned = (now.saturating_sub(self.at).as_secs_f64() * PER_SECOND as f64) as u64;
        if earned > 0 {
            (self.left, self.at) = (self.left.saturating_add(earned).min(BURST), now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_allowed_and_then_the_rate() {
        let mut limit = RateLimit::new(Duration::ZERO);
        let message = 1 << 20;
        let burst = (0..100).filter(|_| limit.spend(message, Duration::ZERO)).count();
        assert_eq!(burst, 31);
        // Half a second earns a message, however often one is tried.
        let asked = |limit: &mut RateLimit, from: u64| {
            (0..1000).filter(|tick| limit.spend(message, Duration::from_micros(from + 500 * tick))).count()
        };
        let found: usize = (0..10).map(|second| asked(&mut limit, 500_000 * second)).sum();
        assert!((9..=11).contains(&found), "{found} in five seconds");
        assert!(!limit.is_full(Duration::from_secs(6)) && limit.is_full(Duration::from_secs(60)));
    }

    #[test]
    fn a_short_message_is_not_free() {
        let mut limit = RateLimit::new(Duration::ZERO);
        assert_eq!((0..).take_while(|_| limit.spend(0, Duration::ZERO)).count() as u64, BURST / PER_MESSAGE);
    }
}

//! How much a member may send to the coordinator: whoever sends more is refused, so that none can fill the coordinator's disk or keep
//! it busy.

use std::time::Duration;

/// Bytes that a member may send at once, and in a second on average: room for thousands of reports of small rounds a second, and for a
/// few of the largest there are at once.
const BURST: u64 = 32 << 20;
const A_SECOND: u64 = 2 << 20;
/// What a message costs beside its bytes: that of handling it.
const MESSAGE: u64 = 128;

/// What a member may still send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quota {
    left: u64,
    at: Duration,
}

impl Quota {
    pub(super) fn new(now: Duration) -> Self {
        Quota { left: BURST, at: now }
    }

    /// Counts a message of so many bytes. Returns whether it may come.
    pub(super) fn spend(&mut self, bytes: usize, now: Duration) -> bool {
        let earned = (now.saturating_sub(self.at).as_secs_f64() * A_SECOND as f64) as u64;
        if earned > 0 {
            (self.left, self.at) = (self.left.saturating_add(earned).min(BURST), now);
        }
        match self.left.checked_sub(MESSAGE + bytes as u64) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_allowed_and_then_the_rate() {
        let mut quota = Quota::new(Duration::ZERO);
        let message = 1 << 20;
        let burst = (0..100).filter(|_| quota.spend(message, Duration::ZERO)).count();
        assert_eq!(burst, 31);
        // Half a second earns a message, whether it is asked for once or a thousand times.
        let asked = |quota: &mut Quota, from: u64| {
            (0..1000).filter(|tick| quota.spend(message, Duration::from_micros(from + 500 * tick))).count()
        };
        let found: usize = (0..10).map(|second| asked(&mut quota, 500_000 * second)).sum();
        assert!((9..=11).contains(&found), "{found} in five seconds");
    }

    #[test]
    fn a_short_message_is_not_free() {
        let mut quota = Quota::new(Duration::ZERO);
        assert_eq!((0..).take_while(|_| quota.spend(0, Duration::ZERO)).count() as u64, BURST / MESSAGE);
    }
}

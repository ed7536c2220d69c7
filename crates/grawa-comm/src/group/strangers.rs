//! Connections that came to nothing: each address is told of once a minute, with how often it came since.
//!
//! A port scan, or a worker with the wrong key that tries again and again, would else fill the record of a run.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

/// From one word about an address to the next.
const QUIET: Duration = Duration::from_secs(60);
/// Addresses that are remembered; of more than these none is told of until some are forgotten.
const MOST: usize = 1024;

/// Whom was told of, when, and how often each came since.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    seen: HashMap<IpAddr, (Duration, u64)>,
}

impl Strangers {
    /// One came. Whether it is to be told of: then how many from there were not told of before it.
    pub(super) fn came(&mut self, from: IpAddr, now: Duration) -> Option<u64> {
        if self.seen.len() >= MOST {
            self.seen.retain(|_, (told, _)| now.saturating_sub(*told) < QUIET);
        }
        if let Some((told, since)) = self.seen.get_mut(&from) {
            if now.saturating_sub(*told) < QUIET {
                *since += 1;
                return None;
            }
            *told = now;
            return Some(std::mem::take(since));
        }
        (self.seen.len() < MOST).then(|| {
            self.seen.insert(from, (now, 0));
            0
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_told_of_once_a_minute_and_counted() {
        let mut strangers = Strangers::default();
        let [one, other] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        let second = Duration::from_secs(1);
        assert_eq!(strangers.came(one, second), Some(0));
        assert!((2..50).all(|at| strangers.came(one, at * second).is_none()));
        assert_eq!(strangers.came(other, 50 * second), Some(0));
        assert_eq!(strangers.came(one, 61 * second), Some(48));
        assert_eq!(strangers.came(one, 200 * second), Some(0));
    }

    #[test]
    fn many_addresses_take_little_memory() {
        let mut strangers = Strangers::default();
        let told = (0..100_000u32).filter(|n| strangers.came(IpAddr::from(n.to_be_bytes()), QUIET).is_some());
        assert_eq!(told.count(), MOST);
        assert!(strangers.came(IpAddr::from([255, 0, 0, 1]), 3 * QUIET).is_some());
        assert!(strangers.seen.len() <= MOST);
    }
}

//! The connections that are not authenticated yet.
//!
//! There are limits for all of them together and for those of one address. A new connection is never refused for these: an older
//! one makes room. So a member that is quick gets in while others hold as many connections as they can.

use super::file_limit::Limits;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

/// A connection: from which address, and since when.
#[derive(Debug)]
pub(super) struct Entry<T> {
    pub(super) address: IpAddr,
    pub(super) since: Duration,
    pub(super) one: T,
}

/// Connections that are not authenticated, the oldest first.
#[derive(Debug)]
pub(super) struct Pending<T> {
    limits: Limits,
    pub(super) entries: Vec<Entry<T>>,
    /// How many each address has.
    counts: HashMap<IpAddr, usize>,
}

impl<T> Pending<T> {
    pub(super) fn new(limits: Limits) -> Self {
        Pending { limits, entries: Vec::new(), counts: HashMap::new() }
    }

    /// Adds a connection. Returns the one that makes room for it, if one must.
    pub(super) fn add(&mut self, address: IpAddr, since: Duration, one: T) -> Option<Entry<T>> {
        let removed = self.removed_for(address).map(|at| self.remove(at));
        *self.counts.entry(address).or_default() += 1;
        self.entries.push(Entry { address, since, one });
        removed
    }

    /// Which connection makes room for a new one. If the address has reached its limit: the oldest of this address. If all
    /// together have: the oldest of the address with the most.
    fn removed_for(&self, address: IpAddr) -> Option<usize> {
        if self.counts.get(&address).is_some_and(|count| *count >= self.limits.per_address) {
            return self.entries.iter().position(|entry| entry.address == address);
        }
        let most = self.counts.values().max().filter(|_| self.entries.len() >= self.limits.pending)?;
        self.entries.iter().position(|entry| self.counts[&entry.address] == *most)
    }

    /// How many connections the address of this one has.
    pub(super) fn of_its_address(&self, at: usize) -> usize {
        self.counts[&self.entries[at].address]
    }

    pub(super) fn remove(&mut self, at: usize) -> Entry<T> {
        let entry = self.entries.remove(at);
        if let Some(count) = self.counts.get_mut(&entry.address) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&entry.address);
            }
        }
        entry
    }

    /// Removes the oldest connection if it is older than this moment.
    pub(super) fn older_than(&mut self, moment: Duration) -> Option<Entry<T>> {
        let is_older = self.entries.first().is_some_and(|entry| entry.since < moment);
        is_older.then(|| self.remove(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: Limits = Limits { pending: 8, per_address: 6, open: 8 };

    fn ip(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    #[test]
    fn the_oldest_of_the_most_numerous_address_makes_room() {
        let mut pending = Pending::new(LIMITS);
        let mut add = |address: u8, number: u64| {
            pending
                .add(ip(address), Duration::from_secs(number), number)
                .map(|entry| (entry.address, entry.one))
        };
        assert!((0..6).all(|number| add(1, number).is_none()));
        // One address cannot have more, even if there is room.
        assert_eq!(add(1, 6), Some((ip(1), 0)));
        assert_eq!((add(2, 7), add(3, 8)), (None, None));
        // All are taken: the address with the most makes room, not the new one.
        assert_eq!(add(4, 9), Some((ip(1), 1)));
        assert_eq!(add(2, 10), Some((ip(1), 2)));
        assert_eq!(pending.older_than(Duration::from_secs(4)).map(|entry| entry.one), Some(3));
        assert!(pending.older_than(Duration::from_secs(4)).is_none());
    }

    proptest! {
        /// In any order, the limits hold, and the newest connection is kept.
        #[test]
        fn limits_hold(came in proptest::collection::vec((0u8..9, any::<bool>()), 0..200)) {
            let mut pending = Pending::new(LIMITS);
            for (number, (address, ends)) in came.into_iter().enumerate() {
                pending.add(ip(address), Duration::from_secs(number as u64), number);
                prop_assert_eq!(pending.entries.last().unwrap().one, number);
                prop_assert!(pending.entries.len() <= LIMITS.pending);
                for n in 0..9 {
                    let found = pending.entries.iter().filter(|entry| entry.address == ip(n)).count();
                    prop_assert!(found <= LIMITS.per_address);
                }
                if ends { pending.remove(0); }
            }
        }
    }
}

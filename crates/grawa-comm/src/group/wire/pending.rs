//! The connections that are not authenticated yet.
//!
//! There are limits for all of them together and for those of one address. A new connection is never refused for these: an older
//! one makes room. So a member that is quick gets in while others hold as many connections as they can. Addresses from
//! which a peer was authenticated before are preferred: those of others make room first.

use super::file_limit::Limits;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

/// Addresses of authenticated peers that are remembered.
const KNOWN: usize = 1024;

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
    counts: HashMap<IpAddr, usize>,
    /// Addresses of authenticated peers, in the order in which they were last added.
    known: HashMap<IpAddr, u64>,
    learned: u64,
}

impl<T> Pending<T> {
    pub(super) fn new(limits: Limits) -> Self {
        Pending { limits, entries: Vec::new(), counts: HashMap::new(), known: HashMap::new(), learned: 0 }
    }

    /// A peer at this address was authenticated.
    pub(super) fn learn(&mut self, address: IpAddr) {
        self.learned += 1;
        self.known.insert(address, self.learned);
        if self.known.len() > KNOWN
            && let Some(oldest) = self.known.iter().min_by_key(|(_, at)| **at).map(|(address, _)| *address)
        {
            self.known.remove(&oldest);
        }
    }

    pub(super) fn is_known(&self, address: IpAddr) -> bool {
        self.known.contains_key(&address)
    }

    /// Adds a connection. Returns the one that makes room for it, if one must.
    pub(super) fn add(&mut self, address: IpAddr, since: Duration, one: T) -> Option<Entry<T>> {
        let removed = self.removed_for(address).map(|at| self.remove(at));
        self.entries.push(Entry { address, since, one });
        *self.counts.entry(address).or_default() += 1;
        removed
    }

    /// Which connection makes room for a new one. If the address has reached its limit: the oldest of this address. If all
    /// together have: the oldest of the address with the most, unknown addresses first.
    fn removed_for(&self, address: IpAddr) -> Option<usize> {
        if self.count(address) >= self.limits.per_address {
            return self.entries.iter().position(|entry| entry.address == address);
        }
        if self.entries.len() < self.limits.pending {
            return None;
        }
        let rank = |address: IpAddr| (!self.is_known(address), self.count(address));
        let most = self.counts.keys().map(|address| rank(*address)).max()?;
        self.entries.iter().position(|entry| rank(entry.address) == most)
    }

    fn count(&self, address: IpAddr) -> usize {
        self.counts.get(&address).copied().unwrap_or(0)
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

    #[test]
    fn known_addresses_are_preferred() {
        let mut pending = Pending::new(LIMITS);
        pending.learn(ip(1));
        assert!((0..5).all(|number| pending.add(ip(1), Duration::ZERO, number).is_none()));
        assert!((5..8).all(|number| pending.add(ip(2), Duration::ZERO, number).is_none()));
        assert_eq!(pending.add(ip(3), Duration::ZERO, 8).unwrap().one, 5);
        assert_eq!(pending.add(ip(1), Duration::ZERO, 9).unwrap().one, 6);
        // Many addresses do not displace more than they must.
        (0..=255).for_each(|n| pending.learn(ip(n)));
        assert!(pending.is_known(ip(1)));
        (0..2000u32).for_each(|n| pending.learn(IpAddr::from(n.to_be_bytes())));
        assert!(!pending.is_known(ip(1)) && pending.known.len() == KNOWN);
    }

    proptest! {
        /// In any order, the limits hold, the counts are right, and the newest connection is kept.
        #[test]
        fn limits_hold(came in proptest::collection::vec((0u8..9, any::<bool>(), any::<bool>()), 0..200)) {
            let mut pending = Pending::new(LIMITS);
            for (number, (address, is_known, ends)) in came.into_iter().enumerate() {
                if is_known { pending.learn(ip(address)); }
                pending.add(ip(address), Duration::from_secs(number as u64), number);
                prop_assert_eq!(pending.entries.last().unwrap().one, number);
                prop_assert!(pending.entries.len() <= LIMITS.pending);
                for n in 0..9 {
                    let found = pending.entries.iter().filter(|entry| entry.address == ip(n)).count();
                    prop_assert!(found <= LIMITS.per_address && found == pending.count(ip(n)));
                }
                if ends { pending.remove(0); }
            }
        }
    }
}

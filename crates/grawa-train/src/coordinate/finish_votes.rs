//! How a run ended: as most of the members say that took part in its last operation.

use crate::Finished;
use std::collections::{BTreeMap, BTreeSet};

/// What each of those members has reported, by token: a certificate has one vote, whatever numbers it joins under.
#[derive(Debug, Default)]
pub(super) struct FinishVotes(BTreeMap<u64, (u32, Finished)>);

impl FinishVotes {
    /// A worker reports that the run is over. It counts if the worker took part in the operation that ended it: `voter` is its token.
    pub(super) fn add(&mut self, worker: u32, voter: Option<u64>, end: Finished) {
        if let Some(token) = voter {
            self.0.insert(token, (worker, end));
        }
    }

    pub(super) fn has(&self, worker: u32) -> bool {
        self.0.values().any(|(voter, _)| *voter == worker)
    }

    /// How the run has ended, if more than half report the same end: of those that took part in the last operation and are `here`, or have
    /// voted and left. One that was lost before it voted does not hold up the others.
    pub(super) fn majority(&self, here: impl FnOnce() -> BTreeSet<u64>) -> Option<&Finished> {
        if self.0.is_empty() {
            return None;
        }
        let mut all = here();
        all.extend(self.0.keys());
        let ends = || self.0.values().map(|(_, end)| end);
        let outcome = |end: &Finished| (end.reason, end.at.steps, end.at.rounds, end.diverged);
        let count = |end: &Finished| ends().filter(|other| outcome(other) == outcome(end)).count();
        ends().find(|end| 2 * count(end) > all.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Place, Reason};

    fn end(steps: u64) -> Finished {
        let at = Place { steps, ..Place::default() };
        Finished { at, reason: Reason::Spent, workers: Vec::new(), bytes: 0, diverged: false }
    }

    fn steps(votes: &FinishVotes, here: &[u64]) -> Option<u64> {
        votes.majority(|| here.iter().copied().collect()).map(|end| end.at.steps)
    }

    #[test]
    fn most_must_report_the_same_end() {
        let mut votes = FinishVotes::default();
        assert_eq!(steps(&votes, &[]), None);
        votes.add(0, Some(70), end(64));
        assert_eq!(steps(&votes, &[70, 71, 72]), None, "one of three");
        assert_eq!(steps(&votes, &[70, 71]), None, "one of two");
        votes.add(0, Some(70), end(64));
        assert_eq!(steps(&votes, &[70, 71, 72]), None, "twice the same");
        votes.add(1, Some(71), end(65));
        assert_eq!(steps(&votes, &[70, 71, 72]), None, "another end");
        votes.add(2, Some(72), end(64));
        assert_eq!(steps(&votes, &[70, 71, 72]), Some(64));
    }

    /// One member alone cannot say that a run has diverged.
    #[test]
    fn most_must_say_that_it_diverged() {
        let mut votes = FinishVotes::default();
        votes.add(0, Some(70), Finished { diverged: true, ..end(64) });
        votes.add(1, Some(71), end(64));
        assert_eq!(steps(&votes, &[70, 71, 72]), None);
        votes.add(2, Some(72), end(64));
        assert!(!votes.majority(|| [70, 71, 72].into()).unwrap().diverged);
    }

    /// All leave at the end, and one may die before it reports.
    #[test]
    fn the_vote_of_a_worker_that_left_counts() {
        let mut votes = FinishVotes::default();
        votes.add(0, Some(70), end(64));
        assert_eq!(steps(&votes, &[71, 72]), None);
        votes.add(1, Some(71), end(64));
        assert_eq!(steps(&votes, &[72]), Some(64));
        let mut alone = FinishVotes::default();
        alone.add(0, Some(70), end(64));
        assert_eq!(steps(&alone, &[]), Some(64), "of two one died and one voted");
    }

    /// A peer that joins, reports an end and leaves, again and again under other numbers, decides nothing.
    #[test]
    fn a_certificate_has_one_vote_and_only_where_it_took_part() {
        let mut votes = FinishVotes::default();
        (0..100).for_each(|number| votes.add(number, None, end(10_000_000)));
        assert_eq!(steps(&votes, &[]), None, "it never took part");
        (0..100).for_each(|number| votes.add(number, Some(66), end(10_000_000)));
        assert_eq!(steps(&votes, &[70, 71, 66]), None, "one certificate of three");
        for (worker, token) in [(1, 70), (2, 71)] {
            votes.add(worker, Some(token), end(64));
        }
        assert_eq!(steps(&votes, &[70, 71, 66]), Some(64));
    }
}

//! When a run is over: when most of the workers that take part say so, not when one does.

use crate::Finished;
use std::collections::{BTreeMap, BTreeSet};

/// The workers that have reported the end, and what each reported.
#[derive(Debug, Default)]
pub(super) struct FinishVotes(BTreeMap<u32, Finished>);

impl FinishVotes {
    /// A worker reports that the run is over.
    pub(super) fn add(&mut self, worker: u32, end: Finished) {
        self.0.insert(worker, end);
    }

    pub(super) fn has(&self, worker: u32) -> bool {
        self.0.contains_key(&worker)
    }

    /// The run continues: votes of workers that have left do not count. `voters` are those that take part now.
    pub(super) fn run_continues(&mut self, voters: impl FnOnce() -> BTreeSet<u32>) {
        if !self.0.is_empty() {
            let voters = voters();
            self.0.retain(|worker, _| voters.contains(worker));
        }
    }

    /// How the run has ended, if more than half of those that take part, or have voted and left, report the same end.
    pub(super) fn majority(&self, voters: impl FnOnce() -> BTreeSet<u32>) -> Option<&Finished> {
        if self.0.is_empty() {
            return None;
        }
        let mut all = voters();
        all.extend(self.0.keys());
        let outcome = |end: &Finished| (end.reason, end.at.steps, end.at.rounds, end.diverged);
        let count = |end: &Finished| self.0.values().filter(|other| outcome(other) == outcome(end)).count();
        self.0.values().find(|end| 2 * count(end) > all.len())
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

    fn steps(votes: &FinishVotes, here: &[u32]) -> Option<u64> {
        votes.majority(|| here.iter().copied().collect()).map(|end| end.at.steps)
    }

    #[test]
    fn most_must_report_the_same_end() {
        let mut votes = FinishVotes::default();
        assert_eq!(steps(&votes, &[]), None);
        votes.add(0, end(64));
        assert_eq!(steps(&votes, &[0, 1, 2]), None, "one of three");
        assert_eq!(steps(&votes, &[0, 1]), None, "one of two");
        votes.add(0, end(64));
        assert_eq!(steps(&votes, &[0, 1, 2]), None, "twice the same");
        votes.add(1, end(65));
        assert_eq!(steps(&votes, &[0, 1, 2]), None, "another end");
        votes.add(2, end(64));
        assert_eq!(steps(&votes, &[0, 1, 2]), Some(64));
    }

    /// One member alone cannot say that a run has diverged.
    #[test]
    fn most_must_say_that_it_diverged() {
        let mut votes = FinishVotes::default();
        votes.add(0, Finished { diverged: true, ..end(64) });
        votes.add(1, end(64));
        assert_eq!(steps(&votes, &[0, 1, 2]), None);
        votes.add(2, end(64));
        assert!(!votes.majority(|| [0, 1, 2].into()).unwrap().diverged);
    }

    /// All leave at the end, and one may die before it reports.
    #[test]
    fn the_vote_of_a_worker_that_left_counts() {
        let mut votes = FinishVotes::default();
        votes.add(0, end(64));
        assert_eq!(steps(&votes, &[1, 2]), None);
        votes.add(1, end(64));
        assert_eq!(steps(&votes, &[2]), Some(64));
        let mut alone = FinishVotes::default();
        alone.add(0, end(64));
        assert_eq!(steps(&alone, &[]), Some(64), "of two one died and one voted");
    }

    /// One votes and leaves, and the run continues: when the others die much later it is not over.
    #[test]
    fn votes_from_before_the_run_continued_do_not_count() {
        let mut votes = FinishVotes::default();
        votes.add(0, end(64));
        votes.run_continues(|| [1, 2].into());
        assert_eq!(steps(&votes, &[]), None);
    }
}

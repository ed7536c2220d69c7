//! When a run is over: not when one worker says so, but when most of those who take part do.

use grawa_train::Finished;
use std::collections::{BTreeMap, BTreeSet};

/// What workers have said of the end.
#[derive(Default)]
pub(crate) struct Ending {
    said: BTreeMap<u32, Finished>,
}

impl Ending {
    /// A worker that takes part says that the run is over.
    pub(crate) fn say(&mut self, worker: u32, end: Finished) {
        self.said.insert(worker, end);
    }

    pub(crate) fn is_said_by(&self, worker: u32) -> bool {
        self.said.contains_key(&worker)
    }

    /// The run goes on: what those said who are not here any more does not count. `voters` are those here who take part.
    pub(crate) fn goes_on(&mut self, voters: impl FnOnce() -> BTreeSet<u32>) {
        if !self.said.is_empty() {
            let here = voters();
            self.said.retain(|worker, _| here.contains(worker));
        }
    }

    /// How the run has ended, if more than half of those who are here, or have said it and left, say that it ended there.
    pub(crate) fn agreed(&self, voters: impl FnOnce() -> BTreeSet<u32>) -> Option<&Finished> {
        if self.said.is_empty() {
            return None;
        }
        let mut all = voters();
        all.extend(self.said.keys());
        let place = |end: &Finished| (end.reason, end.at.steps, end.at.rounds);
        let agree = |end: &Finished| self.said.values().filter(|other| place(other) == place(end)).count();
        self.said.values().find(|end| 2 * agree(end) > all.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use grawa_train::{Place, Reason};

    fn end(steps: u64) -> Finished {
        let at = Place { steps, ..Place::default() };
        Finished { at, reason: Reason::Spent, workers: Vec::new(), bytes: 0, diverged: false }
    }

    fn steps(ending: &Ending, here: &[u32]) -> Option<u64> {
        ending.agreed(|| here.iter().copied().collect()).map(|end| end.at.steps)
    }

    #[test]
    fn most_must_say_the_same() {
        let mut ending = Ending::default();
        assert_eq!(steps(&ending, &[]), None);
        ending.say(0, end(64));
        assert_eq!(steps(&ending, &[0, 1, 2]), None, "one of three");
        assert_eq!(steps(&ending, &[0, 1]), None, "one of two");
        ending.say(0, end(64));
        assert_eq!(steps(&ending, &[0, 1, 2]), None, "twice the same");
        ending.say(1, end(65));
        assert_eq!(steps(&ending, &[0, 1, 2]), None, "another end");
        ending.say(2, end(64));
        assert_eq!(steps(&ending, &[0, 1, 2]), Some(64));
    }

    /// All leave at the end, and one may die before it says so.
    #[test]
    fn who_has_left_has_said_it() {
        let mut ending = Ending::default();
        ending.say(0, end(64));
        assert_eq!(steps(&ending, &[1, 2]), None);
        ending.say(1, end(64));
        assert_eq!(steps(&ending, &[2]), Some(64));
        let mut alone = Ending::default();
        alone.say(0, end(64));
        assert_eq!(steps(&alone, &[]), Some(64), "of two one died and one said it");
    }

    /// One says it, leaves, and the run goes on: when the others die much later it is not over.
    #[test]
    fn what_was_said_before_the_run_went_on_does_not_count() {
        let mut ending = Ending::default();
        ending.say(0, end(64));
        ending.goes_on(|| [1, 2].into());
        assert_eq!(steps(&ending, &[]), None);
    }
}

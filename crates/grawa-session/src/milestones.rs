//! The milestones of a run: how many steps a cycle has, what is due at its end, when the run is over.
//!
//! Everything here is a pure function of the position of the run, which all workers agree on. So all decide the same, and a resumed run
//! decides as one that was not stopped.

use crate::event::Place;
use crate::round_message::RoundMessage;
use grawa_core::{Amount, Method, Progress, Share};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The position of a run at the end of a cycle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// Local steps of each worker.
    pub steps: u64,
    /// Local steps of all workers together.
    pub total: u64,
    /// Rounds.
    pub rounds: u64,
    /// The learning rate of the last cycle's last step, and whether it was rising.
    #[serde(default)]
    pub rate: f64,
    #[serde(default)]
    pub is_rising: bool,
    /// Training time, as the first worker's clock has it.
    #[serde(skip)]
    pub elapsed: Duration,
}

/// What is due when in a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Milestones {
    method: Method,
    cycle: u64,
    budget: Amount,
    /// Workers that the run begins with, and the steps of each if they all stay.
    workers: u64,
    steps: Option<u64>,
    evaluate: Option<Amount>,
    checkpoint: Option<Amount>,
    /// Passes over the training set that one step of one worker makes.
    pass: (f64, f64),
}

/// What the milestones of a run follow from.
#[derive(Clone, Copy, Debug)]
pub struct MilestoneSettings<'a> {
    pub method: &'a Method,
    /// Workers that the run begins with.
    pub workers: u32,
    /// Examples of a local step, and of the training set.
    pub batch: u32,
    pub examples: usize,
    pub budget: Amount,
    pub evaluate: Option<Amount>,
    pub checkpoint: Option<Amount>,
}

/// Where workers communicate at every step, one event stands for this many.
const STEPS_AN_EVENT: u64 = 32;

impl Milestones {
    /// The milestones that follow from these settings.
    pub fn new(settings: &MilestoneSettings<'_>) -> Self {
        let MilestoneSettings { method, workers, batch, examples, budget, evaluate, checkpoint } = *settings;
        let pass = (f64::from(batch), examples.max(1) as f64);
        let steps = match budget {
            Amount::Steps(steps) => Some(steps),
            Amount::Time(_) => None,
            Amount::Epochs(epochs) => {
                let workers = f64::from(workers);
                let spent = |steps: u64| steps as f64 * workers * pass.0 / pass.1 >= epochs;
                let mut steps = (epochs * pass.1 / pass.0 / workers).ceil() as u64;
                // The division may be off by a rounding.
                while steps > 0 && spent(steps - 1) {
                    steps -= 1;
                }
                while !spent(steps) {
                    steps += 1;
                }
                Some(steps)
            }
        };
        Milestones {
            method: method.clone(),
            cycle: u64::from(cycle(method)),
            budget,
            workers: u64::from(workers),
            steps,
            evaluate,
            checkpoint,
            pass,
        }
    }

    /// Local steps of each worker in all, where the budget determines them and all workers stay.
    pub fn steps(&self) -> Option<u64> {
        self.steps
    }

    /// The same for a run that is here. A budget in epochs counts examples, as schedules in epochs do: once workers have left or
    /// joined it determines no number of steps, and the run ends with the cycle in which it is spent.
    fn steps_from(&self, at: &Position) -> Option<u64> {
        let is_as_planned = at.total == at.steps.saturating_mul(self.workers);
        self.steps.filter(|_| is_as_planned || !matches!(self.budget, Amount::Epochs(_)))
    }

    /// Local steps of each worker from here to the end of the cycle. A run that ended inside a cycle and was given a larger budget
    /// begins with the rest of that cycle.
    pub fn quota(&self, at: &Position) -> u64 {
        let left = self.steps_from(at).map_or(u64::MAX, |steps| steps.saturating_sub(at.steps));
        let taken = if self.method.qsr == 0.0 { at.steps % self.cycle } else { 0 };
        (self.period(at) - taken).min(left)
    }

    /// Local steps of each worker in the whole cycle.
    pub fn period(&self, at: &Position) -> u64 {
        self.method.period_after(at.rate, at.is_rising).max(self.cycle)
    }

    /// By how many steps the run has advanced. Where workers take steps until the coordinator calls, all may take more than a cycle's
    /// before they receive the call: as many cycles count as every worker took, and as all took in the mean. A worker that has just
    /// joined took none, and one without connection may have taken any number.
    pub fn advance(&self, quota: u64, messages: &[(u32, RoundMessage)], is_even: bool) -> u64 {
        let steps = || messages.iter().map(|(_, message)| message.steps);
        let mean = steps().fold(0, u64::saturating_add) / messages.len().max(1) as u64;
        let cycles = steps().filter(|steps| *steps > 0).fold(mean, u64::min) / self.cycle;
        if is_even { quota } else { quota.max(cycles * self.cycle) }
    }

    /// The number of the cycle that begins here.
    pub fn cycle(&self, at: &Position) -> u64 {
        at.steps / self.cycle
    }

    /// Whether a round is due at the end of the cycle that begins here; a budget that ends inside a cycle ends without one,
    /// unless the cycle was longer than τ.
    pub fn is_round(&self, at: &Position) -> bool {
        let (quota, period) = (self.quota(at), self.period(at));
        let is_full = match self.method.qsr {
            0.0 => at.steps.saturating_add(quota).is_multiple_of(self.cycle),
            _ => quota == period || period > self.cycle,
        };
        self.method.share == Share::Parameters && is_full
    }

    /// The progress of the run, for budgets and schedules, with `ahead` more steps by each of `workers`.
    pub fn progress(&self, at: &Position, ahead: u64, workers: usize) -> Progress {
        let total = at.total.saturating_add(ahead.saturating_mul(workers as u64));
        Progress {
            steps: at.steps.saturating_add(ahead),
            epochs: total as f64 * self.pass.0 / self.pass.1,
            elapsed: at.elapsed,
        }
    }

    /// The position of the run, for events.
    pub fn place(&self, at: &Position) -> Place {
        let progress = self.progress(at, 0, 0);
        let share = match self.steps_from(at) {
            Some(steps) => Amount::Steps(steps).share(&progress),
            None => self.budget.share(&progress),
        };
        Place {
            steps: at.steps,
            rounds: at.rounds,
            epochs: progress.epochs,
            share: share.min(1.0),
            elapsed: at.elapsed.as_secs_f64(),
        }
    }

    /// Whether the budget is spent.
    pub fn is_spent(&self, at: &Position) -> bool {
        match self.steps_from(at) {
            Some(steps) => at.steps >= steps,
            None => self.budget.is_spent(&self.progress(at, 0, 0)),
        }
    }

    /// Whether an evaluation has become due between two positions.
    pub fn evaluates(&self, before: &Position, at: &Position) -> bool {
        self.has_come(self.evaluate, before, at)
    }

    /// Whether a checkpoint has become due between two positions.
    pub fn saves(&self, before: &Position, at: &Position) -> bool {
        self.has_come(self.checkpoint, before, at)
    }

    /// Whether the end of a cycle is an event.
    pub fn tells(&self, at: &Position) -> bool {
        self.method.share == Share::Parameters || at.steps.is_multiple_of(STEPS_AN_EVENT) || self.is_spent(at)
    }

    fn has_come(&self, every: Option<Amount>, before: &Position, at: &Position) -> bool {
        let times = |every: &Amount, at: &Position| every.share(&self.progress(at, 0, 0)).floor();
        let is_zero = |every: &Amount| every.is_spent(&Progress::default());
        every.is_some_and(|every| {
            at.steps > before.steps && (is_zero(&every) || times(&every, before) < times(&every, at))
        })
    }
}

/// Local steps between two exchanges of all workers: one where gradients are shared.
pub fn cycle(method: &Method) -> u32 {
    method.cycle().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn milestones(method: &str, budget: &str, every: &str) -> Milestones {
        Milestones::new(&MilestoneSettings {
            method: &method.parse().unwrap(),
            workers: 4,
            batch: 32,
            examples: 1438,
            budget: budget.parse().unwrap(),
            evaluate: Some(every.parse().unwrap()),
            checkpoint: None,
        })
    }

    fn at(steps: u64) -> Position {
        Position { steps, total: 4 * steps, ..Position::default() }
    }

    #[test]
    fn a_budget_may_end_inside_a_cycle_and_then_without_a_round() {
        let milestones = milestones("mean:period=32", "40step", "1epoch");
        assert_eq!(
            (milestones.quota(&at(0)), milestones.quota(&at(32)), milestones.quota(&at(40))),
            (32, 8, 0)
        );
        assert!(milestones.is_round(&at(0)) && !milestones.is_round(&at(32)));
        assert!(!milestones.is_spent(&at(39)) && milestones.is_spent(&at(40)));
    }

    /// At a free pace between processes all go on until they hear that they are called.
    #[test]
    fn steps_beyond_a_cycle_count() {
        let milestones = milestones("mean:period=32", "400step", "1epoch");
        let messages = |steps: &[u64]| -> Vec<(u32, RoundMessage)> {
            (0..)
                .zip(steps)
                .map(|(worker, &steps)| (worker, RoundMessage { steps, ..RoundMessage::default() }))
                .collect()
        };
        assert_eq!(milestones.advance(32, &messages(&[80, 90, 70]), true), 32);
        assert_eq!(milestones.advance(32, &messages(&[31, 900]), false), 32);
        assert_eq!(milestones.advance(32, &messages(&[80, 90, 70]), false), 64);
        assert_eq!(milestones.advance(32, &messages(&[130, 0, 130]), false), 64);
        assert_eq!(milestones.advance(32, &messages(&[64, 0]), false), 32);
        assert_eq!(milestones.advance(16, &messages(&[3, 4]), false), 16);
        assert_eq!(milestones.advance(16, &messages(&[]), false), 16);
        assert!(milestones.is_round(&at(32 + milestones.advance(32, &messages(&[200]), false))));
    }

    /// The quadratic synchronization rule: cycles of (0.2/η)² steps, the last one up to the end of the budget.
    #[test]
    fn the_period_follows_the_learning_rate() {
        let milestones = milestones("mean:period=4,qsr=0.2", "500step", "1epoch");
        let at = |steps, rate, is_rising| Position { rate, is_rising, ..at(steps) };
        for (place, quota, is_round) in [
            (at(0, 0.0, false), 4, true),
            (at(4, 0.01, true), 4, true),
            (at(8, 0.1, false), 4, true),
            (at(12, 0.02, false), 100, true),
            (at(112, 0.01, false), 388, true),
            (at(498, 0.1, false), 2, false),
        ] {
            assert_eq!(
                (milestones.quota(&place), milestones.is_round(&place)),
                (quota, is_round),
                "{place:?}"
            );
        }
    }

    #[test]
    fn gradients_are_shared_at_every_step() {
        let milestones = milestones("dp-sgd", "70step", "1epoch");
        assert_eq!(milestones.quota(&at(7)), 1);
        assert!(!milestones.is_round(&at(0)));
        assert!(milestones.tells(&at(64)) && !milestones.tells(&at(63)) && milestones.tells(&at(70)));
    }

    /// 1438 images, 4 workers, batches of 32: an epoch is 11.23 steps.
    #[test]
    fn epochs_become_steps() {
        assert_eq!(milestones("mean", "1epoch", "1epoch").steps(), Some(12));
        assert_eq!(milestones("mean", "0epoch", "1epoch").steps(), Some(0));
        assert_eq!(milestones("mean", "10s", "1epoch").steps(), None);
        let milestones = milestones("mean", "4epoch", "1epoch");
        assert!(milestones.evaluates(&at(8), &at(12)) && !milestones.evaluates(&at(12), &at(16)));
        assert!(milestones.evaluates(&at(0), &at(45)));
    }

    /// Four workers take 45 steps each for four epochs. Without two of them from step 20 on, the others take 50 more.
    #[test]
    fn a_budget_of_epochs_counts_the_examples_of_a_group_that_shrinks() {
        let milestones = milestones("mean:period=10", "4epoch", "1epoch");
        let shrunk = |steps: u64| Position { total: 80 + 2 * (steps - 20), ..at(steps) };
        assert_eq!((milestones.quota(&at(40)), milestones.quota(&shrunk(40))), (5, 10));
        assert!(milestones.is_spent(&at(45)) && !milestones.is_spent(&shrunk(45)));
        assert!(!milestones.is_spent(&shrunk(60)) && milestones.is_spent(&shrunk(70)));
        let share = |at: &Position| milestones.place(at).share;
        assert!((share(&shrunk(60)) - 160.0 * 32.0 / 1438.0 / 4.0).abs() < 1e-9 && share(&shrunk(70)) == 1.0);
        // Steps are those of each worker.
        assert!(super::tests::milestones("mean:period=10", "45step", "1epoch").is_spent(&shrunk(45)));
    }

    #[test]
    fn nothing_is_due_where_nothing_was_done() {
        let milestones = milestones("mean", "4epoch", "0step");
        assert!(milestones.evaluates(&at(0), &at(1)) && !milestones.evaluates(&at(1), &at(1)));
    }

    proptest! {
        /// However a run is divided into cycles, its budget ends at the same step.
        #[test]
        fn a_budget_of_epochs_is_spent_at_its_steps(epochs in 0.0f64..50.0) {
            let milestones = milestones("mean", &format!("{epochs}epoch"), "1epoch");
            let steps = milestones.steps().unwrap();
            let passes = |steps: u64| milestones.progress(&at(steps), 0, 0).epochs;
            prop_assert!(passes(steps) >= epochs && (steps == 0 || passes(steps - 1) < epochs));
        }

        /// Every multiple is met once, whatever the length of a cycle.
        #[test]
        fn what_comes_every_so_often_is_never_missed(every in 1u64..50, cycle in 1u64..70, cycles in 1u64..40) {
            let milestones = milestones("mean", "100000step", &format!("{every}step"));
            let due = (0..cycles).filter(|n| milestones.evaluates(&at(n * cycle), &at((n + 1) * cycle))).count() as u64;
            let expected = if every >= cycle { cycles * cycle / every } else { cycles };
            prop_assert_eq!(due, expected);
        }
    }
}

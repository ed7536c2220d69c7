//! A worker's counters and scores, which the loop keeps and a set updates step by step.

use crate::Error;
use crate::event::{Event, Fault};
use crate::milestones::Position;
use crate::process::{Common, Note};
use crate::round_message::{RoundMessage, Tally};
use crate::snapshot::{Part, Past};
use grawa_core::{Key, Optimizer, Purpose, Report, Share, Tracker};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A cycle of local steps: what all workers of a set need for it.
pub struct Cycle {
    #[doc(hidden)]
    pub common: Arc<Common>,
    #[doc(hidden)]
    pub at: Position,
    /// Steps of each worker, at an even pace.
    pub quota: u64,
    /// The number of workers of the run.
    pub members: usize,
    /// The strengths of the pulls to the centre of all and to that of the inner group, in each step.
    pub prox: [f32; 2],
    /// Whether a score needs the norms of every gradient.
    pub norms: bool,
    #[doc(hidden)]
    pub only: Option<u64>,
    #[doc(hidden)]
    pub round_due: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

impl Cycle {
    /// The optimizer of the local steps.
    pub fn optimizer(&self) -> Optimizer {
        self.common.optimizer
    }

    /// The radius of SAM, where the method has one.
    pub fn radius(&self) -> Option<f32> {
        self.common.method.radius.map(|radius| radius as f32)
    }

    /// How long a worker pauses after a step that took `spent`: more than nothing where it is made slower.
    pub fn pause(&self, worker: &WorkerState, spent: Duration) -> Duration {
        let slow = self.common.slow.iter().find(|(slow, _)| *slow == worker.id);
        slow.map_or(Duration::ZERO, |(_, factor)| spent.mul_f64(factor - 1.0))
    }

    /// Whether a stop was requested.
    pub fn is_stopping(&self) -> bool {
        self.common.stop.load(Ordering::Relaxed)
    }

    /// The time by the clock of the run.
    pub fn now(&self) -> Duration {
        (self.common.clock)()
    }

    /// The learning rate of the step after `others` steps of this cycle.
    pub fn rate_after(&self, others: u64) -> f64 {
        self.common.rate_after(&self.at, others, self.members)
    }

    /// Whether the cycle is over for a worker that has taken this many steps since the set was asked: `None` if it may take another
    /// step, else whether its cycle is full. At a free pace the answer uses up a ticket.
    pub fn is_over(&self, worker: &WorkerState, taken_now: u64) -> Result<Option<bool>, Error> {
        if self.common.stop.load(Ordering::Relaxed) {
            // At a free pace the rest of the cycle's steps are taken after a resume.
            return Ok(Some(self.common.pacing.is_even() && worker.in_cycle >= self.quota));
        }
        Ok(if self.may_step(worker, taken_now)? { None } else { Some(true) })
    }

    /// How many steps a worker may take in one go, where workers step together.
    pub fn steps_left(&self, worker: &WorkerState, taken_now: u64) -> u64 {
        self.only.map_or(self.quota.saturating_sub(worker.in_cycle), |only| only - taken_now)
    }

    pub(crate) fn may_step(&self, worker: &WorkerState, taken_now: u64) -> Result<bool, Error> {
        if let Some(only) = self.only {
            return Ok(taken_now < only);
        }
        let place = (self.at.steps, self.common.milestones.cycle(&self.at), self.members);
        let is_called = || self.round_due.as_ref().is_some_and(|due| due());
        self.common.pacing.may_step(worker.id, worker.in_cycle, self.quota, place, is_called)
    }
}

/// A local step that a worker has taken.
#[derive(Clone, Copy, Debug)]
pub struct StepTaken<'a> {
    /// Its learning rate.
    pub rate: f64,
    /// The loss of its batch.
    pub loss: f64,
    /// The norms of its gradient by span, where [`Cycle::norms`].
    pub norms: &'a [f64],
    /// Whether the parameters are finite after it.
    pub finite: bool,
}

/// A worker, without its vectors.
#[derive(Clone, Debug, Default)]
pub struct WorkerState {
    /// Its number in the run.
    pub id: u32,
    /// Its index in the set.
    pub index: usize,
    /// Its inner group, counted from the first one that has workers in the set.
    pub inner: usize,
    /// Its steps in this cycle.
    pub in_cycle: u64,
    /// Its steps in all.
    pub(crate) taken: u64,
    /// It has taken all steps of this cycle.
    pub(crate) full: bool,
    /// In an elastic group: the shard of the examples that its replica reads, and of how many.
    pub(crate) division: Option<(u32, u32)>,
    /// The shard of the examples that it reads; after `since` of its own steps it is at step `first` of it.
    pub(crate) shard: u32,
    pub(crate) first: u64,
    pub(crate) since: u64,
    /// The loss of its last batch, and whether its parameters are finite.
    pub(crate) loss: f64,
    pub(crate) finite: bool,
    pub(crate) tally: Tally,
    pub(crate) past: Past,
    /// The norms of its last gradient, or of its score batch.
    pub(crate) norms: Vec<f64>,
    /// The learning rate of its last step in this cycle that had one above 0; 0 if none had.
    pub(crate) rate: f64,
    /// A digest of its vector, if steps have changed it; 0 where nobody looks.
    pub(crate) digest: u64,
    /// Its scores for each level of rounds.
    pub(crate) trackers: Vec<Tracker>,
    /// When it had taken its steps, by the clock.
    pub(crate) done_at: Duration,
}

impl WorkerState {
    /// From its part of a snapshot.
    pub(crate) fn new(part: &Part, index: usize, inner: usize, trackers: Vec<Tracker>, spans: usize) -> Self {
        WorkerState {
            id: part.worker,
            index,
            inner,
            shard: part.worker,
            taken: part.taken,
            in_cycle: part.in_cycle,
            loss: part.loss,
            finite: part.finite,
            tally: part.tally,
            past: part.past,
            norms: vec![0.0; spans],
            trackers,
            ..WorkerState::default()
        }
    }

    /// The key of its next step.
    pub fn key(&self, cycle: &Cycle) -> Key {
        self.step_key(cycle.common.seed)
    }

    pub(crate) fn step_key(&self, seed: u64) -> Key {
        let step = self.first + self.taken.saturating_sub(self.since);
        Key::new(seed, Purpose::Step).worker(self.shard).step(step)
    }

    /// Records a step that it has taken.
    pub fn record(&mut self, cycle: &Cycle, step: &StepTaken<'_>) {
        if cycle.norms {
            self.norms.copy_from_slice(step.norms);
        }
        self.count(step.rate);
        self.measure(step.loss);
        self.note(step.finite, &cycle.common, &cycle.at);
    }

    /// It takes no more steps in this cycle, which is full or not.
    pub fn end_steps(&mut self, cycle: &Cycle, full: bool) {
        (self.full, self.done_at) = (full, cycle.now());
    }

    /// Counts a step of this learning rate. Its loss may come later.
    pub(crate) fn count(&mut self, rate: f64) {
        // A schedule may end inside a cycle. A round that goes by the rate would undo the steps before, if it took that of the last one.
        if self.in_cycle == 0 || rate > 0.0 {
            self.rate = rate;
        }
        self.taken += 1;
        self.in_cycle += 1;
        self.tally.steps += 1;
    }

    /// The loss of a step that was counted: [`WorkerState::note`] it before that of the next step.
    pub(crate) fn measure(&mut self, loss: f64) {
        self.loss = loss;
        self.tally.loss += loss;
    }

    /// Records a step, for the scores and for the others.
    pub(crate) fn note(&mut self, finite: bool, common: &Common, at: &Position) {
        let was_finite = std::mem::replace(&mut self.finite, finite);
        if was_finite && !finite && common.method.share == Share::Nothing {
            let what = "its parameters are not finite any more, and there is no centre to restore it from: \
                        start again with a smaller learning rate";
            let at = common.milestones.place(at);
            let _ = common.notes.send(Note::Event(Event::Fault(Fault {
                at,
                worker: Some(self.id),
                what: what.into(),
            })));
        }
        for tracker in &mut self.trackers {
            tracker.step(self.loss, &self.norms, finite);
        }
    }

    /// Counts time as computing, without the time spent waiting for a core and for data.
    pub fn spend(&mut self, spent: Duration, (queue, data): (f64, f64)) {
        self.tally.times.queue += queue;
        self.tally.times.data += data;
        self.tally.times.compute += (spent.as_secs_f64() - queue - data).max(0.0);
    }

    /// Its report to a round of this level.
    pub(crate) fn report(&self, level: usize) -> Report {
        self.trackers[level].report(self.id, &self.norms)
    }

    /// Its message to all workers, with this report.
    pub(crate) fn message(&self, report: Report) -> RoundMessage {
        RoundMessage {
            full: self.full,
            steps: self.in_cycle,
            taken: self.taken,
            finite: report.finite,
            scores: report.scores,
            rate: self.rate,
            digest: self.digest,
            tally: self.tally,
        }
    }
}

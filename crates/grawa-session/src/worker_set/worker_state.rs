//! A worker's counters and scores, which the loop keeps and a set updates step by step.

use crate::event::{Event, Fault};
use crate::milestones::Position;
use crate::process::{Common, Note};
use crate::round_message::{RoundMessage, Tally};
use crate::snapshot::{Part, Past};
use grawa_core::{Key, Purpose, Report, Share, Tracker};
use std::sync::Arc;
use std::time::Duration;

/// A cycle of local steps: what all workers of a set need for it.
pub struct Cycle {
    pub common: Arc<Common>,
    pub at: Position,
    /// Steps of each worker.
    pub quota: u64,
    /// The number of workers of the run.
    pub members: usize,
    /// The strengths of the pulls to the centre of all and to that of the inner group.
    pub prox: [f32; 2],
    /// Whether a score needs the norms of every gradient.
    pub norms: bool,
    /// Each worker takes this many steps now, whatever the pace.
    pub only: Option<u64>,
    /// In an elastic group: whether the coordinator calls for the round.
    pub round_due: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

impl Cycle {
    /// The learning rate of the step after `others` steps of this cycle.
    pub fn rate_after(&self, others: u64) -> f64 {
        self.common.rate_after(&self.at, others, self.members)
    }

    /// Whether a worker may take another step.
    pub fn may_step(&self, worker: &WorkerState, taken_now: u64) -> Result<bool, crate::Error> {
        if let Some(only) = self.only {
            return Ok(taken_now < only);
        }
        let place = (self.at.steps, self.common.milestones.cycle(&self.at), self.members);
        let is_called = || self.round_due.as_ref().is_some_and(|due| due());
        self.common.pacing.may_step(worker.id, worker.in_cycle, self.quota, place, is_called)
    }
}

/// A worker, without its vectors.
#[derive(Clone, Debug, Default)]
pub struct WorkerState {
    pub id: u32,
    /// Its index in the set, and its inner group there.
    pub index: usize,
    pub inner: usize,
    /// In an elastic group: the shard of the examples that its replica reads, and of how many.
    pub division: Option<(u32, u32)>,
    /// The shard of the examples that it reads; after `since` of its own steps it is at step `first` of it.
    pub shard: u32,
    pub first: u64,
    pub since: u64,
    /// Its own steps: in all, and in this cycle.
    pub taken: u64,
    pub in_cycle: u64,
    /// It has taken all steps of this cycle.
    pub full: bool,
    /// The loss of its last batch, and whether its parameters are finite.
    pub loss: f64,
    pub finite: bool,
    pub tally: Tally,
    pub past: Past,
    /// The norms of its last gradient, or of its score batch.
    pub norms: Vec<f64>,
    /// The learning rate of its last step.
    pub rate: f64,
    /// Its scores for each level of rounds.
    pub trackers: Vec<Tracker>,
    /// When it had taken its steps, by the clock.
    pub done_at: Duration,
}

impl WorkerState {
    /// From its part of a snapshot.
    pub fn new(part: &Part, index: usize, inner: usize, trackers: Vec<Tracker>, spans: usize) -> Self {
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
    pub fn key(&self, seed: u64) -> Key {
        let step = self.first + self.taken.saturating_sub(self.since);
        Key::new(seed, Purpose::Step).worker(self.shard).step(step)
    }

    /// Counts a step.
    pub fn count(&mut self, loss: f64) {
        self.loss = loss;
        self.taken += 1;
        self.in_cycle += 1;
        self.tally.steps += 1;
        self.tally.loss += loss;
    }

    /// Records a step, for the scores and for the others.
    pub fn note(&mut self, finite: bool, common: &Common, at: &Position) {
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
    pub fn report(&self, level: usize) -> Report {
        self.trackers[level].report(self.id, &self.norms)
    }

    /// Its message to all workers, with this report.
    pub fn message(&self, report: Report) -> RoundMessage {
        RoundMessage {
            full: self.full,
            steps: self.in_cycle,
            taken: self.taken,
            finite: report.finite,
            scores: report.scores,
            tally: self.tally,
        }
    }
}

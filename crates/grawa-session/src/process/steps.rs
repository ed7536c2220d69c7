//! Local steps, gradients to be shared, and scores of the workers of a process.

use super::{Level, Process};
use crate::Error;
use crate::membership::Membership;
use crate::worker_set::{Cycle, WorkerState};
use grawa_core::{Key, Purpose, Score, Source, Tracker};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Process {
    /// What the set needs for a cycle of local steps.
    pub fn cycle_of(&self, quota: u64, only: Option<u64>) -> Arc<Cycle> {
        let strength = |level: Option<&Level>| match level {
            Some(level) if level.method.prox > 0.0 => {
                let period = self.common.milestones.period(&self.at).max(level.method.period.into());
                level.method.prox_a_step(period) as f32
            }
            _ => 0.0,
        };
        let (all, inner) =
            self.levels.split_last().map_or((None, &[][..]), |(all, inner)| (Some(all), inner));
        let prox = [strength(all), strength(inner.first())];
        let round_due = match &self.membership {
            Membership::Elastic(all, _) => Some(all.round_due()),
            _ => None,
        };
        Arc::new(Cycle {
            common: Arc::clone(&self.common),
            at: self.at,
            quota,
            members: self.run_workers(),
            prox,
            norms: self.workers.iter().flat_map(|worker| &worker.trackers).any(Tracker::wants_norms),
            only,
            round_due,
        })
    }

    /// Local steps of all workers.
    pub(crate) fn local_steps(&mut self, quota: u64) -> Result<(), Error> {
        // An evaluation may have finished a round that overlaps with training.
        self.refresh_centre()?;
        let cycle = self.cycle_of(quota, None);
        if self.skips_steps() {
            let full = !self.common.stop.load(Ordering::Relaxed);
            for worker in &mut self.workers {
                // The rate is that of the others.
                (worker.full, worker.rate) = (full, cycle.rate_after(quota.saturating_sub(1)));
            }
            return Ok(());
        }
        let results = self.set.local_steps(&cycle, self.workers.clone());
        self.take(results, |worker, state| *worker = state)?;
        let now = (self.common.clock)();
        for worker in &mut self.workers {
            worker.tally.times.wait += now.saturating_sub(worker.done_at).as_secs_f64();
        }
        Ok(())
    }

    /// The gradients of the next step, to be shared.
    pub(crate) fn compute_gradients(&mut self) -> Result<(), Error> {
        let common = Arc::clone(&self.common);
        let start = (common.clock)();
        let keys: Vec<_> =
            self.workers.iter().map(|worker| (worker.index, worker.step_key(common.seed))).collect();
        let gradients = self.set.gradients(&keys, common.method.radius.map(|radius| radius as f32));
        self.take(gradients, |worker, (loss, norms)| {
            worker.count(0.0);
            worker.measure(loss);
            (worker.norms, worker.full) = (norms, true);
        })?;
        self.spend(start);
        Ok(())
    }

    /// The step with the gradients that were shared.
    pub(crate) fn descend(&mut self) -> Result<(), Error> {
        let common = Arc::clone(&self.common);
        let start = (common.clock)();
        let cycle = self.cycle_of(1, None);
        let others = self.workers.first().map_or(0, |worker| worker.in_cycle.saturating_sub(1));
        let rate = cycle.rate_after(others);
        let finite = self.set.descend(&self.indices(), common.optimizer, rate as f32, cycle.prox);
        self.take(finite, |worker, finite| {
            worker.rate = rate;
            worker.note(finite, &common, &cycle.at);
        })?;
        self.spend(start);
        Ok(())
    }

    /// Counts the time since `start` as computing of all workers.
    pub(crate) fn spend(&mut self, start: Duration) {
        let spent = (self.common.clock)().saturating_sub(start);
        for worker in &mut self.workers {
            worker.spend(spent, self.set.waits(worker.index));
        }
    }

    /// The keys of the score batches of a level, by worker, and whether dropout is on; `None` if it scores no batch.
    pub(crate) fn score_keys(&self, level: usize) -> Option<(Vec<(usize, Key)>, bool)> {
        let Level { method, memories, groups, .. } = &self.levels[level];
        let Score::Norm { from: Source::Batch { common, dropout }, .. } = method.score else {
            return None;
        };
        let key = |worker: &WorkerState| {
            let group = groups.iter().position(|group| group.contains(&worker.id)).unwrap_or(0);
            let who = if common { 0 } else { worker.id };
            let key = Key::new(self.common.seed, Purpose::ScoreBatch);
            (worker.index, key.worker(who).step(memories[group].rounds))
        };
        Some((self.workers.iter().map(key).collect(), dropout))
    }

    /// Computes the scores of a level that scores a batch.
    pub(crate) fn score(&mut self, level: usize) -> Result<(), Error> {
        let Some((keys, dropout)) = self.score_keys(level) else { return Ok(()) };
        let start = (self.common.clock)();
        let norms = self.set.score(&keys, dropout);
        self.take(norms, |worker, norms| worker.norms = norms)?;
        let spent = (self.common.clock)().saturating_sub(start).as_secs_f64();
        for worker in &mut self.workers {
            let (queue, data) = self.set.waits(worker.index);
            worker.tally.times.queue += queue;
            worker.tally.times.score += (spent - queue - data).max(0.0);
        }
        Ok(())
    }
}

//! The workers of one GPU, in lock-step: every operation is that of all of them.

use super::batch::{Data, Stream, load_host_batches};
use super::evaluate::{Batches, Results, measure};
use crate::Error;
use crate::engine::{Counts, SHARE, recalibration, score_examples};
use crate::worker_set::{Cycle, Shard, StepTaken, WorkerState};
use grawa_core::{Key, Optimizer, Purpose, StateKind};
use grawa_nn::Graph;
use grawa_nn::cuda::{Kept, Model, ReplicaSet, Split};
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// The most steps in one request.
pub(super) const STRIDE: usize = 256;

/// One GPU and its workers.
#[derive(Debug)]
pub(super) struct Gpu {
    pub(super) set: ReplicaSet,
    /// The numbers of its workers in the run, and the index of the first one in the process.
    pub(super) workers: Range<u32>,
    pub(super) first: usize,
    pub(super) graph: Graph,
    pub(super) data: Data,
    pub(super) streams: Vec<Stream>,
    /// The steps of the workers' batches that are copied to the GPU ahead.
    pub(super) ahead: Option<Vec<u64>>,
    /// The recalibration batches, from the first evaluation on: the key of each one's augmentation, and its examples.
    pub(super) recalibration: Option<Vec<(Key, Vec<u32>)>>,
}

/// The results of a worker's steps.
#[derive(Clone, Debug, Default)]
struct StepsTaken {
    losses: Vec<f64>,
    finite: bool,
    norms: Vec<f64>,
}

impl Gpu {
    /// How many steps to request at a time: more than one if the GPU would otherwise wait for the host.
    fn stride(&self) -> u64 {
        if self.data.on_device { STRIDE as u64 } else { 1 }
    }

    /// A cycle of local steps of all workers.
    pub(super) fn local_steps(
        &mut self,
        cycle: &Cycle,
        mut workers: Vec<WorkerState>,
        step: &dyn Fn(),
    ) -> Result<Vec<WorkerState>, Error> {
        let mut taken_now = 0;
        let full = loop {
            if let Some(full) = cycle.is_over(&workers[0], taken_now)? {
                break full;
            }
            let in_cycle = workers[0].in_cycle;
            let count = self.stride().min(cycle.steps_left(&workers[0], taken_now)).max(1);
            let rates: Vec<f64> = (0..count).map(|step| cycle.rate_after(in_cycle + step)).collect();
            let start = cycle.now();
            let keys: Vec<Key> = workers.iter().map(|worker| worker.key(cycle)).collect();
            let results = self.take_steps(cycle, &keys, &rates)?;
            let spent = cycle.now().saturating_sub(start);
            for (worker, (results, stream)) in
                workers.iter_mut().zip(results.into_iter().zip(&mut self.streams))
            {
                // Empty where norms are not wanted.
                let spans = results.norms.len() / results.losses.len().max(1);
                for (at, &loss) in results.losses.iter().enumerate() {
                    let (rate, finite) = (rates[at], results.finite);
                    let norms = &results.norms[at * spans..(at + 1) * spans];
                    worker.record(cycle, &StepTaken { rate, loss, norms, finite });
                    step();
                }
                worker.spend(spent, (0.0, std::mem::take(&mut stream.waited)));
            }
            taken_now += count;
        };
        workers.iter_mut().for_each(|worker| worker.end_steps(cycle, full));
        Ok(workers)
    }

    /// Gives the GPU the training batches of `count` steps: one step, if they come from the host.
    fn load_train_batches(&mut self, keys: &[Key], count: u64) -> Result<(), Error> {
        let streams = self.streams.iter_mut().zip(keys).map(|(stream, key)| (stream, key.place().1));
        if self.data.on_device {
            for (worker, (stream, step)) in streams.enumerate() {
                self.set.assign(Split::Train, worker, &stream.examples(step, count)?)?;
            }
            return Ok(());
        }
        let wanted: Vec<u64> = keys.iter().map(|key| key.place().1).collect();
        if self.ahead.take() == Some(wanted) {
            return Ok(self.set.load_ahead()?);
        }
        let shown: Result<Vec<_>, Error> = streams.map(|(stream, step)| stream.host_batch(step)).collect();
        Ok(self.set.load_batches(&shown?)?)
    }

    /// Finds the examples of as many steps again, or copies the next batches from the host, while the GPU takes the `count` steps from
    /// these keys on.
    fn look_ahead(&mut self, keys: &[Key], count: u64) -> Result<(), Error> {
        let next: Vec<u64> = keys.iter().map(|key| key.place().1 + count).collect();
        let streams = self.streams.iter_mut().zip(&next);
        if self.data.on_device {
            streams.for_each(|(stream, &step)| stream.look_ahead(step, count));
            return Ok(());
        }
        let shown: Result<Vec<_>, Error> = streams.map(|(stream, &step)| stream.host_batch(step)).collect();
        match shown {
            Ok(shown) => {
                self.set.copy_ahead(&shown)?;
                self.ahead = Some(next);
            }
            // The batches are read again when they are asked for, and the error is reported then.
            Err(_) => self.streams.iter_mut().for_each(Stream::forget_host_batches),
        }
        Ok(())
    }

    fn take_steps(&mut self, cycle: &Cycle, keys: &[Key], rates: &[f64]) -> Result<Vec<StepsTaken>, Error> {
        let rates: Vec<f32> = rates.iter().map(|&rate| rate as f32).collect();
        let (count, optimizer, radius) = (rates.len(), cycle.optimizer(), cycle.radius());
        self.load_train_batches(keys, count as u64)?;
        let (set, on_device) = (&mut self.set, self.data.on_device);
        set.set_positions(keys, &rates, cycle.prox)?;
        let mut norms: Vec<Vec<f64>> = vec![Vec::new(); keys.len()];
        if radius.is_none() && !cycle.norms && on_device {
            set.steps(optimizer, count)?;
        } else {
            for _ in 0..count {
                set.compute_gradients()?;
                if let Some(radius) = radius {
                    set.ascend(radius)?;
                    set.recompute_gradients()?;
                    set.restore()?;
                }
                if cycle.norms {
                    norms.iter_mut().zip(set.norms()?).for_each(|(all, norms)| all.extend(norms));
                }
                set.descend(optimizer)?;
            }
        }
        self.look_ahead(keys, count as u64)?;
        // The GPU records whether a number was ever not finite; such a number stays.
        let taken = |((losses, lost), norms): ((_, bool), _)| StepsTaken { losses, finite: !lost, norms };
        Ok(self.set.losses(count)?.into_iter().zip(norms).map(taken).collect())
    }

    /// The gradients of all workers at these keys. Returns the losses.
    pub(super) fn gradients(&mut self, keys: &[Key], radius: Option<f32>) -> Result<Vec<f64>, Error> {
        self.load_train_batches(keys, 1)?;
        let set = &mut self.set;
        set.set_positions(keys, &[0.0], [0.0; 2])?;
        set.compute_gradients()?;
        if let Some(radius) = radius {
            set.ascend(radius)?;
            set.recompute_gradients()?;
            set.restore()?;
        }
        self.look_ahead(keys, 1)?;
        Ok(self.set.losses(1)?.into_iter().filter_map(|(losses, _)| losses.first().copied()).collect())
    }

    /// A step with the current gradients. Returns which workers are finite.
    pub(super) fn descend(
        &mut self,
        optimizer: Optimizer,
        rate: f32,
        prox: [f32; 2],
    ) -> Result<Vec<bool>, Error> {
        self.set.set_rate(rate, prox)?;
        self.set.descend(optimizer)?;
        Ok(self.set.losses(1)?.into_iter().map(|(_, lost)| !lost).collect())
    }

    /// The norms of all workers' gradients on their score batches.
    pub(super) fn score(&mut self, keys: &[Key], dropout: bool) -> Result<Vec<Vec<f64>>, Error> {
        let batch = |key: &Key| self.data.train_batch(None, score_examples(&self.data.order, *key)?);
        let batches = keys.iter().map(batch).collect::<Result<_, Error>>()?;
        let keys: Vec<Key> = keys.iter().map(|key| key.purpose(Purpose::Dropout)).collect();
        let examples = load_host_batches(&mut self.set, batches)?;
        Ok(self.set.score(&keys, examples.as_deref(), dropout)?)
    }

    /// A worker reads another shard of the examples.
    pub(super) fn assign_shard(&mut self, worker: usize, shard: u32, of: u32) -> Result<(), Error> {
        let order = self.data.order.for_workers(of)?;
        self.streams[worker] = Stream::new(&self.data, &order, shard)?;
        self.ahead = None;
        self.load_labels()
    }

    /// Gives the GPU the labels of each worker, where some are wrong.
    pub(super) fn load_labels(&mut self) -> Result<(), Error> {
        let true_labels = self.data.train.split().labels();
        if !self.data.on_device || self.data.order.is_alike() {
            return Ok(());
        }
        let labels: Vec<&[u32]> =
            self.streams.iter().map(|stream| stream.labels().unwrap_or(true_labels)).collect();
        Ok(self.set.load_labels(&labels)?)
    }

    pub(super) fn copy(&self, worker: usize, what: StateKind) -> Result<Vec<f32>, Error> {
        Ok(match what {
            StateKind::Parameters => self.set.parameters(worker),
            StateKind::Velocity => self.set.velocity(worker),
            StateKind::SecondMoment => self.set.second_moment(worker),
            StateKind::Statistics => self.set.statistics(worker),
        }?)
    }

    pub(super) fn put(&mut self, worker: usize, what: StateKind, values: &[f32]) -> Result<(), Error> {
        Ok(match what {
            StateKind::Parameters => self.set.load_parameters(worker, values),
            StateKind::Velocity => self.set.load_velocity(worker, values),
            StateKind::SecondMoment => self.set.load_second_moment(worker, values),
            StateKind::Statistics => self.set.load_statistics(worker, values),
        }?)
    }

    /// Sums of the batch statistics of the recalibration batches of these shards, one for each worker.
    pub(super) fn recalibrate(
        &mut self,
        model: Model,
        shards: &[Shard],
        batches: usize,
        step: &dyn Fn() -> bool,
    ) -> Result<Vec<(Vec<f64>, u64)>, Error> {
        let Gpu { set, data, recalibration: all, .. } = self;
        if all.is_none() {
            // The same in every evaluation.
            *all = Some(recalibration(&data.order, (0, 1), batches)?);
        }
        let all = all.as_deref().unwrap_or_default();
        let make = |number: usize| {
            let (key, examples) = &all[number];
            Ok((*key, data.train_batch(Some(*key), examples.clone())?))
        };
        let batches = Batches { kept: Kept::Statistics, count: all.len(), make: &make };
        let mut sums = vec![(vec![0.0; self.graph.statistics().len()], 0); shards.len()];
        measure(set, (model, None), shards, &batches, step, &mut |found| {
            sums.par_iter_mut().zip(found).for_each(|((sums, count), found)| {
                *count += found.len() as u64;
                for (_, batch) in found {
                    sums.iter_mut().zip(batch).for_each(|(sum, found)| *sum += f64::from(found) / SHARE);
                }
            });
        })?;
        Ok(sums)
    }

    /// Calls `take` with the logits of the test batches of these shards, of many batches at a time.
    fn test_batches(
        &mut self,
        model: Model,
        shards: &[Shard],
        statistics: &[Arc<Vec<f32>>],
        step: &dyn Fn() -> bool,
        take: &mut dyn FnMut(&Data, Vec<Results>),
    ) -> Result<(), Error> {
        let Gpu { set, data, .. } = self;
        // The test set is never augmented.
        let unused = Key::new(0, Purpose::Augment);
        let make = |number: usize| Ok((unused, data.test_batch(number)?));
        let count = data.test.len().div_ceil(data.order.batch_size() as usize);
        let batches = Batches { kept: Kept::Logits, count, make: &make };
        measure(set, (model, Some(statistics)), shards, &batches, step, &mut |found| take(data, found))
    }

    /// Calls `show` with the logits and the label of every example of this shard's test batches.
    pub(super) fn each(
        &mut self,
        model: Model,
        shard: Shard,
        statistics: Arc<Vec<f32>>,
        show: &mut dyn FnMut(&[f32], usize),
    ) -> Result<(), Error> {
        let classes = self.graph.classes();
        self.test_batches(model, &[shard], &[statistics], &|| true, &mut |data, found| {
            found.iter().flatten().for_each(|result| data.each_example(classes, result, &mut *show));
        })
    }

    /// The counts of these shards' test batches.
    pub(super) fn test(
        &mut self,
        model: Model,
        shards: &[Shard],
        statistics: &[Arc<Vec<f32>>],
        step: &dyn Fn() -> bool,
    ) -> Result<Vec<Counts>, Error> {
        let classes = self.graph.classes();
        let mut counts = vec![Counts::default(); shards.len()];
        self.test_batches(model, shards, statistics, step, &mut |data, found| {
            counts.par_iter_mut().zip(found).for_each(|(counts, found)| {
                let mut take = |logits: &[f32], label: usize| counts.take(logits, label);
                found.iter().for_each(|result| data.each_example(classes, result, &mut take));
            });
        })?;
        Ok(counts)
    }
}

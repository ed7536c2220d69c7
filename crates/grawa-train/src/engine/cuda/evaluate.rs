//! Evaluation of a model on a GPU: it replaces all workers, and each takes every n-th batch, as on the CPU.

use super::batch::{Batch, load_host_batches};
use super::{DeviceShared, DeviceVector};
use crate::Error;
use crate::engine::{EvaluateShard, SHARE, recalibration};
use crate::recipe::BatchNorm;
use grawa_core::{Key, Layout, Purpose};
use grawa_nn::cuda::{Model, ReplicaSet};
use std::sync::Arc;

/// Evaluates models for one worker.
#[derive(Debug)]
pub(crate) struct CudaEvaluator {
    pub(super) shared: Arc<DeviceShared>,
    pub(super) worker: usize,
    pub(super) policy: BatchNorm,
    /// The number of recalibration batches.
    pub(super) batches: usize,
}

/// A worker's request: a model, its statistics, and batches with the keys of their augmentation.
struct Request {
    model: Model,
    statistics: Option<Vec<f32>>,
    batches: Vec<(Key, Batch)>,
}

/// Batches of a worker in one request: those from the host must all fit in its memory.
const AT_ONCE: usize = 16;

/// A shard's batches in chunks. Every shard has as many chunks as one with `most` batches, because the GPU waits for
/// all workers.
fn chunks_of_batches<T>(batches: &[T], most: usize) -> impl Iterator<Item = &[T]> {
    let part = |from: usize| &batches[from.min(batches.len())..(from + AT_ONCE).min(batches.len())];
    (0..most).step_by(AT_ONCE).map(part)
}

fn model(of: &DeviceVector) -> Model {
    match *of {
        DeviceVector::Centre { level, group } => Model::Centre { level, group },
        DeviceVector::Parameters | DeviceVector::Gradients => Model::Own,
    }
}

/// Runs every worker's batches through its model, one of each at a time; `pass` computes the result of one.
fn run_batches<T>(
    set: &mut ReplicaSet,
    mut requests: Vec<Request>,
    mut pass: impl FnMut(&mut ReplicaSet, &[Key], Option<&[Vec<u32>]>) -> Result<Vec<T>, grawa_nn::Error>,
) -> Result<Vec<Vec<T>>, Error> {
    set.load_models(&requests.iter().map(|request| request.model).collect::<Vec<_>>())?;
    for (worker, request) in requests.iter_mut().enumerate() {
        if let Some(statistics) = request.statistics.take() {
            set.load_statistics(worker, &statistics)?;
        }
    }
    let mut found: Vec<Vec<T>> = requests.iter().map(|_| Vec::new()).collect();
    let most = requests.iter().map(|request| request.batches.len()).max().unwrap_or(0);
    // A worker with fewer batches repeats another's.
    let filler = requests.iter().find_map(|request| request.batches.first().cloned());
    for number in 0..most {
        let next = |request: &Request| request.batches.get(number).cloned().or_else(|| filler.clone());
        let (keys, batches): (Vec<Key>, Vec<Batch>) = requests.iter().filter_map(next).unzip();
        let examples = load_host_batches(set, batches)?;
        let results = pass(set, &keys, examples.as_deref())?;
        for ((request, found), result) in requests.iter().zip(&mut found).zip(results) {
            if number < request.batches.len() {
                found.push(result);
            }
        }
    }
    Ok(found)
}

/// The same, and restores the workers in any case.
fn with_models<T>(
    set: &mut ReplicaSet,
    requests: Vec<Request>,
    pass: impl FnMut(&mut ReplicaSet, &[Key], Option<&[Vec<u32>]>) -> Result<Vec<T>, grawa_nn::Error>,
) -> Result<Vec<Vec<T>>, Error> {
    let found = run_batches(set, requests, pass);
    set.unload_models()?;
    found
}

impl EvaluateShard<DeviceVector> for CudaEvaluator {
    fn policy(&self) -> BatchNorm {
        self.policy
    }

    fn statistics(&self) -> &Layout {
        self.shared.graph.statistics()
    }

    fn recalibrate(
        &mut self,
        of: &DeviceVector,
        (shard, shards): (usize, usize),
        alive: &mut dyn FnMut(),
    ) -> Result<(Vec<f64>, u64), Error> {
        let chosen = recalibration(&self.shared.order, (shard, shards), self.batches)?;
        let (mut sums, mut count) = (vec![0.0; self.statistics().len()], 0);
        for chosen in chunks_of_batches(&chosen, self.batches.div_ceil(shards)) {
            alive();
            let batch = |(key, chosen): &(Key, Vec<u32>)| {
                Ok((*key, self.shared.train_batch(Some(*key), chosen.clone())?))
            };
            let batches = chosen.iter().map(batch).collect::<Result<_, Error>>()?;
            let request = Request { model: model(of), statistics: None, batches };
            let found = self.shared.lockstep.together(self.worker, request, |set, requests| {
                with_models(set, requests, ReplicaSet::batch_statistics)
            })?;
            count += found.len() as u64;
            for batch in &found {
                sums.iter_mut().zip(batch).for_each(|(sum, &found)| *sum += f64::from(found) / SHARE);
            }
        }
        Ok((sums, count))
    }

    fn each(
        &mut self,
        of: &DeviceVector,
        statistics: &[f32],
        (shard, shards): (usize, usize),
        alive: &mut dyn FnMut(),
        show: &mut dyn FnMut(&[f32], usize),
    ) -> Result<(), Error> {
        let (size, examples) = (self.shared.order.batch_size() as usize, self.shared.test.len());
        let (all, classes) = (examples.div_ceil(size), self.shared.graph.classes());
        let numbers: Vec<usize> = (shard..all).step_by(shards).collect();
        for numbers in chunks_of_batches(&numbers, all.div_ceil(shards)) {
            alive();
            // The test set is never augmented.
            let unused = Key::new(0, Purpose::Augment);
            let batch = |&number: &usize| Ok((unused, self.shared.test_batch(number)?));
            let batches = numbers.iter().map(batch).collect::<Result<_, Error>>()?;
            let request = Request { model: model(of), statistics: Some(statistics.to_vec()), batches };
            let found = self.shared.lockstep.together(self.worker, request, |set, requests| {
                with_models(set, requests, |set, _, examples| set.test(examples))
            })?;
            for (&number, logits) in numbers.iter().zip(&found) {
                let labels = self.shared.test.split().labels()[number * size..].iter();
                for (logits, &label) in logits.chunks_exact(classes).zip(labels) {
                    show(logits, label as usize);
                }
            }
        }
        Ok(())
    }
}

//! Evaluation of a model on the test set, divided among workers: each takes every n-th batch.
//!
//! It does not change training state. The batch norm statistics of the evaluated model are an explicit choice:
//! recalibrated on training batches, averaged over the workers, or those of one worker.
//!
//! Recalibration runs the model on training batches as in training, augmented and in training mode but without
//! dropout, and averages the statistics of these batches with equal weights (PyTorch's `momentum=None`). Statistics of
//! images without augmentation do not fit the network: they cost VGG-16 on CIFAR-10 almost one percent of test error.

use super::{Counts, Engine};
use crate::recipe::BatchNorm;
use crate::{Error, Recipe};
use grawa_core::{Key, Layout, Purpose};
use grawa_data::Sampler;
use grawa_nn::Mode;

/// Evaluates models. Each of several shards covers its part of the batches. `alive` is to be called before every batch;
/// when it returns false the run is to stop: an evaluator that returns early then, with anything, makes it stop sooner.
pub trait EvaluateShard: Send {
    /// Where the statistics of the evaluated model come from.
    fn policy(&self) -> BatchNorm;

    /// The layout of the running statistics.
    fn statistics(&self) -> &Layout;

    /// The sum of the batch statistics over this shard's recalibration batches, and the number of batches.
    fn recalibrate(
        &mut self,
        model: &[f32],
        shard: (usize, usize),
        alive: &mut dyn FnMut() -> bool,
    ) -> Result<(Vec<f64>, u64), Error>;

    /// Calls `show` with the logits and the label of every example of this shard's test batches.
    fn each(
        &mut self,
        model: &[f32],
        statistics: &[f32],
        shard: (usize, usize),
        alive: &mut dyn FnMut() -> bool,
        show: &mut dyn FnMut(&[f32], usize),
    ) -> Result<(), Error>;

    /// The counts of this shard's test batches.
    fn test(
        &mut self,
        model: &[f32],
        statistics: &[f32],
        shard: (usize, usize),
        alive: &mut dyn FnMut() -> bool,
    ) -> Result<Counts, Error> {
        let mut counts = Counts::default();
        self.each(model, statistics, shard, alive, &mut |logits, label| counts.take(logits, label))?;
        Ok(counts)
    }
}

impl EvaluateShard for CpuEvaluator {
    fn policy(&self) -> BatchNorm {
        self.policy
    }

    fn statistics(&self) -> &Layout {
        self.engine.program.graph().statistics()
    }

    fn recalibrate(
        &mut self,
        parameters: &[f32],
        shard: (usize, usize),
        alive: &mut dyn FnMut() -> bool,
    ) -> Result<(Vec<f64>, u64), Error> {
        let graph = self.engine.program.graph();
        let mut sums = vec![0.0; graph.statistics().len()];
        let mut count = 0;
        let start = graph.initial_statistics();
        for (key, chosen) in recalibration(&self.engine.order, shard, self.batches)? {
            if !alive() {
                break;
            }
            let mut slot = self.engine.slots.borrow();
            let slot = &mut *slot;
            let batch = &mut slot.batch;
            self.engine.train.augmented(key, &chosen, &mut batch.images, &mut batch.labels)?;
            self.engine.program.forward(
                &mut slot.arena,
                parameters,
                &start,
                &batch.images,
                Mode::Train { dropout: None },
            )?;
            // Starting at zero, the running average keeps a tenth of the batch statistics.
            let mut found = vec![0.0; start.len()];
            self.engine.program.track(&slot.arena, &mut found)?;
            sums.iter_mut().zip(found).for_each(|(sum, found)| *sum += f64::from(found) / SHARE);
            count += 1;
        }
        Ok((sums, count))
    }

    fn each(
        &mut self,
        parameters: &[f32],
        statistics: &[f32],
        (shard, shards): (usize, usize),
        alive: &mut dyn FnMut() -> bool,
        show: &mut dyn FnMut(&[f32], usize),
    ) -> Result<(), Error> {
        let classes = self.engine.program.graph().classes();
        for number in (shard..self.engine.test.len().div_ceil(self.engine.program.batch())).step_by(shards) {
            if !alive() {
                break;
            }
            let mut slot = self.engine.slots.borrow();
            let slot = &mut *slot;
            let batch = &mut slot.batch;
            let real = self.engine.test.evaluation(number, &mut batch.images, &mut batch.labels)?;
            let logits = self.engine.program.forward(
                &mut slot.arena,
                parameters,
                statistics,
                &batch.images,
                Mode::Evaluate,
            )?;
            for (logits, &label) in logits.chunks_exact(classes).zip(&batch.labels).take(real) {
                show(logits, label as usize);
            }
        }
        Ok(())
    }
}

/// Evaluates models on the CPU.
#[derive(Clone, Debug)]
pub struct CpuEvaluator {
    pub(super) engine: Engine,
    pub(super) policy: BatchNorm,
    /// The number of recalibration batches.
    pub(super) batches: usize,
}

/// PyTorch's momentum of running statistics: the share that one batch contributes, starting at zero.
pub(crate) const SHARE: f64 = 0.1;

/// The number of recalibration batches.
pub(crate) fn recalibration_batches(recipe: &Recipe, examples: usize) -> usize {
    ((recipe.evaluate.images as usize).min(examples) / recipe.train.batch as usize).max(1)
}

/// The worker number of recalibration's random draws. No worker has it, so no training batch shares the draws.
const RECALIBRATION: u32 = u32::MAX;

/// A shard's recalibration batches: the key of each batch's augmentation, and its examples, the first ones of epoch 0.
/// All shards together see the same batches, however many there are.
pub(crate) fn recalibration(
    order: &Sampler,
    (shard, shards): (usize, usize),
    batches: usize,
) -> Result<Vec<(Key, Vec<u32>)>, Error> {
    let shown = order.permutation(0)?;
    let size = order.batch_size() as usize;
    let key = Key::new(order.seed(), Purpose::Augment).worker(RECALIBRATION);
    let batch = |number: usize| {
        let examples = (0..size).map(|at| shown[(number * size + at) % shown.len()]);
        (key.step(number as u64), examples.collect())
    };
    Ok((shard..batches).step_by(shards).map(batch).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many shards there are, all batches are shown once, with the same draws.
    #[test]
    fn recalibration_shows_the_same_batches_to_any_number_of_seats() {
        let batches = |workers, shards: usize| {
            let order = Sampler::new(5, 100, workers, 8).unwrap();
            let mut all: Vec<(Key, Vec<u32>)> =
                (0..shards).flat_map(|shard| recalibration(&order, (shard, shards), 17).unwrap()).collect();
            all.sort_by_key(|(key, _)| key.place());
            all
        };
        let one = batches(1, 1);
        assert_eq!(one.len(), 17);
        for shards in 2..20 {
            assert_eq!(batches(shards as u32, shards), one);
        }
        // No worker of a run has the same draws.
        let order = Sampler::new(5, 100, 4, 8).unwrap();
        assert!(one.iter().all(|(key, _)| key.place().0 >= order.workers()));
    }
}

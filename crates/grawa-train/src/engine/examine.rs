//! Measuring a model on the test set, shared out: each of several workers takes every n-th batch.
//!
//! Nothing that training can see is touched. Batch norm's statistics for the measured model are an explicit choice:
//! recalibrated on training batches, averaged over the workers, or those of one worker.
//!
//! Recalibration shows the model training batches as training does, augmented and in training mode but without dropout,
//! and averages the statistics of these batches with equal weights (PyTorch's `momentum=None`). Statistics of images that
//! are not augmented do not fit the network: they cost VGG-16 on CIFAR-10 almost one percent of test error.

use super::{Engine, Lanes};
use crate::recipe::BatchNorm;
use crate::{Error, Recipe};
use grawa_core::{Key, Layout, Purpose};
use grawa_data::{Feed, Sampler};
use grawa_nn::{Mode, Program};
use std::sync::Arc;

/// Who measures models that lie in such vectors, for one worker: each of several seats takes its share of the batches.
pub(crate) trait Examine<B: ?Sized>: Send {
    /// Where the measured model's statistics come from.
    fn policy(&self) -> BatchNorm;

    /// Where the running statistics lie.
    fn statistics(&self) -> &Layout;

    /// The sum of the batch statistics over this seat's batches of recalibration, and how many batches they are.
    fn recalibrate(
        &mut self,
        model: &B,
        seat: (usize, usize),
        alive: &mut dyn FnMut(),
    ) -> Result<(Vec<f64>, u64), Error>;

    /// Shows the logits and the label of every example of this seat's test batches.
    fn each(
        &mut self,
        model: &B,
        statistics: &[f32],
        seat: (usize, usize),
        alive: &mut dyn FnMut(),
        show: &mut dyn FnMut(&[f32], usize),
    ) -> Result<(), Error>;

    /// What this seat's test batches give.
    fn test(
        &mut self,
        model: &B,
        statistics: &[f32],
        seat: (usize, usize),
        alive: &mut dyn FnMut(),
    ) -> Result<Counts, Error> {
        let mut counts = Counts::default();
        self.each(model, statistics, seat, alive, &mut |logits, label| counts.take(logits, label))?;
        Ok(counts)
    }
}

impl Examine<[f32]> for Examiner {
    fn policy(&self) -> BatchNorm {
        self.policy
    }

    fn statistics(&self) -> &Layout {
        self.program.graph().statistics()
    }

    fn recalibrate(
        &mut self,
        parameters: &[f32],
        seat: (usize, usize),
        alive: &mut dyn FnMut(),
    ) -> Result<(Vec<f64>, u64), Error> {
        let graph = self.program.graph();
        let mut sums = vec![0.0; graph.statistics().len()];
        let mut count = 0;
        let start = graph.initial_statistics();
        for (key, chosen) in recalibration(&self.order, seat, self.batches)? {
            alive();
            let mut lane = self.lanes.borrow();
            let lane = &mut *lane;
            let batch = &mut lane.batch;
            self.train.augmented(key, &chosen, &mut batch.images, &mut batch.labels)?;
            self.program.forward(
                &mut lane.arena,
                parameters,
                &start,
                &batch.images,
                Mode::Train { dropout: None },
            )?;
            // From zero, the running average keeps a tenth of the batch's own statistics.
            let mut found = vec![0.0; start.len()];
            self.program.track(&lane.arena, &mut found)?;
            sums.iter_mut().zip(found).for_each(|(sum, found)| *sum += f64::from(found) / SHARE);
            count += 1;
        }
        Ok((sums, count))
    }

    fn each(
        &mut self,
        parameters: &[f32],
        statistics: &[f32],
        (seat, seats): (usize, usize),
        alive: &mut dyn FnMut(),
        show: &mut dyn FnMut(&[f32], usize),
    ) -> Result<(), Error> {
        let classes = self.program.graph().classes();
        for number in (seat..self.test.len().div_ceil(self.program.batch())).step_by(seats) {
            alive();
            let mut lane = self.lanes.borrow();
            let lane = &mut *lane;
            let batch = &mut lane.batch;
            let real = self.test.evaluation(number, &mut batch.images, &mut batch.labels)?;
            let logits = self.program.forward(
                &mut lane.arena,
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

/// Who measures models on the CPU.
#[derive(Clone, Debug)]
pub struct Examiner {
    program: Arc<Program>,
    lanes: Arc<Lanes>,
    order: Sampler,
    train: Feed,
    test: Feed,
    policy: BatchNorm,
    /// Batches that recalibration looks at.
    batches: usize,
}

/// What was counted on a part of the test set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Counts {
    pub(crate) loss: f64,
    pub(crate) wrong: u64,
    pub(crate) examples: u64,
}

/// PyTorch's momentum of running statistics: what a single batch leaves of itself where nothing was before.
pub(crate) const SHARE: f64 = 0.1;

/// Batches that recalibration looks at.
pub(crate) fn recalibration_batches(recipe: &Recipe, examples: usize) -> usize {
    ((recipe.evaluate.images as usize).min(examples) / recipe.train.batch as usize).max(1)
}

/// The number in whose name recalibration draws its augmentation. No worker has it, so no training batch shares the draws.
const RECALIBRATION: u32 = u32::MAX;

/// A seat's batches of recalibration: the draws of each batch's augmentation, and its examples, the first ones of epoch 0.
/// All seats together see the same batches however many they are.
pub(crate) fn recalibration(
    order: &Sampler,
    (seat, seats): (usize, usize),
    batches: usize,
) -> Result<Vec<(Key, Vec<u32>)>, Error> {
    let shown = order.permutation(0)?;
    let size = order.batch_size() as usize;
    let key = Key::new(order.seed(), Purpose::Augment).worker(RECALIBRATION);
    let batch = |number: usize| {
        let examples = (0..size).map(|at| shown[(number * size + at) % shown.len()]);
        (key.step(number as u64), examples.collect())
    };
    Ok((seat..batches).step_by(seats).map(batch).collect())
}

impl Examiner {
    pub(super) fn new(engine: &Engine, recipe: &Recipe) -> Self {
        Examiner {
            program: Arc::clone(&engine.program),
            lanes: Arc::clone(&engine.lanes),
            order: engine.order,
            train: engine.train.clone(),
            test: engine.test.clone(),
            policy: recipe.evaluate.batch_norm,
            batches: recalibration_batches(recipe, engine.train.len()),
        }
    }
}

impl Counts {
    /// Counts one example: its loss, and whether another class has a logit as large as the label's.
    pub(crate) fn take(&mut self, logits: &[f32], label: usize) {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&x| libm::exp(f64::from(x) - f64::from(largest))).sum();
        self.loss += libm::log(sum) + f64::from(largest) - f64::from(logits[label]);
        let told = logits[label];
        let is_first = logits.iter().enumerate().all(|(class, &x)| class == label || x < told);
        self.wrong += u64::from(!is_first);
        self.examples += 1;
    }
}

/// The mean of the workers' running statistics: means averaged, variances with the differences between workers in them,
/// as if all batches had been seen by one. Means and variances stand in pairs of spans.
pub(crate) fn average(layout: &Layout, workers: &[Vec<f32>]) -> Vec<f32> {
    let mut out = workers.first().cloned().unwrap_or_default();
    let count = workers.len() as f64;
    let mean = |at: usize| workers.iter().map(|worker| f64::from(worker[at])).sum::<f64>() / count;
    for span in layout.spans().iter().filter(|span| span.name().ends_with("running_mean")) {
        let name = span.name().replace("running_mean", "running_var");
        let Some(variances) = layout.find(&name) else { continue };
        for (at, to) in span.range().zip(variances.range()) {
            let centre = mean(at);
            let between: f64 = workers.iter().map(|w| (f64::from(w[at]) - centre).powi(2)).sum();
            out[at] = centre as f32;
            out[to] = (mean(to) + between / count) as f32;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two workers that saw batches of mean 0 and 2, each of variance 1: together mean 1 and variance 2.
    #[test]
    fn averaged_statistics_hold_the_differences_between_workers() {
        let layout = Layout::new([("bn.running_mean", vec![1]), ("bn.running_var", vec![1])]).unwrap();
        assert_eq!(average(&layout, &[vec![0.0, 1.0], vec![2.0, 1.0]]), [1.0, 2.0]);
        assert_eq!(average(&layout, &[vec![3.0, 5.0]]), [3.0, 5.0]);
    }

    /// However many share the work, all batches are shown once, with the same draws.
    #[test]
    fn recalibration_shows_the_same_batches_to_any_number_of_seats() {
        let batches = |workers, seats: usize| {
            let order = Sampler::new(5, 100, workers, 8).unwrap();
            let mut all: Vec<(Key, Vec<u32>)> =
                (0..seats).flat_map(|seat| recalibration(&order, (seat, seats), 17).unwrap()).collect();
            all.sort_by_key(|(key, _)| key.place());
            all
        };
        let one = batches(1, 1);
        assert_eq!(one.len(), 17);
        for seats in 2..20 {
            assert_eq!(batches(seats as u32, seats), one);
        }
        // No worker of a run draws the same.
        let order = Sampler::new(5, 100, 4, 8).unwrap();
        assert!(one.iter().all(|(key, _)| key.place().0 >= order.workers()));
    }

    #[test]
    fn an_example_counts_as_right_only_if_its_class_is_alone_in_front() {
        let count = |logits: &[f32], label| {
            let mut counts = Counts::default();
            counts.take(logits, label);
            counts
        };
        assert_eq!(count(&[1.0, 3.0], 1).wrong, 0);
        assert_eq!(count(&[3.0, 3.0], 1).wrong, 1);
        assert_eq!(count(&[f32::NAN, 3.0], 1).wrong, 1);
        assert!((count(&[0.0, 0.0], 0).loss - 2f64.ln()).abs() < 1e-12);
        assert!((count(&[1000.0, 0.0], 1).loss - 1000.0).abs() < 1e-9);
    }
}

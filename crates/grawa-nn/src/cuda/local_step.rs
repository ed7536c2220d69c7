//! Local steps in parts, and scores.

use super::data::{Source, Split};
use super::job::Job;
use super::pass::PassMode;
use super::replica_set::ReplicaSet;
use crate::Error;
use grawa_core::{Key, Optimizer};

/// A training pass.
const TRAINING: PassMode = PassMode { of_batch: true, track: true, dropout: true };

impl ReplicaSet {
    /// The gradient of every worker's mean loss at the next step. Updates the running statistics.
    pub fn compute_gradients(&mut self) -> Result<(), Error> {
        let (factor, from) = (1.0 / self.program.batch as f32, self.source());
        self.run(Job::Gradient { pass_mode: TRAINING, factor, from, noted: true })
    }

    /// The gradient on the same batch at the current parameters: the second pass of SAM.
    pub fn recompute_gradients(&mut self) -> Result<(), Error> {
        let factor = 1.0 / self.program.batch as f32;
        let pass_mode = PassMode { track: false, ..TRAINING };
        self.run(Job::Gradient { pass_mode, factor, from: Source::Loaded, noted: false })
    }

    /// The update with the current gradients.
    pub fn descend(&mut self, optimizer: impl Into<Optimizer>) -> Result<(), Error> {
        self.run(Job::Descend { optimizer: optimizer.into() })
    }

    /// The norms by span of each worker's summed gradient, on examples of the training set without augmentation; without
    /// examples, on the loaded batches. Changes no training state except the gradient.
    pub fn score(
        &mut self,
        keys: &[Key],
        examples: Option<&[Vec<u32>]>,
        dropout: bool,
    ) -> Result<Vec<Vec<f64>>, Error> {
        let from = match examples {
            Some(examples) => {
                for (worker, examples) in examples.iter().enumerate() {
                    self.assign(Split::Train, worker, examples)?;
                }
                Source::CentreCrop(Split::Train)
            }
            None => Source::Loaded,
        };
        self.set_positions(keys, &[0.0], [0.0; 2])?;
        let pass_mode = PassMode { of_batch: true, track: false, dropout };
        self.run(Job::Gradient { pass_mode, factor: 1.0, from, noted: false })?;
        self.norms()
    }
}

//! Local steps, scores, and the evaluation of models.
//!
//! An evaluation replaces the workers' parameters and statistics by those of the models, runs forward passes, and restores the
//! workers bit for bit.

use super::data::{Source, Split};
use super::job::Job;
use super::limits;
use super::pass::PassMode;
use super::replica_set::ReplicaSet;
use crate::Error;
use grawa_core::{Key, Optimizer};

/// A training pass.
const TRAINING: PassMode = PassMode { of_batch: true, track: true, dropout: true };

/// A model to evaluate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// The worker's own parameters.
    Own,
    /// The centre of a group; see [`ReplicaSet::load_centre`].
    Centre {
        /// The level.
        level: usize,
        /// The group.
        group: usize,
    },
}

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

    /// Replaces the workers by models until [`ReplicaSet::unload_models`].
    pub fn load_models(&mut self, models: &[Model]) -> Result<(), Error> {
        if models.len() > self.workers {
            let what = "the list of models".into();
            return Err(Error::WrongLength { what, found: models.len(), expected: self.workers });
        }
        let sources = (models.iter().enumerate())
            .map(|(worker, model)| self.model_address(worker, *model))
            .collect::<Result<Vec<u64>, Error>>()?;
        if self.saved_statistics.is_none() {
            let statistics = (0..self.workers).map(|worker| self.statistics(worker));
            self.saved_statistics = Some(statistics.collect::<Result<_, _>>()?);
            self.copy_each(|set| (set.program.offsets.parameters, set.program.offsets.saved))?;
        }
        for (worker, from) in sources.into_iter().enumerate() {
            self.copy_vector(self.vector_address(worker, self.program.offsets.parameters)?, from)?;
        }
        self.pack_weights()
    }

    /// The address of a model while the workers are replaced.
    fn model_address(&self, worker: usize, model: Model) -> Result<u64, Error> {
        let place = match model {
            Model::Own => Some(self.vector_address(worker, self.program.offsets.saved)?),
            Model::Centre { level, group } => self.centre_address(level, group)?,
        };
        place.ok_or_else(|| Error::device("evaluate a model", "it has not been made yet"))
    }

    /// The address of a vector as long as the parameters in a worker's slab.
    fn vector_address(&self, worker: usize, offset: u64) -> Result<u64, Error> {
        limits::index("worker", worker, self.workers)?;
        self.memory.address(self.offset(worker, offset), 4 * self.program.graph.parameters().len())
    }

    /// Copies a vector as long as the parameters. Both addresses come from `vector_address` or `centre_address`.
    #[allow(unsafe_code, reason = "a copy inside device memory")]
    fn copy_vector(&self, to: u64, from: u64) -> Result<(), Error> {
        // SAFETY: `vector_address` and `centre_address` checked that this many numbers are there, in memory of this replica set,
        // which waits for the GPU before it frees any.
        unsafe { self.main.copy(to, from, 4 * self.program.graph.parameters().len()) }
    }

    /// Restores the workers.
    pub fn unload_models(&mut self) -> Result<(), Error> {
        let Some(statistics) = self.saved_statistics.take() else { return Ok(()) };
        for (worker, statistics) in statistics.iter().enumerate() {
            self.load_statistics(worker, statistics)?;
        }
        self.restore()
    }

    /// The batch statistics of every worker's loaded model, as the running average keeps them when it starts at zero: of examples
    /// of the training set, augmented with the draws at `keys`, or of the loaded batches.
    pub fn batch_statistics(
        &mut self,
        keys: &[Key],
        examples: Option<&[Vec<u32>]>,
    ) -> Result<Vec<Vec<f32>>, Error> {
        let nothing = vec![0.0; self.program.graph.statistics().len()];
        for worker in 0..self.workers {
            self.load_statistics(worker, &nothing)?;
        }
        let pass_mode = PassMode { of_batch: true, track: true, dropout: false };
        self.forward_batch(pass_mode, (Split::Train, Source::Augmented), keys, examples)?;
        (0..self.workers).map(|worker| self.statistics(worker)).collect()
    }

    /// The logits of every worker's loaded model on its test examples.
    pub fn test(&mut self, examples: Option<&[Vec<u32>]>) -> Result<Vec<Vec<f32>>, Error> {
        let pass_mode = PassMode { of_batch: false, track: false, dropout: false };
        let unused = vec![Key::new(0, grawa_core::Purpose::Augment); self.workers];
        self.forward_batch(pass_mode, (Split::Test, Source::CentreCrop(Split::Test)), &unused, examples)?;
        (0..self.workers).map(|worker| self.logits(worker)).collect()
    }

    fn forward_batch(
        &mut self,
        pass_mode: PassMode,
        (split, from): (Split, Source),
        keys: &[Key],
        examples: Option<&[Vec<u32>]>,
    ) -> Result<(), Error> {
        let Some(examples) = examples else {
            return self.run(Job::Forward { pass_mode, from: Source::Loaded });
        };
        for (worker, examples) in examples.iter().enumerate() {
            self.assign(split, worker, examples)?;
        }
        self.set_positions(keys, &[0.0], [0.0; 2])?;
        self.run(Job::Forward { pass_mode, from })
    }

    /// Copies one vector of every worker to another vector of the same worker.
    pub(crate) fn copy_each(&self, places: impl Fn(&Self) -> (u64, u64)) -> Result<(), Error> {
        let (from, to) = places(self);
        (0..self.workers).try_for_each(|worker| {
            self.copy_vector(self.vector_address(worker, to)?, self.vector_address(worker, from)?)
        })
    }
}

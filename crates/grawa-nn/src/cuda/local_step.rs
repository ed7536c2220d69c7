//! What workers on a GPU do between rounds and for them: local steps, scores, and a look at a model on other examples.
//!
//! A look borrows the workers' places: their parameters and statistics are put aside, the model is passed through, and
//! everything is put back bit by bit.

use super::data::{Source, Split};
use super::limits;
use super::pass::PassMode;
use super::replica_set::{Job, ReplicaSet};
use crate::Error;
use grawa_core::{Key, Sgd};

/// A pass that learns.
const TRAINING: PassMode = PassMode { of_batch: true, track: true, dropout: true };

/// A model to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// The worker's own.
    Own,
    /// The centre of a group of a level; see [`ReplicaSet::load_centre`].
    Centre {
        /// The level.
        level: usize,
        /// The group.
        group: usize,
    },
}

impl ReplicaSet {
    /// The gradient of every worker's mean loss at the next step, statistics included.
    pub fn compute_gradients(&mut self) -> Result<(), Error> {
        let (factor, from) = (1.0 / self.program.batch as f32, self.source());
        self.run(Job::Gradient { pass_mode: TRAINING, factor, from, noted: true })
    }

    /// The gradient on the same batch once more, from where the workers are now: SAM's second look.
    pub fn recompute_gradients(&mut self) -> Result<(), Error> {
        let factor = 1.0 / self.program.batch as f32;
        let pass_mode = PassMode { track: false, ..TRAINING };
        self.run(Job::Gradient { pass_mode, factor, from: Source::Loaded, noted: false })
    }

    /// The step with the gradients at hand.
    pub fn descend(&mut self, sgd: Sgd) -> Result<(), Error> {
        self.run(Job::Descend { sgd })
    }

    /// The norms, span by span, of each worker's summed gradient on its examples of the training set as evaluation shows
    /// them; without examples, on what was shown last. Nothing that training can see is changed but the gradient.
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

    /// Puts models in the places of the workers until [`ReplicaSet::give_back`].
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

    /// Where a model lies while the workers' own are put aside.
    fn model_address(&self, worker: usize, model: Model) -> Result<u64, Error> {
        let place = match model {
            Model::Own => Some(self.vector_address(worker, self.program.offsets.saved)?),
            Model::Centre { level, group } => self.centre_address(level, group)?,
        };
        let why = || "it has not been made yet".into();
        place.ok_or_else(|| Error::Device { action: "look at a model".into(), why: why() })
    }

    /// Where a vector as long as the parameters lies in a worker's slab.
    fn vector_address(&self, worker: usize, offset: u64) -> Result<u64, Error> {
        limits::index("worker", worker, self.workers)?;
        self.memory.address(self.offset(worker, offset), 4 * self.program.graph.parameters().len())
    }

    /// Copies a vector as long as the parameters over another; both places come from `vector_at` or `centre_at`.
    #[allow(unsafe_code, reason = "a copy from one place of the GPU to another")]
    fn copy_vector(&self, to: u64, from: u64) -> Result<(), Error> {
        // SAFETY: `vector_at` and `centre_at` looked whether as many numbers lie at their places in memory of this replica set, which
        // waits for the GPU before it gives any back.
        unsafe { self.main.copy(to, from, 4 * self.program.graph.parameters().len()) }
    }

    /// Gives the workers their places back.
    pub fn unload_models(&mut self) -> Result<(), Error> {
        let Some(statistics) = self.saved_statistics.take() else { return Ok(()) };
        for (worker, statistics) in statistics.iter().enumerate() {
            self.load_statistics(worker, statistics)?;
        }
        self.restore()
    }

    /// The statistics of a batch for every worker's borrowed model, as the running average keeps them when it starts from
    /// nothing: of examples of the training set on the GPU, augmented by the draws at `keys`, or of what was shown last.
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

    /// The logits of every worker's borrowed model on its test examples.
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

    /// Copies one vector of every worker over another of its own.
    pub(crate) fn copy_each(&self, places: impl Fn(&Self) -> (u64, u64)) -> Result<(), Error> {
        let (from, to) = places(self);
        (0..self.workers).try_for_each(|worker| {
            self.copy_vector(self.vector_address(worker, to)?, self.vector_address(worker, from)?)
        })
    }
}

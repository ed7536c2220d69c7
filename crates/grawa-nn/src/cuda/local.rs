//! What workers on a card do between rounds and for them: local steps, scores, and a look at a model on other examples.
//!
//! A look borrows the workers' places: their parameters and statistics are put aside, the model is passed through, and
//! everything is put back bit by bit.

use super::data::{Set, Source};
use super::fleet::{Fleet, Job};
use super::limits;
use super::pass::Manner;
use crate::Error;
use grawa_core::{Key, Sgd};

/// A pass that learns.
const LEARN: Manner = Manner { of_batch: true, track: true, dropout: true };

/// A model to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// The worker's own.
    Own,
    /// The centre of a group of a level; see [`Fleet::load_centre`].
    Centre {
        /// The level.
        level: usize,
        /// The group.
        group: usize,
    },
}

impl Fleet {
    /// The gradient of every worker's mean loss at the next step, statistics included.
    pub fn learn(&mut self) -> Result<(), Error> {
        let (factor, from) = (1.0 / self.plan.batch as f32, self.source());
        self.run(Job::Gradient { manner: LEARN, factor, from, noted: true })
    }

    /// The gradient on the same batch once more, from where the workers are now: SAM's second look.
    pub fn learn_again(&mut self) -> Result<(), Error> {
        let factor = 1.0 / self.plan.batch as f32;
        let manner = Manner { track: false, ..LEARN };
        self.run(Job::Gradient { manner, factor, from: Source::Shown, noted: false })
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
                    self.deal(Set::Train, worker, examples)?;
                }
                Source::Middle(Set::Train)
            }
            None => Source::Shown,
        };
        self.place_each(keys, &[0.0], [0.0; 2])?;
        let manner = Manner { of_batch: true, track: false, dropout };
        self.run(Job::Gradient { manner, factor: 1.0, from, noted: false })?;
        self.norms()
    }

    /// Puts models in the places of the workers until [`Fleet::give_back`].
    pub fn borrow(&mut self, models: &[Model]) -> Result<(), Error> {
        if models.len() > self.workers {
            let what = "the list of models".into();
            return Err(Error::WrongLength { what, found: models.len(), expected: self.workers });
        }
        let sources = (models.iter().enumerate())
            .map(|(worker, model)| self.lies_at(worker, *model))
            .collect::<Result<Vec<u64>, Error>>()?;
        if self.lent.is_none() {
            let statistics = (0..self.workers).map(|worker| self.statistics(worker));
            self.lent = Some(statistics.collect::<Result<_, _>>()?);
            self.copy_each(|fleet| (fleet.plan.offsets.parameters, fleet.plan.offsets.saved))?;
        }
        for (worker, from) in sources.into_iter().enumerate() {
            self.copy_vector(self.vector_at(worker, self.plan.offsets.parameters)?, from)?;
        }
        self.spread()
    }

    /// Where a model lies while the workers' own are put aside.
    fn lies_at(&self, worker: usize, model: Model) -> Result<u64, Error> {
        let place = match model {
            Model::Own => Some(self.vector_at(worker, self.plan.offsets.saved)?),
            Model::Centre { level, group } => self.centre_at(level, group)?,
        };
        let why = || "it has not been made yet".into();
        place.ok_or_else(|| Error::Device { action: "look at a model".into(), why: why() })
    }

    /// Where a vector as long as the parameters lies in a worker's slab.
    fn vector_at(&self, worker: usize, offset: u64) -> Result<u64, Error> {
        limits::one_of("worker", worker, self.workers)?;
        self.memory.place(self.offset(worker, offset), 4 * self.plan.graph.parameters().len())
    }

    /// Copies a vector as long as the parameters over another; both places come from `vector_at` or `centre_at`.
    #[allow(unsafe_code, reason = "a copy from one place of the card to another")]
    fn copy_vector(&self, to: u64, from: u64) -> Result<(), Error> {
        // SAFETY: `vector_at` and `centre_at` looked whether as many numbers lie at their places in memory of this fleet, which
        // waits for the card before it gives any back.
        unsafe { self.main.copy(to, from, 4 * self.plan.graph.parameters().len()) }
    }

    /// Gives the workers their places back.
    pub fn give_back(&mut self) -> Result<(), Error> {
        let Some(statistics) = self.lent.take() else { return Ok(()) };
        for (worker, statistics) in statistics.iter().enumerate() {
            self.load_statistics(worker, statistics)?;
        }
        self.restore()
    }

    /// The statistics of a batch for every worker's borrowed model, as the running average keeps them when it starts from
    /// nothing: of examples of the training set on the card, augmented by the draws at `keys`, or of what was shown last.
    pub fn batch_statistics(
        &mut self,
        keys: &[Key],
        examples: Option<&[Vec<u32>]>,
    ) -> Result<Vec<Vec<f32>>, Error> {
        let nothing = vec![0.0; self.plan.graph.statistics().len()];
        for worker in 0..self.workers {
            self.load_statistics(worker, &nothing)?;
        }
        let manner = Manner { of_batch: true, track: true, dropout: false };
        self.look(manner, (Set::Train, Source::View), keys, examples)?;
        (0..self.workers).map(|worker| self.statistics(worker)).collect()
    }

    /// The logits of every worker's borrowed model on its test examples.
    pub fn test(&mut self, examples: Option<&[Vec<u32>]>) -> Result<Vec<Vec<f32>>, Error> {
        let manner = Manner { of_batch: false, track: false, dropout: false };
        let unused = vec![Key::new(0, grawa_core::Purpose::Augment); self.workers];
        self.look(manner, (Set::Test, Source::Middle(Set::Test)), &unused, examples)?;
        (0..self.workers).map(|worker| self.logits(worker)).collect()
    }

    fn look(
        &mut self,
        manner: Manner,
        (set, from): (Set, Source),
        keys: &[Key],
        examples: Option<&[Vec<u32>]>,
    ) -> Result<(), Error> {
        let Some(examples) = examples else { return self.run(Job::Forward { manner, from: Source::Shown }) };
        for (worker, examples) in examples.iter().enumerate() {
            self.deal(set, worker, examples)?;
        }
        self.place_each(keys, &[0.0], [0.0; 2])?;
        self.run(Job::Forward { manner, from })
    }

    /// Copies one vector of every worker over another of its own.
    pub(crate) fn copy_each(&self, places: impl Fn(&Self) -> (u64, u64)) -> Result<(), Error> {
        let (from, to) = places(self);
        (0..self.workers).try_for_each(|worker| {
            self.copy_vector(self.vector_at(worker, to)?, self.vector_at(worker, from)?)
        })
    }
}

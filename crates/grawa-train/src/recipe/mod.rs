//! A recipe: everything that defines a run, as data.
//!
//! It is read by serde from TOML and from options of a command line ([`Overrides`]); what is not set has a default that depends on the
//! data set (`defaults.rs`). A key that does not exist, a value of the wrong type and choices that do not go together are
//! [`RecipeError`]s with the file and the line. A recipe prints itself with every key, and what it prints reads back as the same
//! recipe: so a run's folder holds all that is needed to run it again.
//!
//! ```
//! use grawa_train::{Recipe, recipe::Overrides};
//! let text = "[method]\nname = 'lgrawa'\n[train]\nworkers = 8\n";
//! let overrides = Overrides::default().file("my.toml", text)?.set("train.budget=500step")?;
//! let recipe = Recipe::resolve(&overrides)?;
//! assert_eq!((recipe.train.workers, recipe.train.budget.to_string().as_str()), (8, "500step"));
//!
//! let error = Overrides::default().file("my.toml", "[train]\n\nworker = 8\n").unwrap_err();
//! assert_eq!(error.to_string(), "my.toml:3: there is no key 'train.worker' (did you mean 'train.workers'?)");
//! # Ok::<(), grawa_train::recipe::RecipeError>(())
//! ```

mod by_worker;
mod check;
mod choices;
mod defaults;
mod forecast;
mod model;
mod overrides;
mod own_pictures;
mod recipe_error;
mod study;
mod values;
mod warnings;

pub use by_worker::ByWorker;
pub use choices::{BatchNorm, Device, Format, OptimizerKind, Pace};
pub(crate) use defaults::CHECKPOINT;
pub use forecast::{Facts, Forecast};
pub(crate) use overrides::TABLES;
pub use overrides::{Overrides, key_of_word};
pub use recipe_error::RecipeError;
pub use study::{Point, Study, Variant};

use grawa_core::{AdamW, Amount, Method, Optimizer, Schedule, Sgd};
use grawa_data::{Augment, Dataset, DatasetKind, Reading, Sharding, Skew};
use grawa_nn::Precision;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Everything that defines a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recipe {
    /// What is learnt.
    pub data: Data,
    /// What learns it.
    pub model: Model,
    /// How the workers work together.
    pub method: Method,
    /// How a worker trains, and for how long.
    pub train: Train,
    /// How and when the model is evaluated.
    pub evaluate: Evaluation,
    /// When the run is saved.
    pub checkpoint: Checkpoint,
    /// What it runs on.
    pub machine: Machine,
}

/// What is learnt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Data {
    /// The data set.
    #[serde(with = "values::word")]
    pub kind: DatasetKind,
    /// Its folder; the digits need none.
    #[serde(with = "values::path")]
    pub dir: PathBuf,
    /// How many training examples are kept from training and evaluated instead of the test set; 0 for the test set.
    #[serde(with = "values::count")]
    pub held_out: u32,
    /// Of class folders without a test set, the share of each class that is for testing, drawn by the seed.
    #[serde(with = "values::share")]
    pub split_test: f64,
    /// Of class folders: pictures are decoded once and kept in memory, those with a longer shorter side shrunk to this; 0: decoded
    /// whenever a batch needs them.
    #[serde(with = "values::count")]
    pub shrink: u32,
    /// How training images are changed.
    #[serde(with = "values::word")]
    pub augment: Augment,
    /// Which examples each worker holds.
    #[serde(with = "values::word")]
    pub split: Sharding,
    /// Workers, and which share of the labels of their training examples is wrong.
    #[serde(with = "values::label_noise")]
    pub label_noise: ByWorker,
}

impl Data {
    /// How the examples of workers differ.
    pub fn skew(&self) -> Skew {
        Skew { sharding: self.split, noise: self.label_noise.all().to_vec() }
    }
}

/// What learns it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// The network: one of the zoo, or the name of `graph`.
    #[serde(with = "values::name")]
    pub name: String,
    /// A network of one's own, as JSON ([`grawa_nn::Graph::from_json`]). What a user sets is the path of the file; the recipe holds its
    /// content, so that all that read it build the same network.
    #[serde(default, with = "values::optional_graph")]
    pub graph: Option<String>,
    /// Channels of its first stage, for networks that come in several widths.
    #[serde(default, with = "values::optional_positive")]
    pub width: Option<u32>,
    /// Classes, if not those of the data set.
    #[serde(default, with = "values::optional_positive")]
    pub classes: Option<u32>,
    /// A file of tensors to start from instead of random numbers.
    #[serde(default, with = "values::optional_path")]
    pub init: Option<PathBuf>,
}

/// How a worker trains, and for how long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Train {
    /// M.
    #[serde(with = "values::positive")]
    pub workers: u32,
    /// Images in a worker's batch, and in a score batch.
    #[serde(with = "values::positive")]
    pub batch: u32,
    /// What every random draw depends on.
    #[serde(with = "values::seed")]
    pub seed: u64,
    /// How much training.
    #[serde(with = "values::word")]
    pub budget: Amount,
    /// Whether every worker takes exactly τ steps a cycle.
    #[serde(with = "values::word")]
    pub pace: Pace,
    /// Workers whose steps are made slower, and how many times; for experiments at a free pace.
    #[serde(with = "values::slow")]
    pub slow: ByWorker,
    /// The learning rate over the run.
    #[serde(with = "values::rate")]
    pub rate: Schedule,
    /// Whether workers in their own processes train while vectors are sent, one round behind.
    #[serde(with = "values::flag")]
    pub overlap: bool,
    /// How vectors travel between such workers.
    #[serde(with = "values::word")]
    pub wire: Format,
    /// The optimizer of the local steps.
    #[serde(with = "values::word")]
    pub optimizer: OptimizerKind,
    /// AdamW's β₁.
    #[serde(with = "values::beta")]
    pub beta1: f64,
    /// AdamW's β₂.
    #[serde(with = "values::beta")]
    pub beta2: f64,
    /// AdamW's ε.
    #[serde(with = "values::eps")]
    pub eps: f32,
    /// The radius ρ of SAM in the local steps; 0 for none.
    #[serde(with = "values::radius")]
    pub sam: f64,
    /// Momentum, Nesterov; weight decay, of AdamW too.
    #[serde(flatten, with = "SgdKeys")]
    pub sgd: Sgd,
}

/// The settings of SGD as keys of `[train]`.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Sgd")]
struct SgdKeys {
    #[serde(with = "values::momentum")]
    momentum: f32,
    #[serde(with = "values::flag")]
    nesterov: bool,
    #[serde(with = "values::weight_decay")]
    weight_decay: f32,
}

impl Train {
    /// The optimizer of the local steps, with its settings.
    pub fn local_optimizer(&self) -> Optimizer {
        let Train { beta1, beta2, eps, sgd, .. } = *self;
        match self.optimizer {
            OptimizerKind::Sgd => sgd.into(),
            OptimizerKind::AdamW => AdamW { beta1, beta2, eps, weight_decay: sgd.weight_decay }.into(),
        }
    }
}

impl Recipe {
    /// How class folders are read.
    pub fn reading(&self) -> Reading {
        Reading { split_test: self.data.split_test, seed: self.train.seed, shrink: self.data.shrink }
    }

    /// Reads the data set. `progress` is told how many of how many pictures of class folders are decoded.
    pub fn load_data(&self, progress: &(dyn Fn(usize, usize) + Sync)) -> Result<Dataset, grawa_data::Error> {
        match self.data.kind {
            DatasetKind::Folder => grawa_data::folder(&self.data.dir, &self.reading(), progress),
            kind => grawa_data::load(kind.name(), &self.data.dir),
        }
    }

    /// The method, with SAM's radius where `train.sam` sets one.
    pub fn method_with_sam(&self) -> Method {
        let own = Some(self.train.sam).filter(|&radius| radius > 0.0);
        Method { radius: own.or(self.method.radius), ..self.method.clone() }
    }
}

/// How and when the model is evaluated. Which model that is belongs to the method.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// How often, at the first round after; only at the end if `None`.
    #[serde(with = "values::interval")]
    pub every: Option<Amount>,
    /// Where the evaluated model's batch-norm statistics come from.
    #[serde(with = "values::word")]
    pub batch_norm: BatchNorm,
    /// Training images, augmented, that `recalibrate` looks at, at most.
    #[serde(with = "values::positive")]
    pub images: u32,
}

/// When the run is saved, besides at its start and its end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// How often, at the first round after; only at start and end if `None`.
    #[serde(with = "values::interval")]
    pub every: Option<Amount>,
    /// Whether the model with the smallest test error is kept besides.
    #[serde(with = "values::flag")]
    pub best: bool,
}

/// What a run uses of the machine. With `pace = even` the number of cores changes no bit of the result; another device,
/// another number of GPUs or another precision does, as rounding goes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Where networks are trained.
    #[serde(with = "values::word")]
    pub device: Device,
    /// Number format of a GPU.
    #[serde(with = "values::word")]
    pub precision: Precision,
    /// Whether a GPU's kernels are chosen by shape alone, so that every start gives the same bits, instead of by speed.
    #[serde(with = "values::flag")]
    pub deterministic: bool,
    /// GPUs to use, but no more than workers; all if `None`.
    #[serde(default, with = "values::optional_positive")]
    pub cards: Option<u32>,
    /// Cores to use, at most 1,024; all if `None`.
    #[serde(default, with = "values::threads")]
    pub threads: Option<u32>,
}

#[cfg(test)]
mod tests;

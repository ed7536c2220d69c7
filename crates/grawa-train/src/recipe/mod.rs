//! A recipe: everything that defines a run, as data.
//!
//! It is read from TOML and from settings on a command line, both through one table of keys (`keys.rs`); what is not
//! said has a default that depends on the data set (`defaults.rs`). A key that does not exist, a value of the wrong
//! type and choices that do not go together are [`Mistake`]s with the file and the line. A recipe prints itself with every
//! key, and what it prints reads back as the same recipe: so a run's folder holds all that is needed to run it again.
//!
//! ```
//! use grawa_train::{Recipe, recipe::Said};
//! let said = Said::default().file("my.toml", "[method]\nname = 'lgrawa'\n[train]\nworkers = 8\n")?.set("train.budget=500step")?;
//! let recipe = Recipe::resolve(&said)?;
//! assert_eq!((recipe.train.workers, recipe.train.budget.to_string().as_str()), (8, "500step"));
//!
//! let slip = Said::default().file("my.toml", "[train]\n\nworker = 8\n").unwrap_err();
//! assert_eq!(slip.to_string(), "my.toml:3: there is no key 'train.worker' (did you mean 'train.workers'?)");
//! # Ok::<(), grawa_train::recipe::Mistake>(())
//! ```

mod check;
mod choices;
mod defaults;
mod forecast;
mod keys;
mod mistake;
mod model;
mod study;
mod text;

pub use choices::{BatchNorm, Device, Format, Pace};
pub use forecast::{Facts, Forecast};
pub use keys::{KEYS, Key};
pub use mistake::Mistake;
pub use study::{Point, Study};
pub use text::Said;
pub(crate) use text::TABLES;

use grawa_core::{Amount, Method, Schedule, Sgd};
use grawa_data::{Augment, Kind};
use grawa_nn::cuda::Precision;
use std::path::PathBuf;

/// Everything that defines a run.
#[derive(Clone, Debug, PartialEq)]
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
#[derive(Clone, Debug, PartialEq)]
pub struct Data {
    /// The data set.
    pub kind: Kind,
    /// The folder it lies in; the digits need none.
    pub dir: PathBuf,
    /// How many training examples are kept from training and evaluated instead of the test set; 0 for the test set.
    pub held_out: u32,
    /// How training images are changed.
    pub augment: Augment,
}

/// What learns it.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// The network, one of the zoo.
    pub name: String,
    /// Channels of its first stage, for networks that come in several widths.
    pub width: Option<u32>,
    /// Classes it tells apart, if not those of the data set.
    pub classes: Option<u32>,
    /// A file of tensors to start from instead of random numbers.
    pub init: Option<PathBuf>,
}

/// How a worker trains, and for how long.
#[derive(Clone, Debug, PartialEq)]
pub struct Train {
    /// M.
    pub workers: u32,
    /// Images in a worker's batch, and in a score batch.
    pub batch: u32,
    /// What every random draw depends on.
    pub seed: u64,
    /// How much training.
    pub budget: Amount,
    /// Whether every worker takes exactly τ steps a cycle.
    pub pace: Pace,
    /// Whether workers that are processes of their own go on while vectors travel, one round behind.
    pub overlap: bool,
    /// How vectors travel between such workers.
    pub wire: Format,
    /// The learning rate over the run.
    pub rate: Schedule,
    /// Momentum, Nesterov, weight decay.
    pub sgd: Sgd,
}

/// How and when the model is evaluated. Which model that is belongs to the method.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// How often, at the first round after; only at the end if `None`.
    pub every: Option<Amount>,
    /// Where the evaluated model's batch-norm statistics come from.
    pub batch_norm: BatchNorm,
    /// Training images, augmented, that `recalibrate` looks at, at most.
    pub images: u32,
}

/// When the run is saved, besides at its start and its end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Checkpoint {
    /// How often, at the first round after; only at start and end if `None`.
    pub every: Option<Amount>,
}

/// What a run uses of the machine. With `pace = even` the number of cores changes no bit of the result; another device,
/// another number of GPUs or another precision does, as rounding goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Where networks are trained.
    pub device: Device,
    /// How a GPU stores and multiplies numbers.
    pub precision: Precision,
    /// Whether a GPU's kernels are chosen by shape alone, so that every start gives the same bits, instead of by speed.
    pub deterministic: bool,
    /// GPUs to use, but no more than workers; all if `None`.
    pub cards: Option<u32>,
    /// Cores to use; all if `None`.
    pub threads: Option<u32>,
}

#[cfg(test)]
mod tests;

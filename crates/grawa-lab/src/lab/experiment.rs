//! The table of experiments, one row each.
//!
//! An experiment is a set of studies (a recipe with methods, seeds and grids), what is measured of each run, and a function
//! from finished cells to tables and pictures. A new experiment costs a row and that function.

use super::cell::{HessianSettings, Measurements};
use super::results::Results;
use super::tables::{self, compared};
use crate::{Error, Output};

/// A row of the table of experiments.
#[derive(Debug)]
pub struct Experiment {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its studies at each [`Scale`].
    pub(super) studies: [&'static [Source]; 3],
    /// Whether settings are searched for; otherwise every point of the studies is run.
    pub(super) search: bool,
    /// What is measured besides the test error.
    pub(super) measurements: fn(Scale) -> Measurements,
    /// Whether it measures seconds: cells then run one at a time by default.
    pub(super) timed: bool,
    /// Makes tables and pictures from the finished cells.
    pub(super) conclude: fn(&Results<'_>) -> Result<Output, Error>,
}

/// A study that comes with the program: its name, its recipe, and settings over it.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) name: &'static str,
    pub(super) text: &'static str,
    pub(super) settings: &'static [&'static str],
}

grawa_session::choices! {
    /// How large an experiment is.
    #[derive(Default)]
    Scale, "scale",
    /// The digits, in seconds: a test that everything works.
    #[default]
    Smoke = "smoke",
    /// CIFAR-10 and ResNet-20, in hours on a laptop and in minutes on a GPU.
    Small = "small",
    /// The paper's networks, budgets and grids.
    Paper = "paper",
}

const NOTHING: Measurements = Measurements { train: false, gradient: false, flatness: None };

/// What most experiments share.
const ROW: Experiment = Experiment {
    name: "",
    studies: [DIGITS, SMALL, PAPER],
    search: true,
    measurements: |_| NOTHING,
    timed: false,
    conclude: |results| compared("Test error by method and network", results, &tables::TEST_ERRORS),
};

/// Methods against the first of them, with everything else the same: the experiment of `grawa compare`, whose study the user gives.
pub static COMPARE: Experiment =
    Experiment { name: "compare", studies: [&[]; 3], search: false, conclude: tables::against_first, ..ROW };

/// All experiments of the paper.
pub static EXPERIMENTS: [Experiment; 7] = [
    Experiment { name: "table1", studies: [TWO_DIGITS, SMALL, WITH_IMAGENET], ..ROW },
    Experiment {
        name: "table2",
        measurements: |scale| Measurements { flatness: Some(hessian(scale)), ..NOTHING },
        conclude: |results| compared("How flat the minima are", results, &tables::FLATNESS),
        ..ROW
    },
    Experiment {
        name: "scalability",
        studies: [WORKERS_SMOKE, WORKERS_SMALL, WORKERS_PAPER],
        search: false,
        conclude: tables::scalability,
        ..ROW
    },
    Experiment { name: "communication", timed: true, conclude: tables::communication, ..ROW },
    Experiment {
        name: "gap",
        measurements: |_| Measurements { train: true, ..NOTHING },
        conclude: |results| compared("Generalisation gap", results, &tables::GAP),
        ..ROW
    },
    Experiment {
        name: "gradnorm",
        studies: [GRADNORM_SMOKE, GRADNORM_SMALL, GRADNORM_PAPER],
        search: false,
        measurements: |_| Measurements { gradient: true, ..NOTHING },
        conclude: tables::gradnorm,
        ..ROW
    },
    Experiment { name: "curves", timed: true, conclude: tables::curves, ..ROW },
];

/// The experiment of that name.
pub fn experiment(name: &str) -> Option<&'static Experiment> {
    EXPERIMENTS.iter().find(|experiment| experiment.name == name)
}

/// The authors' 320 examples, 100 steps and 3 runs; less for a smoke test.
fn hessian(scale: Scale) -> HessianSettings {
    match scale {
        Scale::Smoke => HessianSettings { examples: 128, batch: 32, steps: 30, draws: 2, extra: 6 },
        _ => HessianSettings { examples: 320, batch: 32, steps: 100, draws: 3, extra: 10 },
    }
}

macro_rules! study {
    ($name:literal, $path:literal) => {
        study!($name, $path, [])
    };
    ($name:literal, $path:literal, $settings:expr) => {
        Source { name: $name, text: include_str!($path), settings: &$settings }
    };
}

const TWO_DIGITS: &[Source] = &[
    study!("digits", "studies/smoke.toml", ["model.width=8"]),
    study!("digits", "studies/smoke.toml", ["model.width=4"]),
];
const DIGITS: &[Source] = &[study!("digits", "studies/smoke.toml", ["model.width=8"])];
const SMALL: &[Source] = &[study!("cifar10-resnet20", "studies/small.toml")];
/// The networks of the paper's tables; only the first table has the last one, ImageNet.
const WITH_IMAGENET: &[Source] = &[
    study!("cifar10-resnet20", "../../recipes/cifar10-resnet20.toml"),
    study!("cifar10-vgg16", "../../recipes/cifar10-vgg16.toml"),
    study!("cifar10-pyramidnet", "../../recipes/cifar10-pyramidnet.toml"),
    study!("cifar100-densenet", "../../recipes/cifar100-densenet.toml"),
    study!("cifar100-wrn", "../../recipes/cifar100-wrn.toml"),
    study!("cifar100-pyramidnet", "../../recipes/cifar100-pyramidnet.toml"),
    study!("imagenet-resnet50", "../../recipes/imagenet-resnet50.toml"),
];
const PAPER: &[Source] = WITH_IMAGENET.split_at(6).0;
const WORKERS_SMOKE: &[Source] = &[study!("digits", "studies/smoke-workers.toml")];
const WORKERS_SMALL: &[Source] = &[study!("cifar10-resnet20", "studies/small-workers.toml")];
const WORKERS_PAPER: &[Source] = &[
    study!("cifar10-resnet20", "../../recipes/cifar10-resnet20-workers.toml"),
    study!("cifar100-pyramidnet", "../../recipes/cifar100-pyramidnet-workers.toml"),
];
const GRADNORM_SMOKE: &[Source] = &[study!("digits", "studies/smoke-gradnorm.toml")];
const GRADNORM_SMALL: &[Source] = &[study!("cifar10-resnet20", "studies/small-gradnorm.toml")];
const GRADNORM_PAPER: &[Source] = &[study!("cifar10-resnet18", "../../recipes/gradient-norm.toml")];

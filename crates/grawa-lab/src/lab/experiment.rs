//! The one table of experiments: a row each.
//!
//! An experiment is a set of studies (a recipe with methods, seeds and grids), what is measured of each run, and a function from
//! finished cells to tables and pictures. A new one costs a row and that function.

use super::cell::{Lens, Wants};
use super::results::Results;
use super::sheet::Output;
use super::tables;
use crate::Error;

/// A row of the table of experiments.
#[derive(Debug)]
pub struct Experiment {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it shows, in a sentence.
    pub about: &'static str,
    /// Its studies.
    pub(super) sources: fn(Scale) -> &'static [Source],
    /// Whether settings are searched for; else every point of the studies is run.
    pub(super) search: bool,
    /// What is measured besides the test error.
    pub(super) wants: fn(Scale) -> Wants,
    /// Whether seconds are its subject: then cells run one at a time unless the user says otherwise.
    pub(super) timed: bool,
    /// What the finished cells come to.
    pub(super) conclude: fn(&Results<'_>) -> Result<Output, Error>,
}

/// A study that comes with the program: its name, its recipe, and settings over it.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) name: &'static str,
    pub(super) text: &'static str,
    pub(super) settings: &'static [&'static str],
}

/// How large an experiment is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// The digits, in seconds: that everything works.
    #[default]
    Smoke,
    /// CIFAR-10 and ResNet-20, in hours on a laptop and in minutes on a GPU.
    Small,
    /// The paper's networks, budgets and grids.
    Paper,
}

impl Scale {
    /// All of them.
    pub const ALL: [Scale; 3] = [Scale::Smoke, Scale::Small, Scale::Paper];

    /// The word of the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Scale::Smoke => "smoke",
            Scale::Small => "small",
            Scale::Paper => "paper",
        }
    }
}

/// All experiments.
pub static EXPERIMENTS: [Experiment; 7] = [
    Experiment {
        name: "table1",
        about: "test error by method and network",
        sources: networks,
        search: true,
        wants: |_| Wants::default(),
        timed: false,
        conclude: tables::errors,
    },
    Experiment {
        name: "table2",
        about: "how flat the minima are: the Hessian by method and network",
        sources: flat_networks,
        search: true,
        wants: |scale| Wants { flatness: Some(lens(scale)), ..Wants::default() },
        timed: false,
        conclude: tables::flatness,
    },
    Experiment {
        name: "scalability",
        about: "test error with 4, 8 and 12 workers",
        sources: workers,
        search: false,
        wants: |_| Wants::default(),
        timed: false,
        conclude: tables::scalability,
    },
    Experiment {
        name: "communication",
        about: "where the time goes, rounds, and bytes handed over",
        sources: flat_networks,
        search: true,
        wants: |_| Wants::default(),
        timed: true,
        conclude: tables::communication,
    },
    Experiment {
        name: "gap",
        about: "generalisation gap: test error less training error",
        sources: flat_networks,
        search: true,
        wants: |_| Wants { train: true, ..Wants::default() },
        timed: false,
        conclude: tables::gap,
    },
    Experiment {
        name: "gradnorm",
        about: "does a small gradient norm go with a small gap? Over a grid of hyper-parameters",
        sources: gradient_norm,
        search: false,
        wants: |_| Wants { gradient: true, ..Wants::default() },
        timed: false,
        conclude: tables::gradnorm,
    },
    Experiment {
        name: "curves",
        about: "test error over epochs and over time",
        sources: flat_networks,
        search: true,
        wants: |_| Wants::default(),
        timed: true,
        conclude: tables::curves,
    },
];

/// The experiment of that name.
pub fn experiment(name: &str) -> Option<&'static Experiment> {
    EXPERIMENTS.iter().find(|experiment| experiment.name == name)
}

/// The authors' 320 examples, 100 steps and 3 runs; less for a smoke test.
fn lens(scale: Scale) -> Lens {
    match scale {
        Scale::Smoke => Lens { examples: 128, batch: 32, steps: 30, draws: 2, extra: 6 },
        _ => Lens { examples: 320, batch: 32, steps: 100, draws: 3, extra: 10 },
    }
}

macro_rules! source {
    ($name:literal, $path:literal) => {
        source!($name, $path, [])
    };
    ($name:literal, $path:literal, $settings:expr) => {
        Source { name: $name, text: include_str!($path), settings: &$settings }
    };
}

/// The networks of the paper's first table.
fn networks(scale: Scale) -> &'static [Source] {
    static SMOKE: [Source; 2] = [
        source!("digits", "studies/smoke.toml", ["model.width=8"]),
        source!("digits", "studies/smoke.toml", ["model.width=4"]),
    ];
    match scale {
        Scale::Smoke => &SMOKE,
        Scale::Small => &SMALL,
        Scale::Paper => &PAPER,
    }
}

/// The same without ImageNet, as in the paper's other tables.
fn flat_networks(scale: Scale) -> &'static [Source] {
    static SMOKE: [Source; 1] = [source!("digits", "studies/smoke.toml", ["model.width=8"])];
    match scale {
        Scale::Smoke => &SMOKE,
        Scale::Small => &SMALL,
        Scale::Paper => &PAPER[..6],
    }
}

static SMALL: [Source; 1] = [source!("cifar10-resnet20", "studies/small.toml")];

static PAPER: [Source; 7] = [
    source!("cifar10-resnet20", "../../recipes/cifar10-resnet20.toml"),
    source!("cifar10-vgg16", "../../recipes/cifar10-vgg16.toml"),
    source!("cifar10-pyramidnet", "../../recipes/cifar10-pyramidnet.toml"),
    source!("cifar100-densenet", "../../recipes/cifar100-densenet.toml"),
    source!("cifar100-wrn", "../../recipes/cifar100-wrn.toml"),
    source!("cifar100-pyramidnet", "../../recipes/cifar100-pyramidnet.toml"),
    source!("imagenet-resnet50", "../../recipes/imagenet-resnet50.toml"),
];

fn workers(scale: Scale) -> &'static [Source] {
    static SMOKE: [Source; 1] = [source!("digits", "studies/smoke-workers.toml")];
    static SMALL: [Source; 1] = [source!("cifar10-resnet20", "studies/small-workers.toml")];
    static PAPER: [Source; 2] = [
        source!("cifar10-resnet20", "../../recipes/cifar10-resnet20-workers.toml"),
        source!("cifar100-pyramidnet", "../../recipes/cifar100-pyramidnet-workers.toml"),
    ];
    match scale {
        Scale::Smoke => &SMOKE,
        Scale::Small => &SMALL,
        Scale::Paper => &PAPER,
    }
}

fn gradient_norm(scale: Scale) -> &'static [Source] {
    static SMOKE: [Source; 1] = [source!("digits", "studies/smoke-gradnorm.toml")];
    static SMALL: [Source; 1] = [source!("cifar10-resnet20", "studies/small-gradnorm.toml")];
    static PAPER: [Source; 1] = [source!("cifar10-resnet18", "../../recipes/gradient-norm.toml")];
    match scale {
        Scale::Smoke => &SMOKE,
        Scale::Small => &SMALL,
        Scale::Paper => &PAPER,
    }
}

//! The recipe of a data set when nothing else is set.
//!
//! The digits get a small network and a run of seconds; the others the paper's networks and settings, see
//! `recipes/*.toml` for where each number comes from.

use super::{
    BatchNorm, ByWorker, Checkpoint, Data, Device, Evaluation, Format, Machine, Model, OptimizerKind, Pace,
    Recipe, Train,
};
use grawa_core::{AdamW, Amount, Method, Name, Preset, RateDrop, Schedule, Sgd};
use grawa_data::{DatasetKind, Sharding};
use grawa_nn::Precision;

/// Training images that batch norm is recalibrated on.
const RECALIBRATE: u32 = 25_600;

/// How often a run is saved.
pub(crate) const CHECKPOINT: Amount = Amount::Epochs(4.0);

/// The share of pictures to test on, where a folder does not say which.
const SPLIT_TEST: f64 = 0.2;

impl Recipe {
    /// The recipe of a data set, and of a network other than its usual one, when nothing else is set.
    pub fn for_data(kind: DatasetKind, network: Option<&str>) -> Result<Self, grawa_core::Error> {
        let (usual, batch, epochs, rate, weight_decay) = match kind {
            DatasetKind::Digits => ("digits", 32, 40.0, 0.1, 1e-4),
            // The last layer sees 6,272 features of such an image, twelve times those of a digit: at 0.1 it diverges at once.
            DatasetKind::Mnist | DatasetKind::FashionMnist => ("digits", 32, 10.0, 0.02, 1e-4),
            DatasetKind::Cifar10 => ("resnet20", 128, 107.0, 0.1, 5e-4),
            DatasetKind::Cifar100 => ("wrn28-10", 128, 200.0, 0.1, 5e-4),
            DatasetKind::Folder => ("resnet50", 32, 90.0, 0.1, 1e-4),
        };
        // At 0.02 too the first steps overshoot unless they are smaller.
        let warmup =
            matches!(kind, DatasetKind::Mnist | DatasetKind::FashionMnist).then_some(Amount::Epochs(1.0));
        let network = network.unwrap_or(usual);
        let drop = |share: f64| RateDrop { factor: 0.1, at: Amount::Epochs((epochs * share).round()) };
        let adamw = AdamW::default();
        Ok(Recipe {
            data: Data {
                kind,
                dir: "data".into(),
                held_out: 0,
                split_test: if kind == DatasetKind::Folder { SPLIT_TEST } else { 0.0 },
                shrink: 0,
                augment: kind.augment(network),
                split: Sharding::Iid,
                label_noise: ByWorker::default(),
            },
            model: Model { name: network.into(), graph: None, width: None, classes: None, init: None },
            method: Method::named(Name::Lgrawa, Preset::Paper),
            train: Train {
                workers: 4,
                batch,
                seed: 36,
                budget: Amount::Epochs(epochs),
                pace: Pace::Even,
                slow: ByWorker::default(),
                overlap: false,
                wire: Format::F32,
                rate: Schedule::new(rate, warmup, vec![drop(0.5), drop(0.75)])?,
                optimizer: OptimizerKind::Sgd,
                beta1: adamw.beta1,
                beta2: adamw.beta2,
                eps: adamw.eps,
                sam: 0.0,
                sgd: Sgd { weight_decay, ..Sgd::default() },
            },
            evaluate: Evaluation {
                every: Some(Amount::Epochs(4.0)),
                batch_norm: BatchNorm::Recalibrate,
                images: RECALIBRATE,
            },
            checkpoint: Checkpoint { every: Some(CHECKPOINT), best: true },
            machine: Machine {
                device: Device::Cpu,
                precision: Precision::Bf16,
                deterministic: false,
                cards: None,
                threads: None,
            },
        })
    }
}

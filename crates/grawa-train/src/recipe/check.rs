//! Which choices of a recipe go together.

use super::{Device, OptimizerKind, Pace, Recipe};
use grawa_core::{AdamW, Amount, Share};
use grawa_data::{Crop, DatasetKind};
use grawa_nn::zoo;
use std::time::Duration;

/// More workers than this are a slip of the finger.
const MOST_WORKERS: u32 = 4096;

/// Wider networks do not fit any memory, and their sizes would overflow.
const MOST_WIDTH: u32 = 1 << 16;

/// PyTorch's learning rate of AdamW: at that of SGD it diverges.
const ADAMW_RATE: f64 = 1e-3;

fn is_nothing(amount: Amount) -> bool {
    matches!(amount, Amount::Steps(0) | Amount::Epochs(0.0) | Amount::Time(Duration::ZERO))
}

impl Recipe {
    /// Defaults that follow from what was set: one worker where workers do not communicate, no look-ahead without
    /// momentum, PyTorch's rate and weight decay for AdamW, images of the size that a network of one's own takes.
    pub(super) fn settle(&mut self, is_said: impl Fn(&str) -> bool) {
        if self.method.share == Share::Nothing && !is_said("train.workers") {
            self.train.workers = 1;
        }
        if let Some(own) = self.model.own() {
            if !is_said("model.name") {
                self.model.name = own.name().into();
            }
            if let (Crop::Random { size, .. } | Crop::Resized { size, .. }, false) =
                (&mut self.data.augment.crop, is_said("data.augment"))
            {
                *size = own.input().height as u32;
            }
        }
        if self.train.optimizer == OptimizerKind::AdamW {
            if let (Ok(rate), false) = (self.train.rate.clone().with_base(ADAMW_RATE), is_said("train.rate"))
            {
                self.train.rate = rate;
            }
            if !is_said("train.weight_decay") {
                self.train.sgd.weight_decay = AdamW::default().weight_decay;
            }
        }
        if self.train.sgd.momentum == 0.0 && !is_said("train.nesterov") {
            self.train.sgd.nesterov = false;
        }
    }

    /// Whether the choices go together; if not, the key to change and why.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        let (train, method) = (&self.train, &self.method);
        let wrong = |key, why: String| Err((key, why));
        if train.workers > MOST_WORKERS {
            return wrong(
                "train.workers",
                format!("{} workers are more than {MOST_WORKERS}, the most there can be", train.workers),
            );
        }
        if is_nothing(train.budget) {
            let why = format!("a budget of {} trains nothing; give more, such as 500step", train.budget);
            return wrong("train.budget", why);
        }
        if train.rate.base() > f64::from(f32::MAX) {
            let why = format!("train.rate is {}, more than a parameter can hold; try 0.1", train.rate.base());
            return wrong("train.rate", why);
        }
        if let Some(over) = train.rate.cosine().filter(|&over| is_nothing(over)) {
            let why = format!(
                "a cosine over {over} is 0 from the first step on; let it end with the budget: cosine over {}",
                train.budget
            );
            return wrong("train.rate", why);
        }
        if method.share == Share::Nothing && train.workers != 1 {
            let why = format!(
                "{} is one worker by itself, but train.workers is {}; set it to 1, or choose method 'mean' or 'dp-sgd'",
                method.name, train.workers
            );
            return wrong("train.workers", why);
        }
        if method.share != Share::Parameters && train.pace == Pace::Free {
            let why = format!(
                "{} has no rounds that uneven workers could share out; set train.pace = 'even'",
                method.name
            );
            return wrong("train.pace", why);
        }
        if method.qsr > 0.0 && train.pace == Pace::Free {
            return wrong("train.pace", grawa_session::QSR_AT_A_FREE_PACE.into());
        }
        if let (true, Some(why)) = (train.overlap, method.overlap_objection()) {
            return wrong("train.overlap", why.into());
        }
        if self.machine.device == Device::Cuda && train.pace == Pace::Free {
            let why =
                "on a GPU all workers step together; set train.pace = 'even', or machine.device = 'cpu'";
            return wrong("train.pace", why.into());
        }
        for (key, setting) in [("data.label_noise", &self.data.label_noise), ("train.slow", &train.slow)] {
            if let Some((worker, _)) = setting.all().iter().find(|(worker, _)| *worker >= train.workers) {
                let why = format!(
                    "{key} names worker {worker}, but the {} workers are numbered from 0",
                    train.workers
                );
                return wrong(key, why);
            }
        }
        if !train.slow.all().is_empty() && train.pace != Pace::Free {
            let why = "at an even pace every worker takes the same steps and all wait for the slow one: it changes no result; \
                       set train.pace = 'free', or remove train.slow";
            return wrong("train.slow", why.into());
        }
        let of_folders =
            [("data.split_test", self.data.split_test > 0.0), ("data.shrink", self.data.shrink > 0)];
        if let Some((key, _)) =
            of_folders.iter().find(|(_, is_set)| *is_set && self.data.kind != DatasetKind::Folder)
        {
            let why = format!(
                "{key} is for class folders, and {} has a form of its own; leave {key} out",
                self.data.kind
            );
            return wrong(key, why);
        }
        if let Some(inner) = &method.inner
            && !train.workers.is_multiple_of(inner.group)
        {
            let why = format!(
                "{} workers do not fall into groups of {}; change train.workers or method.inner.group",
                train.workers, inner.group
            );
            return wrong("method.inner.group", why);
        }
        if train.sgd.nesterov && train.sgd.momentum == 0.0 {
            let why = "train.nesterov looks ahead along the momentum, which is 0; set train.momentum or train.nesterov = false";
            return wrong("train.nesterov", why.into());
        }
        if let Some(radius) = method.radius.filter(|&radius| train.sam > 0.0 && radius != train.sam) {
            let why = format!("train.sam is {}, but method.radius is {radius}; set one of them", train.sam);
            return wrong("train.sam", why);
        }
        if let Some(own) = self.model.own() {
            if self.model.name != own.name() {
                let why = format!(
                    "model.name is {}, but the network of model.graph is called {}; leave model.name out",
                    self.model.name,
                    own.name()
                );
                return wrong("model.name", why);
            }
            for (key, is_said) in
                [("model.width", self.model.width.is_some()), ("model.classes", self.model.classes.is_some())]
            {
                if is_said {
                    let why = format!(
                        "the layers of model.graph are fixed; leave {key} out, and change the model before it is exported"
                    );
                    return wrong(key, why);
                }
            }
        } else if let Err(error) = zoo::find(&self.model.name) {
            return wrong("model.name", format!("model.name: {error}, or your own by model.graph"));
        }
        if self.model.width.is_some() && !self.model.has_widths() {
            let why = format!("{} has one width only; leave model.width out", self.model.name);
            return wrong("model.width", why);
        }
        if let Some(width) = self.model.width.filter(|&width| width > MOST_WIDTH) {
            let why =
                format!("model.width is {width}, and widths go from 1 to {MOST_WIDTH}; make it smaller");
            return wrong("model.width", why);
        }
        Ok(())
    }
}

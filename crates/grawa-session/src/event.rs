//! What happens in a run, in the order in which it happens, for observers: files, a terminal, a page.
//!
//! Events are plain data and nothing in a run depends on its observers. What is reproducible (steps, losses, weights, errors) is apart
//! from what is not (seconds): the latter is in [`Times`] and in fields called `elapsed` and `times` only. Losses that are not finite are `None`, since JSON has no number for them.

use grawa_core::Amount;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// The run begins, or continues after a resume.
    Started(Started),
    /// A round is over. Where workers communicate at every step (gradients are shared) one event stands for several steps.
    Round(Round),
    /// The model was measured on the test set.
    Evaluated(Evaluated),
    /// A checkpoint begins to be written: all earlier events belong to it, all later ones do not. It is complete at
    /// [`Event::CheckpointWritten`].
    Checkpoint {
        /// Where the run stands.
        at: Place,
        /// The folder.
        path: PathBuf,
    },
    /// A checkpoint is complete and on the disk, and those that it makes superfluous are removed: it can be copied
    /// elsewhere. Only the observers of the process that wrote it are told, and no record has it.
    CheckpointWritten {
        /// Where the run stood at the checkpoint.
        at: Place,
        /// The folder.
        path: PathBuf,
    },
    /// Something went wrong, and the run continues.
    Fault(Fault),
    /// The run is over, or stopped.
    Finished(Finished),
}

impl Event {
    /// Where the run stood.
    pub fn place(&self) -> &Place {
        match self {
            Event::Started(event) => &event.at,
            Event::Round(event) => &event.at,
            Event::Evaluated(event) => &event.at,
            Event::Checkpoint { at, .. } | Event::CheckpointWritten { at, .. } => at,
            Event::Fault(event) => &event.at,
            Event::Finished(event) => &event.at,
        }
    }
}

/// Where a run stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// Local steps of each worker; at a free pace, the steps of all divided by their number.
    pub steps: u64,
    /// Rounds so far; where gradients are shared, that is steps.
    pub rounds: u64,
    /// Passes over the training set by all workers together.
    pub epochs: f64,
    /// How much of the budget is spent, from 0 to 1.
    pub share: f64,
    /// Training time in seconds, evaluation left out. Not reproducible.
    #[serde(default, skip_serializing_if = "is_default")]
    pub elapsed: f64,
}

impl Place {
    /// The training time still to come, if the rest takes as long as what was done. None before anything was.
    pub fn left(&self) -> Option<Duration> {
        let left = self.elapsed * (1.0 - self.share) / self.share;
        Duration::try_from_secs_f64(left.max(0.0)).ok().filter(|_| self.share > 0.0)
    }
}

/// A run begins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Started {
    /// Where it begins: all zero unless it was resumed.
    pub at: Place,
    /// The method, as it is written on a command line.
    pub method: String,
    /// The network.
    pub network: String,
    /// The data set.
    pub data: String,
    /// Workers.
    pub workers: u32,
    /// Images in a batch.
    pub batch: u32,
    /// The seed.
    pub seed: u64,
    /// How much is to be done.
    pub budget: Amount,
    /// Local steps of each worker in all, where the budget determines them.
    pub steps: Option<u64>,
    /// Parameters of the network.
    pub parameters: usize,
    /// The names of the spans: the rows of [`Mixed::weights`] where spans have weights of their own.
    pub spans: Vec<String>,
    /// Images to train on.
    pub examples: usize,
    /// Whether the run was resumed from a checkpoint.
    pub resumed: bool,
}

/// A round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Where the run stands after it.
    pub at: Place,
    /// The learning rate of the last step.
    pub rate: f64,
    /// The mean training loss of all steps since the last such event.
    pub loss: Option<f64>,
    /// The share of each worker in it, in rank order; those that were lost are not in the list.
    pub workers: Vec<Share>,
    /// What was mixed: for methods with groups one for each group, then one for all. Empty where nothing is shared.
    pub mixed: Vec<Mixed>,
    /// Bytes that all workers sent since the last such event.
    pub bytes: u64,
}

/// A worker's share in a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// The worker.
    pub worker: u32,
    /// Its local steps since the last such event.
    pub steps: u64,
    /// Its local steps in all.
    pub total: u64,
    /// The mean training loss of these steps.
    pub loss: Option<f64>,
    /// Where its time went since the last such event.
    #[serde(default, skip_serializing_if = "is_default")]
    pub times: Times,
}

/// What a plan came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mixed {
    /// Who took part.
    pub workers: Vec<u32>,
    /// β: one weight for each worker, in one row or in one for each span.
    pub weights: Vec<Vec<f32>>,
    /// λ.
    pub pull: f32,
    /// Why anything differs from the plain formula, and who leads: sentences.
    pub reasons: Vec<String>,
}

impl Mixed {
    /// The weight of the `at`-th of its workers: where spans have weights of their own, their mean.
    pub fn mean_weight(&self, at: usize) -> f64 {
        let weights = self.weights.iter().filter_map(|row| row.get(at));
        weights.map(|&weight| f64::from(weight)).sum::<f64>() / self.weights.len().max(1) as f64
    }
}

/// Where time goes, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// Forward and backward passes and the step of SGD.
    pub compute: f64,
    /// Passes on score batches.
    pub score: f64,
    /// Waiting for a core, where there are more workers than cores.
    pub queue: f64,
    /// Waiting for a batch to be ready.
    pub data: f64,
    /// Waiting for other workers.
    pub wait: f64,
    /// Exchanging reports.
    pub wire: f64,
    /// Making the centre and pulling.
    pub apply: f64,
    /// Evaluation, which is outside the clock.
    pub evaluate: f64,
}

impl Times {
    /// The parts with their names.
    pub fn parts(&self) -> [(&'static str, f64); 8] {
        [
            ("compute", self.compute),
            ("score", self.score),
            ("queue", self.queue),
            ("data", self.data),
            ("wait", self.wait),
            ("wire", self.wire),
            ("apply", self.apply),
            ("evaluate", self.evaluate),
        ]
    }
}

impl std::ops::AddAssign for Times {
    fn add_assign(&mut self, other: Times) {
        self.compute += other.compute;
        self.score += other.score;
        self.queue += other.queue;
        self.data += other.data;
        self.wait += other.wait;
        self.wire += other.wire;
        self.apply += other.apply;
        self.evaluate += other.evaluate;
    }
}

/// An evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluated {
    /// Where the run stands.
    pub at: Place,
    /// What was measured: one model, or one for each worker.
    pub models: Vec<Model>,
}

/// A model on the test set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// Which model: `mean`, `centre`, `best (worker 2)`, `worker 0`.
    pub which: String,
    /// The mean loss.
    pub loss: Option<f64>,
    /// How many were classified wrong.
    pub wrong: u64,
    /// Of how many.
    pub examples: u64,
}

impl Evaluated {
    /// The share of examples that were classified wrong, from 0 to 1, in the mean of the models; none if none was measured.
    pub fn error(&self) -> Option<f64> {
        let count = self.models.len();
        (count > 0).then(|| self.models.iter().map(Model::error).sum::<f64>() / count as f64)
    }
}

impl Model {
    /// The share that was classified wrong, from 0 to 1.
    pub fn error(&self) -> f64 {
        self.wrong as f64 / self.examples.max(1) as f64
    }
}

/// Something went wrong.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// Where the run stood.
    pub at: Place,
    /// The worker, if it is about one.
    pub worker: Option<u32>,
    /// What happened and what follows from it: a sentence.
    pub what: String,
}

/// Why a run is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// The budget is spent.
    Spent,
    /// It was asked to stop, and can be resumed.
    Interrupted,
}

/// The run is over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    /// Where it ended.
    pub at: Place,
    /// Why.
    pub reason: Reason,
    /// Each worker's steps and times over the whole run, a resumed one's earlier parts included.
    pub workers: Vec<Share>,
    /// Bytes that all workers sent.
    pub bytes: u64,
    /// Whether no worker's parameters were finite any more: at the last round, or at the end.
    #[serde(default, skip_serializing_if = "is_default")]
    pub diverged: bool,
}

/// A log without times does not have such fields.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_one_line_of_json_and_read_back() {
        let at = Place { steps: 64, rounds: 2, epochs: 0.5, share: 0.25, elapsed: 3.0 };
        let share = Share { worker: 1, steps: 32, total: 64, loss: None, times: Times::default() };
        let mixed = Mixed {
            workers: vec![0, 1],
            weights: vec![vec![0.25, 0.75]],
            pull: 0.5,
            reasons: vec!["worker 1 leads".into()],
        };
        let round =
            Round { at, rate: 0.1, loss: Some(2.5), workers: vec![share], mixed: vec![mixed], bytes: 8 };
        for event in [
            Event::Round(round),
            Event::Checkpoint { at, path: "checkpoints/step-64".into() },
            Event::Fault(Fault { at, worker: Some(3), what: "it left".into() }),
        ] {
            let line = serde_json::to_string(&event).unwrap();
            assert!(line.starts_with("{\"event\":\"") && !line.contains('\n'), "{line}");
            assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), event);
            assert_eq!(*event.place(), at);
        }
    }

    #[test]
    fn the_time_left_is_in_proportion() {
        let at = |share, elapsed| Place { share, elapsed, ..Place::default() };
        assert_eq!(at(0.25, 3.0).left(), Some(Duration::from_secs(9)));
        assert_eq!(at(1.0, 3.0).left(), Some(Duration::ZERO));
        assert_eq!(at(0.0, 0.0).left(), None);
    }
}

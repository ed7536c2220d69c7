//! The finding of a finished cell: its measurements, with the recipe they belong to.

use super::cell::Cell;
use crate::Error;
use grawa_train::{Evaluated, Event, Times};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A finished cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The cell's name.
    pub cell: String,
    /// The recipe, as TOML.
    pub recipe: String,
    /// The program that measured it.
    pub program: String,
    /// The number of cells that ran at the same time at most: they share the machine.
    pub jobs: usize,
    /// The outcome.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// The outcome of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
// One is kept a cell, and nearly all are done.
#[allow(clippy::large_enum_variant)]
pub enum Outcome {
    /// It was measured.
    Done(Measured),
    /// It diverged: no worker was left, or none with finite parameters.
    Lost {
        /// Why.
        why: String,
    },
}

/// What was measured of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The final model on the test set, or on the examples held out.
    pub test: Score,
    /// On the training set.
    pub train: Option<Score>,
    /// Gradient norms on the training set.
    pub gradient: Option<Gradient>,
    /// The Hessian.
    pub flatness: Option<Flatness>,
    /// The test error over the run.
    pub curve: Vec<CurvePoint>,
    /// Local steps of each worker.
    pub steps: u64,
    /// Rounds.
    pub rounds: u64,
    /// Bytes that all workers together sent.
    pub bytes: u64,
    /// Training time, evaluation left out.
    pub seconds: f64,
    /// The parts of a worker's time, averaged over workers.
    pub times: Times,
}

/// A model on some examples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// The mean loss; none if it was not finite.
    pub loss: Option<f64>,
    /// The share of wrong examples, from 0 to 1.
    pub error: f64,
}

/// Norms of the gradient of the summed loss on the training set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Gradient {
    /// ‖g‖, GRAWA's score.
    pub whole: f64,
    /// Σₖ‖Gₖ‖, MGRAWA's score.
    pub layers: f64,
}

/// The Hessian of the mean loss on some training examples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Flatness {
    /// λ_max.
    pub largest: f64,
    /// The sum of the Ritz values, which the paper's table lists.
    pub ritz_sum: f64,
    /// √Σθ².
    pub ritz_norm: f64,
    /// ‖H‖_F.
    pub frobenius: f64,
    /// The trace.
    pub trace: f64,
    /// ε-sharpness.
    pub sharpness: f64,
}

/// An evaluation during the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Local steps of each worker.
    pub steps: u64,
    /// Epochs of all workers together.
    pub epochs: f64,
    /// Training time.
    pub seconds: f64,
    /// The model.
    pub score: Score,
}

impl Finding {
    /// What was measured, unless the run was lost.
    pub fn measured(&self) -> Option<&Measured> {
        match &self.outcome {
            Outcome::Done(measured) => Some(measured),
            Outcome::Lost { .. } => None,
        }
    }

    /// Reads the finding of a cell from a file.
    pub(super) fn read(path: &Path, cell: &Cell) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(grawa_toy::Error::io("read", path))?;
        let damaged = |why: String| Error::DamagedCell(path.into(), why);
        let finding: Finding = serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?;
        if finding.cell != cell.name || finding.recipe != cell.recipe.to_toml() {
            return Err(damaged(format!("it is of the cell '{}'", finding.cell)));
        }
        Ok(finding)
    }
}

impl Score {
    /// The mean over the evaluated models.
    pub(crate) fn of(evaluated: &Evaluated) -> Self {
        let models = &evaluated.models;
        let count = models.len().max(1) as f64;
        let loss: Option<f64> = models.iter().map(|model| model.loss).sum();
        Score { loss: loss.map(|loss| loss / count), error: evaluated.error().unwrap_or(0.0) }
    }
}

impl Outcome {
    /// The outcome in a run's events; `None` if the run did not end.
    pub(super) fn of<'a>(events: impl IntoIterator<Item = &'a Event>) -> Option<Self> {
        let mut measured = Measured::default();
        let mut ended = None;
        for event in events {
            match event {
                Event::Evaluated(evaluated) => {
                    let (at, score) = (&evaluated.at, Score::of(evaluated));
                    let (steps, epochs, seconds) = (at.steps, at.epochs, at.elapsed);
                    measured.curve.push(CurvePoint { steps, epochs, seconds, score });
                }
                Event::Finished(end) if end.reason == grawa_train::Reason::Spent => ended = Some(end),
                _ => {}
            }
        }
        let end = ended?;
        if end.diverged {
            let why = format!("after {} steps no worker's parameters are finite", end.at.steps);
            return Some(Outcome::Lost { why });
        }
        measured.test = measured.curve.last()?.score;
        (measured.steps, measured.rounds, measured.bytes) = (end.at.steps, end.at.rounds, end.bytes);
        measured.seconds = end.at.elapsed;
        measured.times = mean_times(end.workers.iter().map(|share| share.times));
        Some(Outcome::Done(measured))
    }
}

/// The parts of a worker's time with their names. Evaluation is outside the clock.
pub(crate) fn clocked(times: &Times) -> [(&'static str, f64); 7] {
    let [parts @ .., _evaluate] = times.parts();
    parts
}

/// The mean of the workers' times.
pub(crate) fn mean_times(all: impl ExactSizeIterator<Item = Times>) -> Times {
    let count = all.len().max(1) as f64;
    let mut sum = Times::default();
    all.for_each(|times| sum += times);
    let Times { compute, score, queue, data, wait, wire, apply, evaluate } = sum;
    let [compute, score, queue, data, wait, wire, apply, evaluate] =
        [compute, score, queue, data, wait, wire, apply, evaluate].map(|seconds| seconds / count);
    Times { compute, score, queue, data, wait, wire, apply, evaluate }
}

//! The summary of a run for a report: read from its folder, with fewer points.

use super::downsample::{Point, average, pick};
use super::weights::Weights;
use crate::Error;
use crate::lab::{Score, mean_times};
use grawa_core::Name;
use grawa_train::folder::{self, RECIPE};
use grawa_train::observe::{EVENTS, read};
use grawa_train::{Event, Finished, Place, Reason, Recipe, Times};
use std::collections::BTreeMap;
use std::path::Path;

/// The most points of a curve.
const POINTS: usize = 240;

/// The summary of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunSummary {
    /// The folder's name.
    pub name: String,
    /// The recipe.
    pub recipe: Recipe,
    /// What was measured over the run, by name.
    pub metrics: BTreeMap<String, Vec<Point>>,
    /// The weights of its rounds, if it has any.
    pub weights: Option<Weights>,
    /// The parts of a worker's time, averaged over workers.
    pub times: Times,
    /// Errors in percent: the last, the lowest; none before an evaluation.
    pub errors: Option<(f64, f64)>,
    /// Steps of each worker, rounds, bytes, seconds of training.
    pub totals: (u64, u64, u64, f64),
    /// Whether the budget is spent.
    pub finished: bool,
    /// Whether no worker's parameters were finite at the end: it has no part in means.
    pub diverged: bool,
}

impl RunSummary {
    /// Reads a run's folder.
    pub(super) fn read(path: &Path, budget: usize) -> Result<Self, Error> {
        let not_a_run = |why: &str| Error::NotARun(path.into(), why.into());
        let missing = [RECIPE, EVENTS].into_iter().find(|name| !path.join(name).exists());
        match (path.exists(), path.is_dir(), missing) {
            (false, ..) => Err(not_a_run("there is nothing of that name")),
            (_, false, _) => Err(not_a_run("it is a file; name the run's folder")),
            (.., Some(name)) => Err(not_a_run(&format!(
                "it holds no {name}, which `grawa train --out` leaves in a run's folder"
            ))),
            _ => Ok(()),
        }?;
        let recipe = folder::recipe(path).map_err(|error| not_a_run(&error.to_string()))?;
        let events: Vec<Event> = read(path)?.into_iter().map(|(event, _)| event).collect();
        let name =
            path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into());
        Ok(RunSummary::of(name, recipe, &events, budget))
    }

    /// A run from its events.
    pub(super) fn of(name: String, recipe: Recipe, events: &[Event], budget: usize) -> Self {
        let data = recipe.data.kind;
        let on = if recipe.data.held_out == 0 { "test" } else { "held-out" };
        let [mut errors, mut losses, mut training, mut rates] = [const { Vec::<Point>::new() }; 4];
        let finite = |value: Option<f64>| value.filter(|value| value.is_finite());
        let mut end: Option<&Finished> = None;
        let mut last = Place::default();
        // Until a run ends, the sums of its rounds.
        let (mut rounds, mut bytes, mut times) = (0, 0, Vec::<Times>::new());
        for event in events {
            let place = *event.place();
            match event {
                Event::Round(round) => {
                    training.push((place, finite(round.loss)));
                    rates.push((place, finite(Some(round.rate))));
                    times.resize(round.workers.len().max(times.len()), Times::default());
                    times.iter_mut().zip(&round.workers).for_each(|(sum, share)| *sum += share.times);
                    (rounds, bytes) = (place.rounds, bytes + round.bytes);
                }
                Event::Evaluated(evaluated) => {
                    let Score { loss, error } = Score::of(evaluated);
                    errors.push((place, finite(Some(100.0 * error))));
                    losses.push((place, finite(loss)));
                }
                Event::Finished(finished) => end = Some(finished),
                _ => {}
            }
            last = place;
        }
        if let Some(end) = end {
            (rounds, bytes) = (end.at.rounds, end.bytes);
            times = end.workers.iter().map(|share| share.times).collect();
        }
        let lowest = errors.iter().filter_map(|it| it.1).reduce(f64::min);
        let found = errors.last().and_then(|it| it.1).zip(lowest);
        // Single losses of training are noise.
        let metrics = [
            (format!("{on} error on {data}, %"), pick(&errors, POINTS)),
            (format!("{on} loss on {data}"), pick(&losses, POINTS)),
            (format!("training loss on {data}"), average(&training, POINTS)),
            (super::page::RATE.to_owned(), pick(&rates, POINTS)),
        ];
        RunSummary {
            name,
            weights: Weights::of(events, budget),
            recipe,
            metrics: metrics.into_iter().filter(|(_, points)| !points.is_empty()).collect(),
            times: mean_times(times.into_iter()),
            errors: found,
            totals: (last.steps, rounds, bytes, last.elapsed),
            finished: end.is_some_and(|end| end.reason == Reason::Spent),
            diverged: end.is_some_and(|end| end.reason == Reason::Spent && end.diverged),
        }
    }

    /// The method.
    pub fn method(&self) -> Name {
        self.recipe.method.name
    }
}

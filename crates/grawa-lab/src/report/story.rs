//! A run as a report tells it: read from its folder, thinned out.

use super::thin::{Place, average, pick};
use super::weights::{Budget, Weights};
use crate::Error;
use crate::picture::palette;
use grawa_core::Name;
use grawa_train::observe::{EVENTS, read};
use grawa_train::{Event, Finished, Reason, Recipe, Times, folder};
use std::collections::BTreeMap;
use std::path::Path;

/// Points of a curve at most.
const POINTS: usize = 240;

/// A run.
#[derive(Clone, Debug, PartialEq)]
pub struct Story {
    /// The folder's name.
    pub name: String,
    /// The recipe.
    pub recipe: Recipe,
    /// What was measured over the run, by name.
    pub metrics: BTreeMap<String, Series>,
    /// The weights of its rounds, if it has any.
    pub weights: Option<Weights>,
    /// Where a worker's time went, in the mean of the workers.
    pub times: Times,
    /// Errors in percent: the last, the lowest; none before an evaluation.
    pub errors: Option<(f64, f64)>,
    /// Steps a worker, rounds, bytes, seconds of training.
    pub totals: (u64, u64, u64, f64),
    /// Whether the budget is spent.
    pub finished: bool,
}

/// A metric over a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Where the run stood.
    pub at: Vec<Place>,
    /// The values; none where they were not finite.
    pub values: Vec<Option<f64>>,
}

impl Story {
    /// Reads a run's folder.
    pub(super) fn read(path: &Path, budget: Budget) -> Result<Self, Error> {
        let not_a_run = |why: &str| Error::NotARun { path: path.into(), why: why.into() };
        if !path.exists() {
            return Err(not_a_run("there is nothing of that name"));
        }
        if !path.is_dir() {
            return Err(not_a_run("it is a file; name the run's folder"));
        }
        if !path.join(EVENTS).exists() {
            return Err(not_a_run(
                "it holds no recipe.toml and events.jsonl, as `grawa train --out` leaves them",
            ));
        }
        let recipe = folder::recipe(path).map_err(|error| not_a_run(&error.to_string()))?;
        let events: Vec<Event> = read(path)?.into_iter().map(|(event, _)| event).collect();
        let name =
            path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into());
        Ok(Story::of(name, recipe, &events, budget))
    }

    /// A run from its events.
    pub(super) fn of(name: String, recipe: Recipe, events: &[Event], budget: Budget) -> Self {
        let data = recipe.data.kind;
        let on = if recipe.data.held_out == 0 { "test" } else { "held-out" };
        let (mut errors, mut losses, mut training, mut rates) =
            (Series::default(), Series::default(), Series::default(), Series::default());
        let mut times = Times::default();
        let mut end: Option<&Finished> = None;
        let mut last = Place::default();
        let (mut rounds, mut bytes, mut workers) = (0, 0, 1);
        for event in events {
            let at = event.place();
            let place = Place { steps: at.steps as f64, epochs: at.epochs, seconds: at.elapsed };
            match event {
                Event::Round(round) => {
                    training.push(place, round.loss);
                    rates.push(place, Some(round.rate));
                    round.workers.iter().for_each(|share| times += share.times);
                    workers = round.workers.len().max(workers);
                    (rounds, bytes) = (at.rounds, bytes + round.bytes);
                }
                Event::Evaluated(evaluated) => {
                    let count = evaluated.models.len().max(1) as f64;
                    let error: f64 = evaluated.models.iter().map(grawa_train::Model::error).sum();
                    let loss: Option<f64> = evaluated.models.iter().map(|model| model.loss).sum();
                    errors.push(place, Some(100.0 * error / count));
                    losses.push(place, loss.map(|loss| loss / count));
                }
                Event::Finished(finished) => end = Some(finished),
                _ => {}
            }
            last = place;
        }
        if let Some(end) = end {
            (rounds, bytes) = (end.at.rounds, end.bytes);
            times = Times::default();
            workers = end.workers.len().max(1);
            end.workers.iter().for_each(|share| times += share.times);
        }
        let lowest = errors.values.iter().flatten().copied().reduce(f64::min);
        let found = errors.values.last().copied().flatten().zip(lowest);
        let mut metrics = BTreeMap::new();
        for (name, series, averaged) in [
            (format!("{on} error on {data}, %"), errors, false),
            (format!("{on} loss on {data}"), losses, false),
            (format!("training loss on {data}"), training, true),
            (super::page::RATE.to_owned(), rates, false),
        ] {
            if !series.values.is_empty() {
                metrics.insert(name, series.thin(averaged));
            }
        }
        Story {
            name,
            weights: Weights::of(events, budget),
            recipe,
            metrics,
            times: scaled(times, 1.0 / workers as f64),
            errors: found,
            totals: (last.steps as u64, rounds, bytes, last.seconds),
            finished: end.is_some_and(|end| end.reason == Reason::Spent),
        }
    }

    /// The method.
    pub fn method(&self) -> Name {
        self.recipe.method.name
    }

    /// The method's colour, as a page writes it. Black is the colour of text, which can be seen in the dark.
    pub(super) fn colour(&self) -> String {
        match self.method() {
            Name::Mean => "currentColor".into(),
            method => palette::css(palette::look(method.as_str()).colour),
        }
    }

    /// The method's marker, as the points of a polygon around 0, 0.
    pub(super) fn marker(&self) -> String {
        let outline = palette::look(self.method().as_str()).marker.outline((0, 0), 45.0);
        let point = |(x, y): (i32, i32)| format!("{:.1},{:.1}", f64::from(x) / 10.0, f64::from(y) / 10.0);
        outline.into_iter().map(point).collect::<Vec<_>>().join(" ")
    }
}

impl Series {
    fn push(&mut self, at: Place, value: Option<f64>) {
        self.at.push(at);
        self.values.push(value.filter(|value| value.is_finite()));
    }

    /// Averages of neighbours where single values are noise, every so manieth value else.
    fn thin(self, averaged: bool) -> Self {
        let (at, values) = if averaged {
            average(&self.at, &self.values, POINTS)
        } else {
            pick(&self.at, &self.values, POINTS)
        };
        Series { at, values }
    }
}

fn scaled(times: Times, by: f64) -> Times {
    let Times { compute, score, queue, data, wait, wire, apply, evaluate } = times;
    let [compute, score, queue, data, wait, wire, apply, evaluate] =
        [compute, score, queue, data, wait, wire, apply, evaluate].map(|seconds| seconds * by);
    Times { compute, score, queue, data, wait, wire, apply, evaluate }
}

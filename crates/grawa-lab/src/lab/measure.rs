//! Measures the final model of a cell on the training set: error, gradient norms, Hessian.

use super::cell::{Cell, HessianSettings, Measurements};
use super::finding::{Flatness, Gradient, Measured, Score};
use crate::Error;
use grawa_core::norm::{norm, norms};
use grawa_data::{Dataset, Feed};
use grawa_flat::{Engine, Examples, Losses, Settings};
use grawa_nn::{Graph, Mode, State};
use grawa_train::Evaluator;
use grawa_train::recipe::{BatchNorm, Device};
use std::path::Path;

/// The seed of examples and directions: that of `grawa flatness`.
const SEED: u64 = 31;
/// Examples in memory at once.
const AT_ONCE: usize = 4_096;

/// Adds the measurements of a cell to those of its run.
pub(super) fn measure(
    cell: &Cell,
    data: &Dataset,
    model: &Path,
    threads: usize,
    measured: &mut Measured,
) -> Result<(), Error> {
    let measurements = cell.measurements;
    if measurements == Measurements::default() {
        return Ok(());
    }
    let mut recipe = cell.recipe.clone();
    recipe.machine.threads = Some(threads as u32);
    // Everything here is measured in f32: the Hessian where the network was trained, the rest on the CPU.
    let engine = match recipe.machine.device {
        Device::Cpu => Engine::Cpu { threads },
        Device::Cuda => Engine::Cuda,
    };
    recipe.machine.device = Device::Cpu;
    recipe.data.held_out = 0;
    // The statistics that the model was evaluated with are saved with it.
    recipe.evaluate.batch_norm = BatchNorm::Keep;
    // The evaluation set is the training set here.
    let data = Dataset { test: data.train.clone(), ..data.clone() };
    let evaluator = Evaluator::new(&recipe, &data)?;
    let state = State::load(evaluator.graph(), model).map_err(grawa_train::Error::from)?;
    let feed =
        Feed::new(&data.train, &data.normalise, recipe.data.augment).map_err(grawa_train::Error::from)?;
    if measurements.train {
        let found = evaluator.measure(&state, |_| {})?;
        let loss = Some(found.loss).filter(|loss| loss.is_finite());
        measured.train = Some(Score { loss, error: found.total().error() });
    }
    if measurements.gradient {
        let batch = recipe.train.batch as usize;
        let (score, gradient) = gradient(evaluator.graph(), &state, &feed, batch, threads)?;
        (measured.train, measured.gradient) = (Some(score), Some(gradient));
    }
    if let Some(hessian) = measurements.flatness {
        measured.flatness = Some(flatness(evaluator.graph(), &state, &feed, hessian, engine)?);
    }
    Ok(())
}

/// Loss, error, and norms of the gradient of the summed loss over all training examples, without augmentation and with the
/// statistics of evaluation.
fn gradient(
    graph: &Graph,
    state: &State,
    feed: &Feed,
    batch: usize,
    threads: usize,
) -> Result<(Score, Gradient), Error> {
    let count = feed.len();
    let all: Vec<u32> = (0..count as u32).collect();
    let (whole, rest) = all.split_at(count / batch * batch);
    let mut sum = vec![0.0f64; state.parameters.len()];
    let mut part = vec![0.0; state.parameters.len()];
    let (mut loss, mut wrong) = (0.0, 0.0);
    let at_once = AT_ONCE.div_ceil(batch) * batch;
    let whole = whole.chunks(at_once).map(|chosen| (chosen, batch));
    // What does not fill a batch is a smaller one.
    for (chosen, batch) in whole.chain(rest.chunks(at_once).map(|rest| (rest, rest.len()))) {
        let examples = Examples::of(feed, chosen, batch)?;
        let mut losses = Losses::new(graph, &examples, Mode::Evaluate, Engine::Cpu { threads })?;
        let weight = chosen.len() as f64;
        wrong += weight * losses.at(&state.parameters, &state.statistics)?.error;
        loss += weight * losses.gradient(&state.parameters, &state.statistics, &mut part)?;
        sum.iter_mut().zip(&part).for_each(|(sum, &part)| *sum += weight * f64::from(part));
    }
    let sum: Vec<f32> = sum.into_iter().map(|x| x as f32).collect();
    let mut layers = vec![0.0; graph.parameters().spans().len()];
    norms(graph.parameters(), &sum, &mut layers)?;
    let mean = loss / count as f64;
    let score = Score { loss: Some(mean).filter(|loss| loss.is_finite()), error: wrong / count as f64 };
    Ok((score, Gradient { whole: norm(&sum), layers: layers.iter().sum() }))
}

fn flatness(
    graph: &Graph,
    state: &State,
    feed: &Feed,
    hessian: HessianSettings,
    engine: Engine,
) -> Result<Flatness, Error> {
    let chosen = Examples::choose(feed.len(), SEED, hessian.examples)?;
    let examples = Examples::of(feed, &chosen, hessian.batch)?;
    let HessianSettings { steps, draws, extra, .. } = hessian;
    let settings = Settings { steps, draws, extra, seed: SEED, engine, ..Settings::default() };
    let figures = grawa_flat::measure(graph, state, &examples, &settings, || {})?;
    Ok(Flatness {
        largest: figures.largest().value,
        ritz_sum: figures.ritz_sum().value,
        ritz_norm: figures.ritz_norm().value,
        frobenius: figures.frobenius().value,
        trace: figures.trace().value,
        sharpness: figures.sharpness,
    })
}

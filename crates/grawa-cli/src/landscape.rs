//! `grawa landscape`: slices of the loss around checkpoints.

use crate::bar::bar;
use crate::failure::Failure;
use crate::model_args::{ModelArgs, View, name_of};
use crate::output::print;
use clap::Args;
use grawa_core::{Key, Purpose};
use grawa_flat::{Line, Losses, Plane, Principal, filter_normalised, principal};
use grawa_lab::Folder;
use grawa_lab::flatness::{put_line, put_plane};
use grawa_lab::picture::digits::{distinct, same};
use grawa_nn::State;
use grawa_train::{Checkpoint, find_model};
use std::path::PathBuf;

/// Slices of the loss: along the line between two checkpoints, or over a plane around one.
///
/// With --to: loss and error on the line from one checkpoint (0) to the other (1), and a little beyond. Of a run's folder or
/// checkpoint, or with two or more --worker: the plane in which the workers differ most, around the evaluated model, with
/// all of them drawn in. Otherwise, or with --random, a random plane with filter-normalised directions, which can be
/// compared between networks. Writes CSV, SVG and PNG.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  grawa landscape runs/lgrawa\n  grawa landscape runs/lgrawa --random\n  grawa landscape centre.safetensors --model resnet20 --data cifar10 --dir data\n  grawa landscape a.safetensors --to b.safetensors --model resnet20 --data cifar10\n  grawa landscape centre.safetensors --worker w0.safetensors --worker w1.safetensors --worker w2.safetensors --model resnet20 --data cifar10"
)]
pub(crate) struct Arguments {
    /// The run's folder (its newest checkpoint), a checkpoint, or a file of tensors
    #[arg(value_name = "CHECKPOINT")]
    checkpoint: PathBuf,
    #[command(flatten)]
    model_args: ModelArgs,
    /// The other end of a line
    #[arg(long, value_name = "FILE", conflicts_with = "worker")]
    to: Option<PathBuf>,
    /// A worker's checkpoint, to lay the plane through; repeat for several
    #[arg(long, value_name = "FILE")]
    worker: Vec<PathBuf>,
    /// A random plane, even if there are workers
    #[arg(long, conflicts_with_all = ["worker", "to"])]
    random: bool,
    /// Places along each side [default: 41 on a line, 21 on a plane]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(3..=401))]
    points: Option<u32>,
    /// Folder for the results; must be new, empty, or hold the same results [default: out/landscape-RUN, or the next
    /// free name]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Evenly from `low` to `high`.
fn evenly(low: f64, high: f64, count: usize) -> Vec<f64> {
    (0..count).map(|index| low + (high - low) * index as f64 / (count - 1) as f64).collect()
}

/// The other end of a line, or the workers of a plane: those that were named, or those of the run's checkpoint.
fn others_of(arguments: &Arguments, view: &View, named: &[PathBuf]) -> Result<Vec<State>, Failure> {
    if !named.is_empty() {
        return named.iter().map(|path| Ok(State::load(&view.graph, &find_model(path)?.model)?)).collect();
    }
    let folder = view.found.model.parent().filter(|_| view.found.recipe.is_some() && !arguments.random);
    let Some(folder) = folder else { return Ok(Vec::new()) };
    let checkpoint = Checkpoint::read(folder)?;
    let state = |(_, parameters, statistics): (_, &[f32], &[f32])| State {
        parameters: parameters.into(),
        statistics: statistics.into(),
        batches: 0,
    };
    let workers: Vec<State> = checkpoint.workers().map(state).collect();
    // One worker spans no plane.
    Ok(if workers.len() > 1 { workers } else { Vec::new() })
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let view = arguments.model_args.open(&arguments.checkpoint)?;
    let (middle, name) = (&view.state, name_of(&arguments.checkpoint));
    let others: Vec<PathBuf> = arguments.to.iter().chain(&arguments.worker).cloned().collect();
    let states = others_of(arguments, &view, &others)?;
    let is_line = arguments.to.is_some();
    let count = arguments.points.map_or(if is_line { 41 } else { 21 }, |points| points as usize);
    let described = format!(
        "{}line = {is_line}\nworkers = {}\npoints = {count}\n",
        arguments.model_args.settings("landscape", &view, &others),
        states.len()
    );
    let mut folder =
        Folder::claim_or_next(arguments.out.as_deref(), &format!("out/landscape-{name}"), &described)?;
    let mut losses = Losses::new(&view.graph, &view.examples, view.mode, view.engine)?;
    let title = format!("{name}: {}", view.words);
    if let ([to], true) = (states.as_slice(), is_line) {
        let bar = bar(count as u64, "line");
        let line = Line::between(&mut losses, middle, to, evenly(-0.5, 1.5, count), || bar.inc(1))?;
        bar.finish_and_clear();
        let other = arguments.to.as_deref().map(name_of).unwrap_or_default();
        put_line(&line, &title, [&name, &other], &mut folder)?;
        let highest = line.values.iter().zip(&line.places).filter(|(_, place)| (0.0..=1.0).contains(*place));
        let highest = highest.map(|(value, _)| value.loss).fold(f64::NEG_INFINITY, f64::max);
        let first = losses.at(&middle.parameters, &middle.statistics)?.loss;
        let second = losses.at(&to.parameters, &to.statistics)?.loss;
        print(&format!("Loss at the ends: {first:.4} and {second:.4}; highest between them: {highest:.4}"));
    } else {
        let key = Key::new(arguments.model_args.seed, Purpose::Direction);
        let (directions, places, names, far) = if states.is_empty() {
            let drawn = |step| filter_normalised(view.graph.parameters(), &middle.parameters, key.step(step));
            let names = ["first direction (filters' lengths)", "second direction (filters' lengths)"];
            ([drawn(0), drawn(1)], Vec::new(), names, 1.0)
        } else {
            let workers: Vec<&[f32]> = states.iter().map(|state| &*state.parameters).collect();
            let Principal { directions, places } = principal(&middle.parameters, &workers, key)?;
            let farthest = places.iter().flatten().map(|place| place.abs()).fold(0.0, f64::max);
            let names = ["distance along the first principal direction", "along the second"];
            (directions, places, names, 1.3 * farthest)
        };
        let bar = bar((count * count) as u64, "plane");
        let grid = evenly(-far, far, count);
        let plane = Plane::around(&mut losses, middle, &directions, [grid.clone(), grid], || bar.inc(1))?;
        bar.finish_and_clear();
        let centre = if states.is_empty() { "checkpoint" } else { "centre" };
        let mut marks = vec![(centre.to_owned(), (0.0, 0.0))];
        marks
            .extend(places.iter().enumerate().map(|(index, at)| (format!("worker {index}"), (at[0], at[1]))));
        put_plane(&plane, &title, names, marks, &mut folder)?;
        let here = losses.at(&middle.parameters, &middle.statistics)?;
        let highest = plane.values.iter().map(|value| value.loss).fold(f64::NEG_INFINITY, f64::max);
        let lowest = plane.values.iter().map(|value| value.loss).fold(f64::INFINITY, f64::min);
        print(&extent(here.loss, lowest, highest));
    }
    print(&format!("Table and picture: {}", folder.finish()?.display()));
    Ok(())
}

/// The loss in the middle of a plane, and its range, with digits enough to tell them apart.
fn extent(middle: f64, lowest: f64, highest: f64) -> String {
    let [middle, low, high] = &distinct(&[middle, lowest, highest])[..] else { return String::new() };
    match same(lowest, highest) {
        true => format!("Loss in the middle: {middle}; the plane is flat: {low} to {high}"),
        false => format!("Loss in the middle: {middle}; on the plane from {low} to {high}"),
    }
}

#[cfg(test)]
mod tests {
    use super::extent;

    #[test]
    fn a_narrow_range_is_told_with_more_digits() {
        assert_eq!(
            extent(0.0019957, 0.0019931, 0.0020042),
            "Loss in the middle: 0.001996; on the plane from 0.001993 to 0.002004"
        );
        assert_eq!(
            extent(0.002, 0.002, 0.002),
            "Loss in the middle: 0.00200; the plane is flat: 0.00200 to 0.00200"
        );
    }
}

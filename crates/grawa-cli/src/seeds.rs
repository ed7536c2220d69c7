//! `grawa train --seeds N`: one run for each of N consecutive seeds, one after the other, and their mean.
//!
//! The folder of all holds the recipe, the list of seeds, and a run's folder for each seed. `--resume` of that folder finishes what is
//! left: runs that were stopped are resumed, and those that were not started begin.

use crate::failure::Failure;
use crate::output::print;
use crate::train::{self, Arguments, RecipeArgs, Trained};
use grawa_lab::Table;
use grawa_lab::statistics::summary;
use grawa_train::observe::LinePace;
use grawa_train::recipe::{Facts, Recipe, RecipeError};
use grawa_train::{Checkpoint, Event, folder, observe, shell};
use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Runs that take less are many in a short time.
const SHORT: Duration = Duration::from_secs(1);

/// Whether a command line asks for several seeds, or for the rest of them.
pub(crate) fn is_asked(arguments: &Arguments) -> bool {
    arguments.seeds.is_some() || arguments.resume.as_deref().is_some_and(folder::has_seeds)
}

pub(crate) fn run(arguments: &Arguments, stop: &Arc<AtomicBool>) -> Result<bool, Failure> {
    let all = match (&arguments.resume, arguments.seeds) {
        (Some(all), _) if arguments.checkpoint.is_some() => {
            let why = format!("{} holds several runs; resume one of them: {0}/seed-…", all.display());
            return Err(RecipeError::new("--checkpoint", why).into());
        }
        (Some(all), _) => all.clone(),
        (None, count) => {
            let recipe = match train::decide(arguments, None)? {
                ControlFlow::Continue(task) => task.recipe,
                ControlFlow::Break(shown) => return Ok(shown),
            };
            let (first, count) = (recipe.train.seed, u64::from(count.unwrap_or(1)));
            let name =
                format!("{}-{}-{first}-to-{}", recipe.data.kind, recipe.method.name, first + count - 1);
            train::claim(arguments, &name, |path| folder::create_for_seeds(path, &recipe, count))?
        }
    };
    let (seeds, _hold) = (folder::seeds(&all)?, folder::hold(&all, true)?);
    train::listen_for_stop(stop)?;
    let mut table = Table::new(["seed", "test error %", "run"]);
    let (mut errors, mut is_good) = (Vec::new(), true);
    let (pace, mut are_short) = (LinePace::default(), false);
    // The first run that is not finished warns at its start, the last one at its end: for all.
    let mut warns = !arguments.quiet;
    for (number, seed) in seeds.iter().enumerate() {
        let place = all.join(format!("seed-{seed}"));
        // Without a terminal not each of many short runs prints lines.
        let is_skipped = || are_short && !std::io::stderr().is_terminal() && !pace.is_due();
        let quiet = arguments.quiet || is_skipped();
        if !quiet {
            print(&format!("seed {seed}, run {} of {}", number + 1, seeds.len()));
        }
        let mut own = arguments.clone();
        own.quiet = quiet;
        let (is_whole, began) = (Checkpoint::newest_path(&place).is_err(), Instant::now());
        let is_last = number + 1 == seeds.len();
        is_good &= one(own, (&mut warns, is_last), &all, &place, *seed, stop)?;
        // The rest of a run that was stopped says nothing about the next one.
        are_short |= is_whole && began.elapsed() < SHORT;
        if stop.load(Ordering::Relaxed) {
            print(&format!("stopped; continue with: grawa train --resume {}", shell::path(&all)));
            return Ok(false);
        }
        let shown = match last_error(&place)? {
            Last::Error(error) => {
                errors.push(error);
                format!("{error:.2}")
            }
            Last::Diverged => "diverged".into(),
            Last::None => "none".into(),
        };
        table.push([seed.to_string(), shown, place.display().to_string()]);
    }
    print(&format!("\n{}", table.text().trim_end()));
    print(&match errors.is_empty() {
        true => "no mean: no run has a test error that counts".into(),
        false => format!(
            "test error {} % (mean ± standard deviation of {} seeds)",
            summary(&errors, 2),
            errors.len()
        ),
    });
    print(&format!("compare their curves with: grawa report {}/seed-* --out report.html", shell::path(&all)));
    Ok(is_good)
}

/// Trains with one seed, or finishes it. Returns whether it succeeded.
fn one(
    mut own: Arguments,
    (warns, is_last): (&mut bool, bool),
    all: &Path,
    place: &Path,
    seed: u64,
    stop: &Arc<AtomicBool>,
) -> Result<bool, Failure> {
    (own.seeds, own.out, own.resume) = (None, None, None);
    if Checkpoint::newest_path(place).is_ok() {
        own.resume = Some(place.into());
    } else {
        // Killed before its first checkpoint: it begins again.
        if place.exists() {
            std::fs::remove_dir_all(place)
                .map_err(|error| Failure::Machine(format!("cannot remove {}: {error}", place.display())))?;
        }
        let (budget, dir) = (own.recipe.budget(), own.recipe.dir.take());
        own.recipe = RecipeArgs::default();
        (own.recipe.recipe, own.recipe.settings) =
            (Some(all.join(folder::RECIPE)), vec![format!("train.seed={seed}")]);
        (own.recipe.budget, own.recipe.dir) = (budget, dir);
        (own.method, own.overlap, own.out) = (None, false, Some(place.into()));
    }
    match train::decide(&own, None)? {
        ControlFlow::Continue(task) => {
            let resumed = own.resume.as_deref();
            let ready = |recipe: &Recipe, facts: &Facts| {
                if std::mem::take(warns) {
                    train::warn_at_start(recipe, facts, resumed);
                }
                Ok(())
            };
            let Trained { recipe, facts, end, place } = train::carry_out(&own, task, stop, ready)?;
            if is_last {
                train::warn_at_end(&recipe, &facts, &end, resumed);
            }
            let words = train::summary(&end, &place, "grawa train");
            let is_good = train::succeeded(&end);
            words.lines().take(1).filter(|_| !is_good || !own.quiet).for_each(print);
            Ok(is_good)
        }
        ControlFlow::Break(has_succeeded) => Ok(has_succeeded),
    }
}

/// The last test error of a run.
enum Last {
    /// In percent.
    Error(f64),
    /// The run diverged: what its model guesses is left out of means.
    Diverged,
    /// It was not evaluated.
    None,
}

fn last_error(place: &Path) -> Result<Last, Failure> {
    let events = observe::read(place)?;
    let mut last = Last::None;
    for (event, _) in &events {
        match event {
            Event::Evaluated(evaluated) => {
                last = evaluated.error().map_or(Last::None, |error| Last::Error(100.0 * error));
            }
            Event::Finished(end) if end.diverged => last = Last::Diverged,
            _ => {}
        }
    }
    Ok(last)
}

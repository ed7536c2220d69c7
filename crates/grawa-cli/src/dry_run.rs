//! `--dry-run`: the plan of a run, all checks of a start, and a second of training.

use crate::doctor::{cores, reported_bytes};
use crate::failure::Failure;
use crate::output::{print, warn};
use crate::train::{load, warn_of, warn_of_folder};
use grawa_core::Amount;
use grawa_data::Dataset;
use grawa_lab::EventObserver;
use grawa_train::recipe::{BatchNorm, Device, Facts, Forecast, Recipe};
use grawa_train::{Event, Run};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long steps are measured.
const MEASURED: Duration = Duration::from_secs(1);

/// Where the workers of a run will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On this machine, at most so many in each process: its data, device and speed are those of the run.
    Here(u32),
    /// On others.
    #[cfg_attr(not(feature = "group"), allow(dead_code))]
    Elsewhere,
}

/// Prints the recipe, the plan and the warnings; then checks all that a start checks, and measures.
pub(crate) fn dry_run(recipe: &Recipe, workers: Place) -> Result<(), Failure> {
    Facts::check_images(recipe)?;
    let mut shown = recipe.clone();
    if let Some(graph) = &mut shown.model.graph {
        *graph = format!("(the network {}, {} bytes)", recipe.model.name, graph.len());
    }
    print(shown.to_toml().trim_end());
    // The plan of a published data set needs no data: it is printed even if the data is missing.
    let published = Facts::published(recipe);
    if let Some(facts) = &published {
        print_plan(recipe, facts)?;
    }
    let examples = published.map(|facts| facts.examples);
    let Place::Here(each) = workers else {
        warn_of(recipe, examples, None);
        print(
            "The data and devices of the workers' machines are not checked. The model is kept by workers that join with --out DIR.",
        );
        return Ok(());
    };
    let data = load(recipe)?;
    let facts = Facts::of(recipe, &data);
    if published.is_none() {
        print_plan(recipe, &facts)?;
    }
    // Before anything large is allocated.
    check_memory(recipe, &facts, each)?;
    // A run that neither ends nor evaluates before it is stopped.
    let mut endless = recipe.clone();
    (endless.train.budget, endless.evaluate.every) = (Amount::Steps(u64::MAX >> 1), None);
    let run = Run::new(endless, &data)?;
    run.check()?;
    let pace = measure(run)?;
    print(&format!("time            {}", estimate(recipe, &facts, &data, pace)));
    let rounds = match recipe.train.budget {
        Amount::Time(time) => {
            Some((time.as_secs_f64() / pace) as u64 / u64::from(recipe.method.period.max(1)))
        }
        _ => None,
    };
    warn_of(recipe, Some(facts.examples), rounds);
    warn_of_folder(recipe);
    Ok(())
}

fn print_plan(recipe: &Recipe, facts: &Facts) -> Result<(), Failure> {
    print(Forecast::of(recipe, facts, cores())?.plan(recipe).trim_end());
    Ok(())
}

/// Where all workers are in one process.
pub(crate) const ALL: u32 = u32::MAX;

/// Memory of a run with at most `each` workers in a process, on a machine with so many cores. Every process has its own program and data.
fn memory(recipe: &Recipe, facts: &Facts, each: u32, cores: usize) -> Result<u64, Failure> {
    let mut part = recipe.clone();
    part.train.workers = each.min(recipe.train.workers).max(1);
    let processes = recipe.train.workers.div_ceil(part.train.workers);
    let of_one = Forecast::of(&part, facts, cores / processes.max(1) as usize)?;
    Ok(u64::from(processes) * of_one.memory(part.train.workers))
}

/// Refuses a run, with at most `each` workers in a process, that needs more memory than this machine has; warns of one that needs more
/// than is free.
pub(crate) fn check_memory(recipe: &Recipe, facts: &Facts, each: u32) -> Result<(), Failure> {
    let reported = |name| reported_bytes("/proc/meminfo", name);
    let known = reported("MemAvailable:").zip(reported("MemTotal:"));
    let Some((free, total)) = known.filter(|_| recipe.machine.device == Device::Cpu) else { return Ok(()) };
    let total = total + reported("SwapTotal:").unwrap_or(0);
    let needed = memory(recipe, facts, each, cores())?;
    let gb = |bytes: u64| bytes as f64 / 1e9;
    let smaller = (recipe.train.batch / 2).max(1);
    let fewer = if each < recipe.train.workers { "a larger --per-process, " } else { "" };
    let remedy = format!("Use {fewer}--batch {smaller}, smaller images (data.augment), or a smaller --model");
    if needed > total {
        return Err(Failure::Machine(format!(
            "the run needs about {:.1} GB of memory, and this machine has {:.1} GB. {remedy}",
            gb(needed),
            gb(total)
        )));
    }
    if needed > free {
        warn(&format!(
            "warning: the run needs about {:.1} GB of memory, and {:.1} GB are free. {remedy}",
            gb(needed),
            gb(free)
        ));
    }
    Ok(())
}

/// Seconds of a step of every worker, rounds included: a run of about a second, of which nothing is kept.
fn measure(run: Run) -> Result<f64, Failure> {
    let (stop, started) = (Arc::new(AtomicBool::new(false)), Arc::new(OnceLock::new()));
    let workers = f64::from(run.recipe().train.workers.max(1));
    let (asked, start) = (Arc::clone(&stop), Arc::clone(&started));
    let timer = EventObserver(move |event: &Event| {
        if matches!(event, Event::Started(_)) && start.set(Instant::now()).is_ok() {
            let asked = Arc::clone(&asked);
            std::thread::spawn(move || {
                std::thread::sleep(MEASURED);
                asked.store(true, Ordering::Relaxed);
            });
        }
    });
    let end = run.stop_by(stop).go(&mut [Box::new(timer)])?;
    let seconds = started.get().map_or(MEASURED, Instant::elapsed).as_secs_f64();
    // Stopped in its first step, a worker has done about one.
    let steps = end.workers.iter().map(|share| share.steps).sum::<u64>() as f64 / workers;
    Ok(seconds / steps.max(1.0))
}

/// How long the run will take, in words. An image that is evaluated takes a third of one that is trained on.
fn estimate(recipe: &Recipe, facts: &Facts, data: &Dataset, pace: f64) -> String {
    let measured = format!("measured: {:.1} steps of each worker per second", 1.0 / pace);
    let Some((steps, epochs)) =
        Forecast::of(recipe, facts, cores()).ok().and_then(|it| it.steps.zip(it.epochs))
    else {
        return format!("{} and evaluations; {measured}", recipe.train.budget);
    };
    let count = |every: Amount| match every {
        Amount::Steps(every) => steps / every.max(1),
        Amount::Epochs(every) => (epochs / every) as u64,
        Amount::Time(every) => (steps as f64 * pace / every.as_secs_f64()) as u64,
    };
    let evaluations = recipe.evaluate.every.map_or(1, count).max(1);
    let tests =
        if recipe.data.held_out > 0 { u64::from(recipe.data.held_out) } else { data.test.len() as u64 };
    let recalibrated = match recipe.evaluate.batch_norm {
        BatchNorm::Recalibrate => u64::from(recipe.evaluate.images).min(facts.examples),
        BatchNorm::Keep | BatchNorm::Average => 0,
    };
    let image = pace / f64::from(recipe.train.workers * recipe.train.batch);
    let (training, evaluating) =
        (steps as f64 * pace, evaluations as f64 * (tests + recalibrated) as f64 * image / 3.0);
    format!(
        "about {}, {} of it for {evaluations} evaluations; {measured}",
        clock(training + evaluating),
        clock(evaluating)
    )
}

/// Seconds in words.
fn clock(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5400.0 => format!("{:.0} minutes", s / 60.0),
        s if s < 172_800.0 => format!("{:.1} hours", s / 3600.0),
        s => format!("{:.1} days", s / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use grawa_train::recipe::Overrides;

    /// Each process has a program and the data of its own, and one worker's share of the rest.
    #[test]
    fn memory_is_that_of_all_processes() {
        let recipe = Recipe::resolve(&Overrides::default().set("train.workers=4").unwrap()).unwrap();
        let facts = Facts { data_bytes: 1 << 30, ..Facts::published(&recipe).unwrap() };
        let of = |each: u32| memory(&recipe, &facts, each, 4).unwrap();
        let together = Forecast::of(&recipe, &facts, 4).unwrap().memory(4);
        assert_eq!((of(ALL), of(4)), (together, together));
        assert!(of(1) > together + 3 * facts.data_bytes && of(1) < 4 * together, "{} {together}", of(1));
        assert!((of(4)..of(1)).contains(&of(2)));
    }

    /// 449 steps, and ten evaluations of 359 and 1,438 images at a third of a step's 128.
    #[test]
    fn times_are_those_of_steps_and_evaluations() {
        let recipe = Recipe::resolve(&Overrides::default()).unwrap();
        let data = grawa_data::digits().unwrap();
        let facts = Facts::of(&recipe, &data);
        let words = estimate(&recipe, &facts, &data, 1.0);
        assert_eq!(
            words,
            "about 8 minutes, 47 s of it for 10 evaluations; measured: 1.0 steps of each worker per second"
        );
        let timed = Recipe::resolve(&Overrides::default().set("train.budget=5m").unwrap()).unwrap();
        assert!(estimate(&timed, &facts, &data, 0.1).starts_with("5m and evaluations; measured: 10.0 steps"));
        assert_eq!(
            [3.4, 600.0, 7200.0, 864_000.0].map(clock),
            ["3 s", "10 minutes", "2.0 hours", "10.0 days"]
        );
    }
}

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
    check_memory(recipe, &facts, each, false)?;
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

/// Memory of a run with at most `each` workers in a process, on a machine with so many cores: of the largest process,
/// and of all. Every process has its own program and data.
fn memory(recipe: &Recipe, facts: &Facts, each: u32, cores: usize) -> Result<(u64, u64), Failure> {
    let mut part = recipe.clone();
    part.train.workers = each.min(recipe.train.workers).max(1);
    let processes = recipe.train.workers.div_ceil(part.train.workers);
    let of_one = Forecast::of(&part, facts, cores / processes.max(1) as usize)?.memory(part.train.workers);
    Ok((of_one, u64::from(processes) * of_one))
}

/// Bytes of memory that there are for all processes, that are free, and that one process may address.
struct Room {
    total: u64,
    free: u64,
    process: u64,
}

impl Room {
    /// Of this machine and this process; nothing where the system does not say it.
    fn here() -> Option<Self> {
        let reported = |name| reported_bytes("/proc/meminfo", name);
        let (free, total) = reported("MemAvailable:").zip(reported("MemTotal:"))?;
        let total = total + reported("SwapTotal:").unwrap_or(0);
        // What is mapped and not used counts, too: programs, and the stacks of threads.
        let own = |name| reported_bytes("/proc/self/status", name).unwrap_or(0);
        let unused = own("VmSize:").saturating_sub(own("VmRSS:"));
        let limit = std::fs::read_to_string("/proc/self/limits").ok().and_then(|text| address_space(&text));
        Some(Room { total, free, process: limit.map_or(u64::MAX, |limit| usable(limit, unused)) })
    }
}

/// What a process may use of its address space: allocators map up to a quarter more than is used, in arenas of threads and pages that are never
/// touched.
fn usable(limit: u64, unused: u64) -> u64 {
    limit.saturating_sub(unused) / 5 * 4
}

/// The limit of a process's address space (`ulimit -v`) in `/proc/self/limits`; none if there is none.
fn address_space(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Refuses a run, with at most `each` workers in a process, that needs more memory than this machine has, or than a
/// process may have; warns of one that needs more than is free. The settings of a run that is resumed stay.
pub(crate) fn check_memory(
    recipe: &Recipe,
    facts: &Facts,
    each: u32,
    is_resumed: bool,
) -> Result<(), Failure> {
    let Some(room) = Room::here().filter(|_| recipe.machine.device == Device::Cpu) else { return Ok(()) };
    let (of_one, of_all) = memory(recipe, facts, each, cores())?;
    let gb = |bytes: u64| bytes as f64 / 1e9;
    let (needed, has, what) = match () {
        () if of_one > room.process => (of_one, room.process, "and a process may have (ulimit -v)"),
        () if of_all > room.total => (of_all, room.total, "and this machine has"),
        () if of_all > room.free => (of_all, room.free, "and free are"),
        () => return Ok(()),
    };
    let is_refused = of_one > room.process || of_all > room.total;
    let limit = if is_refused { room.total } else { room.free };
    let fits = |recipe: &Recipe, each: u32| {
        let needed = memory(recipe, facts, each, cores());
        needed.is_ok_and(|(of_one, of_all)| of_one <= room.process && of_all <= limit)
    };
    let remedy = match is_resumed {
        true => "End other programs, or resume it where there is more memory".into(),
        false => remedy(recipe, each, fits),
    };
    let words =
        format!("the run needs about {:.1} GB of memory, {what} {:.1} GB. {remedy}", gb(needed), gb(has));
    match is_refused {
        true => Err(Failure::Machine(words)),
        false => {
            warn(&format!("warning: {words}"));
            Ok(())
        }
    }
}

/// What to change so that a run fits: each of the options by itself is enough.
fn remedy(recipe: &Recipe, each: u32, fits: impl Fn(&Recipe, u32) -> bool) -> String {
    let with_batch = |batch| {
        let mut other = recipe.clone();
        other.train.batch = batch;
        fits(&other, each)
    };
    // Groups must stay whole.
    let group = recipe.method.inner.as_ref().map_or(1, |inner| inner.group.max(1));
    let with_workers = |groups: u32| {
        let mut other = recipe.clone();
        other.train.workers = groups * group;
        fits(&other, each)
    };
    let mut options = Vec::new();
    if each < recipe.train.workers && fits(recipe, recipe.train.workers) {
        options.push(format!("--per-process {}", recipe.train.workers));
    }
    options.extend(largest(recipe.train.batch, with_batch).map(|batch| format!("--batch {batch}")));
    let groups = largest(recipe.train.workers / group, with_workers);
    options.extend(groups.map(|groups| format!("--workers {}", groups * group)));
    match options.is_empty() {
        true => "Neither a smaller --batch nor fewer --workers are enough: use a smaller --model, or smaller images (data.augment)".into(),
        false => format!("Use {}", options.join(", or ")),
    }
}

/// The largest number from 1 to below `from` that is good; all below a good one are.
fn largest(from: u32, is_good: impl Fn(u32) -> bool) -> Option<u32> {
    let (mut good, mut bad) = (0, from.max(1));
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        if is_good(middle) { good = middle } else { bad = middle }
    }
    (good > 0).then_some(good)
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
        let of = |each: u32| memory(&recipe, &facts, each, 4).unwrap().1;
        assert_eq!(memory(&recipe, &facts, 1, 4).unwrap().0 * 4, of(1));
        let together = Forecast::of(&recipe, &facts, 4).unwrap().memory(4);
        assert_eq!((of(ALL), of(4)), (together, together));
        assert!(of(1) > together + 3 * facts.data_bytes && of(1) < 4 * together, "{} {together}", of(1));
        assert!((of(4)..of(1)).contains(&of(2)));
    }

    /// What the error tells to type helps: the run fits then, whichever of its parts is too large.
    #[test]
    fn the_remedy_fits() {
        let resolve = |settings: &[&str]| {
            let set = |said: Overrides, setting: &&str| said.set(setting).unwrap();
            Recipe::resolve(&settings.iter().fold(Overrides::default(), set)).unwrap()
        };
        for (settings, each, fitting, expected) in [
            (&["train.workers=2000"][..], ALL, Some((&["train.workers=10"][..], ALL)), "--workers "),
            (&["train.batch=100000000"], ALL, Some((&["train.batch=512"], ALL)), "--batch "),
            (&["train.workers=64"], 1, Some((&["train.workers=64"], ALL)), "--per-process 64"),
            (&["train.workers=4"], ALL, None, "smaller --model"),
        ] {
            let recipe = resolve(settings);
            let facts = Facts::published(&recipe).unwrap();
            let room =
                fitting.map_or(1, |(settings, each)| memory(&resolve(settings), &facts, each, 4).unwrap().1);
            let fits = |recipe: &Recipe, each: u32| memory(recipe, &facts, each, 4).unwrap().1 <= room;
            assert!(!fits(&recipe, each), "{settings:?} must not fit");
            let words = remedy(&recipe, each, fits);
            assert!(words.contains(expected), "{settings:?}: {words}");
            for option in words.trim_start_matches("Use ").split(", or ").filter(|it| it.starts_with("--")) {
                let (name, value) = option.split_once(' ').unwrap();
                let value: u32 = value.parse().unwrap();
                let fits_with = |value: u32| {
                    let (mut mended, mut mended_each) = (recipe.clone(), each);
                    match name {
                        "--batch" => mended.train.batch = value,
                        "--workers" => mended.train.workers = value,
                        _ => mended_each = value,
                    }
                    fits(&mended, mended_each)
                };
                assert!(fits_with(value), "{settings:?}: {option}");
                let is_largest = name == "--per-process" || !fits_with(value + 1);
                assert!(is_largest, "{settings:?}: more than {option} fits");
            }
        }
    }

    #[test]
    fn the_limit_of_a_process_is_read() {
        let text = |soft: &str| {
            format!("Limit  Soft\nMax address space         {soft}           unlimited   bytes\n")
        };
        assert_eq!(address_space(&text("6442450944")), Some(6_442_450_944));
        assert_eq!(address_space(&text("unlimited")), None);
        // A run of 5.5 GB was measured to map 7.5 GB.
        assert!(usable(6_442_450_944, 0) < 5_540_000_000 && usable(7_500_000_000, 0) > 5_540_000_000);
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

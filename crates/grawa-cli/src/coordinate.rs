//! `grawa coordinate`: a run whose workers are elsewhere, and join and leave.

use crate::address::check_free;
use crate::dry_run::{Place, dry_run};
use crate::failure::{Failure, ONLY_TRAIN};
use crate::output::{print, warn};
use crate::page::{self, Page};
use crate::train;
use clap::Args;
use grawa_comm::group::Security;
use grawa_train::coordinate::{Connect, Control, CoordinatedRun, Outcome, WrittenCheckpoint};
use grawa_train::observe::Screen;
use grawa_train::recipe::Facts;
use grawa_train::{Event, Observer, Reason, Recipe, folder, objection, shell};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often it is checked who has joined.
const CHECK: Duration = Duration::from_secs(1);
/// How often it is printed that workers are missing.
const REMIND: Duration = Duration::from_secs(10);
/// How long the workers may take to stop together after Ctrl-C: a step, a round, a checkpoint. A second Ctrl-C does not wait.
const STOP: Duration = Duration::from_secs(60);
/// Where a coordinator listens by default.
const LISTEN: &str = "127.0.0.1:7117";

/// Coordinate a run whose workers are on other machines, and may join and leave.
///
/// The coordinator decides which workers take part in a round and when; parameters are sent between the workers. The run begins when
/// as many workers have joined as the recipe asks for. Its events are recorded in the run's folder; checkpoints are written by workers
/// that were given a folder.
///
/// Without a recipe and its options, except --workers, the programs that join define the run: those with a session, such as `grawa.join`
/// in Python, started by `grawa join … -- COMMAND`.
///
/// A coordinator that died is replaced by `--resume DIR`: the workers continue to train, and reconnect by themselves.
#[derive(Args)]
// They are for `grawa train` alone.
#[command(mut_arg("seeds", |arg| arg.hide(true)), mut_arg("checkpoint", |arg| arg.hide(true)))]
#[command(mut_arg("replay", |arg| arg.hide(true)), mut_arg("comm", |arg| arg.hide(true)))]
#[command(mut_arg("resume", |arg| arg.help("Coordinate the run in this folder again: its workers reconnect").long_help(None)))]
#[command(
    after_help = "Example, on three machines:\n  grawa key new run.key\n  grawa coordinate --data digits --method lgrawa --workers 2 --listen 0.0.0.0:7117 --key run.key\n  grawa join HOST:7117 --key run.key --out kept      (on each of the others)\n  grawa coordinate --resume runs/digits-lgrawa-36 --key run.key      (after the coordinator died)\n  grawa coordinate --workers 4 --listen 0.0.0.0:7117 --key run.key      (for your own program)\n  grawa join HOST:7117 --key run.key -- python train.py"
)]
// The options of `train` bring a group of this name.
#[group(skip)]
pub(crate) struct Arguments {
    #[command(flatten)]
    train: train::Arguments,
    /// Where to listen for workers [default: 127.0.0.1:7117; with --resume where the run was coordinated before]
    #[arg(long, value_name = "HOST:PORT", value_parser = crate::address::address)]
    listen: Option<String>,
    /// When no worker has the last committed state: seconds to wait for one that has it, before the run restarts from the newest state
    /// that any worker has
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    patience: u64,
    /// A worker that makes no progress for so many seconds while others wait for it inside a round is dropped, even if its process lives
    #[arg(long, value_name = "SECONDS", default_value_t = Connect::STALL.as_secs(), value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) stall: u64,
    /// How many seconds a round waits at least for a worker that is late. One that is too late loses its steps since the last round, and returns
    /// [default: 2, longer where rounds vary or are rare]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    wait: Option<Duration>,
    /// With --resume, if coordinator.log is damaged or lost: continue from the newest checkpoint that a worker joins with within --patience
    #[arg(long, requires = "resume")]
    from_workers: bool,
    #[command(flatten)]
    security: SecurityArguments,
    #[command(flatten)]
    page: page::Arguments,
}

/// A positive number of seconds, which may have a fraction.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let number: Option<f64> = text.parse().ok().filter(|number| *number > 0.0);
    number
        .and_then(|number| Duration::try_from_secs_f64(number).ok())
        .ok_or_else(|| "seconds are expected: a positive number such as 30 or 0.5".into())
}

/// How connections are secured.
#[derive(Args)]
pub(crate) struct SecurityArguments {
    /// The run's key, made by `grawa key new`
    #[arg(long, value_name = "FILE", required_unless_present = "wire")]
    pub(crate) key: Option<PathBuf>,
    /// Without a key: no encryption, for a trusted network
    #[arg(long, value_parser = ["plain"], conflicts_with = "key")]
    wire: Option<String>,
}

impl SecurityArguments {
    pub(crate) fn wire(&self) -> Result<Security, Failure> {
        Ok(self.key.as_deref().map_or(Ok(Security::Plain), Security::with_key)?)
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool, Failure> {
    if arguments.train.checkpoint.is_some() {
        return Err(ONLY_TRAIN);
    }
    train::refuse_changes(&arguments.train)?;
    if arguments.train.per_process.is_some() {
        return Err(Failure::Usage(
            "every process that joins says how many workers it has: `grawa join HOST:PORT --workers N`",
        ));
    }
    let (quiet, patience) = (arguments.train.quiet, Duration::from_secs(arguments.patience));
    let mut connect = Connect {
        listen: arguments.listen.clone(),
        wire: arguments.security.wire()?,
        patience,
        stall: Duration::from_secs(arguments.stall),
        wait: arguments.wait,
    };
    let (mut is_for_sessions, mut planned) = (false, None);
    let run = match &arguments.train.resume {
        Some(folder) => match resume(folder, &connect, arguments.from_workers)? {
            Some(run) => run,
            None => return Ok(true),
        },
        None => {
            let listen = connect.listen.get_or_insert_with(|| LISTEN.into()).clone();
            let check = |recipe: Option<&Recipe>| {
                if let Some(recipe) = recipe {
                    // The data is on the workers' machines: what is known of it here must fit.
                    let facts = Facts::published(recipe);
                    facts.map(|facts| facts.network(recipe)).transpose()?;
                    if !quiet {
                        train::warn_of(recipe, facts.map(|facts| facts.examples), None);
                    }
                }
                check_free(&listen)?;
                arguments.page.address(quiet).map_or(Ok(()), check_free)
            };
            let task = prepare(&arguments.train, true, Place::Elsewhere, check)?;
            let Some(task) = task else { return Ok(true) };
            let run = task.begin(&connect)?;
            (is_for_sessions, planned) = (task.recipe.is_none(), task.recipe);
            run
        }
    };
    let (address, folder) = (run.address(), run.folder().display().to_string());
    // A server that listens at all addresses has no address of its own.
    let port = address.port();
    let reach = if address.ip().is_unspecified() { format!("HOST:{port}") } else { address.to_string() };
    let key = arguments.security.key.as_ref();
    let key = key.map_or("--wire plain".into(), |key| format!("--key {}", shell::path(key)));
    print(&format!(
        "listening at {address} for {} workers; start each with: grawa join {reach} {key} {}",
        run.workers(),
        if is_for_sessions { "-- COMMAND" } else { "--out DIR" }
    ));
    let observers = observers(&run, &arguments.page, quiet)?;
    let stop = Arc::new(AtomicBool::new(false));
    train::listen_for_stop(&stop)?;
    let server = Arc::clone(run.server());
    let mut asked: Option<Instant> = None;
    let poll = || {
        if !stop.load(Ordering::Relaxed) {
            return Control::Continue;
        }
        let since = *asked.get_or_insert_with(|| {
            server.ask_to_stop();
            Instant::now()
        });
        // Before the first round there is nothing to save, and without workers nobody to wait for.
        let status = server.status();
        let is_idle = status.committed.is_none() || status.workers.is_empty();
        if is_idle || since.elapsed() > STOP { Control::Stop } else { Control::Continue }
    };
    let outcome = follow(run, observers, quiet, poll)?;
    let end = outcome.finished.as_ref().filter(|end| end.reason == Reason::Spent);
    server.dismiss(if end.is_some() { "the run is over" } else { "the run was stopped" });
    // The last message must be sent before this process ends.
    std::thread::sleep(Duration::from_millis(300));
    print(&match end {
        Some(end) if end.diverged => {
            format!("diverged: no worker's parameters are finite; its files stay in {folder}")
        }
        Some(_) => format!("done; see {folder}"),
        None => {
            let at = outcome.finished.as_ref().map(|end| format!(" at step {}", end.at.steps));
            format!(
                "stopped{}, and its workers with it; what was recorded is in {folder}",
                at.unwrap_or_default()
            )
        }
    });
    if !is_for_sessions && let Some(words) = saved_model(&outcome) {
        print(&words);
    }
    if let Some((recipe, end)) = planned.as_ref().zip(end) {
        let examples = Facts::published(recipe).map(|facts| facts.examples);
        train::warn_of(recipe, examples, Some(end.at.rounds));
    }
    Ok(end.is_some_and(|end| !end.diverged))
}

/// Where the model of a run is, of which step, and what is lost; nothing if only an earlier coordinator could say.
fn saved_model(outcome: &Outcome) -> Option<String> {
    let Some(WrittenCheckpoint { worker, folder, step }) = &outcome.written else {
        let words = "the model was not saved: no worker joined with --out DIR";
        return (!outcome.has_checkpoint).then(|| words.into());
    };
    let what = match outcome.step {
        reached if reached > *step => {
            let lost = reached - step;
            format!("worker {worker} has saved the model of step {step}; the {lost} steps after it are lost")
        }
        _ => format!("worker {worker} has saved the model of step {step}"),
    };
    Some(format!("{what}; on its machine: grawa eval {}", shell::path(folder)))
}

/// Who sees the events: a page and the terminal.
pub(crate) fn observers(
    run: &CoordinatedRun,
    arguments: &page::Arguments,
    quiet: bool,
) -> Result<Vec<Box<dyn Observer>>, Failure> {
    let mut observers: Vec<Box<dyn Observer>> = Vec::new();
    if let Some(address) = arguments.address(quiet) {
        let page = Page::after(run.recorded());
        print(&format!("watch it at http://{}/", page.serve(address, run.server())?));
        observers.push(Box::new(page));
    }
    if !quiet {
        let recorded: Vec<Event> = run.recorded().iter().map(|(event, _)| event.clone()).collect();
        observers.push(Box::new(Screen::after(&recorded)));
    }
    Ok(observers)
}

/// Follows a run to its end, and prints what it waits for while it has not begun.
pub(crate) fn follow(
    run: CoordinatedRun,
    mut observers: Vec<Box<dyn Observer>>,
    quiet: bool,
    mut poll: impl FnMut() -> Control,
) -> Result<Outcome, Failure> {
    let (server, founders) = (Arc::clone(run.server()), run.workers());
    let (mut checked, mut reminded, mut shown) = (Instant::now(), Instant::now(), 0);
    let outcome = run.follow(&mut observers, || {
        if !quiet && checked.elapsed() > CHECK {
            checked = Instant::now();
            let status = server.status();
            let joined: u32 = status.workers.iter().map(|one| one.workers).sum();
            let has_begun = status.committed.is_some();
            if has_begun && joined > 0 {
                reminded = Instant::now();
            } else if reminded.elapsed() > REMIND || !has_begun && joined != shown {
                (reminded, shown) = (Instant::now(), joined);
                let words = match has_begun {
                    true => "no worker is left; one that joins continues the run".into(),
                    false => format!("{joined} of {founders} workers have joined"),
                };
                warn(&format!("{words}; listening at {}", server.address()));
            }
        }
        poll()
    })?;
    if outcome.finished.is_some() && outcome.overshot > 0 && !quiet {
        print(&format!(
            "{} steps more than the pace asks for were taken before all workers knew of a round; they count",
            outcome.overshot
        ));
    }
    Ok(outcome)
}

/// The run in a folder, to be continued; nothing if it is finished, which is then printed.
pub(crate) fn resume(
    folder: &Path,
    connect: &Connect,
    from_workers: bool,
) -> Result<Option<CoordinatedRun>, Failure> {
    let run = CoordinatedRun::resume(folder, connect, &train::about(), from_workers)?;
    if run.is_none() {
        print(&format!("the run in {} is finished: nothing to do", folder.display()));
    }
    Ok(run)
}

/// A run that is to begin, and its folder.
pub(crate) struct Task {
    /// None where the workers are programs with a session, which define the run.
    pub(crate) recipe: Option<Recipe>,
    workers: u32,
    pub(crate) folder: PathBuf,
}

impl Task {
    pub(crate) fn begin(&self, connect: &Connect) -> Result<CoordinatedRun, Failure> {
        let (folder, about) = (&self.folder, train::about());
        Ok(match &self.recipe {
            Some(recipe) => CoordinatedRun::begin(recipe, folder, connect, &about),
            None => CoordinatedRun::begin_for_sessions(self.workers, folder, connect, &about),
        }?)
    }
}

/// A new run, which must pass a check; nothing if only a plan was asked for. Without a recipe and its options, except the number of
/// workers, it is one of programs that define it, where there may be such. `workers` says where they will be.
pub(crate) fn prepare(
    arguments: &train::Arguments,
    may_be_sessions: bool,
    workers: Place,
    check: impl FnOnce(Option<&Recipe>) -> Result<(), Failure>,
) -> Result<Option<Task>, Failure> {
    let (recipe, has_only_workers) = train::recipe(arguments)?;
    let count = recipe.train.workers;
    if may_be_sessions && has_only_workers {
        if arguments.dry_run {
            return Err(Failure::Usage("there is no plan to show: the program defines the run"));
        }
        check(None)?;
        let folder = train::claim(arguments, "session", |path| folder::create_for_sessions(path, count))?;
        return Ok(Some(Task { recipe: None, workers: count, folder }));
    }
    if let Some(why) = objection(&recipe) {
        return Err(grawa_train::Error::from(grawa_train::SessionError::NotElastic { why }).into());
    }
    if arguments.dry_run {
        return dry_run(&recipe, workers).map(|()| None);
    }
    check(Some(&recipe))?;
    let folder = train::claim_for(arguments, &recipe)?;
    Ok(Some(Task { recipe: Some(recipe), workers: count, folder }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use grawa_train::{Finished, Place};

    #[test]
    fn the_end_says_which_model_was_saved() {
        let at = Place { steps: 64, ..Place::default() };
        let end = Finished { at, reason: Reason::Spent, diverged: false, bytes: 0, workers: Vec::new() };
        let outcome = |step: Option<u64>| {
            let written = step.map(|step| WrittenCheckpoint { worker: 2, folder: "kept".into(), step });
            Outcome {
                finished: Some(end.clone()),
                step: 64,
                has_checkpoint: step.is_some(),
                written,
                overshot: 0,
            }
        };
        let of = |step| saved_model(&outcome(step)).unwrap();
        assert_eq!(of(Some(64)), "worker 2 has saved the model of step 64; on its machine: grawa eval kept");
        assert!(of(Some(32)).contains("the model of step 32; the 32 steps after it are lost"));
        // Also where the run has no end: its coordinator was stopped, and nobody answered.
        let open = Outcome { finished: None, ..outcome(Some(32)) };
        assert!(saved_model(&open).unwrap().contains("the 32 steps after it are lost"));
        assert!(of(None).contains("no worker joined with --out"));
        // A coordinator that was replaced knows that there is one, but not whose.
        assert_eq!(saved_model(&Outcome { has_checkpoint: true, ..outcome(None) }), None);
    }
}

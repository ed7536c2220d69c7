//! `grawa launch`: a run of several processes on this machine.

use crate::address::check_free;
use crate::coordinate::{follow, observers, prepare, resume, seconds};
use crate::doctor::{cores, first_gpu};
use crate::dry_run::{Place, check_memory};
use crate::failure::Failure;
use crate::output::print;
use crate::page;
use crate::stop::on_signals;
use crate::train;
use crate::workers::{Tail, Workers};
use clap::Args;
use grawa_comm::group::{Security, new_key, variables};
use grawa_train::coordinate::{Connect, Control};
use grawa_train::recipe::{Device, Facts};
use grawa_train::{Checkpoint, Reason, Recipe, shell};
use std::cell::Cell;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Train with workers in processes of their own on this machine.
///
/// Takes most options of `grawa train`, and its methods except those that share gradients or have groups inside groups. If a worker dies,
/// the others continue. The output of each process is in worker-N.log in the run's folder; its first line names the worker. Ctrl-C
/// stops all workers within a step and, after the first round, writes a checkpoint, from which `grawa train --resume DIR` continues. A
/// second Ctrl-C, a second or more later, ends the processes at once. If this command itself is killed, the workers continue, and
/// reconnect to `grawa coordinate --resume DIR --key DIR/run.key`.
///
/// No other process of this machine can join: the workers have a key that is made for the run. It is run.key in the run's folder,
/// readable only by its owner, and is removed at the end. `--wire plain` does without it.
///
/// With `-- COMMAND` the workers are processes of your program. If the program has a session (`grawa.join` in Python), give only
/// --workers: the program brings method, budget and model, and what it prints appears here after `[worker N]`. After Ctrl-C
/// `grawa launch --resume DIR -- COMMAND` continues it.
#[derive(Args)]
// They are for `grawa train` alone.
#[command(mut_arg("seeds", |arg| arg.hide(true)), mut_arg("checkpoint", |arg| arg.hide(true)))]
#[command(mut_arg("replay", |arg| arg.hide(true)), mut_arg("comm", |arg| arg.hide(true)))]
#[command(mut_arg("resume", |arg| arg.help("With a COMMAND: continue the run in this folder").long_help(None)))]
#[command(
    after_help = "Examples:\n  grawa launch --data digits --method lgrawa --workers 4 --out runs/apart\n  grawa launch --data digits --workers 8 --per-process 4\n  grawa launch --workers 4 --method mean:period=16 --budget 1000step -- ./my-program\n  grawa launch --workers 4 -- python train.py"
)]
// The options of `train` bring a group of this name.
#[group(skip)]
pub(crate) struct Arguments {
    #[command(flatten)]
    train: train::Arguments,
    #[command(flatten)]
    page: page::Arguments,
    /// Without a key: no encryption, for a machine whose other users are trusted
    #[arg(long, value_parser = ["plain"])]
    wire: Option<String>,
    /// Restart a worker that fails, at most this many times
    #[arg(long, value_name = "N", default_value_t = 0)]
    restarts: u32,
    /// A worker that makes no progress for so many seconds while others wait for it inside a round is dropped, even if its process lives
    #[arg(long, value_name = "SECONDS", default_value_t = Connect::STALL.as_secs(), value_parser = clap::value_parser!(u64).range(1..))]
    stall: u64,
    /// How many seconds a round waits at least for a worker that is late. One that is too late loses its steps since the last round, and returns
    /// [default: 2, longer where rounds vary or are rare]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    wait: Option<Duration>,
    /// With --resume, if coordinator.log is damaged or lost: continue from the newest checkpoint that a worker restores
    #[arg(long, requires = "resume")]
    from_workers: bool,
    /// Start this program as each worker, instead of grawa's own: a model of yours that joins the run. It finds the group in
    /// GRAWA_COORDINATOR, GRAWA_KEY (or GRAWA_WIRE=plain), GRAWA_WORKERS and GRAWA_LISTEN, the run's folder in GRAWA_OUT, and its number among the processes of
    /// this machine in GRAWA_LOCAL_RANK; see docs/library.md
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// The run's key, in its folder; it is removed when the run ends.
struct Key(PathBuf);

impl Key {
    const FILE: &str = "run.key";

    fn new(place: &Path) -> Result<Self, Failure> {
        let path = place.join(Key::FILE);
        // Workers of a launch that was killed may still have it.
        if !path.exists() {
            new_key(&path)?;
        }
        Ok(Key(path))
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        // The folder itself may be gone.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// What the workers of a program with a session leave, to continue after all were stopped.
const SESSION_CHECKPOINT: &str = "session.checkpoint";
const SESSION_CHECKPOINT_BEFORE: &str = "session.checkpoint.before";

/// How long to wait for a worker that has the last committed state.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long the workers may take to stop after Ctrl-C: a step, a round, a checkpoint. At the end of a run they have no limit.
const STOP: Duration = Duration::from_secs(60);

/// A run whose workers are all gone continues from the state that they left. Without one, new workers would wait for it for ever.
fn check_state(place: &Path, has_begun: bool) -> Result<(), Failure> {
    let is_kept =
        [SESSION_CHECKPOINT, SESSION_CHECKPOINT_BEFORE].iter().any(|name| place.join(name).exists());
    if !has_begun || is_kept {
        return Ok(());
    }
    let (word, place) = (shell::path(place), place.display());
    Err(Failure::Machine(format!(
        "the run in {place} has held rounds, and its workers left no {SESSION_CHECKPOINT} there: it is written whenever they evaluate, \
         and they were lost before. There is nothing to continue from: start anew with another --out. Workers that are still \
         alive continue with: grawa coordinate --resume {word}"
    )))
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool, Failure> {
    let (quiet, each) = (arguments.train.quiet, arguments.train.per_process.unwrap_or(1));
    let is_own = arguments.command.is_empty();
    train::refuse_changes(&arguments.train)?;
    let examples = Cell::new(None);
    // What would be wrong for every worker is found before anything is written.
    let check = |recipe: Option<&Recipe>| {
        if recipe.is_some_and(|recipe| !recipe.train.workers.is_multiple_of(each)) {
            return Err(Failure::Usage("--workers must be a multiple of --per-process"));
        }
        if let Some(recipe) = recipe.filter(|_| is_own) {
            let data = train::load(recipe)?;
            let facts = Facts::of(recipe, &data);
            check_memory(recipe, &facts, each, false)?;
            let start = grawa_train::check(recipe, &data)?;
            examples.set(Some(facts.examples));
            if !quiet {
                start.iter().for_each(|words| print(words));
                train::warn_of(recipe, examples.get(), None);
                train::warn_of_folder(recipe);
            }
            if recipe.machine.device == Device::Cuda {
                first_gpu()?;
            }
        }
        arguments.page.address(quiet).map_or(Ok(()), check_free)
    };
    let connect = |place: &Path| {
        let key = if arguments.wire.is_some() { None } else { Some(Key::new(place)?) };
        let wire = key.as_ref().map_or(Ok(Security::Plain), |key| Security::with_key(&key.0))?;
        let (listen, stall) = (Some("127.0.0.1:0".into()), Duration::from_secs(arguments.stall));
        Ok::<_, Failure>((key, Connect { listen, wire, patience: PATIENCE, stall, wait: arguments.wait }))
    };
    let mut planned = None;
    let (run, key, place) = match &arguments.train.resume {
        Some(place) if !is_own && !place.is_dir() => {
            return Err(grawa_train::Error::NoFolder { path: place.clone() }.into());
        }
        Some(place) if !is_own => {
            let (key, connect) = connect(place)?;
            let Some(run) = resume(place, &connect, arguments.from_workers)? else { return Ok(true) };
            check_state(place, arguments.from_workers || run.server().status().committed.is_some())?;
            (run, key, place.clone())
        }
        _ => {
            let workers = if is_own { Place::Here(each) } else { Place::Elsewhere };
            let Some(task) = prepare(&arguments.train, !is_own, workers, check)? else { return Ok(true) };
            let (key, connect) = connect(&task.folder)?;
            let run = task.begin(&connect)?;
            planned = task.recipe;
            (run, key, task.folder)
        }
    };
    let observers = observers(&run, &arguments.page, quiet)?;
    let stop = Arc::new(AtomicBool::new(false));
    let processes = (run.workers() / each).max(1);
    let threads = planned.as_ref().and_then(|recipe| recipe.machine.threads);
    let threads = threads.unwrap_or((cores() as u32 / processes).max(1));
    let io = |error: std::io::Error| Failure::Machine(error.to_string());
    // A program may change its folder before it joins.
    let whole = std::path::absolute(&place).map_err(io)?;
    let (mut workers, mut logs, mut asked) = (Workers::new(arguments.restarts, each), Vec::new(), None);
    let (ask, running) = (Arc::clone(&stop), workers.running.clone());
    // They are in process groups of their own, and would outlive this process.
    on_signals(move || ask.store(true, Ordering::Relaxed), move || running.kill())?;
    for number in 0..processes {
        let path = place.join(format!("worker-{number}.log"));
        let log = OpenOptions::new().create(true).append(true).open(&path).map_err(io)?;
        logs.push((path, log.metadata().map_err(io)?.len()));
        let (address, key) = (run.address().to_string(), key.as_ref().map(|key| &key.0));
        let mut command = match arguments.command.split_first() {
            None => {
                let mut command = Command::new(std::env::current_exe().map_err(io)?);
                command.args(["join", &address, "--threads", &threads.to_string()]);
                command.args(["--workers", &each.to_string()]);
                match key {
                    Some(path) => command.arg("--key").arg(path),
                    None => command.args(["--wire", "plain"]),
                };
                command.arg("--launched").arg("--out").arg(&place);
                command
            }
            Some((program, rest)) => {
                let mut command = Command::new(program);
                command.args(rest).envs(key.map(|_| (variables::KEY, whole.join(Key::FILE))));
                if key.is_none() {
                    command.env(variables::WIRE, "plain");
                }
                command.env(variables::COORDINATOR, &address).env(variables::LISTEN, "127.0.0.1:0");
                command.env(variables::WORKERS, each.to_string()).env("GRAWA_OUT", &whole);
                command.env("GRAWA_LOCAL_RANK", number.to_string()).env("GRAWA_LAUNCHED", "1");
                // Python would keep back what it prints to a file; and each process would use all cores.
                for (name, value) in [("PYTHONUNBUFFERED", "1"), ("OMP_NUM_THREADS", &threads.to_string())] {
                    if std::env::var_os(name).is_none() {
                        command.env(name, value);
                    }
                }
                command
            }
        };
        command.env(variables::WORKER, (number * each).to_string());
        // Ctrl-C must not reach them directly: this process asks them to stop.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.stdin(Stdio::piped()).stdout(log.try_clone().map_err(io)?).stderr(log);
        workers.start(command)?;
    }
    let tail = (!is_own && !quiet).then(|| Tail::new(logs, workers.numbers.clone(), each));
    let server = Arc::clone(run.server());
    let has_begun = || server.status().committed.is_some();
    let poll = || {
        workers.watch();
        workers.numbers.update(&server.status().workers, each);
        if stop.load(Ordering::Relaxed) {
            let since: Instant = *asked.get_or_insert_with(|| {
                workers.ask();
                // Also those that joined from elsewhere.
                server.ask_to_stop();
                Instant::now()
            });
            if !has_begun() || since.elapsed() > STOP {
                return Control::Stop;
            }
        }
        // Before the first round there is nothing to save, and no worker replaces one that ended.
        match workers.are_gone() || !has_begun() && workers.ended().is_some() {
            true => Control::NoWorkers,
            false => Control::Continue,
        }
    };
    let outcome = follow(run, observers, quiet, poll)?;
    let (step, end) = (outcome.step, outcome.finished);
    let (ended, has_begun) = (workers.ended(), has_begun());
    let by_program = server.status().is_stopped_by_member;
    workers.let_end();
    if end.is_some() {
        // What their programs do after the last round takes as long as it takes, unless Ctrl-C asks for an end. It asks the programs: they
        // are in no round.
        while !workers.are_gone() {
            if stop.load(Ordering::Relaxed) {
                let since = asked.get_or_insert_with(|| {
                    workers.running.interrupt();
                    Instant::now()
                });
                if since.elapsed() > STOP {
                    break;
                }
            }
            std::thread::sleep(Duration::from_millis(50));
            workers.watch();
        }
    }
    let failed = workers.failed();
    let names = workers.numbers.clone();
    drop(workers);
    drop((tail, server, key));
    let is_kept = Checkpoint::newest_path(&place).is_ok();
    let is_session = place.join(SESSION_CHECKPOINT).exists();
    let (word, place) = (shell::path(&place), place.display().to_string());
    let resume = match is_kept {
        _ if is_session => {
            format!("continue with: grawa launch --resume {word} -- {}", shell::command(&arguments.command))
        }
        true => format!("resume from the last checkpoint with: grawa train --resume {word}"),
        false => "there is no checkpoint to resume from".into(),
    };
    let was_stopped = stop.load(Ordering::Relaxed);
    // Programs that all ask for the stop and leave at once do not say how the run ended.
    let is_stopped_by_program = (end.is_some() || by_program) && !was_stopped;
    let step = end.as_ref().map_or(step, |end| end.at.steps);
    let spent = end.filter(|end| end.reason == Reason::Spent);
    // Workers of a run that diverged fail because of that.
    if is_stopped_by_program
        && has_begun
        && !spent.as_ref().is_some_and(|end| end.diverged)
        && let Some(words) = failures(&failed, |process| names.name(process, each), &place)
    {
        return Err(Failure::Machine(match spent {
            Some(_) => format!("the run is over after step {step}, but {words}"),
            None => format!("the run was stopped after step {step}, but {words}; {resume}"),
        }));
    }
    match (&spent, ended) {
        (Some(end), _) if end.diverged => {
            print(&format!("diverged: no worker's parameters are finite; its files stay in {place}"));
        }
        // `grawa eval` knows only our own networks.
        (Some(_), _) if !is_own => print(&format!("done; see {place}")),
        (Some(_), _) if is_kept => {
            print(&format!("done; see {place}\nevaluate it with: grawa eval {word}"));
        }
        (Some(_), _) => {
            let why = format!("the run is over, but nobody has kept the model; see {place}/worker-*.log");
            return Err(Failure::Machine(why));
        }
        _ if was_stopped => print(&format!("stopped; {resume}")),
        _ if is_stopped_by_program => {
            print(&format!("a worker's program has stopped the run after step {step}; {resume}"));
            return Ok(true);
        }
        (_, Some((number, how))) if !has_begun => {
            return Err(Failure::Machine(format!(
                "a worker ended before the first round ({how}); its output is in {place}/worker-{number}.log"
            )));
        }
        _ => {
            let why = format!("every worker has ended; their output is in {place}/worker-*.log; {resume}");
            return Err(Failure::Machine(why));
        }
    }
    if let Some((recipe, end)) = planned.zip(spent.as_ref()) {
        train::warn_of(&recipe, examples.get(), Some(end.at.rounds));
    }
    Ok(spent.is_some_and(|end| !end.diverged))
}

/// Which processes have failed, in words, if any has.
fn failures(
    failed: &[(usize, std::process::ExitStatus)],
    name: impl Fn(usize) -> String,
    place: &str,
) -> Option<String> {
    let (number, status) = failed.first()?;
    let others = match failed.len() - 1 {
        0 => String::new(),
        1 => ", and one more process failed".into(),
        more => format!(", and {more} more processes failed"),
    };
    let name = name(*number);
    Some(format!("{name} failed ({status}); its output is in {place}/worker-{number}.log{others}"))
}

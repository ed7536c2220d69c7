//! `grawa launch`: a run of several processes on this machine.

use crate::address::check_free;
use crate::coordinate::{follow, observers, prepare};
use crate::device::first_gpu;
use crate::failure::Failure;
use crate::join::cannot_start;
use crate::output::print;
use crate::page;
use crate::train;
use clap::Args;
use grawa_comm::group::{Security, new_key, variables};
use grawa_train::coordinate::{Connect, Control, CoordinatedRun};
use grawa_train::recipe::Device;
use grawa_train::{Checkpoint, Reason, Recipe, Stop};
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Train with workers in processes of their own on this machine.
///
/// Takes the options of `grawa train`, and its methods except those that share gradients or have groups inside groups. If a worker dies,
/// the others continue. The output of each process is in worker-N.log in the run's folder; its first line names the worker. Ctrl-C
/// stops all workers within a step and, after the first round, writes a checkpoint, from which `grawa train --resume DIR` continues. A
/// second Ctrl-C, a second or more later, ends the processes at once. If this command itself is killed, the workers continue, and
/// reconnect to `grawa coordinate --resume DIR --key DIR/run.key`.
///
/// No other process of this machine can join: the workers have a key that is made for the run. It is run.key in the run's folder,
/// readable only by its owner, and is removed at the end. `--wire plain` does without it.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  grawa launch --data digits --method lgrawa --workers 4 --out runs/apart\n  grawa launch --data digits --workers 8 --per-process 4\n  grawa launch --workers 4 --method mean:period=16 --budget 1000step -- ./my-program"
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
    /// Start this program as each worker, instead of grawa's own: a model of yours that joins the run. It finds the group in
    /// GRAWA_COORDINATOR, GRAWA_KEY, GRAWA_WORKERS and GRAWA_LISTEN, and the run's folder in GRAWA_OUT; see docs/library.md
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// The run's key, in its folder; it is removed when the run ends.
struct Key(PathBuf);

impl Key {
    const FILE: &str = "run.key";

    fn new(place: &Path) -> Result<Self, Failure> {
        let path = place.join(Key::FILE);
        new_key(&path)?;
        Ok(Key(path))
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        // The folder itself may be gone.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// How long to wait for a worker that has the last committed state.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long the workers may take to stop: a step, a round, a checkpoint.
const STOP: Duration = Duration::from_secs(60);

/// The workers' processes. They are ended when this is dropped.
struct Children(Vec<Child>);

impl Children {
    /// The number and exit status of one that has ended.
    fn ended(&mut self) -> Option<(usize, ExitStatus)> {
        let ended = |(number, child): (usize, &mut Child)| Some((number, child.try_wait().ok()??));
        self.0.iter_mut().enumerate().find_map(ended)
    }

    fn are_gone(&mut self) -> bool {
        self.0.iter_mut().all(|child| matches!(child.try_wait(), Ok(Some(_))))
    }

    /// Asks all to stop together.
    fn ask(&mut self) {
        for input in self.0.iter_mut().filter_map(|child| child.stdin.as_mut()) {
            // It may have ended by itself.
            let _ = input.write_all(Stop::LINE.as_bytes()).and_then(|()| input.flush());
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool, Failure> {
    let (quiet, each) = (arguments.train.quiet, arguments.train.per_process.unwrap_or(1));
    // What would be wrong for every worker is found before anything is written.
    let check = |recipe: &Recipe| {
        if !recipe.train.workers.is_multiple_of(each) {
            return Err(Failure::Usage("--workers must be a multiple of --per-process"));
        }
        if arguments.command.is_empty() {
            let data = grawa_data::load(recipe.data.kind.name(), &recipe.data.dir)?;
            grawa_train::check(recipe, &data)?;
            if recipe.machine.device == Device::Cuda {
                first_gpu()?;
            }
        }
        arguments.page.address(quiet).map_or(Ok(()), check_free)
    };
    let Some((recipe, place)) = prepare(&arguments.train, check)? else { return Ok(true) };
    let key = if arguments.wire.is_some() { None } else { Some(Key::new(&place)?) };
    let wire = key.as_ref().map_or(Ok(Security::Plain), |key| Security::with_key(&key.0))?;
    let connect = Connect { listen: Some("127.0.0.1:0".into()), wire, patience: PATIENCE };
    let run = CoordinatedRun::begin(&recipe, &place, &connect, &train::about())?;
    let observers = observers(&run, &arguments.page, quiet)?;
    let stop = Arc::new(AtomicBool::new(false));
    train::listen_for_stop(&stop)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let processes = recipe.train.workers / each;
    let threads = recipe.machine.threads.unwrap_or((cores as u32 / processes.max(1)).max(1));
    let io = |error: std::io::Error| Failure::Machine(error.to_string());
    let (mut children, mut asked) = (Children(Vec::new()), None);
    for number in 0..processes {
        let log = File::create(place.join(format!("worker-{number}.log"))).map_err(io)?;
        let (address, key) = (run.address().to_string(), key.as_ref().map(|key| &key.0));
        let own = std::env::current_exe().map_err(io)?;
        let (program, rest) =
            arguments.command.split_first().map_or((own.as_os_str(), &[][..]), |it| (it.0, it.1));
        let mut command = Command::new(program);
        command.args(rest);
        if arguments.command.is_empty() {
            command.args(["join", &address, "--threads", &threads.to_string()]);
            command.args(["--workers", &each.to_string()]);
            match key {
                Some(path) => command.arg("--key").arg(path),
                None => command.args(["--wire", "plain"]),
            };
            command.arg("--launched").arg("--out").arg(&place);
        } else {
            command.env(variables::COORDINATOR, &address).env(variables::LISTEN, "127.0.0.1:0");
            command.env(variables::WORKERS, each.to_string()).env("GRAWA_OUT", &place);
            command.envs(key.map(|key| (variables::KEY, key)));
        }
        // Ctrl-C must not reach them directly: this process asks them to stop.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.stdin(Stdio::piped()).stdout(log.try_clone().map_err(io)?).stderr(log);
        children.0.push(command.spawn().map_err(|error| cannot_start(program, &error))?);
    }
    let server = Arc::clone(run.server());
    let has_begun = || server.status().committed.is_some();
    let poll = || {
        if stop.load(Ordering::Relaxed) {
            let since: Instant = *asked.get_or_insert_with(|| {
                children.ask();
                Instant::now()
            });
            if !has_begun() || since.elapsed() > STOP {
                return Control::Stop;
            }
        }
        // Before the first round there is nothing to save, and no worker replaces one that ended.
        match children.are_gone() || !has_begun() && children.ended().is_some() {
            true => Control::NoWorkers,
            false => Control::Continue,
        }
    };
    let end = follow(run, observers, quiet, poll)?.finished;
    let diverged = end.as_ref().is_some_and(|end| end.diverged);
    let end = end.map(|end| end.reason);
    let (ended, has_begun) = (children.ended(), has_begun());
    if end.is_some() {
        // They end by themselves; one may still be writing the last checkpoint.
        let (over, was_asked) = (Instant::now(), stop.load(Ordering::Relaxed));
        let is_asked = || stop.load(Ordering::Relaxed) && !was_asked;
        while !children.are_gone() && over.elapsed() < STOP && !is_asked() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    drop(children);
    drop((server, key));
    let is_kept = Checkpoint::newest_path(&place).is_ok();
    let place = place.display();
    let resume = match is_kept {
        true => format!("resume from the last checkpoint with: grawa train --resume {place}"),
        false => "there is no checkpoint to resume from".into(),
    };
    match (end, ended) {
        (Some(Reason::Spent), _) if diverged => {
            print(&format!("diverged: no worker's parameters are finite; its files stay in {place}"));
        }
        (Some(Reason::Spent), _) if is_kept => {
            print(&format!("done; see {place}\nevaluate it with: grawa eval {place}"));
        }
        (Some(Reason::Spent), _) if !arguments.command.is_empty() => print(&format!("done; see {place}")),
        (Some(Reason::Spent), _) => {
            let why = format!("the run is over, but nobody has kept the model; see {place}/worker-*.log");
            return Err(Failure::Machine(why));
        }
        _ if stop.load(Ordering::Relaxed) => print(&format!("stopped; {resume}")),
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
    Ok(end == Some(Reason::Spent) && !diverged)
}

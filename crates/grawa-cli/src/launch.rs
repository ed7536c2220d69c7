//! `grawa launch`: a run of several processes on this machine.

use crate::coordinate::prepare;
use crate::desk::{Desk, Look};
use crate::device::Device;
use crate::failure::Failure;
use crate::say::say;
use crate::train;
use clap::Args;
use grawa_comm::group::Wire;
use grawa_train::Recipe;
use std::cell::RefCell;
use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Train with every worker a process of its own on this machine.
///
/// Takes the options of `grawa train`. A worker that dies is missed by nobody for long: the others go on. What each worker says is in
/// worker-N.log in the run's folder. Ctrl-C ends them all. If this command itself is killed they go on, and come back to
/// `grawa coordinate --resume DIR --wire plain`.
#[derive(Args)]
#[command(after_help = "Example:\n  grawa launch --data digits --method lgrawa --workers 4 --out runs/apart")]
// The options of `train` bring a group of this name.
#[group(skip)]
pub(crate) struct Arguments {
    #[command(flatten)]
    train: train::Arguments,
    #[command(flatten)]
    look: Look,
}

/// How long one is waited for that holds what the run had come to.
const PATIENCE: Duration = Duration::from_secs(60);

/// The workers' processes; they end with this.
struct Children(Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What every worker would find missing is said once, and before anything is written.
fn can_train_here(recipe: &Recipe) -> Result<(), Failure> {
    grawa_data::load(recipe.data.kind.name(), &recipe.data.dir)?;
    if recipe.machine.device == grawa_train::recipe::Device::Cuda {
        Device::Cuda.card()?;
    }
    Ok(())
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool, Failure> {
    let Some((recipe, place)) = prepare(&arguments.train, can_train_here)? else { return Ok(true) };
    let mut desk = Desk::begin(&recipe, &place, "127.0.0.1:0", Wire::Plain, PATIENCE)?;
    desk.show(&arguments.look, arguments.train.quiet)?;
    let stop = Arc::new(AtomicBool::new(false));
    train::listen_for_stop(&stop)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = recipe.machine.threads.unwrap_or((cores as u32 / recipe.train.workers.max(1)).max(1));
    let io = |error: std::io::Error| Failure::Process { why: error.to_string() };
    let mut children = Vec::new();
    for number in 0..recipe.train.workers {
        let log = File::create(place.join(format!("worker-{number}.log"))).map_err(io)?;
        let mut command = Command::new(std::env::current_exe().map_err(io)?);
        command.args(["join", &desk.host.address().to_string(), "--wire", "plain", "--threads"]);
        command.arg(threads.to_string()).arg("--out").arg(&place);
        command.stdin(Stdio::null()).stdout(log.try_clone().map_err(io)?).stderr(log);
        children.push(command.spawn().map_err(io)?);
    }
    let children = RefCell::new(Children(children));
    let all_gone = || {
        let mut children = children.borrow_mut();
        children.0.iter_mut().all(|child| matches!(child.try_wait(), Ok(Some(_))))
    };
    let host = Arc::clone(&desk.host);
    let finished = desk.follow(arguments.train.quiet, || stop.load(Ordering::Relaxed), all_gone)?;
    if finished {
        // The others are told by themselves; none is waited for long.
        for _ in 0..50 {
            if all_gone() {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    drop(children);
    drop(host);
    let place = place.display();
    if finished {
        say(&format!("done; see {place}\nevaluate it with: grawa eval {place}"));
    } else if stop.load(Ordering::Relaxed) {
        say(&format!("stopped; go on from the last checkpoint with: grawa train --resume {place}"));
    } else {
        return Err(Failure::Process { why: format!("every worker has ended; see worker-*.log in {place}") });
    }
    Ok(finished)
}

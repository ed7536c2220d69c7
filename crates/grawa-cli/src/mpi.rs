//! `grawa train --comm mpi`: one or more workers for each rank of an MPI job.
//!
//! The first rank reads the arguments, owns the run's folder and prints; the others follow it and are silent. Errors before the first
//! step are found on all ranks, printed once, and end all ranks. After that a rank that fails prints its error and ends the job, since
//! the others would wait for it for ever.

use crate::failure::Failure;
use crate::output::{print, warn};
use crate::train::{self, Arguments};
use grawa_comm::mpi::{Job, Member};
use grawa_comm::{Collective, Error as CommError};
use grawa_train::recipe::{Overrides, Recipe};
use grawa_train::{Checkpoint, Recording, Run, shell};
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// When the second rank prints, if nobody has ended by then. Open MPI kills after a second.
const LATER: Duration = Duration::from_millis(400);

pub(crate) fn run(arguments: &Arguments) -> Result<bool, Failure> {
    let job = Job::start()?;
    let none = || CommError::Mpi { call: "connect all ranks", why: "this one was left out".into() };
    let mut talk = job.group(0..job.size(), Vec::new())?.ok_or_else(none)?;
    let is_first = job.rank() == 0;

    let task = match is_first {
        true => train::decide(arguments, Some(job.size())),
        false => Ok(ControlFlow::Break(true)),
    };
    // The first rank prints its own error without its name.
    let task = agree(&job, &mut talk, 1, task)?.continue_value();
    let request = task
        .as_ref()
        .map(|task| (task.recipe.to_toml(), task.recording.clone(), task.recipe.train.workers / job.size()));
    let Some((recipe, recording, each)) = from_first(&mut talk, &request)? else { return Ok(true) };
    let (checkpoint, hold) = task.map_or((None, None), |task| (task.checkpoint, task.hold));
    let from = checkpoint.as_ref().map(|checkpoint| checkpoint.path().to_owned());

    let ranks = ((job.rank(), job.size()), job.on_this_machine()?);
    let (recipe, run) = agree(&job, &mut talk, each, prepare(&recipe, recording, checkpoint, ranks))?;
    let opened = match is_first {
        true => {
            let checked = train::check(&run, arguments);
            checked.and_then(|()| train::open(arguments, &recipe, hold.zip(from))).map(Some)
        }
        false => Ok(None),
    };
    let (place, kept) = agree(&job, &mut talk, each, opened)?.unzip();
    let (_hold, files) = kept.unzip();
    let place: PathBuf = from_first(&mut talk, &place.unwrap_or_default())?;
    drop(talk);

    let command = format!("mpirun -n {} grawa train --comm mpi", job.size());
    let (examples, resumed) = (run.examples(), arguments.resume.as_deref());
    if is_first && !arguments.quiet {
        train::warn_of_any(&recipe, examples, None, resumed);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let mut observers = files.map_or_else(Vec::new, |files| train::observers(files, arguments.quiet));
    let ended =
        listen(&stop, job.rank(), format!("{command} --resume {}", shell::path(&place)), place.clone())
            .and_then(|()| Ok(run.keep_in(&place).stop_by(stop).go_across(&job, &mut observers)?));
    drop(observers);
    match ended {
        Ok(end) => {
            if is_first {
                print(&train::summary(&end, &place, &command));
                train::warn_of_any(&recipe, examples, Some(end.at.rounds), resumed);
            }
            Ok(train::succeeded(&end))
        }
        Err(error) => {
            let (who, machine, place) = (named(job.rank(), each), job.machine(), place.display());
            eprintln!(
                "error: {who} on {machine}: {error}\nthe job ends; if the run has a checkpoint, resume from it with: \
                 {command} --resume {place}"
            );
            job.abort(1)
        }
    }
}

/// This rank's part of the run. All that can be wrong with it is found here.
fn prepare(
    recipe: &str,
    recording: Option<Recording>,
    checkpoint: Option<Checkpoint>,
    (rank, neighbours): ((u32, u32), u32),
) -> Result<(Recipe, Run), Failure> {
    let recipe = Recipe::resolve(&Overrides::default().file("the first rank's recipe", recipe)?)?;
    let data = crate::train::load(&recipe)?;
    let run = Run::in_process(recipe.clone(), &data, rank, neighbours)?;
    Ok((recipe, train::start(run, recording, checkpoint)))
}

/// The first rank's value, on every rank.
fn from_first<T: Serialize + for<'a> Deserialize<'a>>(talk: &mut Member, value: &T) -> Result<T, Failure> {
    let wrong = |error: serde_json::Error| CommError::Message { why: error.to_string() };
    let is_first = talk.members().first() == Some(&talk.id());
    let bytes = if is_first { serde_json::to_vec(value).map_err(wrong)? } else { Vec::new() };
    let mut received = talk.gather(&bytes)?.messages;
    Ok(serde_json::from_slice(&received.swap_remove(0).1).map_err(wrong)?)
}

/// A rank in an error: its worker, or with `each` workers a rank its number and theirs.
fn named(rank: u32, each: u32) -> String {
    match each {
        0 | 1 => format!("worker {rank}"),
        _ => format!("rank {rank} (workers {} to {})", rank * each, (rank + 1) * each - 1),
    }
}

/// Continues if nothing failed on any rank; otherwise all end, and the first rank prints why.
fn agree<T>(job: &Job, talk: &mut Member, each: u32, mine: Result<T, Failure>) -> Result<T, Failure> {
    let bytes = match &mine {
        Ok(_) => Vec::new(),
        Err(failure) => {
            let machine = job.machine();
            serde_json::to_vec(&(failure.code(), machine, failure.to_string())).unwrap_or_default()
        }
    };
    let received = talk.gather(&bytes)?.messages;
    let Some((rank, bytes)) = received.into_iter().find(|(_, bytes)| !bytes.is_empty()) else {
        return mine;
    };
    let (code, machine, why): (u8, String, String) =
        serde_json::from_slice(&bytes).unwrap_or((1, "a machine".into(), "its error cannot be read".into()));
    let code = match (job.rank(), mine) {
        (0, Err(own)) => crate::print_error(&own),
        (0, Ok(_)) => {
            warn(&format!("error: {} on {machine}: {why}", named(rank, each)));
            code
        }
        _ => code,
    };
    // The first rank that ends with a code takes the others with it: none may, before the first has printed.
    talk.gather(&[])?;
    Err(Failure::Reported(code))
}

/// Sets the flag at a signal. `mpirun` gives its ranks a moment before it ends them all, because one has died or because it
/// was asked to: the first prints at once how to resume, in case it can print nothing more; the second a little later, if
/// it is not done by then, in case the first is the one that died. A signal often comes twice, from `mpirun` and from the
/// terminal: a second one is not taken for impatience.
fn listen(stop: &Arc<AtomicBool>, rank: u32, command: String, place: PathBuf) -> Result<(), Failure> {
    let asked = Arc::clone(stop);
    let watch = move || {
        if asked.swap(true, Ordering::Relaxed) {
            return;
        }
        match (rank, Checkpoint::newest_path(&place)) {
            (0, Ok(newest)) => {
                let newest = newest.display();
                eprintln!("asked to stop; if nothing more is printed, resume from {newest} with: {command}");
            }
            (0, Err(_)) => eprintln!("asked to stop; there is no checkpoint yet"),
            (1, _) => {
                std::thread::sleep(LATER);
                eprintln!(
                    "asked to stop; if nothing more is printed, resume from the last checkpoint with: {command}"
                );
            }
            _ => {}
        }
    };
    ctrlc::set_handler(watch).map_err(Failure::signals)
}

//! `grawa train --comm mpi`: one worker for each rank of an MPI job.
//!
//! The first rank reads the arguments, owns the run's folder and prints; the others follow it and are silent. Errors before the first
//! step are found on all ranks, printed once, and end all ranks. After that a rank that fails prints its error and ends the job, since
//! the others would wait for it for ever.

use crate::failure::Failure;
use crate::output::print;
use crate::train::{self, Arguments};
use grawa_comm::mpi::{Job, Member};
use grawa_comm::{Collective, Error as CommError};
use grawa_train::observe::{Files, Screen};
use grawa_train::recipe::{Overrides, Recipe};
use grawa_train::{Checkpoint, Observer, Recording, Run, folder};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// When the second rank speaks, if nobody has ended by then. Open MPI kills after a second.
const LATER: Duration = Duration::from_millis(400);

/// What the first rank found to be done.
#[derive(Default)]
struct Errand {
    /// The recipe; nothing if there is nothing to train.
    recipe: Option<String>,
    recording: Option<Recording>,
    checkpoint: Option<Checkpoint>,
    /// The folder of a run that goes on.
    hold: Option<folder::Hold>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool, Failure> {
    let job = Job::start()?;
    let none = || CommError::Mpi { call: "connect all ranks", why: "this one was left out".into() };
    let mut talk = job.group(0..job.size(), Vec::new())?.ok_or_else(none)?;
    let is_first = job.rank() == 0;

    let errand = if is_first { decide(arguments, job.size()) } else { Ok(Errand::default()) };
    let Errand { recipe, recording, checkpoint, hold } = agree(&job, &mut talk, errand)?;
    let from = checkpoint.as_ref().map(|checkpoint| checkpoint.path().to_owned());
    let said: (Option<String>, Option<Recording>) = tell(&mut talk, &(recipe, recording))?;
    let (Some(recipe), recording) = said else { return Ok(true) };

    let ranks = ((job.rank(), job.size()), job.on_this_machine()?);
    let (recipe, run) = agree(&job, &mut talk, prepare(&recipe, recording, checkpoint, ranks))?;
    let opened = match is_first {
        true => {
            let checked = run.check().map_err(Failure::from);
            checked.and_then(|()| open(arguments, &recipe, hold.zip(from))).map(Some)
        }
        false => Ok(None),
    };
    let (place, kept) = agree(&job, &mut talk, opened)?.unzip();
    let (_hold, files) = kept.unzip();
    let place: PathBuf = tell(&mut talk, &place.unwrap_or_default())?;
    drop(talk);

    let command = format!("mpirun -n {} grawa train --comm mpi", job.size());
    let stop = Arc::new(AtomicBool::new(false));
    let mut observers: Vec<Box<dyn Observer>> = Vec::new();
    if let Some(files) = files {
        observers.push(Box::new(files));
        if !arguments.quiet {
            observers.push(Box::new(Screen::new()));
        }
    }
    let ended = listen(&stop, job.rank(), format!("{command} --resume {}", place.display()), place.clone())
        .and_then(|()| Ok(run.keep_in(&place).stop_by(stop).go_across(&job, &mut observers)?));
    drop(observers);
    match ended {
        Ok(end) => {
            if is_first {
                print(&train::summary(&end, &place, &command));
            }
            Ok(train::succeeded(&end))
        }
        Err(error) => {
            let (worker, machine, place) = (job.rank(), job.machine(), place.display());
            eprintln!(
                "error: worker {worker} on {machine}: {error}\nthe job ends; if the run has a checkpoint, go on from it with: \
                 {command} --resume {place}"
            );
            job.abort(1)
        }
    }
}

/// What is to be done, as the arguments say.
fn decide(arguments: &Arguments, ranks: u32) -> Result<Errand, Failure> {
    if let Some(place) = &arguments.resume {
        let recipe = folder::recipe(place)?;
        let hold = folder::hold(place, true)?;
        let checkpoint = train::choose(place, arguments)?;
        if train::is_finished(place, &checkpoint)? {
            return Ok(Errand::default());
        }
        train::leave_aside(&recipe);
        let recipe = Some(recipe.to_toml());
        return Ok(Errand { recipe, recording: None, checkpoint: Some(checkpoint), hold: Some(hold) });
    }
    let recipe = match &arguments.replay {
        Some(place) => folder::recipe(place)?,
        None => {
            let mut said = train::overrides(arguments)?;
            if !said.says("train.workers") {
                said = said.value("train.workers", i64::from(ranks), "the number of ranks")?;
            }
            Recipe::resolve(&said)?
        }
    };
    if train::travels(&recipe) {
        return Err(Failure::OnlyApart);
    }
    if arguments.dry_run {
        return train::dry_run(&recipe).map(|()| Errand::default());
    }
    let recording = arguments.replay.as_deref().map(Recording::read).transpose()?;
    Ok(Errand { recipe: Some(recipe.to_toml()), recording, checkpoint: None, hold: None })
}

/// This rank's part of the run. All that can be wrong with it is found here.
fn prepare(
    recipe: &str,
    recording: Option<Recording>,
    checkpoint: Option<Checkpoint>,
    (rank, neighbours): ((u32, u32), u32),
) -> Result<(Recipe, Run), Failure> {
    let recipe = Recipe::resolve(&Overrides::default().file("the first rank's recipe", recipe)?)?;
    let data = grawa_data::load(recipe.data.kind.name(), &recipe.data.dir)?;
    let mut run = Run::in_process(recipe.clone(), &data, rank, neighbours)?;
    if let Some(recording) = recording {
        run = run.replay(recording);
    }
    if let Some(checkpoint) = checkpoint {
        run = run.resume(checkpoint);
    }
    Ok((recipe, run))
}

/// The run's folder, which nobody else may use, and its record.
fn open(
    arguments: &Arguments,
    recipe: &Recipe,
    resumed: Option<(folder::Hold, PathBuf)>,
) -> Result<(PathBuf, (folder::Hold, Files)), Failure> {
    if let (Some(place), Some((hold, checkpoint))) = (&arguments.resume, resumed) {
        return Ok((place.clone(), (hold, train::record(place, &checkpoint)?)));
    }
    let place = train::claim(arguments, recipe)?;
    let hold = folder::hold(&place, true)?;
    let files = train::files(&place)?;
    Ok((place, (hold, files)))
}

/// What the first rank says, as all hear it.
fn tell<T: Serialize + for<'a> Deserialize<'a>>(talk: &mut Member, what: &T) -> Result<T, Failure> {
    let wrong = |error: serde_json::Error| CommError::Message { why: error.to_string() };
    let is_first = talk.members().first() == Some(&talk.id());
    let words = if is_first { serde_json::to_vec(what).map_err(wrong)? } else { Vec::new() };
    let mut heard = talk.gather(&words)?.messages;
    Ok(serde_json::from_slice(&heard.swap_remove(0).1).map_err(wrong)?)
}

/// Goes on if nothing went wrong on any rank; else all end, and the first rank tells why.
fn agree<T>(job: &Job, talk: &mut Member, mine: Result<T, Failure>) -> Result<T, Failure> {
    let words = match &mine {
        Ok(_) => Vec::new(),
        Err(failure) => {
            let machine = job.machine();
            serde_json::to_vec(&(failure.code(), machine, failure.to_string())).unwrap_or_default()
        }
    };
    let heard = talk.gather(&words)?.messages;
    let Some((worker, words)) = heard.into_iter().find(|(_, words)| !words.is_empty()) else { return mine };
    let (code, machine, why): (u8, String, String) =
        serde_json::from_slice(&words).unwrap_or((1, "a machine".into(), "it cannot say why".into()));
    let code = match (job.rank(), mine) {
        (0, Err(own)) => crate::tell(&own),
        (0, Ok(_)) => crate::tell(&Failure::Rank { worker, machine, why, code }),
        _ => code,
    };
    // The first rank that ends with a code takes the others with it: none may, before the first has told.
    talk.gather(&[])?;
    Err(Failure::Told { code })
}

/// Sets the flag at a signal. `mpirun` gives its ranks a moment before it ends them all, because one has died or because it
/// was asked to: the first says at once from where one can go on, in case nothing more can be said; the second a little later, if
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
                eprintln!("asked to stop; if nothing more is said, go on from {newest} with: {command}");
            }
            (0, Err(_)) => eprintln!("asked to stop; there is no checkpoint yet"),
            (1, _) => {
                std::thread::sleep(LATER);
                eprintln!(
                    "asked to stop; if nothing more is said, go on from the last checkpoint with: {command}"
                );
            }
            _ => {}
        }
    };
    ctrlc::set_handler(watch).map_err(|error| Failure::Signals { why: error.to_string() })
}

//! Carrying out one cell: its run, in a folder of its own, and what is measured of the model it ends with.

use super::cell::Cell;
use super::examine;
use super::finding::{Finding, Measured, Outcome};
use super::store::{Store, io};
use crate::Error;
use grawa_data::Dataset;
use grawa_train::observe::{About, Files, read};
use grawa_train::{Checkpoint, Event, Observer, Reason, Run, folder, locate};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What all cells share.
#[derive(Clone, Debug)]
pub(super) struct Room {
    /// The program that measures.
    pub(super) about: About,
    /// Cores for one cell.
    pub(super) threads: usize,
    /// Cells at a time.
    pub(super) jobs: usize,
    /// Becomes true when all should stop.
    pub(super) stop: Arc<AtomicBool>,
}

/// Tells how far a run is.
struct Watch<F>(F);

impl<F: FnMut(f64) + Send> Observer for Watch<F> {
    fn event(&mut self, event: &Event) -> Result<(), grawa_train::Error> {
        (self.0)(event.place().share.min(1.0));
        Ok(())
    }
}

/// Runs a cell, or goes on with it where it was stopped, and keeps what was found. `None` if it was stopped.
pub(super) fn carry_out(
    cell: &Cell,
    data: &Dataset,
    store: &Store,
    room: &Room,
    progress: impl FnMut(f64) + Send + 'static,
) -> Result<Option<Finding>, Error> {
    let place = store.run(cell);
    let outcome = match train(cell, data, &place, room, progress) {
        Ok(false) => return Ok(None),
        Ok(true) => {
            let mut measured = ended(&place).ok_or_else(|| Error::NoEnd { path: place.clone() })?;
            examine::examine(cell, data, &locate(&place)?.model, room.threads, &mut measured)?;
            Outcome::Done(measured)
        }
        // It diverged, which is a result.
        Err(grawa_train::Error::NobodyLeft { why }) => Outcome::Lost { why },
        Err(grawa_train::Error::Core(error @ grawa_core::Error::NothingFinite)) => {
            Outcome::Lost { why: error.to_string() }
        }
        Err(error) => return Err(error.into()),
    };
    let program = room.about.commit.as_ref();
    let program =
        program.map_or(room.about.program.clone(), |commit| format!("{} ({commit})", room.about.program));
    let finding =
        Finding { cell: cell.name.clone(), recipe: cell.recipe.to_toml(), program, jobs: room.jobs, outcome };
    store.keep(&finding)?;
    thin(&place)?;
    Ok(Some(finding))
}

/// Trains to the end; false if it was stopped.
fn train(
    cell: &Cell,
    data: &Dataset,
    place: &Path,
    room: &Room,
    progress: impl FnMut(f64) + Send + 'static,
) -> Result<bool, grawa_train::Error> {
    let mut recipe = cell.recipe.clone();
    recipe.machine.threads = Some(room.threads as u32);
    let run = Run::new(recipe, data)?.stop_by(Arc::clone(&room.stop)).keep_in(place);
    let checkpoint = Checkpoint::newest(place).ok();
    if checkpoint.as_ref().is_some_and(Checkpoint::is_finished) && ended(place).is_some() {
        return Ok(true);
    }
    let going_on = checkpoint.filter(|checkpoint| !checkpoint.is_finished()).and_then(|checkpoint| {
        let files = Files::resume(place, checkpoint.path()).ok()?;
        Some((checkpoint, files))
    });
    let (run, files) = match going_on {
        Some((checkpoint, files)) => (run.resume(checkpoint), files),
        None => {
            // Killed before its first checkpoint, in the midst of writing its files, or between its last checkpoint and its last
            // event: begun anew.
            if place.exists() {
                fs::remove_dir_all(place).map_err(|source| grawa_train::Error::Io {
                    action: "remove",
                    path: place.into(),
                    source,
                })?;
            }
            folder::create(place, &cell.recipe)?;
            (run, Files::create(place, &room.about)?)
        }
    };
    let end = run.go(&mut [Box::new(files), Box::new(Watch(progress))])?;
    Ok(end.reason == Reason::Spent)
}

/// What the events in a run's folder tell, if they tell of its end.
fn ended(place: &Path) -> Option<Measured> {
    let log = read(place).ok()?;
    Measured::of(log.iter().map(|(event, _)| event))
}

/// Leaves the model of a finished run, and removes what only a run that goes on needs: eight workers of a wide network are
/// gigabytes.
fn thin(place: &Path) -> Result<(), Error> {
    let Ok(located) = locate(place) else { return Ok(()) };
    let Some((last, all)) = located.model.parent().and_then(|last| Some((last, last.parent()?))) else {
        return Ok(());
    };
    for entry in fs::read_dir(all).map_err(io("look into", all))? {
        let path = entry.map_err(io("look into", all))?.path();
        if path != last {
            fs::remove_dir_all(&path).map_err(io("remove", &path))?;
        }
    }
    let state = last.join("state.safetensors");
    fs::remove_file(&state).map_err(io("remove", &state))
}

//! Carrying out one cell: its run, in a folder of its own, and what is measured of the model it ends with.

use super::cell::Cell;
use super::examine;
use super::finding::{Finding, Measured, Outcome};
use super::store::{Store, io};
use crate::Error;
use grawa_data::Dataset;
use grawa_train::observe::{About, Files, read};
use grawa_train::{Checkpoint, Event, Observer, Reason, Run, find_model, folder};
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
            examine::examine(cell, data, &find_model(&place)?.model, room.threads, &mut measured)?;
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
    let Ok(found) = find_model(place) else { return Ok(()) };
    let Some((last, all)) = found.model.parent().and_then(|last| Some((last, last.parent()?))) else {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::{Found, Plan, Request, experiment};
    use std::sync::atomic::Ordering;

    /// A plan of one cell, its folder, and the means to carry it out.
    fn one() -> (tempfile::TempDir, Store, Cell, Room) {
        let request = Request {
            methods: vec![grawa_core::Name::Mean],
            seeds: Some(1),
            settings: ["train.budget=16step", "method.pull=0.5", "checkpoint.every=4step"]
                .map(String::from)
                .into(),
            ..Request::default()
        };
        let plan = Plan::new(experiment("gap").unwrap(), &request).unwrap();
        let place = tempfile::tempdir().unwrap();
        let store = Store::open(&place.path().join("lab"), &plan).unwrap();
        let room = Room { about: About::here("test", None), threads: 1, jobs: 1, stop: Arc::default() };
        let cell = plan.cells(&Found::new()).unwrap().swap_remove(0);
        (place, store, cell, room)
    }

    #[test]
    fn a_cell_that_was_stopped_goes_on_to_the_same_numbers() {
        let data = grawa_data::digits().unwrap();
        let (_place, store, cell, room) = one();
        let whole = carry_out(&cell, &data, &store, &room, |_| {}).unwrap().unwrap();
        let whole = whole.measured().unwrap();
        assert_eq!((whole.steps, whole.rounds, whole.curve.len()), (16, 2, 1));
        assert!(whole.train.is_some() && whole.flatness.is_none() && whole.bytes > 0);
        // What a run goes on from is gone, its model is there.
        let run = store.run(&cell);
        assert!(find_model(&run).is_err());
        let last = run.join("checkpoints/step-00000016");
        assert!(last.join("model.safetensors").exists() && !last.join("state.safetensors").exists());

        let (_place, store, cell, room) = one();
        let stop = Arc::clone(&room.stop);
        let stopped =
            carry_out(&cell, &data, &store, &room, move |share| stop.store(share > 0.3, Ordering::Relaxed));
        assert_eq!(stopped.unwrap(), None);
        room.stop.store(false, Ordering::Relaxed);
        let again = carry_out(&cell, &data, &store, &room, |_| {}).unwrap().unwrap();
        let again = again.measured().unwrap();
        assert_eq!((again.test, again.train, again.bytes), (whole.test, whole.train, whole.bytes));
    }

    /// A kill between the last checkpoint and the last event leaves a run that is finished and does not say so.
    #[test]
    fn a_run_without_its_last_event_is_run_again() {
        let data = grawa_data::digits().unwrap();
        let (_place, store, cell, room) = one();
        assert!(train(&cell, &data, &store.run(&cell), &room, |_| {}).unwrap());
        for file in ["events.jsonl", "journal.jsonl"] {
            let path = store.run(&cell).join(file);
            let text = fs::read_to_string(&path).unwrap();
            let lines: Vec<&str> = text.lines().collect();
            fs::write(&path, lines[..lines.len() - 1].join("\n") + "\n").unwrap();
        }
        assert!(ended(&store.run(&cell)).is_none());
        assert!(carry_out(&cell, &data, &store, &room, |_| {}).unwrap().is_some());
    }

    /// A rate that no worker survives is a result, not a failure.
    #[test]
    fn a_run_that_diverges_is_lost() {
        let data = grawa_data::digits().unwrap();
        let (_place, store, mut cell, room) = one();
        cell.recipe.train.rate = grawa_core::Schedule::constant(1e30).unwrap();
        let found = carry_out(&cell, &data, &store, &room, |_| {}).unwrap().unwrap();
        let is_useless = |measured: &Measured| measured.test.error > 0.8;
        assert!(found.measured().is_none_or(is_useless), "{found:?}");
    }
}

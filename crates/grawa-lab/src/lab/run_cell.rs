//! Runs one cell: trains it in its own folder and measures the final model.

use super::cell::Cell;
use super::finding::{Finding, Outcome};
use super::measure::measure;
use super::store::Store;
use crate::Error;
use crate::observer::EventObserver;
use grawa_data::Dataset;
use grawa_train::observe::{About, Files, read};
use grawa_train::{Checkpoint, Event, Reason, Run, SessionError, find_model, folder};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What all cells share.
pub(super) struct CellContext {
    /// The program that measures.
    pub(super) about: About,
    /// Cores for one cell.
    pub(super) threads: usize,
    /// Cells at a time.
    pub(super) jobs: usize,
    /// Becomes true when all should stop.
    pub(super) stop: Arc<AtomicBool>,
}

/// Runs a cell, or resumes it, and keeps the finding. `None` if it was stopped.
pub(super) fn run_cell(
    cell: &Cell,
    data: &Dataset,
    store: &Store,
    context: &CellContext,
    progress: impl FnMut(f64) + Send + 'static,
) -> Result<Option<Finding>, Error> {
    let run = store.run(cell);
    let outcome = match train(cell, data, &run, context, progress) {
        Ok(false) => return Ok(None),
        Ok(true) => {
            let mut outcome = ended(&run).ok_or_else(|| Error::NoEnd(run.clone()))?;
            if let Outcome::Done(measured) = &mut outcome {
                measure(cell, data, &find_model(&run)?.model, context.threads, measured)?;
            }
            outcome
        }
        // A run that diverged is a result.
        Err(grawa_train::Error::Session(SessionError::NobodyLeft { why })) => Outcome::Lost { why },
        Err(grawa_train::Error::Core(error @ grawa_core::Error::NothingFinite)) => {
            Outcome::Lost { why: error.to_string() }
        }
        Err(error) => return Err(error.into()),
    };
    let About { program, commit, .. } = &context.about;
    let program = commit.as_ref().map_or(program.clone(), |commit| format!("{program} ({commit})"));
    let (name, recipe) = (cell.name.clone(), cell.recipe.to_toml());
    let finding = Finding { cell: name, recipe, program, jobs: context.jobs, outcome };
    store.keep(&finding)?;
    remove_state(&run)?;
    Ok(Some(finding))
}

/// Trains to the end; false if it was stopped.
fn train(
    cell: &Cell,
    data: &Dataset,
    place: &Path,
    context: &CellContext,
    mut progress: impl FnMut(f64) + Send + 'static,
) -> Result<bool, grawa_train::Error> {
    let mut recipe = cell.recipe.clone();
    recipe.machine.threads = Some(context.threads as u32);
    let run = Run::new(recipe, data)?.stop_by(Arc::clone(&context.stop)).keep_in(place);
    let checkpoint = Checkpoint::newest(place).ok();
    if checkpoint.as_ref().is_some_and(Checkpoint::is_finished) && ended(place).is_some() {
        return Ok(true);
    }
    let resumed = checkpoint.filter(|checkpoint| !checkpoint.is_finished()).and_then(|checkpoint| {
        let files = Files::resume(place, checkpoint.path()).ok()?;
        Some((checkpoint, files))
    });
    let (run, files) = match resumed {
        Some((checkpoint, files)) => (run.resume(checkpoint), files),
        None => {
            // Killed before the first checkpoint, while writing files, or between the last checkpoint and the last event:
            // start again.
            if place.exists() {
                fs::remove_dir_all(place).map_err(|source| grawa_train::Error::Io {
                    action: "remove",
                    path: place.into(),
                    source,
                })?;
            }
            folder::create(place, &cell.recipe)?;
            (run, Files::create(place, &context.about)?)
        }
    };
    let shares = EventObserver(move |event: &Event| progress(event.place().share.min(1.0)));
    let end = run.go(&mut [Box::new(files), Box::new(shares)])?;
    Ok(end.reason == Reason::Spent)
}

/// The outcome in a run's events; none if it did not end. The file is the one source that holds the whole run, also after a
/// resume.
fn ended(place: &Path) -> Option<Outcome> {
    let log = read(place).ok()?;
    Outcome::of(log.iter().map(|(event, _)| event))
}

/// Keeps the final model and removes what only a resume needs: eight workers of a wide network are gigabytes.
fn remove_state(place: &Path) -> Result<(), Error> {
    let Ok(found) = find_model(place) else { return Ok(()) };
    let Some((last, all)) = found.model.parent().and_then(|last| Some((last, last.parent()?))) else {
        return Ok(());
    };
    let io = grawa_toy::Error::io;
    for entry in fs::read_dir(all).map_err(io("look into", all))? {
        let path = entry.map_err(io("look into", all))?.path();
        if path != last {
            fs::remove_dir_all(&path).map_err(io("remove", &path))?;
        }
    }
    let state = last.join("state.safetensors");
    Ok(fs::remove_file(&state).map_err(io("remove", &state))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::{Found, Plan, Request, experiment};
    use std::sync::atomic::Ordering;

    /// A plan of one cell, its folder, and the context to run it.
    fn one() -> (tempfile::TempDir, Store, Cell, CellContext) {
        let request = Request {
            methods: vec![grawa_core::Name::Mean.into()],
            seeds: Some(1),
            settings: ["train.budget=16step", "method.pull=0.5", "checkpoint.every=4step"]
                .map(String::from)
                .into(),
            ..Request::default()
        };
        let plan = Plan::new(experiment("gap").unwrap(), &request).unwrap();
        let place = tempfile::tempdir().unwrap();
        let store = Store::open(&place.path().join("lab"), &plan).unwrap();
        let context =
            CellContext { about: About::here("test", None), threads: 1, jobs: 1, stop: Arc::default() };
        let cell = plan.cells(&Found::new()).unwrap().swap_remove(0);
        (place, store, cell, context)
    }

    #[test]
    fn a_cell_that_was_stopped_goes_on_to_the_same_numbers() {
        let data = grawa_data::digits().unwrap();
        let (_place, store, cell, context) = one();
        let whole = run_cell(&cell, &data, &store, &context, |_| {}).unwrap().unwrap();
        let whole = whole.measured().unwrap();
        assert_eq!((whole.steps, whole.rounds, whole.curve.len()), (16, 2, 1));
        assert!(whole.train.is_some() && whole.flatness.is_none() && whole.bytes > 0);
        // The state for a resume is gone, the model is there.
        let run = store.run(&cell);
        assert!(find_model(&run).is_err());
        let last = run.join("checkpoints/step-00000016");
        assert!(last.join("model.safetensors").exists() && !last.join("state.safetensors").exists());

        let (_place, store, cell, context) = one();
        let stop = Arc::clone(&context.stop);
        let stopped =
            run_cell(&cell, &data, &store, &context, move |share| stop.store(share > 0.3, Ordering::Relaxed));
        assert_eq!(stopped.unwrap(), None);
        context.stop.store(false, Ordering::Relaxed);
        let again = run_cell(&cell, &data, &store, &context, |_| {}).unwrap().unwrap();
        let again = again.measured().unwrap();
        assert_eq!((again.test, again.train, again.bytes), (whole.test, whole.train, whole.bytes));
    }

    /// A kill between the last checkpoint and the last event leaves a run that is finished and does not say so.
    #[test]
    fn a_run_without_its_last_event_is_run_again() {
        let data = grawa_data::digits().unwrap();
        let (_place, store, cell, context) = one();
        assert!(train(&cell, &data, &store.run(&cell), &context, |_| {}).unwrap());
        for file in ["events.jsonl", "journal.jsonl"] {
            let path = store.run(&cell).join(file);
            let text = fs::read_to_string(&path).unwrap();
            let lines: Vec<&str> = text.lines().collect();
            fs::write(&path, lines[..lines.len() - 1].join("\n") + "\n").unwrap();
        }
        assert!(ended(&store.run(&cell)).is_none());
        assert!(run_cell(&cell, &data, &store, &context, |_| {}).unwrap().is_some());
    }

    /// A rate that no worker survives is a result, not a failure. What its last model guesses is no measurement.
    #[test]
    fn a_run_that_diverges_is_a_result() {
        let data = grawa_data::digits().unwrap();
        let (_place, store, mut cell, context) = one();
        cell.recipe.train.rate = grawa_core::Schedule::constant(1e30).unwrap();
        let found = run_cell(&cell, &data, &store, &context, |_| {}).unwrap().unwrap();
        assert!(matches!(&found.outcome, Outcome::Lost { why } if why.contains("finite")), "{found:?}");
    }
}

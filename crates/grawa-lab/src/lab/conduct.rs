//! Carrying out a plan: cells in parallel, with progress, until all are found or it is asked to stop.

use super::carry_out::{Room, carry_out};
use super::cell::{Cell, Found};
use super::finding::Finding;
use super::plan::Plan;
use super::store::Store;
use crate::Error;
use crate::statistics::mean;
use grawa_data::Dataset;
use grawa_train::observe::About;
use grawa_train::recipe::Device;
use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often progress is told of.
const TICK: Duration = Duration::from_millis(200);

/// How cells are carried out.
#[derive(Clone, Debug)]
pub struct Means {
    /// Cells at a time; what suits the machine and the experiment unless said otherwise.
    pub jobs: Option<usize>,
    /// The program that measures.
    pub about: About,
    /// Becomes true when all should stop.
    pub stop: Arc<AtomicBool>,
}

/// How far an experiment is.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress<'a> {
    /// The share of the work that is done, from 0 to 1.
    pub share: f64,
    /// Finished cells.
    pub done: usize,
    /// All cells.
    pub all: usize,
    /// The cell that was just finished, and what was found.
    pub news: Option<(&'a Cell, &'a Finding)>,
}

/// Who is told how far an experiment is.
pub type Tell<'a> = dyn Fn(&Progress<'_>) + Sync + 'a;

impl Plan {
    /// Carries out all cells that are not finished yet. Returns what was found, and whether that is all.
    pub fn conduct(&self, store: &Store, means: &Means, tell: &Tell<'_>) -> Result<(Found, bool), Error> {
        let found = store.found(self)?;
        let cells = self.cells(&found)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let on_card = cells.iter().any(|cell| cell.recipe.machine.device != Device::Cpu);
        // One thread a cell wastes nothing on waiting; on a card, and where seconds are measured, cells do not share.
        let usual = if self.experiment.timed || on_card { 1 } else { cores };
        let jobs = means.jobs.unwrap_or(usual).max(1);
        let room = Room {
            about: means.about.clone(),
            threads: (cores / jobs).max(1),
            jobs,
            stop: Arc::clone(&means.stop),
        };
        let data = datasets(cells.iter().filter(|cell| !found.contains_key(&cell.name)))?;
        let hall = Hall {
            plan: self,
            store,
            room,
            data,
            state: Mutex::new(State { cells, found, running: BTreeSet::new(), workers: jobs, failure: None }),
            news: Condvar::new(),
            shares: Arc::default(),
            tell,
        };
        std::thread::scope(|scope| {
            for _ in 0..jobs {
                scope.spawn(|| hall.work());
            }
            hall.watch();
        });
        let state = hall.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        match state.failure {
            Some(error) => Err(error),
            None => {
                let is_all = state.cells.iter().all(|cell| state.found.contains_key(&cell.name));
                Ok((state.found, is_all))
            }
        }
    }
}

/// Every data set that the cells name, read once.
fn datasets<'a>(
    cells: impl Iterator<Item = &'a Cell>,
) -> Result<BTreeMap<(&'static str, PathBuf), Dataset>, Error> {
    let mut data = BTreeMap::new();
    for cell in cells {
        let (kind, dir) = (cell.recipe.data.kind.name(), &cell.recipe.data.dir);
        if let Entry::Vacant(room) = data.entry((kind, dir.clone())) {
            room.insert(grawa_data::load(kind, dir).map_err(grawa_train::Error::from)?);
        }
    }
    Ok(data)
}

/// What the threads share.
struct Hall<'a> {
    plan: &'a Plan,
    store: &'a Store,
    room: Room,
    data: BTreeMap<(&'static str, PathBuf), Dataset>,
    state: Mutex<State>,
    news: Condvar,
    /// How far the running cells are.
    shares: Arc<Mutex<BTreeMap<String, f64>>>,
    tell: &'a Tell<'a>,
}

struct State {
    /// The cells that are known to be needed.
    cells: Vec<Cell>,
    found: Found,
    running: BTreeSet<String>,
    /// Threads that have not ended.
    workers: usize,
    /// The first reason to give up.
    failure: Option<Error>,
}

impl Hall<'_> {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells how far all is until every thread has ended.
    fn watch(&self) {
        let mut state = self.state();
        while state.workers > 0 {
            (self.tell)(&self.progress(&state, None));
            let waited = self.news.wait_timeout(state, TICK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes cells until there are none.
    fn work(&self) {
        let _leave = Leave(self);
        while let Some(cell) = self.next() {
            let result = self.carry_out(&cell);
            let mut state = self.state();
            state.running.remove(&cell.name);
            self.shares().remove(&cell.name);
            let done = result.and_then(|found| {
                let Some(finding) = found else { return Ok(()) };
                state.found.insert(cell.name.clone(), finding.clone());
                state.cells = self.plan.cells(&state.found)?;
                (self.tell)(&self.progress(&state, Some((&cell, &finding))));
                Ok(())
            });
            if let Err(error) = done {
                let failed = Error::CellFailed { cell: cell.name.clone(), why: error.to_string() };
                state.failure.get_or_insert(failed);
                // The others end within a step, and can go on later.
                self.room.stop.store(true, Ordering::Relaxed);
            }
            drop(state);
            self.news.notify_all();
        }
    }

    /// A cell to carry out; waits where running cells may name further ones.
    fn next(&self) -> Option<Cell> {
        let mut state = self.state();
        loop {
            if state.failure.is_some() || self.room.stop.load(Ordering::Relaxed) {
                return None;
            }
            let is_free =
                |cell: &&Cell| !state.found.contains_key(&cell.name) && !state.running.contains(&cell.name);
            if let Some(cell) = state.cells.iter().find(is_free).cloned() {
                state.running.insert(cell.name.clone());
                return Some(cell);
            }
            if state.running.is_empty() {
                return None;
            }
            state = self.news.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn carry_out(&self, cell: &Cell) -> Result<Option<Finding>, Error> {
        let key = (cell.recipe.data.kind.name(), cell.recipe.data.dir.clone());
        let data = self.data.get(&key).ok_or_else(|| Error::NoEnd { path: key.1.clone() })?;
        let (shares, name) = (Arc::clone(&self.shares), cell.name.clone());
        let progress = move |share: f64| {
            shares.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), share);
        };
        carry_out(cell, data, self.store, &self.room, progress)
    }

    fn shares(&self) -> MutexGuard<'_, BTreeMap<String, f64>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cells count by the work that is in them.
    fn progress<'b>(&self, state: &State, news: Option<(&'b Cell, &'b Finding)>) -> Progress<'b> {
        let shares = self.shares();
        let done_of = |cell: &Cell| match state.found.contains_key(&cell.name) {
            true => 1.0,
            false => shares.get(&cell.name).copied().unwrap_or(0.0),
        };
        // A cell whose work is not known is taken to be like the others.
        let known: Vec<f64> = state.cells.iter().filter_map(|cell| cell.work).collect();
        let usual = if known.is_empty() { 1.0 } else { mean(&known) };
        let (mut work, mut done) = (0.0, 0.0);
        for cell in &state.cells {
            let own = cell.work.unwrap_or(usual);
            work += own;
            done += own * done_of(cell);
        }
        let unnamed = self.plan.unnamed(&state.cells);
        let all = state.cells.len() + unnamed;
        // What is not named yet is taken to be like the rest.
        work *= all as f64 / state.cells.len().max(1) as f64;
        Progress { share: if work > 0.0 { done / work } else { 1.0 }, done: state.found.len(), all, news }
    }
}

/// Tells that a thread has ended, however it did.
struct Leave<'a>(&'a Hall<'a>);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.state().workers -= 1;
        self.0.news.notify_all();
    }
}

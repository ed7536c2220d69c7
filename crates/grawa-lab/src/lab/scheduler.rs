//! Runs the cells of a plan in parallel until all are finished or it is asked to stop.
//!
//! One thread schedules: it starts each cell on its own thread and receives their progress and findings. A finding may
//! name further cells, which are started as soon as a slot is free.

use super::cell::{Cell, Found};
use super::finding::Finding;
use super::plan::Plan;
use super::run_cell::{CellContext, run_cell};
use super::store::Store;
use crate::Error;
use crate::statistics::mean;
use grawa_data::{Dataset, DatasetKind};
use grawa_train::observe::About;
use grawa_train::recipe::Device;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// How often progress is reported.
const TICK: Duration = Duration::from_millis(200);

/// Runs the cells of a plan.
#[derive(Debug)]
pub struct Scheduler<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Where finished cells are kept.
    pub store: &'a Store,
    /// Cells at a time; by default what suits the machine and the experiment.
    pub jobs: Option<usize>,
    /// The program that measures.
    pub about: About,
    /// Becomes true when all should stop.
    pub stop: Arc<AtomicBool>,
}

/// The progress of an experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress<'a> {
    /// The completed share of the work, from 0 to 1.
    pub share: f64,
    /// Finished cells.
    pub done: usize,
    /// All cells.
    pub all: usize,
    /// The cell that has just finished, and its finding.
    pub news: Option<(&'a Cell, &'a Finding)>,
}

/// What the thread of a cell sends.
// Few messages are large, and each is received at once.
#[allow(clippy::large_enum_variant)]
enum Message {
    Share(String, f64),
    Ended(Cell, std::thread::Result<Result<Option<Finding>, Error>>),
}

type Datasets = BTreeMap<DataKey, Dataset>;
/// What decides what is read: kind, folder, and how folders are split and shrunk.
type DataKey = (&'static str, PathBuf, String);

fn data_key(cell: &Cell) -> DataKey {
    let recipe = &cell.recipe;
    let reading = match recipe.data.kind {
        DatasetKind::Folder => format!("{:?}", recipe.reading()),
        _ => String::new(),
    };
    (recipe.data.kind.name(), recipe.data.dir.clone(), reading)
}

impl Scheduler<'_> {
    /// Runs all cells that are not finished yet. Returns all findings, and whether every cell has one.
    pub fn run(&self, report: &dyn Fn(&Progress<'_>)) -> Result<(Found, bool), Error> {
        let mut found = self.store.found(self.plan)?;
        let mut cells = self.plan.cells(&found)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let on_gpu = cells.iter().any(|cell| cell.recipe.machine.device != Device::Cpu);
        // One thread for each cell never waits; on a GPU, and where seconds are measured, cells run alone.
        let usual = if self.plan.experiment.timed || on_gpu { 1 } else { cores };
        let jobs = self.jobs.unwrap_or(usual).max(1);
        let (about, stop) = (self.about.clone(), Arc::clone(&self.stop));
        let context = CellContext { about, threads: (cores / jobs).max(1), jobs, stop };
        let data = datasets(cells.iter().filter(|cell| !found.contains_key(&cell.name)))?;
        // Running cells with their completed shares.
        let mut running: BTreeMap<String, f64> = BTreeMap::new();
        let (sender, receiver) = mpsc::channel();
        let (mut failure, mut reported) = (None, Instant::now());
        std::thread::scope(|scope| {
            loop {
                while !self.stop.load(Ordering::Relaxed) && running.len() < jobs {
                    let is_free =
                        |cell: &&Cell| !found.contains_key(&cell.name) && !running.contains_key(&cell.name);
                    let Some(cell) = cells.iter().find(is_free).cloned() else { break };
                    running.insert(cell.name.clone(), 0.0);
                    let (sender, data, context) = (sender.clone(), &data, &context);
                    scope.spawn(move || {
                        let (name, shares) = (cell.name.clone(), sender.clone());
                        // The scheduler receives until all cells have ended.
                        let progress = move |share| drop(shares.send(Message::Share(name.clone(), share)));
                        let run = || run_cell(&cell, data_of(&cell, data)?, self.store, context, progress);
                        let result = catch_unwind(AssertUnwindSafe(run));
                        drop(sender.send(Message::Ended(cell, result)));
                    });
                }
                if running.is_empty() {
                    break;
                }
                match receiver.recv_timeout(TICK) {
                    Ok(Message::Share(name, share)) => {
                        running.insert(name, share);
                    }
                    Ok(Message::Ended(cell, result)) => {
                        running.remove(&cell.name);
                        // The other cells stop within a step and can be resumed later.
                        let give_up = || self.stop.store(true, Ordering::Relaxed);
                        let result = result.unwrap_or_else(|panic| {
                            give_up();
                            resume_unwind(panic)
                        });
                        let next = result.and_then(|finding| {
                            let Some(finding) = finding else { return Ok(()) };
                            found.insert(cell.name.clone(), finding.clone());
                            cells = self.plan.cells(&found)?;
                            report(&self.progress(&cells, &found, &running, Some((&cell, &finding))));
                            Ok(())
                        });
                        if let Err(error) = next {
                            failure.get_or_insert(Error::CellFailed(cell.name, error.to_string()));
                            give_up();
                        }
                    }
                    Err(_) => {}
                }
                if reported.elapsed() >= TICK {
                    report(&self.progress(&cells, &found, &running, None));
                    reported = Instant::now();
                }
            }
        });
        let is_all = cells.iter().all(|cell| found.contains_key(&cell.name));
        failure.map_or(Ok((found, is_all)), Err)
    }

    /// Cells count by the work in them.
    fn progress<'b>(
        &self,
        cells: &[Cell],
        found: &Found,
        running: &BTreeMap<String, f64>,
        news: Option<(&'b Cell, &'b Finding)>,
    ) -> Progress<'b> {
        // A cell whose work is unknown counts like the others.
        let known: Vec<f64> = cells.iter().filter_map(|cell| cell.work).collect();
        let usual = if known.is_empty() { 1.0 } else { mean(&known) };
        let (mut work, mut done) = (0.0, 0.0);
        for cell in cells {
            let own = cell.work.unwrap_or(usual);
            let is_found = found.contains_key(&cell.name);
            work += own;
            done += own * if is_found { 1.0 } else { running.get(&cell.name).copied().unwrap_or(0.0) };
        }
        let all = cells.len() + self.plan.unnamed(cells);
        // Cells without a name yet count like the rest.
        work *= all as f64 / cells.len().max(1) as f64;
        Progress { share: if work > 0.0 { done / work } else { 1.0 }, done: found.len(), all, news }
    }
}

/// Every data set that the cells name, read once.
fn datasets<'a>(cells: impl Iterator<Item = &'a Cell>) -> Result<Datasets, Error> {
    let mut data = BTreeMap::new();
    for cell in cells {
        if let Entry::Vacant(entry) = data.entry(data_key(cell)) {
            entry.insert(cell.recipe.load_data(&|_, _| ()).map_err(grawa_train::Error::from)?);
        }
    }
    Ok(data)
}

fn data_of<'a>(cell: &Cell, data: &'a Datasets) -> Result<&'a Dataset, Error> {
    let key = data_key(cell);
    data.get(&key).ok_or(Error::NoEnd(key.1))
}

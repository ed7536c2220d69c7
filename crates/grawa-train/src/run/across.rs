//! A run in several processes that stay the same, each with as many workers as the others: the ranks of an MPI job, or of any other
//! [`Transport`].
//!
//! The loop is that of one process. The first rank knows where the run begins, sends each its parts, and gets all parts back for a checkpoint; it alone needs the run's folder. A rank that fails returns its error, and its caller must end the
//! job: the others would wait for it.

use super::{AnyEngine, Launch, Run, fits, revive};
use crate::engine::Workload;
use crate::event::{Finished, Observer};
use crate::milestones::cycle;
use crate::process::Process;
use crate::snapshot::{Part, Snapshot, fresh};
use crate::worker_set::WorkerSet;
use crate::{Error, Recipe};
use grawa_comm::{Error as CommError, Transport};
use grawa_core::Memory;
use grawa_data::Dataset;
use grawa_session::connect::connect;
use grawa_session::{Leases, Pacing};
use std::ops::Range;
use std::time::Duration;

/// Where all workers begin: whether the run was resumed, the steps of the cycle that are done, of all workers, the clocks, which positions
/// leave out, and the snapshot without its parts.
type Beginning = (bool, u64, [Duration; 2], Snapshot);

/// What the workers begin with, handed out one by one.
struct Parts {
    groups: Vec<Vec<Range<u32>>>,
    /// One for each worker; or one for all, if they begin alike.
    parts: Vec<Part>,
    alike: bool,
    centres: Vec<(usize, usize, Vec<f32>)>,
}

impl Parts {
    fn of(recipe: &Recipe, mut parts: Vec<Part>, alike: bool) -> Self {
        let levels = recipe.method.levels(recipe.train.workers);
        let groups = levels.into_iter().map(|(_, groups)| groups).collect();
        let centres = parts.iter_mut().flat_map(|part| std::mem::take(&mut part.centres)).collect();
        Parts { groups, parts, alike, centres }
    }

    /// The part of a worker, with the centres of its own groups.
    fn take(&mut self, worker: u32) -> Part {
        let mut part = match self.alike {
            true => Part { worker, ..self.parts[0].clone() },
            false => std::mem::take(&mut self.parts[worker as usize]),
        };
        for (level, groups) in self.groups.iter().enumerate() {
            let own = groups.iter().position(|group| group.contains(&worker)).unwrap_or(0);
            let kept = (level, if self.alike { 0 } else { own });
            let centre = self.centres.iter().find(|(level, group, _)| (*level, *group) == kept);
            part.centres.extend(centre.map(|(_, _, centre)| (level, own, centre.clone())));
        }
        part
    }
}

impl Run {
    /// The part of one process in a run of a recipe: each has as many workers as the others. `neighbours` processes share this machine.
    pub fn in_process(
        recipe: Recipe,
        data: &Dataset,
        (rank, ranks): (u32, u32),
        neighbours: u32,
    ) -> Result<Self, Error> {
        let workers = workers_of(rank, ranks, recipe.train.workers)?;
        let workload = Workload::new(&recipe, data)?;
        // As many cores as the other processes of the machine leave.
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        let cores = recipe.machine.threads.unwrap_or((cores / neighbours.max(1)).max(1));
        Run::of(recipe, workload, |recipe, workload| {
            AnyEngine::of_some(recipe, workload, workers, Some(cores))
        })
    }

    /// Trains as one process of several that stay the same; all must call it. Checkpoint and observers are those of the first one, a folder
    /// must be said in all or none. Returns how the run ended, in every process.
    pub fn go_across(
        self,
        transport: &dyn Transport,
        observers: &mut [Box<dyn Observer>],
    ) -> Result<Finished, Error> {
        let beginning = match transport.rank() {
            0 => Some(self.beginning()?),
            _ => None,
        };
        let (launch, workers) = self.launch();
        let set = |recipe: &Recipe, parts: &mut [Part]| {
            if !workers.is_in_step(parts) {
                let why = "the workers of a GPU stand at different steps between two rounds; resume it where it was stopped";
                return Err(Error::NotByRanks { why: why.into() });
            }
            workers.set(recipe, parts)
        };
        launch.go_across(transport, beginning, set, observers)
    }

    /// Where the run begins, as the first rank knows it.
    fn beginning(&self) -> Result<(Snapshot, bool), Error> {
        let (recipe, layout) = (self.recipe(), self.workers.layout());
        match &self.checkpoint {
            Some(checkpoint) => {
                fits(recipe, &self.workers, checkpoint)?;
                let mut snapshot = checkpoint.snapshot.clone();
                revive(recipe, layout, &mut snapshot);
                Ok((snapshot, false))
            }
            None => {
                // All begin alike, so that one part serves for all, and one centre.
                let one = fresh(&recipe.method, layout, vec![self.workers.start(recipe)?])?;
                let groups = recipe.method.levels(recipe.train.workers);
                let memories = groups.iter().map(|(_, groups)| vec![Memory::default(); groups.len()]);
                Ok((Snapshot { memories: memories.collect(), ..one }, true))
            }
        }
    }
}

impl Launch {
    /// Starts the workers of this process. The first process knows where the run begins, and whether all workers begin alike.
    pub(crate) fn go_across(
        mut self,
        transport: &dyn Transport,
        beginning: Option<(Snapshot, bool)>,
        set: impl FnOnce(&Recipe, &mut [Part]) -> Result<Box<dyn WorkerSet>, Error>,
        observers: &mut [Box<dyn Observer>],
    ) -> Result<Finished, Error> {
        let (rank, ranks, all) = (transport.rank(), transport.size(), self.recipe.train.workers);
        workers_of(rank, ranks, all)?;
        let mut everyone = transport.group(0..ranks, Vec::new())?.ok_or(CommError::NotInGroup)?;
        let (beginning, mut parts) =
            beginning.map(|(snapshot, alike)| divide(&self, snapshot, alike)).unzip();
        let garbled = |found: &[u8]| grawa_session::Error::Garbled { worker: 0, found: found.len() };
        let bytes =
            beginning.as_ref().map_or(Ok(Vec::new()), serde_json::to_vec).map_err(|_| garbled(&[]))?;
        let first = everyone.gather(&bytes)?.messages.swap_remove(0).1;
        drop(everyone);
        let (resumed, taken, clocks, mut snapshot): Beginning =
            serde_json::from_slice(&first).map_err(|_| garbled(&first))?;
        snapshot.at.elapsed = clocks[0];
        snapshot.settled.iter_mut().for_each(|at| at.elapsed = clocks[1]);
        let bytes = transport.scatter(&mut |rank| {
            let parts = parts.as_mut().ok_or(CommError::NotInGroup)?;
            let workers = workers_of(rank, ranks, all).unwrap_or_default();
            Part::encode(&workers.map(|worker| parts.take(worker)).collect::<Vec<_>>())
        })?;
        drop(parts);
        snapshot.parts = Part::decode(rank, &bytes)?;
        drop(bytes);
        let pacing = self.pacing(|| {
            let cycle = snapshot.at.steps / u64::from(cycle(&self.recipe.method));
            Ok(Pacing::Leased(Leases::new(transport.tickets()?, rank == 0, cycle, taken)))
        })?;
        if let Some(writer) = self.writer.as_ref().filter(|_| rank == 0) {
            writer.tidy()?;
        }
        let set = set(&self.recipe, &mut snapshot.parts)?;
        let connections = connect(transport, &self.recipe.method, all, self.layout.len(), &snapshot.parts)?;
        self.resumed = resumed;
        let begins = snapshot.at;
        let make = |common: &_| Ok(Process::new(common, set, snapshot, 0..all, connections)?);
        self.run(begins, pacing, make, observers)
    }
}

/// The workers of a rank.
fn workers_of(rank: u32, ranks: u32, all: u32) -> Result<Range<u32>, Error> {
    if ranks == 0 || !all.is_multiple_of(ranks) {
        let why = format!(
            "it has {all} workers, and there are {ranks} processes; each must have as many workers as the others: start {all} \
             processes for one worker each, or set --workers to a multiple of {ranks}"
        );
        return Err(Error::NotByRanks { why });
    }
    let each = all / ranks;
    Ok(rank * each..(rank + 1) * each)
}

/// Where the run begins, and what each worker begins with.
fn divide(launch: &Launch, mut snapshot: Snapshot, alike: bool) -> (Beginning, Parts) {
    let parts = std::mem::take(&mut snapshot.parts);
    let taken = if alike { 0 } else { parts.iter().map(|part| part.in_cycle).sum() };
    let clocks = [snapshot.at.elapsed, snapshot.settled.unwrap_or_default().elapsed];
    ((launch.resumed, taken, clocks, snapshot), Parts::of(&launch.recipe, parts, alike))
}

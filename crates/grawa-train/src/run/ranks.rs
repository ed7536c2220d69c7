//! A run whose workers are the ranks of an MPI job, one in each process.
//!
//! The worker's loop is that of threads, and so are the bits. The first rank knows where the run begins, sends each its part, and gets
//! all parts back for a checkpoint; it alone needs the run's folder. A rank that fails returns its error, and its caller must end the
//! job: the others would wait for it.

use super::{AnyEngine, Group, Launch, Run, WorkerParts, fits, fresh, levels, revive, workers};
use crate::engine::Material;
use crate::event::{Evaluated, Finished, Observer};
use crate::milestones::{Position, cycle};
use crate::pace::{Leases, Pacing};
use crate::recipe::Pace;
use crate::snapshot::{Part, Snapshot};
use crate::worker::{Common, Worker};
use crate::{Error, Recipe};
use grawa_comm::mpi::Job;
use grawa_comm::{Collective, Error as CommError};
use grawa_core::{Memory, Replica};
use grawa_data::Dataset;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Where all workers begin.
#[derive(Debug, Serialize, Deserialize)]
struct Beginning {
    resumed: bool,
    at: Position,
    settled: Option<Position>,
    /// Their clocks, which positions leave out.
    elapsed: (Duration, Duration),
    /// Steps of the cycle that are done, of all workers.
    taken: u64,
    memories: Vec<Vec<Memory>>,
    history: Vec<Evaluated>,
}

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
        let levels = levels(&recipe.method, recipe.train.workers);
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
    /// The part of a rank in a run of a recipe, in a job of so many, of which `neighbours` share this machine.
    pub fn by_ranks(
        recipe: Recipe,
        data: &Dataset,
        (rank, ranks): (u32, u32),
        neighbours: u32,
    ) -> Result<Self, Error> {
        if recipe.train.workers != ranks {
            let workers = recipe.train.workers;
            let why = format!(
                "it has {workers} workers, and there are {ranks} ranks; start as many ranks as workers: mpirun -n {workers}, \
                 or --workers {ranks}"
            );
            return Err(Error::NotByRanks { why });
        }
        let material = Material::new(&recipe, data)?;
        let (graph, examples) = (material.graph.clone(), material.order.examples() as usize);
        // One worker a process, and as many cores as the other ranks of the machine leave.
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        let cores = recipe.machine.threads.unwrap_or((cores / neighbours.max(1)).max(1));
        let engine = AnyEngine::of_one(&recipe, material, (rank, rank), Some(cores))?;
        Ok(Run::by(engine, recipe, graph, examples))
    }

    /// Trains as one rank of a job; all ranks must call it. Checkpoint and observers are those of the first rank, a folder
    /// must be said on all or none. Returns how the run ended, on every rank.
    pub fn go_by_ranks(self, job: &Job, observers: &mut [Box<dyn Observer>]) -> Result<Finished, Error> {
        let mut talk = job.group(0..job.size(), Vec::new())?.ok_or_else(no_seat)?;
        let (beginning, mut parts) = match job.rank() {
            0 => self.beginning().map(|(beginning, parts)| (Some(beginning), Some(parts)))?,
            _ => (None, None),
        };
        let bytes = beginning.as_ref().map_or(Ok(Vec::new()), postcard::to_allocvec).map_err(unsaid)?;
        let first = talk.gather(&bytes)?.messages.swap_remove(0).1;
        let garbled = |_| Error::Garbled { worker: 0, found: first.len() };
        let beginning: Beginning = postcard::from_bytes(&first).map_err(garbled)?;
        let part = talk.deal(|worker| match &mut parts {
            Some(parts) => parts.take(worker).encode(),
            None => Err(no_seat()),
        })?;
        drop((talk, parts));
        let snapshot = beginning.snapshot(Part::decode(job.rank(), &part)?);
        drop(part);

        let Run { recipe, graph, examples, engine, folder, checkpoint: _, recording, stop, start: _ } = self;
        let pacing = match (&recording, recipe.train.pace) {
            (Some(recording), pace) => {
                Pacing::Replay { recording: recording.clone(), even: pace == Pace::Even }
            }
            (None, Pace::Even) => Pacing::Even,
            (None, Pace::Free) => {
                let cycle = snapshot.at.steps / u64::from(cycle(&recipe.method));
                Pacing::Leased(Leases::new(job.counters()?, job.rank() == 0, cycle, beginning.taken))
            }
        };
        let resumed = beginning.resumed;
        let launch =
            Launch { recording, ..Launch::new(recipe, graph, examples, folder.as_deref(), stop, resumed) };
        if let Some(writer) = launch.writer.as_ref().filter(|_| job.rank() == 0) {
            writer.tidy()?;
        }
        let begins = at(&beginning);
        match engine {
            AnyEngine::Cpu(engine) => {
                let examiner = engine.evaluator(&launch.recipe);
                let make = |part: &mut Part| WorkerParts::on_cpu(&engine, &examiner, part);
                let gather = |group: Group| Ok(job.group(group.workers, group.centre)?.into_iter().collect());
                launch.run(
                    begins,
                    pacing,
                    |launch, common| here(launch, common, snapshot, make, gather),
                    observers,
                )
            }
            AnyEngine::Cuda(engine) => {
                let make = |part: &mut Part| WorkerParts::on_gpus(&engine, part);
                let gather = |group: Group| {
                    let member = job.group(group.workers, group.centre)?;
                    member.into_iter().map(|member| engine.staged(member, group.place)).collect()
                };
                launch.run(
                    begins,
                    pacing,
                    |launch, common| here(launch, common, snapshot, make, gather),
                    observers,
                )
            }
        }
    }

    /// Where the run begins, as the first rank knows it.
    fn beginning(&self) -> Result<(Beginning, Parts), Error> {
        let (recipe, layout) = (&self.recipe, self.graph.parameters());
        let (snapshot, alike) = match &self.checkpoint {
            Some(checkpoint) => {
                fits(recipe, &self.graph, checkpoint)?;
                let mut snapshot = checkpoint.snapshot.clone();
                revive(recipe, layout, &mut snapshot);
                (snapshot, false)
            }
            None => {
                // All begin alike, so that one part serves for all, and one centre.
                let state = self.start()?;
                let start = (state.parameters.clone(), state.statistics.clone());
                let one = fresh(&recipe.method, layout, vec![start])?;
                let groups = levels(&recipe.method, recipe.train.workers);
                let memories = groups.iter().map(|(_, groups)| vec![Memory::default(); groups.len()]);
                (Snapshot { memories: memories.collect(), ..one }, true)
            }
        };
        let taken = if alike { 0 } else { snapshot.parts.iter().map(|part| part.in_cycle).sum() };
        let beginning = Beginning {
            resumed: self.checkpoint.is_some(),
            at: snapshot.at,
            settled: snapshot.settled,
            elapsed: (snapshot.at.elapsed, snapshot.settled.map_or(Duration::ZERO, |at| at.elapsed)),
            taken,
            memories: snapshot.memories,
            history: snapshot.history,
        };
        Ok((beginning, Parts::of(recipe, snapshot.parts, alike)))
    }
}

/// The one worker of this process.
fn here<R: Replica, C: Collective<Buffer = R::Buffer>>(
    launch: &Launch,
    common: &Arc<Common>,
    snapshot: Snapshot,
    make: impl Fn(&mut Part) -> Result<WorkerParts<R>, Error>,
    gather: impl Fn(Group) -> Result<Vec<C>, Error>,
) -> Result<Vec<Worker<R, C>>, Error> {
    let mut workers = workers(launch, common, snapshot, make, gather)?;
    workers.iter_mut().for_each(|worker| worker.apart = true);
    Ok(workers)
}

fn at(beginning: &Beginning) -> Position {
    Position { elapsed: beginning.elapsed.0, ..beginning.at }
}

impl Beginning {
    /// The snapshot as the worker of this part has it.
    fn snapshot(&self, part: Part) -> Snapshot {
        Snapshot {
            at: at(self),
            settled: self.settled.map(|settled| Position { elapsed: self.elapsed.1, ..settled }),
            parts: vec![part],
            memories: self.memories.clone(),
            history: self.history.clone(),
            ..Snapshot::default()
        }
    }
}

fn no_seat() -> CommError {
    CommError::Mpi { call: "seat this rank", why: "it is not in the group of all".into() }
}

// `map_err` gives what it is given.
#[allow(clippy::needless_pass_by_value)]
fn unsaid(error: postcard::Error) -> CommError {
    CommError::Message { why: error.to_string() }
}

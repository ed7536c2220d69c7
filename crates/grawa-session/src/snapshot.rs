//! Everything a run needs to be resumed: the state of each worker, of the groups, and the position.
//!
//! The loop hands a snapshot to the supervisor and continues; the supervisor fetches its vectors and writes it to disk meanwhile.

use crate::Error;
use crate::evaluate::saving;
use crate::event::{Evaluated, Times};
use crate::membership::Membership;
use crate::milestones::Position;
use crate::process::{Note, Process};
use crate::round_message::Tally;
use crate::worker_set::{Slot, StateVector};
use grawa_comm::Error as CommError;
use grawa_core::{Layout, Memory, Method, Notes, Share, StateKind, Tracker, mean};
use serde::{Deserialize, Serialize};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};

/// Everything a run needs to be resumed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    pub at: Position,
    /// Up to where all that came due was done; nothing yet before the first step.
    pub settled: Option<Position>,
    /// It was taken because the run was asked to stop.
    pub stopped: bool,
    /// The budget is spent.
    pub finished: bool,
    /// The state of every worker that is left.
    pub parts: Vec<Part>,
    /// The state of every group of every level.
    pub memories: Vec<Vec<Memory>>,
    pub history: Vec<Evaluated>,
    /// The statistics of the evaluated model, if it was evaluated here.
    pub calibrated: Option<Vec<f32>>,
    /// The state of an elastic group.
    pub held: Option<GroupCheckpoint>,
}

/// Something whose vectors are still to be fetched.
pub struct Pending<T>(Box<dyn FnOnce() -> Result<T, Error> + Send>);

impl<T> Pending<T> {
    /// Fetches the vectors.
    pub fn complete(self) -> Result<T, Error> {
        (self.0)()
    }
}

impl<T> std::fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pending").finish_non_exhaustive()
    }
}

/// The evaluated model, which is kept if it errs less than the one that is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct BestModel {
    pub parameters: Vec<f32>,
    pub statistics: Vec<f32>,
    pub evaluated: Evaluated,
}

/// The state of an elastic group beside the centre: of which run, and before which operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupCheckpoint {
    pub run: u64,
    pub meeting: u64,
    pub memory: String,
}

/// The state of a worker. What the manifest of a checkpoint says of it is read and written by serde; its vectors are not in there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    pub worker: u32,
    pub taken: u64,
    pub in_cycle: u64,
    pub loss: f64,
    pub finite: bool,
    #[serde(default)]
    pub diverged: bool,
    pub tally: Tally,
    pub past: Past,
    /// Its scores for each level of rounds.
    pub notes: Vec<Notes>,
    #[serde(skip)]
    pub parameters: Vec<f32>,
    /// The velocity of SGD, or AdamW's first moment.
    #[serde(skip)]
    pub velocity: Vec<f32>,
    /// See [`StateKind::SecondMoment`].
    #[serde(skip)]
    pub second_moment: Vec<f32>,
    #[serde(skip)]
    pub statistics: Vec<f32>,
    /// The centres of groups in which it is the first, with the velocities of outer optimizers: level, group, centre.
    #[serde(skip)]
    pub centres: Vec<(usize, usize, Vec<f32>)>,
}

impl Part {
    /// Parts as bytes, for another process, with the vectors and the times.
    pub fn encode(parts: &[Part]) -> Result<Vec<u8>, CommError> {
        let mut all = Vec::with_capacity(parts.len());
        for part in parts {
            let Part { past, parameters, velocity, second_moment, statistics, centres, .. } = part;
            all.push((part, past.times, (parameters, velocity, second_moment, statistics, centres)));
        }
        postcard::to_allocvec(&all).map_err(|error| CommError::Message { why: error.to_string() })
    }

    /// The parts that `process` sent.
    pub fn decode(process: u32, bytes: &[u8]) -> Result<Vec<Self>, Error> {
        type Vectors = (Vec<f32>, Vec<f32>, Vec<f32>, Vec<f32>, Vec<(usize, usize, Vec<f32>)>);
        let all: Vec<(Part, Times, Vectors)> = crate::round_message::decode(process, bytes)?;
        let whole = |(part, times, vectors): (Part, Times, Vectors)| {
            let (parameters, velocity, second_moment, statistics, centres) = vectors;
            let past = Past { times, ..part.past };
            Part { past, parameters, velocity, second_moment, statistics, centres, ..part }
        };
        Ok(all.into_iter().map(whole).collect())
    }
}

/// The work of a worker that events have reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Past {
    pub bytes: u64,
    #[serde(skip)]
    pub times: Times,
}

impl Past {
    pub fn add(&mut self, tally: &Tally) {
        self.times += tally.times;
        self.bytes += tally.bytes;
    }
}

/// The snapshot before the first step. Each group's centre is the mean of where its finite workers start.
pub fn fresh(method: &Method, layout: &Layout, starts: Vec<(Vec<f32>, Vec<f32>)>) -> Result<Snapshot, Error> {
    method.check()?;
    let levels = method.levels(starts.len() as u32);
    let is_finite = |start: &[f32]| start.iter().all(|x| x.is_finite());
    if !starts.iter().any(|(parameters, _)| is_finite(parameters)) {
        return Err(grawa_core::Error::NothingFinite.into());
    }
    let mut centres = Vec::new();
    for (level, (method, groups)) in levels.iter().enumerate() {
        for (index, group) in groups.iter().enumerate() {
            let starts = group.clone().map(|worker| &*starts[worker as usize].0);
            let mut centre = mean(layout.len(), starts);
            centre.resize(method.centre.state_len(layout.len()), 0.0);
            centres.push((level, index, centre));
        }
    }
    let notes: Vec<_> =
        levels.iter().map(|(method, _)| Tracker::new(method, layout).notes().clone()).collect();
    let mut parts: Vec<Part> = (0..)
        .zip(starts)
        .map(|(worker, (parameters, statistics))| Part {
            worker,
            velocity: vec![0.0; parameters.len()],
            parameters,
            statistics,
            notes: notes.clone(),
            loss: f64::NAN,
            finite: true,
            ..Part::default()
        })
        .collect();
    parts[0].centres = centres;
    let memories = levels.iter().map(|(_, groups)| vec![Memory::default(); groups.len()]).collect();
    Ok(Snapshot { parts, memories, ..Snapshot::default() })
}

/// How many snapshots may be unwritten is limited: there is a message in here for each that may be made now.
#[derive(Debug)]
pub struct Snapshots {
    written: Mutex<Receiver<()>>,
    best: bool,
}

impl Snapshots {
    /// `written` receives at the start a message for each snapshot that may be unwritten, and one for each that has been written. `best`:
    /// the best model is kept too.
    pub fn new(written: Receiver<()>, best: bool) -> Self {
        Snapshots { written: Mutex::new(written), best }
    }

    /// Waits until another snapshot may be made.
    fn wait(&self) {
        // There is no supervisor only when the run was given up.
        let _ = self.written.lock().unwrap_or_else(PoisonError::into_inner).recv();
    }
}

impl Process {
    /// Hands the state of all workers to the supervisor, in the process that writes the checkpoint.
    pub fn save(&mut self, stopped: bool, finished: bool) -> Result<(), Error> {
        let common = Arc::clone(&self.common);
        let is_elastic = self.membership.is_elastic();
        // In an elastic group the process that writes the checkpoint has the model of all.
        if is_elastic {
            self.make_saved_view(stopped)?;
        }
        let Some(snapshots) = common.snapshots.as_ref().filter(|_| !is_elastic || self.keeps()) else {
            return Ok(());
        };
        // In an elastic group a part holds the model of all: one is enough.
        let count = if is_elastic { 1 } else { self.workers.len() };
        let (mut parts, mut wanted) = (Vec::with_capacity(count), Vec::new());
        for at in 0..count {
            parts.push(self.part(at, &mut wanted)?);
        }
        let is_alone = matches!(self.membership, Membership::Alone);
        if is_alone {
            snapshots.wait();
        }
        let mut fetch = Some(self.set.copy_later(&wanted)?);
        if let Some(fetch) = fetch.take_if(|_| !is_alone) {
            // The processes exchange whole parts.
            fill(&mut parts, fetch()?);
        }
        let is_first = self.membership.is_first();
        if let Membership::Fixed(all) = &mut self.membership {
            // The first process keeps its own parts, and gets those of the others.
            let message = if is_first { Vec::new() } else { Part::encode(&parts)? };
            let own = all.id();
            for (process, bytes) in all.hand_in(message)?.messages {
                if process != own {
                    parts.extend(Part::decode(process, &bytes)?);
                }
            }
        }
        // The process that was first may just have been lost.
        if is_elastic || self.membership.is_first() {
            if !is_alone {
                snapshots.wait();
            }
            // One that has taken the state of the others knows of the evaluation, and has no statistics of it.
            let evaluated = self.evaluated_at == Some(self.at);
            let mut snapshot = Snapshot {
                at: self.at,
                settled: self.settled,
                stopped,
                finished,
                parts,
                memories: self.levels.iter().map(|level| level.memories.clone()).collect(),
                history: self.history.clone(),
                calibrated: Some(self.calibrated.clone()).filter(|_| evaluated && !stopped),
                held: self.held(stopped)?,
            };
            let pending = Pending(Box::new(move || {
                if let Some(fetch) = fetch {
                    fill(&mut snapshot.parts, fetch()?);
                }
                Ok(snapshot)
            }));
            let _ = common.notes.send(Note::Snapshot(pending));
        }
        Ok(())
    }

    /// Hands the model that was just evaluated to the supervisor, in the process that writes checkpoints. Only the folder says whether it is
    /// the best: what another process has kept before may be in another folder, or lost. The mean of several models is no model that could
    /// be kept.
    pub fn keep_best(&mut self) -> Result<(), Error> {
        let is_elastic = self.membership.is_elastic();
        let keeps = if is_elastic { self.keeps() } else { self.membership.is_first() };
        let wants = self.common.snapshots.as_ref().is_some_and(|snapshots| snapshots.best);
        let is_one = |last: &&Evaluated| last.models.len() == 1;
        let Some(evaluated) = self.history.last().filter(|_| wants && keeps).filter(is_one).cloned() else {
            return Ok(());
        };
        let slot = self.evaluated_slot()?;
        let fetch = self.set.copy_later(&[StateVector::Centre(slot)])?;
        let (statistics, length) = (self.calibrated.clone(), self.common.layout.len());
        let pending = Pending(Box::new(move || {
            let mut parameters = fetch()?.pop().unwrap_or_default();
            // An outer optimizer keeps its velocity behind the centre.
            parameters.truncate(length);
            Ok(BestModel { parameters, statistics, evaluated })
        }));
        let _ = self.common.notes.send(Note::Best(pending));
        Ok(())
    }

    /// The state of a worker of this process. Adds what [`fill`] gives it to `wanted`.
    fn part(&mut self, at: usize, wanted: &mut Vec<StateVector>) -> Result<Part, Error> {
        let (is_elastic, id) = (self.membership.is_elastic(), self.membership.id());
        let (mut centres, mut to_fetch) = (Vec::new(), Vec::new());
        for (level, own) in
            self.levels.iter().enumerate().flat_map(|(at, level)| level.own.iter().map(move |own| (at, own)))
        {
            let group = &self.levels[level].groups[own.number];
            // The list is that of the last exchange: workers of this process may be lost since.
            let is_left =
                |process: u32, worker: u32| process != id || self.workers.iter().any(|it| it.id == worker);
            let workers = (self.processes.iter())
                .flat_map(|(process, workers)| workers.iter().map(move |worker| (*process, *worker)));
            let mut workers =
                workers.filter(|(process, worker)| is_left(*process, *worker)).map(|(_, worker)| worker);
            let first = workers.find(|worker| group.contains(worker));
            let keeps = if is_elastic { at == 0 } else { first == Some(self.workers[at].id) };
            if self.common.method.share == Share::Parameters && keeps {
                let centre = match (&self.membership, own.slot) {
                    // What is saved is what the group holds, even if the workers are not pulled toward it yet.
                    (Membership::Elastic(all, _), Slot::All) => all.newest_centre()?.to_vec(),
                    _ => Vec::new(),
                };
                // An empty centre is what [`fill`] looks for.
                if centre.is_empty() {
                    to_fetch.push(StateVector::Centre(own.slot));
                }
                centres.push((level, own.number, centre));
            }
        }
        let worker = &self.workers[at];
        let shows = is_elastic && saving(self.common.method.evaluate).is_some();
        let mut past = worker.past;
        past.times += worker.tally.times;
        let own = |what| StateVector::Worker(worker.index, what);
        wanted.extend([
            if shows { StateVector::Centre(Slot::View) } else { own(StateKind::Parameters) },
            own(StateKind::Velocity),
            own(StateKind::SecondMoment),
            own(StateKind::Statistics),
        ]);
        wanted.extend(to_fetch);
        Ok(Part {
            worker: worker.id,
            notes: worker.trackers.iter().map(Tracker::notes).cloned().collect(),
            // In an elastic group an interrupted cycle begins again.
            taken: worker.taken - if is_elastic { worker.in_cycle } else { 0 },
            in_cycle: if is_elastic { 0 } else { worker.in_cycle },
            loss: worker.loss,
            finite: worker.finite,
            diverged: self.diverged,
            tally: worker.tally,
            past,
            centres,
            ..Part::default()
        })
    }
}

/// Gives the parts of this process the vectors that they want, in the order of `part`. A centre that is there already is none of them.
fn fill(parts: &mut [Part], vectors: Vec<Vec<f32>>) {
    let mut vectors = vectors.into_iter();
    let mut next = || vectors.next().unwrap_or_default();
    for part in parts {
        let Part { parameters, velocity, second_moment, statistics, .. } = part;
        for vector in [parameters, velocity, second_moment, statistics] {
            *vector = next();
        }
        let missing = part.centres.iter_mut().filter(|(_, _, centre)| centre.is_empty());
        missing.for_each(|(_, _, centre)| *centre = next());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything that a checkpoint keeps of a worker crosses to another process, a loss that is no number too.
    #[test]
    fn a_part_goes_both_ways() {
        let times = Times { compute: 3.5, ..Times::default() };
        let part = Part {
            worker: 3,
            parameters: vec![1.0, f32::MIN_POSITIVE],
            velocity: vec![-0.0, 2.0],
            second_moment: vec![3.0, 4.0, 7.0],
            taken: 7,
            loss: f64::INFINITY,
            past: Past { bytes: 9, times },
            centres: vec![(1, 0, vec![0.5])],
            ..Part::default()
        };
        let parts = [part, Part::default()];
        let bytes = Part::encode(&parts).unwrap();
        assert_eq!(Part::decode(3, &bytes).unwrap(), parts);
        assert!(Part::decode(3, &bytes[1..]).is_err());
    }
}

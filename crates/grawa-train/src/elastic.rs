//! An elastic run: processes join and leave, each with its workers.
//!
//! Between two cycles all members have the same state: the centre, and [`Remembered`]. A worker that joins or rejoins takes this state
//! and takes part in the next round at once. The examples are divided among the members of the last round. When the members change, the
//! examples are divided again, from the furthest position of any member on. Before the first round they are divided among the founders;
//! a further worker takes no step until it has a share. So no example is assigned twice in an epoch. Examples can be skipped: those of a
//! member that was lost before a round, fewer than a batch for each member when their number changes, and, at a free pace, those that
//! slower members had not reached. Only a worker that trains without connection uses a share that others may be assigned as well.

use crate::engine::Workload;
use crate::evaluate::viewing;
use crate::event::{Evaluated, Finished, Observer};
use crate::group_checkpoint::{GroupCheckpoint, Restored};
use crate::membership::Membership;
use crate::milestones::Position;
use crate::pace::Pacing;
use crate::process::{Common, Connections, Messages, Process};
use crate::recipe::{Format, Pace};
use crate::reporter::SharedReports;
use crate::round_message::{ProcessMessage, RoundMessage};
use crate::run::{AnyEngine, Run};
use crate::snapshot::{Part, Snapshot};
use crate::worker_set::WorkerState;
use crate::{Error, Recipe};
use grawa_comm::Collective;
use grawa_comm::group::{Joiner, Reporter, TransferOptions};
use grawa_core::{Memory, Share, StateKind};
use grawa_data::Dataset;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a worker without connection and without examples looks for the others.
const PAUSE: Duration = Duration::from_millis(100);

/// The state that all members share beside the centre.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Remembered {
    at: Position,
    elapsed: Duration,
    memories: Vec<Vec<Memory>>,
    history: Vec<Evaluated>,
    counts: Counts,
    /// No worker was finite at the last round. Checkpoints of earlier versions do not say.
    #[serde(default)]
    diverged: bool,
}

/// The steps of each worker, and how the examples are divided.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Counts {
    /// Steps of each worker that a round has counted.
    taken: BTreeMap<u32, u64>,
    /// Batches that were assigned before the present division, and among how many workers this one is.
    dealt: u64,
    among: u32,
    /// These workers, and the steps of each that were counted by then.
    since: BTreeMap<u32, u64>,
}

impl Counts {
    /// Before the first step of this many workers.
    fn new(founders: u32) -> Self {
        let since = (0..founders).map(|worker| (worker, 0)).collect();
        Counts { among: founders, since, ..Counts::default() }
    }

    /// The first step of the present division: all batches before it were assigned.
    fn first(&self) -> u64 {
        self.dealt.div_ceil(u64::from(self.among.max(1)))
    }

    /// The index of a worker in the division, if it is in it. Without one it has no examples.
    fn seat(&self, worker: u32) -> Option<u32> {
        self.since.keys().position(|&other| other == worker).map(|seat| seat as u32)
    }

    /// The step of its data that a worker has reached after `taken` steps.
    fn place(&self, worker: u32, taken: u64) -> u64 {
        self.first() + taken.saturating_sub(self.since.get(&worker).copied().unwrap_or(0))
    }

    /// Counts the steps of all workers that sent a message.
    fn count(&mut self, messages: &[(u32, RoundMessage)]) {
        self.taken.extend(messages.iter().map(|(worker, message)| (*worker, message.taken)));
    }

    /// Divides the examples among these workers. If they are not those of before, all continue at the furthest position of any.
    fn deal_to(&mut self, members: &[u32]) {
        if self.since.keys().eq(members) {
            return;
        }
        let counted = |worker: &u32| self.taken.get(worker).copied().unwrap_or(0);
        let furthest = self.since.keys().map(|worker| self.place(*worker, counted(worker))).max();
        let since = members.iter().map(|worker| (*worker, counted(worker))).collect();
        self.dealt = furthest.unwrap_or_else(|| self.first()) * u64::from(self.among);
        (self.among, self.since) = (members.len() as u32, since);
    }
}

/// The state of a member of an elastic group.
#[derive(Clone, Debug, Default)]
pub(crate) struct ElasticState {
    run: u64,
    counts: Counts,
    /// It has published its state, and before which operation.
    has_published: bool,
    published_at: u64,
    /// Processes that write checkpoints.
    keepers: Vec<u32>,
    /// It has just taken the state of the others, and takes part in the next round without a step.
    at_once: bool,
    /// The events that all members know, for whoever reports them.
    pub(crate) reports: SharedReports,
}

impl Process {
    /// All workers of the run, in order.
    fn run_members(&self) -> Vec<u32> {
        self.processes.iter().flat_map(|(_, workers)| workers.iter().copied()).collect()
    }

    /// The shared state from here on.
    fn remembered(&self, elastic: &ElasticState) -> Remembered {
        let mut counts = elastic.counts.clone();
        counts.deal_to(&self.run_members());
        Remembered {
            at: self.at,
            elapsed: self.at.elapsed,
            memories: self.levels.iter().map(|level| level.memories.clone()).collect(),
            history: self.history.clone(),
            counts,
            diverged: self.diverged,
        }
    }

    /// The same for a checkpoint; inside an interrupted cycle, that of its beginning.
    pub(crate) fn held(&self, broken_off: bool) -> Result<Option<GroupCheckpoint>, Error> {
        let Membership::Elastic(all, elastic) = &self.membership else { return Ok(None) };
        let memory = String::from_utf8_lossy(&encode(&self.remembered(elastic))?).into_owned();
        let meeting = if broken_off { elastic.published_at } else { all.next_operation() };
        Ok(Some(GroupCheckpoint { run: elastic.run, meeting, memory }))
    }

    /// Whether this process writes the checkpoints: the first member that has a folder.
    pub(crate) fn keeps(&mut self) -> bool {
        let keepers = self.membership.elastic().map(|elastic| elastic.keepers.clone()).unwrap_or_default();
        if keepers.is_empty() {
            return self.membership.is_first();
        }
        let id = self.membership.id();
        let members = self.membership.all().map(|all| all.members().to_vec()).unwrap_or_default();
        keepers.iter().find(|keeper| members.contains(keeper)) == Some(&id)
    }

    /// Publishes the state that joiners take, and reads its shares of the examples.
    pub(crate) fn publish_state(&mut self) -> Result<(), Error> {
        let members = self.run_members();
        let Membership::Elastic(all, elastic) = &mut self.membership else { return Ok(()) };
        if elastic.has_published {
            return Ok(());
        }
        (elastic.has_published, elastic.published_at) = (true, all.next_operation());
        elastic.counts.deal_to(&members);
        self.take_shards()?;
        let Membership::Elastic(_, elastic) = &self.membership else { return Ok(()) };
        let remembered = encode(&self.remembered(elastic))?;
        if let Membership::Elastic(all, _) = &mut self.membership {
            all.publish(&remembered)?;
        }
        Ok(())
    }

    /// Makes its workers read their shards of the examples, if they have some.
    fn take_shards(&mut self) -> Result<(), Error> {
        let Membership::Elastic(_, elastic) = &self.membership else { return Ok(()) };
        let counts = &elastic.counts;
        for worker in &mut self.workers {
            let Some(shard) = counts.seat(worker.id) else { continue };
            // Prefetched batches stay valid while the members are the same.
            if worker.division != Some((shard, counts.among)) {
                self.set.assign_shard(worker.index, shard, counts.among)?;
                worker.division = Some((shard, counts.among));
            }
            let since = counts.since.get(&worker.id).copied().unwrap_or(0);
            (worker.shard, worker.first, worker.since) = (shard, counts.first(), since);
        }
        Ok(())
    }

    /// Whether its workers take part in the next round without local steps: they have just taken the state of the others, or one has no
    /// examples. Those of a GPU can only step together.
    pub(crate) fn skips_steps(&self) -> bool {
        let at_once = self.membership.elastic().is_some_and(|elastic| elastic.at_once);
        at_once || !self.workers.iter().all(|worker| self.has_examples(worker))
    }

    fn has_examples(&self, worker: &WorkerState) -> bool {
        self.membership.elastic().is_none_or(|elastic| elastic.counts.seat(worker.id).is_some())
    }

    /// Counts the steps of all.
    pub(crate) fn count_steps(&mut self, messages: &Messages) {
        if let Some(elastic) = self.membership.elastic_mut() {
            elastic.counts.count(messages);
        }
    }

    /// Notes which processes write checkpoints.
    pub(crate) fn note_writers(&mut self, heads: &[(u32, ProcessMessage)]) {
        if let Some(elastic) = self.membership.elastic_mut() {
            elastic.keepers =
                heads.iter().filter(|(_, head)| head.keeps).map(|(process, _)| *process).collect();
        }
    }

    /// A message with what the election of a reporter needs.
    pub(crate) fn reporter_state(&self) -> ProcessMessage {
        let Some(ElasticState { reports, .. }) = self.membership.elastic() else {
            return ProcessMessage::default();
        };
        let unacknowledged = self.common.reporter.as_ref().map_or(0, Reporter::unacknowledged);
        ProcessMessage {
            is_reporter: reports.is_reporter(),
            unacknowledged: u8::try_from(unacknowledged).unwrap_or(u8::MAX),
            kept: reports.kept(),
            ..ProcessMessage::default()
        }
    }

    /// All know who reports. One that takes over sends again what may be lost with the last reporter.
    pub(crate) fn elect_reporter(&mut self, heads: &[(u32, ProcessMessage)]) {
        let id = self.membership.id();
        let Some(elastic) = self.membership.elastic_mut() else { return };
        for report in elastic.reports.elect(id, heads) {
            self.send_report(&report);
        }
    }

    /// The cycle is over.
    pub(crate) fn end_cycle(&mut self) {
        if let Some(elastic) = self.membership.elastic_mut() {
            (elastic.has_published, elastic.at_once) = (false, false);
        }
    }

    /// Takes the state of the others.
    pub(crate) fn rejoin(&mut self) -> Result<(), Error> {
        let Membership::Elastic(all, _) = &mut self.membership else {
            return Err(grawa_comm::Error::Behind.into());
        };
        let bytes = all.rejoin()?;
        self.restore_from(&bytes)
    }

    /// Continues from the state of the others. Its workers keep their own parameters, unless they have taken no step.
    fn restore_from(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Membership::Elastic(all, elastic) = &mut self.membership else { return Ok(()) };
        let id = all.id();
        let garbled = || Error::Garbled { worker: id, found: bytes.len() };
        let Remembered { at, elapsed, memories, history, counts, diverged } =
            serde_json::from_slice(bytes).map_err(|_| garbled())?;
        if memories.len() != self.levels.len() {
            return Err(garbled());
        }
        let (centre, published_at) = (Arc::clone(all.centre()), all.next_operation());
        **elastic = ElasticState {
            run: elastic.run,
            counts: counts.clone(),
            has_published: true,
            published_at,
            at_once: true,
            ..ElasticState::default()
        };
        self.set.set_centre(crate::worker_set::Slot::All, Arc::clone(&centre))?;
        for worker in &mut self.workers {
            let number = id + worker.index as u32;
            let counted = counts.taken.get(&number).copied();
            if worker.taken == 0 {
                self.set.put(worker.index, StateKind::Parameters, &centre)?;
                self.set.reset(worker.index);
            }
            // The number may have been another worker's, whose steps were counted. Own steps that were not counted are not lost.
            let is_own = |counted: &u64| number == worker.id && *counted <= worker.taken && worker.taken > 0;
            match counted.filter(is_own) {
                Some(counted) => worker.in_cycle = worker.taken - counted,
                None => (worker.taken, worker.in_cycle) = (counted.unwrap_or(0), 0),
            }
            (worker.id, worker.finite, worker.division) = (number, true, None);
        }
        (self.diverged, self.at) = (diverged, Position { elapsed, ..at });
        (self.settled, self.history) = (Some(self.at), history);
        (self.before, self.began) = (elapsed, (self.common.clock)());
        self.levels.iter_mut().zip(memories).for_each(|(level, memories)| level.memories = memories);
        self.processes = vec![(id, self.workers.iter().map(|worker| worker.id).collect())];
        self.take_shards()
    }

    /// Without connection its workers continue to train, if they have examples.
    pub(crate) fn train_alone(&mut self) -> Result<(), Error> {
        if self.common.stop.load(Ordering::Relaxed) {
            return Err(grawa_comm::Error::OutOfContact.into());
        }
        if !self.workers.iter().all(|worker| self.has_examples(worker)) {
            std::thread::sleep(PAUSE);
            return Ok(());
        }
        let cycle = self.cycle_of(1, Some(1));
        let results = self.set.local_steps(&cycle, self.workers.clone());
        self.take(results, |worker, state| *worker = state)
    }
}

pub(crate) fn encode(remembered: &Remembered) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(remembered)
        .map_err(|error| grawa_comm::Error::Message { why: error.to_string() }.into())
}

/// Why workers cannot join and leave in a run of this recipe, if they cannot.
pub fn objection(recipe: &Recipe) -> Option<String> {
    let method = recipe.method.name;
    match () {
        () if recipe.method.share != Share::Parameters => Some(format!(
            "{method} keeps all workers at the same parameters, which a worker that joins later does not have; use a method that \
             has a centre, or `grawa train`"
        )),
        () if recipe.method.inner.is_some() => {
            Some("groups inside groups need workers that stay; remove inner.group".into())
        }
        () => None,
    }
}

/// How a worker is asked to stop.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    /// This worker leaves within a step, and the others continue.
    pub asked: Arc<AtomicBool>,
    /// All workers stop within a step, and one writes a checkpoint. Set this before `asked`.
    pub together: Arc<AtomicBool>,
}

/// Checks that workers can join and leave in a run of this recipe, and can train it on this data.
pub fn check(recipe: &Recipe, data: &Dataset) -> Result<(), Error> {
    if let Some(why) = objection(recipe) {
        return Err(Error::NotElastic { why });
    }
    let workload = Workload::new(recipe, data)?;
    match &recipe.model.init {
        Some(path) => crate::init::start(&workload.graph, path, recipe.train.seed).map(|_| ()),
        None => Ok(()),
    }
}

/// Takes part in a run as one process. It writes checkpoints to `folder` while it is the first member that has one. Its events go to the
/// coordinator, and to the observers here. Returns how the run ended.
pub fn join(
    recipe: Recipe,
    data: &Dataset,
    joiner: Joiner,
    folder: Option<&Path>,
    stop: Stop,
    observers: &mut [Box<dyn Observer>],
) -> Result<Finished, Error> {
    let run = Run::as_member(recipe, data, &joiner)?;
    let run = match folder {
        Some(folder) => run.keep_in(folder),
        None => run,
    };
    run.join(joiner, stop, observers)
}

impl Run {
    /// The part of a process that joins a run of this recipe.
    fn as_member(recipe: Recipe, data: &Dataset, joiner: &Joiner) -> Result<Self, Error> {
        if let Some(why) = objection(&recipe) {
            return Err(Error::NotElastic { why });
        }
        let (workload, workers, cores) =
            (Workload::new(&recipe, data)?, workers_of(joiner), recipe.machine.threads);
        Run::of(recipe, workload, |recipe, workload| AnyEngine::of_some(recipe, workload, workers, cores))
    }

    /// Takes part in a run of the coordinator that has accepted this joiner, as one process.
    pub fn join(
        self,
        joiner: Joiner,
        stop: Stop,
        observers: &mut [Box<dyn Observer>],
    ) -> Result<Finished, Error> {
        let recipe = self.recipe();
        if let Some(why) = objection(recipe) {
            return Err(Error::NotElastic { why });
        }
        let founders = recipe.train.workers;
        let (parameters, statistics) = self.workers.start(recipe)?;
        let (run, reporter, workers) = (joiner.run(), joiner.reporter(), workers_of(&joiner));
        // A worker beyond the founders has no examples before its first round, and reads none: any shard will do.
        let shard = |worker: u32| worker.min(founders.saturating_sub(1));
        let part = |worker: u32| Part {
            worker: shard(worker),
            velocity: vec![0.0; parameters.len()],
            parameters: parameters.clone(),
            statistics: statistics.clone(),
            loss: f64::NAN,
            finite: true,
            ..Part::default()
        };
        let mut parts: Vec<Part> = workers.clone().map(part).collect();
        let counts = Counts::new(founders);
        let memories = vec![vec![Memory::default()]];
        let start =
            Remembered { memories: memories.clone(), counts: counts.clone(), ..Remembered::default() };
        let view = if viewing(recipe.method.evaluate).is_some() { parameters.len() } else { 0 };
        let options =
            TransferOptions { overlap: recipe.train.overlap, bf16: recipe.train.wire == Format::Bf16 };
        let kept = self.folder.as_deref().map(GroupCheckpoint::newest).transpose()?.flatten();
        let (mut launch, source) = self.launch();
        let set = source.set(&launch.recipe, &mut parts)?;
        let (mut ends, taken) = match kept.filter(|kept| kept.held.run == run) {
            Some(Restored { held, centre, .. }) => {
                joiner.enter_from(held.meeting, held.memory.into(), centre, &[view], options)?
            }
            None => joiner.enter(encode(&start)?, parameters, &[view], options)?,
        };
        let (view, member) = (ends.pop(), ends.pop());
        let (Some(view), Some(member)) = (view, member) else {
            return Err(grawa_comm::Error::Message { why: "a group has two ends".into() }.into());
        };
        (launch.reporter, launch.resumed) = (Some(reporter), taken.is_some());
        (launch.together, launch.stop) = (stop.together, stop.asked);
        let pacing = match launch.recipe.train.pace {
            Pace::Even => Pacing::Even,
            Pace::Free => Pacing::Called,
        };
        parts.iter_mut().zip(workers).for_each(|(part, worker)| part.worker = worker);
        let at = Position::default();
        let snapshot = Snapshot { settled: Some(at), parts, memories, ..Snapshot::default() };
        let make = |common: &Arc<Common>| {
            let elastic = ElasticState { run, counts, has_published: true, ..ElasticState::default() };
            let processes = vec![(member.id(), snapshot.parts.iter().map(|part| part.worker).collect())];
            let membership = Membership::Elastic(Box::new(member), Box::new(elastic));
            let view = Some(Box::new(view) as Box<dyn Collective>);
            let connections = Connections { membership, processes, view, inner: Vec::new() };
            let mut process = Process::new(common, set, snapshot, 0..u32::MAX, connections)?;
            for worker in &mut process.workers {
                worker.shard = shard(worker.id);
                worker.division = Some((worker.shard, founders));
            }
            if let Some(state) = taken {
                process.restore_from(&state)?;
            }
            Ok(process)
        };
        launch.run(at, pacing, make, observers)
    }
}

/// The workers of a process that joins.
fn workers_of(joiner: &Joiner) -> Range<u32> {
    joiner.worker..joiner.worker.saturating_add(joiner.workers)
}

#[cfg(test)]
mod joins;
#[cfg(test)]
mod tests;

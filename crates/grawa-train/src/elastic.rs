//! An elastic run: workers join and leave, each in its own process.
//!
//! Between two cycles all members have the same state: the centre, and [`Remembered`]. A worker that joins or rejoins takes this state
//! and takes part in the next round at once. The examples are divided among the members of the last round. When the members change, the
//! examples are divided again, from the furthest position of any member on. Before the first round they are divided among the founders;
//! a further worker takes no step until it has a share. So no example is assigned twice in an epoch. Examples can be skipped: those of a
//! member that was lost before a round, fewer than a batch for each member when their number changes, and, at a free pace, those that
//! slower members had not reached. Only a worker that trains without connection uses a share that others may be assigned as well.

use crate::engine::{CpuReplica, Material};
use crate::evaluate::viewing;
use crate::event::{Evaluated, Finished, Observer};
use crate::group_checkpoint::{GroupCheckpoint, Restored};
use crate::milestones::Position;
use crate::pace::Pacing;
use crate::recipe::{Format, Pace};
use crate::reporter::SharedReports;
use crate::round_message::RoundMessage;
use crate::run::{AnyEngine, Launch, WorkerParts};
use crate::snapshot::Part;
use crate::worker::{Common, Level, Worker};
use crate::{Error, Recipe};
use grawa_comm::Collective;
use grawa_comm::group::{Joiner, Reporter, TransferOptions};
use grawa_core::{Memory, Replica, Share, StateKind, Tracker};
use grawa_data::Dataset;
use grawa_nn::State;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
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
pub(crate) struct Elastic {
    run: u64,
    counts: Counts,
    /// The share of the examples that its replica reads: which index, among how many.
    dealt: Option<(u32, u32)>,
    /// It has published its state, and before which operation.
    stands: bool,
    stood: u64,
    /// Workers that write checkpoints.
    keepers: Vec<u32>,
    /// It has just taken the state of the others, and takes part in the next round without a step.
    at_once: bool,
    /// The events that all members know, for whoever reports them.
    pub(crate) reports: SharedReports,
}

impl<R: Replica, C: Collective<Buffer = R::Buffer>> Worker<R, C> {
    /// The shared state from here on.
    fn remembered(&self, elastic: &Elastic) -> Remembered {
        let mut counts = elastic.counts.clone();
        counts.deal_to(self.all().member.members());
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
        let Some(elastic) = &self.elastic else { return Ok(None) };
        let memory = String::from_utf8_lossy(&encode(&self.remembered(elastic))?).into_owned();
        let meeting = if broken_off { elastic.stood } else { self.all().member.next_operation() };
        Ok(Some(GroupCheckpoint { run: elastic.run, meeting, memory }))
    }

    /// Whether this worker writes the checkpoints: the first member that has a folder.
    pub(crate) fn keeps(&self) -> bool {
        let members = self.all().member.members();
        let Some(elastic) = self.elastic.as_ref().filter(|elastic| !elastic.keepers.is_empty()) else {
            return self.is_first();
        };
        elastic.keepers.iter().find(|keeper| members.contains(keeper)) == Some(&self.id)
    }

    /// Publishes the state that joiners take, and reads its share of the examples.
    pub(crate) fn publish_state(&mut self) -> Result<(), Error> {
        let members = self.all().member.members().to_vec();
        let meeting = self.all().member.next_operation();
        let Some(elastic) = self.elastic.as_mut().filter(|elastic| !elastic.stands) else { return Ok(()) };
        (elastic.stands, elastic.stood) = (true, meeting);
        elastic.counts.deal_to(&members);
        self.take_share()?;
        let Some(elastic) = &self.elastic else { return Ok(()) };
        let remembered = self.remembered(elastic);
        Ok(self.all_mut().member.publish(&encode(&remembered)?)?)
    }

    /// Makes its replica read its share of the examples, if it has one.
    fn take_share(&mut self) -> Result<(), Error> {
        let Some(elastic) = &mut self.elastic else { return Ok(()) };
        let dealt = elastic.counts.seat(self.id).map(|seat| (seat, elastic.counts.among));
        // Prefetched batches stay valid while the members are the same.
        if let Some((seat, of)) = dealt.filter(|_| elastic.dealt != dealt) {
            self.replica.deal(seat, of)?;
            elastic.dealt = dealt;
        }
        Ok(())
    }

    /// Whether it takes part in the next round without local steps: it has just taken the state of the others, or has no examples.
    pub(crate) fn skips_steps(&self) -> bool {
        self.elastic.as_ref().is_some_and(|elastic| elastic.at_once) || !self.has_examples()
    }

    fn has_examples(&self) -> bool {
        self.elastic.as_ref().is_none_or(|elastic| elastic.counts.seat(self.id).is_some())
    }

    /// The examples of its next step: which share, and at which step.
    pub(crate) fn dealt(&self) -> Option<(u32, u64)> {
        let elastic = self.elastic.as_ref()?;
        Some((elastic.counts.seat(self.id)?, elastic.counts.place(self.id, self.taken)))
    }

    /// Counts the steps of all.
    pub(crate) fn count_steps(&mut self, messages: &[(u32, RoundMessage)]) {
        if let Some(elastic) = &mut self.elastic {
            elastic.counts.count(messages);
        }
    }

    /// Notes which workers write checkpoints.
    pub(crate) fn note_writers(&mut self, messages: &[(u32, RoundMessage)]) {
        if let Some(elastic) = &mut self.elastic {
            let keepers = messages.iter().filter(|(_, message)| message.keeps).map(|(worker, _)| *worker);
            elastic.keepers = keepers.collect();
        }
    }

    /// A message with what the election of a reporter needs.
    pub(crate) fn reporter_state(&self) -> RoundMessage {
        let Some(Elastic { reports, .. }) = &self.elastic else { return RoundMessage::default() };
        let unacknowledged = self.common.teller.as_ref().map_or(0, Reporter::unacknowledged);
        RoundMessage {
            is_reporter: reports.is_reporter(),
            unacknowledged: u8::try_from(unacknowledged).unwrap_or(u8::MAX),
            kept: reports.kept(),
            ..RoundMessage::default()
        }
    }

    /// All know who reports. One that takes over sends again what may be lost with the last reporter.
    pub(crate) fn elect_reporter(&mut self, messages: &[(u32, RoundMessage)]) {
        let Some(elastic) = &mut self.elastic else { return };
        for report in elastic.reports.elect(self.id, messages) {
            self.send_report(&report);
        }
    }

    /// The cycle is over.
    pub(crate) fn end_cycle(&mut self) {
        if let Some(elastic) = &mut self.elastic {
            (elastic.stands, elastic.at_once) = (false, false);
        }
    }

    /// Takes the state of the others.
    pub(crate) fn rejoin(&mut self) -> Result<(), Error> {
        let bytes = self.all_mut().member.rejoin()?;
        self.restore_from(&bytes)
    }

    /// Continues from the state of the others. It keeps its own parameters, unless it has taken no step.
    fn restore_from(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let garbled = |_| Error::Garbled { worker: self.id, found: bytes.len() };
        let Remembered { at, elapsed, memories, history, counts, diverged } =
            serde_json::from_slice(bytes).map_err(garbled)?;
        if memories.len() != self.levels.len() {
            return Err(Error::Garbled { worker: self.id, found: bytes.len() });
        }
        let id = self.all().member.worker();
        let counted = counts.taken.get(&id).copied();
        if self.taken == 0 {
            let centre = self.all().member.copy_centre()?;
            self.replica.put(StateKind::Parameters, &centre)?;
            self.replica.reset();
        }
        // The number may have been another worker's, whose steps were counted. Own steps that were not counted are not lost.
        match counted.filter(|counted| id == self.id && *counted <= self.taken && self.taken > 0) {
            Some(counted) => self.in_cycle = self.taken - counted,
            None => (self.taken, self.in_cycle) = (counted.unwrap_or(0), 0),
        }
        (self.id, self.finite, self.diverged) = (id, true, diverged);
        self.at = Position { elapsed, ..at };
        (self.settled, self.history) = (Some(self.at), history);
        (self.before, self.began) = (elapsed, (self.common.clock)());
        self.levels.iter_mut().zip(memories).for_each(|(level, memories)| level.memories = memories);
        let run = self.elastic.as_ref().map_or(0, |elastic| elastic.run);
        let stood = self.all().member.next_operation();
        self.elastic =
            Some(Elastic { run, counts, stands: true, stood, at_once: true, ..Elastic::default() });
        self.take_share()
    }

    /// Without connection it continues to train, if it has examples.
    pub(crate) fn train_alone(&mut self) -> Result<(), Error> {
        if self.common.stop.load(Ordering::Relaxed) {
            return Err(grawa_comm::Error::OutOfContact.into());
        }
        if self.has_examples() {
            self.take_steps(1)?;
        } else {
            std::thread::sleep(PAUSE);
        }
        Ok(())
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
    let material = Material::new(recipe, data)?;
    match &recipe.model.init {
        Some(path) => crate::init::start(&material.graph, path, recipe.train.seed).map(|_| ()),
        None => Ok(()),
    }
}

/// Takes part in a run as one worker. It writes checkpoints to `folder` while it is the first member that has one. Its events go to the
/// coordinator, and to the observers here. Returns how the run ended.
pub fn join(
    recipe: Recipe,
    data: &Dataset,
    guest: Joiner,
    folder: Option<&Path>,
    stop: Stop,
    observers: &mut [Box<dyn Observer>],
) -> Result<Finished, Error> {
    join_as(|net| net, recipe, data, guest, (folder, stop), observers)
}

/// The same with a replica that is made of a network on the CPU: tests wrap it.
fn join_as<R: Replica<Buffer = [f32]> + Send + 'static>(
    replica: impl FnOnce(CpuReplica) -> R,
    recipe: Recipe,
    data: &Dataset,
    guest: Joiner,
    (folder, stop): (Option<&Path>, Stop),
    observers: &mut [Box<dyn Observer>],
) -> Result<Finished, Error> {
    if let Some(why) = objection(&recipe) {
        return Err(Error::NotElastic { why });
    }
    let material = Material::new(&recipe, data)?;
    let (graph, examples) = (material.graph.clone(), material.order.examples() as usize);
    let (seed, founders) = (recipe.train.seed, recipe.train.workers);
    let state = match &recipe.model.init {
        Some(path) => crate::init::start(&graph, path, seed)?.0,
        None => State::initial(&graph, seed),
    };
    let (worker, run, teller) = (guest.worker, guest.run(), guest.reporter());
    // A worker beyond the founders has no examples before its first round, and reads none: any index will do.
    let seat = worker.min(founders.saturating_sub(1));
    let engine = AnyEngine::of_one(&recipe, material, (seat, worker), recipe.machine.threads)?;
    let counts = Counts::new(founders);
    let memories = vec![vec![Memory::default()]];
    let start = Remembered { memories, counts: counts.clone(), ..Remembered::default() };
    let looks = viewing(recipe.method.evaluate).is_some();
    let view = if looks { state.parameters.len() } else { 0 };
    let travel = TransferOptions { overlap: recipe.train.overlap, bf16: recipe.train.wire == Format::Bf16 };
    let kept = folder.map(GroupCheckpoint::newest).transpose()?.flatten();
    let (mut ends, taken) = match kept.filter(|kept| kept.held.run == run) {
        Some(Restored { held, centre, .. }) => {
            guest.enter_from(held.meeting, held.memory.into(), centre, &[view], travel)?
        }
        None => guest.enter(encode(&start)?, state.parameters.clone(), &[view], travel)?,
    };
    let (view, member) = (ends.pop(), ends.pop());
    let (Some(view), Some(member)) = (view, member) else {
        return Err(grawa_comm::Error::Message { why: "a group has two ends".into() }.into());
    };
    let launch = Launch {
        teller: Some(teller),
        together: stop.together,
        ..Launch::new(recipe, graph, examples, folder, stop.asked, taken.is_some())
    };
    let mut part = Part {
        worker: seat,
        velocity: vec![0.0; state.parameters.len()],
        parameters: state.parameters,
        statistics: state.statistics,
        ..Part::default()
    };
    let dealt = Some((seat, founders));
    let elastic = Elastic { run, counts, dealt, stands: true, ..Elastic::default() };
    let pacing = match launch.recipe.train.pace {
        Pace::Even => Pacing::Even,
        Pace::Free => Pacing::Called,
    };
    let (at, newcomer) = (Position::default(), Newcomer { worker, elastic, state: taken });
    match engine {
        AnyEngine::Cpu(engine) => {
            let parts = WorkerParts::on_cpu(&engine, &engine.evaluator(&launch.recipe), &mut part)?;
            let parts =
                WorkerParts { replica: replica(parts.replica), waits: parts.waits, examiner: parts.examiner };
            launch.run(at, pacing, |_, common| newcomer.start(common, parts, member, view), observers)
        }
        AnyEngine::Cuda(engine) => {
            let parts = WorkerParts::on_gpus(&engine, &mut part)?;
            // The group of all, and that of the evaluated model.
            let (member, view) = (engine.staged(member, Some((0, 0)))?, engine.staged(view, None)?);
            launch.run(at, pacing, |_, common| newcomer.start(common, parts, member, view), observers)
        }
    }
}

/// What a worker that joins begins with, on any device.
struct Newcomer {
    worker: u32,
    elastic: Elastic,
    /// The shared state of the others, if the run has begun.
    state: Option<Vec<u8>>,
}

impl Newcomer {
    fn start<R: Replica, C: Collective<Buffer = R::Buffer>>(
        self,
        common: &Arc<Common>,
        parts: WorkerParts<R>,
        member: C,
        view: C,
    ) -> Result<Vec<Worker<R, C>>, Error> {
        let method = &common.method;
        let level = Level {
            tracker: Tracker::new(method, &common.layout),
            method: method.clone(),
            member,
            // There is one group, of all that join.
            groups: std::iter::once(0..u32::MAX).collect(),
            own: 0,
            memories: vec![Memory::default()],
        };
        let mut worker = Worker::new(common, self.worker, parts, vec![level], view);
        (worker.settled, worker.apart, worker.elastic) = (Some(worker.at), true, Some(self.elastic));
        if let Some(state) = self.state {
            worker.restore_from(&state)?;
        }
        Ok(vec![worker])
    }
}

#[cfg(test)]
mod joins;
#[cfg(test)]
mod tests;

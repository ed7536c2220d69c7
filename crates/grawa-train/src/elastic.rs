//! A run whose workers come and go, each a process of its own.
//!
//! Between two cycles all members hold the same: the centre, and what is remembered here. One who comes, or comes back, takes
//! that over and joins the next round at once. Examples are dealt to those who took part in the last round, and anew when these
//! are others than before: each member gets its share of what comes after the furthest that any of them had come to. Before the
//! first round they are dealt to the founders, and whoever comes beyond them takes no step until it has a share. So nobody's
//! example is dealt twice in an epoch; those not seen in it are what was dealt to a member that was lost before it met the others
//! again, fewer than a batch a member whenever their number changes, and, at a free pace, what slower ones had not come to by then.
//! Only one that trains on out of contact goes on in a share that others are dealt as well.

use crate::engine::{CpuReplica, Material};
use crate::evaluate::viewing;
use crate::event::{Evaluated, Finished, Observer};
use crate::group_checkpoint::{GroupCheckpoint, Restored};
use crate::milestones::Position;
use crate::pace::Pacing;
use crate::recipe::{Format, Pace};
use crate::reporter::SharedReports;
use crate::round_message::RoundMessage;
use crate::run::{Launch, Made, Works};
use crate::snapshot::Part;
use crate::worker::{Common, Level, Worker};
use crate::{Error, Recipe};
use grawa_comm::Collective;
use grawa_comm::group::{Guest, Teller, Travel};
use grawa_core::{Memory, Replica, Share, StateKind, Tracker};
use grawa_data::Dataset;
use grawa_nn::State;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// From one look for the others to the next, of a worker that is out of contact and has nothing to train on.
const PAUSE: Duration = Duration::from_millis(100);

/// What all members remember beside the centre.
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

/// Whose steps were counted, and how far the examples are dealt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Counts {
    /// Steps of every worker that a round has counted.
    taken: BTreeMap<u32, u64>,
    /// Batches dealt before those who are dealt to now, and among how many these are.
    dealt: u64,
    among: u32,
    /// Who they are, and how many steps of each were counted by then.
    since: BTreeMap<u32, u64>,
}

impl Counts {
    /// Before the first step of so many workers.
    fn new(founders: u32) -> Self {
        let since = (0..founders).map(|worker| (worker, 0)).collect();
        Counts { among: founders, since, ..Counts::default() }
    }

    /// The step at which those who are dealt to began: all batches before it were dealt.
    fn first(&self) -> u64 {
        self.dealt.div_ceil(u64::from(self.among.max(1)))
    }

    /// A worker's place among those who are dealt to, if it is one of them. One that has none has no examples of its own.
    fn seat(&self, worker: u32) -> Option<u32> {
        self.since.keys().position(|&other| other == worker).map(|seat| seat as u32)
    }

    /// The step of its data that a worker has come to with so many steps of its own.
    fn place(&self, worker: u32, taken: u64) -> u64 {
        self.first() + taken.saturating_sub(self.since.get(&worker).copied().unwrap_or(0))
    }

    /// All have met: their steps count.
    fn count(&mut self, words: &[(u32, RoundMessage)]) {
        self.taken.extend(words.iter().map(|(worker, word)| (*worker, word.taken)));
    }

    /// Deals to these from now on. If others were dealt to before, all go on where the one had come to who was furthest.
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

/// What a worker needs where workers come and go.
#[derive(Clone, Debug, Default)]
pub(crate) struct Elastic {
    run: u64,
    counts: Counts,
    /// Whose examples its replica reads: which place, among how many.
    dealt: Option<(u32, u32)>,
    /// It has said where it stands, and before which meeting that was.
    stands: bool,
    stood: u64,
    /// Who keeps checkpoints, as far as all have heard.
    keepers: Vec<u32>,
    /// It has just taken over what the others hold, and comes without a step.
    at_once: bool,
    /// The events that all members know, for whoever reports them.
    pub(crate) reports: SharedReports,
}

impl<R: Replica, C: Collective<Buffer = R::Buffer>> Worker<R, C> {
    /// What all members remember beside the centre, from here on.
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

    /// The same, for one who keeps it; in the middle of a cycle that was broken off, what it was at its beginning.
    pub(crate) fn held(&self, broken_off: bool) -> Result<Option<GroupCheckpoint>, Error> {
        let Some(elastic) = &self.elastic else { return Ok(None) };
        let memory = String::from_utf8_lossy(&encode(&self.remembered(elastic))?).into_owned();
        let meeting = if broken_off { elastic.stood } else { self.all().member.meeting() };
        Ok(Some(GroupCheckpoint { run: elastic.run, meeting, memory }))
    }

    /// Whether it is the one who keeps the checkpoints: the first of those present who were given a folder.
    pub(crate) fn keeps(&self) -> bool {
        let members = self.all().member.members();
        let Some(elastic) = self.elastic.as_ref().filter(|elastic| !elastic.keepers.is_empty()) else {
            return self.speaks();
        };
        elastic.keepers.iter().find(|keeper| members.contains(keeper)) == Some(&self.id)
    }

    /// Says where it stands, and takes its share of the examples.
    pub(crate) fn stand(&mut self) -> Result<(), Error> {
        let members = self.all().member.members().to_vec();
        let meeting = self.all().member.meeting();
        let Some(elastic) = self.elastic.as_mut().filter(|elastic| !elastic.stands) else { return Ok(()) };
        (elastic.stands, elastic.stood) = (true, meeting);
        elastic.counts.deal_to(&members);
        self.take_share()?;
        let Some(elastic) = &self.elastic else { return Ok(()) };
        let remembered = self.remembered(elastic);
        Ok(self.all_mut().member.settle(&encode(&remembered)?)?)
    }

    /// Has its replica read its share of the examples, if it has one.
    fn take_share(&mut self) -> Result<(), Error> {
        let Some(elastic) = &mut self.elastic else { return Ok(()) };
        let dealt = elastic.counts.seat(self.id).map(|seat| (seat, elastic.counts.among));
        // What is prepared ahead stays so while nobody comes or goes.
        if let Some((seat, of)) = dealt.filter(|_| elastic.dealt != dealt) {
            self.replica.deal(seat, of)?;
            elastic.dealt = dealt;
        }
        Ok(())
    }

    /// Whether it goes to the meeting without local steps: it has just taken over what the others hold, or has no examples to
    /// take a step on before it has met the others.
    pub(crate) fn comes_at_once(&self) -> bool {
        self.elastic.as_ref().is_some_and(|elastic| elastic.at_once) || !self.has_examples()
    }

    fn has_examples(&self) -> bool {
        self.elastic.as_ref().is_none_or(|elastic| elastic.counts.seat(self.id).is_some())
    }

    /// The examples of its next step: whose, and at which step.
    pub(crate) fn dealt(&self) -> Option<(u32, u64)> {
        let elastic = self.elastic.as_ref()?;
        Some((elastic.counts.seat(self.id)?, elastic.counts.place(self.id, self.taken)))
    }

    /// All have met: what they did counts.
    pub(crate) fn count_in(&mut self, words: &[(u32, RoundMessage)]) {
        if let Some(elastic) = &mut self.elastic {
            elastic.counts.count(words);
        }
    }

    /// All have met, and know who keeps checkpoints.
    pub(crate) fn note_keepers(&mut self, words: &[(u32, RoundMessage)]) {
        if let Some(elastic) = &mut self.elastic {
            let keepers = words.iter().filter(|(_, word)| word.keeps).map(|(worker, _)| *worker);
            elastic.keepers = keepers.collect();
        }
    }

    /// How many reports the coordinator has not acknowledged, if this worker is the reporter.
    pub(crate) fn unacknowledged(&self) -> Option<u32> {
        let elastic = self.elastic.as_ref().filter(|elastic| elastic.reports.is_reporter())?;
        Some(self.common.teller.as_ref().map_or(elastic.reports.kept(), Teller::unacknowledged))
    }

    /// All know who reports. One that takes over sends again what may be lost with the last reporter.
    pub(crate) fn elect_reporter(&mut self, messages: &[(u32, RoundMessage)]) {
        let Some(elastic) = &mut self.elastic else { return };
        for report in elastic.reports.elect(self.id, messages) {
            self.send_report(&report);
        }
    }

    /// The cycle is over.
    pub(crate) fn leave_stand(&mut self) {
        if let Some(elastic) = &mut self.elastic {
            (elastic.stands, elastic.at_once) = (false, false);
        }
    }

    /// Takes over what the others hold.
    pub(crate) fn rejoin(&mut self) -> Result<(), Error> {
        let bytes = self.all_mut().member.rejoin()?;
        self.adopt(&bytes)
    }

    /// From here on it stands where the others do. Its parameters stay its own, unless it has none of its own yet.
    fn adopt(&mut self, bytes: &[u8]) -> Result<(), Error> {
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
        // A number may have had another worker, whose steps were counted; its own that were not are not lost.
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
        let stood = self.all().member.meeting();
        self.elastic =
            Some(Elastic { run, counts, stands: true, stood, at_once: true, ..Elastic::default() });
        self.take_share()
    }

    /// Out of contact it goes on training, if it has examples.
    pub(crate) fn go_on_alone(&mut self) -> Result<(), Error> {
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

/// Why workers cannot come and go in a run of this recipe, if they cannot.
pub fn objection(recipe: &Recipe) -> Option<String> {
    let method = recipe.method.name;
    match () {
        () if recipe.method.share != Share::Parameters => Some(format!(
            "{method} keeps all workers at the same parameters, which one who comes later does not have; use a method that \
             has a centre, or `grawa train`"
        )),
        () if recipe.method.inner.is_some() => {
            Some("groups inside groups need workers that stay; leave inner.group away".into())
        }
        () => None,
    }
}

/// How a worker is asked to stop.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    /// It is: within a step it leaves, and the others go on.
    pub asked: Arc<AtomicBool>,
    /// And so are all others: within a step all stop, and one leaves a checkpoint. Set before the other.
    pub together: Arc<AtomicBool>,
}

/// That workers can come and go in a run of this recipe, and can train it on this data.
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

/// Takes part in a run as one worker, which leaves checkpoints in `folder` while it is the first of those present who keep any. What it has to
/// tell goes to the coordinator, and to the observers here. Returns how the run ended.
pub fn join(
    recipe: Recipe,
    data: &Dataset,
    guest: Guest,
    folder: Option<&Path>,
    stop: Stop,
    observers: &mut [Box<dyn Observer>],
) -> Result<Finished, Error> {
    join_as(|net| net, recipe, data, guest, (folder, stop), observers)
}

/// The same as one whose replica, on the CPU, is made of a network: tests put something in between.
fn join_as<R: Replica<Buffer = [f32]> + Send + 'static>(
    replica: impl FnOnce(CpuReplica) -> R,
    recipe: Recipe,
    data: &Dataset,
    guest: Guest,
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
    let (worker, run, teller) = (guest.worker, guest.run(), guest.teller());
    // One beyond the founders has no examples before it has taken part in a round, and reads none: any place will do.
    let seat = worker.min(founders.saturating_sub(1));
    let works = Works::of_one(&recipe, material, (seat, worker), recipe.machine.threads)?;
    let counts = Counts::new(founders);
    let memories = vec![vec![Memory::default()]];
    let start = Remembered { memories: memories.clone(), counts: counts.clone(), ..Remembered::default() };
    let looks = viewing(recipe.method.evaluate).is_some();
    let view = if looks { state.parameters.len() } else { 0 };
    let travel = Travel { overlap: recipe.train.overlap, bf16: recipe.train.wire == Format::Bf16 };
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
    let seat = Seating { worker, memories, elastic, taken };
    let at = Position::default();
    match works {
        Works::Cpu(engine) => {
            let made = Made::on_cpu(&engine, &engine.evaluator(&launch.recipe), &mut part)?;
            let made = Made { replica: replica(made.replica), waits: made.waits, examiner: made.examiner };
            launch.run(at, pacing, |_, common| seat.take(common, made, member, view), observers)
        }
        Works::Card(engine) => {
            let made = Made::on_card(&engine, &mut part)?;
            // One group of all, and the one whose model is looked at.
            let (member, view) = (engine.staged(member, Some((0, 0)))?, engine.staged(view, None)?);
            launch.run(at, pacing, |_, common| seat.take(common, made, member, view), observers)
        }
    }
}

/// What a worker that comes begins with, wherever it works.
struct Seating {
    worker: u32,
    memories: Vec<Vec<Memory>>,
    elastic: Elastic,
    /// What the others remember, if they have begun.
    taken: Option<Vec<u8>>,
}

impl Seating {
    fn take<R: Replica, C: Collective<Buffer = R::Buffer>>(
        self,
        common: &Arc<Common>,
        made: Made<R>,
        member: C,
        view: C,
    ) -> Result<Vec<Worker<R, C>>, Error> {
        let method = &common.method;
        let level = Level {
            tracker: Tracker::new(method, &common.layout),
            method: method.clone(),
            member,
            // Whoever comes is in the one group there is.
            groups: std::iter::once(0..u32::MAX).collect(),
            own: 0,
            memories: self.memories[0].clone(),
        };
        let at = Position::default();
        let mut worker = Worker {
            id: self.worker,
            common: Arc::clone(common),
            replica: made.replica,
            levels: vec![level],
            view,
            examiner: made.examiner,
            waits: made.waits,
            at,
            settled: Some(at),
            taken: 0,
            in_cycle: 0,
            loss: f64::NAN,
            finite: true,
            diverged: false,
            tally: crate::round_message::Tally::default(),
            past: crate::snapshot::Past::default(),
            history: Vec::new(),
            calibrated: Vec::new(),
            norms: vec![0.0; common.layout.spans().len()],
            rate: 0.0,
            left_out: Vec::new(),
            began: (common.clock)(),
            before: Duration::ZERO,
            apart: true,
            elastic: Some(self.elastic),
        };
        if let Some(bytes) = self.taken {
            worker.adopt(&bytes)?;
        }
        Ok(vec![worker])
    }
}

#[cfg(test)]
mod joins;
#[cfg(test)]
mod tests;

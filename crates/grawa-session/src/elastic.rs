//! An elastic run: processes join and leave, each with its workers.
//!
//! Between two cycles all members have the same state: the centre, and [`Remembered`]. A worker that joins or rejoins takes this state
//! and takes part in the next round at once. The examples are divided among the members of the last round. When the members change, the
//! examples are divided again, from the furthest position of any member on. Before the first round they are divided among the founders;
//! a further worker takes no step until it has a share. So no example is assigned twice in an epoch. Examples can be skipped: those of a
//! member that was lost before a round, and fewer than a batch for each member when their number changes. Only a worker that trains
//! without connection uses a share that others may be assigned as well.
//!
//! At a free pace members take different numbers of steps. A session's batches are then divided again after each round, one by one:
//! first those that slower members had not reached, and those of members that were lost. So each batch is read once, and none is skipped.
//! Where the library takes the steps, each member has its own part of every epoch to the end.

use crate::Error;
use crate::event::Evaluated;
use crate::membership::Membership;
use crate::milestones::Position;
use crate::process::{Messages, Process};
use crate::reporter::SharedReports;
use crate::round_message::{ProcessMessage, RoundMessage};
use crate::snapshot::GroupCheckpoint;
use crate::worker_set::WorkerState;
use grawa_core::{Memory, Method, Share, StateKind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a worker without connection and without examples looks for the others.
const PAUSE: Duration = Duration::from_millis(100);

/// The state that all members share beside the centre.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Remembered {
    pub(crate) at: Position,
    pub(crate) elapsed: Duration,
    pub(crate) memories: Vec<Vec<Memory>>,
    pub(crate) history: Vec<Evaluated>,
    pub(crate) counts: Counts,
    /// No worker was finite at the last round. Checkpoints of earlier versions do not say.
    #[serde(default)]
    pub(crate) diverged: bool,
    /// All have stopped together here. It does not count where the run is continued.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) stopped: bool,
}

/// The steps of each worker, and how the examples are divided.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// Steps of each worker that a round has counted.
    pub taken: BTreeMap<u32, u64>,
    /// Batches that were assigned before the present division, and among how many workers this one is.
    pub dealt: u64,
    pub among: u32,
    /// These workers, and the steps of each that were counted by then.
    pub since: BTreeMap<u32, u64>,
    /// Batches before `dealt` that nobody has read yet: where batches are divided one by one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<u64>,
}

/// So many batches of a cycle are divided one by one, at most. A worker that has taken more steps counts as if it had left none out.
const MOST_BATCHES: u64 = 1 << 20;

/// More steps of a worker are not counted.
const MOST_STEPS: u64 = 1 << 40;

impl Counts {
    /// Before the first step of this many workers.
    pub fn new(founders: u32) -> Self {
        let since = (0..founders).map(|worker| (worker, 0)).collect();
        Counts { among: founders, since, ..Counts::default() }
    }

    /// The first step of the present division: all batches before it were assigned.
    pub fn first(&self) -> u64 {
        self.dealt.div_ceil(u64::from(self.among.max(1)))
    }

    /// The index of a worker in the division, if it is in it. Without one it has no examples.
    pub fn seat(&self, worker: u32) -> Option<u32> {
        self.since.keys().position(|&other| other == worker).map(|seat| seat as u32)
    }

    /// The step of its data that a worker has reached after `taken` steps.
    pub fn place(&self, worker: u32, taken: u64) -> u64 {
        self.first() + taken.saturating_sub(self.since.get(&worker).copied().unwrap_or(0))
    }

    /// Counts the steps of all workers that sent a message. Counts never fall, and end at a number that no worker reaches: all continue at the
    /// furthest position of any, which must remain one that there are examples for.
    pub fn count(&mut self, messages: &[(u32, RoundMessage)]) {
        for (worker, message) in messages {
            let counted = self.taken.entry(*worker).or_default();
            *counted = message.taken.min(MOST_STEPS).max(*counted);
        }
    }

    /// Divides the examples among these workers. If they are not those of before, all continue at the furthest position of any.
    pub fn deal_to(&mut self, members: &[u32]) {
        if self.since.keys().eq(members) {
            return;
        }
        let counted = |worker: &u32| self.taken.get(worker).copied().unwrap_or(0);
        let furthest = self.since.keys().map(|worker| self.place(*worker, counted(worker))).max();
        let since = members.iter().map(|worker| (*worker, counted(worker))).collect();
        self.dealt = furthest.unwrap_or_else(|| self.first()).saturating_mul(self.among.into());
        (self.among, self.since) = (members.len() as u32, since);
    }

    /// The number of the batch that comes at this place of the present division: those that are left first.
    fn batch_at(&self, place: u64) -> u64 {
        let left = self.left.len() as u64;
        let kept = usize::try_from(place).ok().and_then(|place| self.left.get(place)).copied();
        kept.unwrap_or_else(|| self.dealt.saturating_add(place.saturating_sub(left)))
    }

    /// The batch that a worker reads after `taken` steps, where batches are divided one by one; none if it is not in the division.
    pub fn batch_of(&self, worker: u32, taken: u64) -> Option<u64> {
        let steps = taken.saturating_sub(*self.since.get(&worker)?);
        let (seat, among) = (u64::from(self.seat(worker)?), self.since.len() as u64);
        Some(self.batch_at(steps.saturating_mul(among).saturating_add(seat)))
    }

    /// Divides the batches among these workers, one by one: first those before the furthest one that somebody read.
    pub fn deal_batches_to(&mut self, members: &[u32]) {
        let counted = |worker: &u32| self.taken.get(worker).copied().unwrap_or(0);
        let steps = self.since.iter().map(|(worker, since)| counted(worker).saturating_sub(*since));
        let steps: Vec<u64> = steps.map(|steps| steps.min(MOST_BATCHES + 1)).collect();
        if self.since.keys().eq(members) && steps.iter().all(|steps| *steps == 0) {
            return;
        }
        let among = steps.len().max(1) as u64;
        let end = |(seat, steps): (usize, &u64)| match steps {
            0 => 0,
            steps => (steps - 1).saturating_mul(among).saturating_add(seat as u64 + 1),
        };
        // One past the furthest place that was read.
        let reach = steps.iter().enumerate().map(end).max().unwrap_or(0);
        let is_read = |place: &u64| {
            let seat = (place % among) as usize;
            reach > MOST_BATCHES && *place < reach
                || steps.get(seat).is_some_and(|steps| *steps > place / among)
        };
        let all = self.left.len() as u64;
        let places = if reach > MOST_BATCHES { 0..all } else { 0..reach.max(all) };
        let left = places.filter(|place| !is_read(place)).map(|place| self.batch_at(place)).collect();
        let since = members.iter().map(|worker| (*worker, counted(worker))).collect();
        self.dealt = self.dealt.saturating_add(reach.saturating_sub(all));
        (self.left, self.among, self.since) = (left, members.len() as u32, since);
    }
}

/// The state of a member of an elastic group.
#[derive(Clone, Debug, Default)]
pub struct ElasticState {
    pub(crate) run: u64,
    pub(crate) counts: Counts,
    /// It has published its state, and before which operation.
    pub(crate) has_published: bool,
    pub(crate) published_at: u64,
    /// That state, as others take it, and the centre that belongs to it.
    pub(crate) published: Vec<u8>,
    pub(crate) published_centre: Arc<Vec<f32>>,
    /// Processes that write checkpoints.
    pub(crate) keepers: Vec<u32>,
    /// It has just taken the state of the others, and takes part in the next round without a step.
    pub(crate) at_once: bool,
    /// The events that all members know, for whoever reports them.
    pub reports: SharedReports,
    /// Batches are divided one by one after each round, and not members' parts of an epoch when the members change.
    pub deals_batches: bool,
}

impl ElasticState {
    fn deal_to(&self, counts: &mut Counts, members: &[u32]) {
        match self.deals_batches {
            true => counts.deal_batches_to(members),
            false => counts.deal_to(members),
        }
    }
}

impl Process {
    /// All workers of the run, in order.
    fn run_members(&self) -> Vec<u32> {
        self.processes.iter().flat_map(|(_, workers)| workers.iter().copied()).collect()
    }

    /// The shared state from here on.
    fn remembered(&self, elastic: &ElasticState) -> Remembered {
        let mut counts = elastic.counts.clone();
        elastic.deal_to(&mut counts, &self.run_members());
        Remembered {
            at: self.at,
            elapsed: self.at.elapsed,
            memories: self.levels.iter().map(|level| level.memories.clone()).collect(),
            history: self.history.clone(),
            counts,
            diverged: self.diverged,
            stopped: self.is_stopped,
        }
    }

    /// The same for a checkpoint; inside an interrupted cycle, that of its beginning.
    pub fn held(&self, broken_off: bool) -> Result<Option<GroupCheckpoint>, Error> {
        let Membership::Elastic(all, elastic) = &self.membership else { return Ok(None) };
        // The members may have changed since it was published.
        let memory = match broken_off && !elastic.published.is_empty() {
            true => elastic.published.clone(),
            false => encode(&self.remembered(elastic))?,
        };
        let memory = String::from_utf8_lossy(&memory).into_owned();
        let meeting = if broken_off { elastic.published_at } else { all.next_operation() };
        Ok(Some(GroupCheckpoint { run: elastic.run, meeting, memory }))
    }

    /// Whether this process writes the checkpoints: the first member that has a folder.
    pub fn keeps(&mut self) -> bool {
        let keepers = self.membership.elastic().map(|elastic| elastic.keepers.clone()).unwrap_or_default();
        if keepers.is_empty() {
            return self.membership.is_first();
        }
        let id = self.membership.id();
        let members = self.membership.all().map(|all| all.members().to_vec()).unwrap_or_default();
        keepers.iter().find(|keeper| members.contains(keeper)) == Some(&id)
    }

    /// Publishes the state that joiners take, and reads its shares of the examples.
    pub fn publish_state(&mut self) -> Result<(), Error> {
        let members = self.run_members();
        let Membership::Elastic(all, elastic) = &mut self.membership else { return Ok(()) };
        if elastic.has_published {
            return Ok(());
        }
        (elastic.has_published, elastic.published_at) = (true, all.next_operation());
        let mut counts = std::mem::take(&mut elastic.counts);
        elastic.deal_to(&mut counts, &members);
        elastic.counts = counts;
        self.take_shards()?;
        let Membership::Elastic(_, elastic) = &self.membership else { return Ok(()) };
        let remembered = encode(&self.remembered(elastic))?;
        if let Membership::Elastic(all, elastic) = &mut self.membership {
            all.keep_reports(elastic.reports.to_bytes());
            all.publish(&remembered)?;
            (elastic.published, elastic.published_centre) = (remembered, all.newest_centre()?);
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
    pub fn skips_steps(&self) -> bool {
        let at_once = self.membership.elastic().is_some_and(|elastic| elastic.at_once);
        at_once || !self.workers.iter().all(|worker| self.has_examples(worker))
    }

    fn has_examples(&self, worker: &WorkerState) -> bool {
        self.membership.elastic().is_none_or(|elastic| elastic.counts.seat(worker.id).is_some())
    }

    /// Counts the steps of all.
    pub fn count_steps(&mut self, messages: &Messages) {
        if let Some(elastic) = self.membership.elastic_mut() {
            elastic.counts.count(messages);
        }
    }

    /// Notes which processes write checkpoints.
    pub fn note_writers(&mut self, heads: &[(u32, ProcessMessage)]) {
        if let Some(elastic) = self.membership.elastic_mut() {
            elastic.keepers =
                heads.iter().filter(|(_, head)| head.keeps).map(|(process, _)| *process).collect();
        }
    }

    /// A message with what the election of a reporter needs.
    pub fn reporter_state(&self) -> ProcessMessage {
        let Some(ElasticState { reports, .. }) = self.membership.elastic() else {
            return ProcessMessage::default();
        };
        let unacknowledged = self.common.reporter.as_ref().map_or(0, |reporter| reporter.unacknowledged());
        ProcessMessage {
            is_reporter: reports.is_reporter(),
            unacknowledged: u8::try_from(unacknowledged).unwrap_or(u8::MAX),
            kept: reports.kept(),
            ..ProcessMessage::default()
        }
    }

    /// All know who reports. One that takes over sends again what may be lost with the last reporter.
    pub fn elect_reporter(&mut self, heads: &[(u32, ProcessMessage)]) {
        let id = self.membership.id();
        let Some(elastic) = self.membership.elastic_mut() else { return };
        for report in elastic.reports.elect(id, heads) {
            self.send_report(report);
        }
    }

    /// The cycle is over.
    pub fn end_cycle(&mut self) {
        if let Some(elastic) = self.membership.elastic_mut() {
            (elastic.has_published, elastic.at_once) = (false, false);
        }
    }

    /// Takes the state of the others.
    pub fn rejoin(&mut self) -> Result<(), Error> {
        let Membership::Elastic(all, _) = &mut self.membership else {
            return Err(grawa_comm::Error::Behind.into());
        };
        let bytes = all.rejoin()?;
        self.restore_from(&bytes)
    }

    /// Continues from the state of the others. Its workers keep their own parameters, unless they have taken no step.
    pub(crate) fn restore_from(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Membership::Elastic(all, elastic) = &mut self.membership else { return Ok(()) };
        let id = all.id();
        let garbled = || Error::Garbled { worker: id, found: bytes.len() };
        let Remembered { at, elapsed, memories, history, counts, diverged, stopped } =
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
            published: bytes.to_vec(),
            published_centre: Arc::clone(&centre),
            at_once: true,
            reports: SharedReports::of(&all.kept_reports()),
            deals_batches: elastic.deals_batches,
            ..ElasticState::default()
        };
        self.is_stopped = stopped && self.common.together.load(Ordering::Relaxed);
        let ends = self.is_stopped || self.common.milestones.is_spent(&Position { elapsed, ..at });
        let was_there = ends && self.was_there(&at, &centre);
        self.is_late &= was_there;
        self.set.set_centre(crate::worker_set::Slot::All, Arc::clone(&centre))?;
        for worker in &mut self.workers {
            let number = id + worker.index as u32;
            let counted = counts.taken.get(&number).copied();
            if worker.taken == 0 {
                let model = &centre[..self.common.layout.len()];
                self.set.put(worker.index, StateKind::Parameters, model)?;
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
        (self.settled, self.history, self.evaluated_at) = (Some(self.at), history, None);
        (self.before, self.began) = (elapsed, (self.common.clock)());
        self.levels.iter_mut().zip(memories).for_each(|(level, memories)| level.memories = memories);
        self.processes = vec![(id, self.workers.iter().map(|worker| worker.id).collect())];
        if ends && !was_there {
            self.take_final_state(&centre)?;
        }
        self.take_shards()
    }

    /// Without connection and examples there is nothing to do for a while.
    pub(crate) fn waits_for_examples(&self) -> bool {
        let waits = !self.workers.iter().all(|worker| self.has_examples(worker));
        if waits {
            std::thread::sleep(PAUSE);
        }
        waits
    }

    /// Without connection its workers continue to train, if they have examples.
    pub fn train_alone(&mut self) -> Result<(), Error> {
        if self.common.stop.load(Ordering::Relaxed) {
            return Err(grawa_comm::Error::OutOfContact.into());
        }
        if self.is_spent() {
            // Nothing is left to train: it waits for the others.
            std::thread::sleep(PAUSE);
            return Ok(());
        }
        if self.waits_for_examples() {
            return Ok(());
        }
        let cycle = self.cycle_of(1, Some(1));
        let results = self.set.local_steps(&cycle, self.workers.clone());
        self.take(results, |worker, state| *worker = state)
    }
}

pub fn encode(remembered: &Remembered) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(remembered)
        .map_err(|error| grawa_comm::Error::Message { why: error.to_string() }.into())
}

/// Why workers cannot join and leave in a run of this method, if they cannot.
pub fn objection(method: &Method) -> Option<String> {
    match () {
        () if method.share != Share::Parameters => Some(format!(
            "{} keeps all workers at the same parameters, which a worker that joins later does not have; use a method that \
             has a centre, or `grawa train`",
            method.name
        )),
        () if method.inner.is_some() => {
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

impl Stop {
    /// The line that `grawa launch` writes to the standard input of its processes when all are to stop.
    pub const LINE: &str = "stop\n";

    /// Is asked by the `grawa launch` that has started this program. If the launcher is gone, the run continues.
    pub fn from_launcher() -> Self {
        let stop = Stop::default();
        let asked = stop.clone();
        std::thread::spawn(move || {
            let mut line = String::new();
            if std::io::stdin().read_line(&mut line).is_ok() && line == Stop::LINE {
                asked.together.store(true, Ordering::Relaxed);
                asked.asked.store(true, Ordering::Relaxed);
            }
        });
        stop
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whoever takes how many steps, and whoever comes and goes: no batch is counted twice, and none before the furthest is lost
        /// sight of.
        #[test]
        fn each_batch_is_read_once(founders in 1u32..5,
                                   cycles in proptest::collection::vec((1u32..32, proptest::array::uniform5(0u64..9)), 1..40)) {
            let mut counts = Counts::new(founders);
            let (mut read, mut taken) = (Vec::new(), [0u64; 5]);
            for (who, steps) in cycles {
                // Members that were lost are not counted: what they read is read again.
                let members: Vec<u32> = (0..5).filter(|worker| who >> worker & 1 == 1).collect();
                for worker in members.iter().copied() {
                    if counts.seat(worker).is_none() {
                        continue;
                    }
                    let own = &mut taken[worker as usize];
                    for _ in 0..steps[worker as usize] {
                        read.push(counts.batch_of(worker, *own).unwrap());
                        *own += 1;
                    }
                    counts.taken.insert(worker, *own);
                }
                counts.deal_batches_to(&members);
                let once = counts.clone();
                counts.deal_batches_to(&members);
                prop_assert_eq!(&once, &counts);
            }
            let mut all = [read, counts.left.clone()].concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..counts.dealt).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_number_of_steps_that_cannot_be_does_not_fill_memory() {
        let mut counts = Counts::new(2);
        counts.taken.insert(1, u64::MAX);
        counts.deal_batches_to(&[0, 1]);
        assert!(counts.left.is_empty());
        assert!(counts.batch_of(0, u64::MAX).is_some());
    }

    /// Nor does it take the others to a step that no batch has, however often it is reported.
    #[test]
    fn a_number_of_steps_that_cannot_be_leaves_the_others_their_examples() {
        let mut counts = Counts::new(3);
        for members in [[0, 1].as_slice(), &[0, 1, 2]].repeat(100) {
            for taken in [u64::MAX, 0, u64::MAX] {
                counts.count(&[(2, RoundMessage { taken, ..RoundMessage::default() })]);
                counts.deal_to(members);
            }
        }
        assert!(counts.place(0, 1000) < 1 << 41, "{counts:?}");
    }
}

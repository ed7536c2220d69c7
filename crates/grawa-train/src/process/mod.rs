//! One process's side of a run: local steps of its workers, rounds, and what is due in between.
//!
//! Every process runs this loop with its set of workers. At the end of a cycle all processes exchange messages about all workers. What
//! follows is a function of these messages, so that all decide the same and there is no leader; one of them reports events. With one
//! process, or one worker in each, the mathematics is that of [`grawa_core::Sequential`], bit for bit, when the pace is even.

mod report;
mod round;

pub(crate) use report::finite;
pub(crate) use round::Group;

use crate::event::{Evaluated, Event, Reason};
use crate::membership::Membership;
use crate::milestones::{Milestones, Position};
use crate::pace::Pacing;
use crate::round_message::{ProcessMessage, RoundMessage, Tally, decode, encode};
use crate::snapshot::{Snapshot, Snapshots};
use crate::worker_set::{Cycle, PerWorker, Slot, WorkerSet, WorkerState};
use crate::{Error, Place};
use grawa_comm::group::Reporter;
use grawa_comm::{Collective, Error as CommError, Lost};
use grawa_core::{Layout, Memory, Method, Schedule, Score, Sgd, Share, Tracker};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

/// The time since a fixed moment.
pub(crate) type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// The message of every worker of the run, in their order.
pub(crate) type Messages = Vec<(u32, RoundMessage)>;

/// What the loop, the workers and the supervisor share.
pub(crate) struct Common {
    pub(crate) method: Method,
    pub(crate) layout: Layout,
    pub(crate) sgd: Sgd,
    pub(crate) rate: Schedule,
    pub(crate) seed: u64,
    pub(crate) milestones: Milestones,
    pub(crate) pacing: Pacing,
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) clock: Clock,
    pub(crate) notes: Sender<Note>,
    /// Sends reports to the coordinator, if there is one.
    pub(crate) reporter: Option<Reporter>,
    /// In an elastic group: all workers were asked to stop, not this process alone.
    pub(crate) together: Arc<AtomicBool>,
    pub(crate) snapshots: Option<Snapshots>,
}

impl Common {
    /// The learning rate of the step after `others` steps of the cycle that begins here.
    pub(crate) fn rate_after(&self, at: &Position, others: u64, workers: usize) -> f64 {
        // At a free pace no worker knows how far the others are: the rate is that of the beginning of the cycle.
        let ahead = if self.pacing.is_even() { others } else { 0 };
        self.rate.rate(&self.milestones.progress(at, ahead, workers))
    }
}

/// What the loop sends to the supervisor.
#[derive(Debug)]
pub(crate) enum Note {
    /// An event that the coordinator knows, if there is one.
    Event(Event),
    /// An event of this process, which the supervisor reports to the coordinator.
    Own(Event),
    /// A report could not be sent to the coordinator.
    NotReported(Error),
    Snapshot(Box<Snapshot>),
    /// The process is done with the run.
    Ended(Result<(), Error>),
}

/// One level of rounds.
pub(crate) struct Level {
    pub(crate) method: Method,
    /// All groups of the level.
    pub(crate) groups: Vec<Range<u32>>,
    /// The state of each group: all processes receive all reports, so all know it.
    pub(crate) memories: Vec<Memory>,
    /// The groups that have workers here.
    pub(crate) own: Vec<OwnGroup>,
}

/// A group that has workers in this process.
pub(crate) struct OwnGroup {
    /// Its number in the level.
    pub(crate) number: usize,
    pub(crate) slot: Slot,
    /// Connects its processes, where it is an inner group of several.
    pub(crate) link: Option<Box<dyn Collective>>,
}

/// One process of a run.
pub(crate) struct Process {
    pub(crate) common: Arc<Common>,
    pub(crate) set: Box<dyn WorkerSet>,
    /// Its workers that are left, in order.
    pub(crate) workers: Vec<WorkerState>,
    /// The inner level, if there is one, then the level of all workers.
    pub(crate) levels: Vec<Level>,
    pub(crate) membership: Membership,
    /// Makes the model to be evaluated, where there are several processes.
    pub(crate) view: Option<Box<dyn Collective>>,
    /// The processes at the last exchange, and their workers.
    pub(crate) processes: Vec<(u32, Vec<u32>)>,
    /// Where the run was at the end of the last cycle, and up to where everything due was done.
    pub(crate) at: Position,
    pub(crate) settled: Option<Position>,
    /// No worker was finite at the last round, or at the end of the last cycle.
    pub(crate) diverged: bool,
    pub(crate) history: Vec<Evaluated>,
    /// The statistics of the last evaluated model, for the checkpoint.
    pub(crate) calibrated: Vec<f32>,
    /// Workers that were left out of the last round.
    left_out: Vec<u32>,
    /// When it began by its clock, without evaluations, and how long it had trained before that.
    pub(crate) began: Duration,
    pub(crate) before: Duration,
    /// The centre of all that the set has, where there are several processes.
    all_centre: Arc<Vec<f32>>,
    /// Why workers were lost, and whether that was the end of this process.
    reasons: Vec<Error>,
    is_reported: bool,
}

/// The levels of rounds and their groups: the inner level, if there is one, then all workers.
pub(crate) fn levels(method: &Method, workers: u32) -> Vec<(Method, Vec<Range<u32>>)> {
    let inner = method.inner.as_ref().map(|inner| (inner.method.clone(), inner.group.max(1)));
    (inner.into_iter().chain([(method.clone(), workers.max(1))]))
        .map(|(method, size)| {
            let starts = (0..workers).step_by(size as usize);
            (method, starts.map(|start| start..(start + size).min(workers)).collect())
        })
        .collect()
}

/// What connects this process with the others.
pub(crate) struct Connections {
    pub(crate) membership: Membership,
    /// The processes and their workers, where they are known.
    pub(crate) processes: Vec<(u32, Vec<u32>)>,
    /// For the model to be evaluated.
    pub(crate) view: Option<Box<dyn Collective>>,
    /// For the inner groups that have workers here: number, and what connects their processes.
    pub(crate) inner: Vec<(usize, Option<Box<dyn Collective>>)>,
}

impl Process {
    /// A process that begins with this snapshot, whose parts are those of its workers, in the order of the set. `workers` are those of
    /// the run.
    pub(crate) fn new(
        common: &Arc<Common>,
        mut set: Box<dyn WorkerSet>,
        snapshot: Snapshot,
        workers: Range<u32>,
        connections: Connections,
    ) -> Result<Self, Error> {
        let Snapshot { at, settled, mut parts, memories, history, .. } = snapshot;
        let Connections { mut membership, processes, view, inner } = connections;
        let (method, layout) = (&common.method, &common.layout);
        let mut all_levels = levels(method, workers.end);
        if membership.is_elastic() {
            // There is one group, of all that join.
            all_levels = vec![(method.clone(), std::iter::once(workers).collect())];
        }
        let trackers = |notes: Vec<_>| -> Result<Vec<Tracker>, Error> {
            let mut notes = notes.into_iter();
            let tracker = |(method, _): &(Method, _)| {
                let mut tracker = Tracker::new(method, layout);
                notes.next().map_or(Ok(()), |notes| tracker.recall(notes))?;
                Ok(tracker)
            };
            all_levels.iter().map(tracker).collect()
        };
        let mut states = Vec::with_capacity(parts.len());
        for (index, part) in parts.iter_mut().enumerate() {
            let inner = match &all_levels[..] {
                [(_, groups), _] => {
                    let number = groups.iter().position(|group| group.contains(&part.worker));
                    inner.iter().position(|(own, _)| Some(*own) == number).unwrap_or(0)
                }
                _ => 0,
            };
            let trackers = trackers(std::mem::take(&mut part.notes))?;
            states.push(WorkerState::new(part, index, inner, trackers, layout.spans().len()));
        }
        let mut centres: Vec<(usize, usize, Vec<f32>)> =
            parts.iter_mut().flat_map(|part| std::mem::take(&mut part.centres)).collect();
        let mut inner = Some(inner);
        let last = all_levels.len() - 1;
        let mut levels = Vec::with_capacity(all_levels.len());
        for (index, ((method, groups), memories)) in all_levels.into_iter().zip(memories).enumerate() {
            let own = match index {
                _ if index == last => vec![OwnGroup { number: 0, slot: Slot::All, link: None }],
                _ => (inner.take().into_iter().flatten().enumerate())
                    .map(|(at, (number, link))| OwnGroup { number, slot: Slot::Inner(at), link })
                    .collect(),
            };
            for group in &own {
                let kept = centres.iter().position(|(level, at, _)| (*level, *at) == (index, group.number));
                let centre = match (common.method.share, kept) {
                    (Share::Nothing, _) => Vec::new(),
                    (Share::Parameters, Some(at)) => centres.swap_remove(at).2,
                    (Share::Gradients | Share::Parameters, _) => vec![0.0; layout.len()],
                };
                let linked = group.link.as_ref().map(|link| Arc::clone(link.centre()));
                let linked = match (index == last, membership.all()) {
                    (true, Some(all)) => Some(Arc::clone(all.centre())),
                    _ => linked,
                };
                set.set_centre(group.slot, linked.unwrap_or_else(|| Arc::new(centre)))?;
            }
            levels.push(Level { method, groups, memories, own });
        }
        if let Some(all) = membership.all() {
            set.set_heartbeat(all.heartbeat());
        }
        let looks = crate::evaluate::viewing(method.evaluate).is_some() && set.evaluation().is_some();
        if looks || membership.is_elastic() {
            set.set_centre(Slot::View, Arc::new(vec![0.0; layout.len()]))?;
        }
        let diverged = parts.iter().any(|part| part.diverged);
        Ok(Process {
            common: Arc::clone(common),
            set,
            workers: states,
            levels,
            membership,
            view,
            processes,
            at,
            settled,
            diverged,
            history,
            calibrated: Vec::new(),
            left_out: Vec::new(),
            began: (common.clock)(),
            before: at.elapsed,
            all_centre: Arc::default(),
            reasons: Vec::new(),
            is_reported: false,
        })
    }

    /// Trains until the budget is spent or the run is asked to stop.
    pub(crate) fn run(&mut self) -> Result<(), Error> {
        // Workers are made one after the other: time begins when they begin to train.
        self.began = (self.common.clock)();
        // If the run was stopped between a cycle's last step and its round, the next round reports the rate of an earlier step.
        let (at, members) = (self.at, self.run_workers());
        for worker in &mut self.workers {
            worker.rate = self.common.rate_after(&at, worker.in_cycle.saturating_sub(1), members);
        }
        loop {
            match self.turn() {
                Ok(None) => {}
                Ok(Some(reason)) => return self.finish(reason),
                Err(Error::Comm(CommError::Behind)) => self.rejoin()?,
                Err(Error::Comm(CommError::OutOfContact)) => self.train_alone()?,
                Err(error) => return Err(error),
            }
        }
    }

    /// What is due, and a cycle. Returns why the run is over, if it is.
    fn turn(&mut self) -> Result<Option<Reason>, Error> {
        if self.settle()? {
            return Ok(Some(Reason::Spent));
        }
        self.publish_state()?;
        if self.cycle()? {
            // Nothing is lost: what is due here will be done after a resume.
            self.save(true, false)?;
            return Ok(Some(Reason::Interrupted));
        }
        Ok(None)
    }

    /// Does what is due: evaluates, saves. Returns whether the run is over.
    fn settle(&mut self) -> Result<bool, Error> {
        let common = Arc::clone(&self.common);
        let milestones = &common.milestones;
        let spent = milestones.is_spent(&self.at);
        let is_new = |history: &[Evaluated], at: &Position| {
            history.last().is_none_or(|last| last.at.steps != at.steps)
        };
        let due = self.settled.is_some_and(|before| milestones.evaluates(&before, &self.at));
        if (spent || due) && is_new(&self.history, &self.at) {
            self.evaluate()?;
        }
        let saves = self.settled.is_none_or(|before| milestones.saves(&before, &self.at));
        self.settled = Some(self.at);
        if spent || saves {
            self.save(false, spent)?;
        }
        Ok(spent)
    }

    /// One cycle: local steps, the exchange of messages, the round. Returns whether to stop.
    fn cycle(&mut self) -> Result<bool, Error> {
        let common = Arc::clone(&self.common);
        let quota = common.milestones.quota(&self.at);
        let shares_gradients = common.method.share == Share::Gradients;
        match shares_gradients {
            true => self.compute_gradients()?,
            false => self.local_steps(quota)?,
        }
        let full = self.workers.iter().all(|worker| worker.full);
        if !full && self.membership.is_elastic() && !common.together.load(Ordering::Relaxed) {
            // The others continue.
            return Err(Error::Left);
        }
        let is_round = common.milestones.is_round(self.at.steps + quota);
        if is_round && full {
            self.score(0)?;
        }
        let (heads, messages) = self.exchange()?;
        self.begin_clock(&heads);
        self.note_writers(&heads);
        self.elect_reporter(&heads);
        let stop = heads.iter().any(|(_, head)| head.stop);
        if messages.iter().any(|(_, message)| !message.full) {
            return Ok(true);
        }
        self.count_steps(&messages);
        let nobody = messages.iter().all(|(_, message)| !message.finite);
        // A round gives all workers the last finite centre: only the next round shows whether they stay finite.
        if nobody || is_round || shares_gradients {
            self.diverged = nobody;
        }
        common.pacing.renew(common.milestones.cycle(&self.at))?;
        let mut mixed = Vec::new();
        if shares_gradients {
            mixed.push(self.share_gradients(&messages)?);
            self.descend()?;
        } else if is_round {
            mixed = self.round(&messages, quota)?;
        }
        let elapsed = Duration::try_from_secs_f64(heads[0].1.elapsed).unwrap_or_default();
        let from = self.at.steps;
        self.at = Position {
            steps: from + common.milestones.advance(quota, &messages, common.pacing.is_even()),
            total: self.at.total + messages.iter().map(|(_, message)| message.steps).sum::<u64>(),
            rounds: self.at.rounds + u64::from(is_round || shares_gradients),
            elapsed: common.pacing.elapsed(from, elapsed),
        };
        self.workers.iter_mut().for_each(|worker| worker.in_cycle = 0);
        self.end_cycle();
        self.report_round(&messages, mixed);
        // Where each worker takes steps by itself, it sees a stop before the next one.
        Ok(stop && shares_gradients)
    }

    /// The number of workers of the run.
    fn run_workers(&self) -> usize {
        self.processes.iter().map(|(_, workers)| workers.len()).sum()
    }

    /// Takes the results of workers. Those that failed are lost; an error if none is left.
    pub(crate) fn take<T>(
        &mut self,
        results: PerWorker<T>,
        mut keep: impl FnMut(&mut WorkerState, T),
    ) -> Result<(), Error> {
        for (index, result) in results {
            match result {
                Ok(found) => {
                    if let Some(worker) = self.workers.iter_mut().find(|worker| worker.index == index) {
                        keep(worker, found);
                    }
                }
                Err(error) => self.lose(index, error),
            }
        }
        if !self.workers.is_empty() {
            return Ok(());
        }
        self.is_reported = true;
        let mut reasons = std::mem::take(&mut self.reasons);
        match reasons.len() {
            1 => Err(reasons.swap_remove(0)),
            _ => {
                let why: Vec<String> = reasons.iter().map(ToString::to_string).collect();
                Err(Error::NobodyLeft { why: why.join("; ") })
            }
        }
    }

    /// The indices of its workers in the set.
    pub(crate) fn indices(&self) -> Vec<usize> {
        self.workers.iter().map(|worker| worker.index).collect()
    }

    /// What the set needs for a cycle of local steps.
    pub(crate) fn cycle_of(&self, quota: u64, only: Option<u64>) -> Arc<Cycle> {
        let strength = |level: Option<&Level>| match level {
            Some(level) if level.method.prox > 0.0 => level.method.prox_a_step() as f32,
            _ => 0.0,
        };
        let (all, inner) =
            self.levels.split_last().map_or((None, &[][..]), |(all, inner)| (Some(all), inner));
        let prox = [strength(all), strength(inner.first())];
        let round_due = match &self.membership {
            Membership::Elastic(all, _) => Some(all.round_due()),
            _ => None,
        };
        Arc::new(Cycle {
            common: Arc::clone(&self.common),
            at: self.at,
            quota,
            members: self.run_workers(),
            prox,
            norms: self.workers.iter().flat_map(|worker| &worker.trackers).any(Tracker::wants_norms),
            only,
            round_due,
        })
    }

    /// Local steps of all workers.
    fn local_steps(&mut self, quota: u64) -> Result<(), Error> {
        // An evaluation may have finished a round that overlaps with training.
        self.refresh_centre()?;
        let cycle = self.cycle_of(quota, None);
        if self.skips_steps() {
            for worker in &mut self.workers {
                // The rate is that of the others.
                (worker.full, worker.rate) = (true, cycle.rate_after(quota.saturating_sub(1)));
            }
            return Ok(());
        }
        let results = self.set.local_steps(&cycle, self.workers.clone());
        self.take(results, |worker, state| *worker = state)?;
        let now = (self.common.clock)();
        for worker in &mut self.workers {
            worker.tally.times.wait += now.saturating_sub(worker.done_at).as_secs_f64();
        }
        Ok(())
    }

    /// The gradients of the next step, to be shared.
    fn compute_gradients(&mut self) -> Result<(), Error> {
        let common = Arc::clone(&self.common);
        let start = (common.clock)();
        let keys: Vec<_> =
            self.workers.iter().map(|worker| (worker.index, worker.key(common.seed))).collect();
        let losses = self.set.gradients(&keys, common.method.radius.map(|radius| radius as f32));
        self.take(losses, |worker, loss| {
            worker.count(loss);
            worker.full = true;
        })?;
        let norms = self.set.norms(&self.indices());
        self.take(norms, |worker, norms| worker.norms = norms)?;
        self.spend(start);
        Ok(())
    }

    /// The step with the gradients that were shared.
    fn descend(&mut self) -> Result<(), Error> {
        let common = Arc::clone(&self.common);
        let start = (common.clock)();
        let cycle = self.cycle_of(1, None);
        let others = self.workers.first().map_or(0, |worker| worker.in_cycle.saturating_sub(1));
        let rate = cycle.rate_after(others);
        let finite = self.set.descend(&self.indices(), common.sgd, rate as f32, cycle.prox);
        self.take(finite, |worker, finite| {
            worker.rate = rate;
            worker.note(finite, &common, &cycle.at);
        })?;
        self.spend(start);
        Ok(())
    }

    /// Counts the time since `start` as computing of all workers.
    fn spend(&mut self, start: Duration) {
        let spent = (self.common.clock)().saturating_sub(start);
        for worker in &mut self.workers {
            worker.spend(spent, self.set.waits(worker.index));
        }
    }

    /// Computes the scores of a level that scores a batch.
    fn score(&mut self, level: usize) -> Result<(), Error> {
        let Level { method, memories, groups, .. } = &self.levels[level];
        let Score::Norm { from: grawa_core::Source::Batch { common, dropout }, .. } = method.score else {
            return Ok(());
        };
        let key = |worker: &WorkerState| {
            let group = groups.iter().position(|group| group.contains(&worker.id)).unwrap_or(0);
            let who = if common { 0 } else { worker.id };
            let key = grawa_core::Key::new(self.common.seed, grawa_core::Purpose::ScoreBatch);
            (worker.index, key.worker(who).step(memories[group].rounds))
        };
        let keys: Vec<_> = self.workers.iter().map(key).collect();
        let start = (self.common.clock)();
        let norms = self.set.score(&keys, dropout);
        self.take(norms, |worker, norms| worker.norms = norms)?;
        let spent = (self.common.clock)().saturating_sub(start).as_secs_f64();
        for worker in &mut self.workers {
            let (queue, data) = self.set.waits(worker.index);
            worker.tally.times.queue += queue;
            worker.tally.times.score += (spent - queue - data).max(0.0);
        }
        Ok(())
    }

    /// Sends the messages of its workers to all processes. Returns those of all.
    fn exchange(&mut self) -> Result<(Vec<(u32, ProcessMessage)>, Messages), Error> {
        let gradients = self.common.method.share == Share::Gradients;
        let message = |worker: &WorkerState| {
            let mut report = worker.report(0);
            if gradients {
                report.finite = worker.norms.iter().all(|norm| norm.is_finite());
            }
            (worker.id, worker.message(report))
        };
        let mine = ProcessMessage {
            stop: self.common.stop.load(Ordering::Relaxed),
            keeps: self.common.snapshots.is_some(),
            elapsed: self.elapsed().as_secs_f64(),
            workers: self.workers.iter().map(message).collect(),
            ..self.reporter_state()
        };
        let sent: Vec<Tally> =
            self.workers.iter_mut().map(|worker| std::mem::take(&mut worker.tally)).collect();
        let gathered = self.gather(mine);
        let heads = gathered.as_deref().unwrap_or_default();
        let messages: Messages = heads.iter().flat_map(|(_, head)| head.workers.iter().cloned()).collect();
        if messages.is_empty() || messages.iter().any(|(_, message)| !message.full) {
            // It will be sent again: at once, or after a resume, which continues as if there had been no exchange.
            for (worker, sent) in self.workers.iter_mut().zip(sent) {
                worker.tally.bytes = 0;
                worker.tally += sent;
            }
        }
        Ok((gathered?, messages))
    }

    /// Gathers the messages of all processes, and counts what that took.
    fn gather(&mut self, mine: ProcessMessage) -> Result<Vec<(u32, ProcessMessage)>, Error> {
        // Every worker counts as if it had sent its own part: the record does not depend on how workers are placed.
        let sizes: Vec<u64> = mine.workers.iter().map(|(_, message)| message.bytes()).collect();
        let Some(all) = self.membership.all() else {
            self.workers.iter_mut().zip(sizes).for_each(|(worker, bytes)| worker.tally.bytes += bytes);
            self.processes = vec![(0, mine.workers.iter().map(|(worker, _)| *worker).collect())];
            return Ok(vec![(0, mine)]);
        };
        let gathered = all.gather(&encode(&mine)?)?;
        for (worker, bytes) in self.workers.iter_mut().zip(sizes) {
            worker.tally.bytes += bytes;
            worker.tally.times.wait += gathered.outcome.wait.as_secs_f64();
            worker.tally.times.wire += gathered.outcome.work.as_secs_f64();
        }
        let mut heads = (gathered.messages.iter())
            .map(|(process, bytes)| Ok((*process, decode::<ProcessMessage>(*process, bytes)?)))
            .collect::<Result<Vec<_>, Error>>()?;
        if self.membership.is_elastic() {
            keep_own_workers(&mut heads);
        }
        let ids = |head: &ProcessMessage| head.workers.iter().map(|(worker, _)| *worker).collect();
        self.processes = heads.iter().map(|(process, head)| (*process, ids(head))).collect();
        self.refresh_centre()?;
        self.report_lost(&gathered.outcome.lost);
        Ok(heads)
    }

    /// Where rounds overlap with training, a centre arrives with the next operation.
    fn refresh_centre(&mut self) -> Result<(), Error> {
        let Some(all) = self.membership.all() else { return Ok(()) };
        if Arc::ptr_eq(all.centre(), &self.all_centre) {
            return Ok(());
        }
        self.all_centre = Arc::clone(all.centre());
        self.set.set_centre(Slot::All, Arc::clone(&self.all_centre))
    }

    pub(crate) fn place(&self) -> Place {
        self.common.milestones.place(&self.at)
    }

    /// Training time by this process's clock.
    fn elapsed(&self) -> Duration {
        self.before + (self.common.clock)().saturating_sub(self.began)
    }

    /// Workers that joined first have waited for the others: at the first exchange of the run every clock is set to the time that the
    /// first process had spent on its steps.
    fn begin_clock(&mut self, heads: &[(u32, ProcessMessage)]) {
        if self.membership.is_elastic() && self.at == Position::default() {
            let spent = heads.first().map_or(0.0, |(_, head)| head.elapsed);
            self.before = Duration::try_from_secs_f64(spent).unwrap_or_default();
            self.began = (self.common.clock)();
        }
    }

    /// Says how the run ended.
    fn finish(&mut self, reason: Reason) -> Result<(), Error> {
        let message = |worker: &mut WorkerState| {
            worker.past.add(&worker.tally);
            worker.tally = Tally::default();
            let tally =
                Tally { steps: worker.taken, loss: 0.0, times: worker.past.times, bytes: worker.past.bytes };
            (worker.id, RoundMessage { taken: worker.taken, tally, ..RoundMessage::default() })
        };
        let workers = self.workers.iter_mut().map(message).collect();
        let heads = self.gather(ProcessMessage { workers, ..self.reporter_state() })?;
        self.elect_reporter(&heads);
        self.report_end(&heads, reason);
        Ok(())
    }

    /// Processes that stalled; those that left report it themselves. A process that is lost to one group is lost to all, or the next
    /// group waits for it again, and this process stalls in turn.
    fn report_lost(&mut self, lost: &[Lost]) {
        for lost in lost.iter().filter(|lost| !lost.is_left()) {
            let inner =
                self.levels.iter().flat_map(|level| &level.own).filter_map(|group| group.link.as_ref());
            inner.chain(&self.view).for_each(|link| link.forget(lost));
            self.membership.all().into_iter().for_each(|all| all.forget(lost));
            self.report_lost_process(lost);
        }
    }
}

/// In an elastic group a process has numbers from its own up to the next process's. One that reports others takes part without workers.
fn keep_own_workers(heads: &mut [(u32, ProcessMessage)]) {
    let ends: Vec<u32> = heads.iter().skip(1).map(|(process, _)| *process).chain([u32::MAX]).collect();
    for ((process, head), end) in heads.iter_mut().zip(ends) {
        let ids = || head.workers.iter().map(|(worker, _)| *worker);
        if !ids().is_sorted_by(|a, b| a < b) || !ids().all(|worker| (*process..end).contains(&worker)) {
            head.workers.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_reports_its_own_workers_only() {
        let head = |workers: &[u32]| ProcessMessage {
            workers: workers.iter().map(|worker| (*worker, RoundMessage::default())).collect(),
            ..ProcessMessage::default()
        };
        let mut heads = vec![(0, head(&[0, 1])), (2, head(&[2, 4])), (4, head(&[5, 5])), (6, head(&[7]))];
        keep_own_workers(&mut heads);
        let left: Vec<usize> = heads.iter().map(|(_, head)| head.workers.len()).collect();
        assert_eq!(left, [2, 0, 0, 1]);
    }
}

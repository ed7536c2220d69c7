//! One process's side of a run: local steps of its workers, rounds, and what is due in between.
//!
//! Every process runs this loop with its set of workers. At the end of a cycle all processes exchange messages about all workers. What
//! follows is a function of these messages, so that all decide the same and there is no leader; one of them reports events. With one
//! process, or one worker in each, the mathematics is that of [`grawa_core::Sequential`], bit for bit, when the pace is even.

mod ending;
mod exchange;
mod report;
mod round;
mod steps;

pub use report::finite;
pub use round::Group;

use crate::Error;
use crate::event::{Evaluated, Event, Place, Reason, Round};
use crate::membership::Membership;
use crate::milestones::{Milestones, Position};
use crate::pace::Pacing;
use crate::reporter::SendReport;
use crate::round_message::{ProcessMessage, RoundMessage};
use crate::snapshot::{BestModel, Pending, Snapshot, Snapshots};
use crate::worker_set::{PerWorker, Slot, WorkerSet, WorkerState};
use grawa_comm::{Collective, Error as CommError};
use grawa_core::{Layout, Memory, Method, Optimizer, Schedule, Share, Tracker};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

/// The time since a fixed moment.
pub type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// The message of every worker of the run, in their order.
pub type Messages = Vec<(u32, RoundMessage)>;

/// What the loop, the workers and the supervisor share.
pub struct Common {
    pub method: Method,
    pub layout: Layout,
    pub optimizer: Optimizer,
    pub rate: Schedule,
    /// Workers whose steps are made slower, and how many times.
    pub slow: Vec<(u32, f64)>,
    pub seed: u64,
    pub milestones: Milestones,
    pub pacing: Pacing,
    pub stop: Arc<AtomicBool>,
    pub clock: Clock,
    pub notes: Sender<Note>,
    /// Sends reports to the coordinator, if there is one.
    pub reporter: Option<Arc<dyn SendReport>>,
    /// In an elastic group: all workers were asked to stop, not this process alone.
    pub together: Arc<AtomicBool>,
    pub snapshots: Option<Snapshots>,
}

impl Common {
    /// The learning rate of the step after `others` steps of the cycle that begins here.
    pub fn rate_after(&self, at: &Position, others: u64, workers: usize) -> f64 {
        // At a free pace no worker knows how far the others are: the rate is that of the beginning of the cycle.
        let ahead = if self.pacing.is_even() { others } else { 0 };
        self.rate.rate(&self.milestones.progress(at, ahead, workers))
    }
}

/// What the loop sends to the supervisor.
#[derive(Debug)]
pub enum Note {
    /// An event that the coordinator knows, if there is one.
    Event(Event),
    /// An event of this process, which the supervisor reports to the coordinator.
    Own(Event),
    /// A report could not be sent to the coordinator.
    NotReported(Error),
    Snapshot(Pending<Snapshot>),
    Best(Pending<BestModel>),
    /// The process is done with the run.
    Ended(Result<(), Error>),
}

/// One level of rounds.
pub struct Level {
    pub method: Method,
    /// All groups of the level.
    pub groups: Vec<Range<u32>>,
    /// The state of each group: all processes receive all reports, so all know it.
    pub memories: Vec<Memory>,
    /// The groups that have workers here.
    pub own: Vec<OwnGroup>,
}

/// A group that has workers in this process.
pub struct OwnGroup {
    /// Its number in the level.
    pub number: usize,
    pub slot: Slot,
    /// Connects its processes, where it is an inner group of several.
    pub link: Option<Box<dyn Collective>>,
}

/// What was due at the end of a cycle is done, and what follows.
enum Settled {
    /// The next cycle.
    Continues,
    /// Nothing: the budget is spent.
    Spent,
    /// Nothing: the run was asked to stop, and its evaluation was broken off.
    Stopped,
}

/// One process of a run.
pub struct Process {
    pub common: Arc<Common>,
    pub set: Box<dyn WorkerSet>,
    /// Its workers that are left, in order.
    pub workers: Vec<WorkerState>,
    /// The inner level, if there is one, then the level of all workers.
    pub levels: Vec<Level>,
    pub membership: Membership,
    /// Makes the model to be evaluated, where there are several processes.
    pub view: Option<Box<dyn Collective>>,
    /// The processes at the last exchange, and their workers.
    pub processes: Vec<(u32, Vec<u32>)>,
    /// Where the run was at the end of the last cycle, and up to where everything due was done.
    pub at: Position,
    pub settled: Option<Position>,
    /// No worker was finite at the last round, or at the end of the last cycle.
    pub diverged: bool,
    pub history: Vec<Evaluated>,
    /// The statistics of the last evaluated model, for the checkpoint, and where this process evaluated it.
    pub calibrated: Vec<f32>,
    pub evaluated_at: Option<Position>,
    /// The last round that was reported, by whichever process.
    pub(crate) last_round: Option<Round>,
    /// Workers that were left out of the last round.
    left_out: Vec<u32>,
    /// Workers whose loss was infinite.
    infinite: BTreeSet<u32>,
    /// What all workers should be warned of, once.
    pub(crate) warning: Option<String>,
    has_warned: bool,
    /// When it began by its clock, without evaluations, and how long it had trained before that.
    pub began: Duration,
    pub before: Duration,
    /// The spent share of the budget at the end of the cycle, and the learning rate: what methods that change go by.
    moment: (f64, f64),
    /// The centre of all that the set has, where there are several processes.
    pub(crate) all_centre: Arc<Vec<f32>>,
    /// Why workers were lost, and whether that was the end of this process.
    reasons: Vec<Error>,
    is_reported: bool,
    /// It missed the last round, and took the final state of the others.
    pub(crate) is_late: bool,
    /// All sessions have stopped together at this position.
    pub(crate) is_stopped: bool,
    /// The others have finished the run without it.
    pub(crate) has_missed_finish: bool,
    /// Workers that have no part in the final evaluated model: those that were late.
    pub(crate) without_part: BTreeSet<u32>,
}

/// What connects this process with the others.
pub struct Connections {
    pub membership: Membership,
    /// The processes and their workers, where they are known.
    pub processes: Vec<(u32, Vec<u32>)>,
    /// For the model to be evaluated.
    pub view: Option<Box<dyn Collective>>,
    /// For the inner groups that have workers here: number, and what connects their processes.
    pub inner: Vec<(usize, Option<Box<dyn Collective>>)>,
}

impl Process {
    /// A process that begins with this snapshot, whose parts are those of its workers, in the order of the set. `workers` are those of
    /// the run.
    pub fn new(
        common: &Arc<Common>,
        mut set: Box<dyn WorkerSet>,
        snapshot: Snapshot,
        workers: Range<u32>,
        connections: Connections,
    ) -> Result<Self, Error> {
        let Snapshot { at, settled, mut parts, memories, history, .. } = snapshot;
        let Connections { mut membership, processes, view, inner } = connections;
        let (method, layout) = (&common.method, &common.layout);
        let mut all_levels = method.levels(workers.end);
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
                    (Share::Gradients | Share::Parameters, _) => {
                        vec![0.0; method.centre.state_len(layout.len())]
                    }
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
        set.set_stop(Arc::clone(&common.stop));
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
            evaluated_at: None,
            last_round: None,
            left_out: Vec::new(),
            infinite: BTreeSet::new(),
            warning: None,
            has_warned: false,
            began: (common.clock)(),
            before: at.elapsed,
            moment: (0.0, 0.0),
            all_centre: Arc::default(),
            reasons: Vec::new(),
            is_reported: false,
            is_late: false,
            is_stopped: false,
            has_missed_finish: false,
            without_part: BTreeSet::new(),
        })
    }

    /// Trains until the budget is spent or the run is asked to stop.
    pub fn run(&mut self) -> Result<(), Error> {
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
                Ok(Some(reason)) => match self.finish(reason) {
                    // Another coordinator continues from the final state: all end once more.
                    Err(Error::Comm(CommError::Behind)) => self.rejoin()?,
                    ended => return ended,
                },
                Err(Error::Comm(CommError::Behind)) => self.rejoin()?,
                // The others have stopped without waiting for it.
                Err(Error::Comm(CommError::Over)) if self.is_asked_to_stop_together() => {
                    self.end_alone(Reason::Interrupted);
                    return Ok(());
                }
                Err(Error::Comm(CommError::OutOfContact)) => self.train_alone()?,
                Err(error) => return Err(error),
            }
        }
    }

    /// What is due, and a cycle. Returns why the run is over, if it is.
    fn turn(&mut self) -> Result<Option<Reason>, Error> {
        match self.settle()? {
            Settled::Spent => return Ok(Some(Reason::Spent)),
            Settled::Stopped => {
                // Nothing is lost: the evaluation is still due after a resume.
                self.save(true, false)?;
                return Ok(Some(Reason::Interrupted));
            }
            Settled::Continues => {}
        }
        self.publish_state()?;
        if self.cycle()? {
            // Nothing is lost: what is due here will be done after a resume.
            self.save(true, false)?;
            return Ok(Some(Reason::Interrupted));
        }
        Ok(None)
    }

    /// Does what is due: evaluates, saves.
    fn settle(&mut self) -> Result<Settled, Error> {
        let common = Arc::clone(&self.common);
        let milestones = &common.milestones;
        let spent = milestones.is_spent(&self.at);
        if spent {
            self.final_barrier()?;
        }
        let is_new = |history: &[Evaluated], at: &Position| {
            history.last().is_none_or(|last| last.at.steps != at.steps)
        };
        let due = self.settled.is_some_and(|before| milestones.evaluates(&before, &self.at));
        if (spent || due) && is_new(&self.history, &self.at) {
            if !self.evaluate()? {
                return Ok(Settled::Stopped);
            }
            self.keep_best()?;
        }
        let saves = self.settled.is_none_or(|before| milestones.saves(&before, &self.at));
        self.settled = Some(self.at);
        if spent || saves {
            self.save(false, spent)?;
        }
        Ok(if spent { Settled::Spent } else { Settled::Continues })
    }

    /// One cycle: local steps, the exchange of messages, the round. Returns whether to stop.
    pub(crate) fn cycle(&mut self) -> Result<bool, Error> {
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
        let is_round = common.milestones.is_round(&self.at);
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
        self.warn_if_alike(&messages);
        let nobody = messages.iter().all(|(_, message)| !message.finite);
        // A round gives all workers the last finite centre: only the next round shows whether they stay finite.
        let had_diverged = self.diverged;
        if nobody || is_round || shares_gradients {
            self.diverged = nobody;
        }
        // A worker that has just joined took no step.
        let rates = messages.iter().map(|(_, message)| message.rate).filter(|rate| rate.is_finite());
        let rate = rates.fold(0.0, f64::max);
        // A member may report any number of steps.
        let steps = messages.iter().map(|(_, message)| message.steps);
        let total = steps.fold(self.at.total, u64::saturating_add);
        let ahead = Position { steps: self.at.steps.saturating_add(quota), total, ..self.at };
        self.moment = (common.milestones.place(&ahead).share, rate);
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
            steps: from.saturating_add(common.milestones.advance(quota, &messages, common.pacing.is_even())),
            total,
            rounds: self.at.rounds + u64::from(is_round || shares_gradients),
            rate,
            is_rising: rate > self.at.rate,
            elapsed: common.pacing.elapsed(from, elapsed),
        };
        self.workers.iter_mut().for_each(|worker| worker.in_cycle = 0);
        self.end_cycle();
        self.report_round(&messages, mixed, had_diverged);
        // Where each worker takes steps by itself, it sees a stop before the next one.
        Ok(stop && shares_gradients)
    }

    /// The number of workers of the run.
    fn run_workers(&self) -> usize {
        self.processes.iter().map(|(_, workers)| workers.len()).sum()
    }

    /// Takes the results of workers. Those that failed are lost; an error if none is left.
    pub fn take<T>(
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
    pub fn indices(&self) -> Vec<usize> {
        self.workers.iter().map(|worker| worker.index).collect()
    }

    pub fn place(&self) -> Place {
        self.common.milestones.place(&self.at)
    }

    /// Training time by this process's clock.
    pub(crate) fn elapsed(&self) -> Duration {
        self.before.saturating_add((self.common.clock)().saturating_sub(self.began))
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
}

/// The error of a worker that panicked.
pub fn broke_down(worker: u32, panic: &(dyn std::any::Any + Send)) -> Error {
    let why = panic.downcast_ref::<String>().cloned();
    let why = why.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
    Error::BrokeDown { worker, why: why.unwrap_or_default() }
}

//! A worker: local steps, rounds, and what is due in between.
//!
//! Every worker runs this loop and communicates with the others through its members of the groups. At the end of a cycle all workers
//! exchange messages. What follows is a function of these messages, so that all decide the same and there is no leader; one of them
//! reports events. The mathematics is that of [`grawa_core::Sequential`], bit for bit, when the pace is even.

use crate::elastic::Elastic;
use crate::engine::{EvaluateShard, WaitTimes};
use crate::event::{Event, Fault, Finished, Mixed, Place, Reason, Round, Share as WorkerShare};
use crate::event_codec::Report as EventReport;
use crate::milestones::{Milestones, Position};
use crate::pace::Pacing;
use crate::round_message::{RoundMessage, Tally};
use crate::run::WorkerParts;
use crate::snapshot::{Past, Snapshots};
use crate::{Error, Evaluated};
use grawa_comm::group::Reporter;
use grawa_comm::{Collective, Error as CommError, Lost, Why};
use grawa_core::{
    Key, Layout, Memory, Method, Plan, Prox, Purpose, Replica, Report, Schedule, Score, Sgd, Share, Source,
    StepRequest, Tracker, plan,
};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

/// The time since a fixed moment.
pub(crate) type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// The message of every worker, in their order.
type Messages = Vec<(u32, RoundMessage)>;

/// What all workers of a run share.
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
    pub(crate) teller: Option<Reporter>,
    /// In an elastic group: all workers were asked to stop, not this one alone.
    pub(crate) together: Arc<AtomicBool>,
    pub(crate) snapshots: Option<Snapshots>,
}

/// What a worker sends to the supervisor.
#[derive(Debug)]
pub(crate) enum Note {
    Event(Event),
    /// A report could not be sent to the coordinator.
    NotReported(Error),
    Snapshot(Box<crate::snapshot::Snapshot>),
    Ended {
        worker: u32,
        why: Result<(), Error>,
    },
}

/// One level of rounds, as a worker sees it: its group, and the group's state.
#[derive(Debug)]
pub(crate) struct Level<C> {
    pub(crate) method: Method,
    pub(crate) member: C,
    /// All groups of the level, and which is this worker's.
    pub(crate) groups: Vec<Range<u32>>,
    pub(crate) own: usize,
    pub(crate) tracker: Tracker,
    /// The state of each group: all workers receive all reports, so all know it.
    pub(crate) memories: Vec<Memory>,
}

/// A worker and its state.
pub(crate) struct Worker<R: Replica, C> {
    pub(crate) id: u32,
    pub(crate) common: Arc<Common>,
    pub(crate) replica: R,
    /// The inner level, if there is one, then the level of all workers.
    pub(crate) levels: Vec<Level<C>>,
    /// The group that makes the model to be evaluated.
    pub(crate) view: C,
    /// Measures that model.
    pub(crate) examiner: Option<Box<dyn EvaluateShard<R::Buffer>>>,
    pub(crate) waits: Option<Arc<WaitTimes>>,
    /// Where the run was at the end of the last cycle, and up to where everything due was done.
    pub(crate) at: Position,
    pub(crate) settled: Option<Position>,
    /// Its own steps: in all, and in this cycle.
    pub(crate) taken: u64,
    pub(crate) in_cycle: u64,
    /// The loss of its last batch, and whether its parameters are finite.
    pub(crate) loss: f64,
    pub(crate) finite: bool,
    /// No worker was finite at the last round, or at the end of the last cycle.
    pub(crate) diverged: bool,
    pub(crate) tally: Tally,
    pub(crate) past: Past,
    pub(crate) history: Vec<Evaluated>,
    /// The statistics of the last evaluated model, for the checkpoint.
    pub(crate) calibrated: Vec<f32>,
    pub(crate) norms: Vec<f64>,
    pub(crate) rate: f64,
    /// Workers that were left out of the last round.
    pub(crate) left_out: Vec<u32>,
    /// When it began by its clock, without evaluations, and how long it had trained before that.
    pub(crate) began: Duration,
    pub(crate) before: Duration,
    /// Whether it is the only worker of its process.
    pub(crate) apart: bool,
    /// Set if it is a member of an elastic group.
    pub(crate) elastic: Option<Elastic>,
}

impl<R: Replica, C> Worker<R, C> {
    /// A worker before its first step.
    pub(crate) fn new(
        common: &Arc<Common>,
        id: u32,
        parts: WorkerParts<R>,
        levels: Vec<Level<C>>,
        view: C,
    ) -> Self {
        Worker {
            id,
            common: Arc::clone(common),
            replica: parts.replica,
            levels,
            view,
            examiner: parts.examiner,
            waits: parts.waits,
            at: Position::default(),
            settled: None,
            taken: 0,
            in_cycle: 0,
            loss: f64::NAN,
            finite: true,
            diverged: false,
            tally: Tally::default(),
            past: Past::default(),
            history: Vec::new(),
            calibrated: Vec::new(),
            norms: vec![0.0; common.layout.spans().len()],
            rate: 0.0,
            left_out: Vec::new(),
            began: (common.clock)(),
            before: Duration::ZERO,
            apart: false,
            elastic: None,
        }
    }
}

impl<R: Replica, C: Collective<Buffer = R::Buffer>> Worker<R, C> {
    /// Trains until the budget is spent or a worker is asked to stop.
    pub(crate) fn run(&mut self) -> Result<(), Error> {
        // Workers are made one after the other: time begins when they begin to train.
        self.began = (self.common.clock)();
        // If the run was stopped between a cycle's last step and its round, the next round reports the rate of an earlier step.
        self.rate = self.rate_after(self.in_cycle.saturating_sub(1));
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
        let full = if shares_gradients {
            let start = (common.clock)();
            self.gradient()?;
            self.spend(start);
            true
        } else if self.skips_steps() {
            // It takes no step; the rate is that of the others.
            self.rate = self.rate_after(quota.saturating_sub(1));
            true
        } else {
            self.local_steps(quota)?
        };
        if !full && self.elastic.is_some() && !common.together.load(Ordering::Relaxed) {
            // The others continue.
            return Err(Error::Left);
        }
        let is_round = common.milestones.is_round(self.at.steps + quota);
        if is_round && full {
            self.score(0)?;
        }
        let (messages, lost) = self.exchange(full)?;
        self.begin_clock(&messages);
        self.note_writers(&messages);
        self.elect_reporter(&messages);
        self.report_lost(&lost);
        let stop = messages.iter().any(|(_, message)| message.stop);
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
            let start = (common.clock)();
            self.descend()?;
            self.spend(start);
        } else if is_round {
            mixed = self.round(&messages, quota)?;
        }
        let elapsed = Duration::try_from_secs_f64(messages[0].1.elapsed).unwrap_or_default();
        let from = self.at.steps;
        self.at = Position {
            steps: from + common.milestones.advance(quota, &messages, common.pacing.is_even()),
            total: self.at.total + messages.iter().map(|(_, message)| message.steps).sum::<u64>(),
            rounds: self.at.rounds + u64::from(is_round || shares_gradients),
            elapsed: common.pacing.elapsed(from, elapsed),
        };
        self.in_cycle = 0;
        self.end_cycle();
        self.report_round(&messages, mixed);
        // Where each worker takes steps by itself, it sees a stop before the next one.
        Ok(stop && shares_gradients)
    }

    /// The learning rate of the step after `others` steps of this cycle.
    fn rate_after(&self, others: u64) -> f64 {
        let common = &self.common;
        // At a free pace no worker knows how far the others are: the rate is that of the beginning of the cycle.
        let ahead = if common.pacing.is_even() { others } else { 0 };
        let members = self.levels.last().map_or(1, |level| level.member.members().len());
        common.rate.rate(&common.milestones.progress(&self.at, ahead, members))
    }

    /// Local steps until the cycle is full or a stop is requested. Returns whether it is full.
    fn local_steps(&mut self, quota: u64) -> Result<bool, Error> {
        let common = Arc::clone(&self.common);
        let members = self.all().member.members().len();
        let stride = self.replica.stride() as u64;
        let even = common.pacing.is_even();
        loop {
            if even && self.in_cycle >= quota {
                return Ok(true);
            }
            // Replicas in lock-step need a call from each: a worker that stops asks for no step, and none is taken.
            let stop = common.stop.load(Ordering::Relaxed);
            let place = (self.at.steps, common.milestones.cycle(&self.at), members);
            let called = || self.all().member.is_round_due();
            let asked = match (stop, even) {
                (true, _) => 0,
                (false, _) if !common.pacing.may_step(self.id, self.in_cycle, quota, place, called)? => {
                    return Ok(true);
                }
                (false, true) => stride.min(quota - self.in_cycle),
                (false, false) => 1,
            };
            let start = (common.clock)();
            let taken = self.take_steps(asked)?;
            self.spend(start);
            if taken == 0 {
                // At a free pace the rest of the cycle's steps are taken after a resume.
                return Ok(false);
            }
        }
    }

    /// Takes consecutive local steps. Returns how many were taken.
    pub(crate) fn take_steps(&mut self, asked: u64) -> Result<usize, Error> {
        let common = Arc::clone(&self.common);
        let rates: Vec<f64> = (0..asked).map(|step| self.rate_after(self.in_cycle + step)).collect();
        let norms = self.levels.iter().any(|level| level.tracker.wants_norms());
        let key = self.key();
        let taken = {
            let prox = pulls(&self.levels);
            self.replica.steps(&StepRequest {
                key,
                rates: &rates.iter().map(|&rate| rate as f32).collect::<Vec<_>>(),
                sgd: &common.sgd,
                radius: common.method.radius.map(|radius| radius as f32),
                prox: &prox,
                norms,
            })?
        };
        let spans = self.norms.len();
        for (step, (&loss, &finite)) in taken.losses.iter().zip(&taken.finite).enumerate() {
            if norms {
                self.norms.copy_from_slice(&taken.norms[step * spans..(step + 1) * spans]);
            }
            self.rate = rates[step];
            self.count(loss);
            self.note(finite);
        }
        Ok(taken.losses.len())
    }

    fn key(&self) -> Key {
        let (worker, step) = self.dealt().unwrap_or((self.id, self.taken));
        Key::new(self.common.seed, Purpose::Step).worker(worker).step(step)
    }

    /// The gradient of the next step, to be shared: SAM's where the method has a radius.
    fn gradient(&mut self) -> Result<(), Error> {
        let key = self.key();
        let loss = self.replica.gradient(key)?;
        if let Some(radius) = self.common.method.radius {
            self.replica.ascend(radius as f32)?;
            self.replica.gradient(key)?;
            self.replica.restore()?;
        }
        self.count(loss);
        Ok(())
    }

    /// The step with the gradient that was shared.
    fn descend(&mut self) -> Result<(), Error> {
        self.rate = self.rate_after(self.in_cycle.saturating_sub(1));
        let prox = pulls(&self.levels);
        let finite = self.replica.descend(&self.common.sgd, self.rate as f32, &prox)?;
        drop(prox);
        self.note(finite);
        Ok(())
    }

    fn count(&mut self, loss: f64) {
        self.loss = loss;
        self.taken += 1;
        self.in_cycle += 1;
        self.tally.steps += 1;
        self.tally.loss += loss;
    }

    /// Records a step, for the scores and for the others.
    fn note(&mut self, finite: bool) {
        let was_finite = std::mem::replace(&mut self.finite, finite);
        if was_finite && !finite && self.common.method.share == Share::Nothing {
            let what = "its parameters are not finite any more, and there is no centre to restore it from: \
                        start again with a smaller learning rate";
            self.say(Event::Fault(Fault { at: self.place(), worker: Some(self.id), what: what.into() }));
        }
        for level in &mut self.levels {
            level.tracker.step(self.loss, &self.norms, finite);
            level.member.alive();
        }
    }

    /// Counts the time since `start` as computing, without the time spent waiting.
    fn spend(&mut self, start: Duration) {
        let spent = (self.common.clock)().saturating_sub(start).as_secs_f64();
        let (queue, data) = self.waits.as_ref().map_or((0.0, 0.0), |waits| waits.take());
        self.tally.times.queue += queue;
        self.tally.times.data += data;
        self.tally.times.compute += (spent - queue - data).max(0.0);
    }

    pub(crate) fn all(&self) -> &Level<C> {
        self.levels.last().expect("every run has a level of all workers")
    }

    pub(crate) fn all_mut(&mut self) -> &mut Level<C> {
        self.levels.last_mut().expect("every run has a level of all workers")
    }

    /// Whether this worker is the first of all members.
    pub(crate) fn is_first(&self) -> bool {
        self.all().member.members().first() == Some(&self.id)
    }

    /// Reports events that all workers know: one of them sends them.
    pub(crate) fn report_shared(&mut self, events: Vec<Event>) {
        let at = self.place();
        let is_first = self.is_first();
        let (is_reporter, report) = match &mut self.elastic {
            None => (is_first, None),
            Some(elastic) => {
                let report = elastic.reports.add(&at, events.clone());
                (elastic.reports.is_reporter(), Some(report))
            }
        };
        if is_reporter {
            report.iter().for_each(|report| self.send_report(report));
            events.into_iter().for_each(|event| self.say(event));
        }
    }

    /// Sends a report to the coordinator at once, and not when the supervisor comes to it: so it is sent before this worker takes part in
    /// the next operation.
    pub(crate) fn send_report(&self, report: &EventReport) {
        let Some(teller) = &self.common.teller else { return };
        let sent = report.encode().and_then(|bytes| Ok(teller.report(bytes)?));
        if let Err(error) = sent {
            let _ = self.common.notes.send(Note::NotReported(error));
        }
    }

    /// Hands an event to the supervisor.
    pub(crate) fn say(&self, event: Event) {
        // There is no supervisor only when the run was given up: the next operation will fail.
        let _ = self.common.notes.send(Note::Event(event));
    }

    /// Workers that joined first have waited for the others: at the first exchange of the run every clock is set to the time that the
    /// first worker had spent on its steps.
    fn begin_clock(&mut self, messages: &[(u32, RoundMessage)]) {
        if self.elastic.is_some() && self.at == Position::default() {
            let spent = messages.first().map_or(0.0, |(_, message)| message.elapsed);
            self.before = Duration::try_from_secs_f64(spent).unwrap_or_default();
            self.began = (self.common.clock)();
        }
    }

    /// Training time by this worker's clock.
    fn elapsed(&self) -> Duration {
        self.before + (self.common.clock)().saturating_sub(self.began)
    }

    /// Computes the scores of a level that scores a batch.
    fn score(&mut self, level: usize) -> Result<(), Error> {
        let Level { method, memories, own, .. } = &self.levels[level];
        if let Score::Norm { from: Source::Batch { common, dropout }, .. } = method.score {
            let who = if common { 0 } else { self.id };
            let key = Key::new(self.common.seed, Purpose::ScoreBatch).worker(who).step(memories[*own].rounds);
            let start = (self.common.clock)();
            self.replica.score(key, dropout, &mut self.norms)?;
            let spent = (self.common.clock)().saturating_sub(start).as_secs_f64();
            let (queue, data) = self.waits.as_ref().map_or((0.0, 0.0), |waits| waits.take());
            self.tally.times.queue += queue;
            self.tally.times.score += (spent - queue - data).max(0.0);
        }
        Ok(())
    }

    fn report(&mut self, level: usize) -> Result<Report, Error> {
        let report = self.levels[level].tracker.report(self.id, &self.norms);
        let finite = match self.common.method.share {
            Share::Gradients => {
                self.replica.norms(&mut self.norms)?;
                self.norms.iter().all(|norm| norm.is_finite())
            }
            Share::Parameters | Share::Nothing => report.finite,
        };
        Ok(Report { finite, ..report })
    }

    /// Sends this worker's message to all, and returns the messages of all.
    fn exchange(&mut self, full: bool) -> Result<(Messages, Vec<Lost>), Error> {
        let report = self.report(0)?;
        let message = RoundMessage {
            stop: self.common.stop.load(Ordering::Relaxed),
            full,
            elapsed: self.elapsed().as_secs_f64(),
            steps: self.in_cycle,
            taken: self.taken,
            keeps: self.common.snapshots.is_some(),
            finite: report.finite,
            scores: report.scores,
            tally: std::mem::take(&mut self.tally),
            ..self.reporter_state()
        };
        let gathered = match self.all_mut().member.gather(&message.encode()?) {
            Ok(gathered) => gathered,
            Err(error) => {
                // No worker has received it: it will be sent again.
                self.tally += message.tally;
                return Err(error.into());
            }
        };
        self.tally.times.wait += gathered.outcome.wait.as_secs_f64();
        self.tally.times.wire += gathered.outcome.work.as_secs_f64();
        let messages = decode(&gathered.messages)?;
        if messages.iter().all(|(_, message)| message.full) {
            self.tally.bytes += gathered.outcome.bytes;
        } else {
            // The run stops here, and a resume continues as if there had been no exchange.
            self.tally += message.tally;
        }
        Ok((messages, gathered.outcome.lost))
    }

    /// The round: inside every group where there are groups, and of all workers where it is due.
    fn round(&mut self, messages: &[(u32, RoundMessage)], quota: u64) -> Result<Vec<Mixed>, Error> {
        let cycle = (self.at.steps + quota) / quota.max(1);
        let all = self.levels.len() - 1;
        let last = if self.common.method.is_outer(cycle) { all } else { all.saturating_sub(1) };
        let mut reports: Vec<Report> = messages.iter().map(|(id, message)| message.report(*id)).collect();
        let mut mixed = Vec::new();
        for level in 0..=last {
            if level > 0 {
                // The groups have moved: the scores of the level of all are computed again.
                self.score(level)?;
                let report = self.report(level)?;
                let message = RoundMessage {
                    finite: report.finite,
                    scores: report.scores,
                    steps: report.steps,
                    ..RoundMessage::default()
                };
                let gathered = self.all_mut().member.gather(&message.encode()?)?;
                self.tally.bytes += gathered.outcome.bytes;
                self.tally.times.wait += gathered.outcome.wait.as_secs_f64();
                self.tally.times.wire += gathered.outcome.work.as_secs_f64();
                self.report_lost(&gathered.outcome.lost);
                reports =
                    decode(&gathered.messages)?.iter().map(|(id, message)| message.report(*id)).collect();
            }
            mixed.extend(self.round_of(level, &reports)?);
            self.levels[level].tracker.round();
        }
        self.finite = true;
        Ok(mixed)
    }

    /// The round of a level: this worker's group is mixed, and all know the result of every group.
    fn round_of(&mut self, level: usize, reports: &[Report]) -> Result<Vec<Mixed>, Error> {
        let groups = self.levels[level].groups.clone();
        let mut mixed = Vec::with_capacity(groups.len());
        for (index, group) in groups.iter().enumerate() {
            let reports: Vec<Report> =
                reports.iter().filter(|report| group.contains(&report.worker)).cloned().collect();
            if reports.is_empty() {
                // All of the group were lost.
                continue;
            }
            let Level { method, own, memories, .. } = &self.levels[level];
            let plan = if index == *own {
                let plan = self.plan_and_mix(level, reports, false)?;
                let me = plan.workers.iter().position(|&worker| worker == self.id);
                if me.is_some_and(|me| plan.replaced[me]) {
                    self.replica.reset();
                }
                plan
            } else {
                plan(method, &self.common.layout, &memories[index], &reports)?
            };
            mixed.push(told(&plan));
            self.note_left_out(&plan);
            self.levels[level].memories[index] = plan.memory;
        }
        Ok(mixed)
    }

    fn share_gradients(&mut self, messages: &[(u32, RoundMessage)]) -> Result<Mixed, Error> {
        let reports = messages.iter().map(|(id, message)| message.report(*id)).collect();
        let last = self.levels.len() - 1;
        let plan = self.plan_and_mix(last, reports, true)?;
        let mixed = told(&plan);
        self.note_left_out(&plan);
        self.levels[last].memories[0] = plan.memory;
        Ok(mixed)
    }

    /// Plans and mixes; if a worker is lost meanwhile, plans again without it.
    fn plan_and_mix(
        &mut self,
        level: usize,
        mut reports: Vec<Report>,
        gradients: bool,
    ) -> Result<Plan, Error> {
        loop {
            let Level { method, member, memories, own, .. } = &mut self.levels[level];
            let plan = plan(method, &self.common.layout, &memories[*own], &reports)?;
            let mine = if gradients { self.replica.gradients() } else { self.replica.parameters() };
            match member.mix(&plan, &self.common.layout, mine) {
                Ok(outcome) => {
                    self.tally.bytes += outcome.bytes;
                    self.tally.times.wait += outcome.wait.as_secs_f64();
                    self.tally.times.apply += outcome.work.as_secs_f64();
                    self.report_lost(&outcome.lost);
                    return Ok(plan);
                }
                Err(CommError::Shrunk { lost }) => {
                    let here = member.members().to_vec();
                    reports.retain(|report| here.contains(&report.worker));
                    self.report_lost(&lost);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reports workers that stalled; those that left report it themselves. A worker that is lost to one group is lost to all, or the next
    /// group waits for it again, and this worker stalls in turn.
    fn report_lost(&self, lost: &[Lost]) {
        for lost in lost.iter().filter(|lost| !matches!(lost.why, Why::Left | Why::Panicked)) {
            for member in self.levels.iter().map(|level| &level.member).chain([&self.view]) {
                member.forget(lost);
            }
            // In an elastic group the coordinator reports it.
            if self.is_first() && self.elastic.is_none() {
                let what = format!("{lost}: the run continues without it");
                self.say(Event::Fault(Fault { at: self.place(), worker: Some(lost.worker), what }));
            }
        }
    }

    pub(crate) fn place(&self) -> Place {
        self.common.milestones.place(&self.at)
    }

    fn report_round(&mut self, messages: &[(u32, RoundMessage)], mixed: Vec<Mixed>) {
        let own = messages.iter().find(|(worker, _)| *worker == self.id).map(|(_, message)| message.tally);
        let left_out = std::mem::take(&mut self.left_out);
        if !self.common.milestones.tells(&self.at) && left_out.is_empty() {
            self.tally += own.unwrap_or_default();
            return;
        }
        self.past.add(&own.unwrap_or_default());
        // The bytes of this round itself are the same for all, and belong to it.
        let bytes = std::mem::take(&mut self.tally.bytes);
        self.past.bytes += bytes;
        if !self.is_first() && self.elastic.is_none() {
            return;
        }
        let by_round = self.common.method.share == Share::Parameters;
        let shares = |(worker, message): &(u32, RoundMessage)| {
            let Tally { steps, loss, times, .. } = message.tally;
            WorkerShare {
                worker: *worker,
                // After a resume inside a cycle, all steps of the cycle.
                steps: if by_round { message.steps } else { steps },
                total: message.taken,
                loss: finite(loss / steps as f64),
                times,
            }
        };
        let steps: u64 = messages.iter().map(|(_, message)| message.tally.steps).sum();
        let loss: f64 = messages.iter().map(|(_, message)| message.tally.loss).sum();
        let round = Event::Round(Round {
            at: self.place(),
            rate: self.rate,
            loss: finite(loss / steps as f64),
            workers: messages.iter().map(shares).collect(),
            mixed,
            bytes: messages.iter().map(|(_, message)| message.tally.bytes + bytes).sum(),
        });
        let faults = self.left_out_faults(left_out, messages.len());
        self.report_shared([round].into_iter().chain(faults).collect());
    }

    fn note_left_out(&mut self, plan: &Plan) {
        let left_out = plan.workers.iter().zip(&plan.replaced).filter(|(_, lost)| **lost);
        self.left_out.extend(left_out.map(|(worker, _)| *worker));
    }

    /// Which workers were not finite in this round.
    fn left_out_faults(&self, mut left_out: Vec<u32>, members: usize) -> Vec<Event> {
        let fault = |worker, what| Event::Fault(Fault { at: self.place(), worker, what });
        left_out.sort_unstable();
        left_out.dedup();
        if !left_out.is_empty() && left_out.len() == members {
            let what = "no worker is finite any more: start again with a smaller learning rate";
            return vec![fault(None, what.into())];
        }
        let what = match self.common.method.share {
            Share::Gradients => "gradient is not finite: this step is taken without it",
            _ => "parameters are not finite: it continues from the centre, without its momentum",
        };
        left_out.iter().map(|worker| fault(Some(*worker), format!("worker {worker}'s {what}"))).collect()
    }

    fn finish(&mut self, reason: Reason) -> Result<(), Error> {
        self.past.add(&self.tally);
        let message = RoundMessage {
            taken: self.taken,
            tally: Tally { steps: self.taken, loss: 0.0, times: self.past.times, bytes: self.past.bytes },
            ..self.reporter_state()
        };
        let gathered = self.all_mut().member.gather(&message.encode()?)?;
        let messages = decode(&gathered.messages)?;
        self.elect_reporter(&messages);
        // A worker in its own process has its own supervisor.
        if self.is_first() || self.apart {
            let bytes = messages.iter().map(|(_, message)| message.tally.bytes).sum();
            let share = |(worker, RoundMessage { taken, tally, .. }): &(u32, RoundMessage)| WorkerShare {
                worker: *worker,
                steps: *taken,
                total: *taken,
                loss: None,
                times: tally.times,
            };
            let (workers, diverged) = (messages.iter().map(share).collect(), self.diverged);
            self.say(Event::Finished(Finished { at: self.place(), reason, workers, bytes, diverged }));
        }
        Ok(())
    }
}

fn decode(messages: &[(u32, Vec<u8>)]) -> Result<Messages, Error> {
    messages.iter().map(|(worker, bytes)| Ok((*worker, RoundMessage::decode(*worker, bytes)?))).collect()
}

/// The light pulls of a step. That to the centre of all comes before that of the group, as in the authors' code.
fn pulls<C: Collective>(levels: &[Level<C>]) -> Vec<Prox<'_, C::Buffer>> {
    (levels.iter().rev())
        .filter(|level| level.method.prox > 0.0)
        .map(|level| Prox { centre: level.member.centre(), strength: level.method.prox_a_step() as f32 })
        .collect()
}

fn told(plan: &Plan) -> Mixed {
    Mixed {
        workers: plan.workers.clone(),
        weights: plan.weights.rows().map(<[f32]>::to_vec).collect(),
        pull: plan.pull,
        reasons: plan.reasons.iter().map(ToString::to_string).collect(),
    }
}

pub(crate) fn finite(x: f64) -> Option<f64> {
    Some(x).filter(|x| x.is_finite())
}

//! A session: the part of a worker in a run, for a training loop that calls the library.
//!
//! It is the loop of a process with one worker. That loop calls a set of workers; here the caller takes the steps, and lends its
//! parameters for each round. So membership, rounds, recovery and reports are those of every other run.

#[cfg(feature = "group")]
use crate::Format;
#[cfg(feature = "group")]
use crate::enter::Entered;
use crate::event::{Event, Finished, Reason, Round, Started};
use crate::membership::Membership;
use crate::process::{Clock, Common, Connections, Note, Process};
use crate::pushed_worker::{Pushed, PushedWorker};
use crate::reporter::SendReport;
#[cfg(feature = "group")]
use crate::snapshot::GroupCheckpoint;
use crate::snapshot::{Part, Snapshot, fresh};
use crate::worker_set::{Cycle, Slot, WorkerSet};
use crate::{Error, Leases, OwnReports, Pace, Pacing, Settings, Stop};
#[cfg(feature = "group")]
use grawa_comm::group::{Joiner, TransferOptions};
use grawa_comm::{Error as CommError, Transport};
use grawa_core::{Evaluate, Key, Layout, Progress, Prox, Pull, Schedule, Sgd};
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// What the caller does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// A local step, then [`Session::step`].
    Step,
    /// [`Session::round`].
    Round,
    /// [`Session::evaluated_model`]: all workers make the model to be evaluated.
    Evaluate,
    /// Nothing: the budget is spent, or all were asked to stop. [`Session::finish`] reports it.
    End,
}

impl Due {
    fn name(self) -> &'static str {
        match self {
            Due::Step => "a step",
            Due::Round => "a round",
            Due::Evaluate => "an evaluation",
            Due::End => "the end of the run",
        }
    }
}

/// A local step of the caller.
#[derive(Clone, Copy, Debug)]
pub struct LocalStep<'a> {
    /// The loss of its batch.
    pub loss: f64,
    /// The norm of each tensor's gradient, where [`Session::wants_norms`]; empty otherwise.
    pub norms: &'a [f64],
    /// The learning rate: for the record, and for methods that go by it (`slowmo`, `qsr`).
    pub rate: f64,
}

impl LocalStep<'_> {
    /// A step without norms.
    pub fn new(loss: f64, rate: f64) -> Self {
        LocalStep { loss, norms: &[], rate }
    }
}

/// How a round went for this worker.
#[derive(Clone, Debug, Default)]
pub struct RoundResult {
    /// Who took part, with which weights. `None` if none was held: the budget ended inside a cycle, or there is no connection.
    pub round: Option<Round>,
    /// The parameters were replaced and not pulled: drop the state of the optimizer.
    pub was_replaced: bool,
    /// There is no connection to the others. The caller continues to train; after each step the round is due again.
    pub is_alone: bool,
    /// What else happened, such as workers that were lost.
    pub events: Vec<Event>,
    /// What the caller should be warned of: two workers that do the same.
    pub warning: Option<String>,
}

/// The model that a method evaluates.
#[derive(Clone, Debug, PartialEq)]
pub struct EvaluatedModel {
    /// Its parameters.
    pub parameters: Vec<f32>,
    /// The average of all workers' statistics; empty where [`Settings::statistics`] has none.
    pub statistics: Vec<f32>,
}

/// The batch that scores this worker in the next round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreBatch {
    /// Draws the examples. Workers with a common batch have the same key.
    pub key: Key,
    /// Whether dropout is on.
    pub dropout: bool,
}

/// Which examples a worker reads next: it has every `of`-th example of an epoch, and is at `step` of its own batches.
/// [`crate::ExampleOrder`] draws the examples of such a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataShard {
    /// Its shard, from 0.
    pub shard: u32,
    /// Of how many.
    pub of: u32,
    /// The next batch of the shard.
    pub step: u64,
}

/// A worker's part in a run.
///
/// ```
/// use grawa_comm::threads;
/// use grawa_core::Layout;
/// use grawa_session::{Due, LocalStep, Session, Settings};
/// let settings = Settings::new("mean:period=4,pull=1".parse()?, Layout::flat(2), 3, "12step".parse()?);
/// // Three workers on threads; other transports connect processes.
/// std::thread::scope(|scope| {
///     for (worker, transport) in (0u8..).zip(threads::transports(3, std::time::Duration::from_secs(60))) {
///         let settings = &settings;
///         scope.spawn(move || -> Result<(), grawa_session::Error> {
///             let mut x = vec![1.0, 1.0];
///             let mut session = Session::over(&transport, settings, &mut x)?;
///             loop {
///                 match session.due() {
///                     Due::Step => {
///                         x.iter_mut().for_each(|x| *x -= 0.1 * (*x - f32::from(worker)));
///                         session.step(LocalStep::new(0.0, 0.1))?;
///                     }
///                     Due::Round => drop(session.round(&[], &mut x)?),
///                     Due::Evaluate => drop(session.evaluated_model(&x)?),
///                     Due::End => break,
///                 }
///             }
///             assert_eq!(session.finish()?.at.rounds, 3);
///             Ok(())
///         });
///     }
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Session {
    settings: Settings,
    process: Process,
    shared: Pushed,
    cycle: Arc<Cycle>,
    due: Due,
    /// The norms of the last step, which is counted when it is known whether the parameters are finite after it.
    last_norms: Option<Vec<f64>>,
    /// Steps whose loss and norms are still to come.
    unmeasured: u64,
    /// Whether a step had a learning rate above 0.
    has_rate: bool,
    /// A digest of the parameters before the first step of the cycle, and in how many rounds workers were compared by theirs.
    began_with: u64,
    compared: u32,
    /// Whether rounds fail for want of a connection.
    is_alone: bool,
    /// When the caller was last given something to do.
    given_at: Duration,
    notes: Receiver<Note>,
    reports: OwnReports,
    stop: Stop,
    reason: Reason,
    finished: Option<Finished>,
    /// Whether the run ended for this worker without the others, and whether they have ended it.
    has_ended_alone: bool,
    has_missed_end: bool,
    /// For how long the coordinator has been out of reach, if there is one, and how long that may last.
    out_of_contact: Option<Box<dyn Fn() -> Option<Duration> + Send + Sync>>,
    patience: Duration,
    /// Asks all others to stop together, where there is a coordinator.
    ask_all_to_stop: Option<Arc<dyn Fn() + Send + Sync>>,
    has_asked: bool,
}

impl Drop for Session {
    /// All were asked to stop together, and this worker leaves without the round in which the others would learn of it.
    fn drop(&mut self) {
        if self.stop.together.load(Ordering::Relaxed) && self.finished.is_none() {
            self.asker()();
        }
    }
}

/// How often a worker at the end of its budget looks for the coordinator.
const PAUSE: Duration = Duration::from_millis(100);
/// The workers that the run begins with are waited for this many times longer than the coordinator.
#[cfg(feature = "group")]
const FOUNDERS: u32 = 10;

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Session { settings, due, .. } = self;
        f.debug_struct("Session").field("settings", settings).field("due", due).finish_non_exhaustive()
    }
}

impl Session {
    /// A worker that joins a coordinator's run. If the coordinator has no definition of the run yet, these settings become it. If the run has begun, it continues from the state of the others. `parameters` are replaced
    /// by those that all start from.
    #[cfg(feature = "group")]
    pub fn join(joiner: Joiner, settings: &Settings, parameters: &mut [f32]) -> Result<Self, Error> {
        Session::join_from(joiner, settings, parameters, None)
    }

    /// The same with a [`Session::checkpoint`] of this run: if all workers were lost, the run continues from the newest one.
    #[cfg(feature = "group")]
    pub fn join_from(
        mut joiner: Joiner,
        settings: &Settings,
        parameters: &mut [f32],
        checkpoint: Option<&[u8]>,
    ) -> Result<Self, Error> {
        settings.check()?;
        if let Some(why) = crate::elastic::objection(&settings.method) {
            return Err(Error::NotElastic { why });
        }
        if joiner.workers != 1 {
            let why = "a session is one worker; join with one, and have a session for each";
            return Err(Error::NotInSession { method: settings.method.to_string(), why });
        }
        if settings.workers != joiner.founders {
            let (found, expected) = (settings.workers.to_string(), joiner.founders.to_string());
            return Err(Error::AnotherRun { what: "workers".into(), found, expected });
        }
        let (contact, patience) = (joiner.contact(), joiner.patience);
        joiner.wait_at_most(patience, patience.saturating_mul(FOUNDERS));
        settings.agree_with(&mut joiner)?;
        let pacing = match settings.pace {
            Pace::Even => Pacing::Even,
            Pace::Free => Pacing::Called,
        };
        let reporter = Arc::new(joiner.reporter());
        let checkpoint: Option<(GroupCheckpoint, Vec<f32>)> =
            checkpoint.map(|bytes| crate::round_message::decode(joiner.worker, bytes)).transpose()?;
        let options = TransferOptions { overlap: false, bf16: settings.wire == Format::Bf16 };
        let (asked, asks) = (reporter.clone(), reporter.clone());
        let is_stopped = Arc::<std::sync::atomic::AtomicBool>::default();
        let told = Arc::clone(&is_stopped);
        let started = Session::start(settings, pacing, Some(reporter), parameters, |common, set, start| {
            let (together, stop) = (Arc::clone(&common.together), Arc::clone(&common.stop));
            asked.on_stop(move || {
                told.store(true, Ordering::Relaxed);
                together.store(true, Ordering::Relaxed);
                stop.store(true, Ordering::Relaxed);
            });
            // All must enter with the same centre, and they bring parameters of their own; the first round replaces it.
            let (method, centre) = (&common.method, vec![0.0; start.parameters.len()]);
            let entered = Entered::new(joiner, method, settings.workers, centre, checkpoint, options)?;
            let is_late = entered.is_late();
            let mut process = entered.process(common, set, vec![start])?;
            if let Some(elastic) = process.membership.elastic_mut() {
                elastic.deals_batches = settings.pace == Pace::Free;
            }
            Ok((process, is_late))
        });
        let mut session = started.map_err(|error| match error {
            // A coordinator that is stopped sends all away.
            Error::Comm(CommError::Refused { .. }) if is_stopped.load(Ordering::Relaxed) => {
                Error::StoppedEarly
            }
            error => error,
        })?;
        session.out_of_contact = Some(Box::new(move || contact.lost_for()));
        session.ask_all_to_stop = Some(Arc::new(move || asks.ask_all_to_stop()));
        session.patience = patience;
        Ok(session)
    }

    /// A worker of a fixed number of processes; all must call it, with the same settings: otherwise all get an error
    /// that names the first one that differs. All start from the parameters of the first process.
    pub fn over(
        transport: &dyn Transport,
        settings: &Settings,
        parameters: &mut [f32],
    ) -> Result<Self, Error> {
        settings.agree_over(transport, parameters.len())?;
        let (rank, size) = (transport.rank(), transport.size());
        if size != settings.workers {
            return Err(Error::WrongWorkers { processes: size, workers: settings.workers });
        }
        let pacing = match settings.pace {
            Pace::Even => Pacing::Even,
            Pace::Free => Pacing::Leased(Leases::new(transport.tickets()?, rank == 0, 0, 0)),
        };
        Session::start(settings, pacing, None, parameters, |common, set, start| {
            let Snapshot { mut parts, memories, .. } =
                fresh(&common.method, &common.layout, vec![(start.parameters, Vec::new())])?;
            parts[0].worker = rank;
            let connections =
                crate::connect::connect(transport, &common.method, size, common.layout.len(), &parts)?;
            let snapshot = Snapshot { parts, memories, ..Snapshot::default() };
            Ok((Process::new(common, set, snapshot, 0..size, connections)?, false))
        })
    }

    /// A worker alone.
    pub fn alone(settings: &Settings, parameters: &mut [f32]) -> Result<Self, Error> {
        settings.check()?;
        if settings.workers != 1 {
            return Err(Error::WrongWorkers { processes: 1, workers: settings.workers });
        }
        // With nobody else the paces are the same.
        let settings = Settings { pace: Pace::Even, ..settings.clone() };
        Session::start(&settings, Pacing::Even, None, parameters, |common, set, start| {
            let snapshot = fresh(&common.method, &common.layout, vec![(start.parameters, Vec::new())])?;
            let (membership, processes) = (Membership::Alone, vec![(0, vec![0])]);
            let connections = Connections { membership, processes, view: None, inner: Vec::new() };
            Ok((Process::new(common, set, snapshot, 0..1, connections)?, false))
        })
    }

    /// Starts the process that `make` makes of the worker's part; it says whether the run had begun.
    fn start(
        settings: &Settings,
        pacing: Pacing,
        reporter: Option<Arc<dyn SendReport>>,
        parameters: &mut [f32],
        make: impl FnOnce(&Arc<Common>, Box<dyn WorkerSet>, Part) -> Result<(Process, bool), Error>,
    ) -> Result<Self, Error> {
        settings.check()?;
        expect("the parameters", parameters.len(), settings.layout.len())?;
        let (notes, inbox) = channel();
        let (started, stop) = (Instant::now(), Stop::default());
        let clock: Clock = Arc::new(move || started.elapsed());
        let milestones = settings.milestones();
        let common = Arc::new(Common {
            method: settings.method.clone(),
            layout: settings.layout.clone(),
            // The caller has an optimizer of its own.
            optimizer: Sgd::PLAIN.into(),
            slow: Vec::new(),
            rate: Schedule::constant(0.0)?,
            seed: settings.seed,
            milestones,
            pacing,
            stop: Arc::clone(&stop.asked),
            clock,
            notes,
            reporter,
            together: Arc::clone(&stop.together),
            snapshots: None,
        });
        let shared = Pushed::default();
        shared.lock().parameters = parameters.to_vec();
        let set = Box::new(PushedWorker { layout: settings.layout.clone(), shared: shared.clone() });
        let start = Part {
            parameters: parameters.to_vec(),
            velocity: Vec::new(),
            second_moment: Vec::new(),
            loss: f64::NAN,
            finite: true,
            ..Part::default()
        };
        let (mut process, mut is_late) = make(&common, set, start)?;
        if !is_late {
            match process.start_alike() {
                // The others have begun without it.
                Err(Error::Comm(CommError::Behind)) => {
                    process.rejoin()?;
                    is_late = true;
                }
                started => started?,
            }
        }
        let cycle = process.cycle_of(0, None);
        let mut session = Session {
            settings: settings.clone(),
            process,
            shared,
            cycle,
            due: Due::Step,
            last_norms: None,
            unmeasured: 0,
            has_rate: false,
            began_with: 0,
            compared: 0,
            is_alone: false,
            given_at: Duration::ZERO,
            notes: inbox,
            reports: OwnReports::default(),
            stop,
            reason: Reason::Spent,
            finished: None,
            has_ended_alone: false,
            has_missed_end: false,
            out_of_contact: None,
            patience: Duration::MAX,
            ask_all_to_stop: None,
            has_asked: false,
        };
        session.report_start(is_late)?;
        session.process.settled = Some(session.process.at);
        session.process.began = (common.clock)();
        if is_late && (session.process.is_spent() || session.process.is_stopped) {
            // The others wait for it at the end.
            session.hold_round()?;
            session.due = if session.due == Due::End { Due::End } else { Due::Evaluate };
        } else {
            session.begin_cycle()?;
        }
        parameters.copy_from_slice(&session.shared.lock().parameters);
        session.began_with = digest(parameters);
        Ok(session)
    }

    /// What is due.
    pub fn due(&self) -> Due {
        self.due
    }

    /// The number of this worker. It may change when this worker rejoins.
    pub fn worker(&self) -> u32 {
        self.process.workers[0].id
    }

    /// Whether [`Session::step`] needs the norm of each tensor's gradient.
    pub fn wants_norms(&self) -> bool {
        self.process.workers[0].trackers.iter().any(grawa_core::Tracker::wants_norms)
    }

    /// The batch whose gradient norms the next [`Session::round`] needs, if the method scores one.
    pub fn score_batch(&self) -> Option<ScoreBatch> {
        let (keys, dropout) = self.process.score_keys(0)?;
        keys.first().map(|(_, key)| ScoreBatch { key: *key, dropout })
    }

    /// Which examples this worker reads next. No example is given to two workers in an epoch; members that join or leave change it.
    /// At a free pace of an elastic group batches are given one by one, as the `step` of one shard of one.
    pub fn shard(&self) -> DataShard {
        self.shard_after(self.steps_taken())
    }

    /// The same for the time when this worker has taken so many steps, if nothing changes until then: to read ahead.
    pub fn shard_after(&self, taken: u64) -> DataShard {
        let worker = &self.process.workers[0];
        let elastic = self.process.membership.elastic().filter(|elastic| elastic.deals_batches);
        if let Some(step) = elastic.and_then(|elastic| elastic.counts.batch_of(worker.id, taken)) {
            return DataShard { shard: 0, of: 1, step };
        }
        let of = worker.division.map_or(self.settings.workers, |(_, of)| of);
        let step = worker.first + taken.saturating_sub(worker.since);
        DataShard { shard: worker.shard, of, step }
    }

    /// How many steps this worker has taken in all.
    pub fn steps_taken(&self) -> u64 {
        self.process.workers[0].taken
    }

    /// The progress of the run, for learning-rate schedules: all workers have the same, also one that joined late.
    pub fn progress(&self) -> Progress {
        let (at, cycle) = (&self.process.at, &self.cycle);
        let mut progress =
            self.process.common.milestones.progress(at, self.process.workers[0].in_cycle, cycle.members);
        if self.is_alone {
            // No round sets the clocks of all.
            progress.elapsed = progress.elapsed.max(self.process.elapsed());
        }
        progress
    }

    /// The workers of the last round; after the last one those that have the final model. They do not change when others leave then. A
    /// worker that has ended alone is not among them.
    pub fn members(&self) -> Vec<u32> {
        let is_alone = self.has_ended_alone || self.process.has_missed_finish;
        let all = self.process.processes.iter().flat_map(|(_, workers)| workers.iter().copied());
        all.filter(|worker| !is_alone || *worker != self.worker()).collect()
    }

    /// Whether the run has ended for this worker without the others: the coordinator was out of reach for longer than the joiner's patience,
    /// or they have ended it without this worker. Then its parameters are its own, and it has not the model of all.
    pub fn has_ended_alone(&self) -> bool {
        self.has_ended_alone
    }

    /// Whether that is because the others have ended the run without this worker.
    pub fn has_missed_end(&self) -> bool {
        self.has_missed_end
    }

    /// Whether all were asked to stop together.
    pub fn is_stopping(&self) -> bool {
        self.stop.together.load(Ordering::Relaxed) && self.stop.asked.load(Ordering::Relaxed)
    }

    /// Asks all others to stop together, from any thread; [`Session::stop`] does so with the next step. It does not keep this worker in the
    /// group.
    pub fn asker(&self) -> impl Fn() + Send + Sync + use<> {
        let ask = self.ask_all_to_stop.as_ref().map(Arc::downgrade);
        move || {
            if let Some(ask) = ask.as_ref().and_then(Weak::upgrade) {
                ask();
            }
        }
    }

    /// Ends the run when all were asked to stop together, in the place of what is due: for a caller that has left its loop. All wait for each
    /// other as at the end of the budget, and afterwards [`Due::End`] is due. The caller's parameters stay as they are.
    pub fn end_stopped(&mut self) -> Result<(), Error> {
        if self.due == Due::End {
            return Ok(());
        }
        if !self.is_stopping() {
            return Err(Error::NotDue { call: "end_stopped", due: self.due.name() });
        }
        if self.due == Due::Evaluate {
            // The others make a model of its parameters, and it has none to give.
            self.end_alone(Reason::Interrupted);
            return Ok(());
        }
        (self.unmeasured, self.last_norms) = (0, None);
        let worker = &mut self.process.workers[0];
        (worker.full, worker.digest) = (false, 0);
        self.is_alone = false;
        self.hold_round()?;
        if self.due != Due::End {
            self.end_alone(Reason::Interrupted);
        }
        self.pass_on_events().map(drop)
    }

    /// The centre after the last round.
    pub fn centre(&self) -> Arc<Vec<f32>> {
        let kept = Arc::clone(&self.shared.lock().centre);
        // The velocity of an outer optimizer follows it.
        match kept.get(..self.settings.layout.len()) {
            Some(centre) if centre.len() < kept.len() => Arc::new(centre.to_vec()),
            _ => kept,
        }
    }

    /// Pulls parameters lightly toward the centre, where the method has a prox term: to be called after each step of the optimizer.
    pub fn apply_prox(&self, parameters: &mut [f32]) -> Result<(), Error> {
        expect("the parameters", parameters.len(), self.settings.layout.len())?;
        let strength = self.cycle.prox[0];
        if strength > 0.0 {
            Prox { centre: &self.centre(), strength }.apply(parameters);
        }
        Ok(())
    }

    /// The strength of [`Session::apply_prox`]; zero where the method has no prox term.
    pub fn prox(&self) -> f32 {
        self.cycle.prox[0]
    }

    /// How to stop: from another thread, or a signal handler.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Counts a local step of the caller. Returns what is due.
    pub fn step(&mut self, step: LocalStep<'_>) -> Result<Due, Error> {
        self.check_norms(step.norms)?;
        let due = self.step_unmeasured(step.rate)?;
        self.measured(step.loss, step.norms)?;
        Ok(due)
    }

    /// Counts a local step whose loss and norms are not known yet: where they are on a device, reading them at each step would make it
    /// wait. [`Session::measured`] must be called for each such step before the next round.
    pub fn step_unmeasured(&mut self, rate: f64) -> Result<Due, Error> {
        self.expect_due("step", Due::Step)?;
        if self.settings.method.goes_by_rate() && !(rate.is_finite() && rate >= 0.0) {
            return Err(Error::WrongRate { found: rate });
        }
        self.has_rate |= rate > 0.0;
        let now = (self.process.common.clock)();
        let spent = now.saturating_sub(self.given_at);
        let worker = &mut self.process.workers[0];
        worker.count(rate);
        worker.spend(spent, (0.0, 0.0));
        worker.done_at = now;
        self.unmeasured += 1;
        if let Some(beat) = &self.shared.lock().heartbeat {
            beat();
        }
        if self.is_stopping() && !self.has_asked {
            self.has_asked = true;
            self.asker()();
        }
        self.due = self.step_or_round()?;
        self.given_at = now;
        Ok(self.due)
    }

    /// The loss of a step, and the norm of each tensor's gradient where [`Session::wants_norms`]: of the first step that was not measured.
    pub fn measured(&mut self, loss: f64, norms: &[f64]) -> Result<(), Error> {
        self.check_norms(norms)?;
        self.unmeasured = self.unmeasured.checked_sub(1).ok_or(Error::Unmeasured { steps: 0 })?;
        self.count_last_step(true);
        self.process.workers[0].measure(loss);
        self.last_norms = Some(norms.to_vec());
        Ok(())
    }

    /// Ends a cycle: a round with all workers, if one is due. `scores` are the norms of each tensor's gradient on the
    /// [`Session::score_batch`], empty where there is none. The parameters are pulled in place. If this worker was left behind, it takes
    /// the state of the others and takes part in their next round.
    pub fn round(&mut self, scores: &[f64], parameters: &mut [f32]) -> Result<RoundResult, Error> {
        let mut lent = std::mem::take(&mut self.shared.lock().parameters);
        lent.clear();
        lent.extend_from_slice(parameters);
        let result = self.round_owned(scores, &mut lent)?;
        parameters.copy_from_slice(&lent);
        self.shared.lock().parameters = lent;
        Ok(result)
    }

    /// The same without copies. If the round fails the vector may be empty.
    pub fn round_owned(&mut self, scores: &[f64], parameters: &mut Vec<f32>) -> Result<RoundResult, Error> {
        self.expect_due("round", Due::Round)?;
        if self.unmeasured > 0 {
            return Err(Error::Unmeasured { steps: self.unmeasured });
        }
        expect("the parameters", parameters.len(), self.settings.layout.len())?;
        let wanted = if self.settings.scores_batches() { self.settings.layout.spans().len() } else { 0 };
        expect("the scores", scores.len(), wanted)?;
        if self.has_no_rate(parameters) {
            return Err(Error::NoRate { method: self.settings.method.to_string() });
        }
        // All of them: a loop that may end early is not vectorized.
        let is_finite = parameters.iter().fold(true, |all, x| all & x.is_finite());
        self.count_last_step(is_finite);
        {
            let mut shared = self.shared.lock();
            shared.parameters = std::mem::take(parameters);
            shared.scores = scores.to_vec();
            shared.was_replaced = false;
        }
        // Workers that are alike are so from the beginning.
        let compares = self.compared < MOST_COMPARED && !matches!(self.process.membership, Membership::Alone);
        let found = if compares && is_finite { digest(&self.shared.lock().parameters) } else { 0 };
        let worker = &mut self.process.workers[0];
        worker.digest = if worker.in_cycle > 0 && found != self.began_with { found } else { 0 };
        (worker.finite, worker.full) = (is_finite, !self.stop.asked.load(Ordering::Relaxed));
        self.process.last_round = None;
        self.is_alone = false;
        self.hold_round()?;
        let mut result = RoundResult {
            round: self.process.last_round.take().filter(|round| !round.mixed.is_empty()),
            is_alone: self.is_alone,
            ..RoundResult::default()
        };
        if !self.is_alone && self.due != Due::End {
            let (milestones, at) = (&self.process.common.milestones, &self.process.at);
            // Since the last cycle of the others, if their state was taken meanwhile.
            let evaluates = self.process.settled.is_some_and(|before| milestones.evaluates(&before, at));
            match milestones.is_spent(at) || evaluates {
                true => self.due = Due::Evaluate,
                false => self.begin_cycle()?,
            }
        }
        let mut shared = self.shared.lock();
        *parameters = std::mem::take(&mut shared.parameters);
        result.was_replaced = shared.was_replaced;
        drop(shared);
        if compares {
            self.began_with = digest(parameters);
            self.compared += u32::from(result.round.is_some());
        }
        result.warning = self.process.warning.take();
        result.events = self.pass_on_events()?;
        self.given_at = (self.process.common.clock)();
        Ok(result)
    }

    /// The model that the method evaluates, made of the parameters of all workers; `None` if this worker lost its connection meanwhile.
    pub fn evaluated_model(&mut self, parameters: &[f32]) -> Result<Option<Vec<f32>>, Error> {
        Ok(self.evaluate(parameters, &[])?.map(|model| model.parameters))
    }

    /// The same with the average of all workers' running statistics, where [`Settings::statistics`] has some: means are averaged, and
    /// variances include the differences between workers.
    pub fn evaluate(
        &mut self,
        parameters: &[f32],
        statistics: &[f32],
    ) -> Result<Option<EvaluatedModel>, Error> {
        self.expect_due("evaluated_model", Due::Evaluate)?;
        expect("the parameters", parameters.len(), self.settings.layout.len())?;
        expect("the statistics", statistics.len(), self.settings.statistics.as_ref().map_or(0, Layout::len))?;
        self.shared.lock().parameters = parameters.to_vec();
        let made = loop {
            let made = self
                .make_evaluated(parameters)
                .and_then(|parameters| Ok((parameters, self.average_statistics(statistics)?)));
            match made {
                Ok((parameters, statistics)) => break Some(EvaluatedModel { parameters, statistics }),
                // The last model is made once more: there is no next round.
                Err(Error::Comm(CommError::Behind)) if self.process.is_spent() => self.hold_round()?,
                // The next round finds out.
                Err(Error::Comm(CommError::Behind | CommError::OutOfContact)) => break None,
                Err(Error::Comm(CommError::Over)) => self.miss_end(),
                Err(error) => return Err(error),
            }
            if self.due == Due::End || !self.process.is_spent() {
                break None;
            }
        };
        if made.is_none() && self.process.is_spent() && self.due != Due::End {
            self.end_alone(Reason::Spent);
        }
        if self.due != Due::End {
            self.begin_cycle()?;
        }
        self.given_at = (self.process.common.clock)();
        Ok(made)
    }

    fn make_evaluated(&mut self, parameters: &[f32]) -> Result<Vec<f32>, Error> {
        self.process.make_view()?;
        Ok(match self.settings.method.evaluate {
            Evaluate::Mean | Evaluate::Best => self.process.set.centre(Slot::View)?.to_vec(),
            Evaluate::Centre => self.centre().to_vec(),
            Evaluate::Each => parameters.to_vec(),
        })
    }

    fn average_statistics(&mut self, mine: &[f32]) -> Result<Vec<f32>, Error> {
        let Some(layout) = &self.settings.statistics else { return Ok(Vec::new()) };
        let wide = mine.iter().map(|&x| f64::from(x)).collect();
        let mine = vec![(self.process.workers[0].id, wide)];
        let all = self.process.gather_numbers(mine, layout.len(), false)?;
        let without_part = self.process.without_part(all.iter().map(|(worker, _)| *worker));
        let takes_part = |(worker, _): &(u32, Vec<f64>)| !without_part.contains(worker);
        let narrow = |(_, numbers): (u32, Vec<f64>)| numbers.into_iter().map(|x| x as f32).collect();
        let all: Vec<Vec<f32>> = all.into_iter().filter(takes_part).map(narrow).collect();
        Ok(crate::evaluate::average(layout, &all))
    }

    /// What an elastic group needs to continue if all of its workers are lost, see [`Session::join_from`]. `None` in other groups.
    pub fn checkpoint(&self) -> Result<Option<Vec<u8>>, Error> {
        let Membership::Elastic(all, elastic) = &self.process.membership else { return Ok(None) };
        let Some(held) = self.process.held(true)? else { return Ok(None) };
        // Between a round and the evaluation after it the centre is newer than the state that others can take.
        let centre = match elastic.published.is_empty() {
            true => all.newest_centre()?,
            false => Arc::clone(&elastic.published_centre),
        };
        Ok(Some(crate::round_message::encode(&(held, &*centre))?))
    }

    /// Reports the end of the run. All workers must call it when [`Due::End`] is due.
    pub fn finish(self) -> Result<Finished, Error> {
        Ok(self.finish_with_members()?.0)
    }

    /// The same with the workers that were there: of these the one with the lowest number is the first.
    pub fn finish_with_members(mut self) -> Result<(Finished, Vec<u32>), Error> {
        self.expect_due("finish", Due::End)?;
        match self.has_ended_alone {
            true => self.process.end_alone(self.reason),
            false => match self.process.finish(self.reason) {
                // Another coordinator goes on from the final state. This worker has done its part.
                Err(Error::Comm(CommError::Behind)) => self.process.end_alone(self.reason),
                finished => finished?,
            },
        }
        self.pass_on_events()?;
        let members = self.members();
        let finished = self.finished.clone().map(|finished| (finished, members));
        finished.ok_or_else(|| Error::NobodyLeft { why: "the run ended without a result".into() })
    }

    fn check_norms(&self, norms: &[f64]) -> Result<(), Error> {
        let wanted = if self.wants_norms() { self.settings.layout.spans().len() } else { 0 };
        expect("the norms of the gradient", norms.len(), wanted)
    }

    /// Whether the method goes by the learning rate and would undo the training of this cycle, since none of its steps had one. A schedule may
    /// begin or end at 0: then the steps have moved nothing, which shows where each cycle begins at the centre.
    fn has_no_rate(&self, parameters: &[f32]) -> bool {
        let (method, worker) = (&self.settings.method, &self.process.workers[0]);
        if !method.goes_by_rate() || worker.in_cycle == 0 || worker.rate > 0.0 {
            return false;
        }
        !self.has_rate || (method.pull == Pull::Fixed(1.0) && *self.centre() != *parameters)
    }

    fn expect_due(&self, call: &'static str, expected: Due) -> Result<(), Error> {
        if self.due == expected { Ok(()) } else { Err(Error::NotDue { call, due: self.due.name() }) }
    }

    /// The scores of the last step.
    fn count_last_step(&mut self, is_finite: bool) {
        if let Some(norms) = self.last_norms.take() {
            let common = Arc::clone(&self.process.common);
            let at = self.process.at;
            let worker = &mut self.process.workers[0];
            if !norms.is_empty() {
                worker.norms = norms;
            }
            worker.note(is_finite, &common, &at);
        }
    }

    fn step_or_round(&self) -> Result<Due, Error> {
        let worker = &self.process.workers[0];
        let goes_on = !self.is_alone
            && !self.stop.asked.load(Ordering::Relaxed)
            && self.cycle.may_step(worker, worker.in_cycle)?;
        Ok(if goes_on { Due::Step } else { Due::Round })
    }

    /// Ends the cycle with all others. A worker that was left behind takes their state and tries again. When the budget is spent, or all
    /// stop, all wait for each other.
    fn hold_round(&mut self) -> Result<(), Error> {
        loop {
            if self.is_stopping() {
                // Again: the coordinator may be another one by now.
                self.asker()();
            }
            let held = match self.process.is_spent() || self.process.is_stopped {
                true => Ok(self.process.is_stopped),
                false => self.process.cycle(),
            };
            let held = match held {
                Ok(stops) if stops || self.process.is_spent() => {
                    if stops {
                        self.process.stop_here();
                    }
                    self.process.final_barrier().map(|()| stops)
                }
                held => held,
            };
            let held = match held {
                Err(Error::Comm(CommError::Behind)) => match self.process.rejoin() {
                    Ok(()) => continue,
                    Err(error) => Err(error),
                },
                held => held,
            };
            match held {
                Ok(false) => return Ok(()),
                Ok(true) => {
                    (self.due, self.reason) = (Due::End, Reason::Interrupted);
                    return Ok(());
                }
                // The others have ended the run without waiting for it.
                Err(Error::Comm(CommError::Over)) => {
                    self.miss_end();
                    return Ok(());
                }
                Err(Error::Comm(CommError::OutOfContact)) if self.is_stopping() => {
                    self.end_alone(Reason::Interrupted);
                    return Ok(());
                }
                Err(Error::Comm(CommError::OutOfContact)) if self.stop.asked.load(Ordering::Relaxed) => {
                    return Err(CommError::OutOfContact.into());
                }
                Err(Error::Comm(CommError::OutOfContact)) => {
                    self.is_alone = true;
                    if self.settings.budget.is_spent(&self.progress()) {
                        if self.has_given_up() {
                            self.end_alone(Reason::Spent);
                            return Ok(());
                        }
                        std::thread::sleep(PAUSE);
                        self.is_alone = false;
                        continue;
                    }
                    self.due = match self.process.waits_for_examples() {
                        true => Due::Round,
                        false => Due::Step,
                    };
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether the coordinator has been out of reach for longer than this worker waits for it.
    fn has_given_up(&self) -> bool {
        self.out_of_contact
            .as_ref()
            .is_some_and(|lost_for| lost_for().is_none_or(|lost| lost > self.patience))
    }

    /// The run ends for this worker without the others.
    fn end_alone(&mut self, reason: Reason) {
        (self.due, self.reason, self.has_ended_alone) = (Due::End, reason, true);
    }

    /// The others have ended the run without this worker.
    fn miss_end(&mut self) {
        self.has_missed_end = true;
        self.end_alone(if self.is_stopping() { Reason::Interrupted } else { Reason::Spent });
    }

    /// All that was due is done: the next cycle begins, or the run ends.
    fn begin_cycle(&mut self) -> Result<(), Error> {
        let common = Arc::clone(&self.process.common);
        let at = self.process.at;
        self.process.settled = Some(at);
        if common.milestones.is_spent(&at) {
            self.due = Due::End;
            return Ok(());
        }
        match self.process.publish_state() {
            // The next round finds out.
            Ok(()) | Err(Error::Comm(CommError::Behind | CommError::OutOfContact)) => {}
            Err(error) => return Err(error),
        }
        self.cycle = self.process.cycle_of(common.milestones.quota(&at), None);
        self.due = match self.process.skips_steps() {
            true => Due::Round,
            false => self.step_or_round()?,
        };
        Ok(())
    }

    /// Reports that this worker begins.
    fn report_start(&mut self, resumed: bool) -> Result<(), Error> {
        let Settings { name, method, layout, workers, budget, batch, examples, seed, .. } = &self.settings;
        let milestones = &self.process.common.milestones;
        self.report(Event::Started(Started {
            at: milestones.place(&self.process.at),
            method: method.to_string(),
            network: name.clone(),
            data: "the caller's".into(),
            workers: *workers,
            batch: *batch,
            seed: *seed,
            budget: *budget,
            steps: milestones.steps(),
            parameters: layout.len(),
            spans: layout.spans().iter().map(|span| span.name().to_owned()).collect(),
            examples: *examples,
            resumed,
        }))
    }

    /// Sends an event of this worker to the coordinator, if there is one.
    fn report(&mut self, event: Event) -> Result<(), Error> {
        match &self.process.common.reporter {
            Some(reporter) => Ok(reporter.send(self.reports.next(event).encode()?)?),
            None => Ok(()),
        }
    }

    /// Takes what the loop has to say, and reports what the coordinator must know.
    fn pass_on_events(&mut self) -> Result<Vec<Event>, Error> {
        let mut events = Vec::new();
        while let Ok(note) = self.notes.try_recv() {
            match note {
                Note::Event(Event::Round(_)) => {}
                Note::Event(event) => events.push(event),
                Note::Own(event) => {
                    if let Event::Finished(end) = &event {
                        self.finished = Some(end.clone());
                    }
                    self.report(event.clone())?;
                    events.push(event);
                }
                Note::NotReported(error) => return Err(error),
                Note::Snapshot(_) | Note::Best(_) | Note::Ended(_) => {}
            }
        }
        Ok(events)
    }
}

/// In this many of its first rounds a worker is compared with the others.
const MOST_COMPARED: u32 = 16;

/// A digest of parameters, never 0: equal bits have equal ones. In lanes, to be as fast as reading.
fn digest(parameters: &[f32]) -> u64 {
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut lanes = [parameters.len() as u64; 8];
    for part in parameters.chunks(8) {
        for (lane, x) in lanes.iter_mut().zip(part) {
            *lane = (*lane ^ u64::from(x.to_bits())).wrapping_mul(FACTOR).rotate_left(23);
        }
    }
    let all = lanes.iter().fold(0u64, |all, lane| (all ^ lane).wrapping_mul(FACTOR).rotate_left(29));
    all.max(1)
}

fn expect(what: &str, found: usize, expected: usize) -> Result<(), Error> {
    match found == expected {
        true => Ok(()),
        false => Err(grawa_core::Error::WrongLength { what: what.into(), found, expected }.into()),
    }
}

#[cfg(all(test, feature = "group"))]
mod misbehaving_member_tests;

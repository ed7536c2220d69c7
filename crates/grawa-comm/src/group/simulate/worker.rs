//! A small worker: it trains a tiny vector with the real [`SocketMember`], and checks what all members must agree on. Part of
//! that is a ledger of the steps that were counted.

use super::faults::{Kind, SETTLED};
use super::scheduler::Process;
use super::{COORDINATOR, Schedule};
use crate::group::member::control_connection::Contact;
use crate::group::member::join::Joiner;
use crate::group::member::socket_member::SocketMember;
use crate::group::messages::{Proposal, StateVersion};
use crate::group::wire::tls::Security;
use crate::{Collective, Elastic, Error};
use grawa_core::{Layout, Memory, Method, Report, plan};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(super) const LENGTH: usize = 40;
/// Local steps per round.
pub(super) const PERIOD: u64 = 4;

/// What all members remember beside the centre.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Remembered {
    rounds: u64,
    memory: Memory,
    /// Steps counted so far, by token.
    ledger: BTreeMap<u64, u64>,
}

/// What a worker sends in an exchange of messages.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Message {
    /// It was asked to stop: there is no round.
    stops: bool,
    token: u64,
    /// Its steps that were counted before, and all it has taken.
    counted: u64,
    taken: u64,
    score: f64,
}

impl Message {
    /// A message from bytes, if what it says can be.
    fn read(bytes: &[u8]) -> Result<Self, String> {
        let message: Message = postcard::from_bytes(bytes).map_err(|error| error.to_string())?;
        let is_sound = message.score.is_finite() && message.counted <= message.taken;
        if is_sound { Ok(message) } else { Err(format!("{message:?} cannot be")) }
    }
}

/// Which exchange of messages this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exchange {
    Usual,
    FinalBarrier,
    Finish,
}

/// Of which build a worker is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Build {
    #[default]
    Same,
    /// The others cannot decode its messages. It refuses none.
    Garbled,
    /// The others decode its messages, and what they say cannot be. It refuses none.
    Wrong,
    /// The same, but it refuses what the others refuse, also its own message.
    Faulty,
}

/// What the schedule knows of a node's worker.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) is_alive: bool,
    pub(super) leaves: bool,
    pub(super) build: Build,
    pub(super) slowness: u32,
    pub(super) version: Option<StateVersion>,
    pub(super) uncounted: u64,
    pub(super) last_round: Duration,
    /// The longest from one round to the next when all should have settled.
    pub(super) longest: Duration,
}

struct Worker<'a> {
    process: &'a Process,
    schedule: &'a Schedule,
    node: usize,
    member: SocketMember,
    /// Makes the model to be evaluated.
    view: SocketMember,
    layout: Layout,
    token: u64,
    x: Vec<f32>,
    remembered: Remembered,
    taken: u64,
    /// The next round begins without local steps before it.
    at_once: bool,
    /// All were asked to stop.
    stops: Arc<AtomicBool>,
    contact: Contact,
}

/// The life of a worker's process.
pub(super) fn work(process: &Process, schedule: &Arc<Schedule>, node: usize, build: Build) {
    schedule.see(node, |seen| *seen = Seen { is_alive: true, build, slowness: 1, ..Seen::default() });
    if let Err(error) = join_and_train(process, schedule, node) {
        process.world.state().note(|| format!("node {node} ends: {error}"));
        // A worker may be refused: its port seems closed, or it is not one of the run. The run may end without one that was away.
        // Nothing else may end it.
        let is_away = schedule.kind == Kind::Any;
        let is_expected = match &error {
            Error::Refused { why } => {
                is_away && !why.contains("committed a result") && process.now() < SETTLED
            }
            Error::Over => is_away || schedule.see(node, |seen| seen.version.is_none()),
            _ => false,
        };
        if !is_expected && build == Build::Same {
            process.world.state().fail(|| format!("node {node}: {error}"));
        }
    }
    schedule.see(node, |seen| seen.is_alive = false);
}

fn join_and_train(process: &Process, schedule: &Arc<Schedule>, node: usize) -> Result<(), Error> {
    let environment = process.environment();
    let patience = Duration::from_secs(1000);
    let mut joiner =
        Joiner::start(&environment, (None, 1), COORDINATOR, Security::Plain, ("", None), patience)?;
    if joiner.charter.is_empty() {
        // Each would define the run in another way; one of them does.
        let (charter, trigger) = (vec![node as u8 + 1], schedule.is_free.then_some(PERIOD));
        joiner.propose(Proposal { charter, trigger, wait: None })?;
    }
    schedule.agree_on_charter(process, node, &joiner.charter);
    let stops = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&stops);
    let contact = joiner.contact();
    joiner.reporter().on_stop(move || asked.store(true, Ordering::Relaxed));
    let start = Remembered::default();
    let memory = postcard::to_stdvec(&start).unwrap();
    let mut centre = vec![1.0; LENGTH];
    // With the velocity of an outer optimizer.
    centre.resize(schedule.method.centre.state_len(LENGTH), 0.0);
    let (mut members, memory) = joiner.enter(memory, centre, &[LENGTH], schedule.options)?;
    let (view, member) = (members.remove(1), members.remove(0));
    let token = member.caller.client.token;
    let layout = Layout::new([("a", vec![17]), ("b", vec![LENGTH - 17])]).unwrap();
    let x = vec![1.0; LENGTH];
    let (remembered, taken, at_once) = (start, 0, memory.is_some());
    let mut worker = Worker {
        process,
        schedule,
        node,
        member,
        view,
        layout,
        token,
        x,
        remembered,
        taken,
        at_once,
        stops,
        contact,
    };
    if let Some(memory) = &memory {
        worker.adopt(memory);
    }
    worker.train()
}

impl Worker<'_> {
    fn train(&mut self) -> Result<(), Error> {
        loop {
            let turned =
                self.turn().and_then(|ends| if ends { self.finish().map(|()| true) } else { Ok(false) });
            let turned = match turned {
                Err(Error::Behind) => self.rejoin().map(|()| false),
                turned => turned,
            };
            match turned {
                Ok(true) => return Ok(()),
                Ok(false) if self.schedule.see(self.node, |seen| seen.leaves) => return Ok(()),
                Ok(false) => {}
                // The others have stopped without waiting for it, or will.
                Err(Error::Over | Error::OutOfContact) if self.stops() => return Ok(()),
                // Without contact it continues to train, if there is something left to train.
                Err(Error::OutOfContact) if self.is_spent() => self.process.sleep(Duration::from_millis(100)),
                Err(Error::OutOfContact) => {
                    self.step();
                    self.at_once = true;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// A cycle, or what is left to do when the budget is spent. Returns whether the run ends.
    fn turn(&mut self) -> Result<bool, Error> {
        if self.is_spent() {
            self.gather(Exchange::FinalBarrier)?;
            self.evaluate()?;
            return Ok(true);
        }
        for step in 0.. {
            let enough = match self.schedule.is_free {
                true => self.member.round_due()(),
                false => step >= PERIOD,
            };
            if enough || self.stops() || std::mem::take(&mut self.at_once) {
                break;
            }
            self.step();
        }
        self.round()
    }

    /// Says that it has ended.
    fn finish(&mut self) -> Result<(), Error> {
        match self.gather(Exchange::Finish) {
            // All is done, and nobody is left to agree with.
            Ok(_) | Err(Error::Over | Error::OutOfContact) => {}
            Err(error) => return Err(error),
        }
        let version = self.member.caller.client.state.lock().member.version;
        self.schedule.end(self.process, version, self.member.centre());
        self.process.world.state().note(|| format!("node {} has ended", self.node));
        Ok(())
    }

    fn rejoin(&mut self) -> Result<(), Error> {
        self.check_contact();
        let memory = self.member.rejoin()?;
        self.adopt(&memory);
        self.at_once = true;
        Ok(())
    }

    fn is_spent(&self) -> bool {
        self.schedule.budget.is_some_and(|budget| self.remembered.rounds >= budget)
    }

    fn stops(&self) -> bool {
        self.stops.load(Ordering::Relaxed)
    }

    /// Where only the disk of the coordinator is slow, no worker loses contact.
    fn check_contact(&self) {
        let is_lost = self.contact.lost_for().is_some_and(|lost| !lost.is_zero());
        if is_lost && self.schedule.kind == Kind::SlowDisk {
            self.process.world.state().fail(|| format!("node {} has lost contact", self.node));
        }
    }

    fn step(&mut self) {
        self.check_contact();
        let slowness = self.schedule.see(self.node, |seen| seen.slowness);
        let time = Duration::from_millis(80 + self.process.world.state().below(120));
        self.process.sleep(time * slowness);
        self.taken += 1;
        let (step, token) = (self.taken as f32, (self.token % 97) as f32);
        for (x, n) in self.x.iter_mut().zip(0u8..) {
            *x = 0.9 * *x + 0.1 * (step * 0.3 + token + f32::from(n)).sin();
        }
        self.member.heartbeat()();
    }

    fn counted(&self) -> u64 {
        self.remembered.ledger.get(&self.token).copied().unwrap_or(0)
    }

    /// Gathers, and checks that all members have the same messages of the same attempt, which begins from a committed state.
    fn gather(&mut self, exchange: Exchange) -> Result<Vec<(u32, Message)>, Error> {
        let held = self.member.caller.client.state.lock().member.version;
        let build = self.schedule.see(self.node, |seen| seen.build);
        let refuses = matches!(build, Build::Same | Build::Faulty);
        let check = |_, bytes: &[u8]| match Message::read(bytes) {
            Err(why) if refuses => Err(why),
            _ => Ok(()),
        };
        let message = self.message(build);
        let gathered = match exchange {
            Exchange::Usual => self.member.gather_readable(&message, &check),
            Exchange::FinalBarrier => self.member.final_barrier(&message, &check),
            Exchange::Finish => self.member.finish(&message, &check),
        }?;
        let op = self.member.next_operation() - 1;
        let epoch = self.member.caller.client.state.lock().member.epoch;
        self.schedule.agree(self.process, self.node, (epoch, op), &gathered.messages);
        self.schedule.assert_logged(self.process, self.node, held);
        let read = |(worker, bytes): &(u32, Vec<u8>)| match Message::read(bytes) {
            Ok(message) => Ok((*worker, message)),
            Err(why) => Err(Error::Message { why: format!("of worker {worker}: {why}") }),
        };
        let messages: Vec<(u32, Message)> = gathered.messages.iter().map(read).collect::<Result<_, _>>()?;
        // All know the same members by the same numbers: so one of them, and one only, is the first.
        let own = messages.iter().find(|(worker, _)| *worker == self.member.id());
        if own.is_none_or(|(_, message)| message.token != self.token) {
            let why = || format!("node {} is not worker {} of {messages:?}", self.node, self.member.id());
            self.process.world.state().fail(why);
        }
        Ok(messages)
    }

    fn message(&self, build: Build) -> Vec<u8> {
        let score = match build {
            Build::Wrong | Build::Faulty => f64::NAN,
            _ => 1.0 + f64::from(self.x[0].abs()),
        };
        let (stops, token, counted, taken) = (self.stops(), self.token, self.counted(), self.taken);
        match build {
            Build::Garbled => vec![0xff; 100],
            _ => postcard::to_stdvec(&Message { stops, token, counted, taken, score }).unwrap(),
        }
    }

    /// A round. Returns whether the run ends in its place, since one was asked to stop.
    fn round(&mut self) -> Result<bool, Error> {
        let messages = self.gather(Exchange::Usual)?;
        if messages.iter().any(|(_, message)| message.stops) {
            return Ok(true);
        }
        let mut reports = Vec::new();
        for (worker, message) in &messages {
            let counted = self.remembered.ledger.entry(message.token).or_default();
            if *counted != message.counted || message.taken < *counted {
                let why = format!("{message:?} of worker {worker}, of which {counted} steps were counted");
                self.process.world.state().fail(|| why);
            }
            *counted = message.taken;
            let scores = vec![message.score; self.schedule.method.scores(self.layout.spans().len())];
            reports.push(Report { worker: *worker, scores, finite: true, steps: PERIOD });
        }
        self.remembered.rounds += 1;
        self.note_round();
        self.mix(reports)?;
        if self.remembered.rounds % 3 == 1 {
            self.evaluate()?;
        }
        self.member.publish(&postcard::to_stdvec(&self.remembered).unwrap())?;
        self.note_state();
        Ok(false)
    }

    fn mix(&mut self, mut reports: Vec<Report>) -> Result<(), Error> {
        loop {
            let here = self.member.members();
            reports.retain(|report| here.contains(&report.worker));
            let plan = plan(&self.schedule.method, &self.layout, &self.remembered.memory, &reports).unwrap();
            for row in plan.weights.rows() {
                let sum: f32 = row.iter().sum();
                assert!((sum - 1.0).abs() < 1e-5, "weights {row:?} sum to {sum}");
            }
            match self.member.mix_and_pull(&plan, &self.layout, &mut self.x) {
                Ok(_) => self.remembered.memory = plan.memory.clone(),
                Err(Error::Shrunk { .. }) => continue,
                Err(error) => return Err(error),
            }
            return Ok(());
        }
    }

    /// Makes the mean of all workers in the second centre. No worker is pulled.
    fn evaluate(&mut self) -> Result<(), Error> {
        let mean: Method = "mean:pull=0,prox=0".parse().unwrap();
        loop {
            // Messages of different lengths.
            let gathered = self.view.gather(&vec![1; (self.token % 7) as usize])?;
            let client = Arc::clone(&self.view.caller.client);
            let place = {
                let member = &client.state.lock().member;
                (member.epoch, member.op)
            };
            let base = client.listener.held().map_or_else(Arc::default, |held| Arc::clone(&held.centre));
            self.schedule.agree(self.process, self.node, (place.0, place.1 - 1), &gathered.messages);
            let report = |worker| Report { worker, scores: Vec::new(), finite: true, steps: PERIOD };
            let reports: Vec<Report> = gathered.messages.iter().map(|(worker, _)| report(*worker)).collect();
            let plan = plan(&mean, &self.layout, &Memory::default(), &reports).unwrap();
            self.schedule.bring(place, self.view.id(), &self.x);
            match self.view.mix(&plan, &self.layout, &self.x) {
                Ok(_) => {}
                Err(Error::Shrunk { .. }) => continue,
                Err(error) => return Err(error),
            }
            let model = self.view.centre();
            self.schedule.check_model(self.process, place, &plan, &self.layout, model, &base);
            return Ok(());
        }
    }

    fn note_round(&self) {
        let (now, rounds) = (self.process.now(), self.remembered.rounds);
        self.schedule.see(self.node, |seen| {
            seen.longest = seen.longest.max(now.saturating_sub(seen.last_round.max(SETTLED)));
            seen.last_round = now;
        });
        self.schedule.count_round(rounds);
        self.process.world.state().note(|| format!("node {} is in round {rounds}", self.node));
    }

    fn note_state(&self) {
        let version = self.member.caller.client.state.lock().member.version;
        let uncounted = self.taken - self.counted().min(self.taken);
        self.schedule.see(self.node, |seen| (seen.version, seen.uncounted) = (version, uncounted));
    }

    /// From here on it holds what the others hold. Only a joiner takes the centre as its parameters, and whoever was late for the end: its
    /// steps since its last round are dropped.
    fn adopt(&mut self, memory: &[u8]) {
        let remembered: Remembered = postcard::from_bytes(memory).unwrap();
        let was_there = self.remembered == remembered;
        self.remembered = remembered;
        let is_late = self.is_spent() && !was_there;
        if self.taken == 0 || is_late {
            self.x = self.member.centre()[..LENGTH].to_vec();
        }
        if is_late {
            self.taken = self.counted();
        }
        self.schedule.count_restore();
        self.note_state();
    }
}

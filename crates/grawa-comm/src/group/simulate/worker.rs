//! A small worker: it trains a tiny vector with the real [`SocketMember`], and checks what all members must agree on. Part of
//! that is a ledger of the steps that were counted.

use super::faults::SETTLED;
use super::scheduler::Process;
use super::{COORDINATOR, Schedule};
use crate::group::member::join::Joiner;
use crate::group::member::socket_member::SocketMember;
use crate::group::messages::{Proposal, StateVersion};
use crate::group::wire::tls::Security;
use crate::{Collective, Elastic, Error};
use grawa_core::{Layout, Memory, Method, Report, plan};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
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

/// What a worker sends at the beginning of a round.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Message {
    token: u64,
    /// Its steps that were counted before, and all it has taken.
    counted: u64,
    taken: u64,
    score: f64,
}

/// What the schedule knows of a node's worker.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) is_alive: bool,
    pub(super) leaves: bool,
    /// It is of a build whose messages the others cannot read.
    pub(super) is_other: bool,
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
}

/// The life of a worker's process.
pub(super) fn work(process: &Process, schedule: &Arc<Schedule>, node: usize, is_other: bool) {
    schedule.see(node, |seen| *seen = Seen { is_alive: true, is_other, slowness: 1, ..Seen::default() });
    if let Err(error) = join_and_train(process, schedule, node) {
        process.world.state().note(|| format!("node {node} ends: {error}"));
        // A worker may be refused: its port seems closed, or it is not one of the run. Nothing else may end it.
        let is_expected = matches!(&error, Error::Refused { why } if !why.contains("committed a result"));
        let is_expected = is_expected && process.now() < SETTLED;
        if !is_expected && !is_other {
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
    let mut worker =
        Worker { process, schedule, node, member, view, layout, token, x, remembered: start, taken: 0 };
    if let Some(memory) = &memory {
        worker.adopt(memory);
    }
    worker.train(memory.is_some())
}

impl Worker<'_> {
    fn train(&mut self, mut at_once: bool) -> Result<(), Error> {
        loop {
            for step in 0.. {
                let enough = match self.schedule.is_free {
                    true => self.member.round_due()(),
                    false => step >= PERIOD,
                };
                if enough || std::mem::take(&mut at_once) {
                    break;
                }
                self.step();
            }
            loop {
                match self.round() {
                    Ok(()) => break,
                    Err(Error::Behind) => {
                        let memory = self.member.rejoin()?;
                        self.adopt(&memory);
                    }
                    // Without contact it continues to train.
                    Err(Error::OutOfContact) => self.step(),
                    Err(error) => return Err(error),
                }
            }
            if self.schedule.see(self.node, |seen| seen.leaves) {
                return Ok(());
            }
        }
    }

    fn step(&mut self) {
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

    /// Gathers, and checks that all members have the same messages of the same attempt.
    fn gather(&mut self, message: &[u8]) -> Result<Vec<(u32, Vec<u8>)>, Error> {
        let reads = !self.schedule.see(self.node, |seen| seen.is_other);
        let check = |_, bytes: &[u8]| match postcard::from_bytes::<Message>(bytes) {
            Err(error) if reads => Err(error.to_string()),
            _ => Ok(()),
        };
        let gathered = self.member.gather_readable(message, &check)?;
        let op = self.member.next_operation() - 1;
        let epoch = self.member.caller.client.state.lock().member.epoch;
        self.schedule.agree(self.process, self.node, (epoch, op), &gathered.messages);
        Ok(gathered.messages)
    }

    fn round(&mut self) -> Result<(), Error> {
        let held = self.member.caller.client.state.lock().member.version;
        let score = 1.0 + f64::from(self.x[0].abs());
        let message = Message { token: self.token, counted: self.counted(), taken: self.taken, score };
        let message = match self.schedule.see(self.node, |seen| seen.is_other) {
            true => vec![0xff; 100],
            false => postcard::to_stdvec(&message).unwrap(),
        };
        let messages = self.gather(&message)?;
        self.schedule.assert_logged(self.process, self.node, held);
        let mut reports = Vec::new();
        for (worker, bytes) in &messages {
            let message: Message = postcard::from_bytes(bytes)
                .map_err(|error| Error::Message { why: format!("of worker {worker}: {error}") })?;
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
        Ok(())
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

    /// From here on it holds what the others hold. Only a joiner takes the centre as its parameters.
    fn adopt(&mut self, memory: &[u8]) {
        self.remembered = postcard::from_bytes(memory).unwrap();
        if self.taken == 0 {
            self.x = self.member.centre()[..LENGTH].to_vec();
        }
        self.schedule.count_restore();
        self.note_state();
    }
}

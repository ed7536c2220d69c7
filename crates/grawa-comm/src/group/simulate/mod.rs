//! The group on a simulated network and clock: the real coordinator and the real protocol of the members, under seeded
//! schedules of crashes, restarts, stalls, partitions, delays, duplicates and late comers.
//!
//! A schedule is a pure function of its seed. `GRAWA_SEED=n cargo test -p grawa-comm simulate` runs one and prints what
//! happened; `GRAWA_SCHEDULES=n` runs that many.

mod faults;
mod worker;

use super::frame::Numbers;
use super::message::{Down, Record, Up};
use super::{Action, Coordinator, Event, Notice, Settings, Stand, State, Tag};
use crate::{Lost, Why};
use faults::{END, Fault, schedule};
use grawa_core::{Key, Method, Purpose, Stream};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use worker::{Held, PERIOD, Piece, Spoken, Wish, Worker};

const MS: Duration = Duration::from_millis(1);
/// A worker that hears nothing for so long takes its connection for dead.
const DEAF: Duration = Duration::from_millis(3000);
/// The longest from one round to the next when nothing happens: four steps, and a sign of life or two.
const LONG: Duration = Duration::from_secs(2);

fn settings(founders: u32, free: bool) -> Settings {
    Settings {
        founders,
        succession: Duration::from_secs(4),
        stall: Duration::from_secs(8),
        patience: (Duration::from_secs(2), Duration::from_secs(5), 8.0),
        trigger: free.then_some(PERIOD),
        ..Settings::default()
    }
}

/// Something that will happen.
#[derive(Debug)]
enum Happening {
    ToCoordinator { session: u64, number: u32, up: Up },
    ToWorker { session: u64, number: u32, down: Down },
    EndAtCoordinator { session: u64 },
    EndAtWorker { session: u64 },
    Tick,
    Beat { node: usize, life: u32 },
    Step { node: usize, life: u32 },
    Dial { node: usize, life: u32 },
    Piece { node: usize, piece: Piece },
    Complain { node: usize, life: u32, of: Tag, peer: Option<u32> },
    Fetch { from: usize, life: u32, to: u64, donor: u32, stand: Stand },
    Given { node: usize, life: u32, donor: u32, stand: Stand, held: Option<Box<Held>> },
    Fault(Fault),
}

#[derive(Debug)]
struct Node {
    worker: Option<Worker>,
    /// Which process this is: what an earlier one expected is not for this one.
    life: u32,
    session: Option<u64>,
    heard: Duration,
    paused: Duration,
    /// Until when the coordinator, and other workers, cannot be reached.
    cut_off: Duration,
    silenced: Duration,
    slowness: u32,
    is_dialling: bool,
    /// It leaves when it has met the others once more.
    is_leaving: bool,
}

/// A connection; what exists each way comes twice, down first.
#[derive(Debug)]
struct Line {
    node: usize,
    is_open: bool,
    /// When the last message arrives.
    last: [Duration; 2],
    given: [Numbers; 2],
    taken: [Numbers; 2],
}

struct World {
    now: Duration,
    order: u64,
    queue: BTreeMap<(Duration, u64), Happening>,
    draws: Stream,
    coordinator: Option<Coordinator>,
    records: Vec<Record>,
    settings: Settings,
    nodes: Vec<Node>,
    sessions: Vec<Line>,
    tokens: u64,
    method: Method,
    latency: u64,
    duplicates: u64,
    first: Option<Stand>,
    /// What those hold who exchanged words, by epoch and meeting.
    spoken: BTreeMap<(u64, u64), Spoken>,
    /// What those held who left in order.
    left: Vec<Spoken>,
    rounds: u64,
    story: Option<Vec<String>>,
    wrong: Option<String>,
}

impl World {
    fn new(seed: u64, aloud: bool) -> Self {
        let mut draws = Key::new(seed, Purpose::Problem).stream();
        let founders = 1 + draws.below(5) as u32;
        let methods = ["mgrawa", "lgrawa:pull=0.3", "easgd", "lsgd", "mean:pull=1", "easgd:preset=reference"];
        let method = methods[draws.below(methods.len() as u64) as usize].parse().unwrap();
        let free = draws.below(3) == 0;
        let mut world = World {
            now: Duration::ZERO,
            order: 0,
            queue: BTreeMap::new(),
            coordinator: None,
            records: Vec::new(),
            settings: settings(founders, free),
            nodes: Vec::new(),
            sessions: Vec::new(),
            tokens: 1 + draws.below(1000),
            method,
            latency: 1 + draws.below(30),
            duplicates: [0, 0, 50][draws.below(3) as usize],
            first: None,
            spoken: BTreeMap::new(),
            left: Vec::new(),
            rounds: 0,
            story: aloud.then(Vec::new),
            wrong: None,
            draws,
        };
        world.start_coordinator();
        for _ in 0..founders {
            world.add_worker();
        }
        for (at, fault) in schedule(&mut world.draws, founders as usize) {
            world.put(at, Happening::Fault(fault));
        }
        world.put(MS, Happening::Tick);
        world
    }

    fn start_coordinator(&mut self) {
        self.left.clear();
        self.coordinator = Some(Coordinator::new(self.settings, 77, vec![1, 2, 3], &self.records));
    }

    fn add_worker(&mut self) {
        self.nodes.push(Node {
            worker: None,
            life: 0,
            session: None,
            heard: self.now,
            paused: Duration::ZERO,
            cut_off: Duration::ZERO,
            silenced: Duration::ZERO,
            slowness: 1,
            is_dialling: false,
            is_leaving: false,
        });
        self.start_worker(self.nodes.len() - 1);
    }

    fn start_worker(&mut self, node: usize) {
        self.tokens += 1;
        let worker = Worker::new(self.tokens, &self.method);
        let place = &mut self.nodes[node];
        place.worker = Some(worker);
        place.life += 1;
        (place.session, place.is_dialling, place.is_leaving) = (None, false, false);
        self.dial(node, 0);
        let life = self.nodes[node].life;
        self.put(self.now + 500 * MS, Happening::Beat { node, life });
    }

    fn crash(&mut self, node: usize) {
        self.nodes[node].worker = None;
        if let Some(session) = self.nodes[node].session.take() {
            self.hang_up(session, false);
        }
    }

    /// One leaves in order: what it took part in has taken place for those who stay, unless they are lost or the run goes back.
    fn leave(&mut self, node: usize) {
        let Some(worker) = &mut self.nodes[node].worker else { return };
        let wishes = vec![Wish::Say(worker.member.leave())];
        let epoch = self.coordinator.as_ref().map(Coordinator::epoch);
        if worker.member.is_in_contact() {
            let spoken = worker.last_spoken.clone();
            self.left.extend(spoken.filter(|(of, _)| Some(of.0) == epoch));
        }
        self.grant(node, wishes);
        // The coordinator hears of it, and ends the connection.
        (self.nodes[node].worker, self.nodes[node].session) = (None, None);
    }

    fn put(&mut self, at: Duration, happening: Happening) {
        self.order += 1;
        self.queue.insert((at, self.order), happening);
    }

    fn lag(&mut self) -> Duration {
        Duration::from_micros(100 + self.draws.below(1000 * self.latency))
    }

    fn tell(&mut self, what: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(story) = &mut self.story {
            story.push(format!("{:9.4} {}", now.as_secs_f64(), what()));
        }
    }

    /// Puts a message on a connection: in order, and nothing arrives while the line is cut.
    fn post(&mut self, session: u64, up: bool, happening: Happening) -> Duration {
        let lag = self.lag();
        let Line { node, last, .. } = &mut self.sessions[session as usize];
        let cut_off = self.nodes[*node].cut_off;
        let at = (self.now + lag).max(cut_off).max(last[usize::from(up)]);
        last[usize::from(up)] = at;
        self.put(at, happening);
        at
    }

    fn post_maybe_twice(&mut self, session: u64, up: bool, make: impl Fn(u32) -> Happening) {
        let number = self.sessions[session as usize].given[usize::from(up)].give();
        let make = || make(number);
        let first = self.post(session, up, make());
        if self.draws.below(1000) < self.duplicates {
            // The same again, after whatever else is under way.
            let lag = self.lag() * 20;
            self.put(first + lag, make());
        }
    }

    /// One side ends a connection; the other side learns of it.
    fn hang_up(&mut self, session: u64, by_coordinator: bool) {
        let Line { node, is_open, .. } = &mut self.sessions[session as usize];
        let node = *node;
        if !std::mem::take(is_open) {
            return;
        }
        if by_coordinator {
            self.post(session, false, Happening::EndAtWorker { session });
        } else {
            if self.nodes[node].session == Some(session) {
                self.nodes[node].session = None;
            }
            self.post(session, true, Happening::EndAtCoordinator { session });
        }
    }

    fn dial(&mut self, node: usize, tries: u64) {
        if std::mem::replace(&mut self.nodes[node].is_dialling, true) {
            return;
        }
        let life = self.nodes[node].life;
        let pause = Duration::from_millis(10 + self.draws.below(200 + 100 * tries));
        self.put(self.now + pause, Happening::Dial { node, life });
    }

    fn is_current(&self, node: usize, life: u32) -> bool {
        self.nodes[node].life == life && self.nodes[node].worker.is_some()
    }

    /// Whose process must be awake for this.
    fn needs(&self, happening: &Happening) -> Option<usize> {
        match happening {
            Happening::ToWorker { session, .. } | Happening::EndAtWorker { session } => {
                Some(self.sessions[*session as usize].node)
            }
            Happening::Beat { node, .. }
            | Happening::Step { node, .. }
            | Happening::Dial { node, .. }
            | Happening::Piece { node, .. }
            | Happening::Complain { node, .. }
            | Happening::Given { node, .. } => Some(*node),
            _ => None,
        }
    }

    fn run(&mut self) {
        while let Some(((at, order), happening)) = self.queue.pop_first() {
            if at > END || self.wrong.is_some() {
                break;
            }
            self.now = at;
            if let Some(node) = self.needs(&happening)
                && self.nodes[node].paused > at
            {
                // In the order in which it was to be.
                self.queue.insert((self.nodes[node].paused, order), happening);
                continue;
            }
            self.happen(happening);
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Fault(fault) => self.strike(fault),
            Happening::Tick => {
                self.coordinate(Event::Tick);
                self.put(self.now + 50 * MS, Happening::Tick);
            }
            Happening::ToCoordinator { session, number, up } => {
                let line = &mut self.sessions[session as usize];
                if line.is_open && line.taken[1].take(number).unwrap() {
                    let node = line.node;
                    if !matches!(up, Up::Beat { .. }) {
                        self.tell(|| format!("node {node} says {up:?}"));
                    }
                    self.coordinate(Event::Heard { session, up });
                }
            }
            Happening::EndAtCoordinator { session } => self.coordinate(Event::Ended { session }),
            Happening::ToWorker { session, number, down } => {
                let line = &mut self.sessions[session as usize];
                let node = line.node;
                if self.nodes[node].session != Some(session) || !line.taken[0].take(number).unwrap() {
                    return;
                }
                if down != Down::Beat {
                    self.tell(|| format!("node {node} hears {down:?}"));
                }
                self.nodes[node].heard = self.now;
                let (now, before) =
                    (self.now, self.nodes[node].worker.as_ref().map(|worker| worker.took_part));
                let Some(worker) = &mut self.nodes[node].worker else { return };
                let spoke = worker.last_spoken.clone();
                let wishes = worker.at(now).hear(down);
                let (after, has_met) = (worker.took_part, worker.last_spoken != spoke);
                if before != Some(after) {
                    self.rounds = self.rounds.max(worker.remembered.rounds);
                    let rounds = worker.remembered.rounds;
                    self.tell(|| format!("node {node} is in round {rounds}"));
                }
                self.grant(node, wishes);
                if self.nodes[node].is_leaving && has_met {
                    self.leave(node);
                }
            }
            Happening::EndAtWorker { session } => {
                let node = self.sessions[session as usize].node;
                if self.nodes[node].session == Some(session) {
                    self.nodes[node].session = None;
                    if let Some(worker) = &mut self.nodes[node].worker {
                        worker.member.disconnected();
                        self.dial(node, 1);
                    }
                }
            }
            Happening::Dial { node, life } => {
                if self.nodes[node].life != life {
                    return;
                }
                self.nodes[node].is_dialling = false;
                if self.nodes[node].worker.is_none() || self.nodes[node].session.is_some() {
                    return;
                }
                if self.coordinator.is_none() || self.nodes[node].cut_off > self.now {
                    return self.dial(node, 4);
                }
                let session = self.sessions.len() as u64;
                let line = Line {
                    node,
                    is_open: true,
                    last: Default::default(),
                    given: Default::default(),
                    taken: Default::default(),
                };
                self.sessions.push(line);
                let place = &mut self.nodes[node];
                (place.session, place.heard) = (Some(session), self.now);
                let hello = place.worker.as_mut().map(|worker| worker.member.connected());
                let wishes = hello.map(Wish::Say).into_iter().collect();
                self.grant(node, wishes);
            }
            Happening::Beat { node, life } => {
                if !self.is_current(node, life) {
                    return;
                }
                if let Some(session) = self.nodes[node].session
                    && self.now - self.nodes[node].heard > DEAF
                {
                    self.hang_up(session, false);
                    if let Some(worker) = &mut self.nodes[node].worker {
                        worker.member.disconnected();
                    }
                    self.dial(node, 1);
                }
                if let Some(worker) = &mut self.nodes[node].worker {
                    let (steps, progress) = (worker.since_counted(), worker.taken);
                    let beat = worker.at(self.now).member.beat(steps, progress);
                    self.grant(node, beat.map(Wish::Say).into_iter().collect());
                }
                self.put(self.now + 500 * MS, Happening::Beat { node, life });
            }
            Happening::Step { node, life } => {
                if self.is_current(node, life)
                    && let Some(worker) = &mut self.nodes[node].worker
                {
                    let wishes = worker.at(self.now).step(self.settings.trigger.is_some());
                    self.grant(node, wishes);
                }
            }
            Happening::Piece { node, piece } => {
                let now = self.now;
                if self.nodes[node].silenced > now {
                    return;
                }
                if let Some(worker) = &mut self.nodes[node].worker {
                    let wishes = worker.at(now).receive(piece);
                    self.grant(node, wishes);
                }
            }
            Happening::Complain { node, life, of, peer } => {
                if self.is_current(node, life)
                    && let Some(worker) = &mut self.nodes[node].worker
                {
                    let wishes = worker.at(self.now).complain(of, peer);
                    self.grant(node, wishes);
                }
            }
            Happening::Fetch { from, life, to, donor, stand } => {
                let giver = self.find(to).filter(|&node| self.nodes[node].silenced <= self.now);
                let held = giver
                    .and_then(|node| self.nodes[node].worker.as_ref())
                    .and_then(|giver| giver.give(stand));
                let lag = if held.is_some() { self.lag() * 3 } else { self.lag() * 30 };
                let held = held.map(Box::new);
                self.put(self.now + lag, Happening::Given { node: from, life, donor, stand, held });
            }
            Happening::Given { node, life, donor, stand, held } => {
                if self.is_current(node, life)
                    && let Some(worker) = &mut self.nodes[node].worker
                {
                    let wishes = worker.at(self.now).take(stand, donor, held.map(|held| *held));
                    self.grant(node, wishes);
                }
            }
        }
    }

    fn find(&self, token: u64) -> Option<usize> {
        self.nodes.iter().position(|node| node.worker.as_ref().is_some_and(|worker| worker.token == token))
    }

    fn grant(&mut self, node: usize, wishes: Vec<Wish>) {
        let life = self.nodes[node].life;
        for wish in wishes {
            match wish {
                Wish::Say(up) => {
                    if let Some(session) = self.nodes[node].session {
                        self.post_maybe_twice(session, true, |number| Happening::ToCoordinator {
                            session,
                            number,
                            up: up.clone(),
                        });
                    }
                }
                Wish::Step => {
                    let time = Duration::from_millis(20 + self.draws.below(40)) * self.nodes[node].slowness;
                    self.put(self.now + time, Happening::Step { node, life });
                }
                Wish::Send { to, piece } => {
                    let lag = self.lag();
                    match self.find(to.token) {
                        Some(other) if self.nodes[node].silenced <= self.now || other == node => {
                            self.put(self.now + lag, Happening::Piece { node: other, piece });
                        }
                        Some(_) => {}
                        None => {
                            let (of, peer) = (piece.of, Some(to.worker));
                            self.put(self.now + lag, Happening::Complain { node, life, of, peer });
                        }
                    }
                }
                Wish::Watch { of } => {
                    self.put(self.now + 1500 * MS, Happening::Complain { node, life, of, peer: None });
                }
                Wish::Fetch { donor, stand } => {
                    let (lag, donor, to) = (self.lag(), donor.worker, donor.token);
                    self.put(self.now + lag, Happening::Fetch { from: node, life, to, donor, stand });
                }
                Wish::End => {
                    self.tell(|| format!("node {node} was turned away"));
                    self.crash(node);
                }
            }
        }
        let Some(worker) = &mut self.nodes[node].worker else { return };
        if let Some(why) = worker.broken.take() {
            self.wrong = Some(format!("node {node}: {why}"));
        }
        // Whoever exchanged words holds the same ones, of the same attempt.
        for spoken in std::mem::take(&mut worker.spoken) {
            let (epoch, op, _) = spoken.0;
            // Under the same coordinator.
            let is_same = |left: &Spoken| left.0.1 == op && left.0.0 >> 32 == epoch >> 32;
            if self.left.iter().any(|left| is_same(left) && *left != spoken) {
                self.wrong = Some(format!("node {node} holds {spoken:?}, and one who left something else"));
            }
            let known = self.spoken.entry((epoch, op)).or_insert_with(|| spoken.clone());
            if *known != spoken {
                self.wrong = Some(format!("node {node} holds {spoken:?}, and others {known:?}"));
            }
        }
    }

    fn coordinate(&mut self, event: Event) {
        let Some(coordinator) = &mut self.coordinator else { return };
        let before = coordinator.op();
        let actions = coordinator.on(event, self.now);
        if coordinator.op() < before {
            self.left.clear();
        }
        for action in actions {
            match action {
                Action::Send { session, down } => {
                    if self.sessions[session as usize].is_open {
                        self.post_maybe_twice(session, false, |number| Happening::ToWorker {
                            session,
                            number,
                            down: down.clone(),
                        });
                    }
                }
                Action::End { session } => self.hang_up(session, true),
                Action::Keep(record) => self.keep(record),
                Action::Tell { .. } => {}
                Action::Say(notice) => {
                    if let Notice::Differs { .. } | Notice::Lost(Lost { why: Why::Differs, .. }) = notice {
                        self.wrong = Some(notice.to_string());
                    }
                    if let Notice::Lost(Lost { why, .. }) = &notice
                        && *why != Why::Left
                    {
                        self.left.clear();
                    }
                    self.tell(|| notice.to_string());
                }
            }
        }
    }

    /// What the run has come to never is, again, what a fresh worker starts with.
    fn keep(&mut self, record: Record) {
        let first = *self.first.get_or_insert(record.stand);
        if record.stand != first && record.stand.digest == first.digest {
            self.wrong = Some(format!("what a fresh worker starts with became the truth at {record:?}"));
        }
        self.tell(|| format!("{record:?}"));
        self.records.push(record);
    }

    /// After the faults: everyone who can take part does, and all hold the same.
    fn judge(&self) -> Result<(), String> {
        if let Some(wrong) = &self.wrong {
            return Err(wrong.clone());
        }
        let Some(coordinator) = &self.coordinator else { return Err("no coordinator".into()) };
        let workers: Vec<&Worker> = self.nodes.iter().filter_map(|node| node.worker.as_ref()).collect();
        let founded = self.first.is_some();
        let able = workers.iter().any(|worker| worker.held.as_ref().is_some_and(|held| held.stand.op > 0));
        if founded && coordinator.truth().is_some_and(|truth| truth.op > 0) && !able {
            // All who knew are dead: nobody may lead.
            let leads = coordinator.seats().values().any(|seat| seat.state() == State::Active);
            return if leads { Err("fresh workers lead".into()) } else { Ok(()) };
        }
        if !founded && workers.len() < self.settings.founders as usize {
            return Ok(());
        }
        for (number, node) in self.nodes.iter().enumerate() {
            let Some(worker) = &node.worker else { continue };
            if worker.longest_wait() > LONG {
                let why = coordinator.reason(self.now);
                let seats: Vec<_> = coordinator.seats().iter().map(|(w, seat)| (*w, seat.state())).collect();
                return Err(format!(
                    "node {number} was in no round for {:?}, in the last at {:?}: {why}; {seats:?}",
                    worker.longest_wait(),
                    worker.last_round
                ));
            }
            if worker.since_counted() > 400 {
                return Err(format!(
                    "node {number} has {} steps that were never counted",
                    worker.since_counted()
                ));
            }
        }
        let mut held: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for stand in workers.iter().filter_map(|worker| worker.held.as_ref()).map(|held| held.stand) {
            held.entry(stand.op).or_default().insert(stand.digest);
        }
        if let Some((op, digests)) = held.iter().find(|(_, digests)| digests.len() > 1) {
            return Err(format!("at meeting {op} members hold {digests:x?}"));
        }
        Ok(())
    }
}

/// What went wrong, and how many rounds there were.
type Simulated = (Result<(), String>, u64);

fn simulate(seed: u64, aloud: bool) -> Simulated {
    let mut world = World::new(seed, aloud);
    world.run();
    let result = world.judge();
    if aloud {
        world.story.iter().flatten().for_each(|line| println!("{line}"));
    }
    (result, world.rounds)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Ten thousand schedules, on all cores.
#[test]
fn simulated_groups_survive() {
    if let Some(seed) = number("GRAWA_SEED") {
        assert_eq!(simulate(seed, true).0, Ok(()), "seed {seed}");
        return;
    }
    let schedules = number("GRAWA_SCHEDULES").unwrap_or(10_000);
    let next = std::sync::atomic::AtomicU64::new(0);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let results: Vec<(u64, Simulated)> = std::thread::scope(|scope| {
        let work = || {
            let mut results = Vec::new();
            loop {
                let seed = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if seed >= schedules {
                    return results;
                }
                let run = std::panic::catch_unwind(|| simulate(seed, false));
                results.push((seed, run.unwrap_or_else(|_| (Err("a panic".into()), 0))));
            }
        };
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let failed: Vec<_> = results
        .iter()
        .filter_map(|(seed, (result, _))| result.clone().err().map(|why| (seed, why)))
        .collect();
    let rounds: u64 = results.iter().map(|(_, (_, rounds))| rounds).sum();
    println!("{} schedules, {rounds} rounds", results.len());
    let show = |(seed, why): &(&u64, String)| format!("GRAWA_SEED={seed}: {why}");
    assert!(
        failed.is_empty(),
        "{} of {schedules} failed:\n{}",
        failed.len(),
        failed.iter().take(8).map(show).collect::<Vec<_>>().join("\n")
    );
    // A simulation in which nothing happens would prove nothing.
    assert!(rounds > 20 * schedules, "only {rounds} rounds");
}

//! The group on a simulated clock and network: the code of coordinator, server and members, under seeded schedules of crashes,
//! restarts, stalls, partitions, delays, repeated messages, wrong bits, and workers that join and leave.
//!
//! A schedule is a function of its seed. `GRAWA_SEED=n cargo test -p grawa-comm simulate` runs one and prints what happened;
//! `GRAWA_SCHEDULES=n` runs that many, and `GRAWA_FIRST_SEED=n` another 200 from this seed on. The protocol must survive all
//! of them, and each of a few defects ([`Mutation`]) must be found: a simulation that finds nothing proves nothing.

mod disk;
mod evaluation;
mod faults;
mod forecast;
mod network;
mod scheduler;
mod worker;

pub(crate) use disk::Disk;
pub(crate) use network::Socket;
pub(crate) use scheduler::{Process, assert_free};

use super::Settings;
use super::coordinator::Coordinator;
use super::coordinator::deadline::RoundWait;
use super::coordinator::event::CoordinatorEvent;
use super::coordinator::journal::Journal;
use super::coordinator::roster::MemberState;
use super::coordinator::server::{CoordinatorServer, ServerEvent, Status};
use super::messages::{Entry, Proposal, Record, StateVersion};
use super::transfer::TransferOptions;
use super::wire::tls::Security;
use crate::{Lost, Why};
use faults::{CALM, Fault, Kind, SETTLED, schedule};
use grawa_core::{Key, Method, Purpose};
use scheduler::World;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use worker::{Build, PERIOD, Seen};

const COORDINATOR: &str = "10.255.0.1:1";
const RUN: u64 = 77;

/// A defect of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// The coordinator commits without comparing digests.
    AnyDigest,
    /// The coordinator acts before its journal is written.
    ActBeforeLog,
    /// The coordinator commits when all members but one are done.
    OneMissing,
    /// The coordinator recovers from any state, also from that of a new worker.
    AnyState,
    /// A member keeps its connections after a failed attempt.
    KeepConnections,
    /// Differences in bf16 are to what each member kept of the last operation of this kind, and nobody compares what it decodes.
    OwnBase,
    /// The result of an attempt counts for another one.
    AnyAttempt,
    /// The epoch stays when other members take part.
    SameEpoch,
    /// A coordinator that starts again begins with the epochs of the one before.
    EpochAgain,
    /// A member may take part, whatever state it holds.
    AnyEntrant,
    /// A plan is carried out that a lost member was part of.
    OldPlan,
    /// A transfer goes on when a member is lost.
    NoAbort,
    /// Nothing is decided, and no heartbeat answered, while the journal is written.
    LockedJournal,
    /// A worker that joins is welcomed when the journal is written.
    LateWelcome,
    /// The coordinator counts a time in which it was stopped as silence of the members.
    OwnClock,
    /// The final barrier begins without those that are late.
    EarlyEnd,
    /// A member counts messages that its worker refuses.
    AnyMessage,
    /// A member that cannot read its own message complains about itself, and waits.
    OwnMessage,
}

impl Mutation {
    /// Who finds it: the simulation within [`ENOUGH`] schedules, and the exploration of every order of events (in
    /// `coordinator/explore`), which runs the coordinator and the members, but no sockets and no server.
    pub(crate) const FOUND_BY: [(Mutation, [bool; 2]); 18] = [
        (Mutation::AnyDigest, [true, true]),
        (Mutation::ActBeforeLog, [true, false]),
        (Mutation::OneMissing, [true, true]),
        (Mutation::AnyState, [true, true]),
        (Mutation::KeepConnections, [true, false]),
        (Mutation::OwnBase, [true, false]),
        (Mutation::AnyAttempt, [false, true]),
        (Mutation::SameEpoch, [false, true]),
        (Mutation::EpochAgain, [false, true]),
        (Mutation::AnyEntrant, [false, true]),
        (Mutation::OldPlan, [false, true]),
        (Mutation::NoAbort, [false, true]),
        (Mutation::LockedJournal, [true, false]),
        (Mutation::LateWelcome, [true, false]),
        (Mutation::OwnClock, [true, false]),
        (Mutation::EarlyEnd, [true, false]),
        (Mutation::AnyMessage, [true, false]),
        (Mutation::OwnMessage, [true, false]),
    ];
}

/// What a schedule is, and what is known of its run.
#[derive(Debug)]
struct Schedule {
    kind: Kind,
    /// Rounds after which the run ends.
    budget: Option<u64>,
    settings: Settings,
    method: Method,
    is_free: bool,
    /// The first worker proposes the charter.
    is_open: bool,
    options: TransferOptions,
    known: Mutex<Known>,
}

/// Messages by worker.
type Messages = Vec<(u32, Vec<u8>)>;

#[derive(Debug, Default)]
struct Known {
    journal: disk::Bytes,
    /// Rounds that were recorded, as far as the coordinator knows.
    rounds: u64,
    records: Vec<Record>,
    /// The charter, where the run began without one.
    adopted: Option<Proposal>,
    first: Option<StateVersion>,
    nodes: BTreeMap<usize, Seen>,
    /// The messages of every gather, by epoch and operation.
    gathered: BTreeMap<(u64, u64), Messages>,
    evaluations: BTreeMap<evaluation::Place, evaluation::Evaluation>,
    status: Status,
    /// All were asked to stop.
    stops: bool,
    /// How often the coordinator died.
    deaths: u64,
    /// The centre with which workers ended the run.
    ends: BTreeMap<StateVersion, Vec<u32>>,
    forged: u64,
    counts: Counts,
}

/// How much happened.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    rounds: u64,
    restores: u64,
    retries: u64,
    recoveries: u64,
    /// Crashes after which synced records were missing, and damage that was found out.
    lies: u64,
    found_out: u64,
    /// Workers that ended the run with the others.
    ends: u64,
}

impl Schedule {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn see<T>(&self, node: usize, look: impl FnOnce(&mut Seen) -> T) -> T {
        look(self.known().nodes.entry(node).or_default())
    }

    fn count_round(&self, rounds: u64) {
        let mut known = self.known();
        known.counts.rounds += 1;
        // Its report follows it.
        known.rounds = known.rounds.max(rounds.saturating_sub(1));
    }

    fn count_restore(&self) {
        self.known().counts.restores += 1;
    }

    fn agree(&self, process: &Process, node: usize, of: (u64, u64), messages: &[(u32, Vec<u8>)]) {
        let mut known = self.known();
        let found = known.gathered.entry(of).or_insert_with(|| messages.to_vec());
        if found != messages {
            let why = format!("at {of:?} node {node} has {messages:?}, and others {found:?}");
            process.world.state().fail(|| why);
        }
    }

    /// A worker ends the run with this state, the same for all unless a coordinator that knew nothing of the end has begun again.
    fn end(&self, process: &Process, version: Option<StateVersion>, centre: &[f32]) {
        let mut known = self.known();
        let bits: Vec<u32> = centre.iter().map(|x| x.to_bits()).collect();
        let is_same = version.is_some_and(|it| known.ends.entry(it).or_insert_with(|| bits.clone()) == &bits);
        known.counts.ends += 1;
        let may_differ = known.deaths + known.counts.recoveries > 0;
        if !is_same || known.ends.len() > 1 && !may_differ {
            let ends: Vec<StateVersion> = known.ends.keys().copied().collect();
            process.world.state().fail(|| format!("a worker ends with {version:?}, and all with {ends:?}"));
        }
    }

    /// All workers have the same charter: the one in the journal, where one of them proposed it.
    fn agree_on_charter(&self, process: &Process, node: usize, found: &[u8]) {
        let known = self.known();
        let expected =
            known.adopted.as_ref().map(|it| &it.charter[..]).or((!self.is_open).then_some(&[1, 2, 3]));
        if expected != Some(found) {
            process.world.state().fail(|| format!("node {node} has the charter {found:?}, not {expected:?}"));
        }
    }

    /// A round begins from a state that is in the journal.
    fn assert_logged(&self, process: &Process, node: usize, version: Option<StateVersion>) {
        let known = self.known();
        if !known.records.iter().any(|record| Some(record.version) == version) {
            process.world.state().fail(|| format!("node {node} is in a round from {version:?}, not logged"));
        }
    }

    /// Entries are in the journal. A charter is adopted once, and the initial state of a new worker never is committed again.
    fn note_entries(&self, process: &Process, entries: &[Entry]) {
        let mut known = self.known();
        let mut state = process.world.state();
        for entry in entries {
            state.note(|| format!("{entry:?}"));
            let record = match entry {
                Entry::Committed(record) => record,
                Entry::Adopted { proposal, .. } => {
                    let before = known.adopted.replace(proposal.clone());
                    if before.as_ref().is_some_and(|before| before != proposal) {
                        state.fail(|| format!("{proposal:?} was adopted after {before:?}"));
                    }
                    continue;
                }
            };
            if known.records.contains(record) {
                continue;
            }
            let first = *known.first.get_or_insert(record.version);
            let has_begun = known.records.iter().any(|record| record.version.op > 0);
            if record.version.digest == first.digest && (record.version != first || has_begun) {
                state.fail(|| format!("an initial state was committed: {record:?}"));
            }
            state.durable.insert(record.version);
            known.records.push(record.clone());
        }
    }

    /// The life of the coordinator's process.
    fn coordinate(self: &Arc<Self>, process: &Process) {
        let mut known = self.known();
        let rounds = known.rounds;
        let read = known.journal.after_a_crash(rounds, |n| process.world.state().below(n));
        let (entries, crash) = match read {
            Ok(read) => read,
            Err(why) => return process.world.state().fail(|| why),
        };
        process.world.state().note(|| format!("the journal has {} entries: {crash:?}", entries.len()));
        known.counts.lies += u64::from(crash.lost > 0);
        known.counts.found_out += u64::from(crash.found_out);
        drop(known);
        // What was written, and not yet synced, may be there all the same.
        self.note_entries(process, &entries);
        let charter = if self.is_open { Vec::new() } else { vec![1, 2, 3] };
        let coordinator = Coordinator::new(self.settings, RUN, charter, &entries);
        let coordinator = if rounds > 0 { coordinator.begun(false) } else { coordinator };
        let disk = Disk { process: process.clone(), schedule: Arc::clone(self) };
        let journal = Some(Journal::Simulated(disk));
        let environment = process.environment();
        let server =
            CoordinatorServer::start(&environment, COORDINATOR, Security::Plain, coordinator, journal);
        let server = server.unwrap();
        let mut has_asked = false;
        loop {
            process.sleep(Duration::from_millis(50));
            if self.known().stops && !std::mem::replace(&mut has_asked, true) {
                server.ask_to_stop();
            }
            while let Some(event) = server.next(Duration::ZERO) {
                self.watch(process, event);
            }
            self.known().status = server.status();
        }
    }

    fn watch(&self, process: &Process, event: ServerEvent) {
        let mut state = process.world.state();
        state.note(|| format!("{event:?}"));
        let mut known = self.known();
        match event {
            ServerEvent::Decision(
                CoordinatorEvent::Differs { .. } | CoordinatorEvent::Lost(Lost { why: Why::Differs, .. }),
            ) if known.forged == 0 => state.fail(|| "a member holds other bits".into()),
            // A slow disk and a coordinator that was stopped are no fault of a member. One that has ended need not be heard leaving.
            ServerEvent::Decision(CoordinatorEvent::Lost(Lost { worker, why }))
                if self.kind != Kind::Any
                    && known.first.is_some()
                    && known.ends.is_empty()
                    && !matches!(why, Why::Left | Why::Late { .. }) =>
            {
                state.fail(|| format!("worker {worker} is lost: {why:?}"));
            }
            ServerEvent::Decision(CoordinatorEvent::Retry { .. }) => known.counts.retries += 1,
            ServerEvent::Decision(CoordinatorEvent::Recovered { .. }) => known.counts.recoveries += 1,
            ServerEvent::Failed { why } => state.fail(|| why),
            _ => {}
        }
    }
}

/// A schedule as it runs.
struct Simulation {
    world: Arc<World>,
    schedule: Arc<Schedule>,
    coordinator: Option<Process>,
    /// The processes of the nodes.
    nodes: Vec<Option<Process>>,
}

impl Simulation {
    fn start_coordinator(&mut self) {
        let process = self.world.process(None);
        let (schedule, own) = (Arc::clone(&self.schedule), process.clone());
        process.spawn(move || schedule.coordinate(&own)).unwrap();
        self.coordinator = Some(process);
    }

    fn start_worker(&mut self, node: usize, build: Build) {
        let process = self.world.process(Some(node));
        let (schedule, own) = (Arc::clone(&self.schedule), process.clone());
        process.spawn(move || worker::work(&own, &schedule, node, build)).unwrap();
        self.nodes[node] = Some(process);
    }

    fn join(&mut self, build: Build) {
        self.nodes.push(None);
        self.start_worker(self.nodes.len() - 1, build);
    }

    fn is_running(&self, node: usize) -> bool {
        self.nodes[node].is_some() && self.schedule.see(node, |seen| seen.is_alive)
    }

    fn strike(&mut self, fault: Fault) {
        self.world.state().note(|| format!("{fault:?}"));
        match fault {
            Fault::Crash { node } => {
                if let Some(process) = self.nodes[node].take() {
                    self.world.state().kill(process.id);
                    self.schedule.see(node, |seen| seen.is_alive = false);
                }
            }
            Fault::Start { node } if !self.is_running(node) => self.start_worker(node, Build::Same),
            Fault::Start { .. } => {}
            Fault::Leave { node } => self.schedule.see(node, |seen| seen.leaves = true),
            Fault::Pause { node, until } => {
                if let Some(process) = &self.nodes[node] {
                    self.world.state().pause(process.id, until);
                }
            }
            Fault::CutOff { node, until } => {
                self.world.state().network.cut_off.insert(node, until);
            }
            Fault::Silence { node, until } => {
                self.world.state().network.silenced.insert(node, until);
            }
            Fault::Slow { node, times } => self.schedule.see(node, |seen| seen.slowness = times),
            Fault::Break { node, peers } => {
                if let Some(process) = &self.nodes[node] {
                    self.world.state().break_connections(process.id, peers);
                }
            }
            Fault::Forge { node } => {
                self.schedule.known().forged += 1;
                self.world.state().network.forges = Some(node);
            }
            Fault::PauseCoordinator { until } => {
                if let Some(process) = &self.coordinator {
                    self.world.state().pause(process.id, until);
                }
            }
            Fault::CoordinatorDies => {
                if let Some(process) = self.coordinator.take() {
                    self.schedule.known().deaths += 1;
                    self.world.state().kill(process.id);
                }
            }
            Fault::CoordinatorStarts if self.coordinator.is_none() => self.start_coordinator(),
            Fault::CoordinatorStarts => {}
            Fault::Join => self.join(Build::Same),
            Fault::JoinOther { build } => self.join(build),
            Fault::Stop => self.schedule.known().stops = true,
            Fault::Lag { milliseconds } => self.world.state().network.lag = milliseconds,
        }
    }

    /// After the faults every worker that can take part does, and all hold the same.
    fn judge(&self) -> Result<(), String> {
        let known = self.schedule.known();
        let Known { status, nodes, first, .. } = &*known;
        let alive: Vec<(&usize, &Seen)> =
            nodes.iter().filter(|(_, seen)| seen.is_alive && seen.build == Build::Same).collect();
        let founded = first.is_some();
        let is_able = |seen: &Seen| seen.version.is_some_and(|version| version.op > 0);
        let able = alive.iter().any(|(_, seen)| is_able(seen));
        if !known.ends.is_empty() && !able {
            // Those that ended the run are gone, and a coordinator that knows nothing of that waits for them.
            return Ok(());
        }
        if founded && status.committed.is_some_and(|committed| committed.op > 0) && !able {
            // All that held a committed state are dead: nobody may lead.
            let leads = status.workers.iter().any(|worker| worker.state == MemberState::Active);
            return if leads { Err("new workers lead".into()) } else { Ok(()) };
        }
        if !founded && alive.len() < self.schedule.settings.founders as usize {
            return Ok(());
        }
        for (node, seen) in &alive {
            let is_slow = self.schedule.kind == Kind::SlowDisk;
            let since = if is_slow { seen.last_round } else { seen.last_round.max(SETTLED) };
            let longest = seen.longest.max(self.schedule.kind.end() - since);
            if longest > self.schedule.kind.longest() {
                return Err(format!(
                    "node {node} was in no round for {longest:?}, in the last at {:?}: {}; {:?}",
                    seen.last_round,
                    status.reason,
                    status.workers.iter().map(|it| (it.worker, it.state)).collect::<Vec<_>>()
                ));
            }
            if seen.uncounted > 400 {
                return Err(format!("node {node} has {} steps that were never counted", seen.uncounted));
            }
        }
        let mut held: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for version in alive.iter().filter_map(|(_, seen)| seen.version) {
            held.entry(version.op).or_default().insert(version.digest);
        }
        match held.iter().find(|(_, digests)| digests.len() > 1) {
            Some((op, digests)) => Err(format!("at operation {op} members hold {digests:x?}")),
            None => Ok(()),
        }
    }
}

fn simulate(seed: u64, mutation: Option<Mutation>, aloud: bool) -> (Result<(), String>, Counts) {
    let mut draws = Key::new(seed, Purpose::Problem).stream();
    let founders = 1 + draws.below(5) as u32;
    let kind = Kind::draw(&mut draws);
    let budget = kind.budget(&mut draws);
    let methods =
        ["mgrawa", "lgrawa:pull=0.3", "easgd", "lsgd", "mean:pull=1", "easgd:preset=reference", "diloco"];
    let method: Method = methods[draws.below(methods.len() as u64) as usize].parse().unwrap();
    let (is_free, is_open) = (draws.below(3) == 0, draws.below(2) == 0);
    let settings = Settings {
        founders,
        recovery_wait: Duration::from_secs(2),
        stall: Duration::from_secs(6),
        round_wait: RoundWait {
            shortest: Duration::from_secs(1),
            // Longer than a sync.
            longest: Duration::from_secs(if kind == Kind::SlowDisk { 8 } else { 3 }),
            ..RoundWait::default()
        },
        trigger: (is_free && !is_open).then_some(PERIOD),
        mutation,
        ..Settings::default()
    };
    let (overlap, bf16) = (draws.below(4) == 0, draws.below(4) == 0);
    let options = TransferOptions { overlap: overlap && method.overlap_objection().is_none(), bf16 };
    let schedule_of =
        Schedule { kind, budget, settings, method, is_free, is_open, options, known: Mutex::default() };
    let (schedule_of, lag) = (Arc::new(schedule_of), 1 + draws.below(30));
    let duplicates = [0, 0, 50][draws.below(3) as usize];
    let faults = schedule(kind, &mut draws, founders as usize);
    let world = World::new(draws, mutation, aloud);
    (world.state().network.lag, world.state().network.duplicates) = (lag, duplicates);
    let mut judged = Ok(());
    let (failure, story) = world.run(|process| {
        let (world, schedule) = (Arc::clone(&world), Arc::clone(&schedule_of));
        let mut simulation = Simulation { world, schedule, coordinator: None, nodes: Vec::new() };
        simulation.start_coordinator();
        (0..founders).for_each(|_| simulation.strike(Fault::Join));
        for (at, fault) in faults {
            process.sleep(at - process.now());
            simulation.strike(fault);
        }
        assert!(process.now() >= CALM);
        while process.now() < kind.end() && simulation.world.state().failure.is_none() {
            process.sleep(Duration::from_secs(1).min(kind.end() - process.now()));
        }
        judged = simulation.judge();
    });
    if aloud {
        story.iter().flatten().for_each(|line| println!("{line}"));
    }
    let counts = schedule_of.known().counts;
    (failure.map_or(judged, Err), counts)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Runs schedules on all cores, until some fail or all have run. Returns the failures, and how much happened.
fn simulate_all(seeds: Range<u64>, mutation: Option<Mutation>) -> (Vec<(u64, String)>, Counts) {
    let next = std::sync::atomic::AtomicU64::new(seeds.start);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let found = Mutex::new((Vec::new(), Counts::default()));
    std::thread::scope(|scope| {
        let work = || {
            loop {
                let seed = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if seed >= seeds.end || found.lock().unwrap().0.len() >= 8 {
                    return;
                }
                let (result, counts) = simulate(seed, mutation, false);
                let (failures, sum) = &mut *found.lock().unwrap();
                failures.extend(result.err().map(|why| (seed, why)));
                sum.rounds += counts.rounds;
                sum.restores += counts.restores;
                sum.retries += counts.retries;
                sum.recoveries += counts.recoveries;
                sum.lies += counts.lies;
                sum.found_out += counts.found_out;
                sum.ends += counts.ends;
                if mutation.is_some() && !failures.is_empty() {
                    next.store(seeds.end, std::sync::atomic::Ordering::Relaxed);
                }
            }
        };
        (0..cores).for_each(|_| drop(scope.spawn(work)));
    });
    found.into_inner().unwrap()
}

#[test]
fn simulated_groups_survive() {
    if let Some(seed) = number("GRAWA_SEED") {
        assert_eq!(simulate(seed, None, true).0, Ok(()), "seed {seed}");
        return;
    }
    let schedules = number("GRAWA_SCHEDULES").unwrap_or(1000);
    let survive = |seeds: Range<u64>| {
        let (failures, counts) = simulate_all(seeds.clone(), None);
        println!("schedules {seeds:?}, {counts:?}");
        let show = |(seed, why): &(u64, String)| format!("GRAWA_SEED={seed}: {why}");
        assert!(failures.is_empty(), "{}", failures.iter().map(show).collect::<Vec<_>>().join("\n"));
        counts
    };
    // The same seeds in every run, and others in each that asks for them.
    let counts = survive(0..schedules);
    if let Some(first) = number("GRAWA_FIRST_SEED") {
        survive(first..first + DRAWN);
    }
    // A simulation in which nothing happens would prove nothing. Of a few schedules that may be by chance.
    let Counts { rounds, restores, retries, recoveries, lies, found_out, ends } = counts;
    assert!(rounds > 20 * schedules, "{counts:?}");
    if schedules >= 1000 {
        assert!(rounds > 30 * schedules && restores > schedules / 2, "{counts:?}");
        assert!(retries > schedules / 20 && recoveries > schedules / 400, "{counts:?}");
        assert!(lies > schedules / 400 && found_out > schedules / 400, "{counts:?}");
        assert!(ends > schedules / 2, "{counts:?}");
    }
}

/// Schedules from the seed that is asked for.
const DRAWN: u64 = 200;
/// Schedules within which each defect must be found. The rarest shows in one of forty.
const ENOUGH: u64 = 400;

#[test]
fn every_defect_is_found() {
    for (defect, [is_simulated, is_explored]) in Mutation::FOUND_BY {
        assert!(is_simulated || is_explored, "{defect:?} is planted, and nobody looks for it");
        if is_simulated {
            let (failures, _) = simulate_all(0..ENOUGH, Some(defect));
            println!("{defect:?}: {failures:?}");
            assert!(!failures.is_empty(), "{defect:?} was not found in {ENOUGH} schedules");
        }
    }
}

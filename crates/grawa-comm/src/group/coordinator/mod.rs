//! The coordinator: who is a member, which state is committed, when an operation begins and ends. It is pure: it has no clock
//! and no network.
//!
//! It holds no parameters and makes no plan. Members call operations through it; data moves between members. Between two
//! rounds every member holds the same centre and the same memory, and sends the digest of both: the *committed state*.
//! A member that holds another state (a joiner, one that was late, one with other bits) fetches the committed state from
//! a member that holds it before it may take part. So nothing that a joiner brings can become the state of the others.
//!
//! [`operation`] begins and ends operations, [`trigger`] starts rounds at a free pace, [`recovery`] decides where the run
//! continues when those who hold the committed state are gone. [`server`] runs all of it on sockets.

pub(crate) mod deadline;
pub(crate) mod event;
#[cfg(test)]
mod explore;
pub(crate) mod journal;
mod operation;
mod recovery;
mod rejected_peers;
pub(crate) mod roster;
pub(crate) mod server;
mod trigger;

use super::digest::majority;
use super::messages::{
    Call, Entry, Hello, LONGEST, LONGEST_CHARTER, Peer, Proposal, Record, StateVersion, ToCoordinator,
    ToMember, VERSION,
};
#[cfg(test)]
use super::simulate::Mutation;
use super::token_bucket::TokenBucket;
use crate::{Lost, MOST_WORKERS, Why};
use deadline::{Deadline, RoundWait};
use event::CoordinatorEvent;
use operation::{Arrival, Operation};
use roster::{MemberRecord, MemberState, Session};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Committed states that are remembered for members that come back.
const HISTORY: usize = 10_000;
/// Reports, and bytes of reports, that are held for a member that does not take part yet.
const HELD: (usize, usize) = (64, LONGEST);
/// What a message costs beside its bytes. A member that sends more than it may is refused: it could fill the disk or keep the
/// coordinator busy.
const PER_MESSAGE: f64 = 128.0;
/// Members that are gone, and whose limits are remembered.
const GONE: usize = 1024;

/// The time limits of a group.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Workers that must arrive before the first operation begins.
    pub founders: u32,
    /// From one heartbeat to the next.
    pub heartbeat: Duration,
    /// A member without a heartbeat for this long is lost.
    pub silence: Duration,
    /// A member whose connection ended may reconnect for this long.
    pub grace: Duration,
    /// The wait for members that are late for a round.
    pub round_wait: RoundWait,
    /// A round waits at least this long for them, in the place of [`RoundWait::shortest`].
    pub wait: Option<Duration>,
    /// A member that sends heartbeats, but makes no progress for this long inside a round, or before its first step in the first one, is lost.
    pub stall: Duration,
    /// How long to wait for a member that holds the committed state, when no connected member does.
    pub recovery_wait: Duration,
    /// At a free pace: local steps per worker and round.
    pub trigger: Option<u64>,
    /// Whoever takes the server's events records them: a member is told that its report has arrived when the event is dropped, not before. Without
    /// that a report is lost if the coordinator dies in between.
    pub records: bool,
    /// A defect that the simulation must find.
    #[cfg(test)]
    pub(crate) mutation: Option<Mutation>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            founders: 1,
            heartbeat: Duration::from_millis(500),
            silence: Duration::from_millis(2500),
            grace: Duration::from_secs(1),
            round_wait: RoundWait::default(),
            wait: None,
            stall: Duration::from_secs(600),
            recovery_wait: Duration::from_secs(60),
            trigger: None,
            records: false,
            #[cfg(test)]
            mutation: None,
        }
    }
}

impl Settings {
    pub(crate) fn round_wait(&self) -> RoundWait {
        let shortest = self.wait.unwrap_or(self.round_wait.shortest);
        RoundWait { shortest, longest: self.round_wait.longest.max(shortest), ..self.round_wait }
    }

    /// The same at a free pace: a round is due after this number of steps per worker. Heartbeats bring the counts that call for it: the rarer they
    /// are, the more steps are taken beyond it.
    #[must_use]
    pub fn at_free_pace(self, steps: u64) -> Self {
        Settings { trigger: Some(steps), heartbeat: self.heartbeat / 5, ..self }
    }
}

/// An input of the coordinator.
#[derive(Clone, Debug)]
pub enum Input {
    /// A message came in.
    Message {
        /// On which connection.
        session: Session,
        /// The message.
        message: ToCoordinator,
    },
    /// A connection ended.
    Disconnected {
        /// Which.
        session: Session,
    },
    /// All members are to stop together.
    AskToStop,
    /// Time has passed.
    Tick,
    /// The coordinator did nothing for this long: its process was stopped, or its machine. What members sent meanwhile has not been read yet.
    Paused(Duration),
}

/// What the caller must do, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Send a message.
    Send {
        /// On which connection.
        session: Session,
        /// The message.
        message: ToMember,
    },
    /// End a connection.
    Disconnect {
        /// Which.
        session: Session,
    },
    /// Write this to the journal before any other action is carried out.
    Log(Entry),
    /// Pass on a report.
    Report {
        /// Who sent it.
        worker: u32,
        /// Its token.
        token: u64,
        /// It was a member of the operation that ended the run: then it has a vote on how the run ended.
        is_voter: bool,
        /// The report.
        report: Vec<u8>,
        /// The connection on which its receipt is due when it has been recorded.
        receipt: Option<Session>,
    },
    /// Tell whoever watches the run.
    Emit(CoordinatorEvent),
}

/// The state of the coordinator.
#[derive(Clone, Debug, Default)]
pub struct Coordinator {
    pub(super) settings: Settings,
    run: u64,
    /// The definition of the run; empty until a worker has proposed one.
    charter: Vec<u8>,
    /// It grows whenever an operation has other members than the one before.
    pub epoch: u64,
    /// The members of the last operation: those of this epoch, unless one was lost since.
    members: Vec<Peer>,
    /// The next operation.
    pub(super) op: u64,
    pub(super) committed: Option<StateVersion>,
    /// Committed states by operation.
    history: BTreeMap<u64, u64>,
    /// The members, by number.
    pub roster: BTreeMap<u32, MemberRecord>,
    operation: Operation,
    deadline: Deadline,
    /// The last operation and how it ended, for members whose connection broke before they received it.
    last: Option<(u64, ToMember)>,
    /// Members lost since the last operation.
    lost: Vec<Lost>,
    /// Since when no connected member holds the committed state.
    orphaned: Option<Duration>,
    /// The tokens of the members that held the last committed state.
    former: Vec<u64>,
    /// After a restart: until when the coordinator waits for the members before it.
    returning: Option<Option<Duration>>,
    /// The last round and when its first member arrived, for those that arrive too late.
    round_began: Option<(u64, Duration)>,
    /// At a free pace: the operation that the members were told to begin a round with.
    round_due: Option<u64>,
    /// Rounds that have begun.
    rounds: u64,
    /// At a free pace: steps beyond those asked for, of all rounds.
    extra_steps: u64,
    /// By token: the limits of members that are gone, until they have earned all of it again. One that leaves and comes back gets no new one.
    limits: BTreeMap<u64, TokenBucket>,
    /// When the coordinator last continued after a pause.
    paused_at: Option<Duration>,
    /// Rounds were recorded: a worker's initial state cannot be where the run continues.
    has_begun: bool,
    /// All members were asked to stop together: so are those that connect later.
    is_stopping: bool,
    /// A member was the first to ask for it.
    is_stopped_by_member: bool,
    /// When whoever runs the coordinator has asked for it.
    told_to_stop: Option<Duration>,
    /// The tokens of the members that committed the end of the run.
    finished: Option<BTreeSet<u64>>,
    actions: Vec<Action>,
}

impl Coordinator {
    /// The coordinator of a run. Every joiner gets the `charter`; if it is empty, the first proposal of a worker becomes the charter.
    /// `entries` are the journal of an earlier coordinator of the run, if there was one.
    pub fn new(settings: Settings, run: u64, charter: Vec<u8>, entries: &[Entry]) -> Self {
        let mut coordinator = Coordinator { settings, run, charter, ..Coordinator::default() };
        for entry in entries {
            let record = match entry {
                Entry::Committed(record) if record.run == run && record.members > 0 => record,
                Entry::Adopted { run: of, proposal } if *of == run && coordinator.charter.is_empty() => {
                    coordinator.adopt(proposal.clone());
                    continue;
                }
                _ => continue,
            };
            coordinator.add_to_history(record.version);
            // Later epochs are not in the journal: those of this coordinator begin beyond all of them.
            coordinator.epoch = ((record.epoch >> 32) + 1) << 32;
            #[cfg(test)]
            if coordinator.has(Mutation::EpochAgain) {
                coordinator.epoch = record.epoch;
            }
            coordinator.op = record.version.op;
            coordinator.committed = Some(record.version);
            if !record.tokens.is_empty() {
                coordinator.former.clone_from(&record.tokens);
            }
            coordinator.returning = Some(None);
        }
        coordinator.committed.into_iter().for_each(|version| coordinator.log(version));
        coordinator
    }

    /// The same for a run of which rounds are recorded: no worker's initial state counts. `from_workers` also forgets where the journal says
    /// that the run is: it continues from the newest state that a worker brings.
    #[must_use]
    pub fn begun(mut self, from_workers: bool) -> Self {
        self.has_begun = true;
        self.committed = self.committed.filter(|committed| committed.op > 0 && !from_workers);
        self
    }

    #[cfg(test)]
    fn has(&self, defect: Mutation) -> bool {
        self.settings.mutation == Some(defect)
    }

    /// Handles an input. Returns what is to be done.
    pub fn handle(&mut self, input: Input, now: Duration) -> Vec<Action> {
        match input {
            Input::Message { session, message } => self.on_message(session, message, now),
            Input::Disconnected { session } => {
                if let Some((_, record)) = self.member_of(session) {
                    record.session = None;
                    record.disconnected_at = Some(now);
                }
            }
            Input::AskToStop => {
                self.told_to_stop.get_or_insert(now);
                self.ask_to_stop();
            }
            Input::Tick => {}
            Input::Paused(time) => self.forgive(time, now),
        }
        self.check(now);
        self.forward_reports();
        std::mem::take(&mut self.actions)
    }

    /// Nobody is late or silent because of a time in which the coordinator did nothing.
    fn forgive(&mut self, time: Duration, now: Duration) {
        let later = |at: &mut Duration| *at = (*at + time).min(now);
        for record in self.roster.values_mut() {
            [&mut record.last_seen, &mut record.progressed_at].into_iter().for_each(later);
            record.disconnected_at.iter_mut().for_each(later);
        }
        self.operation.began.iter_mut().for_each(later);
        self.orphaned.iter_mut().for_each(later);
        self.told_to_stop.iter_mut().for_each(later);
        self.round_began.iter_mut().for_each(|(_, began)| later(began));
        self.returning.iter_mut().flatten().for_each(|until| *until += time);
        self.paused_at = Some(now);
    }

    /// Whether the next operation begins a round that joiners may still take part in.
    fn is_open(&self) -> bool {
        self.operation.transfer.is_none() && self.committed.is_none_or(|committed| committed.op == self.op)
    }

    /// Whether the next operation begins a round according to any member, though not all have said so yet.
    fn begins_round(&self) -> bool {
        let is_at = |record: &MemberRecord| record.version.is_some_and(|version| version.op == self.op);
        self.is_open() || self.active().any(|(_, record)| is_at(record))
    }

    fn member_of(&mut self, session: Session) -> Option<(u32, &mut MemberRecord)> {
        let mut members = self.roster.iter_mut();
        members.find(|(_, record)| record.session == Some(session)).map(|(worker, record)| (*worker, record))
    }

    fn active(&self) -> impl Iterator<Item = (u32, &MemberRecord)> {
        let members = self.roster.iter().filter(|(_, record)| record.state == MemberState::Active);
        members.map(|(worker, record)| (*worker, record))
    }

    /// The active members, and those that become active with the next operation.
    fn participants(&self) -> impl Iterator<Item = (u32, &MemberRecord)> {
        let members = self.roster.iter().map(|(worker, record)| (*worker, record));
        members.filter(|(worker, record)| record.state == MemberState::Active || self.has_arrived(*worker))
    }

    fn send(&mut self, worker: u32, message: ToMember) {
        if let Some(session) = self.roster.get(&worker).and_then(|record| record.session) {
            self.actions.push(Action::Send { session, message });
        }
    }

    fn emit(&mut self, event: CoordinatorEvent) {
        self.actions.push(Action::Emit(event));
    }

    fn refuse(&mut self, session: Session, why: String) {
        self.actions.push(Action::Send { session, message: ToMember::Refused { why: why.clone() } });
        self.actions.push(Action::Disconnect { session });
        self.emit(CoordinatorEvent::Refused { why });
    }

    fn on_message(&mut self, session: Session, message: ToCoordinator, now: Duration) {
        let message = match message {
            ToCoordinator::Hello(hello) => return self.on_hello(session, 1, hello, now),
            ToCoordinator::HelloOfSet { workers, hello } => {
                return self.on_hello(session, workers, hello, now);
            }
            message => message,
        };
        let (op, is_transferring) = (self.op, self.operation.transfer.is_some());
        let Some((worker, record)) = self.member_of(session) else {
            // It was lost meanwhile, or never said hello. It must say hello again.
            return self.actions.push(Action::Disconnect { session });
        };
        record.last_seen = now;
        let bytes = match &message {
            ToCoordinator::Report(report) => report.len(),
            ToCoordinator::Propose(proposal) => proposal.charter.len(),
            _ => 0,
        };
        if !record.rate_limit.try_use(PER_MESSAGE + bytes as f64, now) {
            return self.refuse_excess(worker);
        }
        match message {
            // Its connection has compared the build.
            ToCoordinator::Hello { .. } | ToCoordinator::HelloOfSet { .. } | ToCoordinator::Build { .. } => {}
            ToCoordinator::Unreadable { attempt, peer, why } => {
                self.on_unreadable(worker, attempt, peer, why);
            }
            ToCoordinator::Enter(version) => {
                match record.state {
                    MemberState::Greeted => {}
                    // It has fetched this state. Its connection may have broken meanwhile: it holds the state all the same.
                    MemberState::Restoring(_) | MemberState::Waiting => record.late_restores += 1,
                    MemberState::Ready | MemberState::Active => return,
                }
                (record.version, record.state) = (Some(version), MemberState::Waiting);
                record.progressed_at = now;
                self.assign(worker);
            }
            ToCoordinator::Holds(version) => {
                // During a transfer the round has begun from the state that was committed before.
                if record.state == MemberState::Active && version.op == op && !is_transferring {
                    record.version = Some(version);
                    record.steps = 0;
                    self.agree_on_state(false);
                }
            }
            ToCoordinator::NotRestored { .. } => {
                if matches!(record.state, MemberState::Restoring(_)) {
                    record.state = MemberState::Waiting;
                    record.late_restores += 1;
                    self.assign(worker);
                }
            }
            ToCoordinator::Heartbeat { steps, progress, workers } => {
                record.steps = steps;
                record.workers_left = workers.clamp(1, record.workers);
                if record.progress != progress {
                    record.progress = progress;
                    record.progressed_at = now;
                }
                self.send(worker, ToMember::HeartbeatAck);
                self.send_joined(worker);
                self.check_trigger();
            }
            ToCoordinator::Report(report) => self.hold_report(worker, report),
            ToCoordinator::Propose(proposal) => self.on_proposal(worker, session, proposal),
            // A peer that never took part stops nobody.
            ToCoordinator::Stop if record.last_op.is_some() => {
                self.is_stopped_by_member |= !self.is_stopping;
                self.ask_to_stop();
            }
            ToCoordinator::Stop => {}
            ToCoordinator::Leave => self.remove(worker, Why::Left),
            ToCoordinator::Arrive { op, call, steps, known_epoch } => {
                self.on_arrive(worker, op, Arrival { call, steps, known_epoch }, now);
            }
            ToCoordinator::Done { attempt, digest } => self.on_done(worker, attempt, digest),
            ToCoordinator::Failed { attempt, peer, why } => self.on_failed(worker, attempt, peer, why, now),
        }
    }

    fn on_hello(&mut self, session: Session, workers: u32, hello: Hello, now: Duration) {
        let Hello { version, run, token, worker: wish, address } = hello;
        let why = if version != VERSION {
            Some(format!(
                "it speaks version {version} of the protocol, and this run version {VERSION}: use the same program"
            ))
        } else if run != 0 && run != self.run {
            Some(format!("it belongs to run {run:016x}, and this is run {:016x}", self.run))
        } else if self.member_of(session).is_some() {
            // One connection is one member. Otherwise a single peer could take any number of places.
            Some("it said hello twice".into())
        } else if !(1..=MOST_WORKERS).contains(&workers) {
            Some(format!("it has {workers} workers, and a process may have 1 to {MOST_WORKERS}"))
        } else {
            None
        };
        if let Some(why) = why {
            return self.refuse(session, why);
        }
        let known = self.roster.iter().find(|(_, record)| record.token == token);
        if let Some((worker, record)) = known.filter(|(_, record)| record.workers != workers) {
            // One certificate is one member.
            let why = format!(
                "it has {workers} workers, and the process with its certificate, worker {worker}, has {}: each process needs its own",
                record.workers
            );
            return self.refuse(session, why);
        }
        let known = known.map(|(worker, _)| *worker);
        let worker = known
            .or(wish.filter(|wish| self.has_room(*wish, workers)))
            .unwrap_or_else(|| self.free_number(workers));
        let is_new_process = run == 0;
        let new = || MemberRecord {
            wish: wish.filter(|_| is_new_process),
            ..MemberRecord::new(token, workers, address, session, now)
        };
        let record = self.roster.entry(worker).or_insert_with(new);
        if let Some(limit) = self.limits.remove(&token) {
            record.rate_limit = limit;
        }
        record.is_new = run == 0;
        let before = record.session.replace(session).filter(|before| *before != session);
        record.disconnected_at = None;
        // The answer is as long as the charter. Who asks for it again and again uses up what it may send.
        let charter = (run == 0).then(|| self.charter.clone());
        let cost = PER_MESSAGE + charter.as_ref().map_or(0, Vec::len) as f64;
        let is_excess = !record.rate_limit.try_use(cost, now);
        // It sends the reports again that were not acknowledged.
        record.reports.clear();
        (record.last_seen, record.progressed_at) = (now, now);
        let is_current = matches!(record.state, MemberState::Active | MemberState::Ready);
        let known = is_current && !record.is_assigned;
        if !known {
            record.state = MemberState::Greeted;
        }
        if let Some(session) = before {
            self.actions.push(Action::Disconnect { session });
        }
        if is_excess {
            return self.refuse_excess(worker);
        }
        let heartbeat = self.settings.heartbeat.as_millis() as u64;
        let founders = self.settings.founders;
        self.send(worker, ToMember::Welcome { run: self.run, worker, known, heartbeat, charter, founders });
        if self.is_stopping {
            self.send(worker, ToMember::Stop);
        }
        if self.finished.is_some() && !known {
            return self.send(worker, ToMember::Over);
        }
        self.send_round_due(worker);
    }

    /// Asks all members to stop together, and those that connect later.
    fn ask_to_stop(&mut self) {
        // Each member that was asked asks in turn.
        if std::mem::replace(&mut self.is_stopping, true) {
            return;
        }
        let all: Vec<u32> = self.roster.keys().copied().collect();
        all.into_iter().for_each(|worker| self.send(worker, ToMember::Stop));
    }

    /// Before the run begins: says how many workers have joined.
    fn send_joined(&mut self, worker: u32) {
        if self.committed.is_none() {
            let workers = self.roster.values().map(|record| record.workers).sum();
            self.send(worker, ToMember::Joined { workers });
        }
    }

    /// The first proposal becomes the charter. It is in the journal before anyone acts on it.
    fn on_proposal(&mut self, worker: u32, session: Session, proposal: Proposal) {
        if !(1..=LONGEST_CHARTER).contains(&proposal.charter.len()) {
            let found = proposal.charter.len();
            let why =
                format!("it proposes a charter of {found} bytes, where 1 to {LONGEST_CHARTER} are allowed");
            return self.refuse(session, why);
        }
        if self.charter.is_empty() {
            self.adopt(proposal.clone());
            self.actions.push(Action::Log(Entry::Adopted { run: self.run, proposal }));
        }
        let (charter, heartbeat) = (self.charter.clone(), self.settings.heartbeat.as_millis() as u64);
        self.send(worker, ToMember::Charter { charter, heartbeat });
    }

    fn adopt(&mut self, Proposal { charter, trigger, wait }: Proposal) {
        self.charter = charter;
        // What the coordinator was started with counts.
        self.settings.wait = self.settings.wait.or(wait.map(Duration::from_millis));
        if let Some(steps) = trigger {
            self.settings = self.settings.at_free_pace(steps);
        }
    }

    /// Whether no member has one of the numbers of so many workers from this one on.
    fn has_room(&self, first: u32, workers: u32) -> bool {
        let end = |first: u32, workers: u32| first.saturating_add(workers);
        let mut members = self.roster.iter();
        first.checked_add(workers).is_some()
            && members
                .all(|(other, record)| end(first, workers) <= *other || end(*other, record.workers) <= first)
    }

    /// The lowest number from which on there is room for so many workers.
    fn free_number(&self, workers: u32) -> u32 {
        let ends = self.roster.iter().map(|(worker, record)| worker.saturating_add(record.workers));
        [0].into_iter().chain(ends).filter(|first| self.has_room(*first, workers)).min().unwrap_or(u32::MAX)
    }

    /// The workers of these members.
    fn workers_of<'a>(&self, members: impl Iterator<Item = &'a u32>) -> u64 {
        members.filter_map(|worker| self.roster.get(worker)).map(|record| u64::from(record.workers)).sum()
    }

    /// Refuses a member that sent more than the limit.
    fn refuse_excess(&mut self, worker: u32) {
        let why = "it sent more than a member may: is it the same program?".into();
        self.send(worker, ToMember::Refused { why });
        self.remove(worker, Why::Excess);
    }

    /// Commits the state that the members hold. Unless `must_decide`, more than half must hold the same.
    fn agree_on_state(&mut self, must_decide: bool) {
        let members = self.active().count();
        let held: BTreeMap<u32, u64> = (self.participants())
            .filter_map(|(worker, record)| {
                let version = record.version.filter(|version| version.op == self.op)?;
                Some((worker, version.digest))
            })
            .collect();
        let Some(most) = majority(&held) else { return };
        let committed = self.committed.filter(|committed| committed.op == self.op);
        if committed.is_none() {
            if !must_decide && 2 * held.values().filter(|digest| **digest == most).count() <= members {
                return;
            }
            self.commit_held(StateVersion { op: self.op, digest: most });
        }
        self.exclude_differing(&held, committed.map_or(most, |committed| committed.digest));
        self.assign_all();
    }

    /// Excludes the members that hold something else.
    fn exclude_differing(&mut self, held: &BTreeMap<u32, u64>, expected: u64) {
        for (&worker, &digest) in held.iter().filter(|(_, digest)| **digest != expected) {
            self.exclude(worker, Why::Differs);
            let found = StateVersion { op: self.op, digest };
            self.emit(CoordinatorEvent::Differs { worker, found, expected });
        }
    }

    /// A member has no part in the current operation, but may come back after it.
    fn exclude(&mut self, worker: u32, why: Why) {
        if let Some(record) = self.roster.get_mut(&worker) {
            record.state = MemberState::Waiting;
            self.operation.arrived.remove(&worker);
            self.lost.push(Lost { worker, why });
            self.lost.sort_by_key(|lost| lost.worker);
        }
    }

    /// Remembers a committed state. A run that was recovered from an earlier state has replaced the later ones.
    fn add_to_history(&mut self, version: StateVersion) {
        drop(self.history.split_off(&version.op));
        self.history.insert(version.op, version.digest);
        if self.history.len() > HISTORY {
            self.history.pop_first();
        }
    }

    /// Commits a state that the current members hold.
    fn commit_held(&mut self, version: StateVersion) {
        self.former = self.participants().map(|(_, record)| record.token).collect();
        self.commit(version);
    }

    /// Commits a state. It is in the journal before anyone acts on it.
    fn commit(&mut self, version: StateVersion) {
        self.orphaned = None;
        self.add_to_history(version);
        self.committed = Some(version);
        self.log(version);
    }

    fn log(&mut self, version: StateVersion) {
        let (run, epoch, members, tokens) =
            (self.run, self.epoch, self.former_members(), self.former.clone());
        let record = Record { run, epoch, version, members, tokens };
        self.actions.push(Action::Log(Entry::Committed(record)));
    }

    /// How many members held the last committed state.
    fn former_members(&self) -> u32 {
        self.former.len().max(1) as u32
    }

    /// Holds a report until its member takes part. If there are too many, the oldest are dropped.
    fn hold_report(&mut self, worker: u32, report: Vec<u8>) {
        let Some(record) = self.roster.get_mut(&worker) else { return };
        record.reports.push(report);
        let size = |reports: &[Vec<u8>]| reports.iter().map(Vec::len).sum::<usize>();
        let mut dropped = 0;
        while record.reports.len() - dropped > HELD.0 || size(&record.reports[dropped..]) > HELD.1 {
            dropped += 1;
        }
        record.reports.drain(..dropped);
        (0..dropped).for_each(|_| self.send(worker, ToMember::ReportAck));
    }

    /// Passes on the reports of members that take part. After a restart nobody does until the former members are back.
    fn forward_reports(&mut self) {
        if self.returning.is_some() {
            return;
        }
        for (worker, record) in &mut self.roster {
            let finished = self.finished.as_ref();
            let is_voter = finished.is_some_and(|tokens| tokens.contains(&record.token));
            // A member of the last operation may have lost its connection before it said how the run ended.
            if record.state != MemberState::Active && !is_voter {
                continue;
            }
            let is_recorded = self.settings.records;
            for report in std::mem::take(&mut record.reports) {
                let receipt = record.session.filter(|_| is_recorded);
                let (worker, token) = (*worker, record.token);
                self.actions.push(Action::Report { worker, token, is_voter, report, receipt });
                let ack = |session| Action::Send { session, message: ToMember::ReportAck };
                self.actions.extend(record.session.filter(|_| !is_recorded).map(ack));
            }
        }
    }

    fn assign_all(&mut self) {
        let waiting = self.roster.iter().filter(|(_, record)| record.state == MemberState::Waiting);
        let waiting: Vec<u32> = waiting.map(|(worker, _)| *worker).collect();
        waiting.into_iter().for_each(|worker| self.assign(worker));
    }

    /// Tells a waiting member what to do: take part in the next operation if it holds the committed state, or fetch that state
    /// from a donor.
    fn assign(&mut self, worker: u32) {
        let record = self.roster.get(&worker).filter(|record| record.is_connected());
        let Some(version) = record.and_then(|record| record.version) else { return };
        if self.committed.is_none() && self.has_begun {
            // Where the run continues is decided in [`recovery`].
            return;
        }
        if self.committed.is_none() && version.op > 0 {
            // The journal was lost, and this member has been in the run.
            self.continue_from(version);
            return self.assign_all();
        }
        if !self.is_open() || self.finished.is_some() {
            return;
        }
        if let Some(why) = self.conflict(worker, version) {
            self.send(worker, ToMember::Refused { why });
            return self.remove(worker, Why::Differs);
        }
        let is_committed = self.committed.is_none_or(|committed| committed == version);
        #[cfg(test)]
        let is_committed = is_committed || self.has(Mutation::AnyEntrant);
        if is_committed {
            let leads = self.active().next().is_some();
            let is_former = |token| self.former.contains(&token);
            let is_former = self.roster.get(&worker).is_some_and(|record| is_former(record.token));
            if let Some(record) = self.roster.get_mut(&worker) {
                // The others wait for a member that took part and holds this state still. They do not wait for one that has just fetched it, or
                // that only says that it holds it.
                let took_part = record.last_op.is_some() || is_former;
                let returns = self.committed.is_some() && record.late_restores == 0 && (took_part || !leads);
                if record.last_op.is_none() && !(is_former && self.returning.is_some()) {
                    record.since = self.rounds + 1;
                }
                record.is_new = false;
                record.state = if returns { MemberState::Active } else { MemberState::Ready };
                (record.steps, record.is_assigned) = (0, true);
            }
            self.send(worker, ToMember::Ready { op: self.op });
            return self.send_round_due(worker);
        }
        let Some(committed) = self.committed else { return };
        let donor = (self.roster.iter_mut())
            .filter(|(other, record)| **other != worker && record.session.is_some())
            .filter(|(_, record)| record.version == Some(committed))
            .filter(|(_, record)| matches!(record.state, MemberState::Active | MemberState::Ready))
            .min_by_key(|(_, record)| record.donations);
        if let Some((donor, record)) = donor {
            record.donations += 1;
            let donor = record.peer(*donor);
            if let Some(record) = self.roster.get_mut(&worker) {
                (record.state, record.is_new) = (MemberState::Restoring(committed), false);
            }
            self.emit(CoordinatorEvent::Restores { worker, donor: donor.worker, version: committed });
            self.send(worker, ToMember::Restore { donor, version: committed });
        }
    }

    /// Why a new process must not take the state of the run in place of the one that it brings from a checkpoint, if it must not: its checkpoints are
    /// those of another course of the run, or of a later moment, and would be replaced.
    fn conflict(&self, worker: u32, version: StateVersion) -> Option<String> {
        let committed = self.committed?;
        let leads = self.active().next().is_some() && self.returning.is_none();
        let record = self.roster.get(&worker).filter(|record| record.is_new && version.op > 0)?;
        let differs = self.history.get(&version.op).is_some_and(|digest| *digest != version.digest);
        let is_forgotten = self.history.first_key_value().is_some_and(|(oldest, _)| version.op < *oldest);
        let how = match () {
            () if record.state != MemberState::Waiting => return None,
            () if differs => "in which that operation had another result",
            () if is_forgotten => "which does not know any more what that one was",
            () if leads && version.op > committed.op => "which is not that far",
            () => return None,
        };
        Some(format!(
            "its checkpoint is of operation {}, and the run is at operation {}, {how}: the run continued from another state. Taking part would \
             replace the checkpoint; it is kept. Join with another folder (--out), or stop the run and continue from this checkpoint",
            version.op, committed.op
        ))
    }

    /// Removes a member.
    fn remove(&mut self, worker: u32, why: Why) {
        let Some(record) = self.roster.remove(&worker) else { return };
        self.limits.retain(|_, limit| !limit.is_full(record.last_seen));
        if self.limits.len() >= GONE {
            self.limits.pop_first();
        }
        self.limits.insert(record.token, record.rate_limit);
        self.operation.arrived.remove(&worker);
        if let Some(session) = record.session {
            self.actions.push(Action::Disconnect { session });
        }
        if record.state == MemberState::Active {
            self.lost.push(Lost { worker, why: why.clone() });
            self.lost.sort_by_key(|lost| lost.worker);
            self.epoch += 1;
            self.abort_without(worker);
        }
        self.emit(CoordinatorEvent::Lost(Lost { worker, why }));
    }

    /// Removes members that are lost, and begins or ends the operation that this completes.
    fn check(&mut self, now: Duration) {
        let Settings { silence, mut grace, stall, .. } = self.settings;
        if self.paused_at.is_some_and(|at| now.saturating_sub(at) < silence) {
            // Members have given up their connections meanwhile, and all make new ones at once.
            grace = silence;
        }
        let (opens, awaits_all, mut gone) = (self.begins_round(), self.awaits_all(), Vec::new());
        for (worker, record) in &self.roster {
            // One that still loads its data has not said yet which state it holds.
            let is_loading = record.state == MemberState::Greeted;
            let founds = self.committed.is_none() && *worker < self.settings.founders && !is_loading;
            let must_arrive = founds || awaits_all || !opens && record.state == MemberState::Active;
            let waited = self.operation.waits_for(*worker, must_arrive);
            let idle = waited.map(|since| now.saturating_sub(since.max(record.progressed_at)));
            if record.disconnected_at.is_some_and(|at| now.saturating_sub(at) >= grace) {
                gone.push((*worker, Why::Disconnected));
            } else if record.session.is_some() && now.saturating_sub(record.last_seen) >= silence {
                gone.push((*worker, Why::Stalled { after: silence }));
            } else if idle.is_some_and(|idle| idle >= stall) {
                gone.push((*worker, Why::Stalled { after: stall }));
            }
        }
        gone.into_iter().for_each(|(worker, why)| self.remove(worker, why));
        if self.finished.is_some() {
            // Nothing follows.
            return;
        }
        if self.active().next().is_none()
            && !self.is_open()
            && let Some(committed) = self.committed
        {
            // All members of the round are gone. No survivor knows what was being decided.
            self.continue_from(committed);
            self.assign_all();
        }
        if !self.is_open() {
            self.agree_on_state(false);
        }
        self.catch_up();
        self.recover(now);
        self.advance(now);
    }

    /// Whether this member has called the next operation.
    pub fn has_arrived(&self, worker: u32) -> bool {
        self.operation.arrived.contains_key(&worker)
    }

    /// The members that those who have called the next operation wait for.
    pub fn awaited(&self) -> Vec<u32> {
        if let Some(transfer) = &self.operation.transfer {
            let members = transfer.members.iter().map(|peer| peer.worker);
            return members.filter(|worker| !transfer.done.contains_key(worker)).collect();
        }
        let is_late = |worker: &u32| !self.has_arrived(*worker);
        match self.operation.arrived.is_empty() {
            true => Vec::new(),
            false if self.awaits_all() => self.roster.keys().copied().filter(is_late).collect(),
            false => self.missing(),
        }
    }

    /// The tokens of the members that committed the end of the run and are still here.
    pub fn voters(&self) -> BTreeSet<u64> {
        let tokens = self.roster.values().map(|record| record.token);
        tokens.filter(|token| self.finished.as_ref().is_some_and(|it| it.contains(token))).collect()
    }

    /// Whether a member has asked all to stop, and not whoever runs the coordinator.
    pub fn is_stopped_by_member(&self) -> bool {
        self.is_stopped_by_member
    }

    /// The active members that have not called the next operation.
    fn missing(&self) -> Vec<u32> {
        self.active().map(|(worker, _)| worker).filter(|worker| !self.has_arrived(*worker)).collect()
    }

    /// What the group waits for, in words.
    pub fn reason(&self, now: Duration) -> String {
        let awaited = self.awaited().iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let (op, arrived) = (self.op, self.workers_of(self.operation.arrived.keys()));
        let call = self.operation.arrived.values().next().map(|arrival| arrival.call);
        match (&self.operation.transfer, self.operation.began) {
            (Some(_), _) => {
                let what = if call.is_some_and(Call::is_gather) { "messages" } else { "vectors" };
                format!("operation {op}: transferring {what}; not done: workers {awaited}")
            }
            (None, _) if self.committed.is_none() => {
                format!("{arrived} of {} workers have arrived for the first round", self.settings.founders)
            }
            (None, None) => "local steps".into(),
            (None, Some(began)) => {
                let call = call.map_or("nothing", Call::name);
                let waited = now.saturating_sub(began).as_secs_f64();
                format!(
                    "operation {op} ({call}): {arrived} have arrived; waiting for workers {awaited} for {waited:.1} s"
                )
            }
        }
    }
}

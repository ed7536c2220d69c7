//! The coordinator on sockets: one thread listens, one keeps time, and each connection has one that receives.
//!
//! Whoever receives a message also decides what follows from it, so that a message costs one thread that wakes up. One thread
//! decides at a time. Messages are sent without waiting. What a connection does not take at once is sent later, and a peer
//! that takes nothing is disconnected. An error or a panic of a decision ends the coordinator.

use super::event::CoordinatorEvent;
use super::journal::{Journal, Past, lost, objection};
use super::rejected_peers::RejectedPeers;
use super::roster::{MemberState, Session};
use super::{Action, Coordinator, Input, Settings};
use crate::Error;
use crate::group::environment::{Environment, Monitor, POLL, lock};
use crate::group::fingerprint::objection as objection_to;
use crate::group::messages::{
    Entry, LONGEST, LONGEST_CHARTER, StateVersion, ToCoordinator, ToMember, VERSION, decode, encode,
};
#[cfg(test)]
use crate::group::simulate::Mutation;
use crate::group::wire::connection::{Reader, Writer};
use crate::group::wire::file_limit::{Limits, objection as too_few_files};
use crate::group::wire::frame::HEADER;
use crate::group::wire::listener::{self, Opened, Service};
use crate::group::wire::tls::Security;
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// How often the coordinator checks the clock.
const TICK: Duration = Duration::from_millis(50);
/// If it decides nothing for this long, the process or its machine was stopped.
const PAUSE: Duration = Duration::from_millis(500);
/// How long sending a message may take.
const SEND_TIMEOUT: Duration = Duration::from_secs(3);
/// Bytes that may wait to be sent on one connection: the longest message, and some short ones.
const UNSENT: usize = LONGEST + (64 << 10);
/// Bytes of reports that may wait for whoever takes them. Beyond that a connection holds back everything but heartbeats.
const BACKLOG: usize = 64 << 20;
/// Bytes that a connection may hold back. Beyond that it is not read from.
const HELD_BACK: usize = 32 << 20;
/// The longest message that is no report and no proposal.
const SHORT: usize = 4096;

/// With [`Settings::records`]: when the last copy is dropped, the member is told that its report has arrived. Until then it sends it again to a
/// coordinator that takes the place of this one.
#[derive(Clone, Debug, Default)]
pub struct Receipt {
    _due: Option<Arc<DueReceipt>>,
}

#[derive(Debug)]
struct DueReceipt {
    shared: Weak<Shared>,
    session: Session,
}

impl Drop for DueReceipt {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        let ack = Action::Send { session: self.session, message: ToMember::ReportAck };
        shared.decide(|decider| {
            decider.act(ack, &shared);
            Ok(())
        });
    }
}

/// Something that happened at the coordinator.
#[derive(Clone, Debug)]
pub enum ServerEvent {
    /// The coordinator decided something.
    Decision(CoordinatorEvent),
    /// A member sent a report.
    Report {
        /// The member.
        worker: u32,
        /// Drawn by its process at the start. A process that takes the number of one that was lost has another one.
        token: u64,
        /// It took part in the operation that ended the run: then it has a vote on how the run ended.
        is_voter: bool,
        /// The report.
        report: Vec<u8>,
        /// The member is told that the report has arrived.
        receipt: Receipt,
    },
    /// A connection was rejected: the last of those since the last such event. There is at most one per minute.
    RejectedPeer {
        /// Where it came from.
        from: String,
        /// Why it was rejected, and how many more were.
        why: String,
    },
    /// The coordinator cannot continue.
    Failed {
        /// Why.
        why: String,
    },
}

/// What passed on a control connection, or on all of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    /// Bytes of messages both ways, without reports.
    pub control: u64,
    /// Bytes of reports.
    pub reports: u64,
    /// How long it was open.
    pub open: Duration,
}

impl Traffic {
    fn plus(self, Traffic { control, reports, open }: Self) -> Self {
        Traffic { control: self.control + control, reports: self.reports + reports, open: self.open + open }
    }
}

/// The status of a group.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// The epoch.
    pub epoch: u64,
    /// The next operation.
    pub op: u64,
    /// The committed state.
    pub committed: Option<StateVersion>,
    /// Rounds that have begun since this coordinator started.
    pub rounds: u64,
    /// Every worker, by number.
    pub workers: Vec<MemberStatus>,
    /// What the group waits for.
    pub reason: String,
    /// At a free pace: steps beyond those asked for, so far.
    pub extra_steps: u64,
    /// The tokens of the members that took part in the operation that ended the run, and are still connected.
    pub voters: BTreeSet<u64>,
    /// A member has asked all to stop, and not whoever runs the coordinator.
    pub is_stopped_by_member: bool,
    /// Of all control connections so far.
    pub traffic: Traffic,
}

/// The status of a worker.
#[derive(Clone, Debug)]
pub struct MemberStatus {
    /// Its number: that of its first worker.
    pub worker: u32,
    /// Drawn by its process at the start.
    pub token: u64,
    /// The number that its process wished for when it joined.
    pub wish: Option<u32>,
    /// How many workers it has.
    pub workers: u32,
    /// Its state.
    pub state: MemberState,
    /// The first round of those that it is known to have taken part in since, as [`Status::rounds`] counts. 0: before this coordinator.
    pub since: u64,
    /// Where it listens for other members.
    pub address: String,
    /// Its local steps of this cycle, according to its last heartbeat.
    pub steps: u64,
    /// The time since its last message.
    pub silent: Duration,
    /// It has called the next operation.
    pub has_arrived: bool,
    /// Others have called the next operation and wait for it.
    pub is_awaited: bool,
    /// Of its control connection.
    pub traffic: Traffic,
}

/// A running coordinator. Dropping it ends it as abruptly as a crash would.
#[derive(Debug)]
pub struct CoordinatorServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    events: Mutex<Receiver<(ServerEvent, Option<Session>)>>,
}

impl CoordinatorServer {
    /// Begins to coordinate a run, or continues it if the journal has records of it. With an empty charter the first worker that joins
    /// defines the run, see [`Joiner::propose`](crate::group::Joiner::propose).
    pub fn new(
        listen: &str,
        security: Security,
        settings: Settings,
        run: u64,
        charter: Vec<u8>,
        journal: Option<&Path>,
    ) -> Result<Self, Error> {
        check_charter(&charter)?;
        let (journal, entries) = journal.map(|path| Journal::open(path, false)).transpose()?.unzip();
        let coordinator = Coordinator::new(settings, run, charter, &entries.unwrap_or_default());
        Self::start(&Environment::System, listen, security, coordinator, journal)
    }

    /// Takes the place of a coordinator that has ended. An error if what is known of the run does not fit together: the run would begin anew, and
    /// its workers would replace the checkpoints of the old one.
    pub fn resume(
        listen: &str,
        security: Security,
        settings: Settings,
        run: u64,
        charter: Vec<u8>,
        past: Past<'_>,
    ) -> Result<Self, Error> {
        check_charter(&charter)?;
        let Past { journal: path, rounds, from_workers } = past;
        // A run begins with its journal. Without one it would begin anew.
        if let Some(why) = lost(path).filter(|_| !from_workers) {
            return Err(Error::Log { path: path.into(), why });
        }
        let (journal, entries) = Journal::open(path, from_workers)?;
        if let Some(why) = objection(&entries, run, if from_workers { 0 } else { rounds }) {
            return Err(Error::Log { path: path.into(), why });
        }
        let mut coordinator = Coordinator::new(settings, run, charter, &entries);
        if rounds > 0 || from_workers {
            coordinator = coordinator.begun(from_workers);
        }
        Self::start(&Environment::System, listen, security, coordinator, Some(journal))
    }

    pub(crate) fn start(
        environment: &Environment,
        listen: &str,
        security: Security,
        coordinator: Coordinator,
        journal: Option<Journal>,
    ) -> Result<Self, Error> {
        if let Some(why) = too_few_files(coordinator.settings.founders) {
            return Err(Error::Connection { why });
        }
        let (emit, events) = channel();
        let (connections, traffic) = (BTreeMap::new(), Traffic::default());
        let (has_journal, decided_at) = (journal.is_some(), environment.now());
        let (unwritten, charter_waits) = (0, false);
        let decider =
            Decider { coordinator, has_journal, unwritten, charter_waits, connections, traffic, decided_at };
        let limits = Limits::here();
        let shared = Arc::new(Shared {
            environment: environment.clone(),
            decider: Mutex::new(Some(decider)),
            journal: Mutex::new(journal),
            unwritten: Monitor::new(environment, VecDeque::new()),
            emit,
            rejected: Mutex::default(),
            backlog: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
            sessions: AtomicU64::new(0),
            open: Arc::default(),
            most: limits.open,
        });
        let address = listener::listen(environment, listen, security, limits, Arc::clone(&shared))?;
        if has_journal {
            let writes = Arc::clone(&shared);
            environment.spawn("journal", move || writes.write_journal())?;
        }
        let clock = Arc::clone(&shared);
        environment.spawn("clock", move || {
            while clock.decide(|decider| decider.tick(&clock)).is_some() {
                if let Some((from, why)) = lock(&clock.rejected).due(clock.environment.now()) {
                    let _ = clock.emit.send((ServerEvent::RejectedPeer { from, why }, None));
                }
                clock.environment.sleep(TICK);
            }
        })?;
        Ok(CoordinatorServer { address, shared, events: Mutex::new(events) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Asks all members to stop together, within a step, also those that connect later.
    pub fn ask_to_stop(&self) {
        self.shared.decide(|decider| decider.handle(Input::AskToStop, &self.shared));
    }

    /// Sends all workers away: the run is over.
    pub fn dismiss(&self, why: &str) {
        self.shared.decide(|decider| {
            let now = self.shared.environment.now();
            for connection in std::mem::take(&mut decider.connections).values_mut() {
                let _ = connection.send(&ToMember::Refused { why: why.into() }, now);
            }
            Ok(())
        });
    }

    /// The status of the group; that of an empty one if the coordinator has failed.
    pub fn status(&self) -> Status {
        self.shared.decide(|decider| Ok(decider.status(self.shared.environment.now()))).unwrap_or_default()
    }

    /// The next event, if there is one within `patience`. Take events often: when too many reports wait, members wait, too.
    pub fn next(&self, patience: Duration) -> Option<ServerEvent> {
        let (mut event, session) = lock(&self.events).recv_timeout(patience).ok()?;
        if let ServerEvent::Report { report: what, receipt, .. } = &mut event {
            self.shared.backlog.fetch_sub(what.len(), Ordering::Relaxed);
            let due = session.map(|session| DueReceipt { shared: Arc::downgrade(&self.shared), session });
            receipt._due = due.map(Arc::new);
        }
        Some(event)
    }
}

fn check_charter(charter: &[u8]) -> Result<(), Error> {
    match charter.len() {
        0..=LONGEST_CHARTER => Ok(()),
        found => Err(Error::Message {
            why: format!("a charter of {found} bytes, where {LONGEST_CHARTER} are allowed"),
        }),
    }
}

impl Drop for CoordinatorServer {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        // If a thread decides now, the next one ends the connections.
        if let Ok(mut decider) = self.shared.decider.try_lock() {
            *decider = None;
        }
        // The same for the journal: another coordinator can have it.
        if let Ok(mut journal) = self.shared.journal.try_lock() {
            *journal = None;
        }
        self.shared.unwritten.notify();
    }
}

/// What the threads of a coordinator share.
#[derive(Debug)]
struct Shared {
    environment: Environment,
    /// None when the coordinator is over.
    decider: Mutex<Option<Decider>>,
    journal: Mutex<Option<Journal>>,
    /// What is decided and not in the journal yet, in order.
    unwritten: Monitor<VecDeque<Decision>>,
    /// Events; with a report the connection on which its receipt is due.
    emit: Sender<(ServerEvent, Option<Session>)>,
    rejected: Mutex<RejectedPeers>,
    /// Bytes of reports that wait.
    backlog: AtomicUsize,
    is_over: AtomicBool,
    sessions: AtomicU64,
    /// One more reference for each open connection, and how many there may be.
    open: Arc<()>,
    most: usize,
}

impl Service for Shared {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn open(self: &Arc<Self>, Opened { from, writer, reader, first }: Opened) -> Result<(), Error> {
        let (message, bytes) = (decode::<ToCoordinator>(&first)?, HEADER + first.len());
        let (ToCoordinator::Hello(hello) | ToCoordinator::HelloOfSet { hello, .. }) = &message else {
            return Err(Error::Message { why: "the first message is not a hello".into() });
        };
        // A certificate has one token, so that nobody can say hello as another member.
        if reader.token().is_some_and(|certified| certified != hello.token) {
            return Err(Error::Message { why: "the token in its hello is not its certificate's".into() });
        }
        let (shared, open) = (Arc::clone(self), Arc::clone(&self.open));
        if Arc::strong_count(&open) - 1 > self.most {
            let why = format!("{} connections are open, and no more fit into the limit on files", self.most);
            return Err(Error::Connection { why });
        }
        let session = shared.sessions.fetch_add(1, Ordering::Relaxed);
        self.environment.spawn("receive", move || {
            let _open = open;
            if let Err(error) = shared.serve(session, writer, reader, (message, bytes)) {
                shared.reject(from, &error);
            }
        })?;
        Ok(())
    }

    fn reject(&self, from: SocketAddr, why: &Error) {
        lock(&self.rejected).add(from.to_string(), why.to_string());
    }
}

impl Shared {
    /// Decides something, once no other thread does. None if the coordinator is over.
    fn decide<T>(&self, decision: impl FnOnce(&mut Decider) -> Result<T, Error>) -> Option<T> {
        let mut place = self.environment.lock_long(&self.decider);
        let decider = place.as_mut().filter(|_| !self.is_over());
        let decided = decider.map(|decider| catch_unwind(AssertUnwindSafe(|| decision(decider))));
        let why = match decided {
            Some(Ok(Ok(found))) => return Some(found),
            Some(Ok(Err(error))) => Some(error.to_string()),
            // Nobody knows what is left of its state.
            Some(Err(panic)) => Some(format!("a decision panicked: {}", message_of(&*panic))),
            None => None,
        };
        self.is_over.store(true, Ordering::Relaxed);
        // All connections end.
        *place = None;
        why.into_iter().for_each(|why| drop(self.emit.send((ServerEvent::Failed { why }, None))));
        None
    }

    /// Writes the journal. What was decided is done once it is on the disk. The disk may take its time: others decide meanwhile, and heartbeats
    /// are answered.
    fn write_journal(&self) {
        while !self.is_over() {
            let mut waiting = self.unwritten.lock();
            if waiting.is_empty() {
                drop(self.unwritten.wait(waiting, POLL));
                continue;
            }
            let decisions: Vec<Decision> = waiting.drain(..).collect();
            drop(waiting);
            let entries: Vec<Entry> =
                decisions.iter().flat_map(|decision| decision.entries.iter().cloned()).collect();
            let written = {
                #[cfg(test)]
                let _locked = (self.environment.mutation() == Some(Mutation::LockedJournal))
                    .then(|| self.environment.lock_long(&self.decider));
                let mut journal = self.environment.lock_long(&self.journal);
                journal.as_mut().filter(|_| !entries.is_empty()).map_or(Ok(()), |it| it.append(&entries))
            };
            self.decide(|decider| {
                written?;
                decider.unwritten -= decisions.len();
                decider.charter_waits &= !has_charter(&entries);
                decisions.into_iter().flat_map(|it| it.actions).for_each(|action| decider.act(action, self));
                Ok(())
            });
        }
    }

    /// Serves a connection. What is wrong with it ends it, and it alone.
    fn serve(
        &self,
        session: Session,
        writer: Writer,
        mut reader: Reader,
        (message, bytes): (ToCoordinator, usize),
    ) -> Result<(), Error> {
        let (mut writer, mut bytes) = (writer, bytes);
        if let ToCoordinator::Hello(hello) | ToCoordinator::HelloOfSet { hello, .. } = &message
            && hello.version == VERSION
        {
            // A member of another version is refused for that, by the coordinator.
            let (build, length) = self.build_of(&mut reader)?;
            if let Some(why) = objection_to(build) {
                let _ = writer
                    .queue(&encode(&ToMember::Refused { why: why.clone() })?)
                    .and_then(|()| writer.flush());
                reader.end();
                return Err(Error::Refused { why });
            }
            bytes += length;
        }
        self.decide(|decider| {
            let (opened, traffic) = (self.environment.now(), Traffic::default());
            let connection = Connection { writer, opened, unsent_since: None, traffic };
            decider.connections.insert(session, connection);
            decider.receive(session, message, bytes, self)
        });
        let result = self.receive(&mut reader, |message, bytes| {
            self.decide(|decider| decider.receive(session, message, bytes, self)).is_some()
        });
        reader.end();
        self.decide(|decider| {
            decider.disconnect(session, self.environment.now());
            decider.handle(Input::Disconnected { session }, self)
        });
        result
    }

    /// The fingerprint of a member's build, its second message; and how long that was.
    fn build_of(&self, reader: &mut Reader) -> Result<(u64, usize), Error> {
        let began = self.environment.now();
        let keep_going = || !self.is_over() && self.environment.now() - began < SEND_TIMEOUT;
        let body = reader.receive(SHORT, &keep_going)?.unwrap_or_default();
        match decode(&body)? {
            ToCoordinator::Build { fingerprint } => Ok((fingerprint, HEADER + body.len())),
            _ => Err(Error::Message { why: "the second message does not name its build".into() }),
        }
    }

    /// Passes on messages until the connection ends. While too many reports wait, only heartbeats pass: the others are held back
    /// in order.
    fn receive(
        &self,
        reader: &mut Reader,
        mut pass: impl FnMut(ToCoordinator, usize) -> bool,
    ) -> Result<(), Error> {
        let mut held: VecDeque<(ToCoordinator, usize)> = VecDeque::new();
        loop {
            let is_congested = || self.backlog.load(Ordering::Relaxed) > BACKLOG;
            let size =
                |held: &VecDeque<(ToCoordinator, usize)>| held.iter().map(|(_, bytes)| bytes).sum::<usize>();
            while is_congested() && size(&held) > HELD_BACK && !self.is_over() {
                self.environment.sleep(TICK);
            }
            while !is_congested()
                && let Some((message, bytes)) = held.pop_front()
            {
                pass(message, bytes);
            }
            let received = reader.receive(LONGEST, &|| !self.is_over());
            let body = match received {
                Ok(Some(body)) => body,
                // A connection that ends is no error in itself.
                Ok(None) | Err(Error::Connection { .. }) => break,
                Err(error) => return Err(error),
            };
            let (message, bytes) = (decode(&body)?, HEADER + body.len());
            let is_report = matches!(message, ToCoordinator::Report(_));
            let is_long = is_report || matches!(message, ToCoordinator::Propose(_));
            if !is_long && body.len() > SHORT {
                let why = format!("a message of {} bytes, where {SHORT} are allowed", body.len());
                return Err(Error::Message { why });
            }
            let waits = !held.is_empty() || is_report && is_congested();
            if waits && !matches!(message, ToCoordinator::Heartbeat { .. }) {
                held.push_back((message, bytes));
            } else if !pass(message, bytes) {
                return Ok(());
            }
        }
        for (message, bytes) in held {
            pass(message, bytes);
        }
        Ok(())
    }
}

fn has_charter(entries: &[Entry]) -> bool {
    entries.iter().any(|entry| matches!(entry, Entry::Adopted { .. }))
}

/// The message of a panic.
fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("it left no message")
}

/// A connection to a worker.
#[derive(Debug)]
struct Connection {
    writer: Writer,
    opened: Duration,
    /// Since when bytes wait to be sent.
    unsent_since: Option<Duration>,
    traffic: Traffic,
}

impl Connection {
    fn send(&mut self, message: &ToMember, now: Duration) -> Result<(), Error> {
        let body = encode(message)?;
        self.traffic.control += (HEADER + body.len()) as u64;
        self.writer.queue(&body)?;
        self.flush(now)
    }

    /// Sends what can be sent without waiting. An error if the peer receives too little.
    fn flush(&mut self, now: Duration) -> Result<(), Error> {
        let unsent = self.writer.flush()?;
        self.unsent_since = (unsent > 0).then(|| self.unsent_since.unwrap_or(now));
        if unsent > UNSENT || self.unsent_since.is_some_and(|since| now.saturating_sub(since) > SEND_TIMEOUT)
        {
            return Err(Error::Connection { why: "the peer receives too little".into() });
        }
        Ok(())
    }

    fn traffic(&self, now: Duration) -> Traffic {
        Traffic { open: now.saturating_sub(self.opened), ..self.traffic }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.writer.end();
    }
}

/// What was decided: entries that must be in the journal before the actions are carried out.
#[derive(Debug)]
struct Decision {
    entries: Vec<Entry>,
    actions: Vec<Action>,
}

/// Decides, and carries out what was decided.
#[derive(Debug)]
struct Decider {
    coordinator: Coordinator,
    has_journal: bool,
    /// Decisions that wait for the journal. All that follows waits behind them.
    unwritten: usize,
    /// The charter is among them.
    charter_waits: bool,
    /// When it last decided something.
    decided_at: Duration,
    connections: BTreeMap<Session, Connection>,
    /// Of connections that have ended.
    traffic: Traffic,
}

impl Decider {
    fn receive(
        &mut self,
        session: Session,
        message: ToCoordinator,
        bytes: usize,
        shared: &Shared,
    ) -> Result<(), Error> {
        if let Some(connection) = self.connections.get_mut(&session) {
            match message {
                ToCoordinator::Report(_) => connection.traffic.reports += bytes as u64,
                _ => connection.traffic.control += bytes as u64,
            }
        }
        self.handle(Input::Message { session, message }, shared)
    }

    fn tick(&mut self, shared: &Shared) -> Result<(), Error> {
        let now = shared.environment.now();
        let unsent = self.connections.iter_mut().filter(|(_, one)| one.unsent_since.is_some());
        let late = unsent.filter_map(|(session, one)| one.flush(now).is_err().then_some(*session));
        late.collect::<Vec<_>>().into_iter().for_each(|session| self.disconnect(session, now));
        self.handle(Input::Tick, shared)
    }

    /// Decides what follows, and does it. What must be in the journal is written and synced before anything else is done.
    fn handle(&mut self, input: Input, shared: &Shared) -> Result<(), Error> {
        let now = shared.environment.now();
        let pause = now.saturating_sub(std::mem::replace(&mut self.decided_at, now));
        #[cfg(test)]
        let is_seen = self.coordinator.settings.mutation != Some(Mutation::OwnClock);
        #[cfg(test)]
        let pause = pause * u32::from(is_seen);
        let mut actions = Vec::new();
        if pause > PAUSE {
            // What members sent meanwhile is still to be read.
            actions = self.coordinator.handle(Input::Paused(pause), now);
        }
        actions.extend(self.coordinator.handle(input, now));
        // Heartbeats are answered at once: a slow disk would make members give up their connections.
        // So is a new connection: nothing that is sent on it waits yet, and it says nothing that must be in the journal but a charter.
        let charter_waits = self.charter_waits;
        #[cfg(test)]
        let is_late = self.coordinator.settings.mutation == Some(Mutation::LateWelcome);
        let is_urgent = |action: &mut Action| match action {
            Action::Send { message: ToMember::HeartbeatAck, .. } => true,
            #[cfg(test)]
            Action::Send { message: ToMember::Welcome { .. }, .. } if is_late => false,
            Action::Send { message: ToMember::Welcome { charter, .. }, .. } => {
                charter.is_none() || !charter_waits
            }
            _ => false,
        };
        for urgent in actions.extract_if(.., is_urgent).collect::<Vec<_>>() {
            self.act(urgent, shared);
        }
        let entry =
            |action: &Action| if let Action::Log(entry) = action { Some(entry.clone()) } else { None };
        let entries: Vec<Entry> = actions.iter().filter_map(entry).collect();
        #[cfg(test)]
        if self.coordinator.settings.mutation == Some(Mutation::ActBeforeLog) {
            std::mem::take(&mut actions).into_iter().for_each(|action| self.act(action, shared));
        }
        if !self.has_journal || entries.is_empty() && self.unwritten == 0 {
            actions.into_iter().for_each(|action| self.act(action, shared));
        } else if !(entries.is_empty() && actions.is_empty()) {
            self.unwritten += 1;
            self.charter_waits |= has_charter(&entries);
            shared.unwritten.lock().push_back(Decision { entries, actions });
            shared.unwritten.notify();
        }
        Ok(())
    }

    fn act(&mut self, action: Action, shared: &Shared) {
        let now = shared.environment.now();
        match action {
            Action::Send { session, message } => {
                // A peer that receives nothing, or asks for more than it receives, is disconnected.
                let connection = self.connections.get_mut(&session);
                if connection.is_some_and(|connection| connection.send(&message, now).is_err()) {
                    self.disconnect(session, now);
                }
            }
            Action::Disconnect { session } => self.disconnect(session, now),
            Action::Log(_) => {}
            // Nobody need take the events.
            Action::Report { worker, token, is_voter, report, receipt } => {
                shared.backlog.fetch_add(report.len(), Ordering::Relaxed);
                let unsent = Receipt::default();
                let event = ServerEvent::Report { worker, token, is_voter, report, receipt: unsent };
                let _ = shared.emit.send((event, receipt));
            }
            Action::Emit(event) => drop(shared.emit.send((ServerEvent::Decision(event), None))),
        }
    }

    fn disconnect(&mut self, session: Session, now: Duration) {
        if let Some(connection) = self.connections.remove(&session) {
            self.traffic = self.traffic.plus(connection.traffic(now));
        }
    }

    fn status(&self, now: Duration) -> Status {
        let coordinator = &self.coordinator;
        let awaited = coordinator.awaited();
        let traffic = |session| self.connections.get(&session).map(|connection| connection.traffic(now));
        let workers = coordinator.roster.iter().map(|(worker, record)| MemberStatus {
            worker: *worker,
            token: record.token,
            wish: record.wish,
            workers: record.workers,
            state: record.state,
            since: record.since,
            address: record.address.clone(),
            steps: record.steps,
            silent: now.saturating_sub(record.last_seen),
            has_arrived: coordinator.has_arrived(*worker),
            is_awaited: awaited.contains(worker),
            traffic: record.session.and_then(traffic).unwrap_or_default(),
        });
        Status {
            epoch: coordinator.epoch,
            op: coordinator.op,
            committed: coordinator.committed,
            rounds: coordinator.rounds,
            workers: workers.collect(),
            reason: coordinator.reason(now),
            extra_steps: coordinator.extra_steps,
            voters: coordinator.voters(),
            is_stopped_by_member: coordinator.is_stopped_by_member(),
            traffic: self.connections.values().fold(self.traffic, |sum, one| sum.plus(one.traffic(now))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::deadline::RoundWait;
    use super::*;
    use crate::group::messages::{Call, Hello, Proposal, Record};
    use crate::group::wire::connection::{ALWAYS, dial, establish};
    use std::net::{TcpListener, TcpStream};

    const LONG: Duration = Duration::from_secs(10);

    fn server(settings: Settings, entries: &[Entry]) -> CoordinatorServer {
        let coordinator = Coordinator::new(settings, 7, Vec::new(), entries);
        CoordinatorServer::start(&Environment::System, "127.0.0.1:0", Security::Plain, coordinator, None)
            .unwrap()
    }

    /// While too many reports wait, heartbeats pass; everything else follows in order when there is room.
    #[test]
    fn reports_that_wait_do_not_hold_up_heartbeats() {
        let environment = Environment::System;
        let server = server(Settings::default(), &[]);
        let shared = &server.shared;
        shared.backlog.store(BACKLOG + 1, Ordering::Relaxed);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut writer, _) = establish(&environment, dialled, &Security::Plain, true).unwrap();
        let accepted = listener.accept().unwrap().0;
        let (_, mut reader) = establish(&environment, accepted, &Security::Plain, false).unwrap();
        let mut send = |message: &ToCoordinator| writer.send(&encode(message).unwrap(), ALWAYS).unwrap();
        let heartbeat = |steps: u64| ToCoordinator::Heartbeat { steps, progress: 0, workers: 1 };
        let (passed, passes) = channel();
        let next = || passes.recv_timeout(LONG).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| shared.receive(&mut reader, |message, _| passed.send(message).is_ok()));
            let (report, leave) = (ToCoordinator::Report(vec![1]), ToCoordinator::Leave);
            [&report, &leave, &heartbeat(1)].into_iter().for_each(&mut send);
            assert_eq!(next(), heartbeat(1));
            shared.backlog.store(0, Ordering::Relaxed);
            send(&heartbeat(2));
            // Whether the second heartbeat finds the others still held is a matter of time.
            let mut found = [next(), next(), next()].to_vec();
            found.retain(|message| *message != heartbeat(2));
            assert_eq!(found, [report, leave]);
            shared.is_over.store(true, Ordering::Relaxed);
        });
    }

    /// Says hello as a process with this token.
    fn greet(server: &CoordinatorServer, token: u64) -> (Writer, Reader) {
        let address = server.address().to_string();
        let (mut writer, reader) = dial(&Environment::System, &address, &Security::Plain).unwrap();
        let hello = Hello { version: VERSION, run: 0, token, worker: None, address: "a:1".into() };
        let build = ToCoordinator::Build { fingerprint: crate::group::fingerprint::fingerprint() };
        for message in [ToCoordinator::Hello(hello), build] {
            writer.send(&encode(&message).unwrap(), ALWAYS).unwrap();
        }
        (writer, reader)
    }

    /// The charter with which it is welcomed; none if it is not, within half a second.
    fn welcome(reader: &mut Reader) -> Option<Vec<u8>> {
        let began = std::time::Instant::now();
        let found = reader.receive(LONGEST, &|| began.elapsed() < Duration::from_millis(500)).ok()??;
        match decode(&found).unwrap() {
            ToMember::Welcome { charter, .. } => charter,
            other => panic!("{other:?} is no welcome"),
        }
    }

    /// A sync may take longer than a worker waits for its welcome. It waits for no other entry than the charter that it gets.
    #[test]
    fn a_slow_disk_keeps_nobody_out() {
        let folder = tempfile::tempdir().unwrap();
        let (journal, _) = Journal::open(&folder.path().join("journal"), false).unwrap();
        let (environment, coordinator) =
            (Environment::System, Coordinator::new(Settings::default(), 7, Vec::new(), &[]));
        let plain = Security::Plain;
        let server =
            CoordinatorServer::start(&environment, "127.0.0.1:0", plain, coordinator, Some(journal)).unwrap();
        let await_unwritten = |expected: bool| {
            while server.shared.decide(|decider| Ok(decider.unwritten > 0)).unwrap() != expected {
                environment.sleep(Duration::from_millis(1));
            }
        };
        let (mut first, mut reader) = greet(&server, 5);
        assert_eq!(welcome(&mut reader), Some(vec![]));
        let mut send = |message: &ToCoordinator| first.send(&encode(message).unwrap(), ALWAYS).unwrap();
        let slow = lock(&server.shared.journal);
        send(&ToCoordinator::Propose(Proposal { charter: vec![1], trigger: None, wait: None }));
        await_unwritten(true);
        assert_eq!(welcome(&mut greet(&server, 6).1), None);
        drop(slow);
        await_unwritten(false);
        let slow = lock(&server.shared.journal);
        send(&ToCoordinator::Enter(StateVersion { op: 0, digest: 1 }));
        send(&ToCoordinator::Arrive { op: 0, call: Call::Gather, steps: 0, known_epoch: 0 });
        await_unwritten(true);
        assert_eq!(welcome(&mut greet(&server, 7).1), Some(vec![1]));
        await_unwritten(true);
        drop(slow);
    }

    /// The next event, which says that the coordinator failed.
    fn failure(server: &CoordinatorServer) -> String {
        match server.next(LONG) {
            Some(ServerEvent::Failed { why }) => why,
            other => panic!("{other:?} where a failure was expected"),
        }
    }

    /// A real panic of a decision, by the clock's thread: a wait that overflows.
    #[test]
    fn a_coordinator_that_panics_says_so() {
        let round_wait =
            RoundWait { shortest: Duration::MAX, longest: Duration::MAX, ..RoundWait::default() };
        let version = StateVersion { op: 1, digest: 1 };
        let record = Record { run: 7, epoch: 1, version, members: 1, tokens: vec![1] };
        let server = server(Settings { round_wait, ..Settings::default() }, &[Entry::Committed(record)]);
        assert_eq!(failure(&server), "a decision panicked: overflow when adding durations");
        assert_eq!(server.status().op, 0);
    }

    /// Members see their connections end, and nobody waits for a coordinator that is over.
    #[test]
    fn a_panic_ends_all_connections() {
        let server = server(Settings::default(), &[]);
        let (_writer, mut reader) = greet(&server, 5);
        let welcome = reader.receive(LONGEST, ALWAYS).unwrap().unwrap();
        assert!(matches!(decode(&welcome).unwrap(), ToMember::Welcome { worker: 0, .. }));
        assert_eq!(server.status().workers.len(), 1);
        assert_eq!(server.shared.decide(|_| -> Result<(), Error> { panic!("{} way", "half") }), None);
        assert_eq!(failure(&server), "a decision panicked: half way");
        assert!(matches!(reader.receive(LONGEST, ALWAYS), Ok(None) | Err(Error::Connection { .. })));
        server.dismiss("nobody is left");
        assert_eq!(server.status().workers.len(), 0);
    }
}

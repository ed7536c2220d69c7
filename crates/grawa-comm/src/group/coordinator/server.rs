//! The coordinator on sockets: one thread decides, one listens, and each connection has one that receives and one that sends.

use super::event::CoordinatorEvent;
use super::journal::Journal;
use super::rejected_peers::RejectedPeers;
use super::roster::{MemberState, Session};
use super::{Action, Coordinator, Input, Settings};
use crate::Error;
use crate::group::environment::{Environment, Queue, lock};
use crate::group::messages::{LONGEST, Record, StateVersion, ToCoordinator, ToMember, decode, encode};
use crate::group::wire::connection::{Reader, Writer};
use crate::group::wire::file_limit::Limits;
use crate::group::wire::frame::HEADER;
use crate::group::wire::listener::{self, Opened, Service};
use crate::group::wire::tls::Security;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often the coordinator checks the clock.
const TICK: Duration = Duration::from_millis(50);
/// How long sending a message may take.
const SEND_TIMEOUT: Duration = Duration::from_secs(3);
/// Messages that may wait for the thread that decides, and those that may wait to be sent on one connection.
const INBOX: usize = 256;
const UNSENT: usize = 1024;
/// Bytes of reports that may wait for whoever takes them. Beyond that a connection holds back everything but heartbeats.
const BACKLOG: usize = 64 << 20;
/// Bytes that a connection may hold back. Beyond that it is not read from.
const HELD_BACK: usize = 32 << 20;
/// The longest message that is not a report.
const SHORT: usize = 4096;

/// Something that happened at the coordinator.
#[derive(Clone, Debug)]
pub enum ServerEvent {
    /// The coordinator decided something.
    Decision(CoordinatorEvent),
    /// A member sent a report.
    Report {
        /// The member.
        worker: u32,
        /// The report.
        report: Vec<u8>,
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

impl std::ops::Add for Traffic {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Traffic {
            control: self.control + other.control,
            reports: self.reports + other.reports,
            open: self.open + other.open,
        }
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
    /// Every worker, by number.
    pub workers: Vec<MemberStatus>,
    /// What the group waits for.
    pub reason: String,
    /// At a free pace: steps beyond those asked for, so far.
    pub extra_steps: u64,
    /// Of all control connections so far.
    pub traffic: Traffic,
}

/// The status of a worker.
#[derive(Clone, Debug)]
pub struct MemberStatus {
    /// Its number.
    pub worker: u32,
    /// Its state.
    pub state: MemberState,
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
    /// It has a vote on the end of the run.
    pub has_vote: bool,
    /// Of its control connection.
    pub traffic: Traffic,
}

/// A running coordinator. Dropping it ends it as abruptly as a crash would.
#[derive(Debug)]
pub struct CoordinatorServer {
    environment: Environment,
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    status: Arc<Mutex<Status>>,
    events: Mutex<Receiver<ServerEvent>>,
    backlog: Arc<AtomicUsize>,
    inbox: Arc<Queue<Inbound>>,
}

impl CoordinatorServer {
    /// Begins to coordinate a run, or continues it if the journal has records of it.
    pub fn new(
        listen: &str,
        security: Security,
        settings: Settings,
        run: u64,
        charter: Vec<u8>,
        journal: Option<&Path>,
    ) -> Result<Self, Error> {
        if charter.len() > LONGEST / 2 {
            let why = format!("a charter of {} bytes, where {} are allowed", charter.len(), LONGEST / 2);
            return Err(Error::Message { why });
        }
        let (journal, records) = journal.map(Journal::open).transpose()?.unzip();
        let coordinator = Coordinator::new(settings, run, charter, &records.unwrap_or_default());
        Self::start(&Environment::System, listen, security, coordinator, journal)
    }

    pub(crate) fn start(
        environment: &Environment,
        listen: &str,
        security: Security,
        coordinator: Coordinator,
        journal: Option<Journal>,
    ) -> Result<Self, Error> {
        let (is_over, status) = (Arc::new(AtomicBool::new(false)), Arc::<Mutex<Status>>::default());
        let (emit, events) = channel();
        let inbox = Arc::new(Queue::new(environment, INBOX));
        let backlog = Arc::<AtomicUsize>::default();
        let limits = Limits::here();
        let acceptor = Acceptor {
            environment: environment.clone(),
            inbox: Arc::clone(&inbox),
            emit: emit.clone(),
            rejected: Mutex::default(),
            backlog: Arc::clone(&backlog),
            is_over: Arc::clone(&is_over),
            sessions: AtomicU64::new(0),
            open: Arc::default(),
            most: limits.open,
        };
        let address = listener::listen(environment, listen, security, limits, Arc::new(acceptor))?;
        let mut decider = Decider {
            environment: environment.clone(),
            coordinator,
            journal,
            connections: BTreeMap::new(),
            traffic: Traffic::default(),
            emit,
            backlog: Arc::clone(&backlog),
            status: Arc::clone(&status),
        };
        let (over, queue) = (Arc::clone(&is_over), Arc::clone(&inbox));
        environment.spawn("coordinator", move || {
            if let Err(error) = decider.run(&queue, &over) {
                let _ = decider.emit.send(ServerEvent::Failed { why: error.to_string() });
            }
            over.store(true, Ordering::Relaxed);
            queue.close();
        })?;
        let (environment, events) = (environment.clone(), Mutex::new(events));
        Ok(CoordinatorServer { environment, address, is_over, status, events, backlog, inbox })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends all workers away: the run is over.
    pub fn dismiss(&self, why: &str) {
        self.inbox.push(Inbound::Dismiss { why: why.into() });
    }

    /// The status of the group.
    pub fn status(&self) -> Status {
        lock(&self.status).clone()
    }

    /// The next event, if there is one within `patience`. Take events often: when too many reports wait, members wait, too.
    pub fn next(&self, patience: Duration) -> Option<ServerEvent> {
        let event = lock(&self.events).recv_timeout(patience).ok()?;
        if let ServerEvent::Report { report: what, .. } = &event {
            self.backlog.fetch_sub(what.len(), Ordering::Relaxed);
        }
        Some(event)
    }
}

impl Drop for CoordinatorServer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.inbox.close();
        listener::wake(&self.environment, self.address);
    }
}

/// What the thread that decides gets from the others.
#[derive(Debug)]
enum Inbound {
    Connected { session: Session, connection: Connection },
    Message { session: Session, message: ToCoordinator, bytes: usize },
    Disconnected { session: Session },
    Dismiss { why: String },
}

/// Accepts connections whose peer is authenticated and says hello.
struct Acceptor {
    environment: Environment,
    inbox: Arc<Queue<Inbound>>,
    emit: Sender<ServerEvent>,
    rejected: Mutex<RejectedPeers>,
    backlog: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
    sessions: AtomicU64,
    /// One more reference for each open connection, and how many there may be.
    open: Arc<()>,
    most: usize,
}

impl Service for Acceptor {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn open(self: &Arc<Self>, Opened { from, writer, reader, first }: Opened) -> Result<(), Error> {
        let (message, bytes) = (decode::<ToCoordinator>(&first)?, HEADER + first.len());
        let ToCoordinator::Hello { token, .. } = &message else {
            return Err(Error::Message { why: "the first message is not a hello".into() });
        };
        // A certificate has one token, so that nobody can say hello as another member.
        if reader.token().is_some_and(|certified| certified != *token) {
            return Err(Error::Message { why: "the token in its hello is not its certificate's".into() });
        }
        let (acceptor, open) = (Arc::clone(self), Arc::clone(&self.open));
        if Arc::strong_count(&open) - 1 > self.most {
            let why = format!("{} connections are open, and no more fit into the limit on files", self.most);
            return Err(Error::Connection { why });
        }
        let session = acceptor.sessions.fetch_add(1, Ordering::Relaxed);
        self.environment.spawn("receive", move || {
            let _open = open;
            if let Err(error) = acceptor.serve(session, writer, reader, (message, bytes)) {
                acceptor.reject(from, &error);
            }
        })?;
        Ok(())
    }

    fn reject(&self, from: SocketAddr, why: &Error) {
        lock(&self.rejected).add(from.to_string(), why.to_string());
    }

    fn tick(&self) {
        if let Some((from, why)) = lock(&self.rejected).due(self.environment.now()) {
            let _ = self.emit.send(ServerEvent::RejectedPeer { from, why });
        }
    }
}

impl Acceptor {
    /// Serves a connection. What is wrong with it ends it, and it alone.
    fn serve(
        &self,
        session: Session,
        writer: Writer,
        mut reader: Reader,
        (message, bytes): (ToCoordinator, usize),
    ) -> Result<(), Error> {
        let connection = Connection::new(&self.environment, writer)?;
        if !self.inbox.push(Inbound::Connected { session, connection }) {
            return Ok(());
        }
        self.inbox.push(Inbound::Message { session, message, bytes });
        let result = self.receive(session, &mut reader);
        reader.end();
        self.inbox.push(Inbound::Disconnected { session });
        result
    }

    /// Passes on messages until the connection ends. While too many reports wait, only heartbeats pass: the others are held back
    /// in order.
    fn receive(&self, session: Session, reader: &mut Reader) -> Result<(), Error> {
        let mut held: VecDeque<(ToCoordinator, usize)> = VecDeque::new();
        let pass = |(message, bytes)| self.inbox.push(Inbound::Message { session, message, bytes });
        loop {
            let is_congested = || self.backlog.load(Ordering::Relaxed) > BACKLOG;
            let size =
                |held: &VecDeque<(ToCoordinator, usize)>| held.iter().map(|(_, bytes)| bytes).sum::<usize>();
            while is_congested() && size(&held) > HELD_BACK && !self.is_over() {
                self.environment.sleep(TICK);
            }
            while !is_congested()
                && let Some(next) = held.pop_front()
            {
                pass(next);
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
            if !is_report && body.len() > SHORT {
                let why = format!("a message of {} bytes, where {SHORT} are allowed", body.len());
                return Err(Error::Message { why });
            }
            let waits = !held.is_empty() || is_report && is_congested();
            if waits && !matches!(message, ToCoordinator::Heartbeat { .. }) {
                held.push_back((message, bytes));
            } else if !pass((message, bytes)) {
                return Ok(());
            }
        }
        for next in held {
            pass(next);
        }
        Ok(())
    }
}

/// A connection to a worker.
#[derive(Debug)]
struct Connection {
    environment: Environment,
    unsent: Arc<Queue<ToMember>>,
    opened: Duration,
    bytes: Arc<AtomicU64>,
    report_bytes: u64,
}

impl Connection {
    /// A thread of its own sends, so that a peer that receives nothing holds up nobody else.
    fn new(environment: &Environment, mut writer: Writer) -> Result<Self, Error> {
        let unsent = Arc::new(Queue::new(environment, UNSENT));
        let (bytes, messages) = (Arc::<AtomicU64>::default(), Arc::clone(&unsent));
        let connection = Connection {
            environment: environment.clone(),
            unsent,
            opened: environment.now(),
            bytes: Arc::clone(&bytes),
            report_bytes: 0,
        };
        let clock = environment.clone();
        environment.spawn("send", move || {
            while !messages.is_done() {
                let Some(message) = messages.pop(SEND_TIMEOUT) else { continue };
                let began = clock.now();
                let sent = encode(&message).and_then(|body| {
                    bytes.fetch_add((HEADER + body.len()) as u64, Ordering::Relaxed);
                    writer.send(&body, &|| clock.now() - began < SEND_TIMEOUT)
                });
                if sent.is_err() {
                    messages.close();
                    break;
                }
            }
            writer.end();
        })?;
        Ok(connection)
    }

    fn traffic(&self) -> Traffic {
        let control = self.bytes.load(Ordering::Relaxed);
        Traffic { control, reports: self.report_bytes, open: self.environment.now() - self.opened }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.unsent.close();
    }
}

/// The thread that decides.
struct Decider {
    environment: Environment,
    coordinator: Coordinator,
    journal: Option<Journal>,
    connections: BTreeMap<Session, Connection>,
    /// Of connections that have ended.
    traffic: Traffic,
    emit: Sender<ServerEvent>,
    backlog: Arc<AtomicUsize>,
    status: Arc<Mutex<Status>>,
}

impl Decider {
    fn run(&mut self, inbox: &Queue<Inbound>, is_over: &AtomicBool) -> Result<(), Error> {
        let mut ticked = self.environment.now();
        while !is_over.load(Ordering::Relaxed) {
            let since = self.environment.now() - ticked;
            let input = match inbox.pop(TICK.saturating_sub(since)) {
                Some(Inbound::Connected { session, connection }) => {
                    self.connections.insert(session, connection);
                    continue;
                }
                Some(Inbound::Dismiss { why }) => {
                    for connection in std::mem::take(&mut self.connections).into_values() {
                        connection.unsent.try_push(ToMember::Refused { why: why.clone() });
                    }
                    continue;
                }
                Some(Inbound::Message { session, message, bytes }) => {
                    if let Some(connection) = self.connections.get_mut(&session) {
                        match message {
                            ToCoordinator::Report(_) => connection.report_bytes += bytes as u64,
                            _ => drop(connection.bytes.fetch_add(bytes as u64, Ordering::Relaxed)),
                        }
                    }
                    Input::Message { session, message }
                }
                Some(Inbound::Disconnected { session }) => {
                    self.disconnect(session);
                    Input::Disconnected { session }
                }
                None => {
                    ticked = self.environment.now();
                    Input::Tick
                }
            };
            let now = self.environment.now();
            let actions = self.coordinator.handle(input, now);
            self.carry_out(actions)?;
            self.update_status(now);
        }
        Ok(())
    }

    fn disconnect(&mut self, session: Session) {
        if let Some(connection) = self.connections.remove(&session) {
            self.traffic = self.traffic + connection.traffic();
        }
    }

    /// Carries out actions. What must be in the journal is written and synced before anything else is done.
    fn carry_out(&mut self, actions: Vec<Action>) -> Result<(), Error> {
        let record =
            |action: &Action| if let Action::Log(record) = action { Some(record.clone()) } else { None };
        let records: Vec<Record> = actions.iter().filter_map(record).collect();
        #[cfg(test)]
        if self.coordinator.settings.mutation == Some(crate::group::simulate::Mutation::ActBeforeLog) {
            actions.into_iter().for_each(|action| self.act(action));
            return self.journal.as_mut().map_or(Ok(()), |journal| journal.append(&records));
        }
        if let Some(journal) = self.journal.as_mut().filter(|_| !records.is_empty()) {
            journal.append(&records)?;
        }
        actions.into_iter().for_each(|action| self.act(action));
        Ok(())
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Send { session, message } => {
                // A peer that receives nothing, or asks for more than it receives, is disconnected.
                let connection = self.connections.get(&session);
                if connection.is_some_and(|connection| !connection.unsent.try_push(message)) {
                    self.disconnect(session);
                }
            }
            Action::Disconnect { session } => self.disconnect(session),
            Action::Log(_) => {}
            // Nobody need take the events.
            Action::Report { worker, report } => {
                self.backlog.fetch_add(report.len(), Ordering::Relaxed);
                let _ = self.emit.send(ServerEvent::Report { worker, report });
            }
            Action::Emit(event) => drop(self.emit.send(ServerEvent::Decision(event))),
        }
    }

    fn update_status(&self, now: Duration) {
        let coordinator = &self.coordinator;
        let awaited = coordinator.awaited();
        let workers = coordinator.roster().iter().map(|(worker, record)| {
            let connection = record.session.and_then(|session| self.connections.get(&session));
            MemberStatus {
                worker: *worker,
                state: record.state,
                address: record.address.clone(),
                steps: record.steps,
                silent: now.saturating_sub(record.last_seen),
                has_arrived: coordinator.has_arrived(*worker),
                is_awaited: awaited.contains(worker),
                has_vote: record.has_vote(),
                traffic: connection.map(Connection::traffic).unwrap_or_default(),
            }
        });
        let status = Status {
            epoch: coordinator.epoch(),
            op: coordinator.op(),
            committed: coordinator.committed(),
            workers: workers.collect(),
            reason: coordinator.reason(now),
            extra_steps: coordinator.extra_steps(),
            traffic: self.connections.values().fold(self.traffic, |sum, one| sum + one.traffic()),
        };
        *lock(&self.status) = status;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::wire::connection::{ALWAYS, establish};
    use std::net::{TcpListener, TcpStream};

    /// While too many reports wait, heartbeats pass; everything else follows in order when there is room.
    #[test]
    fn reports_that_wait_do_not_hold_up_heartbeats() {
        let environment = Environment::System;
        let inbox = Arc::new(Queue::new(&environment, INBOX));
        let acceptor = Acceptor {
            environment: environment.clone(),
            inbox: Arc::clone(&inbox),
            emit: channel().0,
            rejected: Mutex::default(),
            backlog: Arc::new(AtomicUsize::new(BACKLOG + 1)),
            is_over: Arc::default(),
            sessions: AtomicU64::new(0),
            open: Arc::default(),
            most: 1,
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut writer, _) = establish(&environment, dialled, &Security::Plain, true).unwrap();
        let accepted = listener.accept().unwrap().0;
        let (_, mut reader) = establish(&environment, accepted, &Security::Plain, false).unwrap();
        let mut send = |message: &ToCoordinator| writer.send(&encode(message).unwrap(), ALWAYS).unwrap();
        let heartbeat = |steps: u64| ToCoordinator::Heartbeat { steps, progress: 0 };
        let next = || match inbox.pop(Duration::from_secs(60)) {
            Some(Inbound::Message { message, .. }) => message,
            other => panic!("{other:?}"),
        };
        std::thread::scope(|scope| {
            scope.spawn(|| acceptor.receive(0, &mut reader));
            let (report, leave) = (ToCoordinator::Report(vec![1]), ToCoordinator::Leave);
            [&report, &leave, &heartbeat(1)].into_iter().for_each(&mut send);
            assert_eq!(next(), heartbeat(1));
            acceptor.backlog.store(0, Ordering::Relaxed);
            send(&heartbeat(2));
            // Whether the second heartbeat finds the others still held is a matter of time.
            let mut found = [next(), next(), next()].to_vec();
            found.retain(|message| *message != heartbeat(2));
            assert_eq!(found, [report, leave]);
            acceptor.is_over.store(true, Ordering::Relaxed);
        });
    }
}

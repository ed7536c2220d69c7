//! The coordinator on sockets: a thread that decides, one that listens, and two for every authenticated connection that hear and
//! speak.

use super::coordinator::{Action, Coordinator, Event, Settings};
use super::files::Limits;
use super::frame::HEAD;
use super::key::Wire;
use super::link::{In, LOOK, Out};
use super::listener::{self, Opened, Server};
use super::log::Log;
use super::message::{Down, LONGEST, Record, Stand, Up, decode, encode};
use super::notice::Notice;
use super::rejected::{Rejected, Report};
use super::seat::{Session, State};
use crate::Error;
use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often the coordinator looks at the clock.
const TICK: Duration = Duration::from_millis(50);
/// How long a message may take to be sent.
const SENT: Duration = Duration::from_secs(3);
/// Messages that may wait to be handled, and those that may wait to be sent on one connection.
const WAITING: usize = 256;
const UNSENT: usize = 1024;
/// Bytes of reports that may wait for whoever takes them. Who has another one waits, and sends no heartbeat meanwhile.
const REPORTS: usize = 64 << 20;
/// The longest message that is not a report.
const SHORT: usize = 4096;

/// Something to be told of.
#[derive(Clone, Debug)]
pub enum Told {
    /// What the coordinator decided.
    Notice(Notice),
    /// What a member said.
    Word {
        /// Who.
        worker: u32,
        /// What.
        what: Vec<u8>,
    },
    /// A connection that was rejected: the last of those since the last report, of which there is one a minute at most.
    Stranger {
        /// From where.
        from: String,
        /// Why, and how many more were.
        why: String,
    },
    /// The coordinator cannot go on.
    Failed {
        /// Why.
        why: String,
    },
}

/// What passed on a control connection, or on all of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    /// Bytes of messages both ways, without what was told.
    pub control: u64,
    /// Bytes of what members told for the record.
    pub told: u64,
    /// For how long it was open.
    pub open: Duration,
}

impl std::ops::Add for Traffic {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Traffic {
            control: self.control + other.control,
            told: self.told + other.told,
            open: self.open + other.open,
        }
    }
}

/// How things stand.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// The epoch.
    pub epoch: u64,
    /// The next meeting.
    pub op: u64,
    /// What all hold.
    pub truth: Option<Stand>,
    /// Every worker, by number.
    pub workers: Vec<Standing>,
    /// What is waited for.
    pub reason: String,
    /// At a free pace: steps that were more than asked for, so far.
    pub overshot: u64,
    /// Of all control connections so far.
    pub traffic: Traffic,
}

/// A worker as the coordinator sees it.
#[derive(Clone, Debug)]
pub struct Standing {
    /// Its number.
    pub worker: u32,
    /// What it is to the group.
    pub state: State,
    /// Where it listens for vectors.
    pub address: String,
    /// Its local steps of this cycle, as far as is known.
    pub steps: u64,
    /// For how long nothing was heard of it.
    pub silent: Duration,
    /// It has come to the next meeting.
    pub has_come: bool,
    /// Others have come and wait for it.
    pub is_awaited: bool,
    /// What ends the run needs most of those of whom this holds.
    pub has_vote: bool,
    /// Of its control connection.
    pub traffic: Traffic,
}

/// A coordinator at work. Dropping it ends it as abruptly as a crash would.
#[derive(Debug)]
pub struct Host {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    status: Arc<Mutex<Status>>,
    told: Mutex<Receiver<Told>>,
    reports: Arc<AtomicUsize>,
    events: SyncSender<Heard>,
}

impl Host {
    /// Begins to coordinate a run, or goes on with it if the log says that it has begun.
    pub fn new(
        listen: &str,
        wire: Wire,
        settings: Settings,
        run: u64,
        charter: Vec<u8>,
        log: Option<&Path>,
    ) -> Result<Self, Error> {
        if charter.len() > LONGEST / 2 {
            let why = format!("a charter of {} bytes, where {} are allowed", charter.len(), LONGEST / 2);
            return Err(Error::Message { why });
        }
        let listener = TcpListener::bind(listen)
            .map_err(|error| Error::Connection { why: format!("cannot listen at {listen}: {error}") })?;
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let limits = Limits::here();
        let (log, records) = match log.map(Log::open).transpose()? {
            None => (None, Vec::new()),
            Some((log, records)) => (Some(log), records),
        };
        let coordinator = Coordinator::new(settings, run, charter, &records);
        let (is_over, status) = (Arc::new(AtomicBool::new(false)), Arc::<Mutex<Status>>::default());
        let (tell, told) = channel();
        let (events, inbox) = sync_channel(WAITING);
        let reports = Arc::<AtomicUsize>::default();
        let door = Entrance {
            wire,
            events: events.clone(),
            tell: tell.clone(),
            rejected: Mutex::default(),
            reports: Arc::clone(&reports),
            began: Instant::now(),
            is_over: Arc::clone(&is_over),
            sessions: AtomicU64::new(0),
            open: Arc::default(),
            most: limits.open as u64,
        };
        let door = Arc::new(door);
        let listen = move || listener::serve(&listener, &door.wire, limits, &door);
        std::thread::Builder::new().name("grawa-listen".into()).spawn(listen)?;
        let mut desk = Desk {
            coordinator,
            log,
            lines: HashMap::new(),
            traffic: Traffic::default(),
            tell,
            reports: Arc::clone(&reports),
            status: Arc::clone(&status),
            began: Instant::now(),
        };
        let over = Arc::clone(&is_over);
        std::thread::Builder::new().name("grawa-coordinator".into()).spawn(move || {
            if let Err(error) = desk.work(&inbox, &over) {
                let _ = desk.tell.send(Told::Failed { why: error.to_string() });
            }
            over.store(true, Ordering::Relaxed);
        })?;
        Ok(Host { address, is_over, status, told: Mutex::new(told), reports, events })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends all workers away: the run is over.
    pub fn dismiss(&self, why: &str) {
        // If it has ended there is nobody to send away.
        let _ = self.events.send(Heard::Dismiss { why: why.into() });
    }

    /// How things stand.
    pub fn status(&self) -> Status {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The next thing it tells; nothing if there is none for so long. Reports wait for this: when there are very many of them their
    /// members wait, too.
    pub fn next(&self, patience: Duration) -> Option<Told> {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(patience).ok()?;
        if let Told::Word { what, .. } = &told {
            self.reports.fetch_sub(what.len(), Ordering::Relaxed);
        }
        Some(told)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect_timeout(&self.address, LOOK);
    }
}

#[derive(Debug)]
enum Heard {
    Opened { session: Session, line: Line },
    Up { session: Session, up: Up, bytes: usize },
    Ended { session: Session },
    Dismiss { why: String },
}

/// Lets in who was authenticated and says hello.
struct Entrance {
    wire: Wire,
    events: SyncSender<Heard>,
    tell: Sender<Told>,
    rejected: Mutex<Rejected>,
    reports: Arc<AtomicUsize>,
    began: Instant,
    is_over: Arc<AtomicBool>,
    sessions: AtomicU64,
    /// Connections that are open, and the most that may be.
    open: Arc<AtomicU64>,
    most: u64,
}

/// A connection, of which there is one fewer when this is gone.
struct Open(Arc<AtomicU64>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Server for Arc<Entrance> {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn open(&self, Opened { from, out, input, first }: Opened) -> Result<(), Error> {
        let (up, bytes) = (decode::<Up>(&first)?, HEAD + first.len());
        let Up::Hello { token, .. } = &up else {
            return Err(Error::Message { why: "the first message is not a hello".into() });
        };
        // One place for a certificate: nobody says hello as another member.
        if input.token().is_some_and(|certified| certified != *token) {
            return Err(Error::Message {
                why: "it says hello with a token that is not its certificate's".into(),
            });
        }
        let entrance = Arc::clone(self);
        let open = Open(Arc::clone(&entrance.open));
        if entrance.open.fetch_add(1, Ordering::Relaxed) >= entrance.most {
            let why =
                format!("{} connections are open, and no more fit into the limit on files", entrance.most);
            return Err(Error::Connection { why });
        }
        let session = entrance.sessions.fetch_add(1, Ordering::Relaxed);
        // Where no thread can be had, this connection ends with it, and what is counted is given back.
        let hear = move || {
            let _open = open;
            if let Err(error) = entrance.hear(session, out, input, up, bytes) {
                entrance.reject(from, &error);
            }
        };
        std::thread::Builder::new().name("grawa-hear".into()).spawn(hear)?;
        Ok(())
    }

    fn reject(&self, from: SocketAddr, why: &Error) {
        let mut rejected = self.rejected.lock().unwrap_or_else(PoisonError::into_inner);
        rejected.add(from.to_string(), why.to_string());
    }

    fn tick(&self) {
        let mut rejected = self.rejected.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Report { from, why }) = rejected.due(self.began.elapsed()) {
            let _ = self.tell.send(Told::Stranger { from, why });
        }
    }
}

impl Entrance {
    /// Passes on what is heard on a connection. What is wrong with it ends it, and it alone.
    fn hear(&self, session: Session, out: Out, mut from: In, up: Up, bytes: usize) -> Result<(), Error> {
        let line = Line::new(out)?;
        let gone = |_| Error::Connection { why: "the coordinator has ended".into() };
        self.events.send(Heard::Opened { session, line }).map_err(gone)?;
        self.events.send(Heard::Up { session, up, bytes }).map_err(gone)?;
        let result = self.hear_on(session, &mut from);
        from.end();
        let _ = self.events.send(Heard::Ended { session });
        result
    }

    fn hear_on(&self, session: Session, from: &mut In) -> Result<(), Error> {
        let go_on = || !self.is_over.load(Ordering::Relaxed);
        loop {
            match from.receive(LONGEST, &go_on) {
                Ok(Some(body)) => {
                    let (up, bytes) = (decode(&body)?, HEAD + body.len());
                    if !matches!(up, Up::Tell(_)) && body.len() > SHORT {
                        let why = format!("a message of {} bytes, where {SHORT} are allowed", body.len());
                        return Err(Error::Message { why });
                    }
                    while matches!(up, Up::Tell(_)) && self.reports.load(Ordering::Relaxed) > REPORTS {
                        if !go_on() {
                            return Ok(());
                        }
                        std::thread::sleep(TICK);
                    }
                    if self.events.send(Heard::Up { session, up, bytes }).is_err() {
                        return Ok(());
                    }
                }
                // Connections end: that is no news in itself.
                Ok(None) | Err(Error::Connection { .. }) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

/// A connection to a worker: what is said on it, and how much both ways.
#[derive(Debug)]
struct Line {
    say: SyncSender<Down>,
    opened: Instant,
    bytes: Arc<AtomicU64>,
    told: u64,
}

impl Line {
    /// A thread of its own speaks on a connection, so that one that takes nothing holds up nobody else.
    fn new(mut out: Out) -> Result<Self, Error> {
        let (say, messages) = sync_channel::<Down>(UNSENT);
        let bytes = Arc::<AtomicU64>::default();
        let line = Line { say, opened: Instant::now(), bytes: Arc::clone(&bytes), told: 0 };
        std::thread::Builder::new().name("grawa-speak".into()).spawn(move || {
            for down in messages {
                let began = Instant::now();
                let body = encode(&down);
                let sent = body.and_then(|body| {
                    bytes.fetch_add((HEAD + body.len()) as u64, Ordering::Relaxed);
                    out.send(&body, &|| began.elapsed() < SENT)
                });
                if sent.is_err() {
                    break;
                }
            }
            out.end();
        })?;
        Ok(line)
    }

    fn traffic(&self) -> Traffic {
        let control = self.bytes.load(Ordering::Relaxed);
        Traffic { control, told: self.told, open: self.opened.elapsed() }
    }
}

/// Where decisions are made and carried out.
struct Desk {
    coordinator: Coordinator,
    log: Option<Log>,
    lines: HashMap<Session, Line>,
    /// Of connections that have ended.
    traffic: Traffic,
    tell: Sender<Told>,
    reports: Arc<AtomicUsize>,
    status: Arc<Mutex<Status>>,
    began: Instant,
}

impl Desk {
    fn work(&mut self, inbox: &Receiver<Heard>, is_over: &AtomicBool) -> Result<(), Error> {
        let mut ticked = Instant::now();
        while !is_over.load(Ordering::Relaxed) {
            let event = match inbox.recv_timeout(TICK.saturating_sub(ticked.elapsed())) {
                Ok(Heard::Opened { session, line }) => {
                    self.lines.insert(session, line);
                    continue;
                }
                Ok(Heard::Dismiss { why }) => {
                    for (_, line) in self.lines.drain() {
                        let _ = line.say.try_send(Down::Refused { why: why.clone() });
                    }
                    continue;
                }
                Ok(Heard::Up { session, up, bytes }) => {
                    if let Some(line) = self.lines.get_mut(&session) {
                        match up {
                            Up::Tell(_) => line.told += bytes as u64,
                            _ => drop(line.bytes.fetch_add(bytes as u64, Ordering::Relaxed)),
                        }
                    }
                    Event::Heard { session, up }
                }
                Ok(Heard::Ended { session }) => {
                    self.end(session);
                    Event::Ended { session }
                }
                Err(RecvTimeoutError::Timeout) => {
                    ticked = Instant::now();
                    Event::Tick
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            let now = self.began.elapsed();
            let actions = self.coordinator.on(event, now);
            self.keep(&actions)?;
            actions.into_iter().for_each(|action| self.act(action));
            self.note(now);
        }
        Ok(())
    }

    fn end(&mut self, session: Session) {
        if let Some(line) = self.lines.remove(&session) {
            self.traffic = self.traffic + line.traffic();
        }
    }

    /// Writes down what must be, at once, before anything is done.
    fn keep(&mut self, actions: &[Action]) -> Result<(), Error> {
        let record =
            |action: &Action| if let Action::Keep(record) = action { Some(record.clone()) } else { None };
        let records: Vec<Record> = actions.iter().filter_map(record).collect();
        match &mut self.log {
            Some(log) if !records.is_empty() => log.keep(&records),
            _ => Ok(()),
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Send { session, down } => {
                // One that takes nothing, or asks for more than it takes, is given up.
                if self.lines.get(&session).is_some_and(|line| line.say.try_send(down).is_err()) {
                    self.end(session);
                }
            }
            Action::End { session } => self.end(session),
            Action::Keep(_) => {}
            // Nobody need listen to what is told.
            Action::Tell { worker, what } => {
                self.reports.fetch_add(what.len(), Ordering::Relaxed);
                let _ = self.tell.send(Told::Word { worker, what });
            }
            Action::Say(notice) => drop(self.tell.send(Told::Notice(notice))),
        }
    }

    fn note(&self, now: Duration) {
        let coordinator = &self.coordinator;
        let awaited = coordinator.awaited();
        let workers = coordinator.seats().iter().map(|(worker, seat)| Standing {
            worker: *worker,
            state: seat.state(),
            address: seat.address().to_owned(),
            steps: seat.steps(),
            silent: now.saturating_sub(seat.seen()),
            has_come: coordinator.has_come(*worker),
            is_awaited: awaited.contains(worker),
            has_vote: seat.has_vote(),
            traffic: seat
                .session
                .and_then(|session| self.lines.get(&session))
                .map(Line::traffic)
                .unwrap_or_default(),
        });
        let status = Status {
            epoch: coordinator.epoch(),
            op: coordinator.op(),
            truth: coordinator.truth(),
            workers: workers.collect(),
            reason: coordinator.reason(now),
            overshot: coordinator.overshot(),
            traffic: self.lines.values().fold(self.traffic, |sum, line| sum + line.traffic()),
        };
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }
}

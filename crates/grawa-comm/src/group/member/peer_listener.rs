//! Accepts connections of other members: those that send data, and joiners that fetch the state.
//!
//! A peer that sends nothing, or receives nothing, is given up: neither unauthenticated peers nor members that stopped half-way
//! may use up the threads, files and memory of a member.

use crate::group::digest;
use crate::group::environment::{Environment, Monitor, POLL, lock};
use crate::group::messages::{AttemptId, Peer, StateVersion, decode, encode};
use crate::group::wire::connection::{CONNECT_TIMEOUT, KeepGoing, Reader, Writer, dial};
use crate::group::wire::file_limit::Limits;
use crate::group::wire::frame;
use crate::group::wire::listener::{self, Opened, Service};
use crate::group::wire::tls::Security;
use crate::{Error, MOST_REPORTS};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The first message on a connection between members.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Greeting {
    /// Data of transfers follows.
    Transfer {
        /// The run.
        run: u64,
        /// The sender.
        token: u64,
        /// The attempt for which the connection was made.
        attempt: AttemptId,
    },
    /// A request for a state.
    Fetch {
        /// The run.
        run: u64,
        /// The state.
        version: StateVersion,
    },
}

/// The answer to [`Greeting::Fetch`], if this member holds the state. The reports and the centre follow it in pieces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gift {
    /// What is remembered beside the centre.
    pub memory: Vec<u8>,
    /// Bytes of reports.
    pub reports: u64,
    /// Numbers of the centre.
    pub floats: u64,
}

/// How long to wait for a connection from a member, in a small group at the first attempt.
const CONNECT_WAIT: Duration = Duration::from_secs(3);
/// What a connection between two members of one machine may take: M members make M·(M−1) of them at once, on few cores.
const PER_CONNECTION: Duration = Duration::from_millis(1);
/// No wait is longer.
const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// How long a connection with an unknown token is kept: it may arrive before the message that names the members.
const UNKNOWN: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });
/// A state is sent in chunks. Each must complete in time, or a peer that stopped half-way would keep a centre in memory for ever.
const CHUNK: usize = 1 << 18;
const CHUNK_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });

/// A state that a member holds.
#[derive(Clone, Debug)]
pub(crate) struct HeldState {
    pub(crate) version: StateVersion,
    pub(crate) memory: Vec<u8>,
    /// What goes with it, and need not be the same at all members, see [`Elastic::keep_reports`](crate::Elastic::keep_reports).
    pub(crate) reports: Vec<u8>,
    pub(crate) centre: Arc<Vec<f32>>,
}

impl HeldState {
    pub(crate) fn new(op: u64, memory: Vec<u8>, centre: Arc<Vec<f32>>) -> Self {
        let digest = digest::state(&memory, &centre);
        HeldState { version: StateVersion { op, digest }, memory, reports: Vec::new(), centre }
    }
}

#[derive(Debug)]
pub(crate) struct PeerListener {
    environment: Environment,
    run: AtomicU64,
    incoming: Monitor<Incoming>,
    held: Mutex<Option<Arc<HeldState>>>,
    /// One more reference for each joiner that fetches the state now.
    fetches: Arc<()>,
    /// How many of them, and of connections with unknown tokens, there may be.
    most: usize,
    /// Milliseconds that a peer may take to connect.
    patience: AtomicU64,
    is_closed: AtomicBool,
}

/// Connections from members, by token, and the known tokens.
#[derive(Debug, Default)]
struct Incoming {
    by_token: HashMap<u64, Accepted>,
    known: HashSet<u64>,
}

/// A connection, the attempt it was made for, and when it was accepted.
#[derive(Debug)]
struct Accepted {
    attempt: AttemptId,
    at: Duration,
    reader: Reader,
}

impl Incoming {
    /// Adds a connection. If there are too many with unknown tokens, the oldest of them makes room.
    fn add(&mut self, token: u64, accepted: Accepted, most: usize) {
        let now = accepted.at;
        self.by_token.insert(token, accepted);
        let unknown = || self.by_token.iter().filter(|(token, _)| !self.known.contains(token));
        if unknown().count() > most
            && let Some(oldest) = unknown().min_by_key(|(_, one)| one.at).map(|(token, _)| *token)
        {
            self.by_token.remove(&oldest);
        }
        self.retain_known_or(|one| now - one.at < UNKNOWN);
    }

    fn retain_known_or(&mut self, keep: impl Fn(&Accepted) -> bool) {
        self.by_token.retain(|token, one| self.known.contains(token) || keep(one));
    }
}

/// How long a member waits for a connection in an attempt with so many members. It grows with the connections that all of them make, and with the
/// attempt: a group that is too slow for the first is in time for the second or third.
pub(super) fn connect_wait(members: usize, attempt: u32) -> Duration {
    let connections = u32::try_from(members * members.saturating_sub(1)).unwrap_or(u32::MAX);
    let many = PER_CONNECTION.saturating_mul(connections) * (1 << attempt.clamp(1, 8).saturating_sub(1));
    CONNECT_WAIT.saturating_add(many).min(LONGEST_WAIT)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl PeerListener {
    /// Listens at an address; port 0 is any. Returns the address.
    pub(crate) fn open(
        environment: &Environment,
        address: &str,
        security: Security,
    ) -> Result<(Arc<Self>, SocketAddr), Error> {
        let limits = Limits::here();
        let listener = Arc::new(PeerListener {
            environment: environment.clone(),
            run: AtomicU64::new(0),
            incoming: Monitor::new(environment, Incoming::default()),
            held: Mutex::default(),
            fetches: Arc::default(),
            most: limits.pending,
            patience: AtomicU64::new(millis(CONNECT_TIMEOUT)),
            is_closed: AtomicBool::new(false),
        });
        let address = listener::listen(environment, address, security, limits, Arc::clone(&listener))?;
        Ok((listener, address))
    }

    /// Stops listening.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    /// Accepts only members of this run from now on.
    pub(crate) fn set_run(&self, run: u64) {
        self.run.store(run, Ordering::Relaxed);
    }

    /// Joiners can fetch this state from now on.
    pub(crate) fn hold(&self, held: Arc<HeldState>) {
        *lock(&self.held) = Some(held);
    }

    pub(crate) fn held(&self) -> Option<Arc<HeldState>> {
        lock(&self.held).clone()
    }

    /// Peers may take as long as this member waits for them. One that has dialled takes its connection as made before this side has checked it: if
    /// it were dropped because this side is slow, both would wait for nothing.
    pub(super) fn wait_for_peers(&self, wait: Duration) {
        self.patience.store(millis(wait.max(CONNECT_TIMEOUT)), Ordering::Relaxed);
    }

    /// The connection from a member: made for this attempt, or kept from an earlier one.
    pub(crate) fn reader_from(
        &self,
        peer: &Peer,
        attempt: AttemptId,
        wait: Duration,
        keep_going: KeepGoing<'_>,
    ) -> Result<Reader, Error> {
        let began = self.environment.now();
        let mut incoming = self.incoming.lock();
        loop {
            // A connection for a later attempt is left for that: this attempt will be interrupted.
            let is_there = incoming.by_token.get(&peer.token).is_some_and(|one| one.attempt <= attempt);
            if is_there && let Some(one) = incoming.by_token.remove(&peer.token) {
                return Ok(one.reader);
            }
            if !keep_going() || self.environment.now() - began > wait {
                let why = format!(
                    "worker {} at {} did not connect for operation {}",
                    peer.worker, peer.address, attempt.1
                );
                return Err(Error::Connection { why });
            }
            incoming = self.incoming.wait(incoming, POLL);
        }
    }

    /// Keeps a connection for the next attempt, unless the peer has made a newer one.
    pub(crate) fn keep(&self, peer: &Peer, attempt: AttemptId, reader: Reader) {
        let accepted = Accepted { attempt, at: self.environment.now(), reader };
        self.incoming.lock().by_token.entry(peer.token).or_insert(accepted);
    }

    /// Drops connections that are not of these members, except for recent ones of a later attempt.
    pub(crate) fn keep_only(&self, peers: &[Peer], attempt: AttemptId) {
        let mut incoming = self.incoming.lock();
        incoming.known = peers.iter().map(|peer| peer.token).collect();
        incoming.retain_known_or(|one| one.attempt > attempt && self.environment.now() - one.at < UNKNOWN);
    }

    #[cfg(test)]
    pub(crate) fn connections(&self) -> usize {
        self.incoming.lock().by_token.len()
    }

    /// Drops connections of earlier attempts: bytes may be left in them.
    pub(crate) fn forget_before(&self, attempt: AttemptId) {
        self.incoming.lock().by_token.retain(|_, one| one.attempt >= attempt);
    }

    fn fetches(&self) -> usize {
        Arc::strong_count(&self.fetches) - 1
    }

    /// Sends a joiner the state that it asks for, if this member holds it.
    fn send_state(&self, version: StateVersion, mut writer: Writer) -> Result<(), Error> {
        let held = lock(&self.held).clone().filter(|held| held.version == version);
        let gift = |held: &Arc<HeldState>| Gift {
            memory: held.memory.clone(),
            reports: held.reports.len() as u64,
            floats: held.centre.len() as u64,
        };
        let answer = held.as_ref().map(gift);
        let keep_going = || !self.is_over();
        in_time(&self.environment, &keep_going, |go| writer.send(&encode(&answer)?, go))?;
        let Some(held) = held else { return Ok(()) };
        let centre = digest::bytes(&held.centre);
        for chunk in held.reports.chunks(CHUNK).chain(centre.chunks(CHUNK)) {
            in_time(&self.environment, &keep_going, |go| writer.write_bulk(&[], chunk, None, go))?;
        }
        Ok(())
    }
}

impl Service for PeerListener {
    fn is_over(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(self.patience.load(Ordering::Relaxed))
    }

    fn open(self: &Arc<Self>, Opened { writer, reader, first, .. }: Opened) -> Result<(), Error> {
        let ours = self.run.load(Ordering::Relaxed);
        match decode(&first)? {
            Greeting::Transfer { run, token, attempt }
                if run == ours && reader.token().is_none_or(|certified| certified == token) =>
            {
                let accepted = Accepted { attempt, at: self.environment.now(), reader };
                self.incoming.lock().add(token, accepted, self.most);
                self.incoming.notify();
                Ok(())
            }
            Greeting::Fetch { run, version } if run == ours => {
                if self.fetches() >= self.most {
                    return Err(Error::Connection { why: "too many peers fetch the state at once".into() });
                }
                let (donor, fetch) = (Arc::clone(self), Arc::clone(&self.fetches));
                // A thread of its own, so that a slow joiner holds up nobody else.
                self.environment.spawn("donor", move || {
                    let _ = donor.send_state(version, writer);
                    drop(fetch);
                })?;
                Ok(())
            }
            Greeting::Transfer { .. } | Greeting::Fetch { .. } => {
                writer.end();
                Err(Error::Message {
                    why: "it belongs to another run, or its token is not its certificate's".into(),
                })
            }
        }
    }
}

/// Does something that must complete within [`CHUNK_TIMEOUT`].
fn in_time<T>(
    environment: &Environment,
    keep_going: KeepGoing<'_>,
    act: impl FnOnce(KeepGoing<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    let began = environment.now();
    act(&|| keep_going() && environment.now() - began < CHUNK_TIMEOUT)
}

/// Connects to a member to send data.
pub(crate) fn connect(
    environment: &Environment,
    peer: &Peer,
    security: &Security,
    (run, token): (u64, u64),
    attempt: AttemptId,
) -> Result<Writer, Error> {
    let (mut writer, _) = dial(environment, &peer.address, security)?;
    let greeting = encode(&Greeting::Transfer { run, token, attempt })?;
    in_time(environment, &|| true, |go| writer.send(&greeting, go))?;
    Ok(writer)
}

/// Fetches a state, with a centre of `len` floats, from a donor.
pub(crate) fn fetch(
    environment: &Environment,
    donor: &Peer,
    security: &Security,
    run: u64,
    (version, len): (StateVersion, usize),
    keep_going: KeepGoing<'_>,
) -> Result<HeldState, Error> {
    let (mut writer, mut reader) = dial(environment, &donor.address, security)?;
    writer.send(&encode(&Greeting::Fetch { run, version })?, keep_going)?;
    let wrong = |why: String| Error::Connection { why: format!("worker {} {why}", donor.worker) };
    let bytes = in_time(environment, keep_going, |go| reader.receive(frame::LONGEST, go))?;
    let bytes = bytes.ok_or_else(|| wrong("ended the connection".into()))?;
    let Some(Gift { memory, reports, floats }) = decode::<Option<Gift>>(&bytes)? else {
        return Err(wrong("does not hold that state any more".into()));
    };
    if floats != len as u64 {
        return Err(wrong(format!("holds a centre of {floats} floats, where {len} are expected")));
    }
    if reports > MOST_REPORTS as u64 {
        return Err(wrong(format!("keeps {reports} bytes of reports, where {MOST_REPORTS} are allowed")));
    }
    let (mut reports, mut centre) = (vec![0; reports as usize], vec![0.0; len]);
    let pieces = reports.chunks_mut(CHUNK).chain(digest::bytes_mut(&mut centre).chunks_mut(CHUNK));
    for chunk in pieces {
        in_time(environment, keep_going, |go| {
            let checksum = reader.read_header(&mut [], go)?;
            reader.read_body(chunk, checksum, go)
        })?;
    }
    let held = HeldState { reports, ..HeldState::new(version.op, memory, Arc::new(centre)) };
    match held.version == version {
        true => Ok(held),
        false => Err(wrong(format!(
            "sent a state of digest {:016x}, not {:016x}",
            held.version.digest, version.digest
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::wire::connection::{ALWAYS, establish};
    use std::net::{TcpListener, TcpStream};
    use std::time::Instant;

    const SYSTEM: Environment = Environment::System;

    fn open() -> (Arc<PeerListener>, String) {
        let (door, address) = PeerListener::open(&SYSTEM, "127.0.0.1:0", Security::Plain).unwrap();
        (door, address.to_string())
    }

    fn donor(address: &str) -> Peer {
        Peer { worker: 3, token: 1, address: address.into() }
    }

    #[test]
    fn a_held_state_is_sent() {
        let (door, address) = open();
        door.set_run(7);
        // Several chunks, the last of them short.
        let state = HeldState::new(4, vec![1, 2], Arc::new((0..200_000u32).map(|n| n as f32).collect()));
        // The reports, too.
        let held = Arc::new(HeldState { reports: vec![3; CHUNK + 5000], ..state });
        door.hold(Arc::clone(&held));
        let ask = |run, version| {
            fetch(&SYSTEM, &donor(&address), &Security::Plain, run, (version, 200_000), ALWAYS)
        };
        let found = ask(7, held.version).unwrap();
        assert!(found.centre == held.centre && found.memory == held.memory && found.reports == held.reports);
        let much = HeldState { reports: vec![3; MOST_REPORTS + 1], ..HeldState::clone(&held) };
        door.hold(Arc::new(much));
        let error = ask(7, held.version).unwrap_err().to_string();
        assert!(error.contains("keeps 4194305 bytes of reports"), "{error}");
        door.hold(Arc::clone(&held));
        let older = StateVersion { op: 3, ..held.version };
        assert!(ask(7, older).unwrap_err().to_string().contains("worker 3 does not hold that state"));
        assert!(ask(8, held.version).is_err());
    }

    /// A donor whose machine lost its power sends nothing more, and does not end the connection.
    #[test]
    fn a_donor_that_stops_sending_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let silent = std::thread::spawn(move || {
            let accepted = listener.accept().unwrap().0;
            let (mut out, mut from) = establish(&SYSTEM, accepted, &Security::Plain, false).unwrap();
            from.receive(4096, ALWAYS).unwrap();
            let gift = Gift { memory: vec![0], reports: 0, floats: 1000 };
            out.send(&encode(&Some(gift)).unwrap(), ALWAYS).unwrap();
            out.write_bulk(&[], &[0; 2000], None, ALWAYS).unwrap();
            out
        });
        let donor = Peer { worker: 3, token: 1, address };
        let version = StateVersion { op: 1, digest: 2 };
        let began = Instant::now();
        let error = fetch(&SYSTEM, &donor, &Security::Plain, 7, (version, 1000), ALWAYS).unwrap_err();
        assert!(error.to_string().contains("given up"), "{error}");
        assert!(began.elapsed() < 10 * CHUNK_TIMEOUT);
        drop(silent.join().unwrap());
    }

    /// Many processes on two cores, each connection with a handshake of two milliseconds: they begin, at the first attempt or the second. A small
    /// group waits no longer than before.
    #[test]
    fn a_large_group_has_time_to_connect() {
        for members in [2usize, 16, 64, 128, 192, 256] {
            let all = Duration::from_millis(2) * (members * (members - 1)) as u32 / 2;
            let enough = (1..=2).any(|attempt| connect_wait(members, attempt) > all);
            assert!(enough, "{members} members need {all:?}");
        }
        assert!(connect_wait(8, 3) < CONNECT_WAIT + Duration::from_secs(1));
        assert_eq!(connect_wait(usize::from(u16::MAX), u32::MAX), LONGEST_WAIT);
    }

    /// A joiner that asks and receives nothing is given up, and the state is let go.
    #[test]
    fn a_joiner_that_receives_nothing_is_given_up() {
        let (door, address) = open();
        door.set_run(7);
        // More than sockets hold.
        let held = Arc::new(HeldState::new(4, Vec::new(), Arc::new(vec![0.0; 16 << 20])));
        door.hold(Arc::clone(&held));
        let (mut out, from) = dial(&SYSTEM, &address, &Security::Plain).unwrap();
        out.send(&encode(&Greeting::Fetch { run: 7, version: held.version }).unwrap(), ALWAYS).unwrap();
        let began = Instant::now();
        while door.fetches() == 0 {
            assert!(began.elapsed() < Duration::from_secs(10));
            std::thread::sleep(Duration::from_millis(1));
        }
        while door.fetches() > 0 {
            assert!(began.elapsed() < Duration::from_secs(30), "it is still being sent");
            std::thread::sleep(POLL);
        }
        drop((out, from));
    }

    /// Joiners cannot use up all threads.
    #[test]
    fn too_many_joiners_are_refused() {
        let (door, address) = open();
        door.set_run(7);
        let fetches: Vec<Arc<()>> = (0..door.most).map(|_| Arc::clone(&door.fetches)).collect();
        let held = Arc::new(HeldState::new(4, Vec::new(), Arc::new(vec![0.0; 10])));
        door.hold(Arc::clone(&held));
        let ask = || fetch(&SYSTEM, &donor(&address), &Security::Plain, 7, (held.version, 10), ALWAYS);
        assert!(ask().is_err());
        drop(fetches);
        assert!(ask().is_ok());
    }

    /// Connections with unknown tokens are dropped after a while.
    #[test]
    fn connections_of_unknown_members_are_not_kept() {
        let (door, address) = open();
        door.set_run(7);
        let peer = |token| Peer { worker: token as u32, token, address: address.clone() };
        // For an attempt that never comes.
        let later = (9, 9, 9);
        let arrives = |token: u64| {
            let out = connect(&SYSTEM, &peer(token), &Security::Plain, (7, token), later).unwrap();
            let began = Instant::now();
            while !door.incoming.lock().by_token.contains_key(&token) {
                assert!(began.elapsed() < Duration::from_secs(10));
                std::thread::sleep(Duration::from_millis(1));
            }
            out
        };
        let _outs: Vec<Writer> = (1..=20).map(arrives).collect();
        door.keep_only(&[peer(1), peer(2)], (1, 1, 1));
        // They may be members of the next round.
        assert_eq!(door.connections(), 20);
        std::thread::sleep(UNKNOWN);
        let _one_more = arrives(21);
        let mut left: Vec<u64> = door.incoming.lock().by_token.keys().copied().collect();
        left.sort_unstable();
        assert_eq!(left, [1, 2, 21]);
    }

    #[test]
    fn connections_of_unknown_members_are_limited() {
        let mut incoming = Incoming { known: HashSet::from([1000]), ..Incoming::default() };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        for token in [1000].into_iter().chain(1..=30) {
            let dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (_, reader) = establish(&SYSTEM, dialled, &Security::Plain, true).unwrap();
            incoming.add(token, Accepted { attempt: (9, 9, 9), at: SYSTEM.now(), reader }, 8);
            drop(listener.accept().unwrap());
        }
        let mut left: Vec<u64> = incoming.by_token.keys().copied().collect();
        left.sort_unstable();
        assert_eq!(left, [23, 24, 25, 26, 27, 28, 29, 30, 1000]);
    }
}

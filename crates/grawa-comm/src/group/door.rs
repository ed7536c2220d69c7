//! Where a member is reached by the others: connections that bring vectors, and newcomers that ask for what it holds.
//!
//! Who connects and says nothing, or takes nothing, is given up: neither unauthenticated peers nor members that stopped half-way
//! may use up the threads, the files and the memory of one who works.

use super::digest;
use super::exchange::Tag;
use super::files::Limits;
use super::key::Wire;
use super::link::{self, FOR_EVER, GoOn, In, LOOK, Out};
use super::listener::{self, Opened, Server};
use super::message::{Peer, Stand, decode, encode};
use crate::Error;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The first message on a connection between members.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Greeting {
    /// Pieces of vectors will come.
    Pieces {
        /// The run.
        run: u64,
        /// Whose.
        token: u64,
        /// For which move it was made.
        tag: Tag,
    },
    /// It asks for what is held.
    Asks {
        /// The run.
        run: u64,
        /// What.
        stand: Stand,
    },
}

/// How long a connection from a member is waited for.
const COMES: Duration = Duration::from_secs(3);
/// How long a connection is kept whose token is not that of a known member: it may come before the news of who the members are.
const UNKNOWN: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });
/// What is held is given in parts of so many bytes, and each must be through within this time, be the network ever so busy: one who
/// stopped half-way would else hold a centre in memory, or wait for one, for ever.
const PART: usize = 1 << 18;
const THROUGH: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });

/// What a member holds where it stands.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) stand: Stand,
    pub(super) memory: Vec<u8>,
    pub(super) centre: Arc<Vec<f32>>,
}

impl Held {
    pub(super) fn new(op: u64, memory: Vec<u8>, centre: Arc<Vec<f32>>) -> Self {
        let digest = digest::state(&memory, digest::vector(&centre));
        Held { stand: Stand { op, digest }, memory, centre }
    }
}

#[derive(Debug)]
pub(super) struct Door {
    pub(super) address: SocketAddr,
    wire: Wire,
    run: AtomicU64,
    came: Mutex<Came>,
    changed: Condvar,
    held: Mutex<Option<Arc<Held>>>,
    /// Newcomers that are being given what is held; and the most of them, and of connections of unknown members, that there may be.
    callers: AtomicUsize,
    most: usize,
    is_shut: AtomicBool,
}

/// Connections that came from members, by their tokens, and whose tokens are known.
#[derive(Debug, Default)]
struct Came {
    by_token: HashMap<u64, Arrived>,
    known: HashSet<u64>,
}

/// A connection that came, for which move and when.
#[derive(Debug)]
struct Arrived {
    tag: Tag,
    at: Instant,
    from: In,
}

impl Came {
    /// Keeps a connection. Of those with unknown tokens the oldest makes room, if there are more than may be.
    fn add(&mut self, token: u64, arrived: Arrived, most: usize) {
        self.by_token.insert(token, arrived);
        let unknown = || self.by_token.iter().filter(|(token, _)| !self.known.contains(token));
        if unknown().count() > most
            && let Some(oldest) = unknown().min_by_key(|(_, one)| one.at).map(|(token, _)| *token)
        {
            self.by_token.remove(&oldest);
        }
        self.give_up_unknown();
    }

    /// Gives up connections with unknown tokens that came some time ago.
    fn give_up_unknown(&mut self) {
        let Came { by_token, known } = self;
        by_token.retain(|token, one| known.contains(token) || one.at.elapsed() < UNKNOWN);
    }
}

/// A caller, who is one fewer when this is gone.
struct Caller(Arc<Door>);

impl Caller {
    fn new(door: &Arc<Door>) -> Option<Self> {
        let caller = Caller(Arc::clone(door));
        (door.callers.fetch_add(1, Ordering::Relaxed) < door.most).then_some(caller)
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.0.callers.fetch_sub(1, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing in here panics with a lock held.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Door {
    /// Listens at an address; port 0 is any.
    pub(super) fn open(address: &str, wire: Wire) -> Result<Arc<Self>, Error> {
        let listener = TcpListener::bind(address)
            .map_err(|error| Error::Connection { why: format!("cannot listen at {address}: {error}") })?;
        listener.set_nonblocking(true)?;
        let limits = Limits::here();
        let door = Arc::new(Door {
            address: listener.local_addr()?,
            wire,
            run: AtomicU64::new(0),
            came: Mutex::default(),
            changed: Condvar::new(),
            held: Mutex::default(),
            callers: AtomicUsize::new(0),
            most: limits.pending,
            is_shut: AtomicBool::new(false),
        });
        let keeper = Arc::clone(&door);
        let listen = move || listener::serve(&listener, &keeper.wire, limits, &keeper);
        std::thread::Builder::new().name("grawa-door".into()).spawn(listen)?;
        Ok(door)
    }

    /// Stops listening.
    pub(super) fn shut(&self) {
        self.is_shut.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect_timeout(&self.address, LOOK);
    }

    /// The run is known: only its members are let in.
    pub(super) fn belongs_to(&self, run: u64) {
        self.run.store(run, Ordering::Relaxed);
    }

    /// From now on this is what is held.
    pub(super) fn hold(&self, held: Arc<Held>) {
        *lock(&self.held) = Some(held);
    }

    pub(super) fn held(&self) -> Option<Arc<Held>> {
        lock(&self.held).clone()
    }

    /// Gives a newcomer what it asks for, if it is held.
    fn give(&self, stand: Stand, mut out: Out) -> Result<(), Error> {
        let held = self.held().filter(|held| held.stand == stand);
        let gift = held.as_ref().map(|held| (&held.memory, held.centre.len() as u64));
        let go_on = || !self.is_shut.load(Ordering::Relaxed);
        in_time(&go_on, |go_on| out.send(&encode(&gift)?, go_on))?;
        let centre = held.as_ref().map_or(&[][..], |held| digest::bytes(&held.centre));
        for part in centre.chunks(PART) {
            in_time(&go_on, |go_on| out.write_bulk(&[], part, None, go_on))?;
        }
        Ok(())
    }

    /// The connection from a member, made for this move or before and kept.
    pub(super) fn from(&self, peer: &Peer, tag: Tag, go_on: GoOn<'_>) -> Result<In, Error> {
        let began = Instant::now();
        let mut came = lock(&self.came);
        loop {
            // One made for a later attempt is for that: this one will be given up.
            if came.by_token.get(&peer.token).is_some_and(|one| one.tag <= tag)
                && let Some(one) = came.by_token.remove(&peer.token)
            {
                return Ok(one.from);
            }
            if !go_on() || began.elapsed() > COMES {
                let why = format!(
                    "worker {} at {} did not connect for meeting {}",
                    peer.worker, peer.address, tag.1
                );
                return Err(Error::Connection { why });
            }
            came = self.changed.wait_timeout(came, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Keeps a connection for the next move.
    pub(super) fn keep(&self, peer: &Peer, tag: Tag, from: In) {
        // A newer one may have come meanwhile.
        lock(&self.came).by_token.entry(peer.token).or_insert(Arrived { tag, at: Instant::now(), from });
    }

    /// These are the members. Connections of others are given up, but for those that came of late, for a later move than this:
    /// most are gone for good, and every one that stayed open would be a file more.
    pub(super) fn keep_only(&self, peers: &[Peer], tag: Tag) {
        let mut came = lock(&self.came);
        came.known = peers.iter().map(|peer| peer.token).collect();
        came.give_up_unknown();
        let Came { by_token, known } = &mut *came;
        by_token.retain(|token, one| one.tag > tag || known.contains(token));
    }

    #[cfg(test)]
    pub(super) fn connections(&self) -> usize {
        lock(&self.came).by_token.len()
    }

    /// Gives up connections made for moves before this one: something may be left in them.
    pub(super) fn forget_before(&self, tag: Tag) {
        lock(&self.came).by_token.retain(|_, one| one.tag >= tag);
    }
}

impl Server for Arc<Door> {
    fn is_over(&self) -> bool {
        self.is_shut.load(Ordering::Relaxed)
    }

    /// What a peer does wrong is its own loss.
    fn open(&self, Opened { out, input, first, .. }: Opened) -> Result<(), Error> {
        let ours = self.run.load(Ordering::Relaxed);
        match decode(&first)? {
            Greeting::Pieces { run, token, tag }
                if run == ours && input.token().is_none_or(|certified| certified == token) =>
            {
                lock(&self.came).add(token, Arrived { tag, at: Instant::now(), from: input }, self.most);
                self.changed.notify_all();
                Ok(())
            }
            Greeting::Asks { run, stand } if run == ours => {
                let Some(caller) = Caller::new(self) else {
                    return Err(Error::Connection { why: "too many ask at once".into() });
                };
                // One that is slow to take it holds up nobody else.
                let give = move || drop(caller.0.give(stand, out));
                std::thread::Builder::new().name("grawa-give".into()).spawn(give)?;
                Ok(())
            }
            Greeting::Pieces { .. } | Greeting::Asks { .. } => {
                out.end();
                Err(Error::Message {
                    why: "it belongs to another run, or its token is not its certificate's".into(),
                })
            }
        }
    }
}

/// Does something that must be through in time.
fn in_time<T>(go_on: GoOn<'_>, act: impl FnOnce(GoOn<'_>) -> Result<T, Error>) -> Result<T, Error> {
    let began = Instant::now();
    act(&|| go_on() && began.elapsed() < THROUGH)
}

/// Connects to a member to send pieces.
pub(super) fn visit(peer: &Peer, wire: &Wire, run: u64, token: u64, tag: Tag) -> Result<Out, Error> {
    let (mut out, _) = link::dial(&peer.address, wire)?;
    in_time(FOR_EVER, |go_on| out.send(&encode(&Greeting::Pieces { run, token, tag })?, go_on))?;
    Ok(out)
}

/// Asks a donor for what it holds.
pub(super) fn ask(
    donor: &Peer,
    wire: &Wire,
    run: u64,
    stand: Stand,
    len: usize,
    go_on: GoOn<'_>,
) -> Result<Held, Error> {
    let (mut out, mut from) = link::dial(&donor.address, wire)?;
    out.send(&encode(&Greeting::Asks { run, stand })?, go_on)?;
    let wrong = |why: String| Error::Connection { why: format!("worker {} {why}", donor.worker) };
    let bytes = in_time(go_on, |go_on| from.receive(super::frame::LONGEST, go_on))?;
    let bytes = bytes.ok_or_else(|| wrong("hung up".into()))?;
    let Some((memory, floats)) = decode::<Option<(Vec<u8>, u64)>>(&bytes)? else {
        return Err(wrong("does not hold that any more".into()));
    };
    if floats != len as u64 {
        return Err(wrong(format!("holds a centre of {floats} floats, where {len} are expected")));
    }
    let mut centre = vec![0.0; len];
    for part in digest::bytes_mut(&mut centre).chunks_mut(PART) {
        in_time(go_on, |go_on| {
            let checksum = from.read_head(&mut [], go_on)?;
            from.read_body(part, checksum, go_on)
        })?;
    }
    let held = Held::new(stand.op, memory, Arc::new(centre));
    match held.stand == stand {
        true => Ok(held),
        false => Err(wrong(format!(
            "gave something of digest {:016x}, not {:016x}",
            held.stand.digest, stand.digest
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn donor(door: &Door) -> Peer {
        Peer { worker: 3, token: 1, address: door.address.to_string() }
    }

    #[test]
    fn what_is_held_is_given() {
        let door = Door::open("127.0.0.1:0", Wire::Plain).unwrap();
        door.belongs_to(7);
        // Several parts, the last of them short.
        let held = Arc::new(Held::new(4, vec![1, 2], Arc::new((0..200_000u32).map(|n| n as f32).collect())));
        door.hold(Arc::clone(&held));
        let ask = |run, stand| ask(&donor(&door), &Wire::Plain, run, stand, 200_000, FOR_EVER);
        assert_eq!(ask(7, held.stand).unwrap().centre, held.centre);
        let older = Stand { op: 3, ..held.stand };
        assert!(ask(7, older).unwrap_err().to_string().contains("worker 3 does not hold that any more"));
        assert!(ask(8, held.stand).is_err());
    }

    /// A donor whose machine lost its power sends nothing more, not even an end.
    #[test]
    fn a_donor_that_falls_silent_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let silent = std::thread::spawn(move || {
            let (mut out, mut from) = link::link(listener.accept().unwrap().0, &Wire::Plain, false).unwrap();
            from.receive(4096, FOR_EVER).unwrap();
            out.send(&encode(&Some((vec![0u8], 1000u64))).unwrap(), FOR_EVER).unwrap();
            out.write_bulk(&[], &[0; 2000], None, FOR_EVER).unwrap();
            out
        });
        let donor = Peer { worker: 3, token: 1, address };
        let stand = Stand { op: 1, digest: 2 };
        let began = Instant::now();
        let error = ask(&donor, &Wire::Plain, 7, stand, 1000, FOR_EVER).unwrap_err();
        assert!(error.to_string().contains("given up"), "{error}");
        assert!(began.elapsed() < 10 * THROUGH);
        drop(silent.join().unwrap());
    }

    /// One that asks and takes nothing is not given for ever: what it asked for is let go.
    #[test]
    fn a_newcomer_that_takes_nothing_is_given_up() {
        let door = Door::open("127.0.0.1:0", Wire::Plain).unwrap();
        door.belongs_to(7);
        // More than sockets hold.
        let held = Arc::new(Held::new(4, Vec::new(), Arc::new(vec![0.0; 16 << 20])));
        door.hold(Arc::clone(&held));
        let (mut out, from) = link::dial(&door.address.to_string(), &Wire::Plain).unwrap();
        out.send(&encode(&Greeting::Asks { run: 7, stand: held.stand }).unwrap(), FOR_EVER).unwrap();
        let began = Instant::now();
        while door.callers.load(Ordering::Relaxed) == 0 {
            assert!(began.elapsed() < Duration::from_secs(10));
            std::thread::sleep(Duration::from_millis(1));
        }
        while door.callers.load(Ordering::Relaxed) > 0 {
            assert!(began.elapsed() < Duration::from_secs(30), "it is still being given");
            std::thread::sleep(LOOK);
        }
        drop((out, from));
    }

    /// Those who ask cannot use up all threads.
    #[test]
    fn too_many_callers_are_turned_away() {
        let door = Door::open("127.0.0.1:0", Wire::Plain).unwrap();
        let callers: Vec<Caller> = (0..door.most).map(|_| Caller::new(&door).unwrap()).collect();
        assert!(Caller::new(&door).is_none());
        drop(callers);
        assert!(Caller::new(&door).is_some());
        assert_eq!(door.callers.load(Ordering::Relaxed), 0);
    }

    /// What does not belong to a member is given up: after a while, beyond a number, and when the members are known.
    #[test]
    fn connections_of_unknown_members_are_not_kept() {
        let door = Door::open("127.0.0.1:0", Wire::Plain).unwrap();
        door.belongs_to(7);
        let peer = |token| Peer { worker: token as u32, token, address: door.address.to_string() };
        // For a move that never comes.
        let later = (9, 9, 9);
        let arrives = |token: u64| {
            let out = visit(&peer(token), &Wire::Plain, 7, token, later).unwrap();
            let began = Instant::now();
            while !lock(&door.came).by_token.contains_key(&token) {
                assert!(began.elapsed() < Duration::from_secs(10));
                std::thread::sleep(Duration::from_millis(1));
            }
            out
        };
        let _outs: Vec<Out> = (1..=20).map(arrives).collect();
        door.keep_only(&[peer(1), peer(2)], (1, 1, 1));
        // They may be members of the next round, of whom it has not heard yet.
        assert_eq!(door.connections(), 20);
        std::thread::sleep(UNKNOWN);
        let _one_more = arrives(21);
        let mut left: Vec<u64> = lock(&door.came).by_token.keys().copied().collect();
        left.sort_unstable();
        assert_eq!(left, [1, 2, 21]);
    }

    #[test]
    fn there_are_not_too_many_of_them_at_once() {
        let mut came = Came { known: HashSet::from([1000]), ..Came::default() };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        for token in [1000].into_iter().chain(1..=30) {
            let dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (_, from) = link::link(dialled, &Wire::Plain, true).unwrap();
            came.add(token, Arrived { tag: (9, 9, 9), at: Instant::now(), from }, 8);
            drop(listener.accept().unwrap());
        }
        let mut left: Vec<u64> = came.by_token.keys().copied().collect();
        left.sort_unstable();
        assert_eq!(left, [23, 24, 25, 26, 27, 28, 29, 30, 1000]);
    }
}

//! Where a member is reached by the others: connections that bring vectors, and newcomers that ask for what it holds.

use super::digest;
use super::exchange::Tag;
use super::key::Wire;
use super::link::{self, FOR_EVER, GoOn, In, LOOK, Out};
use super::message::{Peer, Stand, decode, encode};
use crate::Error;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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

/// A greeting is short.
const SHORT: usize = 4096;
/// How long a connection from a member is waited for.
const COMES: Duration = Duration::from_secs(3);

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
    came: Mutex<HashMap<u64, (Tag, In)>>,
    changed: Condvar,
    held: Mutex<Option<Arc<Held>>>,
    is_shut: AtomicBool,
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
        let door = Arc::new(Door {
            address: listener.local_addr()?,
            wire,
            run: AtomicU64::new(0),
            came: Mutex::default(),
            changed: Condvar::new(),
            held: Mutex::default(),
            is_shut: AtomicBool::new(false),
        });
        let keeper = Arc::clone(&door);
        let keep = move || {
            for socket in listener.incoming() {
                if keeper.is_shut.load(Ordering::Relaxed) {
                    return;
                }
                let (door, Ok(socket)) = (Arc::clone(&keeper), socket) else { continue };
                // A caller that is slow to say what it wants holds up nobody else. What it does wrong is its own loss.
                let answer = move || drop(door.answer(socket));
                let _ = std::thread::Builder::new().name("grawa-door".into()).spawn(answer);
            }
        };
        std::thread::Builder::new().name("grawa-door".into()).spawn(keep)?;
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

    fn answer(&self, socket: TcpStream) -> Result<(), Error> {
        let (mut out, mut from) = link::link(socket, &self.wire, false)?;
        let began = Instant::now();
        let Some(bytes) = from.receive(SHORT, &|| began.elapsed() < COMES)? else { return Ok(()) };
        let ours = self.run.load(Ordering::Relaxed);
        match decode(&bytes)? {
            Greeting::Pieces { run, token, tag } if run == ours => {
                lock(&self.came).insert(token, (tag, from));
                self.changed.notify_all();
            }
            Greeting::Asks { run, stand } if run == ours => {
                let held = self.held().filter(|held| held.stand == stand);
                let gift = held.as_ref().map(|held| (&held.memory, held.centre.len() as u64));
                out.send(&encode(&gift)?, FOR_EVER)?;
                if let Some(held) = held {
                    out.write_bulk(digest::bytes(&held.centre), None, &|| {
                        !self.is_shut.load(Ordering::Relaxed)
                    })?;
                }
            }
            Greeting::Pieces { .. } | Greeting::Asks { .. } => out.end(),
        }
        Ok(())
    }

    /// The connection from a member, made for this move or before and kept.
    pub(super) fn from(&self, peer: &Peer, tag: Tag, go_on: GoOn<'_>) -> Result<In, Error> {
        let began = Instant::now();
        let mut came = lock(&self.came);
        loop {
            // One made for a later attempt is for that: this one will be given up.
            if came.get(&peer.token).is_some_and(|(of, _)| *of <= tag)
                && let Some((_, from)) = came.remove(&peer.token)
            {
                return Ok(from);
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
        lock(&self.came).entry(peer.token).or_insert((tag, from));
    }

    /// Gives up connections made for moves before this one: something may be left in them.
    pub(super) fn forget_before(&self, tag: Tag) {
        lock(&self.came).retain(|_, (of, _)| *of >= tag);
    }
}

/// Connects to a member to send pieces.
pub(super) fn visit(peer: &Peer, wire: &Wire, run: u64, token: u64, tag: Tag) -> Result<Out, Error> {
    let (mut out, _) = link::dial(&peer.address, wire)?;
    out.send(&encode(&Greeting::Pieces { run, token, tag })?, FOR_EVER)?;
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
    let bytes = from.receive(super::frame::LONGEST, go_on)?.ok_or_else(|| wrong("hung up".into()))?;
    let Some((memory, floats)) = decode::<Option<(Vec<u8>, u64)>>(&bytes)? else {
        return Err(wrong("does not hold that any more".into()));
    };
    if floats != len as u64 {
        return Err(wrong(format!("holds a centre of {floats} floats, where {len} are expected")));
    }
    let mut centre = vec![0.0; len];
    from.read_bulk(digest::bytes_mut(&mut centre), go_on)?;
    let held = Held::new(stand.op, memory, Arc::new(centre));
    match held.stand == stand {
        true => Ok(held),
        false => Err(wrong(format!(
            "gave something of digest {:016x}, not {:016x}",
            held.stand.digest, stand.digest
        ))),
    }
}

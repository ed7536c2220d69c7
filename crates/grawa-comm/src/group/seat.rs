//! A member as the coordinator sees it.

use super::message::{Peer, Stand};
use super::quota::Quota;
use std::time::Duration;

/// A connection to a member.
pub type Session = u64;

/// What a member is to the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It has said hello and not yet where it stands.
    Greeted,
    /// It stands elsewhere than the group, and waits until it can take over what the group holds.
    Waiting,
    /// It takes that over.
    Taking(Stand),
    /// It stands where the group stands, and may come to the next meeting. Nobody waits for it.
    Ready,
    /// It took part in the last meeting, and is waited for at the next.
    Active,
}

/// A member.
#[derive(Clone, Debug)]
pub struct Seat {
    pub(super) token: u64,
    pub(super) address: String,
    pub(super) session: Option<Session>,
    pub(super) state: State,
    pub(super) stand: Option<Stand>,
    /// It was given its place, and has not come since: it may not have heard.
    pub(super) is_placed: bool,
    /// The last meeting it took part in.
    pub(super) last: Option<u64>,
    /// When it was last heard of, when its work last moved on, and when its connection ended.
    pub(super) seen: Duration,
    pub(super) moved: Duration,
    pub(super) closed: Option<Duration>,
    pub(super) steps: u64,
    pub(super) progress: u64,
    /// How often in a row what it took over was old by then.
    pub(super) chases: u32,
    /// How often it has given, and how often it was not reached since it last took part.
    pub(super) gifts: u64,
    pub(super) blames: u32,
    /// What it may still send.
    pub(super) quota: Quota,
    /// What it has reported before it takes part.
    pub(super) reports: Vec<Vec<u8>>,
}

impl Seat {
    pub(super) fn new(token: u64, address: String, session: Session, now: Duration) -> Self {
        Seat {
            token,
            address,
            session: Some(session),
            state: State::Greeted,
            stand: None,
            is_placed: false,
            last: None,
            seen: now,
            moved: now,
            closed: None,
            steps: 0,
            progress: 0,
            chases: 0,
            gifts: 0,
            blames: 0,
            quota: Quota::new(now),
            reports: Vec::new(),
        }
    }

    pub(super) fn peer(&self, worker: u32) -> Peer {
        Peer { worker, token: self.token, address: self.address.clone() }
    }

    /// What it is to the group.
    pub fn state(&self) -> State {
        self.state
    }

    /// Whether it takes part, or would if others had not complained of it: what ends the run needs most of these.
    pub fn has_vote(&self) -> bool {
        self.state == State::Active || self.blames > 0
    }

    /// Whether there is a connection to it; one that ended may come back.
    pub fn is_connected(&self) -> bool {
        self.session.is_some()
    }

    /// Its local steps of this cycle, as far as is known.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// When it was last heard of.
    pub fn seen(&self) -> Duration {
        self.seen
    }

    /// Where it listens for vectors.
    pub fn address(&self) -> &str {
        &self.address
    }
}

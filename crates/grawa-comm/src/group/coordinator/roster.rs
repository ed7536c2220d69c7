//! The members as the coordinator knows them.

use crate::group::messages::{Peer, StateVersion};
use crate::group::token_bucket::TokenBucket;
use std::time::Duration;

/// Bytes that a member may send per second on average: thousands of reports of small rounds; and at once: a few of the largest.
const PER_SECOND: f64 = (2 << 20) as f64;
const BURST: f64 = (32 << 20) as f64;

/// A connection to a member.
pub(crate) type Session = u64;

/// The state of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemberState {
    /// It has said hello, but not yet which state it holds.
    #[default]
    Greeted,
    /// It holds another state than the committed one, and waits until it can fetch that.
    Waiting,
    /// It fetches this state.
    Restoring(StateVersion),
    /// It holds the committed state, and may take part in the next round. Nobody waits for it.
    Ready,
    /// It took part in the last operation. The others wait for it at the next.
    Active,
}

/// A member.
#[derive(Clone, Debug, Default)]
pub struct MemberRecord {
    pub(crate) token: u64,
    /// How many workers it has: their numbers follow each other.
    pub(crate) workers: u32,
    /// How many of them have not failed.
    pub(crate) workers_left: u32,
    /// The number that its process wished for when it joined.
    pub(crate) wish: Option<u32>,
    pub(crate) address: String,
    pub(crate) session: Option<Session>,
    pub(crate) state: MemberState,
    pub(crate) version: Option<StateVersion>,
    /// It is a process that has not been in the run: the state that it holds is its own, or of a checkpoint.
    pub(crate) is_new: bool,
    /// It was told that it may take part, and has not arrived since: it may not have received that.
    pub(crate) is_assigned: bool,
    /// The last operation it took part in.
    pub(crate) last_op: Option<u64>,
    /// The first round of those that it is known to have taken part in since, as the coordinator counts them. 0: before this coordinator.
    pub(crate) since: u64,
    pub(crate) last_seen: Duration,
    pub(crate) progressed_at: Duration,
    pub(crate) disconnected_at: Option<Duration>,
    pub(crate) steps: u64,
    pub(crate) progress: u64,
    /// How often in a row the state it fetched was outdated by the time it had it.
    pub(crate) late_restores: u32,
    /// How often it was a donor.
    pub(crate) donations: u64,
    /// How often the others could not reach it since it last took part.
    pub(crate) blames: u32,
    /// It has been left out because of complaints since it last took part, its own or those of others.
    pub(crate) is_left_out: bool,
    pub(crate) rate_limit: TokenBucket,
    /// Reports that it sent before it took part.
    pub(crate) reports: Vec<Vec<u8>>,
}

impl MemberRecord {
    pub(crate) fn new(token: u64, workers: u32, address: String, session: Session, now: Duration) -> Self {
        MemberRecord {
            token,
            workers,
            workers_left: workers,
            address,
            session: Some(session),
            last_seen: now,
            progressed_at: now,
            rate_limit: TokenBucket::new(PER_SECOND, BURST, now),
            ..MemberRecord::default()
        }
    }

    pub(crate) fn peer(&self, worker: u32) -> Peer {
        Peer { worker, token: self.token, address: self.address.clone() }
    }

    /// Whether there is a connection to it.
    pub fn is_connected(&self) -> bool {
        self.session.is_some()
    }
}

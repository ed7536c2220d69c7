//! The member's side of the protocol. It is pure: it gets messages, and returns messages to send and actions to carry out.
//!
//! A member does one thing at a time: it trains, or it has called an operation and waits for its end. If its connection breaks it
//! says hello again, and repeats the messages that were not answered. The coordinator has either kept its record, or tells
//! it to fetch the state that the others hold by now.
//!
//! [`join`] enters a group, [`control_connection`] talks to the coordinator, [`peer_listener`] accepts connections of other
//! members, [`socket_member`] runs operations, and [`collective`] is what a worker calls.

mod collective;
pub(crate) mod control_connection;
pub mod from_environment;
pub(crate) mod join;
pub(crate) mod peer_listener;
pub(crate) mod socket_member;

use super::messages::{
    AttemptId, Call, End, Hello, Peer, Proposal, StateVersion, ToCoordinator, ToMember, VERSION,
};
use crate::Lost;

/// What the protocol asks of a member.
#[derive(Clone, Debug, PartialEq)]
pub enum MemberAction {
    /// The coordinator has welcomed it.
    Welcomed {
        /// The definition of the run, if it did not have it; empty if one must be proposed.
        charter: Option<Vec<u8>>,
        /// Milliseconds between heartbeats.
        heartbeat: u64,
    },
    /// It may call the next operation.
    Ready,
    /// The operation is over, without a transfer.
    Skipped {
        /// Members lost since the operation before.
        lost: Vec<Lost>,
    },
    /// Transfer data with the other members.
    Transfer {
        /// The attempt.
        attempt: AttemptId,
        /// Members lost since the operation before.
        lost: Vec<Lost>,
    },
    /// An operation that transferred data is over.
    Ended(End),
    /// Fetch the state of a donor. The operation it had called takes place without it.
    Restore {
        /// The donor.
        donor: Peer,
        /// The state.
        version: StateVersion,
    },
    /// Return to the state that it holds. The operation it had called will not take place.
    RollBack,
    /// It may not take part.
    Refused {
        /// Why.
        why: String,
    },
    /// All members are to stop together.
    Stop,
    /// The run is over, and it was not there when it ended.
    Over,
}

/// The state of a member.
#[derive(Clone, Debug, Default)]
pub struct Member {
    token: u64,
    /// How many workers this process began with, and how many are left.
    workers: u32,
    pub(super) workers_left: u32,
    address: String,
    /// The run; 0 before it is known.
    pub(super) run: u64,
    /// Its number, once it has one.
    pub(super) worker: Option<u32>,
    /// The number that it wishes for before it has one.
    wish: Option<u32>,
    /// Workers that the run begins with, once it is known.
    pub(super) founders: u32,
    /// Workers that have joined, before the run begins.
    pub(super) joined: u32,
    /// A charter that it has proposed, until there is an answer.
    proposal: Option<Proposal>,
    pub(super) epoch: u64,
    /// The next operation.
    pub op: u64,
    /// The last state that it published or fetched.
    pub(super) version: Option<StateVersion>,
    /// The members of the last operation that are not lost.
    pub(super) members: Vec<Peer>,
    pending: Option<Pending>,
    /// Whether it is connected, and the coordinator has welcomed it.
    pub(super) is_welcome: bool,
    is_ready: bool,
    is_restoring: bool,
    /// The coordinator has given it another number.
    is_renumbered: bool,
    /// What it must do before it calls the next operation.
    deferred: Option<MemberAction>,
    round_due: Option<u64>,
}

/// An operation that it has called.
#[derive(Clone, Debug)]
struct Pending {
    call: Call,
    steps: u64,
    /// The epoch and number of the attempt.
    attempt: Option<(u64, u32)>,
    /// The message that ended its part of the attempt.
    result: Option<ToCoordinator>,
}

impl Member {
    /// A member that has not connected yet.
    pub fn new(token: u64, address: String, workers: u32, wish: Option<u32>) -> Self {
        Member { token, address, workers, workers_left: workers, wish, ..Member::default() }
    }

    /// Whether the others may count on it for the operation it has called, so that it must wait for the end.
    pub fn is_bound(&self) -> bool {
        self.pending.as_ref().is_some_and(|pending| pending.attempt.is_some())
    }

    /// Whether this is the current attempt.
    pub fn is_current(&self, (epoch, op, attempt): AttemptId) -> bool {
        let is_it = |pending: &Pending| pending.attempt == Some((epoch, attempt));
        op == self.op && self.pending.as_ref().is_some_and(is_it)
    }

    /// A heartbeat.
    pub fn heartbeat(&self, steps: u64, progress: u64) -> Option<ToCoordinator> {
        let workers = self.workers_left;
        self.is_welcome.then_some(ToCoordinator::Heartbeat { steps, progress, workers })
    }

    /// At a free pace: whether the next round is due, or something else must be done first.
    pub fn is_round_due(&self) -> bool {
        self.round_due == Some(self.op) || self.deferred.is_some()
    }

    /// There is a connection: says hello.
    pub fn connected(&mut self) -> ToCoordinator {
        self.is_welcome = false;
        let Member { workers, run, token, worker, .. } = *self;
        let worker = worker.or(self.wish);
        let hello = Hello { version: VERSION, run, token, worker, address: self.address.clone() };
        match workers {
            1 => ToCoordinator::Hello(hello),
            _ => ToCoordinator::HelloOfSet { workers, hello },
        }
    }

    /// The connection ended.
    pub fn disconnected(&mut self) {
        self.is_welcome = false;
    }

    /// It proposes a charter. The answer is [`MemberAction::Welcomed`], with the charter of the run.
    pub fn propose(&mut self, proposal: Proposal) -> Option<ToCoordinator> {
        self.proposal = Some(proposal.clone());
        self.is_welcome.then_some(ToCoordinator::Propose(proposal))
    }

    /// It is ready to take part with this state.
    pub fn enter(&mut self, version: StateVersion) -> Option<ToCoordinator> {
        (self.version, self.op) = (Some(version), version.op);
        self.is_welcome.then_some(ToCoordinator::Enter(version))
    }

    /// A round is over: it now holds a state with this digest.
    pub fn publish(&mut self, digest: u64) -> Option<ToCoordinator> {
        let version = StateVersion { op: self.op, digest };
        self.version = Some(version);
        self.is_welcome.then_some(ToCoordinator::Holds(version))
    }

    /// Calls the next operation, unless something else must be done first: the message to send, or the action.
    pub fn call(&mut self, call: Call, steps: u64) -> (Option<ToCoordinator>, Option<MemberAction>) {
        if let Some(deferred) = self.deferred.take() {
            self.is_restoring = matches!(deferred, MemberAction::Restore { .. });
            return (None, Some(deferred));
        }
        self.pending = Some(Pending { call, steps, attempt: None, result: None });
        (self.arrive().filter(|_| self.is_welcome), None)
    }

    fn arrive(&self) -> Option<ToCoordinator> {
        let Pending { call, steps, .. } = self.pending.as_ref()?;
        let (op, known_epoch) = (self.op, self.epoch);
        Some(ToCoordinator::Arrive { op, call: *call, steps: *steps, known_epoch })
    }

    /// Waits no longer for the operation. It may call it again.
    pub fn abandon(&mut self) {
        self.pending = None;
    }

    /// It has fetched the state of a donor.
    pub fn restored(&mut self, version: StateVersion) -> Option<ToCoordinator> {
        (self.version, self.op) = (Some(version), version.op);
        (self.is_restoring, self.is_renumbered) = (false, false);
        self.is_welcome.then_some(ToCoordinator::Enter(version))
    }

    /// It could not fetch the state.
    pub fn not_restored(&mut self, donor: u32) -> Option<ToCoordinator> {
        self.is_welcome.then_some(ToCoordinator::NotRestored { donor })
    }

    /// Its part of the attempt is done.
    pub fn done(&mut self, attempt: AttemptId, digest: u64) -> Option<ToCoordinator> {
        self.end_attempt(attempt, ToCoordinator::Done { attempt, digest })
    }

    /// The attempt failed: with which member, and why.
    pub fn failed(&mut self, attempt: AttemptId, peer: u32, why: String) -> Option<ToCoordinator> {
        self.end_attempt(attempt, ToCoordinator::Failed { attempt, peer, why })
    }

    /// It has the messages of all, and cannot read that of a peer.
    pub fn unreadable(&mut self, attempt: AttemptId, peer: u32, why: String) -> Option<ToCoordinator> {
        self.end_attempt(attempt, ToCoordinator::Unreadable { attempt, peer, why })
    }

    fn end_attempt(&mut self, attempt: AttemptId, message: ToCoordinator) -> Option<ToCoordinator> {
        if !self.is_current(attempt) {
            return None;
        }
        if let Some(pending) = &mut self.pending {
            pending.result = Some(message.clone());
        }
        self.is_welcome.then_some(message)
    }

    /// Handles a message: what to answer, and what to do.
    pub fn handle(&mut self, message: ToMember) -> (Vec<ToCoordinator>, Option<MemberAction>) {
        match message {
            ToMember::Welcome { run, worker, known, heartbeat, charter, founders } => {
                self.is_renumbered |= self.worker.is_some_and(|before| before != worker);
                (self.run, self.worker, self.is_welcome) = (run, Some(worker), true);
                self.founders = founders;
                if !known {
                    // A coordinator without a record of this member may have used the same epochs for other members.
                    self.epoch = 0;
                }
                (self.repeat(known), Some(MemberAction::Welcomed { charter, heartbeat }))
            }
            ToMember::Charter { charter, heartbeat } => {
                self.proposal = None;
                (Vec::new(), Some(MemberAction::Welcomed { charter: Some(charter), heartbeat }))
            }
            ToMember::Refused { why } => (Vec::new(), Some(MemberAction::Refused { why })),
            ToMember::Joined { workers } => {
                self.joined = workers;
                (Vec::new(), None)
            }
            ToMember::Stop => (Vec::new(), Some(MemberAction::Stop)),
            ToMember::Over => (Vec::new(), Some(MemberAction::Over)),
            ToMember::Ready { op } => self.on_ready(op),
            ToMember::Restore { donor, version } => {
                let action = MemberAction::Restore { donor, version };
                if self.pending.take().is_none() && self.is_ready && !self.is_restoring {
                    // It is training. It gets the action when it calls the next operation.
                    self.deferred = Some(action);
                    return (Vec::new(), None);
                }
                (self.deferred, self.is_restoring) = (None, true);
                (Vec::new(), Some(action))
            }
            ToMember::HeartbeatAck | ToMember::ReportAck => (Vec::new(), None),
            ToMember::StartRound { op } => {
                self.round_due = Some(op);
                (Vec::new(), None)
            }
            ToMember::Begin { epoch, op, members, lost, attempt } => {
                let Some(pending) = self.pending.as_mut().filter(|_| op == self.op) else {
                    return (Vec::new(), None);
                };
                match members {
                    Some(members) => (self.epoch, self.members) = (epoch, members),
                    // It does not know the members of this epoch, and can do nothing without them.
                    None if epoch != self.epoch => return (Vec::new(), None),
                    None => {}
                }
                self.is_ready = true;
                let Some(number) = attempt else {
                    self.pending = None;
                    self.op = self.op.saturating_add(1);
                    return (Vec::new(), Some(MemberAction::Skipped { lost }));
                };
                if pending.attempt == Some((epoch, number)) {
                    return (pending.result.clone().into_iter().collect(), None);
                }
                (pending.attempt, pending.result) = (Some((epoch, number)), None);
                (Vec::new(), Some(MemberAction::Transfer { attempt: (epoch, op, number), lost }))
            }
            ToMember::Ended { op, end } => {
                let Some(pending) = self.pending.as_ref().filter(|_| op == self.op) else {
                    return (Vec::new(), None);
                };
                let is_done = matches!(pending.result, Some(ToCoordinator::Done { .. }));
                if !is_done && matches!(end, End::Commit { .. }) {
                    let why = "the coordinator committed a result that this member does not have";
                    return (Vec::new(), Some(MemberAction::Refused { why: why.into() }));
                }
                if let End::Commit { lost } | End::Shrunk { lost } = &end {
                    self.members.retain(|peer| !lost.iter().any(|lost| lost.worker == peer.worker));
                }
                self.pending = None;
                self.op = self.op.saturating_add(1);
                (Vec::new(), Some(MemberAction::Ended(end)))
            }
        }
    }

    /// The messages to repeat on a new connection.
    fn repeat(&self, known: bool) -> Vec<ToCoordinator> {
        let Some(version) = self.version else {
            return self.proposal.clone().map(ToCoordinator::Propose).into_iter().collect();
        };
        if !known {
            return vec![ToCoordinator::Enter(version)];
        }
        let holds = (version.op == self.op).then_some(ToCoordinator::Holds(version));
        let result = self.pending.as_ref().and_then(|pending| pending.result.clone());
        holds.into_iter().chain(self.arrive()).chain(result).collect()
    }

    fn on_ready(&mut self, op: u64) -> (Vec<ToCoordinator>, Option<MemberAction>) {
        let was_ready = std::mem::replace(&mut self.is_ready, true);
        let is_restoring = std::mem::take(&mut self.is_restoring);
        // With another number it must begin the round anew: the old one is another member's by now.
        let is_renumbered = std::mem::take(&mut self.is_renumbered);
        if self.op == op && !is_restoring && !is_renumbered {
            self.deferred = None;
            if let Some(pending) = &mut self.pending {
                (pending.attempt, pending.result) = (None, None);
            }
            return (self.arrive().into_iter().collect(), (!was_ready).then_some(MemberAction::Ready));
        }
        self.op = op;
        if self.pending.take().is_some() || is_restoring || !was_ready {
            return (Vec::new(), Some(MemberAction::RollBack));
        }
        self.deferred = Some(MemberAction::RollBack);
        (Vec::new(), None)
    }
}

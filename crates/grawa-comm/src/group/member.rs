//! A member's side of the protocol. Pure: it is told what was heard, and says what to send and what to do.
//!
//! A member does one thing at a time: it stands, or it has come to a meeting and waits for it to end. If its connection breaks
//! it says hello again, and what it said and got no answer to; the coordinator has either kept its place or tells it to take
//! over what the others hold by now.

use super::message::{Call, Down, End, Peer, Stand, Up, VERSION};
use crate::Lost;

/// What the protocol asks of a member.
#[derive(Clone, Debug, PartialEq)]
pub enum Deed {
    /// It is known to the coordinator.
    Known {
        /// What defines the run, if it did not know.
        charter: Option<Vec<u8>>,
        /// Milliseconds from one sign of life to the next.
        beat: u64,
    },
    /// It may come to the next meeting.
    Ready,
    /// The meeting is over, and nothing was moved.
    Met {
        /// Who was lost since the last one.
        lost: Vec<Lost>,
    },
    /// Move words or vectors with the members.
    Move {
        /// The epoch.
        epoch: u64,
        /// The meeting.
        op: u64,
        /// Which attempt.
        attempt: u32,
        /// Who was lost since the meeting before.
        lost: Vec<Lost>,
    },
    /// The end of a meeting that moved something.
    Closed(End),
    /// Take over what a donor holds; the meeting it waited for goes on without it.
    Take {
        /// From whom.
        donor: Peer,
        /// What.
        stand: Stand,
    },
    /// Go back to where it stood last; the meeting it waited for will not be.
    Back,
    /// It may not take part.
    Refused {
        /// Why.
        why: String,
    },
}

/// A member's state.
#[derive(Clone, Debug)]
pub struct Member {
    token: u64,
    address: String,
    run: u64,
    worker: Option<u32>,
    epoch: u64,
    op: u64,
    stand: Option<Stand>,
    members: Vec<Peer>,
    pending: Option<Pending>,
    is_greeted: bool,
    is_ready: bool,
    is_taking: bool,
    /// What must be done before the next meeting.
    due: Option<Deed>,
    called: Option<u64>,
}

#[derive(Clone, Debug)]
struct Pending {
    call: Call,
    steps: u64,
    moving: Option<(u64, u32)>,
    done: Option<Up>,
}

impl Member {
    /// A member that has not met anyone yet.
    pub fn new(token: u64, address: String) -> Self {
        Member {
            token,
            address,
            run: 0,
            worker: None,
            epoch: 0,
            op: 0,
            stand: None,
            members: Vec::new(),
            pending: None,
            is_greeted: false,
            is_ready: false,
            is_taking: false,
            due: None,
            called: None,
        }
    }

    /// Its number, once it has one.
    pub fn worker(&self) -> Option<u32> {
        self.worker
    }

    /// Those who came to the last meeting and are not lost.
    pub fn members(&self) -> &[Peer] {
        &self.members
    }

    /// The next meeting.
    pub fn op(&self) -> u64 {
        self.op
    }

    /// Where it stood last.
    pub fn stand(&self) -> Option<Stand> {
        self.stand
    }

    /// The run; 0 before it is known.
    pub fn run(&self) -> u64 {
        self.run
    }

    /// Whether the coordinator knows it and can be reached, as far as it knows.
    pub fn is_in_contact(&self) -> bool {
        self.is_greeted
    }

    /// Whether others may count on it for the meeting it has come to, so that it cannot turn away.
    pub fn is_bound(&self) -> bool {
        self.pending.as_ref().is_some_and(|pending| pending.moving.is_some())
    }

    /// Whether this is what it moves: it may have been told to leave off.
    pub fn moves(&self, (epoch, op, attempt): (u64, u64, u32)) -> bool {
        let is_it = |pending: &Pending| pending.moving == Some((epoch, attempt));
        op == self.op && self.pending.as_ref().is_some_and(is_it)
    }

    /// A sign of life.
    pub fn beat(&self, steps: u64, progress: u64) -> Option<Up> {
        self.is_greeted.then_some(Up::Beat { steps, progress })
    }

    /// At a free pace: whether it was called to the next meeting, or has something else to do first.
    pub fn is_called(&self) -> bool {
        self.called == Some(self.op) || self.due.is_some()
    }

    /// There is a connection: says hello.
    pub fn connected(&mut self) -> Up {
        self.is_greeted = false;
        let (run, token, worker) = (self.run, self.token, self.worker);
        Up::Hello { version: VERSION, run, token, worker, address: self.address.clone() }
    }

    /// The connection ended.
    pub fn disconnected(&mut self) {
        self.is_greeted = false;
    }

    /// It is ready to take part from here.
    pub fn enter(&mut self, stand: Stand) -> Option<Up> {
        (self.stand, self.op) = (Some(stand), stand.op);
        self.is_greeted.then_some(Up::Enter(stand))
    }

    /// A cycle is over: it now holds something of this digest.
    pub fn stands(&mut self, digest: u64) -> Option<Up> {
        let stand = Stand { op: self.op, digest };
        self.stand = Some(stand);
        self.is_greeted.then_some(Up::Stands(stand))
    }

    /// Comes to the next meeting, unless something else is due first: what to say, and what to do at once.
    pub fn come(&mut self, call: Call, steps: u64) -> (Option<Up>, Option<Deed>) {
        if let Some(due) = self.due.take() {
            self.is_taking = matches!(due, Deed::Take { .. });
            return (None, Some(due));
        }
        self.pending = Some(Pending { call, steps, moving: None, done: None });
        (self.arrive().filter(|_| self.is_greeted), None)
    }

    fn arrive(&self) -> Option<Up> {
        let Pending { call, steps, .. } = self.pending.as_ref()?;
        Some(Up::Arrive { op: self.op, call: *call, steps: *steps, knows: self.epoch })
    }

    /// Does not wait for the meeting any more; it may come to it again.
    pub fn turn_away(&mut self) {
        self.pending = None;
    }

    /// It has taken over what a donor held.
    pub fn took(&mut self, stand: Stand) -> Option<Up> {
        (self.stand, self.op, self.is_taking) = (Some(stand), stand.op, false);
        self.is_greeted.then_some(Up::Took(stand))
    }

    /// It could not.
    pub fn not_taken(&mut self, donor: u32) -> Option<Up> {
        self.is_greeted.then_some(Up::NotTaken { donor })
    }

    /// Its part of moving something is done.
    pub fn done(&mut self, (epoch, op, attempt): (u64, u64, u32), digest: u64) -> Option<Up> {
        let up = Up::Done { epoch, op, attempt, digest };
        let pending = self.pending.as_mut().filter(|pending| pending.moving == Some((epoch, attempt)))?;
        pending.done = Some(up.clone());
        self.is_greeted.then_some(up)
    }

    /// It ends.
    pub fn leave(&self) -> Up {
        Up::Leave
    }

    /// Moving it failed: with whom, and why.
    pub fn broken(&mut self, tag: (u64, u64, u32), peer: u32, why: String) -> Option<Up> {
        let (epoch, op, attempt) = tag;
        let pending = self.pending.as_mut().filter(|pending| pending.moving == Some((epoch, attempt)))?;
        let up = Up::Broken { epoch, op, attempt, peer, why };
        pending.done = Some(up.clone());
        self.is_greeted.then_some(up)
    }

    /// Takes note of a message: what to answer, and what to do.
    pub fn hear(&mut self, down: Down) -> (Vec<Up>, Option<Deed>) {
        match down {
            Down::Welcome { run, worker, known, beat, charter } => {
                (self.run, self.worker, self.is_greeted) = (run, Some(worker), true);
                if !known {
                    // Epochs of a coordinator that does not know it may mean others.
                    self.epoch = 0;
                }
                (self.repeat(known), Some(Deed::Known { charter, beat }))
            }
            Down::Refused { why } => (Vec::new(), Some(Deed::Refused { why })),
            Down::Ready { op } => self.ready(op),
            Down::Take { donor, stand } => {
                let deed = Deed::Take { donor, stand };
                if self.pending.take().is_none() && self.is_ready && !self.is_taking {
                    // It is at work: it will be told when it comes.
                    self.due = Some(deed);
                    return (Vec::new(), None);
                }
                (self.due, self.is_taking) = (None, true);
                (Vec::new(), Some(deed))
            }
            Down::Beat | Down::Heard => (Vec::new(), None),
            Down::Round { op } => {
                self.called = Some(op);
                (Vec::new(), None)
            }
            Down::Met { epoch, op, members, lost, attempt } => {
                let Some(pending) = self.pending.as_mut().filter(|_| op == self.op) else {
                    return (Vec::new(), None);
                };
                match members {
                    Some(members) => (self.epoch, self.members) = (epoch, members),
                    // It is said to know whom it was not told of: nothing can be done with nobody.
                    None if epoch != self.epoch => return (Vec::new(), None),
                    None => {}
                }
                self.is_ready = true;
                let Some(attempt) = attempt else {
                    self.pending = None;
                    self.op = self.op.saturating_add(1);
                    return (Vec::new(), Some(Deed::Met { lost }));
                };
                if pending.moving == Some((epoch, attempt)) {
                    return (pending.done.clone().into_iter().collect(), None);
                }
                (pending.moving, pending.done) = (Some((epoch, attempt)), None);
                (Vec::new(), Some(Deed::Move { epoch, op, attempt, lost }))
            }
            Down::Closed { op, end } => {
                if self.pending.is_none() || op != self.op {
                    return (Vec::new(), None);
                }
                if let End::Commit { lost } | End::Shrunk { lost } = &end {
                    self.members.retain(|peer| !lost.iter().any(|lost| lost.worker == peer.worker));
                }
                self.pending = None;
                self.op = self.op.saturating_add(1);
                (Vec::new(), Some(Deed::Closed(end)))
            }
        }
    }

    /// What to say again on a new connection.
    fn repeat(&self, known: bool) -> Vec<Up> {
        let Some(stand) = self.stand else { return Vec::new() };
        if !known {
            return vec![Up::Enter(stand)];
        }
        let stands = (stand.op == self.op).then_some(Up::Stands(stand));
        let done = self.pending.as_ref().and_then(|pending| pending.done.clone());
        stands.into_iter().chain(self.arrive()).chain(done).collect()
    }

    fn ready(&mut self, op: u64) -> (Vec<Up>, Option<Deed>) {
        let was_ready = std::mem::replace(&mut self.is_ready, true);
        let is_taking = std::mem::take(&mut self.is_taking);
        if self.op == op && !is_taking {
            self.due = None;
            if let Some(pending) = &mut self.pending {
                (pending.moving, pending.done) = (None, None);
            }
            return (self.arrive().into_iter().collect(), (!was_ready).then_some(Deed::Ready));
        }
        self.op = op;
        if self.pending.take().is_some() || is_taking {
            return (Vec::new(), Some(Deed::Back));
        }
        self.due = Some(Deed::Back);
        (Vec::new(), None)
    }
}

//! A member's side of the protocol. Pure: it is told what was heard, and says what to send and what to do.
//!
//! A member does one thing at a time: it stands, or it has come to a meeting and waits for it to end. If its connection breaks
//! it says hello again, and what it said and got no answer to; the coordinator has either kept its place or tells it to take
//! over what the others hold by now.
//!
//! Where the coordinator lets them, members meet *of their own accord*: they move what is to be moved, tell each other that they
//! are done, and with what, and who has heard that of all goes on. Nothing of it crosses a control connection. Whoever is done
//! may find that the others went on; so if anything fails it tells the coordinator, which stops all, and hears what became of
//! the meeting.

use super::message::{Call, Down, End, Own, Peer, Stand, Up, VERSION, encode};
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
        /// Which attempt; the first, [`OWN`], is of their own accord.
        attempt: u32,
        /// Who was lost since the meeting before.
        lost: Vec<Lost>,
        /// Something may be left in the connections: they are to be made anew.
        anew: bool,
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

/// The attempt that members make of their own accord. Those of a coordinator come after it.
pub const OWN: u32 = 0;
/// The most stands that a sign of life tells of, the newest: so what is said does not grow with how quick rounds are.
const UNTOLD: usize = 16;

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
    accord: Accord,
    /// Connections may hold something of a meeting that was left off.
    is_disturbed: bool,
    untold: Own,
}

/// How far members meet of their own accord.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Accord {
    None,
    Granted,
    /// Of this epoch it was stopped, and the coordinator has not yet said where to go on.
    Stopped(u64),
}

#[derive(Clone, Debug)]
struct Pending {
    call: Call,
    steps: u64,
    moving: Option<(u64, u32)>,
    done: Option<Up>,
}

/// Adds one, and gives up the oldest if there are too many.
fn newest<T>(some: &mut Vec<T>, one: T) {
    if some.len() == UNTOLD {
        some.remove(0);
    }
    some.push(one);
}

impl Pending {
    fn is_done(&self) -> bool {
        matches!(self.done, Some(Up::Done { .. }))
    }

    fn is_own(&self) -> bool {
        self.moving.is_some_and(|(_, attempt)| attempt == OWN)
    }
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
            accord: Accord::None,
            is_disturbed: false,
            untold: Own::default(),
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
        let is_bound = |pending: &Pending| match pending.moving {
            Some((_, attempt)) if attempt != OWN => true,
            _ => pending.is_done(),
        };
        self.pending.as_ref().is_some_and(is_bound)
    }

    /// Whether this is what it moves: it may have been told to leave off.
    pub fn moves(&self, (epoch, op, attempt): (u64, u64, u32)) -> bool {
        let is_it = |pending: &Pending| pending.moving == Some((epoch, attempt));
        op == self.op && self.pending.as_ref().is_some_and(is_it)
    }

    /// A sign of life.
    pub fn beat(&mut self, steps: u64, progress: u64) -> Option<Up> {
        if !self.is_greeted {
            return None;
        }
        let mut own = std::mem::take(&mut self.untold);
        let stands = self.stand.filter(|stand| stand.op == self.op && self.pending.is_none());
        own.next = stands.filter(|_| self.accord == Accord::Granted).map(|stand| stand.op);
        Some(Up::Beat { steps, progress, own })
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
        // Of their own accord they tell each other at the next meeting.
        (self.is_greeted && self.accord != Accord::Granted).then_some(Up::Stands(stand))
    }

    /// Comes to the next meeting, unless something else is due first: what to say, and what to do at once.
    pub fn come(&mut self, call: Call, steps: u64) -> (Option<Up>, Option<Deed>) {
        if let Some(due) = self.due.take() {
            self.is_taking = matches!(due, Deed::Take { .. });
            return (None, Some(due));
        }
        self.pending = Some(Pending { call, steps, moving: None, done: None });
        // Who is out of contact does not know whether it still is one of them. A leader that is none is for the coordinator to
        // refuse.
        let is_led = match call {
            Call::Broadcast { leader } => self.members.iter().any(|peer| peer.worker == leader),
            Call::Gather | Call::Barrier | Call::Mix { .. } => true,
        };
        if self.accord == Accord::Granted && self.is_greeted && is_led {
            let (epoch, op) = (self.epoch, self.op);
            return (None, Some(self.begin(epoch, op, OWN, Vec::new())));
        }
        (self.arrive().filter(|_| self.is_greeted), None)
    }

    fn begin(&mut self, epoch: u64, op: u64, attempt: u32, lost: Vec<Lost>) -> Deed {
        if let Some(pending) = &mut self.pending {
            (pending.moving, pending.done) = (Some((epoch, attempt)), None);
        }
        Deed::Move { epoch, op, attempt, lost, anew: std::mem::take(&mut self.is_disturbed) }
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

    /// Its part of moving something is done. Of their own accord, members then exchange [`vow`](Member::vow)s.
    pub fn done(&mut self, (epoch, op, attempt): (u64, u64, u32), digest: u64) -> Option<Up> {
        let up = Up::Done { epoch, op, attempt, digest };
        let pending = self.pending.as_mut().filter(|pending| pending.moving == Some((epoch, attempt)))?;
        pending.done = Some(up.clone());
        (self.is_greeted && attempt != OWN).then_some(up)
    }

    /// What it tells the others when it is done: with what, and where it stood if that is where this meeting began. All must
    /// say the same.
    pub fn vow(&self, tag: (u64, u64, u32)) -> Option<Vec<u8>> {
        let pending = self.pending.as_ref().filter(|pending| self.moves(tag) && pending.is_own())?;
        let Some(Up::Done { digest, .. }) = pending.done else { return None };
        encode(&(pending.call, digest, self.stand.filter(|stand| stand.op == self.op))).ok()
    }

    /// The vows of all have come: the meeting is over if they are the same.
    pub fn agree(&mut self, tag: (u64, u64, u32), vows: &[Vec<u8>]) -> (Option<Up>, Option<Deed>) {
        // If it was told to stop, the others may go on only where the coordinator says so.
        let Some(own) = self.vow(tag) else { return (None, None) };
        if vows.iter().any(|vow| *vow != own) {
            return (self.stop(tag.0), None);
        }
        self.note_own();
        self.pending = None;
        self.op = self.op.saturating_add(1);
        (None, Some(Deed::Closed(End::Commit { lost: Vec::new() })))
    }

    /// A meeting of their own accord has taken place: if it began a round, that is told of.
    fn note_own(&mut self) {
        let Some(Pending { done: Some(Up::Done { attempt: OWN, .. }), steps, .. }) = self.pending else {
            return;
        };
        let Some(stand) = self.stand.filter(|stand| stand.op == self.op) else { return };
        if self.called.is_some() {
            newest(&mut self.untold.taken, (self.op, steps));
        }
        if self.tells_of(stand) {
            newest(&mut self.untold.stands, stand);
        }
    }

    /// Two tell of every stand, in turn: one may be lost before it does.
    fn tells_of(&self, stand: Stand) -> bool {
        let members = self.members.len().max(1) as u64;
        let seat = self.members.iter().position(|peer| peer.token == self.token).unwrap_or(0) as u64;
        // Digests are as good as drawn.
        (stand.digest % members + members - seat) % members < 2
    }

    /// Meets no more of its own accord; where it stopped is what the coordinator must know.
    fn stop(&mut self, epoch: u64) -> Option<Up> {
        if let Some(pending) = self.pending.as_mut().filter(|pending| pending.is_own()) {
            pending.moving = None;
        }
        (self.accord, self.is_disturbed) = (Accord::Stopped(epoch), true);
        self.stopped(epoch).filter(|_| self.is_greeted)
    }

    fn stopped(&self, epoch: u64) -> Option<Up> {
        let done = self.pending.as_ref().is_some_and(Pending::is_done);
        Some(Up::Stopped { epoch, op: self.op, done, stand: self.stand, trouble: None })
    }

    /// It ends: it tells what it had still to tell, and how far it had come with the others, who may depend on knowing.
    pub fn leave(&mut self) -> Vec<Up> {
        let beat = if self.untold == Own::default() { None } else { self.beat(0, 0) };
        let stopped = (self.accord == Accord::Granted).then(|| self.stop(self.epoch)).flatten();
        beat.into_iter().chain(stopped).chain([Up::Leave]).collect()
    }

    /// Moving it failed: with whom, and why. One that names itself gave up on one who is late.
    pub fn broken(&mut self, tag: (u64, u64, u32), peer: u32, why: String) -> Option<Up> {
        let (epoch, op, attempt) = tag;
        let pending = self.pending.as_mut().filter(|pending| pending.moving == Some((epoch, attempt)))?;
        if attempt == OWN {
            let mut up = self.stop(epoch);
            if let Some(Up::Stopped { trouble, .. }) = &mut up {
                *trouble = (Some(peer) != self.worker).then_some((peer, why));
            }
            return up;
        }
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
                    self.stop(0);
                    self.accord = Accord::None;
                }
                (self.repeat(known), Some(Deed::Known { charter, beat }))
            }
            Down::Refused { why } => (Vec::new(), Some(Deed::Refused { why })),
            Down::Ready { op } => self.ready(op),
            Down::Stop { epoch } => (self.stop(epoch).into_iter().collect(), None),
            Down::Take { donor, stand } => {
                self.accord = Accord::None;
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
                let Some(pending) = self.pending.clone().filter(|_| op == self.op) else {
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
                (Vec::new(), Some(self.begin(epoch, op, attempt, lost)))
            }
            Down::Closed { op, end, accord } => {
                if self.pending.is_none() || op != self.op {
                    return (Vec::new(), None);
                }
                if let End::Commit { .. } = end {
                    self.note_own();
                }
                self.accord = if accord { Accord::Granted } else { Accord::None };
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
        match self.accord {
            Accord::Stopped(epoch) => return self.stopped(epoch).into_iter().collect(),
            // What they do of their own accord goes on. One that came out of contact did not do so.
            Accord::Granted if self.pending.as_ref().is_none_or(Pending::is_own) => return Vec::new(),
            Accord::Granted | Accord::None => {}
        }
        let stands = (stand.op == self.op).then_some(Up::Stands(stand));
        let done = self.pending.as_ref().and_then(|pending| pending.done.clone());
        stands.into_iter().chain(self.arrive()).chain(done).collect()
    }

    fn ready(&mut self, op: u64) -> (Vec<Up>, Option<Deed>) {
        let was_ready = std::mem::replace(&mut self.is_ready, true);
        let is_taking = std::mem::take(&mut self.is_taking);
        self.accord = Accord::None;
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

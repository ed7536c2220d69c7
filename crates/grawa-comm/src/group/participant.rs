//! A worker's end of an elastic group, on sockets: it comes to meetings, and moves what is to be moved until they are over.
//!
//! The worker's own thread does this. What it is to do is decided by [`Member`](super::Member); the operations themselves
//! are in [`collective`](super::collective).

use super::door::visit;
use super::exchange::{Failed, Moved, Tag};
use super::flight::{Flight, Landed, Travel};
use super::line::{Anchor, Shared, State, lock, send};
use super::link::{GoOn, In, Out};
use super::member::Deed;
use super::message::{Call, End, Peer};
use crate::{Error, Lost, Outcome};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// A worker's end of a group: the operations on one of its centres.
#[derive(Debug)]
pub struct Participant {
    pub(super) core: Arc<Mutex<Core>>,
    pub(super) shared: Arc<Shared>,
    /// None for what is on its way: that does not keep the worker in the group.
    pub(super) _anchor: Option<Arc<Anchor>>,
    pub(super) number: u8,
    pub(super) worker: u32,
    pub(super) members: Vec<u32>,
    pub(super) centre: Arc<Vec<f32>>,
    /// How often the centre was replaced.
    pub(super) version: u64,
    pub(super) travel: Travel,
    /// A round of this end whose vectors are on their way, a buffer for the next such, and who was lost on the last.
    pub(super) flight: Option<Arc<Flight>>,
    pub(super) luggage: Vec<f32>,
    pub(super) lost: Vec<Lost>,
}

/// What the operations of all centres share.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) outs: HashMap<u64, Out>,
    pub(super) spare: Vec<f32>,
    pub(super) is_clean: bool,
    /// What must be taken over before anything else, and what for.
    pub(super) due: Option<Deed>,
    pub(super) bytes: u64,
}

/// Why an attempt to move something came to nothing.
enum Trouble {
    /// With another member.
    With(u32, Error),
    /// With itself.
    Own(Error),
    /// Something else is to be done.
    Interrupted,
}

impl Participant {
    /// Waits for vectors that are on their way, and takes up what this end's came to.
    pub(super) fn land(&mut self) -> Result<(), Error> {
        let other = lock(&self.shared.flight).take();
        other.iter().for_each(|flight| flight.wait());
        let Some(flight) = self.flight.take() else { return Ok(()) };
        let Landed { centre, members, lost, mine } = flight.take()?;
        self.luggage = mine;
        (self.members, self.lost) = (members, lost);
        if let Some(centre) = centre {
            self.take_centre(centre);
        }
        Ok(())
    }

    /// Replaces the centre, and returns the one before.
    pub(super) fn take_centre(&mut self, centre: Arc<Vec<f32>>) -> Arc<Vec<f32>> {
        self.version += 1;
        std::mem::replace(&mut self.centre, centre)
    }

    /// Comes to the next meeting.
    fn come(&self, core: &mut Core, call: Call) -> Result<(), Error> {
        if core.due.is_some() {
            return Err(Error::Behind);
        }
        let [steps, counted] =
            [&self.shared.steps, &self.shared.counted].map(|count| count.load(Ordering::Relaxed));
        let steps = steps.saturating_sub(counted);
        let mut state = lock(&self.shared.state);
        let (up, deed) = state.member.come(call, steps);
        send(&mut state, up);
        if let Some(deed) = deed {
            state.deeds.push_front(deed);
        }
        Ok(())
    }

    /// What the meeting comes to; one that `may_leave` goes on alone where it is out of contact and nobody counts on it.
    fn wait(&self, core: &mut Core, may_leave: bool) -> Result<Deed, Error> {
        loop {
            let stays = |state: &State| !may_leave || state.member.is_bound();
            let deed = self.shared.next(&|state| stays(state) || !state.has_lost_contact());
            match deed {
                Some(deed @ (Deed::Take { .. } | Deed::Back)) => {
                    core.due = Some(deed);
                    return Err(Error::Behind);
                }
                Some(Deed::Refused { why }) => return Err(Error::Refused { why }),
                Some(Deed::Closed(End::OutOfStep { calls })) => return Err(out_of_step(&calls)),
                Some(Deed::Known { .. } | Deed::Ready) => {}
                Some(deed) => return Ok(deed),
                None if self.shared.is_over() => {
                    return Err(Error::Connection { why: "the group was left".into() });
                }
                None => {
                    let mut state = lock(&self.shared.state);
                    // Something may have been heard at the last moment.
                    if state.deeds.is_empty() {
                        state.member.turn_away();
                        return Err(Error::OutOfContact);
                    }
                }
            }
        }
    }

    fn peers(&self) -> Vec<Peer> {
        lock(&self.shared.state).member.members().to_vec()
    }

    fn note_members(&mut self) -> Vec<u32> {
        self.members = self.peers().iter().map(|peer| peer.worker).collect();
        self.members.clone()
    }

    /// Comes to a meeting, and does what moves there as often as it is asked for, until the meeting ends.
    pub(super) fn meet(
        &mut self,
        call: Call,
        mut act: impl FnMut(Ends<'_>) -> Result<Moved, Failed>,
    ) -> Result<Ended<()>, Error> {
        let start = Instant::now();
        let (mut wait, mut before) = (None, Vec::new());
        let shared = Arc::clone(&self.core);
        let mut core = lock(&shared);
        let stands = {
            let state = lock(&self.shared.state);
            state.member.stand().is_some_and(|stand| stand.op == state.member.op())
        };
        self.come(&mut core, call)?;
        loop {
            match self.wait(&mut core, stands)? {
                Deed::Met { lost } => {
                    self.note_members();
                    return Ok(Ended::Not(lost));
                }
                Deed::Move { epoch, op, attempt, lost } => {
                    wait.get_or_insert_with(|| start.elapsed());
                    before = lost;
                    let tag = (epoch, op, attempt);
                    let moved = self.try_once(&mut core, tag, &mut act);
                    core.is_clean = false;
                    match moved {
                        Ok(()) => {}
                        Err(Trouble::With(peer, why)) => {
                            self.shared.tell(|member| member.broken(tag, peer, why.to_string()));
                        }
                        // The others would wait for one who cannot go on: it ends, and they hear of it.
                        Err(Trouble::Own(why)) => return Err(why),
                        // What interrupted it is found next.
                        Err(Trouble::Interrupted) => {}
                    }
                }
                Deed::Closed(End::Commit { lost }) => {
                    core.is_clean = true;
                    let Some(wait) = wait else {
                        return Err(Error::Message { why: "a meeting ended that was not begun".into() });
                    };
                    before.extend(lost);
                    let (members, work) = (self.note_members(), start.elapsed() - wait);
                    return Ok(Ended::Well((), Outcome { members, lost: before, bytes: 0, wait, work }));
                }
                Deed::Closed(End::Shrunk { lost }) => {
                    before.extend(lost);
                    self.note_members();
                    return Ok(Ended::Not(before));
                }
                other => {
                    return Err(Error::Message { why: format!("{other:?} is no answer to {}", call.name()) });
                }
            }
        }
    }

    /// One attempt; says to the coordinator that it is done.
    fn try_once(
        &self,
        core: &mut Core,
        tag: Tag,
        act: &mut impl FnMut(Ends<'_>) -> Result<Moved, Failed>,
    ) -> Result<(), Trouble> {
        let Shared { door, wire, token, state, .. } = &*self.shared;
        let run = lock(state).member.run();
        let peers = self.peers();
        let Some(seat) = peers.iter().position(|peer| peer.token == *token) else {
            return Err(Trouble::Interrupted);
        };
        if !core.is_clean {
            core.outs.clear();
            door.forget_before(tag);
        }
        let go_on = || self.shared.moves(tag);
        let (mut outs, mut ins) = (Vec::new(), Vec::new());
        for (index, peer) in peers.iter().enumerate() {
            outs.push(match (index == seat, core.outs.remove(&peer.token)) {
                (true, _) => None,
                (false, Some(out)) => Some(out),
                (false, None) => {
                    Some(visit(peer, wire, run, *token, tag).map_err(|why| Trouble::With(peer.worker, why))?)
                }
            });
        }
        for (index, peer) in peers.iter().enumerate() {
            let from = (index != seat).then(|| door.from(peer, tag, &go_on)).transpose();
            ins.push(from.map_err(|why| {
                if go_on() { Trouble::With(peer.worker, why) } else { Trouble::Interrupted }
            })?);
        }
        let trouble = |failed: Failed| match failed.seat {
            _ if !go_on() => Trouble::Interrupted,
            Some(seat) => Trouble::With(peers[seat].worker, failed.why),
            None => Trouble::Own(failed.why),
        };
        let moved = act(Ends { tag, peers: &peers, seat, outs, ins, go_on: &go_on }).map_err(trouble)?;
        core.outs.clear();
        door.keep_only(&peers, tag);
        for ((peer, out), from) in peers.iter().zip(moved.outs).zip(moved.ins) {
            if let (Some(out), Some(from)) = (out, from) {
                core.outs.insert(peer.token, out);
                door.keep(peer, tag, from);
            }
        }
        core.bytes += moved.bytes;
        self.shared.tell(|member| member.done(tag, moved.digest.into()));
        Ok(())
    }

    /// Bytes sent to other members so far.
    pub fn bytes(&self) -> u64 {
        lock(&self.core).bytes
    }

    /// Connections to and from other members that are kept.
    #[cfg(test)]
    pub(super) fn connections(&self) -> usize {
        lock(&self.core).outs.len() + self.shared.door.connections()
    }

    /// Whether the coordinator is in reach, as far as is known.
    pub fn is_in_contact(&self) -> bool {
        lock(&self.shared.state).member.is_in_contact()
    }
}

/// What an attempt to move something is made with: the members, this one's seat among them, and the connections by seat.
pub(super) struct Ends<'a> {
    pub(super) tag: Tag,
    pub(super) peers: &'a [Peer],
    pub(super) seat: usize,
    pub(super) outs: Vec<Option<Out>>,
    pub(super) ins: Vec<Option<In>>,
    pub(super) go_on: GoOn<'a>,
}

/// How a meeting ended: all hold the same, or nothing was moved; and who was lost.
pub(super) enum Ended<T> {
    Well(T, Outcome),
    Not(Vec<Lost>),
}

fn out_of_step(calls: &[(u32, Call)]) -> Error {
    if let [(first, Call::Mix { .. }), ..] = calls
        && let Some((other, _)) = calls.iter().find(|(_, call)| *call != calls[0].1)
        && calls.iter().all(|(_, call)| matches!(call, Call::Mix { .. }))
    {
        return Error::PlansDiffer { first: *first, other: *other };
    }
    Error::OutOfStep { calls: calls.iter().map(|(worker, call)| (*worker, call.name())).collect() }
}

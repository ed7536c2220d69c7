//! A worker's end of an elastic group, on sockets: it comes to meetings, and moves what is to be moved until they are over.
//!
//! The worker's own thread does this. What it is to do is decided by [`Member`](super::Member); the operations themselves
//! are in [`collective`](super::collective).

use super::door::visit;
use super::exchange::{Adds, Base, Move, Tag};
use super::flight::{Flight, Landed, Travel};
use super::line::{Anchor, Shared, lock, send};
use super::link::Out;
use super::member::Deed;
use super::message::{Call, End, Peer};
use crate::{Error, Lost, Outcome};
use std::collections::HashMap;
use std::ops::Range;
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
            self.centre = centre;
        }
        Ok(())
    }

    /// Comes to the next meeting.
    fn come(&self, core: &mut Core, call: Call, message: Vec<u8>) -> Result<(), Error> {
        if core.due.is_some() {
            return Err(Error::Behind);
        }
        let [steps, counted] =
            [&self.shared.steps, &self.shared.counted].map(|count| count.load(Ordering::Relaxed));
        let steps = steps.saturating_sub(counted);
        let mut state = lock(&self.shared.state);
        match state.member.come(call, message, steps) {
            Ok(up) => {
                send(&mut state, up);
                Ok(())
            }
            Err(deed) => {
                core.due = Some(deed);
                Err(Error::Behind)
            }
        }
    }

    /// What the meeting comes to; `patient` unless it may go on alone.
    fn wait(&self, core: &mut Core, patient: bool) -> Result<Deed, Error> {
        loop {
            let deed = self.shared.next(&|state| patient || !state.has_lost_contact());
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
                    lock(&self.shared.state).member.turn_away();
                    return Err(Error::OutOfContact);
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

    pub(super) fn talk(&mut self, call: Call, message: Vec<u8>) -> Result<(Vec<Vec<u8>>, Outcome), Error> {
        let start = Instant::now();
        self.land()?;
        let shared = Arc::clone(&self.core);
        let mut core = lock(&shared);
        let stands = {
            let state = lock(&self.shared.state);
            state.member.stand().is_some_and(|stand| stand.op == state.member.op())
        };
        self.come(&mut core, call, message)?;
        match self.wait(&mut core, !stands)? {
            Deed::Met { messages, lost } => {
                let outcome = Outcome {
                    members: self.note_members(),
                    lost: std::mem::take(&mut self.lost).into_iter().chain(lost).collect(),
                    wait: start.elapsed(),
                    ..Outcome::default()
                };
                Ok((messages, outcome))
            }
            other => Err(Error::Message { why: format!("{other:?} is no answer to {}", call.name()) }),
        }
    }

    /// Moves vectors as often as it is asked for, until the meeting ends.
    pub(super) fn move_all(
        &mut self,
        call: Call,
        mine: &[f32],
        adds: &(dyn Fn(usize, &Range<usize>) -> bool + Sync),
        base: Base<'_>,
        mut sum: impl FnMut(&Range<usize>, &[&[f32]], &mut [f32]) -> Result<(), Error>,
    ) -> Result<Ended, Error> {
        let start = Instant::now();
        let mut wait = None;
        let shared = Arc::clone(&self.core);
        let mut core = lock(&shared);
        self.come(&mut core, call, Vec::new())?;
        let mut sums: Option<Vec<f32>> = None;
        loop {
            match self.wait(&mut core, true)? {
                Deed::Met { lost, .. } => {
                    self.note_members();
                    return Ok(Ended::Not(lost));
                }
                Deed::Move { epoch, op, attempt } => {
                    wait.get_or_insert_with(|| start.elapsed());
                    let tag = (epoch, op, attempt);
                    let mut to = sums.take().unwrap_or_else(|| std::mem::take(&mut core.spare));
                    to.resize(mine.len(), 0.0);
                    let moved = self.move_once(&mut core, tag, mine, &mut to, (adds, base), &mut sum);
                    core.is_clean = false;
                    sums = Some(to);
                    match moved {
                        Ok(digest) => self.shared.tell(|member| member.done(tag, digest.into())),
                        Err(Some((peer, why))) => {
                            self.shared.tell(|member| member.broken(tag, peer, why.to_string()));
                        }
                        // Something else is to be done, and will be found next.
                        Err(None) => {}
                    }
                }
                Deed::Closed(End::Commit { lost }) => {
                    core.is_clean = true;
                    let Some(sums) = sums else {
                        return Err(Error::Message { why: "a round ended that was not begun".into() });
                    };
                    let wait = wait.unwrap_or_default();
                    let members = self.note_members();
                    let bytes = 4 * mine.len() as u64;
                    let outcome = Outcome { members, lost, bytes, wait, work: start.elapsed() - wait };
                    return Ok(Ended::Well(sums, outcome));
                }
                Deed::Closed(End::Shrunk { lost }) => {
                    core.spare = sums.unwrap_or_default();
                    self.note_members();
                    return Ok(Ended::Not(lost));
                }
                other => {
                    return Err(Error::Message { why: format!("{other:?} is no answer to {}", call.name()) });
                }
            }
        }
    }

    /// One attempt. On failure the one it failed with, if anyone.
    fn move_once(
        &self,
        core: &mut Core,
        tag: Tag,
        mine: &[f32],
        sums: &mut [f32],
        (adds, base): (Adds<'_>, Base<'_>),
        sum: impl FnMut(&Range<usize>, &[&[f32]], &mut [f32]) -> Result<(), Error>,
    ) -> Result<u32, Option<(u32, Error)>> {
        let Shared { door, wire, token, state, .. } = &*self.shared;
        let run = lock(state).member.run();
        let peers = self.peers();
        let Some(seat) = peers.iter().position(|peer| peer.token == *token) else { return Err(None) };
        if !core.is_clean {
            core.outs.clear();
            door.forget_before(tag);
        }
        let go_on = || !self.shared.is_interrupted();
        let (mut outs, mut ins) = (Vec::new(), Vec::new());
        for (index, peer) in peers.iter().enumerate() {
            outs.push(match (index == seat, core.outs.remove(&peer.token)) {
                (true, _) => None,
                (false, Some(out)) => Some(out),
                (false, None) => {
                    Some(visit(peer, wire, run, *token, tag).map_err(|why| Some((peer.worker, why)))?)
                }
            });
        }
        for (index, peer) in peers.iter().enumerate() {
            let from = (index != seat).then(|| door.from(peer, tag, &go_on)).transpose();
            ins.push(from.map_err(|why| go_on().then_some((peer.worker, why)))?);
        }
        let moved = Move { tag, seat, outs, ins, adds, base, go_on: &go_on }.run(mine, sums, sum);
        let moved = moved
            .map_err(|failed| failed.seat.map(|seat| (peers[seat].worker, failed.why)).filter(|_| go_on()))?;
        core.outs.clear();
        door.keep_only(&peers, tag);
        for ((peer, out), from) in peers.iter().zip(moved.outs).zip(moved.ins) {
            if let (Some(out), Some(from)) = (out, from) {
                core.outs.insert(peer.token, out);
                door.keep(peer, tag, from);
            }
        }
        core.bytes += moved.bytes;
        Ok(moved.digest)
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

    /// At a free pace: whether all were called to the next meeting.
    pub fn is_called(&self) -> bool {
        lock(&self.shared.state).member.is_called()
    }
}

/// How an attempt to move ended.
pub(super) enum Ended {
    Well(Vec<f32>, Outcome),
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

//! A meeting, as the coordinator sees it: who has come, whether it is complete, and vectors that are on the move.
//!
//! Inside a round all members of the round are waited for; one that is lost is named. The first meeting of a round is *open*:
//! newcomers that stand where all do may come, and it goes on without those who do not come in time. Where something moves
//! between members, words or vectors, all must say that they are done, with the same digest, before any of them may use what
//! came out.

use super::coordinator::Coordinator;
use super::digest::majority;
use super::message::{Call, Down, End, Peer};
use super::notice::Notice;
use super::seat::{Seat, State};
use crate::{Lost, Why};
use std::collections::BTreeMap;
use std::time::Duration;

/// How often moving something is tried.
const ATTEMPTS: u32 = 3;
/// From a failed attempt to the next: if the one who failed is gone, that will be known by then.
const PAUSE: Duration = Duration::from_millis(200);

/// How often in a row a member must have come too late with what it took over, to be waited for, and not too often.
const CHASES: std::ops::RangeInclusive<u32> = 2..=4;

/// The next meeting.
#[derive(Debug, Default)]
pub(super) struct Meeting {
    pub(super) began: Option<Duration>,
    pub(super) arrived: BTreeMap<u32, Arrival>,
    pub(super) moving: Option<Moving>,
}

/// One that has come: to do what, with how many steps, and of which epoch it knows the members.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) call: Call,
    pub(super) steps: u64,
    pub(super) knows: u64,
}

/// Words or vectors on the move.
#[derive(Debug)]
pub(super) struct Moving {
    pub(super) members: Vec<Peer>,
    /// Who was lost before it began.
    before: Vec<Lost>,
    attempt: u32,
    pub(super) done: BTreeMap<u32, u64>,
    complaints: Vec<(u32, u32, String)>,
    again: Option<Duration>,
}

impl Meeting {
    /// What those who have come are about to do.
    pub(super) fn call(&self) -> Option<Call> {
        self.arrived.values().next().map(|arrival| arrival.call)
    }

    /// Whether the first meeting of all waits for this founder: it is ready for it, and has not come.
    fn awaits_founder(&self, worker: u32, seat: &Seat) -> bool {
        seat.state == State::Ready && !self.arrived.contains_key(&worker)
    }

    /// Since when this one holds up a meeting that cannot do without it.
    pub(super) fn waits_for(&self, worker: u32, seat: &Seat, open: bool, founds: bool) -> Option<Duration> {
        let is_late = match &self.moving {
            Some(moving) => {
                !moving.done.contains_key(&worker) && moving.members.iter().any(|peer| peer.worker == worker)
            }
            None if founds => self.awaits_founder(worker, seat),
            None => !open && seat.state == State::Active && !self.arrived.contains_key(&worker),
        };
        self.began.filter(|_| is_late)
    }
}

impl Coordinator {
    pub(super) fn arrive(&mut self, worker: u32, op: u64, arrival: Arrival, now: Duration) {
        let Some(seat) = self.seats.get_mut(&worker) else { return };
        seat.moved = now;
        let takes_part = matches!(seat.state, State::Active | State::Ready);
        if op == self.op {
            seat.is_placed = false;
        }
        if op < self.op || !takes_part {
            let has_met = seat.last.is_some_and(|last| op <= last);
            match (&self.last, self.began) {
                // It was there, and its connection broke before it heard.
                (Some((last, down)), _) if has_met && *last == op => {
                    let down = down.clone();
                    self.send(worker, down);
                }
                (_, Some((round, began))) if !has_met && round == op => {
                    self.deadline.saw(now.saturating_sub(began))
                }
                _ => {}
            }
            return;
        }
        if op > self.op {
            let found = format!("it came to meeting {op}, and the next is {}", self.op);
            self.send(worker, Down::Refused { why: found });
            return self.lose(worker, Why::Differs);
        }
        if self.meeting.moving.is_some() {
            // It was there, and its connection broke. One that was not has no part in what moves.
            if let Some(before) = self.meeting.arrived.get_mut(&worker) {
                before.knows = arrival.knows;
                let down = self.met(arrival.knows);
                self.send(worker, down);
            }
            return;
        }
        // One that comes straight from a donor, or back to a run that has no member left, comes early: no one is late yet.
        if self.seats.get(&worker).is_some_and(|seat| seat.state == State::Active) {
            let began = *self.meeting.began.get_or_insert(now);
            if self.begins_round() && !self.meeting.arrived.contains_key(&worker) {
                self.deadline.saw(now.saturating_sub(began));
            }
        }
        self.meeting.arrived.entry(worker).or_insert(arrival).knows = arrival.knows;
    }

    /// Closes the meeting if all have come who must, or those who have not were waited for long enough.
    pub(super) fn close(&mut self, now: Duration) {
        if self.meeting.moving.is_some() {
            return self.try_again(now);
        }
        if self.waits_for_members(now) {
            return;
        }
        if self.meeting.arrived.is_empty() {
            self.meeting.began = None;
        } else if self.active().next().is_none() {
            self.meeting.began.get_or_insert(now);
        }
        let Some(began) = self.meeting.began else { return };
        let waited = now.saturating_sub(began);
        let founding = self.truth.is_none();
        let quorum = if founding { self.settings.founders } else { self.settings.at_least };
        if self.meeting.arrived.len() < quorum.max(1) as usize {
            return;
        }
        // A founder is at its first steps while one beyond the founders, who takes none, has come already: it must not be left out
        // for that.
        let mut founders = self.seats.range(..self.settings.founders);
        if founding && founders.any(|(worker, seat)| self.meeting.awaits_founder(*worker, seat)) {
            return;
        }
        let missing: Vec<u32> = self
            .active()
            .map(|(worker, _)| worker)
            .filter(|worker| !self.meeting.arrived.contains_key(worker))
            .collect();
        if self.begins_round() {
            // One who runs after the group without catching up is waited for, a few times.
            let chases =
                |seat: &Seat| CHASES.contains(&seat.chases) && matches!(seat.state, State::Taking(_));
            let chased = self.seats.values().any(chases);
            let alone = !founding && self.active().next().is_none();
            let wait = if chased { self.settings.patience.1 } else { self.deadline.wait() };
            if (!missing.is_empty() || chased || alone) && waited < wait {
                return;
            }
            self.open_round(&missing, now);
        } else if !missing.is_empty() {
            return;
        }
        self.meet();
    }

    /// The members of the round that begins are those who have come.
    fn open_round(&mut self, missing: &[u32], now: Duration) {
        // Those who have come have all said where they stand.
        self.settle(true);
        let after = self.meeting.began.map_or(Duration::ZERO, |began| now.saturating_sub(began));
        self.began = self.meeting.began.map(|began| (self.op, began));
        for worker in missing {
            if let Some(seat) = self.seats.get_mut(worker).filter(|seat| seat.state == State::Active) {
                seat.state = State::Waiting;
                self.lost.push(Lost { worker: *worker, why: Why::Late { after } });
            }
        }
        if !missing.is_empty() {
            self.say(Notice::WentOn { op: self.op, without: missing.to_vec(), after });
        }
        self.lost.sort_by_key(|lost| lost.worker);
        for (worker, seat) in &mut self.seats {
            let came = self.meeting.arrived.contains_key(worker);
            match seat.state {
                State::Ready if came => {
                    seat.state = State::Active;
                    self.actions.push(super::Action::Say(Notice::Joined { worker: *worker, op: self.op }));
                }
                State::Ready => seat.state = State::Waiting,
                _ => {}
            }
        }
        let steps = self.meeting.arrived.values().map(|arrival| arrival.steps);
        let taken = steps.fold(0, u64::saturating_add);
        self.overshoot(self.op, taken, self.meeting.arrived.len() as u64);
    }

    /// All are there: everyone hears who came, and what is to be moved begins to move.
    fn meet(&mut self) {
        let arrived = &self.meeting.arrived;
        let agree = |call: Call| arrived.values().filter(|arrival| arrival.call == call).count();
        let Some(call) = arrived.values().map(|arrival| arrival.call).max_by_key(|call| agree(*call)) else {
            return;
        };
        if 2 * agree(call) > arrived.len() {
            self.leave_out(call);
        } else {
            let calls =
                self.meeting.arrived.iter().map(|(worker, arrival)| (*worker, arrival.call)).collect();
            return self.end(Down::Closed { op: self.op, end: End::OutOfStep { calls } });
        }
        let is_here = |worker: &u32| self.meeting.arrived.contains_key(worker);
        let moves = match call {
            // A plan that someone who is lost was part of is not carried out.
            Call::Mix { .. } => self.lost.is_empty(),
            Call::Broadcast { leader } => is_here(&leader),
            Call::Gather => true,
            Call::Barrier => false,
        };
        let members: Vec<Peer> = (self.meeting.arrived.keys())
            .filter_map(|worker| self.seats.get(worker).map(|seat| seat.peer(*worker)))
            .collect();
        if self.members != members {
            // Who knows the members of an epoch is not told of them again: they must be the same throughout.
            self.members.clone_from(&members);
            self.epoch += 1;
        }
        if !moves {
            return self.end(self.met(0));
        }
        self.meeting.moving = Some(Moving {
            members,
            before: std::mem::take(&mut self.lost),
            attempt: 1,
            done: BTreeMap::new(),
            complaints: Vec::new(),
            again: None,
        });
        self.say_met();
    }

    /// Most have called this: a few who called something else do not end the run for them.
    fn leave_out(&mut self, call: Call) {
        let others = self.meeting.arrived.iter().filter(|(_, arrival)| arrival.call != call);
        for worker in others.map(|(worker, _)| *worker).collect::<Vec<_>>() {
            self.meeting.arrived.remove(&worker);
            if let Some(seat) = self.seats.get_mut(&worker) {
                seat.state = State::Waiting;
            }
            let lost = Lost { worker, why: Why::OutOfStep };
            self.lost.push(lost.clone());
            self.say(Notice::Lost(lost));
        }
        self.lost.sort_by_key(|lost| lost.worker);
    }

    /// What one hears who came, and knows the members of an epoch.
    fn met(&self, knows: u64) -> Down {
        let moving = self.meeting.moving.as_ref();
        Down::Met {
            epoch: self.epoch,
            op: self.op,
            members: (knows != self.epoch).then(|| self.members.clone()),
            lost: moving.map_or(&self.lost, |moving| &moving.before).clone(),
            attempt: moving.map(|moving| moving.attempt),
        }
    }

    fn say_met(&mut self) {
        let knows: Vec<(u32, u64)> =
            self.meeting.arrived.iter().map(|(worker, arrival)| (*worker, arrival.knows)).collect();
        for (worker, knows) in knows {
            let down = self.met(knows);
            self.send(worker, down);
        }
    }

    /// The meeting is over, and this is what its members hear.
    fn end(&mut self, down: Down) {
        let meeting = std::mem::take(&mut self.meeting);
        for worker in meeting.arrived.keys() {
            if let Some(seat) = self.seats.get_mut(worker) {
                (seat.last, seat.blames) = (Some(self.op), 0);
            }
            self.send(*worker, down.clone());
        }
        self.last = Some((self.op, down));
        self.lost.clear();
        // Where one that lies may have brought the run, there is no next number.
        self.op = self.op.saturating_add(1);
    }

    pub(super) fn done(&mut self, worker: u32, (epoch, op, attempt): (u64, u64, u32), digest: u64) {
        let is_member = self.seats.get(&worker).is_some_and(|seat| seat.state == State::Active);
        if let Some((last, down)) = self.last.clone()
            && last == op
            && is_member
        {
            return self.send(worker, down);
        }
        let (here, moving) = (epoch == self.epoch && op == self.op, self.meeting.moving.as_mut());
        let Some(moving) =
            moving.filter(|moving| here && moving.attempt == attempt && moving.again.is_none())
        else {
            return;
        };
        if moving.members.iter().any(|peer| peer.worker == worker) {
            moving.done.insert(worker, digest);
        }
        if moving.done.len() < moving.members.len() {
            return;
        }
        let Some((right, wrong)) = majority(&moving.done) else { return };
        let done = std::mem::take(&mut moving.done);
        for worker in wrong {
            // It hears nothing now, and takes over what the others hold when the round is over.
            self.meeting.arrived.remove(&worker);
            self.lost.push(Lost { worker, why: Why::Differs });
            let found = super::Stand { op, digest: done[&worker] };
            self.say(Notice::Differs { worker, found, expected: right });
            if let Some(seat) = self.seats.get_mut(&worker) {
                seat.state = State::Waiting;
            }
            self.epoch += 1;
        }
        let end = End::Commit { lost: self.lost.clone() };
        self.end(Down::Closed { op, end });
    }

    pub(super) fn broken(
        &mut self,
        worker: u32,
        (epoch, op, attempt): (u64, u64, u32),
        (peer, why): (u32, String),
        now: Duration,
    ) {
        let (here, moving) = (epoch == self.epoch && op == self.op, self.meeting.moving.as_mut());
        let Some(moving) = moving.filter(|moving| here && moving.attempt == attempt) else { return };
        // A complaint by or of someone who has no part in it would leave nobody to blame, and the round waiting.
        let takes_part = |worker: u32| moving.members.iter().any(|peer| peer.worker == worker);
        if worker == peer || !takes_part(worker) || !takes_part(peer) {
            return;
        }
        if !moving.complaints.iter().any(|(by, of, _)| (*by, *of) == (worker, peer)) {
            moving.complaints.push((worker, peer, why));
        }
        moving.again.get_or_insert(now + PAUSE);
    }

    /// Moves once more after a failure, or gives up the one who cannot be reached.
    fn try_again(&mut self, now: Duration) {
        let Some(moving) = &mut self.meeting.moving else { return };
        if moving.again.is_none_or(|again| now < again) {
            return;
        }
        // A connection that ended decides by itself, within the grace.
        let is_open = |peer: &Peer| self.seats.get(&peer.worker).is_some_and(|seat| seat.session.is_some());
        if !moving.members.iter().all(is_open) {
            return;
        }
        if moving.attempt < ATTEMPTS {
            moving.attempt += 1;
            moving.again = None;
            moving.done.clear();
            let attempt = moving.attempt;
            if let Some((worker, peer, why)) = moving.complaints.last().cloned() {
                self.say(Notice::Again { worker, peer, attempt, why });
            }
            return self.say_met();
        }
        let Some(worker) = blame(&moving.complaints) else { return };
        let Some(seat) = self.seats.get_mut(&worker) else { return };
        seat.blames += 1;
        if seat.blames >= ATTEMPTS {
            let why = format!(
                "the others cannot reach worker {worker} at {}: is the port open to them?",
                seat.address
            );
            self.send(worker, Down::Refused { why });
            return self.lose(worker, Why::Unreachable);
        }
        seat.state = State::Waiting;
        self.epoch += 1;
        let lost = Lost { worker, why: Why::Unreachable };
        self.meeting.arrived.remove(&worker);
        self.lost.push(lost.clone());
        self.say(Notice::Lost(lost));
        self.without(worker);
    }

    /// If this one was among those who move something, they stop, and nothing of it counts.
    pub(super) fn without(&mut self, worker: u32) {
        let Some(moving) = &self.meeting.moving else { return };
        if moving.members.iter().any(|peer| peer.worker == worker) {
            let end = End::Shrunk { lost: self.lost.clone() };
            self.end(Down::Closed { op: self.op, end });
        }
    }
}

/// The one most others complain of; of several, the highest number. Where two complain of each other it is the younger.
fn blame(complaints: &[(u32, u32, String)]) -> Option<u32> {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    complaints.iter().for_each(|(_, peer, _)| *counts.entry(*peer).or_default() += 1);
    counts.into_iter().max_by_key(|(worker, count)| (*count, *worker)).map(|(worker, _)| worker)
}

#[cfg(test)]
mod tests {
    use super::super::message::{Up, VERSION};
    use super::super::{Event, Settings, Stand};
    use super::*;

    fn hear(coordinator: &mut Coordinator, session: u64, up: Up, now: Duration) {
        coordinator.on(Event::Heard { session, up }, now);
    }

    /// Three who are ready where there are to be two founders; the last one, beyond them, and the first founder have come.
    fn founding() -> Coordinator {
        let mut coordinator =
            Coordinator::new(Settings { founders: 2, ..Settings::default() }, 7, vec![], &[]);
        for session in 0..3 {
            let hello =
                Up::Hello { version: VERSION, run: 0, token: session, worker: None, address: "here".into() };
            hear(&mut coordinator, session, hello, Duration::ZERO);
            hear(&mut coordinator, session, Up::Enter(Stand { op: 0, digest: 5 }), Duration::ZERO);
        }
        for session in [2, 0] {
            hear(&mut coordinator, session, arrive(), Duration::ZERO);
        }
        coordinator
    }

    fn arrive() -> Up {
        Up::Arrive { op: 0, call: Call::Barrier, steps: 0, knows: 0 }
    }

    fn members(coordinator: &Coordinator) -> Vec<u32> {
        coordinator.active().map(|(worker, _)| worker).collect()
    }

    /// One beyond the founders comes without a step, and so before them: it takes nobody's place in the first round.
    #[test]
    fn the_first_round_waits_for_founders_that_are_ready() {
        let mut coordinator = founding();
        assert_eq!((coordinator.op(), members(&coordinator)), (0, vec![]));
        hear(&mut coordinator, 1, arrive(), Duration::from_secs(1));
        assert_eq!((coordinator.op(), members(&coordinator)), (1, vec![0, 1, 2]));
    }

    /// One that gives signs of life and takes no step is waited for as long as inside a round.
    #[test]
    fn a_founder_that_does_not_move_on_is_given_up() {
        let mut coordinator = founding();
        let stall = coordinator.settings.stall;
        for second in 0..stall.as_secs() {
            for session in 0..3 {
                let up = Up::Beat { steps: 0, progress: 0 };
                hear(&mut coordinator, session, up, Duration::from_secs(second));
            }
            assert_eq!((coordinator.op(), members(&coordinator)), (0, vec![]), "after {second} s");
        }
        coordinator.on(Event::Tick, stall);
        assert_eq!((coordinator.op(), members(&coordinator)), (1, vec![0, 2]));
    }
}

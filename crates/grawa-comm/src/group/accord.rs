//! Meetings that members hold of their own accord, as the coordinator sees them.
//!
//! Where the last meetings were quiet the coordinator lets its members be: they meet, move words and vectors and vow to each other
//! that they are done, and it hears their signs of life only. That ends when something happens that concerns all: a member is
//! lost, a newcomer waits, one cannot go on. Then all are told to stop, and say where they have. A member goes on from a
//! meeting when it has the vows of all; so of two members one may be a meeting ahead of the other, which is done with it,
//! and no further. If any is ahead the meeting took place, and the others are told; if none is, none can be any more, and it is
//! begun anew.

use super::coordinator::{Action, Coordinator};
use super::message::{Down, End, Own, Record, Stand};
use super::notice::Notice;
use super::seat::State;
use crate::{Lost, Why};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// So many meetings in a row must be quiet: all took part, at the first attempt, and nobody was waited for longer than this.
const QUIET: u32 = 8;
const SOON: Duration = Duration::from_millis(400);
/// The most stands that are taken from a sign of life.
pub(super) const STANDS: usize = 32;

/// The members that meet of their own accord.
#[derive(Debug)]
pub(super) struct Accord {
    epoch: u64,
    members: BTreeSet<u32>,
    stopping: Option<Stopping>,
}

impl Accord {
    /// Who they are, unless they were told to stop.
    pub(super) fn at_work(&self) -> Option<&BTreeSet<u32>> {
        self.stopping.is_none().then_some(&self.members)
    }
}

/// They were told to stop.
#[derive(Debug)]
struct Stopping {
    since: Duration,
    /// Where each has: at which meeting, and whether it is done with it.
    told: BTreeMap<u32, (u64, bool)>,
}

impl Coordinator {
    /// A meeting has ended well, after so long a wait for the last to come, and for words: whether its members may be left to themselves.
    pub(super) fn leaves_alone(&mut self, was_smooth: bool, waited: Duration) -> bool {
        let is_settled = |state: State| matches!(state, State::Active | State::Greeted);
        let is_quiet = was_smooth
            && waited <= SOON
            && self.lost.is_empty()
            && self.seats.values().all(|seat| is_settled(seat.state));
        self.quiet = if is_quiet { self.quiet + 1 } else { 0 };
        self.quiet >= QUIET
    }

    /// They are, from the next meeting on.
    pub(super) fn leave_alone(&mut self) {
        let members: BTreeSet<u32> = self.active().map(|(worker, _)| worker).collect();
        self.alone = members.len() as u64;
        self.accord = Some(Accord { epoch: self.epoch, members, stopping: None });
        self.quiet = 0;
    }

    /// Tells all to stop who meet of their own accord.
    pub(super) fn stop_all(&mut self, now: Duration) {
        let Some(accord) = self.accord.as_mut().filter(|accord| accord.stopping.is_none()) else { return };
        accord.stopping = Some(Stopping { since: now, told: BTreeMap::new() });
        let members: Vec<u32> = accord.members.iter().copied().collect();
        // Who has not heard of the accord yet need not any more.
        if let Some((_, Down::Closed { accord, .. })) = &mut self.last {
            *accord = false;
        }
        members.into_iter().for_each(|worker| self.stop(worker));
    }

    /// Tells one to stop, if it has not said yet where it has.
    pub(super) fn stop(&mut self, worker: u32) {
        let Some(Accord { epoch, members, stopping: Some(stopping) }) = &self.accord else { return };
        if members.contains(&worker) && !stopping.told.contains_key(&worker) {
            let down = Down::Stop { epoch: *epoch };
            self.send(worker, down);
        }
    }

    /// One has stopped. Returns whether that is news.
    pub(super) fn stopped(
        &mut self,
        worker: u32,
        epoch: u64,
        (op, done): (u64, bool),
        stand: Option<Stand>,
        now: Duration,
    ) -> bool {
        let Some(seat) = self.seats.get_mut(&worker).filter(|seat| seat.state == State::Active) else {
            return false;
        };
        seat.stand = stand.or(seat.stand);
        let Some(accord) = &self.accord else {
            // It had said so before, and its connection broke before it heard what became of it.
            if stand.is_some_and(|stand| stand.op == self.op) {
                self.settle(false);
            }
            self.send_on(worker, op);
            return false;
        };
        if accord.epoch != epoch || !accord.members.contains(&worker) {
            return false;
        }
        self.stop_all(now);
        if let Some(Accord { stopping: Some(stopping), .. }) = &mut self.accord {
            stopping.told.insert(worker, (op, done));
        }
        true
    }

    /// Tells one where to go on.
    fn send_on(&mut self, worker: u32, op: u64) {
        if let Some((_, down)) = self.last.clone().filter(|(last, _)| *last == op) {
            self.send(worker, down);
        }
        // It may have heard of that before, and come to this one when nobody listened.
        if op == self.op || op.checked_add(1) == Some(self.op) {
            self.send(worker, Down::Ready { op: self.op });
        }
    }

    /// What one tells of their own accord. It is remembered, and shown; where the group stands all say when they have stopped.
    pub(super) fn note_own(&mut self, worker: u32, own: Own, now: Duration) {
        let Some(seat) = self.seats.get_mut(&worker).filter(|seat| seat.state == State::Active) else {
            return;
        };
        let Own { next, taken, stands } = own;
        let is_member = |accord: &Accord| accord.members.contains(&worker);
        let is_alone = self.accord.as_ref().is_some_and(is_member);
        seat.next = next.filter(|_| is_alone);
        // One that leaves tells at once after a sign of life, and no more often: each time is a write to the disk.
        let is_soon = seat.noted[0].is_some_and(|noted| now.saturating_sub(noted) < self.settings.beat / 2);
        if is_soon || (taken.is_empty() && stands.is_empty()) {
            return;
        }
        seat.noted = [seat.noted[1], Some(now)];
        taken.into_iter().take(STANDS).for_each(|taken| self.count_own(taken));
        let (run, epoch, truth) = (self.run, self.epoch, self.truth);
        // Where they did not meet of their own accord there is nothing to tell of. What is known, be it found to be true or told before, is
        // not for one member to change.
        let is_news = |stand: &Stand| is_alone && truth.is_none_or(|truth| stand.op > truth.op);
        for stand in stands.into_iter().take(STANDS).filter(is_news) {
            self.told = self.told.max(stand.op);
            if !self.past.contains_key(&stand.op) {
                self.remember(stand);
                let record = Record { run, epoch, stand, members: 0, tokens: Vec::new() };
                self.actions.push(Action::Keep(record));
            }
        }
    }

    /// Looks whether those who meet of their own accord must stop, and whether all have. Returns whether they are still at it.
    pub(super) fn look_at_accord(&mut self, now: Duration) -> bool {
        let Some(accord) = &self.accord else { return false };
        let is_here = |worker: &u32| self.seats.get(worker).is_some_and(|seat| seat.state == State::Active);
        let here: BTreeSet<u32> = accord.members.iter().copied().filter(is_here).collect();
        if here.is_empty() {
            // Where they have come to is known when they are back.
            self.accord = None;
            return false;
        }
        let Some(stopping) = &accord.stopping else {
            let waits = |state: State| matches!(state, State::Waiting | State::Taking(_) | State::Ready);
            if here.len() < accord.members.len() || self.seats.values().any(|seat| waits(seat.state)) {
                self.stop_all(now);
            }
            return true;
        };
        let silent: Vec<u32> =
            here.iter().filter(|worker| !stopping.told.contains_key(worker)).copied().collect();
        if silent.is_empty() {
            self.take_up();
            return false;
        }
        // Who gives signs of life and does not answer is not one of them.
        if now.saturating_sub(stopping.since) >= 2 * self.settings.silence {
            let after = 2 * self.settings.silence;
            silent.into_iter().for_each(|worker| self.lose(worker, Why::Stalled { after }));
        }
        true
    }

    /// All have stopped: the coordinator leads again, from the meeting they have come to.
    fn take_up(&mut self) {
        // Of those who have left since, too, it counts how far they had come.
        let Some(Accord { stopping: Some(Stopping { told, .. }), .. }) = self.accord.take() else { return };
        let is_at =
            |(op, done): &(u64, bool), next: u64| *op == next || (*done && op.checked_add(1) == Some(next));
        // Of honest members the furthest; one that claims to be further than the others can be is none.
        let agree = |next: u64| told.values().filter(|at| is_at(at, next)).count();
        let Some(next) = told.values().map(|(op, _)| *op).max_by_key(|op| (agree(*op), *op)) else { return };
        self.op = next;
        let end = End::Commit { lost: Vec::new() };
        self.last =
            next.checked_sub(1).map(|before| (before, Down::Closed { op: before, end, accord: false }));
        (self.began, self.called) = (None, None);
        self.seats.values_mut().for_each(|seat| seat.next = None);
        let mut verified: BTreeMap<Stand, usize> = BTreeMap::new();
        for (worker, at) in &told {
            // The number of one who has left may be another's by now.
            let seat = self.seats.get_mut(worker).filter(|seat| seat.state == State::Active);
            let Some(seat) = seat else { continue };
            if is_at(at, next) {
                (seat.last, seat.blames) = (next.checked_sub(1), 0);
                // That all stood there was found at the meeting after it.
                if let Some(stand) = seat.stand.filter(|stand| stand.op < at.0) {
                    *verified.entry(stand).or_default() += 1;
                }
                if seat.stand.is_some_and(|stand| stand.op == next) {
                    seat.steps = 0;
                }
                self.send_on(*worker, at.0);
            } else {
                seat.state = State::Waiting;
                let lost = Lost { worker: *worker, why: Why::Differs };
                self.lost.push(lost.clone());
                self.say(Notice::Lost(lost));
            }
        }
        self.lost.sort_by_key(|lost| lost.worker);
        let verified = verified.into_iter().max_by_key(|(stand, count)| (*count, stand.op));
        if let Some((stand, _)) = verified
            && self.truth.is_none_or(|truth| truth.op < stand.op)
        {
            self.believe(stand);
        }
        self.settle(false);
    }
}

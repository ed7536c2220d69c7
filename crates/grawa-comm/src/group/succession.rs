//! Where the run goes on when those who knew are gone, or have gone further than the coordinator heard.

use super::coordinator::Coordinator;
use super::meeting::Meeting;
use super::message::Stand;
use super::notice::Notice;
use super::seat::{Seat, State};
use std::collections::BTreeMap;
use std::time::Duration;

impl Coordinator {
    /// The run goes on from here, and everyone finds a place anew.
    pub(super) fn go_on_from(&mut self, stand: Stand) {
        self.epoch += 1;
        if self.truth != Some(stand) {
            self.say(Notice::Succession { from: self.truth, to: stand });
            self.commit(stand, false);
        }
        self.op = stand.op;
        self.meeting = Meeting::default();
        (self.last, self.called) = (None, None);
        self.lost.clear();
        for seat in self.seats.values_mut().filter(|seat| matches!(seat.state, State::Ready | State::Active))
        {
            seat.state = State::Waiting;
        }
    }

    /// The members may have gone on after the coordinator, or the one before it, had last heard of them: if more than half
    /// of them stand together further on, that is where the run is. Newcomers have no say in it.
    pub(super) fn catch_up(&mut self) {
        let may_be = self.returning.is_some() || self.active().next().is_none();
        let Some(truth) = self.truth.filter(|_| may_be) else { return };
        let mut ahead: BTreeMap<Stand, u32> = BTreeMap::new();
        let former = self.seats.values().filter(|seat| self.former.contains(&seat.token));
        for stand in former.filter_map(|seat| seat.stand).filter(|stand| stand.op > truth.op) {
            *ahead.entry(stand).or_default() += 1;
        }
        if let Some((stand, _)) = ahead.into_iter().find(|(_, count)| 2 * count > self.size) {
            self.go_on_from(stand);
            self.place_all();
        }
    }

    /// Whether members of the coordinator before this one may still be on their way.
    pub(super) fn waits_for_members(&mut self, now: Duration) -> bool {
        let Some(until) = &mut self.returning else { return false };
        let until = *until.get_or_insert(now + self.settings.patience.0);
        let all = self.active().count() >= self.size as usize;
        if all || now >= until {
            self.returning = None;
        }
        self.returning.is_some()
    }

    /// If nobody holds the truth any more, the run goes on, after a while, from the newest thing anyone holds that once
    /// was true or came after it, and after another from the newest that a round came to. What a fresh worker starts with never is
    /// such a thing.
    pub(super) fn succeed(&mut self, now: Duration) {
        let Some(truth) = self.truth else { return };
        let holds = |seat: &Seat| seat.state == State::Active || seat.stand == Some(truth);
        let waits =
            |seat: &Seat| matches!(seat.state, State::Waiting | State::Taking(_)) && seat.session.is_some();
        if self.seats.values().any(holds) || !self.seats.values().any(waits) {
            self.orphaned = None;
            return;
        }
        let Some(since) = self.orphaned else {
            self.orphaned = Some(now);
            return self.say(Notice::Orphaned { stand: truth });
        };
        let waited = now.saturating_sub(since);
        // One that stands further on holds what was committed, and the coordinator died before it had heard of it.
        let is_ahead =
            self.seats.values().any(|seat| waits(seat) && seat.stand.is_some_and(|it| it.op > truth.op));
        if waited < if is_ahead { self.settings.succession / 6 } else { self.settings.succession } {
            return;
        }
        let was_true = |stand: &Stand| stand.op > truth.op || self.past.get(&stand.op) == Some(&stand.digest);
        let held = || {
            let stands = self.seats.values().filter(|seat| waits(seat)).filter_map(|seat| seat.stand);
            stands.filter(|stand| stand.op > 0)
        };
        let heir = held().filter(was_true).max_by_key(|stand| stand.op);
        // Where the log has gaps, a state that it does not name may have been committed all the same.
        let is_late = self.has_gaps && waited >= 2 * self.settings.succession;
        let heir = heir.or_else(|| held().filter(|_| is_late).max_by_key(|stand| stand.op));
        if let Some(heir) = heir {
            for seat in self.seats.values_mut().filter(|seat| matches!(seat.state, State::Taking(_))) {
                seat.state = State::Waiting;
            }
            self.go_on_from(heir);
            self.place_all();
        }
    }
}

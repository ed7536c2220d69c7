//! A table with a seat for each member: nobody gets up before all have sat down and shown what they bring.
//!
//! Who leaves the group, or gives no sign of life for too long while others wait, loses the seat; the meeting then goes on
//! without it and tells everyone. All members see the same offers and the same losses, in the order of the workers.

use super::lend::{Cells, Lent};
use crate::{Error, Lost, Why};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a member is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Gather,
    Barrier,
    Mix { digest: u64 },
    Broadcast { leader: u32 },
    Done,
}

impl Call {
    pub(super) fn name(self) -> &'static str {
        match self {
            Call::Gather => "gather",
            Call::Barrier => "barrier",
            Call::Mix { .. } => "mix",
            Call::Broadcast { .. } => "broadcast",
            Call::Done => "the end of an operation",
        }
    }
}

/// What a member brings.
#[derive(Clone, Debug)]
pub(super) struct Offer {
    pub(super) call: Call,
    pub(super) message: Vec<u8>,
    pub(super) lent: Option<Lent>,
}

impl Offer {
    pub(super) fn plain(call: Call) -> Self {
        Offer { call, message: Vec::new(), lent: None }
    }
}

/// A meeting that took place.
#[derive(Debug)]
pub(super) struct Met {
    /// Who came and with what, in the order of the workers.
    pub(super) offers: Vec<(u32, Offer)>,
    /// Who was lost since the meeting before.
    pub(super) lost: Vec<Lost>,
    /// The centre of those who came.
    pub(super) centre: Arc<Cells>,
}

#[derive(Debug)]
pub(super) struct Table {
    state: Mutex<State>,
    changed: Condvar,
    deadline: Duration,
}

#[derive(Debug)]
struct State {
    seats: Vec<Seat>,
    number: u64,
    /// When the first of the next meeting sat down: nobody is late before.
    began: Option<Instant>,
    last: Option<Arc<Met>>,
    lost: Vec<Lost>,
    centre: Arc<Cells>,
}

#[derive(Debug)]
struct Seat {
    worker: u32,
    gone: Option<Why>,
    offer: Option<Offer>,
    /// The last sign of life.
    seen: Instant,
}

impl Table {
    pub(super) fn new(workers: &[u32], centre: Arc<Cells>, deadline: Duration) -> Self {
        let seen = Instant::now();
        let seats = workers.iter().map(|&worker| Seat { worker, gone: None, offer: None, seen }).collect();
        let state = State { seats, number: 0, began: None, last: None, lost: Vec::new(), centre };
        Table { state: Mutex::new(state), changed: Condvar::new(), deadline }
    }

    pub(super) fn centre(&self) -> Arc<Cells> {
        Arc::clone(&self.lock().centre)
    }

    /// Sits down with an offer and waits for the others. With `patience` false nobody is given up: all are known to come.
    pub(super) fn meet(&self, seat: usize, offer: Offer, patience: bool) -> Result<Arc<Met>, Error> {
        let mut state = self.lock();
        if let Some(why) = &state.seats[seat].gone {
            let after = if let Why::Stalled { after } = why { *after } else { Duration::ZERO };
            return Err(Error::Expelled { worker: state.seats[seat].worker, after });
        }
        let number = state.number;
        state.seats[seat].offer = Some(offer);
        state.began.get_or_insert_with(Instant::now);
        if state.is_complete() {
            self.finish(&mut state);
        }
        while state.number == number {
            let next = if patience { state.give_up(self.deadline) } else { None };
            if state.is_complete() {
                self.finish(&mut state);
                break;
            }
            state = match next {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(time) => {
                    self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        // The next meeting cannot be over before this member has come to it.
        state.last.clone().ok_or(Error::Expelled { worker: state.seats[seat].worker, after: self.deadline })
    }

    pub(super) fn alive(&self, seat: usize) {
        self.lock().seats[seat].seen = Instant::now();
    }

    pub(super) fn leave(&self, seat: usize, panicked: bool) {
        let mut state = self.lock();
        if state.seats[seat].gone.is_none() {
            state.lose(seat, if panicked { Why::Panicked } else { Why::Left });
            if state.is_complete() {
                self.finish(&mut state);
            }
        }
    }

    /// Gives up a worker that was lost elsewhere: nobody waits for it here a second time.
    pub(super) fn forget(&self, lost: &Lost) {
        let mut state = self.lock();
        let seat = state.seats.iter().position(|seat| seat.worker == lost.worker && seat.gone.is_none());
        if let Some(seat) = seat {
            state.lose(seat, lost.why.clone());
            if state.is_complete() {
                self.finish(&mut state);
            }
        }
    }

    fn finish(&self, state: &mut State) {
        state.number += 1;
        state.began = None;
        // One that stalled may still read the centre it had: it keeps that one, and the others get a copy.
        if state.lost.iter().any(|lost| matches!(lost.why, Why::Stalled { .. })) {
            #[allow(unsafe_code)]
            // SAFETY: nobody writes: all that could are sitting here.
            let copy = unsafe { state.centre.read() }.to_vec();
            state.centre = Arc::new(Cells::new(copy));
        }
        let now = Instant::now();
        let mut offers = Vec::with_capacity(state.seats.len());
        for seat in &mut state.seats {
            if let Some(offer) = seat.offer.take() {
                seat.seen = now;
                offers.push((seat.worker, offer));
            }
        }
        let met = Met { offers, lost: std::mem::take(&mut state.lost), centre: Arc::clone(&state.centre) };
        state.last = Some(Arc::new(met));
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics with the lock held; a poisoned one is as good as any.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether everyone who still has a seat has come, and someone has.
    fn is_complete(&self) -> bool {
        let mut here = self.seats.iter().filter(|seat| seat.gone.is_none()).peekable();
        here.peek().is_some() && here.all(|seat| seat.offer.is_some())
    }

    fn lose(&mut self, seat: usize, why: Why) {
        self.seats[seat].gone = Some(why.clone());
        self.seats[seat].offer = None;
        self.lost.push(Lost { worker: self.seats[seat].worker, why });
        self.lost.sort_by_key(|lost| lost.worker);
    }

    /// Gives up those who have been silent for too long. Returns when to look again.
    fn give_up(&mut self, deadline: Duration) -> Option<Duration> {
        let now = Instant::now();
        let mut next = None;
        for seat in 0..self.seats.len() {
            let Seat { gone: None, offer: None, seen, .. } = &self.seats[seat] else { continue };
            let silent = now.saturating_duration_since(self.began.map_or(*seen, |began| began.max(*seen)));
            match deadline.checked_sub(silent) {
                Some(left) if !left.is_zero() => {
                    next = Some(next.map_or(left, |next: Duration| next.min(left)))
                }
                _ => self.lose(seat, Why::Stalled { after: deadline }),
            }
        }
        next
    }
}

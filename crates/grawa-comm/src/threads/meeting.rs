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
    /// Whether somebody who was lost since the last meeting may still read the centre.
    is_read: bool,
}

/// What somebody who is lost may still do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    /// It is gone: its member was dropped.
    Nothing,
    /// Its member is there, whatever is said of it.
    TheCentre,
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
        let state =
            State { seats, number: 0, began: None, last: None, lost: Vec::new(), centre, is_read: false };
        Table { state: Mutex::new(state), changed: Condvar::new(), deadline }
    }

    pub(super) fn centre(&self) -> Arc<Cells> {
        Arc::clone(&self.lock().centre)
    }

    /// Sits down with an offer and waits for the others. Whoever is lost while it waits leaves with its offer, which nobody has
    /// seen.
    pub(super) fn meet(&self, seat: usize, offer: Offer) -> Result<Arc<Met>, Error> {
        let mut state = self.lock();
        state.expelled(seat)?;
        let number = self.sit_down(&mut state, seat, offer);
        while state.number == number {
            state.expelled(seat)?;
            let next = state.give_up(self.deadline);
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
        // Whoever is lost meanwhile may wake up when the others have met again.
        let (worker, after) = (state.seats[seat].worker, Duration::ZERO);
        let met = state.last.clone().filter(|met| met.offers.iter().any(|(other, _)| *other == worker));
        met.ok_or(Error::Expelled { worker, after })
    }

    /// Ends an operation in which vectors are on loan: returns when all who are in it have come here, and not before, for nobody
    /// is lost in it. None of them can leave, since its member is borrowed by the operation, nor be forgotten: those who are in
    /// it cannot call, and those who are not have no say.
    pub(super) fn end(&self, seat: usize) {
        let mut state = self.lock();
        let number = self.sit_down(&mut state, seat, Offer::plain(Call::Done));
        while state.number == number {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns the number of the meeting that is waited for.
    fn sit_down(&self, state: &mut State, seat: usize, offer: Offer) -> u64 {
        let number = state.number;
        state.seats[seat].offer = Some(offer);
        state.began.get_or_insert_with(Instant::now);
        if state.is_complete() {
            self.finish(state);
        }
        number
    }

    pub(super) fn alive(&self, seat: usize) {
        self.lock().seats[seat].seen = Instant::now();
    }

    pub(super) fn leave(&self, seat: usize, panicked: bool) {
        let mut state = self.lock();
        if state.seats[seat].gone.is_none() {
            state.lose(seat, if panicked { Why::Panicked } else { Why::Left }, Reads::Nothing);
            if state.is_complete() {
                self.finish(&mut state);
            }
        }
    }

    /// Gives up a worker that was lost elsewhere: nobody waits for it here a second time. Who was given up itself has no say: it
    /// may call while the others are in the middle of an operation.
    pub(super) fn forget(&self, by: usize, lost: &Lost) {
        let mut state = self.lock();
        if state.seats[by].gone.is_some() {
            return;
        }
        let seat = state.seats.iter().position(|seat| seat.worker == lost.worker && seat.gone.is_none());
        if let Some(seat) = seat {
            state.lose(seat, lost.why.clone(), Reads::TheCentre);
            if state.is_complete() {
                self.finish(&mut state);
            }
            // It may be waiting for a meeting that goes on without it.
            self.changed.notify_all();
        }
    }

    fn finish(&self, state: &mut State) {
        state.number += 1;
        state.began = None;
        // One that was lost and is still there may read the centre it had: it keeps that one, and the others get a copy.
        if std::mem::take(&mut state.is_read) {
            #[allow(unsafe_code)]
            // SAFETY: nobody writes. The centre is written inside an operation only, and all who could be in one sit here.
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

    /// An error if this one was lost.
    fn expelled(&self, seat: usize) -> Result<(), Error> {
        let Seat { worker, gone: Some(why), .. } = &self.seats[seat] else { return Ok(()) };
        let after = if let Why::Stalled { after } = why { *after } else { Duration::ZERO };
        Err(Error::Expelled { worker: *worker, after })
    }

    fn lose(&mut self, seat: usize, why: Why, reads: Reads) {
        self.is_read |= reads == Reads::TheCentre;
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
                _ => self.lose(seat, Why::Stalled { after: deadline }, Reads::TheCentre),
            }
        }
        next
    }
}

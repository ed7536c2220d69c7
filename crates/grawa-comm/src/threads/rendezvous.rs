//! A rendezvous: no member returns before all have arrived with their offers.
//!
//! A member that leaves, or makes no progress for too long while others wait, is lost: the others continue without it. All members
//! get the same offers and the same losses, in the order of the workers.

use crate::call::Call;
use crate::{Error, Lost, Why};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a member brings.
#[derive(Clone, Debug)]
pub(super) struct Offer {
    pub(super) call: Call,
    pub(super) message: Vec<u8>,
    pub(super) vector: Vec<f32>,
}

/// A rendezvous that took place.
#[derive(Debug)]
pub(super) struct Met {
    /// The offers of all, in the order of the workers.
    pub(super) offers: Vec<(u32, Offer)>,
    /// Members lost since the one before.
    pub(super) lost: Vec<Lost>,
}

#[derive(Debug)]
pub(super) struct Rendezvous {
    state: Mutex<State>,
    changed: Condvar,
    deadline: Duration,
}

#[derive(Debug)]
struct State {
    places: Vec<Place>,
    number: u64,
    /// When the first member arrived. Nobody is late before.
    began: Option<Instant>,
    last: Option<Arc<Met>>,
    lost: Vec<Lost>,
}

#[derive(Debug)]
struct Place {
    worker: u32,
    gone: Option<Why>,
    offer: Option<Offer>,
    /// When it last made progress.
    seen: Instant,
}

impl Rendezvous {
    pub(super) fn new(workers: &[u32], deadline: Duration) -> Self {
        let seen = Instant::now();
        let places = workers.iter().map(|&worker| Place { worker, gone: None, offer: None, seen }).collect();
        let state = State { places, number: 0, began: None, last: None, lost: Vec::new() };
        Rendezvous { state: Mutex::new(state), changed: Condvar::new(), deadline }
    }

    /// Arrives with an offer and waits for the others. If this member is lost meanwhile, nobody sees its offer.
    pub(super) fn meet(&self, place: usize, offer: Offer) -> Result<Arc<Met>, Error> {
        let mut state = self.lock();
        state.expelled(place)?;
        let number = state.number;
        state.places[place].offer = Some(offer);
        state.began.get_or_insert_with(Instant::now);
        while state.number == number {
            state.expelled(place)?;
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
        // A member that was lost meanwhile may wake up after the next rendezvous of the others.
        let (worker, after) = (state.places[place].worker, Duration::ZERO);
        let met = state.last.clone().filter(|met| met.offers.iter().any(|(other, _)| *other == worker));
        met.ok_or(Error::Expelled { worker, after })
    }

    pub(super) fn alive(&self, place: usize) {
        self.lock().places[place].seen = Instant::now();
    }

    pub(super) fn leave(&self, place: usize, panicked: bool) {
        let mut state = self.lock();
        if state.places[place].gone.is_none() {
            state.lose(place, if panicked { Why::Panicked } else { Why::Left });
            if state.is_complete() {
                self.finish(&mut state);
            }
        }
    }

    /// Removes a member that was lost elsewhere, so that nobody waits for it here, too. A member that was lost itself has no say.
    pub(super) fn forget(&self, by: usize, lost: &Lost) {
        let mut state = self.lock();
        if state.places[by].gone.is_some() {
            return;
        }
        let place = state.places.iter().position(|place| place.worker == lost.worker && place.gone.is_none());
        if let Some(place) = place {
            state.lose(place, lost.why.clone());
            if state.is_complete() {
                self.finish(&mut state);
            }
            // It may be waiting for a rendezvous that takes place without it.
            self.changed.notify_all();
        }
    }

    fn finish(&self, state: &mut State) {
        state.number += 1;
        state.began = None;
        let now = Instant::now();
        let mut offers = Vec::with_capacity(state.places.len());
        for place in &mut state.places {
            if let Some(offer) = place.offer.take() {
                place.seen = now;
                offers.push((place.worker, offer));
            }
        }
        let met = Met { offers, lost: std::mem::take(&mut state.lost) };
        state.last = Some(Arc::new(met));
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No thread panics while it holds the lock. A poisoned one is as good as any.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether all members that are not lost have arrived, and there is one.
    fn is_complete(&self) -> bool {
        let mut here = self.places.iter().filter(|place| place.gone.is_none()).peekable();
        here.peek().is_some() && here.all(|place| place.offer.is_some())
    }

    /// An error if this member was lost.
    fn expelled(&self, place: usize) -> Result<(), Error> {
        let Place { worker, gone: Some(why), .. } = &self.places[place] else { return Ok(()) };
        let after = if let Why::Stalled { after } = why { *after } else { Duration::ZERO };
        Err(Error::Expelled { worker: *worker, after })
    }

    fn lose(&mut self, place: usize, why: Why) {
        self.places[place].gone = Some(why.clone());
        self.places[place].offer = None;
        self.lost.push(Lost { worker: self.places[place].worker, why });
        self.lost.sort_by_key(|lost| lost.worker);
    }

    /// Removes members that made no progress for too long. Returns when to check again.
    fn give_up(&mut self, deadline: Duration) -> Option<Duration> {
        let now = Instant::now();
        let mut next = None;
        for place in 0..self.places.len() {
            let Place { gone: None, offer: None, seen, .. } = &self.places[place] else { continue };
            let silent = now.saturating_duration_since(self.began.map_or(*seen, |began| began.max(*seen)));
            match deadline.checked_sub(silent) {
                Some(left) if !left.is_zero() => {
                    next = Some(next.map_or(left, |next: Duration| next.min(left)))
                }
                _ => self.lose(place, Why::Stalled { after: deadline }),
            }
        }
        next
    }
}

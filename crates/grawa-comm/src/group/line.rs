//! A worker's line to the coordinator.
//!
//! One thread keeps the connection, makes it anew when it breaks, and hears; one gives signs of life. What is to be done about
//! what is heard is decided by [`Member`], and done by the worker's own thread.

use super::door::{Door, Held};
use super::exchange::Tag;
use super::flight::Flight;
use super::key::Wire;
use super::link::{self, In, Out};
use super::member::{Deed, Member};
use super::message::{Down, LONGEST, Up, decode, encode};
use crate::Error;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Who hears nothing for so long takes the connection for dead.
const DEAF: Duration = Duration::from_secs(3);
/// How long a message may take to be sent.
const SENT: Duration = Duration::from_secs(3);
/// From one attempt to connect to the next.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// What was told last is told again on a new connection: nobody knows whether it was heard on the old one. What was told
/// so long before that one was lost was heard. All workers do so, so that it must not be much.
const TOLD: usize = 64;
const HEARD: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });
/// The most that is told at once: what the message around it adds is less than a kilobyte.
const MOST: usize = LONGEST - (1 << 10);
/// How long one that has lost contact waits at the beginning of a round before it goes on training.
const ALONE: Duration = Duration::from_secs(1);

/// Tells whoever watches the run.
#[derive(Clone, Debug)]
pub struct Teller {
    pub(super) anchor: Arc<Anchor>,
}

impl Teller {
    /// Tells it, now or when the coordinator is in reach again. Around a lost connection things may be told twice.
    pub fn tell(&self, what: Vec<u8>) -> Result<(), Error> {
        if what.len() > MOST {
            // It would end every connection on which it is told.
            let why = format!("{} bytes are to be told at once, where {MOST} can be", what.len());
            return Err(Error::Message { why });
        }
        let mut state = lock(&self.anchor.0.state);
        if state.told.len() == TOLD {
            state.told.pop_front();
        }
        state.told.push_back((Instant::now(), what.clone()));
        state.unheard = (state.unheard + 1).min(state.told.len());
        let up = state.member.is_in_contact().then_some(Up::Tell(what));
        send(&mut state, up);
        Ok(())
    }
}

impl Teller {
    /// How many of the last reports the coordinator has not acknowledged.
    pub fn unacknowledged(&self) -> u32 {
        lock(&self.anchor.0.state).unheard as u32
    }
}

/// Knows whether the coordinator is in reach. It does not keep the worker in the group.
#[derive(Clone, Debug)]
pub struct Contact(pub(super) Weak<Shared>);

impl Contact {
    /// For how long the worker has been on its own; nothing if the worker has left.
    pub fn lost_for(&self) -> Option<Duration> {
        let shared = self.0.upgrade().filter(|shared| !shared.is_over())?;
        let since = lock(&shared.state).since;
        Some(since.map_or(Duration::ZERO, |since| since.elapsed()))
    }
}

/// The worker leaves when nobody holds on to this any more: what is told last is heard.
#[derive(Debug)]
pub(super) struct Anchor(pub(super) Arc<Shared>);

impl Drop for Anchor {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// What the threads share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) address: String,
    pub(super) token: u64,
    pub(super) wire: Wire,
    pub(super) door: Arc<Door>,
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
    pub(super) beat: AtomicU64,
    /// Signs that its work moves on, and how many there were at the end of the last cycle.
    pub(super) steps: AtomicU64,
    pub(super) counted: AtomicU64,
    pub(super) is_over: AtomicBool,
    /// The round of any end whose vectors are on their way.
    pub(super) flight: Mutex<Option<Arc<Flight>>>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) member: Member,
    pub(super) out: Option<Out>,
    pub(super) deeds: VecDeque<Deed>,
    pub(super) told: VecDeque<(Instant, Vec<u8>)>,
    /// How many of these, the last ones, the coordinator has not answered.
    pub(super) unheard: usize,
    pub(super) since: Option<Instant>,
    /// Why the last connection failed, and whether any did because the other side has another key.
    pub(super) trouble: Option<String>,
    pub(super) is_strange: bool,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    pub(super) fn end(&self) {
        if self.is_over.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut state = lock(&self.state);
        let last = state.member.leave();
        send(&mut state, last);
        if let Some(out) = state.out.take() {
            out.end();
        }
        self.door.shut();
        self.changed.notify_all();
    }

    /// Keeps a connection to the coordinator.
    pub(super) fn keep_line(&self) {
        let mut pause = PAUSE.0;
        while !self.is_over() {
            let dialled = link::dial(&self.address, &self.wire);
            if let Err(why) = &dialled {
                let mut state = lock(&self.state);
                state.trouble = Some(why.to_string());
                state.is_strange |= matches!(why, Error::Strange { .. });
                self.changed.notify_all();
            }
            if let Ok((out, from)) = dialled {
                let mut state = lock(&self.state);
                state.out = Some(out);
                let hello = state.member.connected();
                send(&mut state, [hello]);
                drop(state);
                let heard = self.listen(from);
                let mut state = lock(&self.state);
                match heard {
                    Ok(()) => pause = PAUSE.0,
                    Err(why) => state.trouble = Some(why),
                }
                state.member.disconnected();
                state.out = None;
                state.since.get_or_insert_with(Instant::now);
                self.changed.notify_all();
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(PAUSE.1);
        }
    }

    /// Hears what the coordinator says, until the connection ends; if nothing was heard, returns why.
    fn listen(&self, mut from: In) -> Result<(), String> {
        let mut has_heard = false;
        loop {
            let began = Instant::now();
            let heard = from.receive(LONGEST, &|| !self.is_over() && began.elapsed() < DEAF);
            let silent = || Error::Connection { why: "it ended without a word".into() };
            let down = heard.and_then(|bytes| decode::<Down>(&bytes.ok_or_else(silent)?));
            let down = match down {
                Ok(down) => down,
                Err(why) => {
                    from.end();
                    return if has_heard { Ok(()) } else { Err(why.to_string()) };
                }
            };
            has_heard = true;
            let mut state = lock(&self.state);
            state.unheard = state.unheard.saturating_sub(usize::from(down == Down::Heard));
            let (ups, deed) = state.member.hear(down);
            if let Some(Deed::Known { beat, .. }) = &deed {
                self.beat.store((*beat).clamp(10, 10_000), Ordering::Relaxed);
                let lost = state.since.take().unwrap_or(began);
                // Before the first round it is not answered, however long that takes: that was not heard.
                let heard = state.told.len().saturating_sub(state.unheard);
                let mut number = 0;
                state.told.retain(|(at, _)| {
                    number += 1;
                    number > heard || lost.saturating_duration_since(*at) < HEARD
                });
                state.unheard = state.told.len();
                let again: Vec<Up> = state.told.iter().map(|(_, what)| Up::Tell(what.clone())).collect();
                send(&mut state, again);
            }
            send(&mut state, ups);
            state.deeds.extend(deed);
            self.changed.notify_all();
        }
    }

    pub(super) fn give_signs(&self) {
        while !self.is_over() {
            std::thread::sleep(Duration::from_millis(self.beat.load(Ordering::Relaxed)));
            let progress = self.steps.load(Ordering::Relaxed);
            let steps = progress.saturating_sub(self.counted.load(Ordering::Relaxed));
            self.tell(|member| member.beat(steps, progress));
        }
    }

    /// Says that it stands with this memory and this centre, which others may take over from now on.
    pub(super) fn stand(&self, memory: Vec<u8>, centre: Arc<Vec<f32>>) {
        let op = lock(&self.state).member.op();
        let held = Arc::new(Held::new(op, memory, centre));
        self.door.hold(Arc::clone(&held));
        self.tell(|member| member.stands(held.stand.digest));
    }

    /// Says what the member wants to say.
    pub(super) fn tell(&self, what: impl FnOnce(&mut Member) -> Option<Up>) {
        let mut state = lock(&self.state);
        let up = what(&mut state.member);
        send(&mut state, up);
    }

    /// The next thing to do; nothing if it is not waited for any longer.
    pub(super) fn next(&self, go_on: &dyn Fn(&State) -> bool) -> Option<Deed> {
        let mut state = lock(&self.state);
        loop {
            if let Some(deed) = state.deeds.pop_front() {
                return Some(deed);
            }
            if self.is_over() || !go_on(&state) {
                return None;
            }
            state = self.changed.wait_timeout(state, link::LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether something else than what is being done is to be done.
    pub(super) fn is_interrupted(&self) -> bool {
        self.is_over() || lock(&self.state).is_interrupted()
    }

    /// Waits until the coordinator has heard what was told; false if it is not waited for any longer.
    pub(super) fn is_heard(&self, go_on: link::GoOn<'_>) -> bool {
        loop {
            let state = lock(&self.state);
            if state.unheard == 0 {
                return true;
            }
            drop(self.changed.wait_timeout(state, link::LOOK));
            if !go_on() {
                return false;
            }
        }
    }

    /// Whether this is still what is to be moved.
    pub(super) fn moves(&self, tag: Tag) -> bool {
        let state = lock(&self.state);
        !self.is_over() && !state.is_interrupted() && state.member.moves(tag)
    }
}

impl State {
    fn is_interrupted(&self) -> bool {
        self.deeds.iter().any(|deed| !matches!(deed, Deed::Known { .. } | Deed::Ready))
    }

    pub(super) fn has_lost_contact(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() > ALONE)
    }
}

/// Sends messages if there is a connection; if it fails it is given up, and they are said again on the next.
pub(super) fn send(state: &mut State, ups: impl IntoIterator<Item = Up>) {
    for up in ups {
        let Some(out) = &mut state.out else { return };
        let began = Instant::now();
        let sent = encode(&up).and_then(|bytes| out.send(&bytes, &|| began.elapsed() < SENT));
        if sent.is_err() {
            out.end();
            state.out = None;
        }
    }
}

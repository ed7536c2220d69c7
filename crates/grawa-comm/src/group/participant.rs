//! A worker's end of an elastic group, on sockets.
//!
//! One thread keeps the connection to the coordinator, makes it anew when it breaks, and hears; one gives signs of life. The
//! worker's own thread calls the operations and moves vectors. Everything they decide is decided by [`Member`].

use super::door::{Door, Held, ask, visit};
use super::exchange::{Adds, Base, Move, Tag};
use super::flight::{Flight, Landed, Travel};
use super::key::Wire;
use super::link::{self, In, Out};
use super::member::{Deed, Member};
use super::message::{Call, Down, End, Peer, Up, decode, encode};
use crate::{Collective, Error, Gathered, Lost, Outcome, digest};
use grawa_core::{Layout, Plan, Share, centre_part, pull_part};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Who hears nothing for so long takes the connection for dead.
const DEAF: Duration = Duration::from_secs(3);
/// How long a message may take to be sent.
const SENT: Duration = Duration::from_secs(3);
/// From one attempt to connect to the next.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// What was told last is told again on a new connection: nobody knows whether it was heard on the old one.
const TOLD: usize = 64;
/// How long one that has lost contact waits at the beginning of a round before it goes on training.
const ALONE: Duration = Duration::from_secs(1);

/// A worker that was let in, and does not take part yet.
#[derive(Debug)]
pub struct Guest {
    shared: Arc<Shared>,
    anchor: Arc<Anchor>,
    /// What defines the run.
    pub charter: Vec<u8>,
    /// The worker's number.
    pub worker: u32,
}

/// Tells whoever watches the run.
#[derive(Clone, Debug)]
pub struct Teller {
    anchor: Arc<Anchor>,
}

impl Teller {
    /// Tells it, now or when the coordinator is in reach again. Around a lost connection things may be told twice.
    pub fn tell(&self, what: Vec<u8>) {
        let mut state = lock(&self.anchor.0.state);
        if state.told.len() == TOLD {
            state.told.pop_front();
        }
        state.told.push_back(what.clone());
        let up = state.member.is_in_contact().then_some(Up::Tell(what));
        send(&mut state, up);
    }
}

/// The worker leaves when nobody holds on to this any more: what is told last is heard.
#[derive(Debug)]
struct Anchor(Arc<Shared>);

impl Drop for Anchor {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A worker's end of a group: the operations on one of its centres.
#[derive(Debug)]
pub struct Participant {
    core: Arc<Mutex<Core>>,
    shared: Arc<Shared>,
    /// None for what is on its way: that does not keep the worker in the group.
    _anchor: Option<Arc<Anchor>>,
    number: u8,
    worker: u32,
    members: Vec<u32>,
    centre: Arc<Vec<f32>>,
    travel: Travel,
    /// A round of this end whose vectors are on their way, a buffer for the next such, and who was lost on the last.
    flight: Option<Arc<Flight>>,
    luggage: Vec<f32>,
    lost: Vec<Lost>,
}

/// What the threads share.
#[derive(Debug)]
pub(super) struct Shared {
    address: String,
    token: u64,
    wire: Wire,
    door: Arc<Door>,
    state: Mutex<State>,
    changed: Condvar,
    beat: AtomicU64,
    /// Signs that its work moves on, and how many there were at the end of the last cycle.
    steps: AtomicU64,
    counted: AtomicU64,
    is_over: AtomicBool,
    /// The round of any end whose vectors are on their way.
    flight: Mutex<Option<Arc<Flight>>>,
}

#[derive(Debug)]
struct State {
    member: Member,
    out: Option<Out>,
    deeds: VecDeque<Deed>,
    told: VecDeque<Vec<u8>>,
    since: Option<Instant>,
}

/// What the operations of all centres share.
#[derive(Debug)]
struct Core {
    outs: HashMap<u64, Out>,
    spare: Vec<f32>,
    is_clean: bool,
    /// What must be taken over before anything else, and what for.
    due: Option<Deed>,
    bytes: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Guest {
    /// Asks the coordinator at `address` to be let in. Others reach this worker at `listen`; port 0 is any. If others know it
    /// by another host than the one it listens at, `host` says which.
    pub fn new(
        address: &str,
        wire: Wire,
        listen: &str,
        host: Option<&str>,
        patience: Duration,
    ) -> Result<Self, Error> {
        let door = Door::open(listen, wire.clone())?;
        let reached = match host {
            None => door.address.to_string(),
            Some(host) => format!("{host}:{}", door.address.port()),
        };
        // Random, and never twice: what it is worth is that no two processes have the same.
        let token = std::hash::RandomState::new().build_hasher().finish() | 1;
        let member = Member::new(token, reached);
        let state = State {
            member,
            out: None,
            deeds: VecDeque::new(),
            told: VecDeque::new(),
            since: Some(Instant::now()),
        };
        let shared = Arc::new(Shared {
            address: address.into(),
            token,
            wire,
            door,
            state: Mutex::new(state),
            changed: Condvar::new(),
            beat: AtomicU64::new(500),
            steps: AtomicU64::new(0),
            counted: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            flight: Mutex::default(),
        });
        let (keeper, beater) = (Arc::clone(&shared), Arc::clone(&shared));
        std::thread::Builder::new().name("grawa-line".into()).spawn(move || keeper.keep_line())?;
        std::thread::Builder::new().name("grawa-beat".into()).spawn(move || beater.give_signs())?;
        let began = Instant::now();
        loop {
            match shared.next(&|_| began.elapsed() < patience) {
                Some(Deed::Known { charter: Some(charter), .. }) => {
                    let state = lock(&shared.state);
                    shared.door.belongs_to(state.member.run());
                    let worker = state.member.worker().unwrap_or(u32::MAX);
                    drop(state);
                    let anchor = Arc::new(Anchor(Arc::clone(&shared)));
                    return Ok(Guest { shared, anchor, charter, worker });
                }
                Some(Deed::Refused { why }) => {
                    shared.end();
                    return Err(Error::Refused { why });
                }
                Some(_) => {}
                None => {
                    shared.end();
                    let after = patience.as_secs_f64();
                    return Err(Error::Connection {
                        why: format!("no coordinator answers at {address} within {after:.0} s"),
                    });
                }
            }
        }
    }

    /// A way to tell whoever watches the run.
    pub fn teller(&self) -> Teller {
        Teller { anchor: Arc::clone(&self.anchor) }
    }

    /// The run.
    pub fn run(&self) -> u64 {
        lock(&self.shared.state).member.run()
    }

    /// Begins to take part, with this memory and this centre if the run is about to begin. Returns the ends of the group, the
    /// first with this centre and one more for each length in `others`, and, where the run has begun, what the others remember.
    /// Only the first may overlap.
    pub fn enter(
        self,
        memory: Vec<u8>,
        centre: Vec<f32>,
        others: &[usize],
        travel: Travel,
    ) -> Result<(Vec<Participant>, Option<Vec<u8>>), Error> {
        self.enter_from(0, memory, centre, others, travel)
    }

    /// The same for one that holds what all held before a meeting of this number, if it was kept: should nobody hold anything
    /// newer, the run goes on from there.
    pub fn enter_from(
        self,
        op: u64,
        memory: Vec<u8>,
        centre: Vec<f32>,
        others: &[usize],
        travel: Travel,
    ) -> Result<(Vec<Participant>, Option<Vec<u8>>), Error> {
        let Guest { shared, anchor, worker, .. } = self;
        let held = Arc::new(Held::new(op, memory, Arc::new(centre)));
        shared.door.hold(Arc::clone(&held));
        shared.tell(|member| member.enter(held.stand));
        let core = Core { outs: HashMap::new(), spare: Vec::new(), is_clean: true, due: None, bytes: 0 };
        let core = Arc::new(Mutex::new(core));
        let end = |number: u8, centre: Arc<Vec<f32>>| Participant {
            core: Arc::clone(&core),
            shared: Arc::clone(&shared),
            _anchor: Some(Arc::clone(&anchor)),
            number,
            worker,
            members: Vec::new(),
            centre,
            travel: Travel { overlap: travel.overlap && number == 0, ..travel },
            flight: None,
            luggage: Vec::new(),
            lost: Vec::new(),
        };
        let mut ends = vec![end(0, Arc::clone(&held.centre))];
        ends.extend((1..).zip(others).map(|(number, len)| end(number, Arc::new(vec![0.0; *len]))));
        loop {
            match shared.next(&|_| true) {
                Some(Deed::Ready) => return Ok((ends, (op > 0).then(|| held.memory.clone()))),
                Some(deed @ (Deed::Take { .. } | Deed::Back)) => {
                    lock(&core).due = Some(deed);
                    let memory = ends[0].rejoin()?;
                    return Ok((ends, Some(memory)));
                }
                Some(Deed::Refused { why }) => return Err(Error::Refused { why }),
                Some(_) | None => {}
            }
        }
    }
}

impl Shared {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn end(&self) {
        if self.is_over.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut state = lock(&self.state);
        send(&mut state, [Up::Leave]);
        if let Some(out) = state.out.take() {
            out.end();
        }
        self.door.shut();
        self.changed.notify_all();
    }

    /// Keeps a connection to the coordinator.
    fn keep_line(&self) {
        let mut pause = PAUSE.0;
        while !self.is_over() {
            if let Ok((out, from)) = link::dial(&self.address, &self.wire) {
                let mut state = lock(&self.state);
                state.out = Some(out);
                let hello = state.member.connected();
                send(&mut state, [hello]);
                drop(state);
                if self.listen(from) {
                    pause = PAUSE.0;
                }
                let mut state = lock(&self.state);
                state.member.disconnected();
                state.out = None;
                state.since.get_or_insert_with(Instant::now);
                self.changed.notify_all();
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(PAUSE.1);
        }
    }

    /// Hears what the coordinator says, until the connection ends. Returns whether anything was heard.
    fn listen(&self, mut from: In) -> bool {
        let mut has_heard = false;
        loop {
            let began = Instant::now();
            let heard = from.receive(super::frame::LONGEST, &|| !self.is_over() && began.elapsed() < DEAF);
            let Some(down) = heard.ok().flatten().and_then(|bytes| decode::<Down>(&bytes).ok()) else {
                from.end();
                return has_heard;
            };
            has_heard = true;
            let mut state = lock(&self.state);
            let (ups, deed) = state.member.hear(down);
            if let Some(Deed::Known { beat, .. }) = &deed {
                self.beat.store((*beat).clamp(10, 10_000), Ordering::Relaxed);
                state.since = None;
                let again: Vec<Up> = state.told.iter().cloned().map(Up::Tell).collect();
                send(&mut state, again);
            }
            send(&mut state, ups);
            state.deeds.extend(deed);
            self.changed.notify_all();
        }
    }

    fn give_signs(&self) {
        while !self.is_over() {
            std::thread::sleep(Duration::from_millis(self.beat.load(Ordering::Relaxed)));
            let mut state = lock(&self.state);
            if state.member.is_in_contact() {
                let progress = self.steps.load(Ordering::Relaxed);
                let steps = progress.saturating_sub(self.counted.load(Ordering::Relaxed));
                send(&mut state, [Up::Beat { steps, progress }]);
            }
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
    fn tell(&self, what: impl FnOnce(&mut Member) -> Option<Up>) {
        let mut state = lock(&self.state);
        let up = what(&mut state.member);
        send(&mut state, up);
    }

    /// The next thing to do; nothing if it is not waited for any longer.
    fn next(&self, go_on: &dyn Fn(&State) -> bool) -> Option<Deed> {
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
    fn is_interrupted(&self) -> bool {
        self.is_over()
            || lock(&self.state).deeds.iter().any(|deed| !matches!(deed, Deed::Known { .. } | Deed::Ready))
    }
}

impl State {
    fn has_lost_contact(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() > ALONE)
    }
}

/// Sends messages if there is a connection; if it fails it is given up, and they are said again on the next.
fn send(state: &mut State, ups: impl IntoIterator<Item = Up>) {
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

impl Participant {
    /// Waits for vectors that are on their way, and takes up what this end's came to.
    fn land(&mut self) -> Result<(), Error> {
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

    fn talk(&mut self, call: Call, message: Vec<u8>) -> Result<(Vec<Vec<u8>>, Outcome), Error> {
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
    fn move_all(
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
enum Ended {
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

/// Whether the worker at a seat of the plan weighs anything in a share.
fn weighs(plan: &Plan, layout: &Layout, seat: usize, share: &Range<usize>) -> bool {
    if !plan.weights.is_per_span() {
        return plan.weights.of(0)[seat] > 0.0;
    }
    let first = layout.span_at(share.start).unwrap_or(0);
    let spans =
        layout.spans().iter().enumerate().skip(first).take_while(|(_, span)| span.range().start < share.end);
    spans.into_iter().any(|(index, _)| plan.weights.of(index)[seat] > 0.0)
}

impl Participant {
    /// The next centre, from everyone's vector.
    fn make_centre(&mut self, plan: &Plan, layout: &Layout, mine: &[f32]) -> Result<Ended, Error> {
        let call = Call::Mix { plan: digest(plan), centre: self.number };
        let adds = |seat: usize, share: &Range<usize>| {
            plan.share != Share::Nothing && plan.workers.len() > seat && weighs(plan, layout, seat, share)
        };
        let before = Arc::clone(&self.centre);
        let sum = |share: &Range<usize>, summands: &[&[f32]], to: &mut [f32]| {
            match plan.share {
                // Gradients have no past: where nobody's is finite, the step is none, not the last one again.
                Share::Gradients => to.fill(0.0),
                Share::Parameters | Share::Nothing if plan.keeps_centre() => {
                    to.copy_from_slice(&before[share.clone()]);
                }
                Share::Parameters | Share::Nothing => {}
            }
            Ok(centre_part(plan, layout, share.start, summands, to)?)
        };
        let base = self.travel.bf16.then(|| &before[..]);
        self.move_all(call, mine, &adds, base, sum)
    }

    /// Pulls toward the centre there is, and sends the vector off to the next one, which is there at the next meeting.
    fn take_off(
        &mut self,
        plan: &Plan,
        layout: &Layout,
        seat: usize,
        mine: &mut [f32],
    ) -> std::io::Result<Outcome> {
        let mut copy = std::mem::take(&mut self.luggage);
        copy.clear();
        copy.extend_from_slice(mine);
        pull_part(plan, seat, mine, &self.centre, &self.centre);
        let mut twin = Participant {
            core: Arc::clone(&self.core),
            shared: Arc::clone(&self.shared),
            _anchor: None,
            members: self.members.clone(),
            centre: Arc::clone(&self.centre),
            flight: None,
            luggage: Vec::new(),
            lost: Vec::new(),
            ..*self
        };
        let (plan, layout, flight) = (plan.clone(), layout.clone(), Arc::new(Flight::default()));
        let (bytes, members) = (size_of_val(mine) as u64, self.members.clone());
        let up = Arc::clone(&flight);
        let fly = move || {
            let make = || twin.make_centre(&plan, &layout, &copy);
            let broke_down = |_| Err(Error::Connection { why: "a thread broke down".into() });
            let ended = catch_unwind(AssertUnwindSafe(make)).unwrap_or_else(broke_down);
            let members = twin.members.clone();
            let landed = ended.map(|ended| match ended {
                Ended::Well(centre, outcome) => {
                    Landed { centre: Some(Arc::new(centre)), members, lost: outcome.lost, mine: copy }
                }
                // It came to nothing, for all alike: the old centre stays.
                Ended::Not(lost) => Landed { centre: None, members, lost, mine: copy },
            });
            up.end(landed, &twin.shared, &twin.centre);
        };
        std::thread::Builder::new().name("grawa-flight".into()).spawn(fly)?;
        *lock(&self.shared.flight) = Some(Arc::clone(&flight));
        self.flight = Some(flight);
        Ok(Outcome { members, bytes, ..Outcome::default() })
    }
}

impl Collective for Participant {
    type Buffer = [f32];

    fn worker(&self) -> u32 {
        self.worker
    }

    fn members(&self) -> &[u32] {
        &self.members
    }

    fn gather(&mut self, message: &[u8]) -> Result<Gathered, Error> {
        let (messages, mut outcome) = self.talk(Call::Gather, message.into())?;
        outcome.bytes = message.len() as u64;
        let messages = outcome.members.iter().copied().zip(messages).collect();
        Ok(Gathered { messages, outcome })
    }

    fn mix(&mut self, plan: &Plan, layout: &Layout, mine: &mut [f32]) -> Result<Outcome, Error> {
        self.land()?;
        for (what, found) in
            [("the vector of this worker", mine.len()), ("the centre of the group", self.centre.len())]
        {
            if found != layout.len() {
                return Err(grawa_core::Error::WrongLength {
                    what: what.into(),
                    found,
                    expected: layout.len(),
                }
                .into());
            }
        }
        let Some(seat) = plan.workers.iter().position(|&worker| worker == self.worker) else {
            return Err(grawa_core::Error::WrongWorkers { found: plan.workers.clone() }.into());
        };
        if self.travel.overlap {
            return Ok(self.take_off(plan, layout, seat, mine)?);
        }
        let before = Arc::clone(&self.centre);
        match self.make_centre(plan, layout, mine)? {
            Ended::Not(lost) => Err(Error::Shrunk { lost }),
            Ended::Well(after, outcome) => {
                pull_part(plan, seat, mine, &before, &after);
                drop(before);
                let old = std::mem::replace(&mut self.centre, Arc::new(after));
                if let Ok(old) = Arc::try_unwrap(old) {
                    lock(&self.core).spare = old;
                }
                Ok(outcome)
            }
        }
    }

    fn broadcast(&mut self, leader: u32, mine: &mut [f32]) -> Result<Outcome, Error> {
        self.land()?;
        loop {
            let members = self.members.clone();
            let at = move |seat: usize| members.get(seat) == Some(&leader);
            let sum = |_: &Range<usize>, summands: &[&[f32]], to: &mut [f32]| {
                let from = (0..summands.len()).find(|&seat| at(seat)).unwrap_or(0);
                to.copy_from_slice(summands[from]);
                Ok(())
            };
            match self.move_all(Call::Broadcast { leader }, mine, &|seat, _| at(seat), None, sum)? {
                Ended::Well(vector, outcome) => {
                    mine.copy_from_slice(&vector);
                    return Ok(outcome);
                }
                Ended::Not(_) if self.members.contains(&leader) => {}
                Ended::Not(_) => return Err(Error::NoSuchLeader { leader, members: self.members.clone() }),
            }
        }
    }

    fn barrier(&mut self) -> Result<Outcome, Error> {
        Ok(self.talk(Call::Barrier, Vec::new())?.1)
    }

    fn centre(&self) -> &[f32] {
        &self.centre
    }

    fn copy_centre(&self) -> Result<Vec<f32>, Error> {
        // What is saved is what the group holds, though workers are not pulled toward it yet.
        let newest = self.flight.as_ref().map_or(Ok(None), |flight| flight.centre())?;
        Ok(newest.as_ref().unwrap_or(&self.centre).to_vec())
    }

    fn alive(&self) {
        self.shared.steps.fetch_add(1, Ordering::Relaxed);
    }

    fn meeting(&self) -> u64 {
        self.flight.iter().for_each(|flight| flight.wait());
        lock(&self.shared.state).member.op()
    }

    fn settle(&mut self, memory: &[u8]) -> Result<(), Error> {
        self.shared.counted.store(self.shared.steps.load(Ordering::Relaxed), Ordering::Relaxed);
        match &self.flight {
            Some(flight) => flight.settle(memory, &self.shared, &self.centre),
            None => self.shared.stand(memory.into(), Arc::clone(&self.centre)),
        }
        Ok(())
    }

    fn rejoin(&mut self) -> Result<Vec<u8>, Error> {
        // Where it was going does not matter any more.
        let _ = self.land();
        let shared = Arc::clone(&self.shared);
        let mut core = lock(&self.core);
        // The others went on without it, and gave up their ends of its connections.
        core.is_clean = false;
        loop {
            let deed = core.due.take().or_else(|| shared.next(&|_| true));
            match deed {
                Some(Deed::Take { donor, stand }) => {
                    let run = lock(&shared.state).member.run();
                    let go_on = || !shared.is_interrupted();
                    match ask(&donor, &shared.wire, run, stand, self.centre.len(), &go_on) {
                        Ok(held) => {
                            self.centre = Arc::clone(&held.centre);
                            let memory = held.memory.clone();
                            shared.door.hold(Arc::new(held));
                            shared.tell(|member| member.took(stand));
                            return Ok(memory);
                        }
                        Err(_) => shared.tell(|member| member.not_taken(donor.worker)),
                    }
                }
                Some(Deed::Back) => {
                    let Some(held) = shared.door.held() else { continue };
                    self.centre = Arc::clone(&held.centre);
                    return Ok(held.memory.clone());
                }
                Some(Deed::Refused { why }) => return Err(Error::Refused { why }),
                Some(_) => {}
                None => return Err(Error::Connection { why: "the group was left".into() }),
            }
        }
    }
}

//! The coordinator: who is a member, where the group stands, and when a meeting is over. Pure: the network and the clock are
//! somebody else's.
//!
//! It holds no parameters and makes no plan. Members meet through it; vectors move between members. The group *stands*
//! between two cycles: every member then holds the same centre and the same memory, and says so by a digest. That is the
//! *truth*. Who stands elsewhere, a newcomer, one who was late, one whose bits differ, takes the truth over from a member
//! that holds it before it may come to a meeting; so nothing a newcomer brings can become the truth for others.
//!
//! What happens at a meeting is in [`meeting`](super::meeting), who calls them at a free pace in [`trigger`](super::trigger), and where the run goes on when those
//! who knew are gone in [`succession`](super::succession).

use super::deadline::Deadline;
use super::digest::majority;
use super::meeting::{Arrival, Meeting};
use super::message::{Call, Down, LONGEST, Peer, Record, Stand, Up, VERSION};
use super::notice::Notice;
use super::seat::{Seat, Session, State};
use crate::{Lost, Why};
use std::collections::BTreeMap;
use std::time::Duration;

/// Past stands that are remembered for members who come back.
const PAST: usize = 10_000;
/// The most that is held back of what one reports that does not take part yet: reports, and bytes of them.
const HELD: (usize, usize) = (64, LONGEST);

/// How patient a group is.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Workers that must come before the first meeting takes place.
    pub founders: u32,
    /// Workers without whom no later meeting takes place.
    pub at_least: u32,
    /// From one sign of life to the next.
    pub beat: Duration,
    /// Who gives no sign of life for so long is lost.
    pub silence: Duration,
    /// Whose connection ended may come back for so long.
    pub grace: Duration,
    /// The shortest and the longest wait for those who are late for a round, and how many spreads beyond the median.
    pub patience: (Duration, Duration, f64),
    /// Inside a round, who gives signs of life but does not move on for so long is lost.
    pub stall: Duration,
    /// When nobody holds the truth any more: how long is waited for one who does.
    pub succession: Duration,
    /// At a free pace: local steps a worker and cycle.
    pub trigger: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            founders: 1,
            at_least: 1,
            beat: Duration::from_millis(500),
            silence: Duration::from_millis(2500),
            grace: Duration::from_secs(1),
            patience: (Duration::from_secs(2), Duration::from_secs(60), 8.0),
            stall: Duration::from_secs(600),
            succession: Duration::from_secs(60),
            trigger: None,
        }
    }
}

/// What the coordinator hears of.
#[derive(Clone, Debug)]
pub enum Event {
    /// A message came in.
    Heard {
        /// On which connection.
        session: Session,
        /// What.
        up: Up,
    },
    /// A connection ended.
    Ended {
        /// Which.
        session: Session,
    },
    /// Time has passed.
    Tick,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Send a message.
    Send {
        /// To whom.
        session: Session,
        /// What.
        down: Down,
    },
    /// End a connection.
    End {
        /// Which.
        session: Session,
    },
    /// Write this down where it survives, before anything else is done.
    Keep(Record),
    /// Pass on what a member tells.
    Tell {
        /// Who.
        worker: u32,
        /// What.
        what: Vec<u8>,
    },
    /// Tell whoever watches.
    Say(Notice),
}

/// The coordinator's state.
#[derive(Debug)]
pub struct Coordinator {
    pub(super) settings: Settings,
    pub(super) run: u64,
    charter: Vec<u8>,
    pub(super) epoch: u64,
    /// Who met last: those of this epoch, unless one of them is lost since.
    pub(super) members: Vec<Peer>,
    /// The next meeting.
    pub(super) op: u64,
    pub(super) truth: Option<Stand>,
    pub(super) past: BTreeMap<u64, u64>,
    pub(super) seats: BTreeMap<u32, Seat>,
    pub(super) meeting: Meeting,
    pub(super) deadline: Deadline,
    /// The last meeting and how it ended, for those whose connection broke before they heard.
    pub(super) last: Option<(u64, Down)>,
    /// Members lost since the last meeting.
    pub(super) lost: Vec<Lost>,
    pub(super) orphaned: Option<Duration>,
    /// How many members there were when it was last written down, and until when those are waited for who were
    /// members under the coordinator before.
    pub(super) size: u32,
    /// Their tokens.
    pub(super) former: Vec<u64>,
    pub(super) returning: Option<Option<Duration>>,
    /// When the last round's first member came, for those who come after it is over.
    pub(super) began: Option<(u64, Duration)>,
    pub(super) called: Option<u64>,
    /// At a free pace: steps of all cycles so far that were more than asked for.
    pub(super) overshot: u64,
    /// The log does not name every state that was committed: version 4 of the protocol wrote it.
    pub(super) has_gaps: bool,
    pub(super) actions: Vec<Action>,
}

impl Coordinator {
    /// The coordinator of a run. What `charter` says is handed to every newcomer. `records` are what an earlier coordinator
    /// of the run kept, if there was one.
    pub fn new(settings: Settings, run: u64, charter: Vec<u8>, records: &[Record]) -> Self {
        let (shortest, longest, spreads) = settings.patience;
        let mut coordinator = Coordinator {
            settings,
            run,
            charter,
            epoch: 0,
            members: Vec::new(),
            op: 0,
            truth: None,
            past: BTreeMap::new(),
            seats: BTreeMap::new(),
            meeting: Meeting::default(),
            deadline: Deadline::new(shortest, longest, spreads),
            last: None,
            lost: Vec::new(),
            orphaned: None,
            size: 0,
            former: Vec::new(),
            returning: None,
            began: None,
            called: None,
            overshot: 0,
            has_gaps: false,
            actions: Vec::new(),
        };
        for record in records.iter().filter(|record| record.run == run) {
            if record.members == 0 {
                coordinator.has_gaps = true;
                coordinator.remember(record.stand);
                continue;
            }
            // A run that went back and on again has written over what came after.
            coordinator.past.split_off(&record.stand.op);
            coordinator.past.insert(record.stand.op, record.stand.digest);
            // Epochs after the record were not written down: those of this coordinator begin beyond them all.
            coordinator.epoch = ((record.epoch >> 32) + 1) << 32;
            coordinator.op = record.stand.op;
            coordinator.truth = Some(record.stand);
            coordinator.size = record.members;
            if !record.tokens.is_empty() {
                coordinator.former.clone_from(&record.tokens);
            }
            coordinator.returning = Some(None);
        }
        if let Some(stand) = coordinator.truth {
            let (members, tokens) = (coordinator.size.max(1), Vec::new());
            let record = Record { run, epoch: coordinator.epoch, stand, members, tokens };
            coordinator.actions.push(Action::Keep(record));
        }
        coordinator
    }

    /// Takes note of an event, and says what is to be done about it.
    pub fn on(&mut self, event: Event, now: Duration) -> Vec<Action> {
        match event {
            Event::Heard { session, up } => self.hear(session, up, now),
            Event::Ended { session } => {
                if let Some((_, seat)) = self.of(session) {
                    seat.session = None;
                    seat.closed = Some(now);
                }
            }
            Event::Tick => {}
        }
        self.look(now);
        self.pass_on();
        std::mem::take(&mut self.actions)
    }

    /// The members, by number.
    pub fn seats(&self) -> &BTreeMap<u32, Seat> {
        &self.seats
    }

    /// The epoch: it grows whenever the members of a meeting are others than those of the one before.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// At a free pace: how many steps more than asked for were taken so far, since it coordinates.
    pub fn overshot(&self) -> u64 {
        self.overshot
    }

    /// The next meeting.
    pub fn op(&self) -> u64 {
        self.op
    }

    /// What all hold, as far as it is known.
    pub fn truth(&self) -> Option<Stand> {
        self.truth
    }

    /// Whether the next meeting begins a round, to which newcomers may come: they may not any more when words are moving.
    pub fn is_open(&self) -> bool {
        self.meeting.moving.is_none() && self.truth.is_none_or(|truth| truth.op == self.op)
    }

    /// Whether the next meeting begins a round as far as anyone says, if not all have said so yet.
    pub(super) fn begins_round(&self) -> bool {
        self.is_open() || self.active().any(|(_, seat)| seat.stand.is_some_and(|stand| stand.op == self.op))
    }

    pub(super) fn of(&mut self, session: Session) -> Option<(u32, &mut Seat)> {
        self.seats
            .iter_mut()
            .find(|(_, seat)| seat.session == Some(session))
            .map(|(worker, seat)| (*worker, seat))
    }

    pub(super) fn active(&self) -> impl Iterator<Item = (u32, &Seat)> {
        self.seats
            .iter()
            .filter(|(_, seat)| seat.state == State::Active)
            .map(|(worker, seat)| (*worker, seat))
    }

    pub(super) fn send(&mut self, worker: u32, down: Down) {
        if let Some(session) = self.seats.get(&worker).and_then(|seat| seat.session) {
            self.actions.push(Action::Send { session, down });
        }
    }

    pub(super) fn say(&mut self, notice: Notice) {
        self.actions.push(Action::Say(notice));
    }

    fn refuse(&mut self, session: Session, why: String) {
        self.actions.push(Action::Send { session, down: Down::Refused { why: why.clone() } });
        self.actions.push(Action::End { session });
        self.say(Notice::Refused { why });
    }

    fn hear(&mut self, session: Session, up: Up, now: Duration) {
        if let Up::Hello { version, run, token, worker, address } = up {
            return self.greet(session, (version, run), token, worker, address, now);
        }
        let (op, is_moving) = (self.op, self.meeting.moving.is_some());
        let Some((worker, seat)) = self.of(session) else {
            // Given up by now, or never greeted: it must say hello again.
            return self.actions.push(Action::End { session });
        };
        seat.seen = now;
        let bytes = if let Up::Tell(what) = &up { what.len() } else { 0 };
        if !seat.quota.spend(bytes, now) {
            let why = "it sent more than a member may: is it the same program?".into();
            self.send(worker, Down::Refused { why });
            return self.lose(worker, Why::Excess);
        }
        match up {
            Up::Hello { .. } => {}
            Up::Enter(stand) => {
                if seat.state == State::Greeted {
                    seat.stand = Some(stand);
                    seat.state = State::Waiting;
                    self.place(worker);
                }
            }
            Up::Stands(stand) => {
                // While words move it has nothing new to say, and the round has begun on what was said before.
                if seat.state == State::Active && stand.op == op && !is_moving {
                    seat.stand = Some(stand);
                    seat.steps = 0;
                    self.settle(false);
                }
            }
            Up::Took(stand) => {
                // Its connection may have broken on the way: it holds it all the same.
                if matches!(seat.state, State::Taking(_) | State::Waiting) {
                    seat.stand = Some(stand);
                    seat.state = State::Waiting;
                    seat.chases += 1;
                    self.place(worker);
                }
            }
            Up::NotTaken { .. } => {
                if matches!(seat.state, State::Taking(_)) {
                    seat.state = State::Waiting;
                    seat.chases += 1;
                    self.place(worker);
                }
            }
            Up::Beat { steps, progress } => {
                seat.steps = steps;
                if seat.progress != progress {
                    seat.progress = progress;
                    seat.moved = now;
                }
                self.send(worker, Down::Beat);
                self.pull_trigger();
            }
            Up::Tell(what) => self.hold_back(worker, what),
            Up::Leave => self.lose(worker, Why::Left),
            Up::Arrive { op, call, steps, knows } => {
                self.arrive(worker, op, Arrival { call, steps, knows }, now)
            }
            Up::Done { epoch, op, attempt, digest } => self.done(worker, (epoch, op, attempt), digest),
            Up::Broken { epoch, op, attempt, peer, why } => {
                self.broken(worker, (epoch, op, attempt), (peer, why), now);
            }
        }
    }

    fn greet(
        &mut self,
        session: Session,
        (version, run): (u16, u64),
        token: u64,
        wish: Option<u32>,
        address: String,
        now: Duration,
    ) {
        if version != VERSION {
            let why = format!(
                "it speaks version {version} of the protocol, and this run version {VERSION}: use the same program"
            );
            return self.refuse(session, why);
        }
        if run != 0 && run != self.run {
            let why = format!("it belongs to run {run:016x}, and this is run {:016x}", self.run);
            return self.refuse(session, why);
        }
        // One connection is one member, and is welcomed once: else a single one could take any number of places.
        if self.of(session).is_some() {
            return self.refuse(session, "it says hello a second time".into());
        }
        let known = self.seats.iter_mut().find(|(_, seat)| seat.token == token).map(|(worker, _)| *worker);
        let worker = known
            .or(wish.filter(|wish| !self.seats.contains_key(wish)))
            .unwrap_or_else(|| (0..).find(|worker| !self.seats.contains_key(worker)).unwrap_or(u32::MAX));
        let seat = self.seats.entry(worker).or_insert_with(|| Seat::new(token, address, session, now));
        let before = seat.session.replace(session).filter(|before| *before != session);
        seat.closed = None;
        // What was not answered it reports again.
        seat.reports.clear();
        (seat.seen, seat.moved) = (now, now);
        let known = matches!(seat.state, State::Active | State::Ready) && !seat.is_placed;
        if !known {
            seat.state = State::Greeted;
        }
        if let Some(session) = before {
            self.actions.push(Action::End { session });
        }
        let charter = (run == 0).then(|| self.charter.clone());
        let beat = self.settings.beat.as_millis() as u64;
        self.send(worker, Down::Welcome { run: self.run, worker, known, beat, charter });
        self.call(worker);
    }

    /// Finds out what the group holds, from what its members say they do. Without `now_or_never` more than half must have
    /// said the same.
    pub(super) fn settle(&mut self, now_or_never: bool) {
        let members = self.active().count();
        let speaks = |(worker, seat): &(&u32, &Seat)| {
            seat.state == State::Active
                || (seat.state == State::Ready && self.meeting.arrived.contains_key(worker))
        };
        let told: BTreeMap<u32, u64> = (self.seats.iter().filter(speaks))
            .filter_map(|(worker, seat)| {
                seat.stand.filter(|stand| stand.op == self.op).map(|stand| (*worker, stand.digest))
            })
            .collect();
        let Some((mut right, mut wrong)) = majority(&told) else { return };
        if let Some(truth) = self.truth.filter(|truth| truth.op == self.op) {
            right = truth.digest;
            wrong = told.iter().filter(|(_, digest)| **digest != right).map(|(worker, _)| *worker).collect();
        } else if 2 * (told.len() - wrong.len()) > members || now_or_never {
            self.believe(Stand { op: self.op, digest: right });
        } else {
            return;
        }
        for worker in wrong {
            let Some(seat) = self.seats.get_mut(&worker) else { continue };
            let found = Stand { op: self.op, digest: told[&worker] };
            seat.state = State::Waiting;
            self.meeting.arrived.remove(&worker);
            self.lost.push(Lost { worker, why: Why::Differs });
            self.say(Notice::Differs { worker, found, expected: right });
        }
        self.place_all();
    }

    /// This was true.
    pub(super) fn remember(&mut self, stand: Stand) {
        self.past.insert(stand.op, stand.digest);
        if self.past.len() > PAST {
            self.past.pop_first();
        }
    }

    /// From now on this is the truth, and those who hold it are the members.
    pub(super) fn believe(&mut self, stand: Stand) {
        // At the first meeting nobody is a member yet.
        self.size = self.active().count().max(self.meeting.arrived.len()) as u32;
        let holds = |worker: &u32, seat: &Seat| {
            seat.state == State::Active || self.meeting.arrived.contains_key(worker)
        };
        let tokens = self.seats.iter().filter(|(worker, seat)| holds(worker, seat));
        let tokens: Vec<u64> = tokens.map(|(_, seat)| seat.token).collect();
        let is_news = tokens != self.former;
        self.former = tokens;
        self.commit(stand, is_news);
    }

    /// From now on this is the truth. It is written down before anyone acts on it.
    pub(super) fn commit(&mut self, stand: Stand, with_tokens: bool) {
        self.orphaned = None;
        self.past.split_off(&stand.op);
        self.remember(stand);
        self.truth = Some(stand);
        self.actions.push(Action::Keep(Record {
            run: self.run,
            epoch: self.epoch,
            stand,
            members: self.size.max(1),
            tokens: if with_tokens { self.former.clone() } else { Vec::new() },
        }));
    }

    /// What one reports is passed on when it takes part, and is dropped if it never does. Of what is too much the oldest is dropped.
    fn hold_back(&mut self, worker: u32, what: Vec<u8>) {
        let Some(seat) = self.seats.get_mut(&worker) else { return };
        seat.reports.push(what);
        let size = |reports: &[Vec<u8>]| reports.iter().map(Vec::len).sum::<usize>();
        let mut dropped = 0;
        while seat.reports.len() - dropped > HELD.0 || size(&seat.reports[dropped..]) > HELD.1 {
            dropped += 1;
        }
        seat.reports.drain(..dropped);
        (0..dropped).for_each(|_| self.send(worker, Down::Heard));
    }

    /// Passes on what members report. After a restart nobody is a member until it is known who is back.
    fn pass_on(&mut self) {
        if self.returning.is_some() {
            return;
        }
        for (worker, seat) in self.seats.iter_mut().filter(|(_, seat)| seat.state == State::Active) {
            for what in std::mem::take(&mut seat.reports) {
                self.actions.push(Action::Tell { worker: *worker, what });
                let heard = |session| Action::Send { session, down: Down::Heard };
                self.actions.extend(seat.session.map(heard));
            }
        }
    }

    pub(super) fn place_all(&mut self) {
        let waiting: Vec<u32> = self
            .seats
            .iter()
            .filter(|(_, seat)| seat.state == State::Waiting)
            .map(|(worker, _)| *worker)
            .collect();
        waiting.into_iter().for_each(|worker| self.place(worker));
    }

    /// Finds a place for one who waits: at the next meeting if it stands where all do, else at a donor's.
    fn place(&mut self, worker: u32) {
        let Some(stand) =
            self.seats.get(&worker).filter(|seat| seat.session.is_some()).and_then(|seat| seat.stand)
        else {
            return;
        };
        if self.truth.is_none() && stand.op > 0 {
            // Only a coordinator that lost its records can be here; one who has been in the run knows better.
            self.go_on_from(stand);
            return self.place_all();
        }
        if !self.is_open() {
            return;
        }
        if self.truth.is_none_or(|truth| truth == stand) {
            if let Some(seat) = self.seats.get_mut(&worker) {
                // One that stood here before goes on where it was, and is waited for; one that has just come here is not.
                let returns = self.truth.is_some() && seat.chases == 0;
                (seat.state, seat.chases, seat.steps) =
                    (if returns { State::Active } else { State::Ready }, 0, 0);
                seat.is_placed = true;
            }
            self.send(worker, Down::Ready { op: self.op });
            return self.call(worker);
        }
        let Some(truth) = self.truth else { return };
        let donor = (self.seats.iter())
            .filter(|(other, seat)| **other != worker && seat.session.is_some() && seat.stand == Some(truth))
            .filter(|(_, seat)| matches!(seat.state, State::Active | State::Ready))
            .min_by_key(|(_, seat)| seat.gifts)
            .map(|(other, seat)| seat.peer(*other));
        if let Some(donor) = donor {
            if let Some(seat) = self.seats.get_mut(&donor.worker) {
                seat.gifts += 1;
            }
            if let Some(seat) = self.seats.get_mut(&worker) {
                seat.state = State::Taking(truth);
            }
            self.say(Notice::Takes { worker, donor: donor.worker, stand: truth });
            self.send(worker, Down::Take { donor, stand: truth });
        }
    }

    /// A member is gone.
    pub(super) fn lose(&mut self, worker: u32, why: Why) {
        let Some(seat) = self.seats.remove(&worker) else { return };
        self.meeting.arrived.remove(&worker);
        if let Some(session) = seat.session {
            self.actions.push(Action::End { session });
        }
        if seat.state == State::Active {
            self.lost.push(Lost { worker, why: why.clone() });
            self.epoch += 1;
            self.lost.sort_by_key(|lost| lost.worker);
            self.without(worker);
        }
        self.say(Notice::Lost(Lost { worker, why }));
    }

    /// Looks who is late, lost or waiting, and closes a meeting that is complete.
    fn look(&mut self, now: Duration) {
        let Settings { silence, grace, stall, .. } = self.settings;
        let (opens, mut gone) = (self.begins_round(), Vec::new());
        for (worker, seat) in &self.seats {
            let founds = self.truth.is_none() && *worker < self.settings.founders;
            let waited = self.meeting.waits_for(*worker, seat, opens, founds);
            let idle = waited.map(|since| now.saturating_sub(since.max(seat.moved)));
            if seat.closed.is_some_and(|closed| now.saturating_sub(closed) >= grace) {
                gone.push((*worker, Why::Disconnected));
            } else if seat.session.is_some() && now.saturating_sub(seat.seen) >= silence {
                gone.push((*worker, Why::Stalled { after: silence }));
            } else if idle.is_some_and(|idle| idle >= stall) {
                gone.push((*worker, Why::Stalled { after: stall }));
            }
        }
        gone.into_iter().for_each(|(worker, why)| self.lose(worker, why));
        if self.active().next().is_none() && !self.is_open() {
            // All who were in the round are gone: what it was to be is not known to anyone.
            if let Some(truth) = self.truth {
                self.go_on_from(truth);
                self.place_all();
            }
        }
        if !self.is_open() {
            self.settle(false);
        }
        self.catch_up();
        self.succeed(now);
        self.close(now);
    }

    /// Whether this one has come to the next meeting.
    pub fn has_come(&self, worker: u32) -> bool {
        self.meeting.arrived.contains_key(&worker)
    }

    /// Whom those wait for who have come to the next meeting.
    pub fn awaited(&self) -> Vec<u32> {
        if let Some(moving) = &self.meeting.moving {
            let members = moving.members.iter().map(|peer| peer.worker);
            return members.filter(|worker| !moving.done.contains_key(worker)).collect();
        }
        if self.meeting.arrived.is_empty() {
            return Vec::new();
        }
        self.active().map(|(worker, _)| worker).filter(|worker| !self.has_come(*worker)).collect()
    }

    /// What the next meeting waits for, in words.
    pub fn reason(&self, now: Duration) -> String {
        let list = |workers: Vec<u32>| workers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let came = self.meeting.arrived.len();
        match (&self.meeting.moving, self.meeting.began) {
            (Some(_), _) => {
                let what = if self.meeting.call() == Some(Call::Gather) { "words" } else { "vectors" };
                format!("meeting {}: {what} are moving; not done: workers {}", self.op, list(self.awaited()))
            }
            (None, _) if self.truth.is_none() => {
                format!("{came} of {} workers have come to the first meeting", self.settings.founders)
            }
            (None, None) => "local steps".into(),
            (None, Some(began)) => {
                let call = self.meeting.call().map_or("nothing", Call::name);
                let waited = now.saturating_sub(began).as_secs_f64();
                format!(
                    "meeting {} ({call}): {came} have come, waiting for workers {} for {waited:.1} s",
                    self.op,
                    list(self.awaited())
                )
            }
        }
    }
}

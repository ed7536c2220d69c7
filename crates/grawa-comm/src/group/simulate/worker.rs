//! A small worker for the simulation: it trains a tiny vector, meets, mixes, and takes over what others hold, on the real
//! protocol. It keeps a ledger of whose steps were counted, as part of what all must agree on.

use super::super::message::{Call, Down, End, Up};
use super::super::{Deed, Member, Peer, Stand, Tag, digest, words};
use super::faults::SETTLED;
use crate::cut;
use grawa_core::{Layout, Memory, Method, Plan, Report, centre_part, plan, pull_part};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub(super) const LENGTH: usize = 40;
/// Local steps a cycle.
pub(super) const PERIOD: u64 = 4;

/// What all members remember beside the centre.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Remembered {
    pub(super) rounds: u64,
    memory: Memory,
    /// Steps counted so far, by the token of who took them.
    pub(super) ledger: BTreeMap<u64, u64>,
}

/// What a member holds where it stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Held {
    pub(super) stand: Stand,
    remembered: Vec<u8>,
    centre: Vec<f32>,
}

/// What a worker says at a meeting.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Word {
    token: u64,
    /// Its steps that were counted before, and all it has taken.
    counted: u64,
    taken: u64,
    score: f64,
}

/// Something on its way between workers: of which move, and from whom.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) of: Tag,
    pub(super) from: u32,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    Word(Vec<u8>),
    /// A share of a summand, or of the sum.
    Summand(Vec<f32>),
    Sum(Vec<f32>),
}

/// What all who took part in an exchange of words must hold: which it was, who spoke, and what each said.
pub(super) type Spoken = (Tag, Vec<(u32, Vec<u8>)>);

/// What the worker wants from its world.
#[derive(Debug)]
pub(super) enum Wish {
    Say(Up),
    /// Take the next local step.
    Step,
    Send {
        to: Peer,
        piece: Piece,
    },
    /// If nothing has come of this move by then, complain.
    Watch {
        of: Tag,
    },
    Fetch {
        donor: Peer,
        stand: Stand,
    },
    /// It was turned away and ends.
    End,
}

#[derive(Debug)]
enum Phase {
    Joining,
    Steps {
        left: u64,
    },
    Word(Vec<u8>),
    Mix {
        plan: Box<Plan>,
        reports: Vec<Report>,
    },
    /// Like an evaluation: a second exchange of words inside a round.
    Extra(Vec<u8>),
    Taking(Stand),
}

#[derive(Debug, Default)]
struct Moving {
    of: Tag,
    words: BTreeMap<u32, Vec<u8>>,
    summands: BTreeMap<u32, Vec<f32>>,
    sums: BTreeMap<u32, Vec<f32>>,
    result: Option<Vec<f32>>,
    is_done: bool,
}

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) token: u64,
    pub(super) member: Member,
    method: Method,
    layout: Layout,
    x: Vec<f32>,
    centre: Vec<f32>,
    pub(super) remembered: Remembered,
    pub(super) taken: u64,
    phase: Phase,
    pub(super) held: Option<Held>,
    moving: Option<Moving>,
    early: Vec<Piece>,
    /// Rounds it took part in, and when the last one was.
    pub(super) took_part: u64,
    pub(super) last_round: Duration,
    /// The longest from one to the next when all should have settled.
    longest: Duration,
    /// What its clock shows.
    now: Duration,
    /// What was exchanged, for the world to compare.
    pub(super) spoken: Vec<Spoken>,
    pub(super) last_spoken: Option<Spoken>,
    /// What must never happen.
    pub(super) broken: Option<String>,
}

impl Worker {
    pub(super) fn new(token: u64, method: &Method) -> Self {
        Worker {
            token,
            member: Member::new(token, token.to_string()),
            method: method.clone(),
            layout: Layout::new([("a", vec![17]), ("b", vec![LENGTH - 17])]).unwrap(),
            x: vec![1.0; LENGTH],
            centre: vec![1.0; LENGTH],
            remembered: Remembered::default(),
            taken: 0,
            phase: Phase::Joining,
            held: None,
            moving: None,
            early: Vec::new(),
            took_part: 0,
            last_round: Duration::ZERO,
            longest: Duration::ZERO,
            now: Duration::ZERO,
            spoken: Vec::new(),
            last_spoken: None,
            broken: None,
        }
    }

    /// Its clock goes on.
    pub(super) fn at(&mut self, now: Duration) -> &mut Self {
        self.now = now;
        self
    }

    /// For how long it has been in no round when all should have settled.
    fn without_round(&self) -> Duration {
        self.now.saturating_sub(self.last_round.max(SETTLED))
    }

    /// The longest it ever was, then.
    pub(super) fn longest_wait(&self) -> Duration {
        self.longest.max(self.without_round())
    }

    pub(super) fn hear(&mut self, down: Down) -> Vec<Wish> {
        let (ups, deed) = self.member.hear(down);
        let mut wishes: Vec<Wish> = ups.into_iter().map(Wish::Say).collect();
        if let Some(deed) = deed {
            self.act(deed, &mut wishes);
        }
        wishes
    }

    fn act(&mut self, deed: Deed, wishes: &mut Vec<Wish>) {
        match deed {
            Deed::Known { charter, .. } => {
                if charter.is_some() && self.held.is_none() {
                    self.held = Some(self.holding(0));
                    let stand = self.held.as_ref().map(|held| held.stand).unwrap();
                    wishes.extend(self.member.enter(stand).map(Wish::Say));
                }
            }
            Deed::Ready => {
                if matches!(self.phase, Phase::Joining) {
                    self.start_cycle(wishes);
                }
            }
            Deed::Met { .. } => self.again(wishes),
            Deed::Move { epoch, op, attempt, .. } => self.start_moving((epoch, op, attempt), wishes),
            Deed::Closed(End::Commit { .. }) => self.commit(wishes),
            Deed::Closed(End::Shrunk { .. }) => self.again(wishes),
            Deed::Closed(End::OutOfStep { calls }) => self.broken = Some(format!("out of step: {calls:?}")),
            Deed::Take { donor, stand } => {
                self.moving = None;
                self.phase = Phase::Taking(stand);
                wishes.push(Wish::Fetch { donor, stand });
            }
            Deed::Back => {
                let held = self.held.clone().unwrap();
                self.adopt(held, wishes);
            }
            Deed::Refused { .. } => wishes.push(Wish::End),
        }
    }

    fn holding(&self, op: u64) -> Held {
        let remembered = postcard::to_stdvec(&self.remembered).unwrap();
        let digest = digest::state(&remembered, digest::vector(&self.centre));
        Held { stand: Stand { op, digest }, remembered, centre: self.centre.clone() }
    }

    fn start_cycle(&mut self, wishes: &mut Vec<Wish>) {
        self.phase = Phase::Steps { left: PERIOD };
        wishes.push(Wish::Step);
    }

    /// A local step has been taken.
    pub(super) fn step(&mut self, free: bool) -> Vec<Wish> {
        let mut wishes = Vec::new();
        let Phase::Steps { left } = &mut self.phase else { return wishes };
        self.taken += 1;
        *left = left.saturating_sub(1);
        let (step, token) = (self.taken as f32, (self.token % 97) as f32);
        for (x, n) in self.x.iter_mut().zip(0u8..) {
            *x = 0.9 * *x + 0.1 * (step * 0.3 + token + f32::from(n)).sin();
        }
        // Who has lost contact goes on training.
        let enough = if free { self.member.is_called() } else { *left == 0 };
        if enough && self.member.is_in_contact() {
            self.come_with_word(&mut wishes);
        } else {
            wishes.push(Wish::Step);
        }
        wishes
    }

    /// Steps it took that no round has counted yet.
    pub(super) fn since_counted(&self) -> u64 {
        self.taken - self.counted()
    }

    fn counted(&self) -> u64 {
        self.remembered.ledger.get(&self.token).copied().unwrap_or(0)
    }

    fn come_with_word(&mut self, wishes: &mut Vec<Wish>) {
        let score = 1.0 + f64::from(self.x[0].abs());
        let word = Word { token: self.token, counted: self.counted(), taken: self.taken, score };
        self.phase = Phase::Word(postcard::to_stdvec(&word).unwrap());
        self.come(Call::Gather, self.taken - word.counted, wishes);
    }

    fn come(&mut self, call: Call, steps: u64, wishes: &mut Vec<Wish>) {
        let (up, deed) = self.member.come(call, steps);
        wishes.extend(up.map(Wish::Say));
        if let Some(deed) = deed {
            self.act(deed, wishes);
        }
    }

    fn heard_words(&mut self, messages: &BTreeMap<u32, Vec<u8>>, wishes: &mut Vec<Wish>) {
        let mut reports = Vec::new();
        for peer in self.member.members() {
            let word: Word = postcard::from_bytes(&messages[&peer.worker]).unwrap();
            let counted = self.remembered.ledger.entry(word.token).or_default();
            if word.token != peer.token || *counted != word.counted || word.taken < *counted {
                let found = format!("{word:?} of {peer:?}, of whom {counted} steps were counted");
                self.broken = Some(found);
            }
            *counted = word.taken;
            let scores = vec![word.score; self.method.scores(self.layout.spans().len())];
            reports.push(Report { worker: peer.worker, scores, finite: true, steps: PERIOD });
        }
        self.remembered.rounds += 1;
        self.took_part += 1;
        self.longest = self.longest.max(self.without_round());
        self.last_round = self.now;
        self.mix(reports, wishes);
    }

    fn mix(&mut self, reports: Vec<Report>, wishes: &mut Vec<Wish>) {
        let plan = plan(&self.method, &self.layout, &self.remembered.memory, &reports).unwrap();
        for row in plan.weights.rows() {
            let sum: f32 = row.iter().sum();
            if (sum - 1.0).abs() > 1e-5 {
                self.broken = Some(format!("weights {row:?} sum to {sum}"));
            }
        }
        let digest = plan.digest();
        self.phase = Phase::Mix { plan: Box::new(plan), reports };
        self.come(Call::Mix { plan: digest, centre: 0 }, 0, wishes);
    }

    /// Nothing came of it: those who are left say the same again, or plan anew.
    fn again(&mut self, wishes: &mut Vec<Wish>) {
        self.moving = None;
        let reports = match &self.phase {
            Phase::Word(_) => return self.come(Call::Gather, self.since_counted(), wishes),
            Phase::Extra(_) => return self.come(Call::Gather, 0, wishes),
            Phase::Mix { reports, .. } => reports,
            _ => return,
        };
        let here: BTreeSet<u32> = self.member.members().iter().map(|peer| peer.worker).collect();
        let reports = reports.iter().filter(|report| here.contains(&report.worker)).cloned().collect();
        self.mix(reports, wishes);
    }

    fn start_moving(&mut self, of: Tag, wishes: &mut Vec<Wish>) {
        self.moving = Some(Moving { of, ..Moving::default() });
        let members = self.member.members().to_vec();
        let me = self.member.worker().unwrap();
        for (seat, peer) in members.iter().enumerate() {
            let what = match &self.phase {
                Phase::Word(word) | Phase::Extra(word) => What::Word(word.clone()),
                _ => What::Summand(self.x[cut::share(&(0..LENGTH), seat, members.len())].to_vec()),
            };
            wishes.push(Wish::Send { to: peer.clone(), piece: Piece { of, from: me, what } });
        }
        wishes.push(Wish::Watch { of });
        for piece in std::mem::take(&mut self.early) {
            wishes.extend(self.receive(piece));
        }
    }

    /// It is done.
    fn done(&mut self, of: Tag, digest: u64, wishes: &mut Vec<Wish>) {
        wishes.extend(self.member.done(of, digest).map(Wish::Say));
    }

    pub(super) fn receive(&mut self, piece: Piece) -> Vec<Wish> {
        let mut wishes = Vec::new();
        let members = self.member.members().to_vec();
        let me = self.member.worker().unwrap_or(u32::MAX);
        let Some(moving) = self.moving.as_mut().filter(|moving| moving.of == piece.of) else {
            if piece.of.1 >= self.member.op() {
                self.early.push(piece);
            }
            return wishes;
        };
        let (of, before) = (moving.of, (moving.summands.len(), moving.sums.len()));
        match piece.what {
            What::Word(word) => {
                moving.words.insert(piece.from, word);
                if moving.words.len() == members.len() && !std::mem::replace(&mut moving.is_done, true) {
                    let spoken: Vec<Vec<u8>> = moving.words.values().cloned().collect();
                    self.done(of, words::digest(&spoken).into(), &mut wishes);
                }
                return wishes;
            }
            What::Summand(values) => moving.summands.insert(piece.from, values),
            What::Sum(values) => moving.sums.insert(piece.from, values),
        };
        let (Phase::Mix { plan, .. }, Some(seat)) =
            (&self.phase, members.iter().position(|peer| peer.worker == me))
        else {
            return wishes;
        };
        if moving.summands.len() == members.len() && before.0 < members.len() {
            let share = cut::share(&(0..LENGTH), seat, members.len());
            let mut sum = self.centre[share.clone()].to_vec();
            let summands: Vec<&[f32]> = moving.summands.values().map(Vec::as_slice).collect();
            centre_part(plan, &self.layout, share.start, &summands, &mut sum).unwrap();
            for peer in &members {
                let piece = Piece { of, from: me, what: What::Sum(sum.clone()) };
                wishes.push(Wish::Send { to: peer.clone(), piece });
            }
        }
        if moving.sums.len() == members.len() && before.1 < members.len() {
            let result: Vec<f32> = moving.sums.values().flatten().copied().collect();
            let digest = u64::from(digest::vector(&result));
            (moving.result, moving.is_done) = (Some(result), true);
            self.done(of, digest, &mut wishes);
        }
        wishes
    }

    /// The watch over a move, or a failed attempt to send.
    pub(super) fn complain(&mut self, of: Tag, of_whom: Option<u32>) -> Vec<Wish> {
        let Some(moving) = self.moving.as_ref().filter(|it| it.of == of && !it.is_done) else {
            return Vec::new();
        };
        let missing = |peer: &&Peer| match &self.phase {
            Phase::Mix { .. } => {
                !(moving.summands.contains_key(&peer.worker) && moving.sums.contains_key(&peer.worker))
            }
            _ => !moving.words.contains_key(&peer.worker),
        };
        let first = self.member.members().iter().find(missing).map(|peer| peer.worker);
        let Some(peer) = of_whom.or(first) else { return Vec::new() };
        self.member.broken(of, peer, "simulated".into()).map(Wish::Say).into_iter().collect()
    }

    fn commit(&mut self, wishes: &mut Vec<Wish>) {
        let Some(moving) = self.moving.take().filter(|moving| moving.is_done) else {
            self.broken = Some("a meeting was committed that this member is not done with".into());
            return;
        };
        self.early.retain(|piece| piece.of.1 >= self.member.op());
        if let Phase::Word(_) | Phase::Extra(_) = self.phase {
            let spoken: Spoken = (moving.of, moving.words.clone().into_iter().collect());
            self.last_spoken = Some(spoken.clone());
            self.spoken.push(spoken);
            return match self.phase {
                Phase::Word(_) => self.heard_words(&moving.words, wishes),
                _ => self.publish(wishes),
            };
        }
        let (Phase::Mix { plan, .. }, Some(result)) = (&self.phase, moving.result) else { return };
        let before = std::mem::replace(&mut self.centre, result);
        let seat = plan.workers.iter().position(|&worker| Some(worker) == self.member.worker()).unwrap();
        pull_part(plan, seat, &mut self.x, &before, &self.centre);
        self.remembered.memory = plan.memory.clone();
        if self.remembered.rounds % 3 == 1 {
            // Of different lengths.
            self.phase = Phase::Extra(vec![1; (self.token % 7) as usize]);
            self.come(Call::Gather, 0, wishes);
        } else {
            self.publish(wishes);
        }
    }

    fn publish(&mut self, wishes: &mut Vec<Wish>) {
        let held = self.holding(self.member.op());
        wishes.extend(self.member.stands(held.stand.digest).map(Wish::Say));
        self.held = Some(held);
        self.start_cycle(wishes);
    }

    /// What it holds at its last stand, for one who asks.
    pub(super) fn give(&self, stand: Stand) -> Option<Held> {
        self.held.clone().filter(|held| held.stand == stand)
    }

    /// The donor's answer.
    pub(super) fn take(&mut self, stand: Stand, donor: u32, held: Option<Held>) -> Vec<Wish> {
        let mut wishes = Vec::new();
        if !matches!(self.phase, Phase::Taking(wanted) if wanted == stand) {
            return wishes;
        }
        match held {
            Some(held) => {
                let found = digest::state(&held.remembered, digest::vector(&held.centre));
                assert_eq!(found, stand.digest, "the simulated network does not change bits");
                wishes.extend(self.member.took(stand).map(Wish::Say));
                self.adopt(held, &mut wishes);
            }
            None => wishes.extend(self.member.not_taken(donor).map(Wish::Say)),
        }
        wishes
    }

    /// From here on it stands where the others do, and comes at once. Only a newcomer takes over the centre as its own.
    fn adopt(&mut self, held: Held, wishes: &mut Vec<Wish>) {
        self.moving = None;
        self.remembered = postcard::from_bytes(&held.remembered).unwrap();
        self.centre = held.centre.clone();
        if self.taken == 0 {
            self.x = held.centre.clone();
        }
        self.held = Some(held);
        self.come_with_word(wishes);
    }
}

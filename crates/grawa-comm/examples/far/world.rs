//! A cluster in simulated time. Members and coordinator are the real ones; their messages take the time of their bytes on the
//! coordinator's link, and vectors that of the exchange's own schedule. What workers compute is time alone.

use grawa_comm::group::forecast::{Cost, Link, exchange, words};
use grawa_comm::group::message::{Call, Down, End, Peer, Stand, Up, encode};
use grawa_comm::group::{Action, Coordinator, Deed, Event, Member, OWN, Record, Settings, frame};
use grawa_core::{Key, Purpose, Stream};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::time::Duration;

/// A group and the network it is on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cluster {
    pub(crate) link: Link,
    pub(crate) workers: u32,
    pub(crate) floats: usize,
    /// Bytes a worker says at a meeting.
    pub(crate) word: usize,
    pub(crate) steps: u64,
    /// Seconds of a cycle's local steps, and of the score after it.
    pub(crate) cycle: f64,
    pub(crate) score: f64,
    /// Whether one worker is all of the centre.
    pub(crate) one_leads: bool,
    /// How much a cycle's time varies.
    pub(crate) spread: f64,
    /// A minute.
    pub(crate) deaths: f64,
    pub(crate) seconds: f64,
}

/// How long a dead worker is missing.
const REPLACED: f64 = 10.0;
/// Rounds after which nothing new is learnt, if nobody dies.
const ENOUGH: u64 = 50;
/// How long members that meet of their own accord wait for one who is late.
const LATE: f64 = 0.5;

/// What was seen after the first round.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) rounds: u64,
    pub(crate) seconds: f64,
    /// Bytes of words and vectors sent, by all, and how often a worker took part in a round.
    vectors: u64,
    parts: u64,
    /// Seconds of moving vectors, and of local steps and scores of all workers, while they were there for so many seconds.
    moving: f64,
    training: f64,
    living: f64,
    /// Control: bytes of signs of life and of all else, and messages, both ways.
    signs: u64,
    meetings: u64,
    messages: u64,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounds = self.rounds.max(1) as f64;
        let bytes = self.vectors as f64 / self.parts.max(1) as f64;
        let an_hour = self.rounds as f64 / self.seconds * 3600.0;
        write!(
            f,
            "{:.2} | {:.3} | {an_hour:.0} | {:.1} | {:.1} | {:.0} | {:.0} | {:.0} | {:.2}",
            bytes / 1e6,
            self.moving / rounds,
            self.vectors as f64 / self.living * 3600.0 / 1e9,
            100.0 * self.training / self.living,
            self.signs as f64 / self.living,
            self.meetings as f64 / self.living,
            self.messages as f64 / self.seconds,
            (self.signs + self.meetings) as f64 / self.seconds / 1e6,
        )
    }
}

#[derive(Debug)]
enum Happening {
    Up {
        session: u64,
        up: Up,
    },
    Down {
        session: u64,
        down: Down,
    },
    Ended {
        session: u64,
    },
    Tick,
    Beat {
        node: usize,
    },
    Dial {
        node: usize,
    },
    /// Local steps are over.
    Cycle {
        node: usize,
    },
    Moved {
        node: usize,
        tag: Tag,
    },
    /// Of their own accord: all have vowed that they are done.
    Vowed {
        node: usize,
        tag: Tag,
    },
    /// Of their own accord: whoever has not come to the exchange of words by now is late.
    Late {
        node: usize,
        tag: Tag,
    },
    /// It finds that it cannot exchange with another.
    Broken {
        node: usize,
        tag: Tag,
        peer: u32,
    },
    Fetched {
        node: usize,
        donor: u32,
        stand: Stand,
        held: bool,
    },
    Death,
    Birth,
}

type Tag = (u64, u64, u32);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Joining,
    Steps,
    Gather,
    Mix,
    Taking,
    Dead,
}

#[derive(Debug)]
struct Node {
    member: Member,
    token: u64,
    session: Option<u64>,
    phase: Phase,
    held: Option<Stand>,
    steps: u64,
    born: f64,
    /// When its cycle began.
    began: f64,
    /// A move it could not carry out.
    gave_up: Option<Tag>,
    /// It has no connections to the others yet, or gave them up.
    must_dial: bool,
}

impl Node {
    /// Whether it exchanges words or vectors with others.
    fn is_moving(&self) -> bool {
        matches!(self.phase, Phase::Gather | Phase::Mix)
    }
}

/// Words or vectors on the move: who has begun.
#[derive(Debug, Default)]
struct Moving {
    begun: Vec<usize>,
    began: f64,
    is_under_way: bool,
}

pub(crate) struct World {
    cluster: Cluster,
    now: f64,
    order: u64,
    queue: BTreeMap<(u64, u64), Happening>,
    draws: Stream,
    coordinator: Coordinator,
    nodes: Vec<Node>,
    /// The node of every connection, by number.
    sessions: Vec<usize>,
    by_token: HashMap<u64, usize>,
    /// Until when the coordinator's link is busy, down and up.
    busy: [f64; 2],
    moving: BTreeMap<Tag, Moving>,
    /// By the number of members, and whether it is vectors.
    costs: HashMap<(usize, bool), Cost>,
    truth: Option<Stand>,
    told: BTreeSet<u64>,
    since: f64,
    seen: Seen,
}

fn digest(op: u64) -> u64 {
    op.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

impl World {
    pub(crate) fn new(cluster: Cluster) -> Self {
        let settings = Settings { founders: cluster.workers, ..Settings::default() };
        let mut world = World {
            cluster,
            now: 0.0,
            order: 0,
            queue: BTreeMap::new(),
            draws: Key::new(7, Purpose::Problem).stream(),
            coordinator: Coordinator::new(settings, 7, vec![0; 2000], &[]),
            nodes: Vec::new(),
            sessions: Vec::new(),
            by_token: HashMap::new(),
            busy: [0.0; 2],
            moving: BTreeMap::new(),
            costs: HashMap::new(),
            truth: None,
            told: BTreeSet::new(),
            since: 0.0,
            seen: Seen::default(),
        };
        (0..cluster.workers).for_each(|_| world.add());
        world.put(0.0, Happening::Tick);
        if cluster.deaths > 0.0 {
            world.put(60.0 / cluster.deaths, Happening::Death);
        }
        world
    }

    fn add(&mut self) {
        let (node, token) = (self.nodes.len(), 1 + self.nodes.len() as u64);
        // Addresses are of the usual length.
        let member = Member::new(token, format!("10.1.{}.{}:40000", node / 250, node % 250));
        self.nodes.push(Node {
            member,
            token,
            session: None,
            phase: Phase::Joining,
            held: None,
            steps: 0,
            born: self.now,
            began: self.now,
            gave_up: None,
            must_dial: true,
        });
        self.by_token.insert(token, node);
        let soon = self.draws.below(500) as f64 / 1e3;
        self.put(soon, Happening::Dial { node });
    }

    fn put(&mut self, after: f64, happening: Happening) {
        self.order += 1;
        // Times are not negative: their bits are in their order.
        self.queue.insert(((self.now + after).to_bits(), self.order), happening);
    }

    pub(crate) fn run(mut self) -> Seen {
        while let Some(((at, _), happening)) = self.queue.pop_first() {
            self.now = f64::from_bits(at);
            let is_enough = self.cluster.deaths == 0.0 && self.seen.rounds >= ENOUGH;
            if self.now - self.since > self.cluster.seconds || is_enough {
                break;
            }
            self.happen(happening);
        }
        for node in 0..self.nodes.len() {
            self.bury(node);
        }
        self.seen.seconds = self.now - self.since;
        self.seen
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Tick => {
                self.coordinate(Event::Tick);
                self.put(0.05, Happening::Tick);
            }
            Happening::Up { session, up } => self.coordinate(Event::Heard { session, up }),
            Happening::Ended { session } => self.coordinate(Event::Ended { session }),
            Happening::Dial { node } => {
                let session = self.sessions.len() as u64;
                self.sessions.push(node);
                self.nodes[node].session = Some(session);
                let hello = self.nodes[node].member.connected();
                self.say(node, Some(hello));
                self.put(0.5, Happening::Beat { node });
            }
            Happening::Down { session, down } => {
                let node = self.sessions[session as usize];
                if self.nodes[node].session != Some(session) {
                    return;
                }
                let (ups, deed) = self.nodes[node].member.hear(down);
                ups.into_iter().for_each(|up| self.say(node, Some(up)));
                if let Some(deed) = deed {
                    self.act(node, deed);
                }
            }
            Happening::Beat { node } => {
                let it = &mut self.nodes[node];
                if it.phase != Phase::Dead {
                    let beat = it.member.beat(self.cluster.steps, it.steps);
                    self.say(node, beat);
                    self.put(0.5, Happening::Beat { node });
                }
            }
            Happening::Cycle { node } => {
                if self.nodes[node].phase == Phase::Steps {
                    self.seen.training += self.now - self.nodes[node].began.max(self.since);
                    self.nodes[node].steps += self.cluster.steps;
                    self.come(node, Phase::Gather, self.cluster.steps);
                }
            }
            Happening::Moved { node, tag } => {
                self.moving.remove(&tag);
                if self.nodes[node].is_moving() && self.nodes[node].gave_up != Some(tag) {
                    let up = self.nodes[node].member.done(tag, digest(tag.1));
                    self.say(node, up);
                    if let Some(vow) = self.nodes[node].member.vow(tag) {
                        let Cluster { link, .. } = self.cluster;
                        let members = self.nodes[node].member.members().len();
                        let cost = words(members, vow.len(), link);
                        self.seen.vectors += cost.bytes[0];
                        self.put(cost.seconds, Happening::Vowed { node, tag });
                    }
                }
            }
            Happening::Vowed { node, tag } => {
                let is_dead = |peer: &Peer| self.nodes[self.by_token[&peer.token]].phase == Phase::Dead;
                let dead = self.nodes[node].member.members().iter().find(|peer| is_dead(peer));
                if let Some(peer) = dead.map(|peer| peer.worker) {
                    return self.happen(Happening::Broken { node, tag, peer });
                }
                let Some(vow) = self.nodes[node].member.vow(tag) else { return };
                let (up, deed) = self.nodes[node].member.agree(tag, &[vow]);
                self.say(node, up);
                if let Some(deed) = deed {
                    self.act(node, deed);
                }
            }
            Happening::Late { node, tag } => {
                if self.moving.get(&tag).is_some_and(|moving| !moving.is_under_way) {
                    let peer = self.nodes[node].member.worker().unwrap_or(u32::MAX);
                    self.happen(Happening::Broken { node, tag, peer });
                }
            }
            Happening::Broken { node, tag, peer } => {
                if self.nodes[node].is_moving() {
                    (self.nodes[node].must_dial, self.nodes[node].gave_up) = (true, Some(tag));
                    let up = self.nodes[node].member.broken(tag, peer, "connection reset".into());
                    self.say(node, up);
                }
            }
            Happening::Fetched { node, donor, stand, held } => {
                if self.nodes[node].phase != Phase::Taking {
                    return;
                }
                if held {
                    let up = self.nodes[node].member.took(stand);
                    self.say(node, up);
                    self.nodes[node].held = Some(stand);
                    self.nodes[node].must_dial = true;
                    self.come(node, Phase::Gather, 0);
                } else {
                    let up = self.nodes[node].member.not_taken(donor);
                    self.say(node, up);
                }
            }
            Happening::Death => self.die(),
            Happening::Birth => self.add(),
        }
    }

    /// A worker's process is killed: its machine ends its connections.
    fn die(&mut self) {
        let alive: Vec<usize> =
            (0..self.nodes.len()).filter(|&node| self.nodes[node].phase != Phase::Dead).collect();
        let Some(&node) = alive.get(self.draws.below(alive.len().max(1) as u64) as usize) else { return };
        let latency = self.cluster.link.latency;
        self.bury(node);
        if let Some(session) = self.nodes[node].session.take() {
            self.put(latency, Happening::Ended { session });
        }
        let tags: Vec<Tag> = self.moving.keys().copied().collect();
        tags.into_iter().for_each(|tag| self.breaks(tag, node));
        self.put(REPLACED, Happening::Birth);
        self.put(60.0 / self.cluster.deaths, Happening::Death);
    }

    fn bury(&mut self, node: usize) {
        let it = &mut self.nodes[node];
        if it.phase == Phase::Dead {
            return;
        }
        if it.phase == Phase::Steps {
            self.seen.training += self.now - it.began.max(self.since);
        }
        self.seen.living += self.now - it.born.max(self.since);
        it.phase = Phase::Dead;
    }

    /// Those who exchange with one that is dead find its connections closed.
    fn breaks(&mut self, tag: Tag, dead: usize) {
        let Some(moving) = self.moving.get(&tag) else { return };
        let peer = self.nodes[dead].member.worker().unwrap_or(u32::MAX);
        let members: Vec<usize> = moving.begun.iter().copied().filter(|&node| node != dead).collect();
        let is_member = |node: &usize| {
            self.nodes[*node].member.members().iter().any(|member| member.token == self.nodes[dead].token)
        };
        if members.first().is_some_and(is_member) {
            self.moving.remove(&tag);
            let latency = self.cluster.link.latency;
            members
                .into_iter()
                .for_each(|node| self.put(2.0 * latency, Happening::Broken { node, tag, peer }));
        }
    }

    fn act(&mut self, node: usize, deed: Deed) {
        match deed {
            Deed::Known { charter, .. } => {
                if charter.is_some() && self.nodes[node].held.is_none() {
                    let stand = Stand { op: 0, digest: digest(0) };
                    self.nodes[node].held = Some(stand);
                    let up = self.nodes[node].member.enter(stand);
                    self.say(node, up);
                }
            }
            Deed::Ready => {
                if self.nodes[node].phase == Phase::Joining {
                    self.start(node);
                }
            }
            Deed::Met { .. } => self.come(node, Phase::Mix, 0),
            // Those who are left say the same again, or plan anew.
            Deed::Closed(End::Shrunk { .. }) => self.come(node, self.nodes[node].phase, 0),
            Deed::Move { epoch, op, attempt, anew, .. } => {
                self.nodes[node].must_dial |= anew;
                let tag = (epoch, op, attempt);
                if attempt == OWN && self.nodes[node].phase == Phase::Gather {
                    self.put(LATE, Happening::Late { node, tag });
                }
                self.begin(node, tag);
            }
            Deed::Closed(End::Commit { .. }) if self.nodes[node].phase == Phase::Gather => {
                self.come(node, Phase::Mix, 0);
            }
            Deed::Closed(End::Commit { .. }) => {
                let op = self.nodes[node].member.op();
                let up = self.nodes[node].member.stands(digest(op));
                self.say(node, up);
                self.nodes[node].held = self.nodes[node].member.stand();
                self.note(Stand { op, digest: digest(op) });
                self.seen.parts += 1;
                self.start(node);
            }
            Deed::Closed(End::OutOfStep { calls }) => panic!("out of step: {calls:?}"),
            Deed::Take { donor, stand } => {
                self.nodes[node].phase = Phase::Taking;
                let giver = self.by_token.get(&donor.token).copied();
                let giver = giver.filter(|&giver| self.nodes[giver].phase != Phase::Dead);
                let held = giver.is_some_and(|giver| self.nodes[giver].held == Some(stand));
                let Link { rate, latency } = self.cluster.link;
                let takes = if held { 4.0 * self.cluster.floats as f64 / rate } else { 0.0 };
                // A connection, encrypted, costs two ways there and back.
                let happening = Happening::Fetched { node, donor: donor.worker, stand, held };
                self.put(6.0 * latency + takes, happening);
            }
            Deed::Back => self.come(node, Phase::Gather, 0),
            Deed::Refused { why } => panic!("worker {node} was refused: {why}"),
        }
    }

    fn start(&mut self, node: usize) {
        let Cluster { cycle, score, spread, .. } = self.cluster;
        self.nodes[node].phase = Phase::Steps;
        self.nodes[node].began = self.now;
        let varies = 1.0 + spread * (self.draws.below(2001) as f64 / 1000.0 - 1.0);
        self.put((cycle + score) * varies, Happening::Cycle { node });
    }

    fn come(&mut self, node: usize, phase: Phase, steps: u64) {
        self.nodes[node].phase = phase;
        let members = self.nodes[node].member.members();
        let call = match phase {
            // All plan alike: who is there is what a plan follows from here.
            Phase::Mix => {
                let plan =
                    members.iter().fold(0, |plan: u64, peer| plan.wrapping_mul(31).wrapping_add(peer.token));
                Call::Mix { plan, centre: 0 }
            }
            _ => Call::Gather,
        };
        let (up, deed) = self.nodes[node].member.come(call, steps);
        self.say(node, up);
        if let Some(deed) = deed {
            self.act(node, deed);
        }
    }

    /// Words and vectors move from when the last one has begun; the others wait for it.
    fn begin(&mut self, node: usize, tag: Tag) {
        let members: Vec<Peer> = self.nodes[node].member.members().to_vec();
        let at = |peer: &Peer| self.by_token[&peer.token];
        let dead = members.iter().map(at).find(|&other| self.nodes[other].phase == Phase::Dead);
        let moving = self.moving.entry(tag).or_default();
        moving.begun.push(node);
        if moving.begun.len() == 1 {
            moving.began = self.now;
        }
        if let Some(dead) = dead {
            return self.breaks(tag, dead);
        }
        if moving.begun.len() < members.len() || std::mem::replace(&mut moving.is_under_way, true) {
            return;
        }
        let began = moving.began;
        let Cluster { link, one_leads, floats, word, .. } = self.cluster;
        let is_mix = self.nodes[node].phase == Phase::Mix;
        let cost = self.costs.entry((members.len(), is_mix)).or_insert_with(|| {
            let adds: Vec<bool> = (0..members.len()).map(|seat| !one_leads || seat == 0).collect();
            if is_mix { exchange(&adds, floats, link) } else { words(members.len(), word, link) }
        });
        // One that must connect to all does so one after the other: two ways there and back each, encrypted.
        let dials = |peer: &Peer| self.nodes[self.by_token[&peer.token]].must_dial;
        let connecting =
            if members.iter().any(dials) { 4.0 * link.latency * members.len() as f64 } else { 0.0 };
        let takes = connecting + cost.seconds;
        self.seen.vectors += cost.bytes.iter().sum::<u64>();
        if is_mix {
            self.seen.moving += self.now - began + takes;
        }
        for peer in &members {
            let node = self.by_token[&peer.token];
            self.nodes[node].must_dial = false;
            self.put(takes, Happening::Moved { node, tag });
        }
    }

    /// A message to the coordinator: through its link, one after the other.
    fn say(&mut self, node: usize, up: Option<Up>) {
        if let (Some(up), Some(session)) = (up, self.nodes[node].session) {
            let bytes = size(&up);
            let after = self.through(1, bytes, matches!(up, Up::Beat { .. }));
            self.put(after, Happening::Up { session, up });
        }
    }

    fn through(&mut self, way: usize, bytes: u64, is_sign: bool) -> f64 {
        let Link { rate, latency } = self.cluster.link;
        self.busy[way] = self.busy[way].max(self.now) + bytes as f64 / rate;
        if self.truth.is_some() {
            *(if is_sign { &mut self.seen.signs } else { &mut self.seen.meetings }) += bytes;
            self.seen.messages += 1;
        }
        self.busy[way] - self.now + latency
    }

    fn coordinate(&mut self, event: Event) {
        let actions = self.coordinator.on(event, Duration::from_secs_f64(self.now));
        // What many hear is measured once.
        let mut last: Option<(Down, u64)> = None;
        for action in actions {
            match action {
                Action::Send { session, down } => {
                    let known = last.as_ref().filter(|(before, _)| *before == down).map(|(_, bytes)| *bytes);
                    let bytes = known.unwrap_or_else(|| size(&down));
                    let after = self.through(0, bytes, down == Down::Beat);
                    if known.is_none() {
                        last = Some((down.clone(), bytes));
                    }
                    self.put(after, Happening::Down { session, down });
                }
                Action::Keep(Record { stand, .. }) => {
                    assert_eq!(stand.digest, digest(stand.op), "members hold what they should");
                }
                Action::End { .. } | Action::Tell { .. } | Action::Say(_) => {}
            }
        }
    }

    /// A round is over. What comes before the second stand is the start, and does not count.
    fn note(&mut self, stand: Stand) {
        // The first to come to its end is enough.
        if stand.op == 0 || !self.told.insert(stand.op) {
            return;
        }
        if self.truth.replace(stand).is_none() {
            self.since = self.now;
            self.seen = Seen::default();
            return;
        }
        self.seen.rounds += 1;
    }
}

/// Bytes of a message on the wire, without those of TCP: its frame, and 22 for every record of TLS.
fn size(message: &impl serde::Serialize) -> u64 {
    let frame = encode(message).expect("it can be written").len() + frame::HEAD;
    (frame + 22 * frame.div_ceil(1 << 14)) as u64
}

//! The coordinator, its members and what lies between them, as one value: which events may come next, and what each
//! does.
//!
//! [`Coordinator`] and [`Member`] are the real ones. Only the worker that calls operations is a model: it counts its
//! steps, and what it holds is the ledger of all steps that were counted. A transfer gives each member what all have
//! brought.

use crate::group::coordinator::roster::Session;
use crate::group::coordinator::{
    Action, Coordinator, Deadline, Input, MemberState, RoundWait, Settings, TokenBucket,
};
use crate::group::member::{Member, MemberAction};
use crate::group::messages::{AttemptId, Call, End, Entry, StateVersion, ToCoordinator, ToMember};
use crate::group::simulate::Mutation;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// How far a tick moves the clock: beyond the wait of a round, of a connection that ended, and of a retry.
const TICK: Duration = Duration::from_secs(2);
/// Two ticks: a silent member is lost, and a run whose states are gone continues.
const SILENCE: Duration = Duration::from_secs(3);
const RUN: u64 = 77;

pub(super) fn settings(founders: u32) -> Settings {
    Settings {
        founders,
        silence: SILENCE,
        stall: Duration::from_secs(1000),
        // Two equal bounds: how long it waits does not depend on past delays.
        round_wait: RoundWait { shortest: TICK, longest: TICK, spreads: 8.0, share: 0.0 },
        recovery_wait: SILENCE,
        ..Settings::default()
    }
}

/// What may happen next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Event {
    /// The coordinator receives the next message of this node.
    Deliver(usize),
    /// The node has trained, and begins a round.
    Begin(usize),
    /// It has received the state of its donor, or failed to.
    Fetch(usize),
    /// Its part of a transfer is done.
    Finish(usize),
    /// It could not exchange data with the member of this token.
    Fail(usize, u64),
    /// It learns that its connection is broken.
    End(usize),
    /// The coordinator learns that a connection has ended.
    Notice(Session),
    /// The node connects.
    Connect(usize),
    /// The node waits no longer for a coordinator that it cannot reach.
    Abandon(usize),
    /// The coordinator starts from its journal.
    Start,
    /// Time passes, and all that can send heartbeats.
    Tick,
    /// Faults: a node dies, and another process starts in its place.
    Crash(usize),
    /// Nothing passes on its connection any more.
    Break(usize),
    /// It leaves for good.
    Leave(usize),
    /// It has another result than the others.
    Forge(usize),
    /// It cannot reach a member that is well.
    Complain(usize, u64),
    /// It has the messages of all, and cannot read that of this member.
    Misread(usize, u64),
    /// The coordinator does nothing for a while.
    Pause,
    /// The coordinator dies.
    Die,
    /// The coordinator dies between its journal and its answers to this node's message.
    DieAtLog(usize),
}

impl Event {
    pub(super) fn is_fault(self) -> bool {
        use Event::{Break, Complain, Crash, Die, DieAtLog, Forge, Leave, Misread, Pause};
        let is_of_one =
            matches!(self, Crash(_) | Break(_) | Leave(_) | Forge(_) | Complain(..) | Misread(..));
        is_of_one || matches!(self, Die | DieAtLog(_) | Pause)
    }
}

/// What members hold: by token, the steps that were counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Content {
    rounds: u32,
    ledger: BTreeMap<u64, u32>,
    is_forged: bool,
}

fn digest(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

#[derive(Clone, Debug, PartialEq)]
enum Work {
    Entering,
    Training,
    Gathers,
    /// By a plan for these tokens.
    Mixes(Vec<u64>),
    Restores(u64, StateVersion),
    Left,
}

#[derive(Clone, Debug)]
struct Node {
    token: u64,
    member: Member,
    session: Option<Session>,
    /// Nothing passes on its connection any more, and it does not know that yet.
    is_cut: bool,
    up: VecDeque<ToCoordinator>,
    work: Work,
    content: Content,
    /// The state that it held after its last round, or fetched.
    held: Option<(StateVersion, Content)>,
    taken: u32,
    /// The attempt it is in, and the digest of its result.
    attempt: Option<AttemptId>,
    result: Option<u64>,
    is_forged: bool,
}

/// What members have brought to an attempt.
#[derive(Clone, Debug, Default)]
struct Transfer {
    roster: Vec<u64>,
    base: u64,
    /// By token: the steps counted before, and all steps.
    brought: BTreeMap<u64, (u32, u32)>,
    results: BTreeMap<u64, u64>,
    committed: Option<u64>,
}

#[derive(Clone, Debug)]
pub(super) struct World {
    settings: Settings,
    coordinator: Option<Coordinator>,
    journal: Vec<Entry>,
    nodes: Vec<Node>,
    /// Connections that have ended, and the coordinator does not know it.
    gone: BTreeSet<Session>,
    transfers: BTreeMap<AttemptId, Transfer>,
    now: Duration,
    faults: u32,
    ticks: u32,
    tokens: u64,
    /// How often a member has used the result of a gather, and ended a round. They have no effect.
    pub(super) gathers: u32,
    pub(super) rounds: u32,
    /// What must not happen, and has.
    pub(super) broken: Option<String>,
}

impl World {
    /// A coordinator, and nodes that have not connected yet.
    pub(super) fn new(settings: Settings, nodes: usize) -> Self {
        let mut world = World {
            settings,
            coordinator: Some(Coordinator::new(settings, RUN, vec![1], &[])),
            journal: Vec::new(),
            nodes: Vec::new(),
            gone: BTreeSet::new(),
            transfers: BTreeMap::new(),
            now: Duration::ZERO,
            faults: 0,
            ticks: 0,
            tokens: 0,
            gathers: 0,
            rounds: 0,
            broken: None,
        };
        (0..nodes).for_each(|_| world.add_node());
        world
    }

    pub(super) fn add_node(&mut self) {
        let node = self.new_node();
        self.nodes.push(node);
    }

    /// From here on there may be so many faults and ticks.
    pub(super) fn with(mut self, faults: u32, ticks: u32) -> Self {
        (self.faults, self.ticks) = (faults, ticks);
        self
    }

    /// From here on the coordinator has this defect.
    pub(super) fn plant(&mut self, mutation: Option<Mutation>) {
        self.settings.mutation = mutation;
        self.coordinator.iter_mut().for_each(|it| it.settings.mutation = mutation);
    }

    fn new_node(&mut self) -> Node {
        self.tokens += 1;
        let token = self.tokens;
        Node {
            token,
            member: Member::new(token, format!("node:{token}"), 1, None),
            session: None,
            is_cut: false,
            up: VecDeque::new(),
            work: Work::Entering,
            content: Content::default(),
            held: None,
            taken: 0,
            attempt: None,
            result: None,
            is_forged: false,
        }
    }

    fn fail(&mut self, why: impl FnOnce() -> String) {
        self.broken.get_or_insert_with(why);
    }

    /// All that may happen next.
    pub(super) fn events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        let is_up = self.coordinator.is_some();
        for (i, node) in self.nodes.iter().enumerate() {
            if node.work == Work::Left && node.session.is_none() {
                continue;
            }
            match node.session {
                Some(_) if node.is_cut => events.push(Event::End(i)),
                Some(_) if !node.up.is_empty() && is_up => events.push(Event::Deliver(i)),
                Some(_) => {}
                None if is_up => events.push(Event::Connect(i)),
                None => {}
            }
            match &node.work {
                Work::Training => events.push(Event::Begin(i)),
                Work::Restores(..) => events.push(Event::Fetch(i)),
                Work::Gathers | Work::Mixes(_) => self.transfer_events(i, &mut events),
                Work::Entering | Work::Left => {}
            }
        }
        events.extend(self.gone.iter().filter(|_| is_up).map(|session| Event::Notice(*session)));
        if !is_up {
            events.push(Event::Start);
        }
        if self.ticks > 0 && is_up {
            events.push(Event::Tick);
        }
        if self.faults == 0 {
            events.retain(|event| !event.is_fault());
            return events;
        }
        for (i, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.work != Work::Left) {
            events.push(Event::Crash(i));
            if node.session.is_some() && !node.is_cut {
                events.push(Event::Break(i));
                if node.work == Work::Training {
                    events.push(Event::Leave(i));
                }
            }
        }
        if is_up {
            events.extend([Event::Die, Event::Pause]);
            let logs = (0..self.nodes.len()).filter(|i| self.logs(*i));
            events.extend(logs.map(Event::DieAtLog));
        }
        events
    }

    fn transfer_events(&self, i: usize, events: &mut Vec<Event>) {
        let node = &self.nodes[i];
        let Some(attempt) = node.attempt.filter(|it| node.member.is_current(*it) && node.result.is_none())
        else {
            if node.work == Work::Gathers && node.session.is_none() && !node.member.is_bound() {
                events.push(Event::Abandon(i));
            }
            return;
        };
        let Some(transfer) = self.transfers.get(&attempt) else { return };
        let others = || transfer.roster.iter().filter(|token| **token != node.token);
        if transfer.roster.iter().all(|token| transfer.brought.contains_key(token)) {
            events.extend([Event::Finish(i), Event::Forge(i)]);
            if node.work == Work::Gathers {
                events.extend(others().map(|token| Event::Misread(i, *token)));
            }
        }
        let is_in = |token: u64| {
            let mut nodes = self.nodes.iter();
            nodes.any(|node| node.token == token && node.member.is_current(attempt))
        };
        // A member may still be on its way to the attempt: then it is waited for, and does not count as unreachable.
        let is_coming = |token: u64| {
            let node = self.nodes.iter().find(|node| node.token == token);
            node.is_some_and(|node| {
                matches!(node.work, Work::Gathers | Work::Mixes(_)) && node.member.op == attempt.1
            })
        };
        for token in others() {
            match is_in(*token) || is_coming(*token) {
                true => events.push(Event::Complain(i, *token)),
                false => events.push(Event::Fail(i, *token)),
            }
        }
    }

    /// Whether the next message of this node makes the coordinator write to its journal.
    fn logs(&self, i: usize) -> bool {
        let node = &self.nodes[i];
        let (Some(session), Some(message), false) = (node.session, node.up.front(), node.is_cut) else {
            return false;
        };
        let Some(mut coordinator) = self.coordinator.clone() else { return false };
        let message = message.clone();
        let actions = coordinator.handle(Input::Message { session, message }, self.now);
        actions.iter().any(|action| matches!(action, Action::Log(_)))
    }

    pub(super) fn apply(&mut self, event: Event) {
        self.faults -= u32::from(event.is_fault() && self.faults > 0);
        match event {
            Event::Deliver(i) => {
                let (Some(session), Some(message)) = (self.nodes[i].session, self.nodes[i].up.pop_front())
                else {
                    return;
                };
                self.input(Input::Message { session, message }, false);
            }
            Event::DieAtLog(i) => {
                let (Some(session), Some(message)) = (self.nodes[i].session, self.nodes[i].up.pop_front())
                else {
                    return;
                };
                self.input(Input::Message { session, message }, true);
                self.die();
            }
            Event::Begin(i) => {
                self.nodes[i].taken += 1;
                self.call_gather(i);
            }
            Event::Fetch(i) => self.fetch(i),
            Event::Finish(i) => self.finish(i, false),
            Event::Forge(i) => self.finish(i, true),
            Event::Fail(i, peer) | Event::Complain(i, peer) => self.complain(i, peer, false),
            Event::Misread(i, peer) => self.complain(i, peer, true),
            Event::Pause => {
                self.now += TICK;
                self.input(Input::Paused(TICK), false);
            }
            Event::End(i) => self.disconnect(i),
            Event::Notice(session) => {
                self.gone.remove(&session);
                self.input(Input::Disconnected { session }, false);
            }
            Event::Connect(i) => self.connect(i),
            Event::Abandon(i) => {
                self.nodes[i].member.abandon();
                self.nodes[i].work = Work::Training;
            }
            Event::Start => {
                let coordinator = Coordinator::new(self.settings, RUN, vec![1], &self.journal);
                let has_begun =
                    |entry: &Entry| matches!(entry, Entry::Committed(record) if record.version.op > 0);
                let has_begun = self.journal.iter().any(has_begun);
                self.coordinator = Some(if has_begun { coordinator.begun(false) } else { coordinator });
            }
            Event::Tick => self.tick(),
            Event::Crash(i) => {
                self.disconnect(i);
                self.nodes[i] = self.new_node();
            }
            Event::Break(i) => {
                self.nodes[i].up.clear();
                self.nodes[i].is_cut = true;
            }
            Event::Leave(i) => {
                self.push(i, [ToCoordinator::Leave]);
                self.nodes[i].work = Work::Left;
            }
            Event::Die => self.die(),
        }
        let current: BTreeSet<AttemptId> = self.nodes.iter().filter_map(|node| node.attempt).collect();
        self.transfers.retain(|attempt, _| current.contains(attempt));
        self.check();
    }

    fn input(&mut self, input: Input, dies_at_log: bool) {
        let Some(coordinator) = &mut self.coordinator else { return };
        let actions = coordinator.handle(input, self.now);
        for action in &actions {
            if let Action::Log(entry) = action {
                self.log(entry.clone());
            }
        }
        if dies_at_log {
            return;
        }
        for action in actions {
            match action {
                Action::Send { session, message } => self.receive(session, message),
                Action::Disconnect { session } => {
                    let found = self.nodes.iter().position(|node| node.session == Some(session));
                    found.into_iter().for_each(|i| self.disconnect(i));
                    self.gone.remove(&session);
                }
                Action::Log(_) | Action::Report { .. } | Action::Emit(_) => {}
            }
        }
    }

    /// A committed state is never replaced by another of the same operation, unless the run went back before it; and
    /// the initial state never is committed again.
    fn log(&mut self, entry: Entry) {
        let Entry::Committed(record) = &entry else {
            return self.fail(|| format!("{entry:?} where nothing is proposed"));
        };
        let versions: Vec<StateVersion> = (self.journal.iter())
            .filter_map(
                |entry| if let Entry::Committed(record) = entry { Some(record.version) } else { None },
            )
            .collect();
        let version = record.version;
        let same = versions.iter().rposition(|before| before.op == version.op);
        let went_back = same.is_some_and(|at| versions[at..].iter().any(|later| later.op < version.op));
        if same.is_some_and(|at| versions[at] != version) && !went_back {
            self.fail(|| format!("{version:?} is committed after {:?}", same.map(|at| versions[at])));
        }
        if version.digest == digest(&Content::default()) && versions.iter().any(|before| before.op > 0) {
            self.fail(|| format!("an initial state is committed: {version:?}"));
        }
        let tokens: BTreeSet<u64> = record.tokens.iter().copied().collect();
        if tokens.len() != record.tokens.len() {
            self.fail(|| format!("a member is in the journal twice: {record:?}"));
        }
        self.journal.push(entry);
    }

    fn receive(&mut self, session: Session, message: ToMember) {
        let found = |node: &Node| node.session == Some(session) && !node.is_cut;
        let Some(i) = self.nodes.iter().position(found) else { return };
        if let ToMember::Restore { version, .. } = &message {
            let is_it =
                |entry: &Entry| matches!(entry, Entry::Committed(record) if record.version == *version);
            if !self.journal.iter().any(is_it) {
                self.fail(|| format!("{version:?} is offered, and not in the journal"));
            }
        }
        if self.nodes[i].work == Work::Left {
            return;
        }
        let (answers, action) = self.nodes[i].member.handle(message);
        self.push(i, answers);
        if let Some(action) = action {
            self.on_action(i, action);
        }
    }

    fn push(&mut self, i: usize, messages: impl IntoIterator<Item = ToCoordinator>) {
        let node = &mut self.nodes[i];
        if node.session.is_some() && !node.is_cut {
            node.up.extend(messages);
        }
    }

    fn disconnect(&mut self, i: usize) {
        let node = &mut self.nodes[i];
        if let Some(session) = node.session.take() {
            node.up.clear();
            node.is_cut = false;
            node.member.disconnected();
            if self.coordinator.is_some() {
                self.gone.insert(session);
            }
        }
    }

    fn connect(&mut self, i: usize) {
        let known = self.coordinator.iter().flat_map(|it| it.roster.values()).filter_map(|it| it.session);
        let used: BTreeSet<Session> = known
            .chain(self.gone.iter().copied())
            .chain(self.nodes.iter().filter_map(|it| it.session))
            .collect();
        let session = (0..).find(|session| !used.contains(session));
        self.nodes[i].session = session;
        let hello = self.nodes[i].member.connected();
        self.push(i, [hello]);
    }

    fn die(&mut self) {
        self.coordinator = None;
        (0..self.nodes.len()).for_each(|i| self.disconnect(i));
        self.gone.clear();
    }

    fn tick(&mut self) {
        self.ticks = self.ticks.saturating_sub(1);
        self.now += TICK;
        for i in 0..self.nodes.len() {
            let node = &self.nodes[i];
            let heartbeat = node.member.heartbeat(0, u64::from(node.taken));
            let heartbeat = heartbeat.filter(|_| !node.is_cut && node.work != Work::Left);
            if let (Some(session), Some(message)) = (node.session, heartbeat) {
                self.input(Input::Message { session, message }, false);
            }
        }
        self.input(Input::Tick, false);
    }

    fn on_action(&mut self, i: usize, action: MemberAction) {
        if let Work::Restores(..) = self.nodes[i].work
            && matches!(action, MemberAction::Restore { .. } | MemberAction::RollBack)
        {
            // What it fetches now is interrupted.
            let message = self.nodes[i].member.not_restored(0);
            self.push(i, message);
        }
        match action {
            MemberAction::Welcomed { .. } => {
                let node = &mut self.nodes[i];
                if node.held.is_none() {
                    let version = StateVersion { op: 0, digest: digest(&node.content) };
                    node.held = Some((version, node.content.clone()));
                    let message = node.member.enter(version);
                    self.push(i, message);
                }
            }
            MemberAction::Ready => {
                if self.nodes[i].work == Work::Entering {
                    self.nodes[i].work = Work::Training;
                }
            }
            MemberAction::Transfer { attempt, .. } => self.begin_transfer(i, attempt),
            MemberAction::Skipped { .. } | MemberAction::Ended(End::Shrunk { .. }) => {
                match self.nodes[i].work {
                    Work::Gathers => self.call_gather(i),
                    _ => self.call_mix(i),
                }
            }
            MemberAction::Ended(End::Commit { .. }) => self.commit(i),
            MemberAction::Restore { donor, version } => {
                self.nodes[i].work = Work::Restores(donor.token, version)
            }
            MemberAction::RollBack => {
                let node = &mut self.nodes[i];
                if let Some((_, content)) = &node.held {
                    node.content = content.clone();
                }
                node.work = Work::Training;
            }
            action @ (MemberAction::Ended(End::OutOfStep { .. })
            | MemberAction::Refused { .. }
            | MemberAction::Stop
            | MemberAction::Over) => {
                self.fail(|| format!("node {i}: {action:?}"));
            }
        }
    }

    fn call_gather(&mut self, i: usize) {
        self.nodes[i].work = Work::Gathers;
        self.call(i, Call::Gather);
    }

    /// Makes a plan for the members that are left, and calls it.
    fn call_mix(&mut self, i: usize) {
        let tokens: Vec<u64> = self.nodes[i].member.members.iter().map(|peer| peer.token).collect();
        let plan = digest(&(&tokens, &self.nodes[i].content));
        self.nodes[i].work = Work::Mixes(tokens);
        self.call(i, Call::Mix { plan, centre: 0 });
    }

    fn call(&mut self, i: usize, call: Call) {
        let node = &mut self.nodes[i];
        (node.attempt, node.result) = (None, None);
        let (message, action) = node.member.call(call, 1);
        self.push(i, message);
        if let Some(action) = action {
            self.on_action(i, action);
        }
    }

    fn begin_transfer(&mut self, i: usize, attempt: AttemptId) {
        let node = &mut self.nodes[i];
        let roster: Vec<u64> = node.member.members.iter().map(|peer| peer.token).collect();
        (node.attempt, node.result, node.is_forged) = (Some(attempt), None, false);
        let counted = node.content.ledger.get(&node.token).copied().unwrap_or(0);
        let (token, brought, base) = (node.token, (counted, node.taken), digest(&node.content));
        let plan = if let Work::Mixes(plan) = &node.work { Some(plan.clone()) } else { None };
        let fresh = Transfer { roster: roster.clone(), base, ..Transfer::default() };
        let transfer = self.transfers.entry(attempt).or_insert(fresh);
        transfer.brought.insert(token, brought);
        if transfer.roster != roster {
            let others = transfer.roster.clone();
            self.fail(|| format!("node {i} is in {attempt:?} with {roster:?}, and others with {others:?}"));
        } else if transfer.base != base {
            self.fail(|| format!("node {i} is in {attempt:?} from another state than the others"));
        } else if plan.is_some_and(|plan| plan != roster) {
            self.fail(|| format!("node {i} carries out a plan that was made for others in {attempt:?}"));
        } else if !roster.contains(&token) {
            self.fail(|| format!("node {i} is not a member of {attempt:?}"));
        }
    }

    fn finish(&mut self, i: usize, is_forged: bool) {
        let node = &mut self.nodes[i];
        let Some(attempt) = node.attempt else { return };
        let Some(transfer) = self.transfers.get_mut(&attempt) else { return };
        let result = digest(&(&transfer.brought, transfer.base)).wrapping_add(u64::from(is_forged));
        transfer.results.insert(node.token, result);
        (node.result, node.is_forged) = (Some(result), is_forged);
        let message = node.member.done(attempt, result);
        self.push(i, message);
    }

    fn complain(&mut self, i: usize, token: u64, is_unreadable: bool) {
        let node = &mut self.nodes[i];
        let Some(attempt) = node.attempt else { return };
        let Some(peer) = node.member.members.iter().find(|peer| peer.token == token) else { return };
        node.result = Some(0);
        let (worker, why) = (peer.worker, String::new());
        let message = match is_unreadable {
            true => node.member.unreadable(attempt, worker, why),
            false => node.member.failed(attempt, worker, why),
        };
        self.push(i, message);
    }

    /// The result counts: all that use one use the same.
    fn commit(&mut self, i: usize) {
        let node = &mut self.nodes[i];
        let (Some(attempt), Some(result)) = (node.attempt.take(), node.result.take()) else {
            return self.fail(|| format!("node {i} is to use a result that it does not have"));
        };
        let Some(transfer) = self.transfers.get_mut(&attempt) else { return };
        let expected = *transfer.committed.get_or_insert(result);
        let brought = transfer.brought.clone();
        if expected != result {
            return self.fail(|| format!("node {i} uses another result of {attempt:?} than the others"));
        }
        node.content.is_forged |= node.is_forged;
        if node.work == Work::Gathers {
            let here: Vec<u64> = node.member.members.iter().map(|peer| peer.token).collect();
            for (token, (counted, taken)) in brought.into_iter().filter(|(token, _)| here.contains(token)) {
                let known = node.content.ledger.insert(token, taken).unwrap_or(0);
                if known != counted {
                    return self
                        .fail(|| format!("of {token} {known} steps were counted, and it says {counted}"));
                }
            }
            self.gathers += 1;
            return self.call_mix(i);
        }
        self.rounds += 1;
        node.content.rounds += 1;
        let digest = digest(&node.content);
        let message = node.member.publish(digest);
        node.held = Some((StateVersion { op: node.member.op, digest }, node.content.clone()));
        node.work = Work::Training;
        self.push(i, message);
    }

    fn fetch(&mut self, i: usize) {
        let Work::Restores(donor, version) = self.nodes[i].work else { return };
        let found = self.nodes.iter().find(|node| node.token == donor && node.work != Work::Left);
        let held = found.and_then(|node| node.held.clone()).filter(|held| held.0 == version);
        let node = &mut self.nodes[i];
        let message = match held {
            Some(held) => {
                node.content = held.1.clone();
                node.held = Some(held);
                node.work = Work::Training;
                node.member.restored(version)
            }
            None => {
                node.work = Work::Entering;
                node.member.not_restored(0)
            }
        };
        self.push(i, message);
    }

    /// What must hold in every state.
    fn check(&mut self) {
        let Some(coordinator) = &self.coordinator else { return };
        let mut wrong = None;
        let tokens: BTreeSet<u64> = coordinator.roster.values().map(|record| record.token).collect();
        if tokens.len() != coordinator.roster.len() {
            wrong = Some("a process has two places".to_owned());
        }
        if let Some(committed) = coordinator.committed {
            let is_it =
                |entry: &Entry| matches!(entry, Entry::Committed(record) if record.version == committed);
            if !self.journal.iter().any(is_it) {
                wrong = Some(format!("{committed:?} counts, and is not in the journal"));
            }
        }
        if let Some(transfer) = &coordinator.operation.transfer {
            let attempt = (coordinator.epoch, coordinator.op, transfer.attempt);
            for (worker, digest) in &transfer.done {
                let record = coordinator.roster.get(worker);
                let token = record.map_or(0, |record| record.token);
                if record.is_none_or(|record| record.state != MemberState::Active) {
                    wrong = Some(format!("the vote of worker {worker} counts, which has no part"));
                }
                let said = self.transfers.get(&attempt).and_then(|it| it.results.get(&token));
                let is_alive =
                    self.nodes.iter().any(|node| node.token == token && node.attempt == Some(attempt));
                if is_alive && said != Some(digest) {
                    wrong = Some(format!("worker {worker} is done with {attempt:?}, which it never said"));
                }
            }
        }
        if let Some(wrong) = wrong {
            self.fail(|| wrong);
        }
    }

    /// Without further faults all nodes that are left come into one round together, and into the next.
    pub(super) fn settle(mut self) -> Result<(), String> {
        self.faults = 0;
        let rounds = |node: &Node| node.held.as_ref().map_or(0, |held| held.1.rounds);
        let wanted = 2 + self.nodes.iter().map(rounds).max().unwrap_or(0);
        let has_begun = |entry: &Entry| matches!(entry, Entry::Committed(record) if record.version.op > 0);
        // All that held a committed state are gone, or too few are left to begin: the others must wait.
        let is_left = |node: &&Node| node.work != Work::Left;
        let holds = self.nodes.iter().filter(is_left).any(|node| rounds(node) > 0);
        let left = self.nodes.iter().filter(is_left).count();
        let waits = match self.journal.iter().any(has_begun) {
            true => !holds,
            false => left < self.settings.founders as usize,
        };
        for pass in 1..=if waits { 40 } else { 200 } {
            // Everything that may happen does, in turn; nobody gives up while the coordinator may start.
            for event in self.events() {
                if !matches!(event, Event::Tick | Event::Abandon(_)) && self.events().contains(&event) {
                    self.apply(event);
                }
                if let Some(why) = &self.broken {
                    return Err(format!("{why} (when it settles)"));
                }
            }
            let mut here = self.nodes.iter().filter(|node| node.work != Work::Left);
            if here.all(|node| rounds(node) >= wanted) {
                return Ok(());
            }
            if pass % 8 == 0 {
                self.ticks = 1;
                self.apply(Event::Tick);
            }
        }
        if waits {
            return Ok(());
        }
        let states: Vec<_> = self.nodes.iter().map(|node| (&node.work, rounds(node))).collect();
        let why = self.coordinator.as_ref().map(|coordinator| coordinator.reason(self.now));
        Err(format!("the nodes come into no round together: {states:?}: {why:?}"))
    }

    /// Whether all nodes are in the transfer of a gather, or of a mix, and none is done.
    pub(super) fn all_transfer(&self, is_mix: bool) -> bool {
        self.nodes.iter().all(|node| {
            let is_in = node.attempt.is_some_and(|it| node.member.is_current(it)) && node.result.is_none();
            is_in && matches!(node.work, Work::Mixes(_)) == is_mix && node.up.is_empty()
        })
    }

    /// Whether this node fetches a state.
    pub(super) fn restores(&self, i: usize) -> bool {
        matches!(self.nodes[i].work, Work::Restores(..))
    }

    /// Whether this node gathers.
    pub(super) fn gathers_at(&self, i: usize) -> bool {
        self.nodes[i].work == Work::Gathers
    }

    /// Whether all nodes have held the state after so many rounds.
    pub(super) fn has_held(&self, rounds: u32) -> bool {
        self.nodes.iter().all(|node| node.held.as_ref().is_some_and(|held| held.1.rounds >= rounds))
    }

    /// Two worlds with the same number continue alike: times count from now, and what has no effect on decisions is
    /// left out.
    pub(super) fn canonical(&self) -> u64 {
        let mut hashed = Hashed(DefaultHasher::new());
        let coordinator = self.coordinator.clone().map(|coordinator| relative(coordinator, self.now));
        // The budget of faults and ticks is a part of what may happen.
        let written = write!(
            hashed,
            "{coordinator:?}{:?}{:?}{:?}{:?}{}{}{}",
            self.journal, self.nodes, self.gone, self.transfers, self.faults, self.ticks, self.tokens
        );
        assert!(written.is_ok());
        hashed.0.finish()
    }
}

struct Hashed(DefaultHasher);

impl Write for Hashed {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

/// The coordinator with all times counted back from now.
fn relative(mut coordinator: Coordinator, now: Duration) -> Coordinator {
    // Beyond the longest wait it makes no difference how long ago something was.
    let ago = |at: &mut Duration| *at = now.saturating_sub(*at).min(2 * SILENCE);
    for record in coordinator.roster.values_mut() {
        ago(&mut record.last_seen);
        ago(&mut record.progressed_at);
        record.disconnected_at.iter_mut().for_each(ago);
        record.rate_limit = TokenBucket::default();
    }
    coordinator.deadline = Deadline::default();
    coordinator.limits.clear();
    coordinator.paused_at.iter_mut().for_each(ago);
    coordinator.orphaned.iter_mut().for_each(ago);
    coordinator.round_began.iter_mut().for_each(|(_, at)| ago(at));
    coordinator.operation.began.iter_mut().for_each(ago);
    // These lie ahead.
    let ahead = |at: &mut Duration| *at = at.saturating_sub(now);
    coordinator.returning.iter_mut().flatten().for_each(ahead);
    coordinator.operation.transfer.iter_mut().for_each(|it| it.retry_at.iter_mut().for_each(ahead));
    coordinator
}

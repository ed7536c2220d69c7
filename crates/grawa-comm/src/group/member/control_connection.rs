//! A member's connection to the coordinator.
//!
//! One thread keeps the connection, makes it again when it breaks, and receives; one sends heartbeats. [`Member`] decides what
//! is to be done about a message, and the worker's own thread does it.

use super::peer_listener::{HeldState, PeerListener};
use super::{Member, MemberAction};
use crate::Error;
use crate::group::environment::{Environment, Monitor, POLL, lock};
use crate::group::fingerprint::fingerprint;
use crate::group::messages::{AttemptId, LONGEST, ToCoordinator, ToMember, decode, encode};
use crate::group::transfer::overlap::Overlap;
use crate::group::wire::connection::{Reader, Writer, dial};
use crate::group::wire::tls::Security;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// A connection on which nothing arrives for this long counts as broken.
const SILENCE: Duration = Duration::from_secs(3);
/// How long sending a message may take.
const SEND_TIMEOUT: Duration = Duration::from_secs(3);
/// From one attempt to connect to the next: the first pause, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// The last reports are sent again on a new connection, since some may not have arrived. Those that were acknowledged, and
/// sent this long before the old connection broke, are not. All workers do this, so there must not be many.
const REPORTS: usize = 64;
const ARRIVED: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });
/// The longest report. The rest of the message takes less than a kilobyte.
const LONGEST_REPORT: usize = LONGEST - (1 << 10);
/// How long a member without contact waits at the beginning of a round before it continues to train.
const PATIENCE: Duration = Duration::from_secs(1);

/// Sends reports to whoever watches the run.
#[derive(Clone, Debug)]
pub struct Reporter {
    pub(super) anchor: Arc<Anchor>,
}

impl Reporter {
    /// Sends a report, now or when the coordinator can be reached again. If the connection breaks, a report may arrive twice.
    pub fn report(&self, report: Vec<u8>) -> Result<(), Error> {
        if report.len() > LONGEST_REPORT {
            // It would end every connection on which it is sent.
            let why = format!("a report of {} bytes, where {LONGEST_REPORT} are allowed", report.len());
            return Err(Error::Message { why });
        }
        let client = &self.anchor.client;
        let mut state = client.state.lock();
        if state.reports.len() == REPORTS {
            state.reports.pop_front();
        }
        state.reports.push_back((client.environment.now(), report.clone()));
        state.unacknowledged = (state.unacknowledged + 1).min(state.reports.len());
        let message = state.member.is_welcome.then_some(ToCoordinator::Report(report));
        client.send(&mut state, message);
        Ok(())
    }

    /// Calls this when the coordinator asks all members to stop together, or at once if it has.
    pub fn on_stop(&self, stop: impl Fn() + Send + Sync + 'static) {
        let mut state = self.anchor.client.state.lock();
        if state.is_asked_to_stop {
            stop();
        }
        state.on_stop = Some(OnStop(Box::new(stop)));
    }

    /// Asks all members to stop together, before this one leaves. Without contact nobody is asked.
    pub fn ask_all_to_stop(&self) {
        if self.anchor.is_own() {
            let client = &self.anchor.client;
            client.send_from(|member| member.is_welcome.then_some(ToCoordinator::Stop));
        }
    }

    /// How many of the last reports the coordinator has not acknowledged.
    pub fn unacknowledged(&self) -> u32 {
        self.anchor.client.state.lock().unacknowledged as u32
    }
}

impl std::fmt::Debug for OnStop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnStop")
    }
}

/// Tells whether the coordinator can be reached. It does not keep the worker in the group.
#[derive(Clone, Debug)]
pub struct Contact(pub(super) Weak<Client>);

impl Contact {
    /// For how long the coordinator could not be reached; none if the worker has left.
    pub fn lost_for(&self) -> Option<Duration> {
        let client = self.0.upgrade().filter(|client| !client.is_over())?;
        let since = client.state.lock().lost_since;
        Some(since.map_or(Duration::ZERO, |since| client.environment.now() - since))
    }
}

/// Keeps the worker in the group. The worker leaves when the last one is dropped, after its last report.
#[derive(Debug)]
pub(crate) struct Anchor {
    pub(super) client: Arc<Client>,
    /// The process that is the worker. One that was forked from it has copies of the connections, and must not use them: not to leave for
    /// its parent, nor, with TLS, to encrypt other records under the same key and number.
    process: u32,
}

impl Anchor {
    pub(super) fn new(client: Arc<Client>) -> Self {
        Anchor { client, process: std::process::id() }
    }
}

impl Anchor {
    /// Whether this is the worker, and not a process that was forked from it.
    fn is_own(&self) -> bool {
        self.process == std::process::id()
    }
}

impl Drop for Anchor {
    fn drop(&mut self) {
        if self.is_own() {
            self.client.end();
        }
    }
}

/// What the threads of a member share.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) environment: Environment,
    pub(super) address: String,
    pub(crate) token: u64,
    /// The worker's number. It changes only when the worker rejoins.
    pub(super) worker: AtomicU32,
    pub(super) security: Security,
    pub(crate) listener: Arc<PeerListener>,
    pub(crate) state: Monitor<State>,
    /// Milliseconds between heartbeats.
    pub(super) heartbeat: AtomicU64,
    /// Signs of progress so far, and how many of them were before the last round.
    pub(super) steps: AtomicU64,
    pub(super) counted: AtomicU64,
    /// Reports that go with the state that is published next.
    pub(super) reports: Mutex<Vec<u8>>,
    pub(super) is_over: AtomicBool,
    /// Milliseconds: for how long it waits in an operation without contact, and for the founders of a run.
    pub(super) contact_patience: AtomicU64,
    pub(super) founding_patience: AtomicU64,
    /// The transfer that overlaps with training, of any centre.
    pub(super) overlap: Mutex<Option<Arc<Overlap>>>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) member: Member,
    pub(super) writer: Option<Writer>,
    pub(super) actions: VecDeque<MemberAction>,
    pub(super) reports: VecDeque<(Duration, Vec<u8>)>,
    /// How many reports, the last ones, were not acknowledged.
    pub(super) unacknowledged: usize,
    pub(super) lost_since: Option<Duration>,
    /// Why the last connection failed, and whether any failed because of another key.
    pub(super) last_error: Option<Error>,
    pub(super) has_wrong_key: bool,
    /// Whether there was a connection at all.
    pub(super) was_connected: bool,
    /// The coordinator has asked all members to stop together, and what is done then.
    pub(super) is_asked_to_stop: bool,
    pub(super) on_stop: Option<OnStop>,
}

/// What a member does when all are to stop together.
pub(super) struct OnStop(Box<dyn Fn() + Send + Sync>);

impl Client {
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    pub(super) fn end(&self) {
        if self.is_over.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut state = self.state.lock();
        self.send(&mut state, [ToCoordinator::Leave]);
        if let Some(writer) = state.writer.take() {
            writer.end();
        }
        drop(state);
        // Its result refers to this client.
        lock(&self.overlap).take();
        self.listener.close();
        self.state.notify();
    }

    /// The worker rejoins, with the number that the coordinator has given it.
    pub(super) fn update_number(&self) {
        if let Some(worker) = self.state.lock().member.worker {
            self.worker.store(worker, Ordering::Relaxed);
        }
    }

    /// Keeps a connection to the coordinator.
    pub(super) fn keep_connected(&self) {
        let mut pause = RETRY.0;
        while !self.is_over() {
            match dial(&self.environment, &self.address, &self.security) {
                Err(why) => {
                    let mut state = self.state.lock();
                    state.has_wrong_key |= matches!(why, Error::WrongKey { .. });
                    state.last_error = Some(why);
                }
                Ok((writer, reader)) => {
                    let mut state = self.state.lock();
                    (state.writer, state.was_connected) = (Some(writer), true);
                    let hello = state.member.connected();
                    let build = ToCoordinator::Build { fingerprint: fingerprint() };
                    self.send(&mut state, [hello, build]);
                    drop(state);
                    let why = self.receive(reader);
                    let mut state = self.state.lock();
                    if state.member.is_welcome {
                        pause = RETRY.0;
                    }
                    state.last_error = Some(why);
                    state.member.disconnected();
                    state.writer = None;
                    state.lost_since.get_or_insert_with(|| self.environment.now());
                }
            }
            self.state.notify();
            self.environment.sleep(pause);
            pause = (2 * pause).min(RETRY.1);
        }
    }

    /// Receives until the connection ends. Returns why it did.
    fn receive(&self, mut reader: Reader) -> Error {
        loop {
            let began = self.environment.now();
            let keep_going = || !self.is_over() && self.environment.now() - began < SILENCE;
            let silent = || Error::Connection { why: "it ended without a message".into() };
            let received = reader.receive(LONGEST, &keep_going);
            let message = received.and_then(|bytes| decode::<ToMember>(&bytes.ok_or_else(silent)?));
            let message = match message {
                Ok(message) => message,
                Err(why) => {
                    reader.end();
                    return why;
                }
            };
            let mut state = self.state.lock();
            let is_ack = message == ToMember::ReportAck;
            state.unacknowledged = state.unacknowledged.saturating_sub(usize::from(is_ack));
            let (answers, action) = state.member.handle(message);
            if let Some(MemberAction::Welcomed { heartbeat, .. }) = &action {
                self.heartbeat.store((*heartbeat).clamp(10, 10_000), Ordering::Relaxed);
                let lost = state.lost_since.take().unwrap_or(began);
                self.repeat_reports(&mut state, lost);
            }
            self.send(&mut state, answers);
            match action {
                None => {}
                Some(MemberAction::Stop) => {
                    state.is_asked_to_stop = true;
                    if let Some(OnStop(stop)) = &state.on_stop {
                        stop();
                    }
                }
                Some(action) => {
                    state.actions.push_back(action);
                    drop(state);
                    self.state.notify();
                }
            }
        }
    }

    /// Sends the last reports again, after the connection broke at a moment. Before the first round no report is acknowledged.
    fn repeat_reports(&self, state: &mut State, lost: Duration) {
        let acknowledged = state.reports.iter().take(state.reports.len() - state.unacknowledged);
        let arrived = acknowledged.take_while(|(at, _)| lost.saturating_sub(*at) >= ARRIVED).count();
        state.reports.drain(..arrived);
        state.unacknowledged = state.reports.len();
        let again = state.reports.iter().map(|(_, report)| ToCoordinator::Report(report.clone()));
        let again: Vec<ToCoordinator> = again.collect();
        self.send(state, again);
    }

    /// Signs of progress so far, and how many of them since the last round.
    pub(super) fn progress(&self) -> (u64, u64) {
        let progress = self.steps.load(Ordering::Relaxed);
        (progress, progress.saturating_sub(self.counted.load(Ordering::Relaxed)))
    }

    pub(super) fn send_heartbeats(&self) {
        while !self.is_over() {
            self.environment.sleep(Duration::from_millis(self.heartbeat.load(Ordering::Relaxed)));
            let (progress, steps) = self.progress();
            self.send_from(|member| member.heartbeat(steps, progress));
        }
    }

    /// Publishes a state. Other members may fetch it from now on.
    pub(crate) fn publish(&self, memory: Vec<u8>, centre: Arc<Vec<f32>>) {
        let op = self.state.lock().member.op;
        let reports = lock(&self.reports).clone();
        let held = Arc::new(HeldState { reports, ..HeldState::new(op, memory, centre) });
        self.listener.hold(Arc::clone(&held));
        self.send_from(|member| member.publish(held.version.digest));
    }

    /// Sends the message that the member returns.
    pub(super) fn send_from(&self, message: impl FnOnce(&mut Member) -> Option<ToCoordinator>) {
        let mut state = self.state.lock();
        let message = message(&mut state.member);
        self.send(&mut state, message);
    }

    /// Sends messages if there is a connection. If sending fails the connection ends, and they are repeated on the next.
    pub(super) fn send(&self, state: &mut State, messages: impl IntoIterator<Item = ToCoordinator>) {
        for message in messages {
            let Some(writer) = &mut state.writer else { return };
            let began = self.environment.now();
            let keep_going = || self.environment.now() - began < SEND_TIMEOUT;
            if encode(&message).and_then(|bytes| writer.send(&bytes, &keep_going)).is_err() {
                writer.end();
                state.writer = None;
            }
        }
    }

    /// The next action; none if it is no longer waited for. An error if this worker was refused, or has left.
    pub(super) fn next_action(
        &self,
        keep_going: &dyn Fn(&State) -> bool,
    ) -> Result<Option<MemberAction>, Error> {
        let mut state = self.state.lock();
        loop {
            match state.actions.pop_front() {
                Some(MemberAction::Refused { why }) => return Err(Error::Refused { why }),
                Some(MemberAction::Over) => {
                    // It stays so.
                    state.actions.push_front(MemberAction::Over);
                    return Err(Error::Over);
                }
                None if self.is_over() => {
                    return Err(Error::Connection { why: "the group was left".into() });
                }
                None if keep_going(&state) => state = self.state.wait(state, POLL),
                action => return Ok(action),
            }
        }
    }

    /// Whether another action than the current one is to be carried out.
    pub(super) fn is_interrupted(&self) -> bool {
        self.is_over() || self.state.lock().is_interrupted()
    }

    /// Whether this attempt is still current.
    pub(super) fn is_current(&self, attempt: AttemptId) -> bool {
        let state = self.state.lock();
        !self.is_over() && !state.is_interrupted() && state.member.is_current(attempt)
    }

    pub(super) fn has_lost_contact(&self, state: &State) -> bool {
        state.lost_since.is_some_and(|since| self.environment.now() - since > PATIENCE)
    }

    /// Whether the coordinator was out of reach for so long that nobody counts on this member any more.
    pub(super) fn has_given_up(&self, state: &State) -> bool {
        let patience = Duration::from_millis(self.contact_patience.load(Ordering::Relaxed));
        state.lost_since.is_some_and(|since| self.environment.now() - since > patience)
    }
}

impl State {
    fn is_interrupted(&self) -> bool {
        let is_news =
            |action: &MemberAction| !matches!(action, MemberAction::Welcomed { .. } | MemberAction::Ready);
        self.actions.iter().any(is_news)
    }
}

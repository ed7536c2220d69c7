//! The coordinator's side of a run whose workers join and leave.
//!
//! A [`CoordinatedRun`] listens for workers, writes their reports to the folder of the run, and finds out how the run ends. Parameters
//! never pass through it. `grawa coordinate` and `grawa launch` are thin shells around it; the example `coordinator` embeds one.

mod coordinator_file;
mod finish_votes;
mod inbox;
mod reporter_gate;
#[cfg(test)]
mod reporter_tests;

pub(crate) use inbox::Inbox;
pub use inbox::WrittenCheckpoint;

use crate::elastic::expect_elastic;
use crate::event::{Event, Fault, Finished, Observer, Place, Reason};
use crate::event_codec::Report;
use crate::observe::{About, EVENTS, Files, JOURNAL, read};
use crate::{Error, Recipe, folder, shell};
use coordinator_file::CoordinatorFile;
use finish_votes::FinishVotes;
use grawa_comm::group::{
    CoordinatorEvent, CoordinatorServer, MemberState, MemberStatus, Past, Security, ServerEvent, Settings,
};
use grawa_comm::{Lost, Why};
use grawa_session::coordinator_settings;
use reporter_gate::{Group, Member, ReporterGate, RoundReport, Sender};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The coordinator's log in the folder of the run.
const LOG: &str = "coordinator.log";
/// How often the caller is asked whether to continue.
const POLL: Duration = Duration::from_millis(100);
/// How long reports of workers that are gone may still arrive.
const LAST_REPORTS: Duration = Duration::from_secs(1);
/// How long workers may take to leave when the run is over.
const LEAVE: Duration = Duration::from_secs(5);

/// How a coordinator is reached, and how long it waits.
#[derive(Clone, Debug)]
pub struct Connect {
    /// Where to listen for workers, `HOST:PORT`; port 0 is any. When a run is resumed: where it listened before, if `None`.
    pub listen: Option<String>,
    /// How connections are secured.
    pub wire: Security,
    /// When no worker has the last committed state: how long to wait for one that has it, before the run restarts from the newest state
    /// that any worker has.
    pub patience: Duration,
    /// A worker that sends heartbeats, but makes no progress for this long while others wait for it inside a round, or for its first step before
    /// the first round, is dropped. Between rounds, and while it loads its data before it takes part, it may take any time.
    pub stall: Duration,
    /// A round waits at least this long for workers that are late; one that it goes on without loses its steps since the last round. If `None`: 2 s,
    /// longer where rounds vary or are rare, or what programs with a session ask for.
    pub wait: Option<Duration>,
}

impl Connect {
    /// The usual [`Connect::stall`].
    pub const STALL: Duration = Duration::from_secs(600);

    fn limits(&self, settings: Settings) -> Settings {
        let Connect { patience, stall, wait, .. } = *self;
        Settings { recovery_wait: patience, stall, wait, records: true, ..settings }
    }
}

/// What the caller of [`CoordinatedRun::follow`] wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Continue.
    Continue,
    /// No worker is left and none will join: return when their last reports have arrived.
    NoWorkers,
    /// Return at once.
    Stop,
}

/// How a coordinated run ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The end that most workers reported, if they did.
    pub finished: Option<Finished>,
    /// Where the last event left the run: steps of each worker.
    pub step: u64,
    /// Whether any worker has written a checkpoint.
    pub has_checkpoint: bool,
    /// The last one that a worker reported.
    pub written: Option<WrittenCheckpoint>,
    /// At a free pace: steps that workers took beyond what a round asks for, before all knew of the round.
    pub overshot: u64,
}

/// A run that is being coordinated.
#[derive(Debug)]
pub struct CoordinatedRun {
    server: Arc<CoordinatorServer>,
    folder: PathBuf,
    workers: u32,
    files: Files,
    recorded: Vec<(Event, f64)>,
    is_from_workers: bool,
    /// Both locks are held until the end.
    _locks: (CoordinatorFile, folder::Hold),
}

impl CoordinatedRun {
    /// Begins a new run in its folder, which [`folder::create`] has made.
    pub fn begin(recipe: &Recipe, folder: &Path, connect: &Connect, about: &About) -> Result<Self, Error> {
        Self::begin_run(Definition::of_recipe(recipe)?, folder, connect, about)
    }

    /// Begins a run that its workers define: programs with a session. [`folder::create_for_sessions`] has made its folder.
    pub fn begin_for_sessions(
        workers: u32,
        folder: &Path,
        connect: &Connect,
        about: &About,
    ) -> Result<Self, Error> {
        Self::begin_run(Definition::of_sessions(workers), folder, connect, about)
    }

    fn begin_run(
        definition: Definition,
        folder: &Path,
        connect: &Connect,
        about: &About,
    ) -> Result<Self, Error> {
        let run = CoordinatorFile::new_run();
        let hold = folder::hold(folder, false)?;
        let (workers, listen) =
            (definition.settings.founders, connect.listen.as_deref().unwrap_or("127.0.0.1:0"));
        let server = serve(definition, folder, connect, listen, run)?;
        let address = server.address().to_string();
        let file = CoordinatorFile::create(folder, run, address, is_keyed(connect))?;
        let files = Files::create(folder, about)?;
        Ok(CoordinatedRun::new(server, folder, workers, files, Vec::new(), (file, hold)))
    }

    /// Takes the place of a coordinator that has ended. `None` if the run is finished. If its log is damaged or lost, that is an error:
    /// the run would begin anew, and its workers would replace their checkpoints. With `from_workers` it continues from the newest state
    /// that a worker brings, whatever the log says.
    pub fn resume(
        folder: &Path,
        connect: &Connect,
        about: &About,
        from_workers: bool,
    ) -> Result<Option<Self>, Error> {
        let file = CoordinatorFile::open(folder, is_keyed(connect))?;
        let definition = match folder::session_workers(folder)? {
            Some(workers) => Definition::of_sessions(workers),
            None => Definition::of_recipe(&folder::recipe(folder)?)?,
        };
        let hold = folder::hold(folder, false)?;
        let has_events = folder.join(EVENTS).exists();
        if !has_events && folder.join(JOURNAL).exists() {
            return Err(Error::EventsLost { folder: folder.into() });
        }
        let recorded = if has_events { read(folder)? } else { Vec::new() };
        let is_end = |event: &Event| matches!(event, Event::Finished(end) if end.reason == Reason::Spent);
        if recorded.iter().any(|(event, _)| is_end(event)) {
            return Ok(None);
        }
        let listen = connect.listen.as_deref().unwrap_or(&file.address);
        let workers = definition.settings.founders;
        let rounds = last_round(&recorded);
        let is_recipe = !definition.charter.is_empty();
        let Definition { settings, charter } = definition;
        let settings = connect.limits(settings);
        let past = Past { journal: &folder.join(LOG), rounds, from_workers };
        let server =
            CoordinatorServer::resume(listen, connect.wire.clone(), settings, file.run, charter, past);
        let server = server.map_err(|error| match error {
            grawa_comm::Error::Log { .. } => {
                Error::Journal { folder: folder.into(), why: error.to_string(), is_recipe }
            }
            error => error.into(),
        })?;
        // Only now: a run that is refused stays as it is.
        let files = if has_events { Files::reopen(folder)? } else { Files::create(folder, about)? };
        let run = CoordinatedRun::new(server, folder, workers, files, recorded, (file, hold));
        Ok(Some(CoordinatedRun { is_from_workers: from_workers, ..run }))
    }

    fn new(
        server: CoordinatorServer,
        folder: &Path,
        workers: u32,
        files: Files,
        recorded: Vec<(Event, f64)>,
        locks: (CoordinatorFile, folder::Hold),
    ) -> Self {
        CoordinatedRun {
            server: Arc::new(server),
            folder: folder.into(),
            workers,
            files,
            recorded,
            is_from_workers: false,
            _locks: locks,
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// The server, which knows the members and can dismiss them.
    pub fn server(&self) -> &Arc<CoordinatorServer> {
        &self.server
    }

    /// The folder of the run.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// How many workers the run begins with.
    pub fn workers(&self) -> u32 {
        self.workers
    }

    /// What an earlier coordinator of the run has recorded, and when (seconds since 1970).
    pub fn recorded(&self) -> &[(Event, f64)] {
        &self.recorded
    }

    /// Records what the workers report until the run is finished, or the caller does not want to continue. `poll` is called several times
    /// a second.
    pub fn follow(
        self,
        observers: &mut [Box<dyn Observer>],
        mut poll: impl FnMut() -> Control,
    ) -> Result<Outcome, Error> {
        let mut run = self;
        let CoordinatedRun { server, folder, files, recorded, is_from_workers, .. } = &mut run;
        let rounds = last_round(recorded);
        let mut following = Following {
            server,
            folder,
            files,
            observers,
            inbox: Inbox::after(recorded.iter().map(|(event, _)| event)),
            gate: ReporterGate::after(rounds, server.status().op),
            began: Instant::now(),
            votes: FinishVotes::default(),
            departed: Vec::new(),
            at: recorded.last().map_or(Place::default(), |(event, _)| *event.place()),
            phase: Phase::Running,
            is_kept: true,
            has_recipe: folder.join(folder::RECIPE).exists(),
        };
        recorded.clear();
        if following.inbox.has_started {
            let from = match is_from_workers {
                true => "the newest checkpoint that a worker joins with",
                false => "its log",
            };
            following.fault(None, format!("the coordinator was gone; another one continues from {from}"))?;
        }
        let mut polled = Instant::now();
        loop {
            let event = server.next(POLL);
            let is_quiet = event.is_none();
            if let Some(event) = event {
                following.receive(event)?;
            }
            following.advance()?;
            let mut is_over = following.is_over(is_quiet);
            if is_quiet || polled.elapsed() > POLL {
                polled = Instant::now();
                match poll() {
                    Control::Continue => {}
                    Control::NoWorkers => following.phase.abandon(),
                    Control::Stop => is_over = true,
                }
            }
            if is_over {
                return following.end();
            }
        }
    }
}

/// How far a run is.
#[derive(Debug)]
enum Phase {
    /// Workers train.
    Running,
    /// No worker is left.
    Abandoned { since: Instant },
    /// Most workers have reported the end; the others leave.
    Finishing { since: Instant, end: Finished },
}

impl Phase {
    fn abandon(&mut self) {
        if let Phase::Running = self {
            *self = Phase::Abandoned { since: Instant::now() };
        }
    }

    fn is_finishing(&self) -> bool {
        matches!(self, Phase::Finishing { .. })
    }
}

/// A run that is followed, and what is known of it.
struct Following<'a> {
    server: &'a CoordinatorServer,
    folder: &'a Path,
    files: &'a mut Files,
    observers: &'a mut [Box<dyn Observer>],
    inbox: Inbox,
    gate: ReporterGate,
    began: Instant,
    votes: FinishVotes,
    /// Workers that have left, and when. It is no fault if the run ends next.
    departed: Vec<(Instant, CoordinatorEvent)>,
    /// Where the last event left the run.
    at: Place,
    phase: Phase,
    /// Whether some worker writes checkpoints, as far as it is known.
    is_kept: bool,
    /// Programs with a session keep their models themselves.
    has_recipe: bool,
}

impl Following<'_> {
    fn record(&mut self, event: &Event) -> Result<(), Error> {
        self.at = *event.place();
        self.files.event(event)?;
        self.observers.iter_mut().try_for_each(|observer| observer.event(event))
    }

    fn fault(&mut self, worker: Option<u32>, what: String) -> Result<(), Error> {
        self.record(&Event::Fault(Fault { at: self.at, worker, what }))
    }

    fn receive(&mut self, event: ServerEvent) -> Result<(), Error> {
        match event {
            ServerEvent::Report { worker, token, is_voter, report: bytes, receipt } => {
                let sender = Sender { worker, token };
                self.receive_report(is_voter.then_some(token), RoundReport { sender, bytes, receipt })
            }
            ServerEvent::Decision(notice) => self.receive_notice(notice),
            ServerEvent::RejectedPeer { from, why } => {
                self.fault(None, format!("a connection from {from} was refused: {why}"))
            }
            ServerEvent::Failed { why } => Err(Error::Coordinator { why }),
        }
    }

    fn receive_report(&mut self, voter: Option<u64>, received: RoundReport) -> Result<(), Error> {
        // Only another program sends what cannot be read.
        let Ok(report) = Report::decode(&received.bytes) else { return Ok(()) };
        let received = match &report {
            Report::Own { .. } => Some(received),
            Report::Shared { sequence, .. } => {
                self.with_gate(|gate, group| gate.receive(*sequence, received, group))
            }
        };
        received.map_or(Ok(()), |received| self.accept_received(received, voter, report))
    }

    /// Records what is new in a report, and only then lets its sender forget it.
    fn accept_received(
        &mut self,
        received: RoundReport,
        voter: Option<u64>,
        report: Report,
    ) -> Result<(), Error> {
        self.accept(received.sender.worker, voter, report)?;
        drop(received.receipt);
        Ok(())
    }

    fn with_gate<T>(&mut self, ask: impl FnOnce(&mut ReporterGate, Group<'_>) -> T) -> T {
        let status = self.server.status();
        let active = status.workers.iter().filter(|one| one.state == MemberState::Active);
        let active: Vec<Member> = active.map(Member::of).collect();
        let (recorded, now) = (self.inbox.last, self.began.elapsed());
        let group = Group { active: &active, begun: status.rounds, recorded, now };
        ask(&mut self.gate, group)
    }

    /// Reports that were held until the reporter was lost.
    fn accept_held(&mut self, next: impl Fn(&mut Self) -> Option<RoundReport>) -> Result<(), Error> {
        while let Some(held) = next(self) {
            if let Ok(report) = Report::decode(&held.bytes) {
                self.accept_received(held, None, report)?;
            }
        }
        Ok(())
    }

    fn accept(&mut self, worker: u32, voter: Option<u64>, report: Report) -> Result<(), Error> {
        let said = if let Report::Shared { is_kept, .. } = &report { Some(*is_kept) } else { None };
        let events = self.inbox.accept(worker, report);
        // A report that was seen before says nothing of now.
        let is_kept = said.filter(|_| !events.is_empty()).unwrap_or(self.is_kept);
        for event in events {
            match event {
                Event::Finished(end) => self.votes.add(worker, voter, end),
                event => self.record(&event)?,
            }
        }
        if is_kept == self.is_kept || !self.has_recipe {
            return Ok(());
        }
        self.is_kept = is_kept;
        let what = match is_kept {
            false => "no worker saves the model: it is lost at the end, unless a worker joins with --out DIR",
            true => "the model is saved from now on: a worker with --out DIR takes part",
        };
        self.fault(None, what.into())
    }

    fn receive_notice(&mut self, notice: CoordinatorEvent) -> Result<(), Error> {
        match &notice {
            CoordinatorEvent::Joined { .. } | CoordinatorEvent::ExtraSteps { .. } => return Ok(()),
            // A worker that goes when the run is over is not missed, whether it has voted or not.
            CoordinatorEvent::Lost(_) if self.phase.is_finishing() => return Ok(()),
            CoordinatorEvent::Lost(Lost { worker, why: Why::Left }) => {
                if !self.votes.has(*worker) {
                    self.departed.push((Instant::now(), notice));
                }
                return Ok(());
            }
            CoordinatorEvent::Recovered { from, to } => {
                self.gate.continues(to.op);
                if from.is_none_or(|from| to.op < from.op) {
                    self.inbox.rewind();
                    self.gate.rewind();
                }
            }
            _ => {}
        }
        self.record_notice(&notice)
    }

    fn record_notice(&mut self, notice: &CoordinatorEvent) -> Result<(), Error> {
        let worker = if let CoordinatorEvent::Lost(lost) = notice { Some(lost.worker) } else { None };
        let mut what = notice.to_string();
        if matches!(notice, CoordinatorEvent::Orphaned { .. }) && self.folder.join("checkpoints").exists() {
            what += &way_out(self.folder);
        }
        self.fault(worker, what)
    }

    /// What follows from the votes and from the time.
    fn advance(&mut self) -> Result<(), Error> {
        if self.gate.is_holding() {
            self.accept_held(|this| this.with_gate(ReporterGate::due))?;
        }
        if self.phase.is_finishing() {
            return Ok(());
        }
        if let Some(end) = self.votes.majority(|| self.server.status().voters) {
            self.phase = Phase::Finishing { since: Instant::now(), end: end.clone() };
            return Ok(());
        }
        let is_fault = |(left, _): &mut (Instant, CoordinatorEvent)| left.elapsed() > LAST_REPORTS;
        let faults: Vec<(Instant, CoordinatorEvent)> = self.departed.extract_if(.., is_fault).collect();
        faults.iter().try_for_each(|(_, notice)| self.record_notice(notice))
    }

    /// Whether nothing more is to come. Workers that are gone may have reports on their way.
    fn is_over(&self, is_quiet: bool) -> bool {
        let is_active = |one: &MemberStatus| one.state == MemberState::Active;
        match &self.phase {
            Phase::Running => false,
            Phase::Abandoned { since } => is_quiet && since.elapsed() > LAST_REPORTS,
            Phase::Finishing { since, .. } => {
                is_quiet && !self.server.status().workers.iter().any(is_active) || since.elapsed() > LEAVE
            }
        }
    }

    fn end(mut self) -> Result<Outcome, Error> {
        self.accept_held(|this| this.with_gate(ReporterGate::last))?;
        let phase = std::mem::replace(&mut self.phase, Phase::Running);
        let finished = if let Phase::Finishing { end, .. } = phase { Some(end) } else { None };
        if let Some(end) = &finished {
            self.record(&Event::Finished(end.clone()))?;
        }
        let Inbox { checkpoint, written, .. } = self.inbox;
        let overshot = self.server.status().extra_steps;
        let step = self.at.steps;
        Ok(Outcome { finished, step, has_checkpoint: checkpoint.is_some(), written, overshot })
    }
}

/// What to do when nobody holds the committed state, and the run has checkpoints.
fn way_out(folder: &Path) -> String {
    format!(
        "; if none will join, start workers with --out {0}, which restore the state of its last checkpoint, or stop this and \
         continue without them: grawa train --resume {0}",
        shell::path(folder)
    )
}

/// The number of the last round that was recorded.
fn last_round(recorded: &[(Event, f64)]) -> u64 {
    let round = |(event, _): &(Event, f64)| {
        if let Event::Round(round) = event { Some(round.at.rounds) } else { None }
    };
    recorded.iter().rev().find_map(round).unwrap_or(0)
}

/// What a coordinator knows of the run.
struct Definition {
    settings: Settings,
    /// Empty if the workers bring it.
    charter: Vec<u8>,
}

impl Definition {
    fn of_recipe(recipe: &Recipe) -> Result<Self, Error> {
        expect_elastic(recipe)?;
        let Recipe { method, train, .. } = recipe;
        let settings = coordinator_settings(method, train.workers, train.pace);
        Ok(Definition { settings, charter: recipe.to_toml().into_bytes() })
    }

    fn of_sessions(workers: u32) -> Self {
        let settings = Settings { founders: workers, ..Settings::default() };
        Definition { settings, charter: Vec::new() }
    }
}

fn is_keyed(connect: &Connect) -> bool {
    matches!(connect.wire, Security::Tls(_))
}

fn serve(
    Definition { settings, charter }: Definition,
    folder: &Path,
    connect: &Connect,
    listen: &str,
    run: u64,
) -> Result<CoordinatorServer, Error> {
    let settings = connect.limits(settings);
    let log = folder.join(LOG);
    Ok(CoordinatorServer::new(listen, connect.wire.clone(), settings, run, charter, Some(&log))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_in_a_command_is_quoted() {
        let found = way_out("runs/it's mine".as_ref());
        assert_eq!(found.matches(r"'runs/it'\''s mine'").count(), 2, "{found}");
    }
}

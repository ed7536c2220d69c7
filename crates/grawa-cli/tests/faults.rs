//! What befalls workers in processes of their own, done to them: they are killed at every point of a round, stopped, cut off, held
//! up, repeated; their disk runs full; their coordinator dies. The run goes on, every round is reported once, and nobody ever
//! holds other bits than the others.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod group;

use grawa_comm::group::internals::messages::{Call, ToCoordinator, ToMember, encode};
use grawa_train::event_codec::Report;
use grawa_train::{Event, RecordCheck, check_record};
use group::relay::{HOST, Relay, Relayed, seen};
use group::{Group, Process, grawa, signal, text, until};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PLAIN: [&str; 2] = ["--wire", "plain"];
/// So long that no test comes to its end.
const ENDLESS: &str = "10000000step";
/// The most that a round may take in which a worker is killed, in seconds: the wait for one that is late is 2 s.
const MOST: f64 = 4.0;
/// A busy machine may hold up two of the rounds of a test for longer, but no round for so long.
const EVER: f64 = 30.0;

/// The record of a run that is over, and the models that its workers saved in these folders: nothing is wrong with either.
fn check_over(folder: &Path, run: &str, savers: &[&str]) -> RecordCheck {
    let savers: Vec<PathBuf> = savers.iter().map(|saver| folder.join(saver)).collect();
    let savers: Vec<&Path> = savers.iter().map(AsRef::as_ref).collect();
    let check = check_record(&folder.join(run), &savers).unwrap();
    assert_eq!(check.findings, [""; 0], "{check:?}");
    check
}

/// That nothing is wrong in the record, and that no round took longer than it may where workers die.
fn hardly_notice(what: &str, group: &Group) {
    let longest = group.check();
    let slowest: Vec<f64> = group.round_times().into_iter().rev().take(3).collect();
    println!("{what}, the longest rounds took {slowest:.2?} s");
    assert!(slowest[2] < MOST && longest < EVER, "rounds took {slowest:.2?} s");
}

/// A worker behind a relay.
fn join_behind(group: &Group, relay: &Relay) -> Process {
    Process::start(group.joining(&relay.address).args(["--host", HOST]))
}

/// A point in the life of a worker: what passes there, at a gather or at a mix, and whether it still passes.
struct Point(&'static str, fn(&Relayed) -> bool, Option<bool>, bool);

const fn before(name: &'static str, is: fn(&Relayed) -> bool) -> Point {
    Point(name, is, None, true)
}

const fn after(name: &'static str, is: fn(&Relayed) -> bool) -> Point {
    Point(name, is, None, false)
}

impl Point {
    const fn of_gather(self) -> Self {
        Point(self.0, self.1, Some(true), self.3)
    }

    const fn of_vectors(self) -> Self {
        Point(self.0, self.1, Some(false), self.3)
    }
}

fn is_gather(message: &Relayed) -> bool {
    matches!(message, Relayed::Up(ToCoordinator::Arrive { call: Call::Gather, .. }))
}

fn is_mix(message: &Relayed) -> bool {
    matches!(message, Relayed::Up(ToCoordinator::Arrive { call: Call::Mix { .. }, .. }))
}

fn is_move(message: &Relayed) -> bool {
    matches!(message, Relayed::Down(ToMember::Begin { attempt: Some(_), .. }))
}

fn is_done(message: &Relayed) -> bool {
    matches!(message, Relayed::Up(ToCoordinator::Done { .. }))
}

fn is_closed(message: &Relayed) -> bool {
    matches!(message, Relayed::Down(ToMember::Ended { .. }))
}

fn is_version(message: &Relayed) -> bool {
    matches!(message, Relayed::Up(ToCoordinator::Holds(_)))
}

fn is_report(message: &Relayed) -> bool {
    matches!(message, Relayed::Up(ToCoordinator::Report(_)))
}

fn is_pieces(message: &Relayed) -> bool {
    matches!(message, Relayed::Pieces(_))
}

/// A round, from the reports that all gather to the state version that ends it.
const ROUND: [Point; 16] = [
    before("before it arrives for the operation", is_gather),
    after("when it has arrived for the operation", is_gather),
    before("before it receives the start of the gather", is_move).of_gather(),
    after("when the gather begins to send", is_pieces).of_gather(),
    before("before it has received all reports", is_done).of_gather(),
    after("when it has received all reports", is_done).of_gather(),
    before("before it receives the end of the gather", is_closed).of_gather(),
    before("before it comes to the mix", is_mix),
    after("when it has come to the mix", is_mix),
    before("before it receives the start of the mix", is_move).of_vectors(),
    after("when vectors begin to move", is_pieces).of_vectors(),
    before("before it is done", is_done).of_vectors(),
    after("when it is done", is_done).of_vectors(),
    before("before it receives the end of the mix", is_closed).of_vectors(),
    before("before it sends its state version", is_version),
    before("before it reports the round", is_report),
];

/// What others send a worker in a round is messages, shards of vectors and shards of sums, of two others each: it is killed when
/// it has received this many of them.
const RECEIVED: [usize; 8] = [1, 2, 3, 5, 6, 7, 8, 10];

/// A newcomer, from hello to its first round.
const COMING: [Point; 6] = [
    after("when it has sent its hello", |message| {
        matches!(message, Relayed::Up(ToCoordinator::Hello { .. }))
    }),
    before("before it is welcome", |message| matches!(message, Relayed::Down(ToMember::Welcome { .. }))),
    after("when it is to take over", |message| matches!(message, Relayed::Down(ToMember::Restore { .. }))),
    after(
        "when it has taken over",
        |message| matches!(message, Relayed::Up(ToCoordinator::Enter(version)) if version.op > 0),
    ),
    before("before it receives that it is ready", |message| {
        matches!(message, Relayed::Down(ToMember::Ready { .. }))
    }),
    after("when it arrives for its first operation", is_gather),
];

/// Kills the process of this number when the point has come, and so many meetings have ended for it before.
fn lay_trap(relay: &Relay, pid: &Arc<AtomicU32>, point: &'static Point, meetings: u32) -> Arc<AtomicBool> {
    let (mut is_of_gather, mut ended) = (None, 0);
    let is_there = move |message: &Relayed| {
        if let Relayed::Up(ToCoordinator::Arrive { call, .. }) = message {
            is_of_gather = Some(*call == Call::Gather);
        }
        let is_it = point.1(message) && point.2.is_none_or(|of_gather| is_of_gather == Some(of_gather));
        let is_due = ended >= meetings;
        ended += u32::from(is_closed(message));
        is_it && is_due
    };
    kill_when(relay, pid, is_there, point.3)
}

/// Kills the process of this number when what passes is it; returns a flag for when that was.
fn kill_when(
    relay: &Relay,
    pid: &Arc<AtomicU32>,
    mut is_there: impl FnMut(&Relayed) -> bool + Send + 'static,
    stops: bool,
) -> Arc<AtomicBool> {
    let sprung = Arc::new(AtomicBool::new(false));
    let (flag, pid) = (Arc::clone(&sprung), Arc::clone(pid));
    relay.watch(move |message| {
        let is_there = is_there(message);
        let is_it = !flag.load(Ordering::Relaxed) && is_there && pid.load(Ordering::Relaxed) != 0;
        if is_it {
            signal("-KILL", &pid.load(Ordering::Relaxed).to_string());
            flag.store(true, Ordering::Relaxed);
        }
        is_it && stops
    });
    sprung
}

/// A worker behind a relay that does not say hello before it is known whom to kill.
fn join_to_die(group: &Group, relay: &Relay, pid: &Arc<AtomicU32>) -> Process {
    relay.faults.is_parted.store(true, Ordering::Relaxed);
    let victim = join_behind(group, relay);
    pid.store(victim.0.id(), Ordering::Relaxed);
    relay.faults.is_parted.store(false, Ordering::Relaxed);
    victim
}

/// The first worker, who speaks for all, dies at every point of a round, and while it receives from the others. Each time
/// another takes its place.
#[test]
fn a_worker_may_be_killed_at_any_point_of_a_round() {
    let group = Group::begin(3, ENDLESS, &PLAIN, &[]);
    let mut others = Vec::new();
    let mut die = |name: &str, lay: &dyn Fn(&Relay, &Arc<AtomicU32>) -> Arc<AtomicBool>| {
        let (relay, pid) = (Relay::to(&group.address), Arc::new(AtomicU32::new(0)));
        let (faults, sprung) = (group.faults().len(), lay(&relay, &pid));
        let _victim = join_to_die(&group, &relay, &pid);
        if others.is_empty() {
            until("the victim is the first", || group.ask("/status.json").contains("\"worker\":0"));
            others.extend([group.join(), group.join()]);
        }
        seen(&sprung, name);
        group.wait_fault(faults, "worker 0 lost its connection");
        group.wait_members(2);
    };
    for point in &ROUND {
        // When it has taken part once.
        die(point.0, &|relay, pid| lay_trap(relay, pid, point, 2));
    }
    for passed in RECEIVED {
        die("while it receives", &|relay, pid| {
            let (mut ended, mut count) = (0, 0);
            let is_there = move |message: &Relayed| {
                ended += u32::from(is_closed(message));
                // When it has taken part in a few rounds.
                count += usize::from(ended > 6 && is_pieces(message));
                count == passed
            };
            kill_when(relay, pid, is_there, passed % 2 == 0)
        });
    }
    let _last = group.join();
    group.wait_members(3);
    group.wait_rounds(5);
    hardly_notice("twenty-four workers killed", &group);
}

fn is_evaluation(report: &[u8]) -> bool {
    matches!(Report::decode(report), Ok(Report::Shared { sequence, .. }) if sequence.is_evaluation)
}

/// What one member reports for all is received before any continues: it dies while it reports an evaluation, and another reports it.
#[test]
fn nothing_that_is_said_for_all_is_lost() {
    let mut group = Group::begin(3, "600step", &PLAIN, &["evaluate.every=4step"]);
    let relay = Relay::to(&group.address);
    let faults = Arc::clone(&relay.faults);
    let (sprung, mut ended) = (Arc::new(AtomicBool::new(false)), 0);
    let flag = Arc::clone(&sprung);
    relay.watch(move |message| {
        match message {
            Relayed::Down(ToMember::Ended { .. }) => ended += 1,
            Relayed::Up(ToCoordinator::Report(what)) if ended > 10 && is_evaluation(what) => {
                faults.is_mute.store(true, Ordering::Relaxed);
                flag.store(true, Ordering::Relaxed);
            }
            _ => {}
        }
        false
    });
    let mut victim = join_behind(&group, &relay);
    until("the victim is the first", || group.ask("/status.json").contains("\"worker\":0"));
    let mut others = [group.join(), group.join()];
    seen(&sprung, "an evaluation");
    // Time for many rounds.
    std::thread::sleep(Duration::from_millis(300));
    victim.kill();
    relay.cut();
    assert_eq!((others.each_mut().map(Process::code), group.coordinator.code()), ([Some(0); 2], Some(0)));
    group.check();
    check_over(group.folder.path(), "run", &[]);
    let round_of =
        |(event, _)| if let Event::Evaluated(evaluated) = event { Some(evaluated.at.rounds) } else { None };
    let reported: Vec<u64> = group.events().into_iter().filter_map(round_of).collect();
    assert_eq!(reported, (1..=150).collect::<Vec<_>>());
}

/// One who comes dies on its way, at every point of it: those who are there hardly notice.
#[test]
fn a_newcomer_may_be_killed_at_any_point() {
    let group = Group::begin(2, ENDLESS, &PLAIN, &[]);
    let _others = [group.join(), group.join()];
    group.wait_members(2);
    for point in &COMING {
        let (relay, pid) = (Relay::to(&group.address), Arc::new(AtomicU32::new(0)));
        let sprung = lay_trap(&relay, &pid, point, 0);
        let newcomer = join_to_die(&group, &relay, &pid);
        seen(&sprung, point.0);
        drop(newcomer);
        group.wait_rounds(3);
    }
    group.wait_members(2);
    hardly_notice("six newcomers killed", &group);
}

/// A worker that is stopped, and one that nothing reaches, is missed; when it goes on it takes over what the others hold.
#[test]
fn a_worker_that_stops_or_is_cut_off_comes_back() {
    let group = Group::begin(3, ENDLESS, &PLAIN, &[]);
    let relay = Relay::to(&group.address);
    let parted = join_behind(&group, &relay);
    let others = [group.join(), group.join()];
    group.wait_members(3);
    for what in ["stopped", "parted"] {
        let faults = group.faults().len();
        let is_stop = what == "stopped";
        let part = |on: bool| match is_stop {
            true => others[0].signal(if on { "-STOP" } else { "-CONT" }),
            false => relay.faults.is_parted.store(on, Ordering::Relaxed),
        };
        part(true);
        group.wait_fault(faults, "was silent for");
        group.wait_members(2);
        group.wait_rounds(5);
        part(false);
        group.wait_members(3);
        group.wait_rounds(5);
    }
    drop(parted);
    // The wait for one who is late, 2 s, and half a second until it is lost.
    let longest = group.check();
    println!("stopped and cut off, the longest round took {longest:.2} s");
    assert!(longest < EVER, "a round took {longest:.2} s");
}

/// Connections that are slow, that break, and that say everything twice cost time and nothing else: nobody is lost.
#[test]
fn bad_connections_lose_nobody() {
    let mut group = Group::begin(3, "8000step", &PLAIN, &[]);
    let relay = Relay::to(&group.address);
    let mut all = [join_behind(&group, &relay), group.join(), group.join()];
    group.wait_members(3);
    relay.faults.delay.store(20, Ordering::Relaxed);
    group.wait_rounds(3);
    relay.faults.delay.store(0, Ordering::Relaxed);
    for _ in 0..5 {
        relay.cut();
        group.wait_rounds(2);
    }
    relay.faults.doubles.store(true, Ordering::Relaxed);
    group.wait_rounds(10);
    // What came twice was seen to be wrong, and not used.
    group.wait_fault(0, "are not a frame");
    relay.faults.doubles.store(false, Ordering::Relaxed);
    assert!(all.iter_mut().all(|worker| worker.code() == Some(0)) && group.coordinator.code() == Some(0));
    let longest = group.check();
    check_over(group.folder.path(), "run", &[]);
    let faults = group.faults();
    println!("slow, broken and repeated, the longest round took {longest:.2} s: {faults:#?}");
    assert_eq!(group.last_round(), (2000, vec![0, 1, 2]));
    assert!(!faults.iter().any(|fault| fault.contains("go on without")), "{faults:#?}");
}

/// The coordinator dies twice; the workers go on training, come back to the next, and the run ends with all its rounds.
#[test]
fn a_killed_coordinator_is_replaced() {
    let mut group = Group::begin(3, "1600step", &["--key", "run.key"], &[]);
    let output = group.folder.path().join("output");
    let mut loud = group.joining(&group.address);
    let loud = Process::start(loud.stdout(std::fs::File::create(&output).unwrap()));
    let mut workers = [loud, group.join(), group.join()];
    for pause in [100, 2500] {
        group.wait_rounds(20);
        group.coordinator.kill();
        std::thread::sleep(Duration::from_millis(pause));
        group.resume();
    }
    let second =
        grawa(group.folder.path(), &["coordinate", "--resume", "run", "--key", "run.key"]).output().unwrap();
    assert_eq!(second.status.code(), Some(2), "{}", text(&second));
    assert!(text(&second).contains("is at work"), "{}", text(&second));
    let codes = workers.each_mut().map(Process::code);
    assert_eq!((codes, group.coordinator.code()), ([Some(0); 3], Some(0)), "{:#?}", group.faults());
    assert_eq!(group.last_round().0, 400);
    group.check();
    assert_eq!(check_over(group.folder.path(), "run", &[]).rounds, 400);
    let printed = std::fs::read_to_string(output).unwrap();
    assert!(printed.contains("out of reach") && printed.contains("in contact"), "{printed}");
    let faults = group.faults();
    assert_eq!(
        faults.iter().filter(|fault| fault.contains("another one continues from its log")).count(),
        2,
        "{faults:#?}"
    );
    let over =
        grawa(group.folder.path(), &["coordinate", "--resume", "run", "--key", "run.key"]).output().unwrap();
    assert!(over.status.success() && text(&over).contains("is finished"), "{}", text(&over));
}

/// What `grawa launch` started goes on when it is killed: with another coordinator, and if all died, from the checkpoint.
#[test]
fn a_killed_launch_is_gone_on_with() {
    let folder = tempfile::TempDir::new().unwrap();
    let launch = |out: &str| {
        let words = ["launch", "--data", "digits", "--workers", "2", "--quiet", "--out", out];
        let mut command = grawa(folder.path(), &words);
        command.args([
            "--method",
            "mgrawa:period=4",
            "--budget",
            "1200step",
            "--set",
            "checkpoint.every=100step",
        ]);
        let process = Process::start(command.stdout(Stdio::null()));
        let checkpoints = folder.path().join(out).join("checkpoints/step-00000200");
        until("a checkpoint", || checkpoints.exists());
        process
    };
    let mut first = launch("first");
    first.kill();
    let words = ["coordinate", "--resume", "first", "--key", "first/run.key", "--quiet"];
    let again = grawa(folder.path(), &words);
    let again = { again }.output().unwrap();
    assert!(again.status.success(), "{}", text(&again));
    // All at once.
    drop(launch("second"));
    let again = grawa(folder.path(), &["train", "--resume", "second", "--quiet"]).output().unwrap();
    assert!(again.status.success(), "{}", text(&again));
    for run in ["first", "second"] {
        let events = grawa_train::observe::read(&folder.path().join(run)).unwrap();
        let rounds = events.iter().filter(|(event, _)| matches!(event, Event::Round(_)));
        assert_eq!(rounds.count(), 300, "{run}");
        let check = check_over(folder.path(), run, &[run]);
        assert!(check.models > 0, "{run}: the model at the end was evaluated and saved: {check:?}");
        assert!(grawa(folder.path(), &["eval", run]).output().unwrap().status.success());
    }
}

/// Everyone dies at once. Workers that are started with the folder of a checkpoint bring back what it holds; none but them could.
#[test]
fn a_group_comes_back_from_a_checkpoint() {
    let mut group =
        Group::begin(2, "1200step", &["--wire", "plain", "--patience", "1"], &["checkpoint.every=100step"]);
    let join = |group: &Group, out: &str| Process::start(group.joining(&group.address).args(["--out", out]));
    let workers = [join(&group, "kept"), join(&group, "kept-too")];
    let checkpoint = |out: &str| group.folder.path().join(out).join("checkpoints/step-00000200");
    until("a checkpoint", || checkpoint("kept").exists() || checkpoint("kept-too").exists());
    let kept = if checkpoint("kept").exists() { "kept" } else { "kept-too" };
    // What it holds is old by then.
    group.wait_rounds(5);
    group.coordinator.kill();
    drop(workers);
    group.resume();
    let mut workers = [group.join(), join(&group, kept), group.join()];
    assert_eq!(workers.each_mut().map(Process::code), [Some(0); 3], "{:#?}", group.faults());
    assert_eq!(group.coordinator.code(), Some(0));
    let faults = group.faults();
    assert!(faults.iter().any(|fault| fault.contains("the run continues from operation")), "{faults:#?}");
    assert_eq!(group.last_round(), (300, vec![0, 1, 2]));
    let check = check_over(group.folder.path(), "run", &[kept]);
    assert!(check.models > 0, "the model at the end was evaluated and saved: {check:?}");
    // A folder belongs to one run.
    let other = Group::begin(1, "8step", &PLAIN, &[]);
    let kept = group.folder.path().join(kept);
    let refused =
        other.joining(&other.address).arg("--out").arg(kept).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    assert!(text(&refused).contains("checkpoints of another run"), "{}", text(&refused));
}

/// A checkpoint that finds no room is reported, and the run continues; the next one that does is whole.
#[test]
fn a_full_disk_costs_a_checkpoint_and_no_more() {
    let mut group = Group::begin(2, "2000step", &PLAIN, &["checkpoint.every=100step"]);
    // A process that may not write more than this to a file gets an error when the signal for it is ignored.
    let join = group.joining(&group.address);
    let mut shell = std::process::Command::new("sh");
    shell
        .current_dir(group.folder.path())
        .args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""])
        .arg(join.get_program());
    let mut writer =
        Process::start(shell.args(join.get_args()).args(["--out", "kept"]).stdout(Stdio::null()));
    until("the writer is the first", || group.ask("/status.json").contains("\"worker\":0"));
    let mut other = group.join();
    let checkpoint = |step: u32| group.folder.path().join(format!("kept/checkpoints/step-{step:08}"));
    until("a first checkpoint", || checkpoint(100).exists());
    let limit = |bytes: &str| {
        let done = std::process::Command::new("prlimit")
            .args(["--pid", &writer.0.id().to_string(), &format!("--fsize={bytes}:unlimited")])
            .status();
        done.is_ok_and(|status| status.success())
    };
    assert!(
        limit("500"),
        "`prlimit` (of util-linux) must limit what a process may write, for a disk to be full"
    );
    group.wait_fault(0, "the run continues, and the checkpoint before is complete");
    assert!(limit("unlimited"));
    assert_eq!((writer.code(), other.code(), group.coordinator.code()), (Some(0), Some(0), Some(0)));
    assert!(checkpoint(2000).exists());
    let check = check_over(group.folder.path(), "run", &["kept"]);
    assert!(check.models > 0, "the model at the end was evaluated and saved: {check:?}");
    let last = grawa(group.folder.path(), &["eval", "kept"]).output().unwrap();
    assert!(last.status.success(), "{}", text(&last));
    group.check();
}

/// A worker listens where its options say, and others learn the address by which it can be reached.
#[test]
fn a_worker_listens_where_it_is_told() {
    let group = Group::begin(2, ENDLESS, &PLAIN, &[]);
    let join = |listen: &str| Process::start(group.joining(&group.address).args(["--listen", listen]));
    let _workers = [join("127.0.0.3:0"), join("0.0.0.0:0")];
    group.wait_members(2);
    let status = group.ask("/status.json");
    assert!(status.contains("127.0.0.3:") && status.contains("127.0.0.1:"), "{status}");
    assert!(!status.contains("0.0.0.0"), "{status}");
    let wrong = group.joining(&group.address).args(["--listen", "203.0.113.1:0"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(1), "{}", text(&wrong));
    assert!(text(&wrong).contains("cannot listen at 203.0.113.1:0"), "{}", text(&wrong));
}

/// What passes on a worker's connection to the coordinator: bytes per round of reports, and of anything else but heartbeats.
fn cost(workers: usize, method: &str) -> [f64; 2] {
    let group = Group::begin(workers as u32, ENDLESS, &PLAIN, &[&format!("method.name={method}")]);
    let relay = Relay::to(&group.address);
    let _first = join_behind(&group, &relay);
    let _others: Vec<Process> = (1..workers).map(|_| group.join()).collect();
    group.wait_rounds(3);
    let counts: Arc<[AtomicU64; 2]> = Arc::default();
    let (count, head) = (Arc::clone(&counts), grawa_comm::group::internals::frame::HEADER);
    relay.watch(move |message| {
        let (kind, bytes) = match message {
            Relayed::Up(up @ ToCoordinator::Report(_)) => (0, head + encode(up).unwrap().len()),
            Relayed::Down(down @ ToMember::ReportAck) => (0, head + encode(down).unwrap().len()),
            Relayed::Up(ToCoordinator::Heartbeat { .. })
            | Relayed::Down(ToMember::HeartbeatAck)
            | Relayed::Pieces(_) => return false,
            Relayed::Up(up) => (1, head + encode(up).unwrap().len()),
            Relayed::Down(down) => (1, head + encode(down).unwrap().len()),
        };
        count[kind].fetch_add(bytes as u64, Ordering::Relaxed);
        false
    });
    let from = group.last_round().0;
    counts.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    // Rounds are reported in turn.
    group.wait_rounds(60);
    let rounds = (group.last_round().0 - from) as f64;
    assert_eq!(group.faults(), [""; 0]);
    std::array::from_fn(|kind| counts[kind].load(Ordering::Relaxed) as f64 / rounds)
}

/// A round costs next to nothing on the control connection. One member sends its report, which is JSON: a few hundred bytes for each
/// worker, and for LGRAWA a number for each worker and layer.
#[test]
fn a_round_is_cheap() {
    for (method, most) in [("mgrawa", 400.0), ("lgrawa", 800.0)] {
        let [two, four] = [2, 4].map(|workers| cost(workers, method));
        println!("{method}: {two:.0?} bytes a worker and round with two workers, {four:.0?} with four");
        // One worker reports for all: this one.
        assert!(four[0] < 4.0 * most && two[0] < 3.0 * most, "reported: {two:?}, {four:?}");
        assert!(two[1] < 200.0 && four[1] < 200.0, "anything else: {two:?}, {four:?}");
    }
}

/// Between rounds little is sent besides heartbeats.
#[test]
fn the_control_connection_is_quiet() {
    let group = Group::begin(2, ENDLESS, &PLAIN, &["method.period=1000000"]);
    let relay = Relay::to(&group.address);
    let _workers = [join_behind(&group, &relay), group.join()];
    until("both are there", || group.ask("/status.json").matches("\"state\":\"ready\"").count() == 2);
    // They report that they begin.
    std::thread::sleep(Duration::from_secs(1));
    let bytes = || relay.faults.bytes.load(Ordering::Relaxed);
    let (from, began) = (bytes(), Instant::now());
    std::thread::sleep(Duration::from_secs(4));
    let rate = (bytes() - from) as f64 / began.elapsed().as_secs_f64();
    println!("{rate:.0} control bytes a second between rounds");
    assert!(rate > 0.0 && rate < 1000.0, "{rate} bytes a second");
}

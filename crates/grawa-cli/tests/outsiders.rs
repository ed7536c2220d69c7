//! Peers without the key: they connect, say nothing or nonsense, drip bytes, and use up what they can. A run does not notice.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod group;

use grawa_comm::group::internals::frame::{Numbers, write};
use grawa_comm::group::internals::messages::{Hello, ToCoordinator, VERSION, encode};
use grawa_comm::group::raise_file_limit;
use group::{Group, grawa, text, until};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// So long that no test comes to its end.
const ENDLESS: &str = "10000000step";
const PLAIN: [&str; 2] = ["--wire", "plain"];
/// Connections that are held open to each of two ports.
const CONNECTIONS: usize = 1000;

/// A connection from outside: it is opened again when it was ended, once a second at most.
struct Outsider {
    kind: usize,
    socket: Option<TcpStream>,
    opened: Instant,
}

impl Outsider {
    /// Goes on; how many connections it opened.
    fn advance(&mut self, address: &str) -> usize {
        let is_open = |socket: &TcpStream| match { socket }.read(&mut [0; 512]) {
            Ok(n) => n > 0,
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        };
        self.socket = self.socket.take().filter(is_open);
        if let Some(socket) = &mut self.socket {
            if self.kind == 2 {
                // The head of a frame of 20 bytes, or of a record of TLS, and so on.
                let _ = socket.write_all(&[20]);
            }
            return 0;
        }
        if self.opened.elapsed() < Duration::from_secs(1) {
            return 0;
        }
        self.opened = Instant::now();
        let Ok(mut socket) = TcpStream::connect(address) else { return 0 };
        if self.kind == 1 {
            let _ = socket.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        }
        socket.set_nonblocking(true).unwrap();
        self.socket = Some(socket);
        1
    }
}

/// Holds connections to an address open until asked to stop. A third sends nothing, a third nonsense, a third a byte now and then. Counts
/// how many were opened.
fn beset(address: &str, opened: &AtomicUsize, stop: &AtomicBool) {
    let long_ago = Instant::now().checked_sub(Duration::from_secs(9)).unwrap();
    let mut outsiders: Vec<Outsider> =
        (0..CONNECTIONS).map(|n| Outsider { kind: n % 3, socket: None, opened: long_ago }).collect();
    while !stop.load(Ordering::Relaxed) {
        for one in &mut outsiders {
            opened.fetch_add(one.advance(address), Ordering::Relaxed);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Tells those who beset an address to stop when this is gone, also when a test has failed.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The times from one round to the next after a moment, in seconds: that in the middle, and the longest.
fn times_since(group: &Group, rounds: u64) -> [f64; 2] {
    let walls = group.events().into_iter().filter_map(|(event, wall)| match event {
        grawa_train::Event::Round(round) if round.at.rounds >= rounds => Some(wall),
        _ => None,
    });
    let walls: Vec<f64> = walls.collect();
    let mut times: Vec<f64> = walls.windows(2).map(|two| two[1] - two[0]).collect();
    times.sort_by(f64::total_cmp);
    [times[times.len() / 2], times[times.len() - 1]]
}

/// Where a worker of the run listens.
fn a_worker(group: &Group) -> String {
    let status: serde_json::Value = serde_json::from_str(&group.ask("/status.json")).unwrap();
    status["members"][0]["address"].as_str().unwrap().to_owned()
}

/// Two thousand connections, to the coordinator and to a worker, with a key and without: rounds go on as before, one can join, the
/// coordinator hardly works more, and the record has a line a minute.
#[test]
fn outsiders_cost_a_run_nothing() {
    assert!(raise_file_limit() > 2 * CONNECTIONS as u64 + 100, "this process may not open enough files");
    for line in [PLAIN, ["--key", "run.key"]] {
        let group = Group::begin(4, ENDLESS, &line, &["method.period=32"]);
        let _workers = [group.join(), group.join(), group.join(), group.join()];
        group.wait_members(4);
        let (began, used, from) = (Instant::now(), group.coordinator.used(), group.last_round().0);
        std::thread::sleep(Duration::from_secs(3));
        group.wait_rounds(3);
        let quiet = times_since(&group, from);
        let quiet_share = (group.coordinator.used() - used) / began.elapsed().as_secs_f64();
        let (stop, addresses) = (AtomicBool::new(false), [group.address.clone(), a_worker(&group)]);
        let (beset_at, used, from) = (Instant::now(), group.coordinator.used(), group.last_round().0);
        let opened: [AtomicUsize; 2] = Default::default();
        // The newcomer stays: the others would wait a second for one that is gone.
        let _newcomer = std::thread::scope(|scope| {
            let _stops = Stops(&stop);
            for (address, opened) in addresses.iter().zip(&opened) {
                let stop = &stop;
                scope.spawn(move || beset(address, opened, stop));
            }
            std::thread::sleep(Duration::from_secs(4));
            // Those that are idle or drip are ended, so that they are opened again.
            let are_ended = || opened.iter().all(|count| count.load(Ordering::Relaxed) > CONNECTIONS * 3 / 2);
            until("they are ended", are_ended);
            // One can join meanwhile, which takes a connection to everybody.
            let (newcomer, began) = (group.join(), Instant::now());
            until("a fifth takes part", || group.last_round().1.len() == 5);
            println!("{line:?}: one more takes part after {:.1} s", began.elapsed().as_secs_f64());
            newcomer
        });
        let seconds = beset_at.elapsed().as_secs_f64();
        let share = (group.coordinator.used() - used) / seconds;
        let times = times_since(&group, from);
        println!(
            "{line:?}: {opened:?} connections in {seconds:.1} s; rounds {times:.2?} s, {quiet:.2?} s before; coordinator {:.1} % of a core, {:.1} % before",
            100.0 * share,
            100.0 * quiet_share
        );
        // This process holds 2000 connections, and takes what the workers would have on a small machine. Nobody is late: a fault would say so.
        let is_slow = times[0] > 4.0 * quiet[0] + 0.2 || times[1] > quiet[1] + 5.0;
        assert!(!is_slow, "rounds took {times:.2?} s, and {quiet:.2?} s before");
        // Of each connection it pays the beginning: a part of a core, however many are held.
        let at_coordinator = opened[0].load(Ordering::Relaxed) as f64;
        let each = 1000.0 * (share - quiet_share) * seconds / at_coordinator;
        println!("{line:?}: {each:.2} ms of a core for each connection");
        assert!(
            share - quiet_share < 0.3 && each < 0.5,
            "{each:.2} ms for each of {at_coordinator} connections"
        );
        let faults = group.faults();
        let reports = faults.iter().filter(|fault| fault.contains("was refused")).count();
        assert!(reports >= 1 && reports as f64 <= 1.0 + seconds / 60.0, "{faults:#?}");
        // The newcomer fetches the state, and nobody leaves.
        let others = faults
            .iter()
            .filter(|fault| !fault.contains("was refused") && !fault.contains("worker 4 fetches"));
        assert_eq!(others.count(), 0, "{faults:#?}");
        group.check();
    }
}

/// When its files are used up a coordinator does not spin, and goes on when there are some again.
#[test]
fn a_coordinator_without_files_waits() {
    let group = Group::begin(1, ENDLESS, &["--key", "run.key"], &[]);
    group.coordinator.limit("--nofile=40:4096");
    let outsiders: Vec<TcpStream> = (0..120).map(|_| TcpStream::connect(&group.address).unwrap()).collect();
    let (used, began) = (group.coordinator.used(), Instant::now());
    std::thread::sleep(Duration::from_secs(2));
    let share = (group.coordinator.used() - used) / began.elapsed().as_secs_f64();
    println!("a coordinator without files used {:.1} % of a core", 100.0 * share);
    assert!(share < 0.1, "it used {:.1} % of a core", 100.0 * share);
    drop(outsiders);
    let _worker = group.join();
    group.wait_members(1);
}

/// A thread that cannot be had ends the connection that it was for, and nothing else.
#[test]
fn a_coordinator_without_threads_goes_on() {
    let mut group = Group::begin(1, ENDLESS, &PLAIN, &[]);
    // Until all its own threads are there.
    std::thread::sleep(Duration::from_millis(500));
    let status = std::fs::read_to_string(format!("/proc/{}/status", group.coordinator.0.id())).unwrap();
    let size = status.lines().find(|line| line.starts_with("VmSize:")).unwrap();
    let kilobytes: u64 = size.split_whitespace().nth(1).unwrap().parse().unwrap();
    // Room for the stack of one thread more.
    group.coordinator.limit(&format!("--as={}:unlimited", (kilobytes + 3072) << 10));
    let hello = |token: u64| {
        let address = "127.0.0.1:9".into();
        let hello = ToCoordinator::Hello(Hello { version: VERSION, run: 0, token, worker: None, address });
        let mut bytes = Vec::new();
        write(&mut bytes, &mut Numbers::default(), &encode(&hello).unwrap()).unwrap();
        let mut socket = TcpStream::connect(&group.address).unwrap();
        socket.write_all(&bytes).unwrap();
        socket
    };
    let mut sockets: Vec<TcpStream> = (1..40).map(hello).collect();
    // One of them may have a thread. The others are ended, for want of one.
    let is_ended = |socket: &mut TcpStream| {
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        match socket.read(&mut [0; 512]) {
            Ok(n) => n == 0,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    };
    let ended = sockets.iter_mut().map(is_ended).filter(|is_ended| *is_ended).count();
    assert!(ended > sockets.len() / 2, "{ended} of {} connections were ended", sockets.len());
    assert!(group.coordinator.0.try_wait().unwrap().is_none(), "the coordinator has ended");
    group.coordinator.limit("--as=unlimited:unlimited");
    drop(sockets);
    let _worker = group.join();
    group.wait_members(1);
    group.wait_fault(0, "was refused");
}

/// A key is written whole or not at all, and one that others may read is refused with what to do about it.
#[test]
fn a_key_is_whole_and_its_owners_alone() {
    let folder = tempfile::TempDir::new().unwrap();
    let make = grawa(folder.path(), &["key", "new", "run.key"]);
    let mut shell = std::process::Command::new("sh");
    // A process that may not write to files gets an error when the signal for it is ignored.
    shell.current_dir(folder.path()).args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\""]);
    let failed = shell.arg(make.get_program()).args(make.get_args()).output().unwrap();
    assert!(!failed.status.success() && text(&failed).contains("run.key"), "{}", text(&failed));
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    assert!({ make }.status().unwrap().success());
    std::fs::set_permissions(
        folder.path().join("run.key"),
        std::os::unix::fs::PermissionsExt::from_mode(0o644),
    )
    .unwrap();
    for words in [&["join", "127.0.0.1:9"][..], &["coordinate", "--data", "digits", "--out", "run"]] {
        let refused = grawa(folder.path(), words).args(["--key", "run.key"]).output().unwrap();
        let printed = text(&refused);
        assert_eq!(refused.status.code(), Some(2), "{printed}");
        assert!(printed.contains("mode 0644") && printed.contains("chmod 600 run.key"), "{printed}");
    }
    assert!(!folder.path().join("run").exists());
}

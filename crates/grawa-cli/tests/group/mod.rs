//! Groups of real processes for tests, and what befalls them.

#![allow(clippy::unwrap_used, dead_code, reason = "every test uses some of it")]

pub(crate) mod relay;

use grawa_train::observe::read;
use grawa_train::{Event, check_events};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Nothing in these tests takes longer.
pub(crate) const LONG: Duration = Duration::from_secs(180);

pub(crate) fn grawa(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_grawa"));
    command.current_dir(folder).args(words).stdin(Stdio::null());
    command
}

pub(crate) fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Waits until something holds.
pub(crate) fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LONG, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A process, and whatever it starts, that ends with the test.
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        // With all that it has started: a launched worker outlives the one who launched it.
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.0.id()));
        signal("-KILL", &format!("-{}", self.0.id()));
        children.iter().flat_map(|all| all.split_whitespace()).for_each(|child| signal("-KILL", child));
        let _ = self.0.wait();
    }
}

impl Process {
    pub(crate) fn start(command: &mut Command) -> Self {
        Process(command.process_group(0).spawn().unwrap())
    }

    /// The exit code; none if it does not end, or was killed.
    pub(crate) fn code(&mut self) -> Option<i32> {
        let began = Instant::now();
        while began.elapsed() < LONG {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }

    /// Seconds on a core that it has used.
    pub(crate) fn used(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        // After the name, which is in brackets: the 14th and 15th field, in hundredths.
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        fields[11..13].iter().map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / 100.0
    }

    /// Limits what it may have of something, in the words of `prlimit` of util-linux.
    pub(crate) fn limit(&self, what: &str) {
        let status = Command::new("prlimit").args(["--pid", &self.0.id().to_string(), what]).status();
        assert!(status.is_ok_and(|status| status.success()), "`prlimit {what}` is needed here, and failed");
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(name, &self.0.id().to_string());
    }

    /// `kill -9`, this process alone.
    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Sends a signal to a process, or with a minus before its number to a group of them.
pub(crate) fn signal(name: &str, to: &str) {
    // It may have ended.
    let _ = Command::new("kill").args([name, "--", to]).stderr(Stdio::null()).status();
}

/// A run with its coordinator.
pub(crate) struct Group {
    pub(crate) folder: TempDir,
    pub(crate) coordinator: Process,
    pub(crate) address: String,
    pub(crate) page: String,
    line: Vec<&'static str>,
}

impl Group {
    /// Begins to coordinate: `mgrawa` on the digits, a round every four steps.
    pub(crate) fn begin(workers: u32, budget: &str, line: &[&'static str], settings: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        if line.contains(&"--key") {
            let key = grawa(folder.path(), &["key", "new", "run.key"]).output().unwrap();
            assert!(key.status.success(), "{}", text(&key));
        }
        let workers = workers.to_string();
        let mut command =
            grawa(folder.path(), &["coordinate", "--data", "digits", "--quiet", "--out", "run"]);
        command.args(["--method", "mgrawa:period=4", "--workers", &workers, "--budget", budget]);
        command.args(["--listen", "127.0.0.1:0"]).args(line);
        for setting in ["train.batch=16", "model.width=4", "evaluate.every=end"].iter().chain(settings) {
            command.args(["--set", setting]);
        }
        let (coordinator, address, page) = start(&mut command);
        Group { folder, coordinator, address, page, line: line.to_vec() }
    }

    /// Goes on with another coordinator.
    pub(crate) fn resume(&mut self) {
        let mut command = grawa(self.folder.path(), &["coordinate", "--resume", "run", "--quiet"]);
        let (coordinator, address, page) = start(command.args(&self.line));
        assert_eq!(address, self.address);
        (self.coordinator, self.page) = (coordinator, page);
    }

    pub(crate) fn run(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    /// The words that start a worker which looks for the coordinator at an address.
    pub(crate) fn joining(&self, address: &str) -> Command {
        let mut command = grawa(self.folder.path(), &["join", address, "--threads", "1"]);
        let line = if self.line.contains(&"--key") { ["--key", "run.key"] } else { ["--wire", "plain"] };
        command.args(line).stdout(Stdio::null());
        command
    }

    pub(crate) fn join(&self) -> Process {
        Process::start(&mut self.joining(&self.address))
    }

    pub(crate) fn events(&self) -> Vec<(Event, f64)> {
        read(&self.run()).unwrap()
    }

    /// Rounds so far, and who took part in the last.
    pub(crate) fn last_round(&self) -> (u64, Vec<u32>) {
        let last = self.events().into_iter().rev().find_map(|(event, _)| match event {
            Event::Round(round) => Some(round),
            _ => None,
        });
        last.map_or((0, Vec::new()), |round| {
            (round.at.rounds, round.workers.iter().map(|share| share.worker).collect())
        })
    }

    /// Waits for so many rounds more.
    pub(crate) fn wait_rounds(&self, more: u64) {
        let from = self.last_round().0;
        until("rounds go on", || self.last_round().0 >= from + more);
    }

    /// Waits until so many workers take part.
    pub(crate) fn wait_members(&self, count: usize) {
        until(&format!("{count} workers take part"), || self.last_round().1.len() == count);
    }

    /// What went wrong. That nobody saves the model is as these tests want it.
    pub(crate) fn faults(&self) -> Vec<String> {
        let fault = |(event, _)| if let Event::Fault(fault) = event { Some(fault.what) } else { None };
        let faults = self.events().into_iter().filter_map(fault);
        faults.filter(|what| !what.starts_with("no worker saves the model")).collect()
    }

    /// Waits for a fault after the first so many.
    pub(crate) fn wait_fault(&self, after: usize, what: &str) {
        until(what, || self.faults()[after..].iter().any(|fault| fault.contains(what)));
    }

    /// That every round was reported once, in order, with weights that sum to one, and that nobody ever held other bits.
    /// Returns the longest time from one round to the next, in seconds.
    pub(crate) fn check(&self) -> f64 {
        let faults = self.faults();
        let events: Vec<Event> = self.events().into_iter().map(|(event, _)| event).collect();
        assert_eq!(check_events(&events), [""; 0], "{faults:#?}");
        let (mut expected, mut before, mut longest) = (1, None, 0.0f64);
        for (event, wall) in self.events() {
            let Event::Round(round) = event else { continue };
            assert_eq!(round.at.rounds, expected, "rounds are missing, or there twice: {faults:#?}");
            expected += 1;
            for mixed in &round.mixed {
                let sum: f32 = mixed.weights[0].iter().sum();
                assert!((sum - 1.0).abs() < 1e-5, "weights {:?}", mixed.weights);
            }
            longest = longest.max(wall - before.replace(wall).unwrap_or(wall));
        }
        longest
    }

    /// The times from one round to the next in seconds, the longest last.
    pub(crate) fn round_times(&self) -> Vec<f64> {
        let is_round = |(event, wall): (Event, f64)| matches!(event, Event::Round(_)).then_some(wall);
        let walls: Vec<f64> = self.events().into_iter().filter_map(is_round).collect();
        let mut times: Vec<f64> = walls.windows(2).map(|two| two[1] - two[0]).collect();
        times.sort_by(f64::total_cmp);
        times
    }

    /// What the coordinator's page answers.
    pub(crate) fn ask(&self, path: &str) -> String {
        ask(&self.page, path)
    }
}

/// A test that failed shows what had become of the group.
impl Drop for Group {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let events = std::fs::read_to_string(self.run().join("events.jsonl")).unwrap_or_default();
            let last: Vec<&str> = events.lines().rev().take(12).collect();
            eprintln!("the last events, the newest first:\n{}", last.join("\n"));
            if matches!(self.coordinator.0.try_wait(), Ok(None)) {
                let page = self.page.clone();
                // Where it does not answer, the test's own failure is still what is shown.
                let status = std::thread::spawn(move || ask(&page, "/status.json")).join();
                eprintln!("the coordinator's page: {}", status.unwrap_or_default());
            }
        }
    }
}

/// What a page answers.
pub(crate) fn ask(page: &str, path: &str) -> String {
    let address = page.trim_start_matches("http://").trim_end_matches('/');
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    socket.write_all(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// Starts a coordinator: where it listens, and where its page is.
fn start(command: &mut Command) -> (Process, String, String) {
    let mut coordinator = Process::start(command.args(["--page", "127.0.0.1:0"]).stdout(Stdio::piped()));
    let mut lines = BufReader::new(coordinator.0.stdout.take().unwrap()).lines();
    let mut line = || lines.next().unwrap().unwrap();
    let address = line().split(' ').nth(2).unwrap().to_owned();
    let page = line().split(' ').next_back().unwrap().to_owned();
    (coordinator, address, page)
}

//! Real processes at random moments: workers are killed, stopped and started again, and the coordinator with them.
//! Then the group comes back into rounds, nobody has ended by itself, and what was recorded and saved is checked.
//!
//! `GRAWA_CHAOS_SECONDS` (10) says for how long, `GRAWA_CHAOS_METHOD` (mgrawa) with which method, `GRAWA_CHAOS_SET` with
//! which settings of the run (`train.wire=bf16 train.pace=free`). `GRAWA_SEED` (`GRAWA_FIRST_SEED`, which `.ci/run` takes
//! from the commit, or else the clock) says which draws: a seed repeats what is done, and to whom, but not what the
//! system's clock makes of it.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod group;

use grawa_core::{Key, Purpose, Stream};
use grawa_train::check_record;
use group::{Group, Process};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const WORKERS: usize = 4;
/// How many of them save checkpoints, each in a folder of its own.
const SAVERS: usize = 2;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

struct Chaos {
    group: Group,
    workers: Vec<Process>,
    draws: Stream,
    /// What was done, for whoever reads a failure.
    done: Vec<String>,
}

impl Chaos {
    fn start(&mut self, worker: usize) -> Process {
        let mut command = self.group.joining(&self.group.address);
        if worker < SAVERS {
            command.arg("--out").arg(format!("kept-{worker}"));
        }
        let log = self.group.folder.path().join(format!("worker-{worker}.log"));
        let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
        Process::start(command.stderr(log))
    }

    fn sleep(&mut self, most: u64) {
        std::thread::sleep(Duration::from_millis(self.draws.below(most)));
    }

    fn strike(&mut self) {
        let worker = self.draws.below(WORKERS as u64) as usize;
        let fault = self.draws.below(12);
        self.done.push(format!("fault {fault}, worker {worker}"));
        match fault {
            0..=4 => {
                self.workers[worker].kill();
                if self.draws.below(2) == 0 {
                    self.sleep(1500);
                }
                self.workers[worker] = self.start(worker);
            }
            5..=7 => {
                self.workers[worker].signal("-STOP");
                self.sleep(4000);
                self.workers[worker].signal("-CONT");
            }
            8 => {
                for other in (0..WORKERS).filter(|other| *other != worker) {
                    self.workers[other].kill();
                    self.workers[other] = self.start(other);
                }
            }
            9 => {
                self.group.coordinator.signal("-STOP");
                self.sleep(4000);
                self.group.coordinator.signal("-CONT");
            }
            _ => {
                self.group.coordinator.kill();
                self.sleep(1500);
                self.group.resume();
            }
        }
        for worker in 0..WORKERS {
            let ended = self.workers[worker].0.try_wait().unwrap();
            assert_eq!(ended, None, "worker {worker} ended by itself: {}", self.log(worker));
        }
    }

    fn log(&self, worker: usize) -> String {
        let log = self.group.folder.path().join(format!("worker-{worker}.log"));
        std::fs::read_to_string(log).unwrap_or_default()
    }
}

#[test]
fn a_group_survives_random_deaths_and_its_record_is_whole() {
    let seconds = number("GRAWA_CHAOS_SECONDS").unwrap_or(10);
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let seed = number("GRAWA_SEED").or_else(|| number("GRAWA_FIRST_SEED")).unwrap_or_else(clock);
    let method = std::env::var("GRAWA_CHAOS_METHOD").unwrap_or_else(|_| "mgrawa".into());
    let more = std::env::var("GRAWA_CHAOS_SET").unwrap_or_default();
    println!("GRAWA_SEED={seed} repeats this, with {method} {more}");
    let method = format!("method.name={method}");
    let mut settings =
        vec![&method[..], "evaluate.every=200step", "checkpoint.every=200step", "train.batch=16"];
    settings.extend(more.split_whitespace());
    let line = ["--wire", "plain", "--patience", "5"];
    let group = Group::begin(WORKERS as u32, "100000000step", &line, &settings);
    let draws = Key::new(seed, Purpose::Problem).stream();
    let mut chaos = Chaos { group, workers: Vec::new(), draws, done: Vec::new() };
    for worker in 0..WORKERS {
        let process = chaos.start(worker);
        chaos.workers.push(process);
    }
    chaos.group.wait_members(WORKERS);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(seconds) {
        chaos.sleep(900);
        chaos.strike();
    }
    // Calm: all come back, and there are evaluations and checkpoints.
    chaos.group.wait_members(WORKERS);
    chaos.group.wait_rounds(150);
    chaos.group.coordinator.signal("-INT");
    let codes: Vec<Option<i32>> = chaos.workers.iter_mut().map(Process::code).collect();
    let code = chaos.group.coordinator.code();
    let done = &chaos.done;
    assert!(code.is_some() && codes.iter().all(Option::is_some), "{code:?}, {codes:?}: {done:#?}");
    let folder = chaos.group.folder.path();
    let savers: Vec<_> = (0..SAVERS).map(|worker| folder.join(format!("kept-{worker}"))).collect();
    let savers: Vec<&Path> = savers.iter().map(AsRef::as_ref).collect();
    let check = check_record(&chaos.group.run(), &savers).unwrap();
    println!("GRAWA_SEED={seed}: {} faults: {check:?}", done.len());
    assert_eq!(check.findings, [""; 0], "GRAWA_SEED={seed}: {done:#?}");
    // Each of the two savers has a checkpoint of the calm at the end, and the best model.
    assert!(check.rounds > 150 && check.committed > 150, "{check:?}");
    assert!(check.models >= 1 && check.states >= 1 && check.bests >= 1, "{check:?}");
    for worker in 0..WORKERS {
        assert!(!chaos.log(worker).contains("panicked"), "{}", chaos.log(worker));
    }
}

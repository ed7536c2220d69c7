//! `kill -9` at random moments around the writing of checkpoints: `--resume` always goes on, from the newest checkpoint or the one
//! before, and prints from which; and the run comes to the bits of one that was never killed.
//!
//! The moments follow a fixed seed. `GRAWA_KILLS` is how many there are: `GRAWA_KILLS=200 cargo test -p grawa-cli --test kills`.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const SEED: u64 = 13;
const KILLS: usize = 20;
/// Longer than anything takes, however busy the machine.
const LONG: Duration = Duration::from_secs(120);

/// Numbers below a bound, one after the other (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % bound
    }
}

fn grawa(place: &Path, arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_grawa"));
    command.arg("train").args(arguments).current_dir(place);
    command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// A run that writes a checkpoint after every round, and is busy with that for most of its time.
fn start(place: &Path, budget: &str, out: &str) -> Child {
    let budget = format!("train.budget={budget}");
    let settings =
        ["model.width=24", "train.batch=4", "checkpoint.every=2step", "evaluate.every='end'", &budget];
    let mut all = vec!["--data", "digits", "--method", "mean:period=2", "--workers", "2", "--out", out];
    settings.iter().for_each(|setting| all.extend(["--set", setting]));
    grawa(place, &all)
}

/// The names of the checkpoints that are there, oldest first: the run never goes back, so that names sort by age.
fn checkpoints(run: &Path) -> Vec<String> {
    let entries = fs::read_dir(run.join("checkpoints")).into_iter().flatten();
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("step-")).collect();
    names.sort();
    names
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LONG, "{what} never came");
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[test]
fn a_run_killed_at_any_moment_goes_on_and_says_from_where() {
    let kills = std::env::var("GRAWA_KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    let mut random = Random(SEED);
    let place = TempDir::new().unwrap();
    let run = place.path().join("run");
    let is_writing = || {
        let entries = fs::read_dir(run.join("checkpoints")).into_iter().flatten().flatten();
        entries.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with('.'))
    };
    let mut child = start(place.path(), "1000000step", "run");
    wait_until("the first checkpoint", || !checkpoints(&run).is_empty());
    let (mut newest, mut before, mut writing, mut unseen) = (0, 0, 0, 0);
    for kill in 0..kills {
        // One in four while the run is only about to go on, the others around the writing of a checkpoint.
        if kill % 4 != 3 {
            wait_until("the next checkpoint", is_writing);
        }
        // Some at once: on a busy machine the writing is over when this goes on.
        let later = random.below(30_000);
        if kill % 4 != 0 {
            std::thread::sleep(Duration::from_micros(later));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // What an earlier one left is gone only where the run had gone on.
        writing += usize::from(kill % 4 != 3 && is_writing());
        let there = checkpoints(&run);
        child = grawa(place.path(), &["--resume", "run"]);
        if kill % 4 == 2 {
            // Killed before it may have printed anything.
            unseen += 1;
            continue;
        }
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.as_mut().unwrap());
        while !line.contains("resuming from") {
            line.clear();
            assert!(
                output.read_line(&mut line).unwrap() > 0,
                "kill {kill}: it did not go on; there are {there:?}"
            );
        }
        let name = line.trim().rsplit('/').next().unwrap().to_owned();
        match there.iter().rev().position(|other| *other == name) {
            Some(0) => newest += 1,
            Some(1) => before += 1,
            _ => panic!("kill {kill}: {line:?}, and there are {there:?}"),
        }
    }
    println!(
        "{kills} kills, {writing} of them while a checkpoint was being written: {newest} resumed from the newest, {before} from the one \
         before, {unseen} were killed again before they printed it"
    );
    assert!(kills < 20 || writing >= kills / 10, "only {writing} of {kills} kills hit a write");
    // It makes progress, and ends in the bits of a run that was never killed.
    let last = checkpoints(&run).pop().unwrap();
    wait_until("progress", || checkpoints(&run).iter().any(|name| *name > last));
    child.kill().unwrap();
    child.wait().unwrap();
    let last = checkpoints(&run).pop().unwrap();
    let steps: u64 = last["step-".len()..].parse().unwrap();
    let whole = start(place.path(), &format!("{steps}step"), "whole").wait_with_output().unwrap();
    assert_eq!(whole.status.code(), Some(0));
    let state = |run: &str| {
        fs::read(place.path().join(run).join("checkpoints").join(&last).join("state.safetensors"))
    };
    assert!(state("run").unwrap() == state("whole").unwrap(), "other bits at {last}");
}

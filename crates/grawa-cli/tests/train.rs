//! `grawa train` as a user meets it: a folder, a stop, a kill, a resume.

#![allow(clippy::unwrap_used)]

mod repeated;

use repeated::same;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

fn command(place: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_grawa"));
    command.arg("train").args(arguments).current_dir(place);
    command
}

fn train(place: &Path, arguments: &[&str]) -> Output {
    command(place, arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const SMALL: [&str; 14] = [
    "--data",
    "digits",
    "--method",
    "lgrawa:period=4",
    "--workers",
    "2",
    "--seed",
    "7",
    "--set",
    "model.width=4",
    "--set",
    "train.batch=16",
    "--set",
    "evaluate.every=20step",
];

fn small<'a>(budget: &'a str, out: &'a str) -> Vec<&'a str> {
    let mut all = SMALL.to_vec();
    all.extend(["--set", "checkpoint.every=8step", "--budget", budget, "--out", out]);
    all
}

#[test]
fn a_run_leaves_a_folder_that_tells_all_and_is_not_run_twice() {
    let place = TempDir::new().unwrap();
    let output = train(place.path(), &small("40step", "first"));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("done: 40 steps"), "{}", text(&output.stdout));
    let first = place.path().join("first");
    for file in ["recipe.toml", "events.jsonl", "metrics.csv", "checkpoints/step-00000040/model.safetensors"]
    {
        assert!(first.join(file).exists(), "{file}");
    }
    // The same bits again.
    assert_eq!(train(place.path(), &small("40step", "again")).status.code(), Some(0));
    same(&place.path().join("again"), &first);
    // A folder that is in use is refused and left alone; a finished run has nothing to do.
    let refused = train(place.path(), &small("40step", "first"));
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("already holds"), "{}", text(&refused.stderr));
    let finished = train(place.path(), &["--resume", "first"]);
    assert_eq!(finished.status.code(), Some(0));
    assert!(text(&finished.stdout).contains("is finished, at step 40"), "{}", text(&finished.stdout));
    same(&place.path().join("again"), &first);
}

#[test]
fn wrong_usage_is_told_and_leaves_nothing() {
    let place = TempDir::new().unwrap();
    for (arguments, words) in [
        (&["--data", "digist", "--out", "x"][..], "digits"),
        (&["--data", "digits", "--method", "lgrava", "--out", "x"], "did you mean 'lgrawa'?"),
        (&["--data", "digits", "--set", "train.budgte=5step", "--out", "x"], "did you mean 'train.budget'?"),
        (&["--data", "digits", "--method", "sgd", "--workers", "4", "--out", "x"], "one worker by itself"),
        (&["--resume", "nowhere"], "holds no checkpoint"),
        (&["--resume", "x", "--seed", "3"], "cannot be used with"),
    ] {
        let output = train(place.path(), arguments);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(words), "{arguments:?}: {error}");
        assert!(!place.path().join("x").exists(), "{arguments:?}");
    }
}

#[cfg(not(feature = "mpi"))]
#[test]
fn without_mpi_it_is_said_how_to_get_it() {
    let place = TempDir::new().unwrap();
    let output = train(place.path(), &["--data", "digits", "--comm", "mpi"]);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("cargo build --release --features mpi"), "{error}");
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn a_dry_run_tells_and_trains_nothing() {
    let place = TempDir::new().unwrap();
    let output = train(place.path(), &["--data", "cifar10", "--method", "lgrawa", "--dry-run"]);
    let plan = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(plan.contains("[method]") && plan.contains("resnet20") && plan.contains("269"), "{plan}");
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}

fn start(place: &Path, arguments: &[&str]) -> Child {
    command(place, arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// Waits until the run has a checkpoint at all.
fn first_checkpoint(folder: &Path) {
    let start = Instant::now();
    while !folder.join("checkpoints/step-00000000/state.safetensors").exists()
        && fs::read_dir(folder.join("checkpoints")).map_or(0, Iterator::count) < 2
    {
        assert!(start.elapsed() < Duration::from_secs(60), "no checkpoint came");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Killed again and again at moments that do not matter, a run ends as one that was not.
#[test]
fn a_run_that_is_killed_again_and_again_ends_as_if_it_was_not() {
    let place = TempDir::new().unwrap();
    let whole = train(place.path(), &small("600step", "whole"));
    assert_eq!(whole.status.code(), Some(0), "{}", text(&whole.stderr));
    let broken = place.path().join("broken");
    let mut child = start(place.path(), &small("600step", "broken"));
    let mut kills = 0;
    loop {
        first_checkpoint(&broken);
        // Pauses of no period, so that every part of a cycle is hit.
        std::thread::sleep(Duration::from_millis(40 + 37 * kills % 110));
        if let Some(status) = child.try_wait().unwrap() {
            assert_eq!(status.code(), Some(0));
            break;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
        child = start(place.path(), &["--resume", "broken", "--quiet"]);
        if kills == 12 {
            assert_eq!(child.wait().unwrap().code(), Some(0));
            break;
        }
    }
    assert!(kills > 0, "it was too quick to be killed");
    same(&broken, &place.path().join("whole"));
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_within_a_step_and_says_how_to_go_on() {
    let place = TempDir::new().unwrap();
    assert_eq!(train(place.path(), &small("400step", "whole")).status.code(), Some(0));
    let mut child = start(place.path(), &small("400step", "broken"));
    first_checkpoint(&place.path().join("broken"));
    let asked = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(asked.success());
    let output = child.wait_with_output().unwrap();
    let said = text(&output.stdout);
    if output.status.code() == Some(0) {
        // It was done before it could be stopped.
        assert!(said.contains("done: 400 steps"), "{said}");
    } else {
        assert_eq!(output.status.code(), Some(1));
        assert!(said.contains("go on with: grawa train --resume broken"), "{said}");
        let resumed = train(place.path(), &["--resume", "broken"]);
        assert_eq!(resumed.status.code(), Some(0), "{}", text(&resumed.stderr));
    }
    same(&place.path().join("broken"), &place.path().join("whole"));
    child = start(place.path(), &["--resume", "broken"]);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// A free run, repeated from its record.
#[test]
fn a_replay_has_the_bits_of_the_run_it_repeats() {
    let place = TempDir::new().unwrap();
    let mut arguments = small("60step", "free");
    arguments.extend(["--set", "train.pace=free"]);
    let output = train(place.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let output = train(place.path(), &["--replay", "free", "--out", "again"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let state = |name: &str| {
        fs::read(place.path().join(name).join("checkpoints/step-00000060/state.safetensors")).unwrap()
    };
    assert!(state("free") == state("again"));
}

#[test]
fn a_warm_start_takes_another_head() {
    let place = TempDir::new().unwrap();
    assert_eq!(train(place.path(), &small("8step", "first")).status.code(), Some(0));
    let init = "first/checkpoints/step-00000008/model.safetensors";
    let mut arguments = small("4step", "second");
    arguments.extend(["--init", init, "--set", "model.classes=12"]);
    let output = train(place.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let mut arguments = small("4step", "third");
    arguments.extend(["--init", init, "--set", "model.width=5"]);
    let output = train(place.path(), &arguments);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("conv1.weight"), "{}", text(&output.stderr));
    assert!(!place.path().join("third").exists());
}

//! Programs that bring their run themselves: how they are started, watched and started again. The Python package tests what they do.

#![cfg(unix)]
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output, Stdio};

fn grawa(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_grawa"));
    command.current_dir(folder).args(words).stdin(Stdio::null());
    command
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// What a program prints is in its log, and appears with its number; --quiet leaves that away.
#[test]
fn output_is_printed_with_the_workers_number() {
    let folder = tempfile::tempdir().unwrap();
    let script = r#"echo "hello from $GRAWA_LOCAL_RANK"; echo "${RANK-no rank} ${WORLD_SIZE-no size} $OMP_NUM_THREADS" >&2; exit 3"#;
    for quiet in [false, true] {
        let out = format!("quiet-{quiet}");
        let mut command = grawa(folder.path(), &["launch", "--workers", "2", "--out", &out]);
        command.args(quiet.then_some("--quiet")).args(["--", "sh", "-c", script]);
        let output = command.env_remove("RANK").env_remove("WORLD_SIZE").output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        let (found, log) = (text(&output), folder.path().join(&out).join("worker-1.log"));
        assert_eq!(found.contains("[worker 1] hello from 1"), !quiet, "{found}");
        assert_eq!(found.contains("[worker 0] no rank no size "), !quiet, "{found}");
        assert!(std::fs::read_to_string(log).unwrap().contains("hello from 1"));
        assert!(found.contains("ended before the first round (exit status: 3)"), "{found}");
        assert!(folder.path().join(&out).join("session.toml").exists());
    }
}

/// A program that exits badly is started again, so many times for each worker; one that exits well is not.
#[test]
fn a_program_that_fails_is_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let script = r#"echo run; test "$GRAWA_LOCAL_RANK" = 1 && kill -9 $$; exit 7"#;
    let words = ["launch", "--workers", "2", "--restarts", "2", "--out", "run", "--", "sh", "-c", script];
    let output = grawa(folder.path(), &words).output().unwrap();
    let found = text(&output);
    assert_eq!(output.status.code(), Some(1), "{found}");
    assert!(found.contains("worker 0 ended (exit status: 7); it is started again (2 of 2)"), "{found}");
    assert!(found.contains("worker 1 ended (signal: 9"), "{found}");
    let log = std::fs::read_to_string(folder.path().join("run/worker-0.log")).unwrap();
    assert_eq!(log.lines().count(), 3, "{log}");
    let words = ["join", "127.0.0.1:9", "--wire", "plain", "--restarts", "1", "--", "sh", "-c"];
    for (script, runs) in [("echo run; exit 7", 2), ("echo run", 1)] {
        let output = grawa(folder.path(), &words).arg(script).output().unwrap();
        assert_eq!(output.status.success(), runs == 1);
        assert_eq!(String::from_utf8_lossy(&output.stdout).matches("run").count(), runs, "{}", text(&output));
    }
}

/// A program that changes its folder before it joins finds the key and the run's folder.
#[test]
fn a_program_may_change_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let script = r#"cd / && test -f "$GRAWA_KEY" && test -d "$GRAWA_OUT" && echo both are there; exit 3"#;
    let words = ["launch", "--workers", "1", "--out", "run", "--", "sh", "-c", script];
    let found = text(&grawa(folder.path(), &words).output().unwrap());
    assert!(found.contains("[worker 0] both are there"), "{found}");
    // What is printed is what was given.
    assert!(found.contains("in run/worker-0.log"), "{found}");
    assert!(grawa(folder.path(), &["key", "new", "run.key"]).output().unwrap().status.success());
    let words = ["join", "127.0.0.1:9", "--key", "run.key", "--out", "run", "--", "sh", "-c", script];
    let found = text(&grawa(folder.path(), &words).output().unwrap());
    assert!(found.contains("both are there"), "{found}");
}

/// The program is gone when it is to be started again: that counts as another failure, and the other process is not ended by it.
#[test]
fn a_restart_that_fails_costs_that_process_only() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program.sh");
    let script =
        "#!/bin/sh\n[ $GRAWA_LOCAL_RANK = 0 ] && { sleep 2; rm program.sh; exit 7; }\nsleep 7; echo there\n";
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let words = ["launch", "--workers", "2", "--restarts", "8", "--out", "run", "--", "./program.sh"];
    let output = grawa(folder.path(), &words).output().unwrap();
    let found = text(&output);
    assert_eq!(output.status.code(), Some(1), "{found}");
    assert!(found.contains("worker 0: cannot start ./program.sh"), "{found}");
    assert!(found.contains("[worker 1] there"), "{found}");
}

/// A worker with a recipe of its own cannot join a run that waits for programs with a session.
#[test]
fn a_run_without_a_recipe_is_for_sessions() {
    let folder = tempfile::tempdir().unwrap();
    let script = r#"exec "$0" join "$GRAWA_COORDINATOR" --key "$GRAWA_KEY""#;
    let words = ["launch", "--workers", "1", "--", "sh", "-c", script, env!("CARGO_BIN_EXE_grawa")];
    let output = grawa(folder.path(), &words).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("the coordinator has no recipe"), "{}", text(&output));
    let output =
        grawa(folder.path(), &["launch", "--workers", "1", "--dry-run", "--", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(text(&output).contains("there is no plan to show"), "{}", text(&output));
}

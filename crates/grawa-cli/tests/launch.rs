//! Workers in processes of their own: one is killed, another comes, and the run ends as it should.

#![allow(clippy::unwrap_used)]

mod one_gpu;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn grawa(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_grawa"));
    command.current_dir(folder).args(words).stdin(Stdio::null());
    command
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn last_line(folder: &Path, run: &str) -> String {
    let output = grawa(folder, &["eval", run]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    String::from_utf8_lossy(&output.stdout).lines().last().unwrap().to_owned()
}

/// The same bits, whether workers are threads or processes.
#[test]
fn processes_learn_what_threads_learn() {
    let folder = tempfile::tempdir().unwrap();
    let words = ["--data", "digits", "--method", "lgrawa", "--workers", "2", "--budget", "64step", "--quiet"];
    for command in ["launch", "train"] {
        let output = grawa(folder.path(), &[command]).args(words).args(["--out", command]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
    }
    assert_eq!(last_line(folder.path(), "launch"), last_line(folder.path(), "train"));
}

/// Processes with a set of workers each share a GPU.
#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn processes_on_a_gpu_learn_what_one_process_learns() {
    let folder = tempfile::tempdir().unwrap();
    for (workers, each) in [("4", "1"), ("8", "4")] {
        let of = |kind: &str| format!("{kind}-{workers}");
        for (command, more) in [("train", &[][..]), ("launch", &["--per-process", each])] {
            let mut run = grawa(folder.path(), &[command, "--workers", workers, "--out", &of(command)]);
            let output = run.args(one_gpu::RUN).args(more).output().unwrap();
            assert!(output.status.success(), "{}", text(&output));
        }
        one_gpu::agree(&folder.path().join(of("launch")), &folder.path().join(of("train")));
    }
}

/// A program of one's own joins with what it finds in the environment. Here it is `grawa join` behind a shell.
#[cfg(unix)]
#[test]
fn any_program_can_be_a_worker() {
    let folder = tempfile::tempdir().unwrap();
    let script = r#"exec "$0" join "$GRAWA_COORDINATOR" --key "$GRAWA_KEY" --workers "$GRAWA_WORKERS" --out "$GRAWA_OUT""#;
    let words = ["launch", "--method", "lgrawa:period=4", "--workers", "4", "--per-process", "2", "--quiet"];
    let mut command = grawa(folder.path(), &words);
    command.args([
        "--budget",
        "32step",
        "--out",
        "own",
        "--",
        "sh",
        "-c",
        script,
        env!("CARGO_BIN_EXE_grawa"),
    ]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let events = std::fs::read_to_string(folder.path().join("own/events.jsonl")).unwrap();
    assert_eq!(events.lines().filter(|line| line.contains(r#""event":"round""#)).count(), 8);
    assert!(folder.path().join("own/worker-1.log").exists());

    let output = grawa(folder.path(), &["launch", "--workers", "2", "--", "./missing"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("cannot start ./missing"), "{}", text(&output));

    let output =
        grawa(folder.path(), &["launch", "--workers", "2", "--quiet", "--", "false"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("a worker ended before the first round"), "{}", text(&output));
}

/// Where workers are to say where the run is, and have left nothing, nobody is waited for.
#[cfg(unix)]
#[test]
fn workers_without_a_state_are_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let words = ["launch", "--workers", "1", "--quiet", "--out", "run", "--", "false"];
    assert!(!grawa(folder.path(), &words).output().unwrap().status.success());
    let words = ["launch", "--resume", "run", "--from-workers", "--quiet", "--", "sleep", "100"];
    let output = grawa(folder.path(), &words).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("There is nothing to continue from"), "{}", text(&output));
}

/// It says that, and not that workers failed, nor how to resume.
#[test]
fn a_run_that_diverged_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let words =
        ["launch", "--data", "digits", "--rate", "1e30", "--workers", "2", "--budget", "64step", "--quiet"];
    let output = grawa(folder.path(), &words).args(["--out", "run"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let printed = text(&output);
    assert!(
        printed.contains("diverged: no worker's parameters are finite") && !printed.contains("failed"),
        "{printed}"
    );
}

/// Ctrl-C at a coordinator before the first round is an orderly end for its workers.
#[cfg(unix)]
#[test]
fn a_coordinator_that_is_stopped_early_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let words =
        ["coordinate", "--data", "digits", "--workers", "2", "--wire", "plain", "--listen", "127.0.0.1:0"];
    let mut command = grawa(folder.path(), &words);
    let mut coordinator =
        command.args(["--out", "run"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut printed = BufReader::new(coordinator.stdout.take().unwrap());
    let mut coordinator = Kept(coordinator);
    let mut line = String::new();
    while !line.starts_with("listening at ") {
        line.clear();
        assert!(printed.read_line(&mut line).unwrap() > 0);
    }
    let address = line.split(' ').nth(2).unwrap().to_owned();
    let mut command = grawa(folder.path(), &["join", &address, "--wire", "plain", "--threads", "1"]);
    let worker = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(3));
    assert!(Command::new("kill").args(["-INT", &coordinator.0.id().to_string()]).status().unwrap().success());
    let output = worker.wait_with_output().unwrap();
    assert!(
        text(&output).contains("the coordinator stopped the run before its first round"),
        "{}",
        text(&output)
    );
    assert!(!text(&output).contains("error"), "{}", text(&output));
    assert!(!coordinator.ends_well());
}

/// `grawa join … -- COMMAND` hands the group to a program, and ends as it does.
#[cfg(unix)]
#[test]
fn a_joining_program_finds_the_coordinator() {
    let folder = tempfile::tempdir().unwrap();
    let words = ["join", "127.0.0.1:9", "--wire", "plain", "--workers", "3", "--"];
    let script = r#"echo "$GRAWA_COORDINATOR $GRAWA_WORKERS ${GRAWA_KEY-none}"; exit $1"#;
    for (code, succeeds) in [("0", true), ("7", false)] {
        let output = grawa(folder.path(), &words).args(["sh", "-c", script, "sh", code]).output().unwrap();
        assert_eq!(output.status.success(), succeeds);
        assert!(text(&output).contains("127.0.0.1:9 3 none"), "{}", text(&output));
    }
}

/// Two processes with two workers each: all four are in every round.
#[test]
fn processes_may_have_several_workers() {
    let folder = tempfile::tempdir().unwrap();
    let words = ["launch", "--data", "digits", "--method", "lgrawa:period=4", "--workers", "4", "--quiet"];
    let mut command = grawa(folder.path(), &words);
    let output =
        command.args(["--per-process", "2", "--budget", "32step", "--out", "sets"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let events = std::fs::read_to_string(folder.path().join("sets/events.jsonl")).unwrap();
    let rounds: Vec<serde_json::Value> = events
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|event: &serde_json::Value| event["event"] == "round")
        .collect();
    assert_eq!(rounds.len(), 8, "{events}");
    assert!(rounds.iter().all(|round| round["workers"].as_array().unwrap().len() == 4), "{events}");
    assert!(!folder.path().join("sets/worker-2.log").exists());
    let output = grawa(folder.path(), &words).args(["--per-process", "3", "--out", "no"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(text(&output).contains("multiple of --per-process"), "{}", text(&output));
}

/// However quick the end comes, all that was found is recorded before it, and that workers leave then is no fault.
#[test]
fn the_end_comes_last() {
    let folder = tempfile::tempdir().unwrap();
    let words = ["launch", "--data", "digits", "--method", "mgrawa:period=2", "--workers", "3", "--quiet"];
    for run in ["one", "two", "three", "four"] {
        let mut command = grawa(folder.path(), &words);
        command.args(["--set", "model.width=4", "--set", "train.batch=8", "--set", "evaluate.every=20step"]);
        let output = command.args(["--budget", "60step", "--out", run]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        let events = std::fs::read_to_string(folder.path().join(run).join("events.jsonl")).unwrap();
        let kind = |line: &str| line.split('"').nth(3).unwrap().to_owned();
        let count = |what: &str| events.lines().filter(|line| kind(line) == what).count();
        assert_eq!((count("round"), count("fault")), (30, 0), "{events}");
        let last: Vec<String> = events.lines().rev().take(3).map(kind).collect();
        assert!(last[0] == "finished" && last[1..].contains(&"evaluated".into()), "{last:?}");
        let evaluated = events.lines().filter(|line| kind(line) == "evaluated");
        let rounds: Vec<bool> = evaluated
            .map(|line| ["10", "20", "30"].iter().any(|n| line.contains(&format!("\"rounds\":{n},"))))
            .collect();
        assert_eq!(rounds, [true; 3], "{events}");
    }
}

/// Rounds that are reported without a pause do not keep a launch from seeing Ctrl-C. It leaves a checkpoint, from which threads go on; and
/// while a run is at work nobody else may use its folder.
#[cfg(unix)]
#[test]
fn a_busy_launch_hears_ctrl_c() {
    let folder = tempfile::tempdir().unwrap();
    let words = ["launch", "--data", "digits", "--method", "mean:period=1", "--workers", "2", "--quiet"];
    let mut command = grawa(folder.path(), &words);
    command.args(["--set", "train.batch=1", "--set", "model.width=4", "--set", "evaluate.every=end"]);
    command.args(["--set", "checkpoint.every=end", "--budget", "100000000step", "--out", "run"]);
    let rounds = || -> Vec<u64> {
        let events = std::fs::read_to_string(folder.path().join("run/events.jsonl")).unwrap_or_default();
        let number = |line: &str| line.split_once("\"rounds\":")?.1.split(',').next()?.parse().ok();
        events.lines().filter(|line| line.contains("\"event\":\"round\"")).filter_map(number).collect()
    };
    let stop_after = |mut process: Kept, more: usize| {
        let (began, before) = (Instant::now(), rounds().len());
        while rounds().len() < before + more {
            assert!(began.elapsed() < Duration::from_secs(100), "no rounds");
            std::thread::sleep(Duration::from_millis(20));
        }
        let again = grawa(folder.path(), &["train", "--resume", "run"]).output().unwrap();
        assert_eq!(again.status.code(), Some(2), "{}", text(&again));
        assert!(text(&again).contains("is at work"), "{}", text(&again));
        assert!(Command::new("kill").args(["-INT", &process.0.id().to_string()]).status().unwrap().success());
        assert!(!process.ends_well(), "what is not finished has not succeeded");
        assert_eq!(process.0.try_wait().unwrap().and_then(|status| status.code()), Some(1));
        assert!(grawa(folder.path(), &["eval", "run"]).output().unwrap().status.success());
    };
    stop_after(Kept(command.stdout(Stdio::null()).spawn().unwrap()), 200);
    let mut resume = grawa(folder.path(), &["train", "--resume", "run", "--quiet"]);
    stop_after(Kept(resume.stdout(Stdio::null()).spawn().unwrap()), 100);
    let rounds = rounds();
    assert_eq!(rounds, (1..=rounds.len() as u64).collect::<Vec<_>>());
}

/// Only those with the run's key join a launched run, and nobody but its owner can read that. It is removed at the end. Without a key
/// anyone on the machine may join.
#[cfg(unix)]
#[test]
fn a_launch_is_its_own_workers() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let key = grawa(folder.path(), &["key", "new", "other.key"]).output().unwrap();
    assert!(key.status.success(), "{}", text(&key));
    let outsider = |out: &str, line: &[&str]| {
        let coordinator = std::fs::read_to_string(folder.path().join(out).join("coordinator.toml")).unwrap();
        let address = coordinator.split_once("address = \"").unwrap().1.split('"').next().unwrap().to_owned();
        let mut command = grawa(folder.path(), &["join", &address, "--patience", "2"]);
        command.args(line).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    for (out, line) in [("keyed", &[][..]), ("plain", &["--wire", "plain"][..])] {
        let words = ["launch", "--data", "digits", "--method", "mean:period=4", "--workers", "2", "--quiet"];
        let mut command = grawa(folder.path(), &words);
        command.args(["--set", "train.batch=16", "--set", "model.width=4", "--set", "evaluate.every=end"]);
        let launch = command.args(["--budget", "10000000step", "--out", out]).args(line);
        let mut launch = Kept(launch.stdout(Stdio::null()).spawn().unwrap());
        let events =
            || std::fs::read_to_string(folder.path().join(out).join("events.jsonl")).unwrap_or_default();
        let began = Instant::now();
        let wait = |what: &str| {
            while !events().contains(what) {
                assert!(began.elapsed() < Duration::from_secs(100), "{what:?} never came:\n{}", events());
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        wait("\"event\":\"round\"");
        let key = folder.path().join(out).join("run.key");
        if out == "keyed" {
            assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
            for line in [&["--wire", "plain"][..], &["--key", "other.key"]] {
                let refused = outsider(out, line).wait_with_output().unwrap();
                assert_eq!(refused.status.code(), Some(1), "{}", text(&refused));
            }
            assert!(!events().contains("fetches the state at operation"), "{}", events());
        } else {
            assert!(!key.exists());
            let mut joined = Kept(outsider(out, line));
            wait("fetches the state at operation");
            joined.0.kill().unwrap();
        }
        assert!(Command::new("kill").args(["-INT", &launch.0.id().to_string()]).status().unwrap().success());
        assert!(!launch.ends_well(), "what is not finished has not succeeded");
        assert!(!key.exists(), "the key outlives its run");
        assert!(grawa(folder.path(), &["eval", out]).output().unwrap().status.success());
    }
}

/// Nobody comes in the place of a launched worker: without it the first round would be waited for for ever.
#[cfg(target_os = "linux")]
#[test]
fn a_launch_that_cannot_begin_ends() {
    let folder = tempfile::tempdir().unwrap();
    let words = ["launch", "--data", "digits", "--method", "mean:period=100000", "--workers", "3", "--quiet"];
    let mut command = grawa(folder.path(), &words);
    let launch =
        command.args(["--out", "run"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let path = format!("/proc/{0}/task/{0}/children", launch.id());
    let began = Instant::now();
    let child = loop {
        let children = std::fs::read_to_string(&path).unwrap_or_default();
        if let [first, _, _] = children.split_whitespace().collect::<Vec<_>>()[..] {
            break first.to_owned();
        }
        assert!(began.elapsed() < Duration::from_secs(100), "no workers");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(Command::new("kill").args(["-KILL", &child]).status().unwrap().success());
    let mut launch = Kept(launch);
    assert!(!launch.ends_well());
    assert_eq!(launch.0.try_wait().unwrap().and_then(|status| status.code()), Some(1));
    let mut printed = String::new();
    launch.0.stderr.take().unwrap().read_to_string(&mut printed).unwrap();
    assert!(printed.contains("before the first round (signal: 9"), "{printed}");
}

/// A process that ends with the test.
struct Kept(Child);

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Kept {
    fn ends_well(&mut self) -> bool {
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(100) {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.success();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }
}

#[test]
fn a_killed_worker_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let key = grawa(folder.path(), &["key", "new", "run.key"]).output().unwrap();
    assert!(key.status.success(), "{}", text(&key));
    let words = [
        "coordinate",
        "--data",
        "digits",
        "--method",
        "lgrawa:period=4",
        "--workers",
        "2",
        "--budget",
        "1500step",
        "--quiet",
        "--listen",
        "127.0.0.1:0",
        "--key",
        "run.key",
        "--out",
        "run",
    ];
    let mut coordinator = grawa(folder.path(), &words).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut printed = BufReader::new(coordinator.stdout.take().unwrap());
    printed.read_line(&mut line).unwrap();
    let address = line.split(' ').nth(2).unwrap().to_owned();
    let mut coordinator = Kept(coordinator);
    let join = |more: &[&str]| {
        let words = ["join", &address, "--key", "run.key", "--threads", "1"];
        Kept(grawa(folder.path(), &words).args(more).stdout(Stdio::null()).spawn().unwrap())
    };
    let (mut stays, mut dies) = (join(&[]), join(&[]));
    let events = || std::fs::read_to_string(folder.path().join("run/events.jsonl")).unwrap_or_default();
    let wait = |what: &str| {
        let began = Instant::now();
        while !events().contains(what) {
            assert!(began.elapsed() < Duration::from_secs(60), "{what:?} never came:\n{}", events());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    wait("\"event\":\"round\"");
    wait("no worker saves the model");
    dies.0.kill().unwrap();
    wait("lost its connection");
    let mut comes = join(&["--out", "kept"]);
    wait("fetches the state at operation");
    wait("the model is saved from now on");
    assert!(stays.ends_well() && comes.ends_well() && coordinator.ends_well());
    assert!(events().contains("\"event\":\"finished\""));
    // It is not the first of those present, but the only one that was given a folder.
    last_line(folder.path(), "kept");
    let mut end = String::new();
    printed.read_to_string(&mut end).unwrap();
    assert!(
        end.contains("has saved the model of step ") && end.contains("on its machine: grawa eval "),
        "{end}"
    );
    let refused =
        grawa(folder.path(), &["join", &address, "--key", "run.key", "--patience", "1"]).output().unwrap();
    assert!(text(&refused).contains("no coordinator answers"), "{}", text(&refused));
}

/// A user learns soon that a coordinator does not answer, and help shows no option that is always refused.
#[test]
fn silence_is_reported_and_help_is_true() {
    let folder = tempfile::tempdir().unwrap();
    let output = grawa(folder.path(), &["join", "127.0.0.1:9", "--wire", "plain", "--patience", "3"])
        .output()
        .unwrap();
    let printed = text(&output);
    assert!(printed.contains("no answer from 127.0.0.1:9 yet; trying for 3 s"), "{printed}");
    for command in ["launch", "coordinate"] {
        let help = text(&grawa(folder.path(), &[command, "--help"]).output().unwrap());
        assert!(help.contains("--resume") && help.contains("--budget"), "{help}");
        for refused in ["--seeds <", "--checkpoint <", "--replay <", "--comm <"] {
            assert!(!help.contains(refused), "{command}: {refused}");
        }
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (words, code, why) in [
        (&["launch", "--data", "digits", "--method", "dp-sgd"][..], 2, "use a method that has a centre"),
        (&["launch", "--resume", "x"], 2, "are for `grawa train`"),
        (&["launch", "--data", "cifar10", "--dir", "nowhere"], 1, "nowhere"),
        (&["launch", "--data", "digits", "--comm", "mpi"], 2, "are for `grawa train`"),
        (&["join", "127.0.0.1:9", "--key", "none.key"], 2, "none.key"),
        (&["join", "127.0.0.1:9", "--wire", "plain", "--patience", "1"], 1, "no coordinator answers"),
        (&["join", "127.0.0.1:9"], 2, "--key"),
        (&["join", "127.0.0.1"], 2, "expected a host and a port"),
        (
            &["join", "127.0.0.1:9", "--wire", "plain", "--listen", "0.0.0.0:70000"],
            2,
            "expected a host and a port",
        ),
        (
            &["coordinate", "--data", "digits", "--wire", "plain", "--listen", "here"],
            2,
            "expected a host and a port",
        ),
        (&["launch", "--data", "digits", "--page", "here"], 2, "expected a host and a port"),
    ] {
        let output = grawa(folder.path(), words).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{words:?}: {}", text(&output));
        assert!(text(&output).contains(why), "{words:?}: {}", text(&output));
    }
    assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none(), "nothing was written");
}

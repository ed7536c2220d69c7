//! `grawa train --comm mpi` as a user meets it: the bits of threads, a rank that is killed or fails, a stop, refusals.
//! Needs `mpirun`; see `.ci/mpi`.

#![allow(clippy::unwrap_used)]

mod one_gpu;
mod repeated;

use repeated::same;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const GRAWA: &str = env!("CARGO_BIN_EXE_grawa");

/// In a container one is root, and there are fewer cores than ranks. Other MPIs do not look at these.
fn free(mut mpirun: Command) -> Command {
    let names =
        ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_rmaps_base_oversubscribe"];
    mpirun.envs(names.map(|name| (name, "1")));
    mpirun
}

fn mpirun(place: &Path, ranks: u32, words: &[&str]) -> Command {
    let mut command = free(Command::new("mpirun"));
    command.args(["-n", &ranks.to_string(), GRAWA, "train", "--comm", "mpi"]).args(words);
    command.current_dir(place).stdin(Stdio::null());
    command
}

fn ranks(place: &Path, count: u32, words: &[&str]) -> Output {
    mpirun(place, count, words).output().unwrap()
}

fn threads(place: &Path, words: &[&str]) -> Output {
    Command::new(GRAWA).arg("train").args(words).current_dir(place).output().unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn done(output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{}", text(output));
}

const SMALL: [&str; 11] = [
    "--data",
    "digits",
    "--seed",
    "7",
    "--quiet",
    "--set",
    "model.width=4",
    "--set",
    "train.batch=16",
    "--set",
    "evaluate.every=20step",
];

fn small<'a>(more: &[&'a str]) -> Vec<&'a str> {
    SMALL.iter().copied().chain(["--set", "checkpoint.every=8step"]).chain(more.iter().copied()).collect()
}

/// Every method, groups too: recipe, events, metrics and checkpoints are those of threads, byte for byte.
#[test]
fn ranks_learn_what_threads_learn() {
    let place = TempDir::new().unwrap();
    for (method, workers) in [
        ("easgd:period=4", 3),
        ("easgd:period=4,preset=reference", 2),
        ("lsgd:period=4", 3),
        ("lsgd:period=4,inner.group=2,inner.period=2", 4),
        ("grawa:period=4", 2),
        ("mgrawa:period=4", 3),
        ("lgrawa:period=4", 4),
        ("local-mgrawa:period=4", 2),
        ("local-lgrawa:period=4", 3),
        ("mean:period=4", 2),
        ("diloco:period=4", 3),
        ("slowmo:period=4", 2),
        ("dppf:period=4", 3),
        ("qsr:period=4", 2),
        ("dp-sgd", 3),
        ("dp-sam", 2),
        ("sgd", 1),
    ] {
        let count = workers.to_string();
        let words = small(&["--method", method, "--workers", &count, "--budget", "26step", "--out"]);
        let with = |out| words.iter().copied().chain([out]).collect::<Vec<_>>();
        done(&threads(place.path(), &with("threads")));
        let output = ranks(place.path(), workers, &with("ranks"));
        done(&output);
        assert_eq!(text(&output).matches("done: 26 steps").count(), 1, "{}", text(&output));
        same(&place.path().join("ranks"), &place.path().join("threads"));
        fs::remove_dir_all(place.path().join("threads")).unwrap();
        fs::remove_dir_all(place.path().join("ranks")).unwrap();
    }
}

/// Ranks with a set of workers each share a GPU.
#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn ranks_on_a_gpu_learn_what_one_process_learns() {
    let place = TempDir::new().unwrap();
    for (count, workers, each) in [(4, "4", "1"), (2, "8", "4")] {
        let words = [&one_gpu::RUN[..], &["--workers", workers, "--out"]].concat();
        done(&threads(place.path(), &[&words[..], &[workers]].concat()));
        let out = format!("ranks-{workers}");
        done(&ranks(place.path(), count, &[&words[..], &[&out, "--per-process", each]].concat()));
        one_gpu::agree(&place.path().join(out), &place.path().join(workers));
    }
}

/// A job that ends with the test.
struct Kept(Option<Child>);

impl Kept {
    fn start(mut command: Command) -> Self {
        Kept(Some(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()))
    }

    fn id(&self) -> u32 {
        self.0.as_ref().unwrap().id()
    }

    fn end(mut self) -> Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn wait_for(what: &str, is_there: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_there() {
        assert!(began.elapsed() < Duration::from_secs(100), "{what} never came");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The processes that this one has started and their children, with what they were called by.
fn children(of: u32) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(id) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let parent =
            stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse::<u32>().ok());
        if parent == Some(of) {
            let words = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
            found.push((id, words.replace('\0', " ")));
            found.extend(children(id));
        }
    }
    found
}

fn signal(name: &str, id: u32) {
    assert!(Command::new("kill").args([name, &id.to_string()]).status().unwrap().success());
}

const LONG: [&str; 6] = ["--method", "lgrawa:period=4", "--workers", "2", "--budget", "300step"];

/// A rank that dies ends the job at once, and prints how to resume; with ranks or with threads, the run then ends as if
/// nothing had happened.
#[test]
fn a_rank_that_dies_ends_the_job_which_can_be_gone_on_with() {
    let place = TempDir::new().unwrap();
    let whole: Vec<&str> = small(&LONG).into_iter().chain(["--out", "whole"]).collect();
    done(&threads(place.path(), &whole));
    let words: Vec<&str> = small(&LONG).into_iter().chain(["--out", "broken"]).collect();
    let job = Kept::start(mpirun(place.path(), 2, &words));
    let broken = place.path().join("broken");
    wait_for("a checkpoint", || broken.join("checkpoints/step-00000016").exists());
    let workers = children(job.id());
    let last = workers.iter().filter(|(_, words)| words.starts_with(GRAWA)).map(|(id, _)| *id).max().unwrap();
    signal("-KILL", last);
    let output = job.end();
    assert_ne!(output.status.code(), Some(0));
    let printed = text(&output);
    assert!(printed.contains("with: mpirun -n 2 grawa train --comm mpi --resume broken"), "{printed}");
    copy(&broken, &place.path().join("other"));
    let resumed = ranks(place.path(), 2, &["--resume", "broken", "--quiet"]);
    done(&resumed);
    same(&broken, &place.path().join("whole"));
    done(&threads(place.path(), &["--resume", "other", "--quiet"]));
    same_states(&place.path().join("other"), &place.path().join("whole"), "step-00000300");
    let finished = ranks(place.path(), 2, &["--resume", "broken"]);
    done(&finished);
    assert_eq!(text(&finished).matches("nothing to do").count(), 1, "{}", text(&finished));
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

fn same_states(found: &Path, expected: &Path, step: &str) {
    for file in ["state.safetensors", "model.safetensors", "manifest.toml"] {
        let read = |run: &Path| fs::read(run.join("checkpoints").join(step).join(file)).unwrap();
        assert!(read(found) == read(expected), "{file}");
    }
}

/// Ctrl-C to `mpirun`: whether or not there was time for a checkpoint, the run can be gone on with, and ends as if it had
/// not been stopped.
#[test]
fn a_stop_says_how_to_go_on() {
    let place = TempDir::new().unwrap();
    let with = |out| small(&LONG).into_iter().chain(["--out", out]).collect::<Vec<_>>();
    done(&threads(place.path(), &with("whole")));
    let job = Kept::start(mpirun(place.path(), 2, &with("broken")));
    let broken = place.path().join("broken");
    wait_for("a checkpoint", || broken.join("checkpoints/step-00000016").exists());
    signal("-INT", job.id());
    let output = job.end();
    let printed = text(&output);
    assert_ne!(output.status.code(), Some(0), "{printed}");
    assert!(printed.contains("with: mpirun -n 2 grawa train --comm mpi --resume broken"), "{printed}");
    done(&ranks(place.path(), 2, &["--resume", "broken", "--quiet"]));
    same(&broken, &place.path().join("whole"));
}

/// At a free pace every cycle has M·τ steps, whoever took them; threads repeat the run from its record.
#[test]
fn a_free_pace_shares_out_the_steps() {
    let place = TempDir::new().unwrap();
    let more =
        ["--method", "mgrawa:period=8", "--set", "train.pace=free", "--budget", "60step", "--out", "free"];
    done(&ranks(place.path(), 3, &small(&more)));
    let events = fs::read_to_string(place.path().join("free/events.jsonl")).unwrap();
    let mut rounds = 0;
    for line in events.lines() {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        if event["event"] == "round" {
            rounds += 1;
            let steps =
                event["workers"].as_array().unwrap().iter().map(|share| share["steps"].as_u64().unwrap());
            let quota = if rounds == 8 { 4 } else { 8 };
            assert_eq!(steps.sum::<u64>(), 3 * quota, "{line}");
        }
    }
    assert_eq!(rounds, 8);
    for (again, output) in [
        ("threads", threads(place.path(), &["--replay", "free", "--out", "threads", "--quiet"])),
        ("ranks", ranks(place.path(), 3, &["--replay", "free", "--out", "ranks", "--quiet"])),
    ] {
        done(&output);
        same_states(&place.path().join(again), &place.path().join("free"), "step-00000060");
    }
}

/// A rank that fails in the middle of a run is named with its reason, and ends the job.
#[test]
fn a_rank_that_fails_says_why() {
    let place = TempDir::new().unwrap();
    for (part, class) in [("train", "a"), ("train", "b"), ("val", "a"), ("val", "b")] {
        let folder = place.path().join("pictures").join(part).join(class);
        fs::create_dir_all(&folder).unwrap();
        for number in 0..20 {
            // Of 40 pictures one is none: whoever gets it fails in the first epoch.
            let bytes = if (part, class, number) == ("train", "b", 7) { &b"no picture"[..] } else { PICTURE };
            fs::write(folder.join(format!("{number:02}.png")), bytes).unwrap();
        }
    }
    let words = [
        "--data",
        "folder",
        "--dir",
        "pictures",
        "--model",
        "digits",
        "--set",
        "data.augment=flip+resized16",
        "--set",
        "train.batch=4",
        "--method",
        "mean:period=2",
        "--budget",
        "40step",
        "--quiet",
        "--out",
        "run",
    ];
    let output = ranks(place.path(), 2, &words);
    let printed = text(&output);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains("error: worker ") && printed.contains("07.png"), "{printed}");
    assert!(
        printed.contains("resume from it with: mpirun -n 2 grawa train --comm mpi --resume run"),
        "{printed}"
    );
}

/// Ranks with two workers each: all four train, and the same run twice has the same bits.
#[test]
fn ranks_may_have_several_workers() {
    let place = TempDir::new().unwrap();
    let words =
        ["--data", "digits", "--method", "lgrawa:period=4", "--per-process", "2", "--budget", "24step"];
    for run in ["one", "two"] {
        done(&ranks(place.path(), 2, &[&words[..], &["--quiet", "--out", run]].concat()));
    }
    let model = |run: &str| {
        let newest = grawa_train::Checkpoint::newest_path(&place.path().join(run)).unwrap();
        fs::read(newest.join("model.safetensors")).unwrap()
    };
    assert!(model("one") == model("two"));
    let events = fs::read_to_string(place.path().join("one/events.jsonl")).unwrap();
    assert!(events.contains("\"worker\":3"), "{events}");
}

/// A picture that the data tests read too.
const PICTURE: &[u8] = include_bytes!("../../grawa-data/tests/pictures/rgba.png");

#[test]
fn what_cannot_be_is_refused_once_and_leaves_nothing() {
    let place = TempDir::new().unwrap();
    for (words, why) in [
        (&["--data", "digits", "--workers", "3"][..], "it has 3 workers, and there are 2 processes"),
        (&["--data", "digits", "--workers", "6", "--per-process", "2"], "times --per-process"),
        (&["--data", "digits", "--overlap"], "train.overlap and train.wire are for"),
        (&["--data", "digits", "--method", "sgd"], "one worker by itself"),
        (&["--data", "digits", "--method", "lgrava"], "did you mean 'lgrawa'?"),
        (&["--resume", "nowhere"], "there is no folder nowhere"),
    ] {
        let output = ranks(place.path(), 2, words);
        let printed = text(&output);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {printed}");
        assert_eq!(printed.matches("error: ").count(), 1, "{words:?}: {printed}");
        assert!(printed.contains(why), "{words:?}: {printed}");
    }
    assert!(fs::read_dir(place.path()).unwrap().next().is_none(), "nothing was written");
    // What is wrong on one rank only is printed by the first.
    for folder in ["here", "there"] {
        fs::create_dir(place.path().join(folder)).unwrap();
    }
    for path in ["train/a", "val/a"] {
        let folder = place.path().join("here/pictures").join(path);
        fs::create_dir_all(&folder).unwrap();
        for name in ["0.png", "1.png"] {
            fs::write(folder.join(name), PICTURE).unwrap();
        }
    }
    let words = ["train", "--comm", "mpi", "--data", "folder", "--dir", "pictures", "--model", "digits"];
    let words: Vec<&str> =
        words.into_iter().chain(["--set", "data.augment=flip+resized16", "--out", "run"]).collect();
    let mut both = free(Command::new("mpirun"));
    both.args(["-wdir", place.path().join("here").to_str().unwrap(), "-n", "1", GRAWA]).args(&words);
    both.args([":", "-wdir", place.path().join("there").to_str().unwrap(), "-n", "1", GRAWA]).args(&words);
    let output = both.stdin(Stdio::null()).output().unwrap();
    let printed = text(&output);
    assert_ne!(output.status.code(), Some(0), "{printed}");
    assert!(printed.contains("error: worker 1 on "), "{printed}");
    assert!(!place.path().join("here/run").exists(), "nothing was written");
}

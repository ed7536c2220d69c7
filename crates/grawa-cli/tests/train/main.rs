//! `grawa train` as a user meets it: a folder, a stop, a kill, a resume.

#![allow(clippy::unwrap_used)]

mod damaged;
mod own_pictures;
#[path = "../repeated/mod.rs"]
mod repeated;
#[cfg(all(feature = "group", feature = "plots"))]
mod walk_through;

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
        (&["--resume", "nowhere"], "there is no folder nowhere"),
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

/// The plan of published data comes without the data; what a start would refuse is refused, and nothing is written.
#[test]
fn a_dry_run_tells_checks_and_trains_nothing() {
    let place = TempDir::new().unwrap();
    let digits = train(place.path(), &["--data", "digits", "--budget", "2epoch", "--dry-run"]);
    assert_eq!(digits.status.code(), Some(0), "{}", text(&digits.stderr));
    assert!(text(&digits.stdout).contains("steps of each worker per second"), "{}", text(&digits.stdout));
    assert!(text(&digits.stderr).contains("warning: no round will take place"), "{}", text(&digits.stderr));
    for (arguments, code, words) in [
        (&["--data", "cifar10", "--dir", "."][..], 1, "holds no CIFAR-10"),
        (&["--workers", "2000"], 2, "2000 workers asked for"),
        (&["--init", "nothing.safetensors"], 2, "there is no file or folder nothing.safetensors; give"),
        (&["--data", "folder", "--dir", "nowhere"], 1, "there is no folder \"nowhere\"; expected"),
    ] {
        let output = train(place.path(), &[arguments, &["--dry-run"]].concat());
        let (plan, error) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        assert!(error.contains(words), "{arguments:?}: {error}");
        assert!(
            arguments.contains(&"folder") || plan.contains("[method]") && plan.contains("memory"),
            "{plan}"
        );
    }
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}

/// What is probably not meant is said before a run and after it.
#[test]
fn warnings_come_at_the_start_and_at_the_end() {
    let place = TempDir::new().unwrap();
    let output = train(place.path(), &["--budget", "8step", "--rate", "0.1", "--out", "run"]);
    let error = text(&output.stderr);
    assert_eq!(
        error.matches("warning: no round will take place: 8 steps of each worker").count(),
        2,
        "{error}"
    );
    let output =
        train(place.path(), &["--budget", "8step", "--rate", "0.1", "--period", "1", "--out", "good"]);
    assert!(!text(&output.stderr).contains("warning"), "{}", text(&output.stderr));
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
    let printed = text(&output.stdout);
    if output.status.code() == Some(0) {
        // It was done before it could be stopped.
        assert!(printed.contains("done: 400 steps"), "{printed}");
    } else {
        assert_eq!(output.status.code(), Some(1));
        assert!(printed.contains("resume it with: grawa train --resume broken"), "{printed}");
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

/// The files of a checkpoint, and one of them changed in the middle.
fn damage(file: &Path) {
    let mut bytes = fs::read(file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(file, bytes).unwrap();
}

/// A run that is over, of which the newest checkpoint is then damaged: `--resume` resumes from the one before, prints it, and comes to the
/// same end. `--checkpoint` chooses one.
#[test]
fn a_damaged_checkpoint_costs_no_more_than_what_came_after_the_one_before() {
    let place = TempDir::new().unwrap();
    assert_eq!(train(place.path(), &small("40step", "whole")).status.code(), Some(0));
    assert_eq!(train(place.path(), &small("40step", "run")).status.code(), Some(0));
    let (run, whole) = (place.path().join("run"), place.path().join("whole"));
    for file in ["state.safetensors", "manifest.toml", "timing.toml", "model.safetensors"] {
        damage(&run.join("checkpoints/step-00000040").join(file));
        let resumed = train(place.path(), &["--resume", "run"]);
        let error = text(&resumed.stderr);
        assert_eq!(resumed.status.code(), Some(0), "{error}");
        assert!(
            error.contains("a newer checkpoint cannot be used: run/checkpoints/step-00000040"),
            "{error}"
        );
        let printed = text(&resumed.stdout);
        assert!(printed.contains("resuming from run/checkpoints/step-00000032"), "{printed}");
        assert!(error.contains("steps 32 to 40 of each worker are lost, and trained again"), "{error}");
        same(&run, &whole);
    }
    let chosen = train(place.path(), &["--resume", "run", "--checkpoint", "step-00000032"]);
    assert_eq!(chosen.status.code(), Some(0), "{}", text(&chosen.stderr));
    assert!(
        text(&chosen.stdout).contains("resuming from run/checkpoints/step-00000032"),
        "{}",
        text(&chosen.stdout)
    );
    same(&run, &whole);
    for (arguments, words) in [
        (
            &["--resume", "run", "--checkpoint", "step-00000033"][..],
            "there are: step-00000040, step-00000032",
        ),
        (&["--data", "digits", "--checkpoint", "step-00000032"], "cannot be used with"),
        (&["--checkpoint", "step-00000032"], "--resume"),
    ] {
        let refused = train(place.path(), arguments);
        assert_eq!(refused.status.code(), Some(2));
        assert!(text(&refused.stderr).contains(words), "{}", text(&refused.stderr));
    }
    // The record was cut back to an older checkpoint, and the process was killed before the next: the newest is not of this run any more.
    let journal = fs::read_to_string(run.join("journal.jsonl")).unwrap();
    let cut = journal.find("step-00000040").unwrap();
    let end = journal[..cut].rfind('\n').unwrap() + 1;
    fs::write(run.join("journal.jsonl"), &journal[..end]).unwrap();
    let resumed = train(place.path(), &["--resume", "run"]);
    assert_eq!(resumed.status.code(), Some(0), "{}", text(&resumed.stderr));
    assert!(
        text(&resumed.stderr).contains("was resumed from run/checkpoints/step-00000032"),
        "{}",
        text(&resumed.stderr)
    );
    same(&run, &whole);
}

/// A recipe that was lost or changed does not make another run of this one.
#[test]
fn a_run_is_resumed_by_its_own_recipe_only() {
    let place = TempDir::new().unwrap();
    assert_eq!(train(place.path(), &small("40step", "run")).status.code(), Some(0));
    let file = place.path().join("run/recipe.toml");
    let recipe = fs::read_to_string(&file).unwrap();
    let events = fs::read_to_string(place.path().join("run/events.jsonl")).unwrap();
    let changed = |from: &str, to: &str| {
        assert!(recipe.contains(from), "{recipe}");
        recipe.replace(from, to)
    };
    let middle = recipe.find("[train]").unwrap();
    for (text_now, code, words) in [
        (String::new(), 1, "it has no [data]"),
        (recipe[..middle].to_owned(), 1, "it has no [train]"),
        (changed("lgrawa", "mgrawa"), 2, "was changed since"),
        (changed("seed = 7", "seed = 8"), 2, "was changed since"),
        (changed("name = \"digits\"", "name = \"mine\""), 2, "the network 'mine'"),
    ] {
        fs::write(&file, text_now).unwrap();
        let refused = train(place.path(), &["--resume", "run", "--checkpoint", "step-00000032"]);
        let error = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(code), "{words}: {error}");
        assert!(error.contains(words), "{error}");
        assert!(fs::read_to_string(place.path().join("run/events.jsonl")).unwrap() == events, "{words}");
    }
    // How long, how often, and where may change.
    fs::write(&file, changed("budget = \"40step\"", "budget = \"48step\"")).unwrap();
    let longer = train(place.path(), &["--resume", "run", "--checkpoint", "step-00000032"]);
    assert_eq!(longer.status.code(), Some(0), "{}", text(&longer.stderr));
    assert!(text(&longer.stdout).contains("done: 48 steps"), "{}", text(&longer.stdout));
}

/// A network of one's own, kept in a folder: nothing here takes it for one of the zoo.
#[test]
fn a_network_of_ones_own_is_not_taken_for_another() {
    use grawa_train::{Checkpoint, Recipe, Run, folder, recipe::Overrides};
    let place = TempDir::new().unwrap();
    let overrides =
        Overrides::default().method("mean:period=4", "here").unwrap().set("train.budget=8step").unwrap();
    let recipe = Recipe::resolve(&overrides).unwrap();
    let data = grawa_data::digits().unwrap();
    let network = grawa_nn::zoo::digits("mine", grawa_nn::Shape::image(1, 8), 16, 10).unwrap();
    let new = || Run::with_network(recipe.clone(), &data, &network).unwrap();
    for (name, written, why) in [
        ("recipe", new().recipe().clone(), "names the network 'mine'"),
        ("untold", recipe.clone(), "it holds the network 'mine', and this is 'digits'"),
    ] {
        let run = place.path().join(name);
        folder::create(&run, &written).unwrap();
        new().keep_in(&run).go(&mut []).unwrap();
        let checkpoint = format!("{name}/checkpoints/step-00000008");
        for arguments in [&["eval", name][..], &["eval", &checkpoint], &["flatness", name]] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_grawa"));
            let output = command.args(arguments).current_dir(place.path()).output().unwrap();
            let error = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
            assert!(error.contains(why) && error.contains("Run::with_network"), "{arguments:?}: {error}");
        }
        let output = train(place.path(), &["--resume", name, "--checkpoint", "step-00000000"]);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains(why), "{}", text(&output.stderr));
        // The program that wrote it can resume it.
        new().resume(Checkpoint::named(&run, "step-00000000").unwrap()).check().unwrap();
    }
}

/// A network that `grawa.export` wrote: it starts from the weights beside it, and the run keeps it, whatever becomes of its file.
#[test]
fn a_network_from_pytorch_trains_and_is_kept_with_the_run() {
    use grawa_nn::{Graph, State};
    let place = TempDir::new().unwrap();
    let [file, weights] = ["net.json", "net.safetensors"].map(|name| place.path().join(name));
    let fixture =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../grawa-nn/tests/fixtures/imported-residual.json");
    fs::copy(fixture, &file).unwrap();
    let graph = Graph::read(&file).unwrap();
    let start = State::initial(&graph, 99);
    start.save(&graph, &weights).unwrap();
    let grawa = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_grawa"));
        command.args(arguments).current_dir(place.path()).output().unwrap()
    };
    let done = |arguments: &[&str]| {
        let output = grawa(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let shared = ["--data", "digits", "--method", "mean:period=4", "--set", "model.graph=net.json"];
    let more = ["--workers", "2", "--set", "train.batch=16", "--set", "train.rate=0.02", "--out"];
    let all = |command, budget, out| [&[command], &shared[..], &["--budget", budget], &more, &[out]].concat();
    assert!(done(&["models", "net.json"]).contains("group norm norm"));
    assert!(
        done(&["train", "--dry-run", shared[4], shared[5]])
            .contains("imported-residual, 1,274 parameters in 13 tensors")
    );
    done(&all("train", "80step", "run"));
    let begun = place.path().join("run/checkpoints/step-00000000/model.safetensors");
    assert_eq!(State::load(&graph, &begun).unwrap().parameters, start.parameters);
    assert!(done(&all("launch", "8step", "group")).contains("done; see group"));

    for path in [&file, &weights] {
        fs::write(path, "{}").unwrap();
    }
    let printed = done(&["eval", "run"]);
    let total = printed.lines().find(|line| line.contains("all")).unwrap();
    let error: f64 = total.split_whitespace().rev().find_map(|word| word.parse().ok()).unwrap();
    assert!(error < 60.0, "{printed}");
    done(&[
        "flatness",
        "run",
        "--examples",
        "32",
        "--steps",
        "4",
        "--draws",
        "1",
        "--extra",
        "1",
        "--out",
        "flat",
    ]);
    fs::rename(place.path().join("run"), place.path().join("first")).unwrap();
    done(&["train", "--resume", "first", "--checkpoint", "step-00000000"]);

    let refused = grawa(&["train", shared[4], shared[5], "--out", "x"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        text(&refused.stderr).contains("net.json: the graph: it has no \"version\": 1"),
        "{}",
        text(&refused.stderr)
    );
    let refused = grawa(&["train", "--set", "model.graph=nowhere.json", "--out", "x"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("cannot read nowhere.json") && !place.path().join("x").exists());
}

#[test]
fn a_run_whose_workers_all_diverged_fails_and_says_so() {
    let place = TempDir::new().unwrap();
    for method in ["lgrawa", "dp-sgd", "sgd"] {
        let arguments = ["--data", "digits", "--method", method, "--set", "train.rate=1000", "--out", method];
        let output = train(place.path(), &arguments);
        let printed = text(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{method}: {printed}");
        assert!(
            printed.contains("diverged: after") && printed.contains("smaller learning rate"),
            "{method}: {printed}"
        );
        assert!(!printed.contains("done"), "{method}: {printed}");
        let events = fs::read_to_string(place.path().join(method).join("events.jsonl")).unwrap();
        assert!(events.lines().last().unwrap().contains("\"diverged\":true"), "{method}");
        assert!(place.path().join(method).join("checkpoints").read_dir().unwrap().count() > 0, "{method}");
        // It is no more of a success the second time.
        let output = train(place.path(), &["--resume", method]);
        assert_eq!(output.status.code(), Some(1), "{method}: {}", text(&output.stdout));
        assert!(text(&output.stdout).contains("has diverged"), "{method}: {}", text(&output.stdout));
    }
    // There is no mean of such runs.
    let arguments =
        ["--data", "digits", "--set", "train.rate=1000", "--seeds", "2", "--quiet", "--out", "two"];
    let printed = text(&train(place.path(), &arguments).stdout);
    assert!(printed.contains("no mean") && !printed.contains("standard deviation"), "{printed}");
    assert_eq!(printed.matches("  diverged  ").count(), 2, "{printed}");
    let output = train(place.path(), &small("40step", "fine"));
    assert!(!text(&output.stdout).contains("diverged"), "{}", text(&output.stdout));
}

/// `timeout`, Slurm and supervisors send a polite kill to a process and to its group: it arrives twice.
#[cfg(unix)]
#[test]
fn a_polite_kill_that_comes_twice_leaves_a_checkpoint() {
    let place = TempDir::new().unwrap();
    // Steps that take long enough for both to come before the first has had its effect.
    let slow = ["model.width=64", "train.batch=256", "train.budget=100000step", "machine.threads=1"];
    let mut arguments = vec!["--data", "digits", "--workers", "2", "--out", "run"];
    slow.iter().for_each(|setting| arguments.extend(["--set", setting]));
    let child = start(place.path(), &arguments);
    first_checkpoint(&place.path().join("run"));
    let twice = format!("kill -TERM {0}; sleep 0.02; kill -TERM {0}", child.id());
    assert!(Command::new("sh").args(["-c", &twice]).status().unwrap().success(), "it had ended after one");
    let output = child.wait_with_output().unwrap();
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains("resume it with: grawa train --resume run"), "{printed}");
    let names = fs::read_dir(place.path().join("run/checkpoints")).unwrap();
    let names: Vec<String> =
        names.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    assert!(names.iter().any(|name| name.contains("-stopped-")), "{names:?}");
}

/// A finished run that is given a larger budget ends with the bits of one that had it from the start, even if it ended between two
/// rounds; what cannot be meant is refused and changes nothing.
#[test]
fn a_finished_run_is_prolonged() {
    let place = TempDir::new().unwrap();
    for (budget, out) in [("18step", "short"), ("40step", "long")] {
        assert_eq!(train(place.path(), &small(budget, out)).status.code(), Some(0));
    }
    let recipe = || fs::read_to_string(place.path().join("short/recipe.toml")).unwrap();
    let before = recipe();
    let spent = train(place.path(), &["--resume", "short", "--budget", "12step"]);
    assert_eq!((spent.status.code(), recipe()), (Some(2), before));
    assert!(text(&spent.stderr).contains("18 steps a worker"), "{}", text(&spent.stderr));
    let longer = train(place.path(), &["--resume", "short", "--budget", "40step"]);
    let words = text(&longer.stdout);
    assert_eq!(longer.status.code(), Some(0), "{}", text(&longer.stderr));
    assert!(words.contains("learning rate continues") && words.contains("done: 40 steps"), "{words}");
    assert!(recipe().contains("40step"));
    for file in ["state.safetensors", "model.safetensors"] {
        let read = |run: &str| {
            fs::read(place.path().join(run).join("checkpoints/step-00000040").join(file)).unwrap()
        };
        assert!(read("short") == read("long"), "{file}");
    }
    // Nothing is learnt where the schedule has come to its end.
    let mut cosine = small("16step", "cosine");
    cosine.extend(["--set", "train.rate=0.1, cosine over 16step"]);
    assert_eq!(train(place.path(), &cosine).status.code(), Some(0));
    let refused = train(place.path(), &["--resume", "cosine", "--budget", "32step"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("--init"), "{}", text(&refused.stderr));
}

/// One run for each seed; what was not done is done by a resume of the folder of all.
#[test]
fn several_seeds_are_runs_of_their_own() {
    let place = TempDir::new().unwrap();
    let mut arguments = small("16step", "all");
    arguments.extend(["--seeds", "2", "--quiet"]);
    let first = train(place.path(), &arguments);
    assert_eq!(first.status.code(), Some(0), "{}", text(&first.stderr));
    assert!(text(&first.stdout).contains("standard deviation of 2 seeds"), "{}", text(&first.stdout));
    let model = |seed: u64| {
        let run = place.path().join(format!("all/seed-{seed}"));
        fs::read(run.join("checkpoints/step-00000016/model.safetensors")).unwrap()
    };
    let (seven, eight) = (model(7), model(8));
    assert!(seven != eight);
    fs::remove_dir_all(place.path().join("all/seed-8")).unwrap();
    let again = train(place.path(), &["--resume", "all", "--quiet"]);
    assert_eq!(again.status.code(), Some(0), "{}", text(&again.stderr));
    assert!(model(7) == seven && model(8) == eight);
    let last =
        |output: &Output| text(&output.stdout).lines().rev().take(2).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(last(&first), last(&again));
    // The first run that still has to be done warns for all at its start, of two things; the last at its end.
    fs::remove_dir_all(place.path().join("all/seed-8")).unwrap();
    let again = train(place.path(), &["--resume", "all"]);
    assert_eq!(text(&again.stderr).matches("warning: ").count(), 4, "{}", text(&again.stderr));
}

/// A start from a run says which tensors are new.
#[test]
fn a_run_can_start_from_another() {
    let place = TempDir::new().unwrap();
    assert_eq!(train(place.path(), &small("8step", "first")).status.code(), Some(0));
    let mut other = small("8step", "second");
    other.extend(["--init", "first", "--set", "model.classes=12"]);
    let output = train(place.path(), &other);
    let words = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(words.contains("tensors from first/checkpoints/step-00000008/model.safetensors; "), "{words}");
    assert!(words.contains("linear.bias [10] → [12] starts at random"), "{words}");
}

/// A run that ends worse than it was keeps both models. The best one says what it is, is measured by `eval`, and classifies pictures
/// without the data set.
#[test]
fn the_best_model_is_kept_and_used() {
    let place = TempDir::new().unwrap();
    let mut worse = small("40step", "worse");
    worse.extend(["--set", "train.rate=0.1, x1000 at 21step"]);
    let output = train(place.path(), &worse);
    let words = text(&output.stdout);
    assert!(words.contains(" % (chosen on the test set), in worse/best"), "{words}{}", text(&output.stderr));
    let metrics = fs::read_to_string(place.path().join("worse/metrics.csv")).unwrap();
    let evaluated = metrics.lines().filter(|line| line.starts_with("evaluated"));
    let errors: Vec<f64> = evaluated.map(|line| line.split(',').nth(8).unwrap().parse().unwrap()).collect();
    assert!(errors.len() == 2 && errors[0] < errors[1], "{metrics}");
    let grawa = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_grawa"));
        command.args(arguments).current_dir(place.path()).output().unwrap()
    };
    let eval = grawa(&["eval", "worse/best"]);
    assert!(text(&eval.stdout).contains(&format!("{:.2}", 100.0 * errors[0])), "{}", text(&eval.stdout));
    let best = fs::read(place.path().join("worse/best/model.safetensors")).unwrap();
    let header = text(&best[8..8 + u64::from_le_bytes(best[..8].try_into().unwrap()) as usize]);
    for part in ["\"step\":\"20\"", "\"network\":\"digits\"", "\"mean\":\"[0.3058]\"", "recipe_digest"] {
        assert!(header.contains(part), "{part}: {header}");
    }
    let picture = concat!(env!("CARGO_MANIFEST_DIR"), "/../grawa-data/tests/pictures/rgb.jpg");
    let shown = grawa(&["predict", "worse/best", picture, "--top", "2"]);
    assert_eq!(shown.status.code(), Some(0), "{}", text(&shown.stderr));
    assert!(text(&shown.stdout).matches(" %").count() == 2, "{}", text(&shown.stdout));
    let json = grawa(&["predict", "worse", picture, picture, "--top", "10", "--json"]);
    let found: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(found.as_array().unwrap().len(), 2);
    let classes = found[0]["classes"].as_array().unwrap();
    let sum: f64 = classes.iter().map(|class| class["probability"].as_f64().unwrap()).sum();
    assert!(classes.len() == 10 && (sum - 1.0).abs() < 1e-9, "{found}");
    // A broken picture among good ones: those are classified.
    fs::write(place.path().join("broken.png"), b"text").unwrap();
    let some = grawa(&["predict", "worse", picture, "broken.png", picture, "--json"]);
    assert_eq!(some.status.code(), Some(1));
    assert!(text(&some.stderr).contains("broken.png"), "{}", text(&some.stderr));
    assert_eq!(text(&some.stdout).matches("\"image\"").count(), 2, "{}", text(&some.stdout));
    let none = grawa(&["predict", "worse", "nowhere.png"]);
    assert!(
        none.status.code() == Some(2) && text(&none.stderr).contains("nowhere.png"),
        "{}",
        text(&none.stderr)
    );
    let mut without = small("20step", "without");
    without.extend(["--set", "checkpoint.best=false"]);
    assert_eq!(train(place.path(), &without).status.code(), Some(0));
    assert!(!place.path().join("without/best").exists());
}

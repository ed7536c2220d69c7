//! Files of a run that are damaged: what each command does then, and that the commands it names work.

use super::{small, text, train};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

fn grawa(place: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_grawa")).args(words).current_dir(place).output().unwrap()
}

/// Flips the last bit of a file: of a model that is a number, of nothing else.
fn flip(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(path, bytes).unwrap();
}

/// The commands below an error, as they are printed.
fn commands(output: &Output) -> Vec<String> {
    let lines = text(&output.stderr);
    lines.lines().filter_map(|line| line.strip_prefix("  grawa ")).map(String::from).collect()
}

/// Runs a printed command in a shell, with this grawa.
fn shell(place: &Path, command: &str) -> Output {
    let line = format!("\"$GRAWA\" {command}");
    let mut shell = Command::new("sh");
    shell.args(["-c", &line]).env("GRAWA", env!("CARGO_BIN_EXE_grawa")).current_dir(place).output().unwrap()
}

/// A run whose folder has a space and a dollar in its name.
fn run() -> (TempDir, &'static str) {
    let (place, name) = (TempDir::new().unwrap(), "my $run");
    assert_eq!(train(place.path(), &small("40step", name)).status.code(), Some(0));
    (place, name)
}

/// A damaged newest checkpoint is an error with exit code 1 wherever a model is read, and names the best model and the
/// older checkpoint as commands, which work. A flipped bit of a model given by its path is found as well.
#[test]
fn a_damaged_model_is_never_used_without_a_word() {
    let (place, run) = run();
    let (path, at) = (place.path().join(run), |what: &str| format!("{run}/{what}"));
    fs::write(place.path().join("digit.png"), super::own_pictures::png(8, |x, y| (30 * x + y) as u8))
        .unwrap();
    let older = grawa(place.path(), &["eval", &at("checkpoints/step-00000032")]);
    let best = grawa(place.path(), &["eval", &at("best")]);
    assert_eq!((older.status.code(), best.status.code()), (Some(0), Some(0)), "{}", text(&best.stderr));
    flip(&path.join("checkpoints/step-00000040/model.safetensors"));
    let refused = grawa(place.path(), &["eval", run]);
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused.stderr));
    assert!(
        refused.stdout.is_empty() && text(&refused.stderr).contains("checksum"),
        "{}",
        text(&refused.stderr)
    );
    let said = commands(&refused);
    assert_eq!(said, ["eval 'my $run/best'", "eval 'my $run/checkpoints/step-00000032'"]);
    for (command, expected) in said.iter().zip([&best, &older]) {
        let found = shell(place.path(), command);
        assert_eq!(
            (found.status.code(), text(&found.stdout)),
            (Some(0), text(&expected.stdout)),
            "{command}"
        );
    }
    for words in [
        &["predict", run, "digit.png"][..],
        &["flatness", run, "--examples", "32", "--out", "flat"],
        &["landscape", run, "--examples", "32", "--out", "land"],
        &[
            "train",
            "--data",
            "digits",
            "--set",
            "model.width=4",
            "--init",
            run,
            "--out",
            "new",
            "--budget",
            "4step",
        ],
        &["eval", &at("checkpoints/step-00000040")],
        &[
            "eval",
            &at("checkpoints/step-00000040/model.safetensors"),
            "--model",
            "digits",
            "--set",
            "model.width=4",
            "--data",
            "digits",
        ],
    ] {
        let refused = grawa(place.path(), words);
        let error = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{words:?}: {error}");
        assert!(error.contains("checksum"), "{words:?}: {error}");
    }
    assert!(!place.path().join("new").exists() && !place.path().join("flat").exists());

    // The best model: found by eval, and no obstacle to a resume, which keeps the damaged file.
    flip(&path.join("best/model.safetensors"));
    let refused = grawa(place.path(), &["eval", &at("best")]);
    assert!(refused.status.code() == Some(1) && text(&refused.stderr).contains("is damaged: its checksum"));
    assert_eq!(commands(&grawa(place.path(), &["eval", run])), ["eval 'my $run/checkpoints/step-00000032'"]);
    let resumed = train(place.path(), &["--resume", run]);
    assert_eq!(resumed.status.code(), Some(0), "{}", text(&resumed.stderr));
    assert!(
        text(&resumed.stderr).contains("the best model so far cannot be used"),
        "{}",
        text(&resumed.stderr)
    );
    assert_eq!(grawa(place.path(), &["eval", run]).status.code(), Some(0));
}

/// Nothing but the start is whole: a resume refuses and names the command that begins anew, which comes to the same
/// end.
#[test]
fn a_run_is_not_begun_anew_by_itself() {
    let (place, run) = run();
    let path = place.path().join(run);
    // As after a kill before the second checkpoint.
    let start = TempDir::new().unwrap();
    assert_eq!(train(start.path(), &small("8step", "run")).status.code(), Some(0));
    let checkpoints = start.path().join("run/checkpoints");
    flip(&checkpoints.join("step-00000008/state.safetensors"));
    let refused = train(start.path(), &["--resume", "run"]);
    let error = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{error}");
    assert!(error.contains("all 8 steps of each worker would be lost"), "{error}");
    let command = error.split("To begin anew: grawa ").nth(1).unwrap().lines().next().unwrap();
    let again = shell(start.path(), command);
    assert_eq!(again.status.code(), Some(0), "{}", text(&again.stderr));
    // All damaged: what is left is the best model, as the start of another run.
    for name in ["step-00000032", "step-00000040"] {
        flip(&path.join("checkpoints").join(name).join("state.safetensors"));
    }
    let refused = train(place.path(), &["--resume", run]);
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused.stderr));
    let said = commands(&refused);
    assert_eq!(said, ["train --recipe 'my $run/recipe.toml' --init 'my $run/best'"]);
    let other = shell(place.path(), &format!("{} --out other", said[0]));
    assert_eq!(other.status.code(), Some(0), "{}", text(&other.stderr));
}

/// A damaged record, and a damaged recipe: each error names a command, and with it the run goes on.
#[test]
fn a_damaged_record_or_recipe_has_a_way_out() {
    let (place, run) = run();
    let path = place.path().join(run);
    let good = fs::read(path.join("checkpoints/step-00000040/model.safetensors")).unwrap();
    for (file, content) in [("events.jsonl", ""), ("journal.jsonl", "{\"line\":"), ("events.jsonl", "x\n\n")]
    {
        fs::write(path.join(file), content).unwrap();
        let refused = train(place.path(), &["--resume", run]);
        let error = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{error}");
        let command = error.split("begin another: grawa ").nth(1).unwrap().lines().next().unwrap();
        assert_eq!(command, "train --resume 'my $run' --without-record");
        // From the checkpoint before, so that there is something to do.
        let resumed = shell(place.path(), &format!("{command} --checkpoint step-00000032"));
        assert_eq!(resumed.status.code(), Some(0), "{}", text(&resumed.stderr));
        assert!(text(&resumed.stdout).contains("the record was set aside"), "{}", text(&resumed.stdout));
        assert_eq!(fs::read(path.join("checkpoints/step-00000040/model.safetensors")).unwrap(), good);
        assert!(grawa(place.path(), &["report", run, "--out", "page.html"]).status.success());
        fs::remove_file(place.path().join("page.html")).unwrap();
    }
    assert_eq!(fs::read_to_string(path.join("events.jsonl.aside-1")).unwrap(), "");
    assert_eq!(fs::read_to_string(path.join("events.jsonl.aside-3")).unwrap(), "x\n\n");

    let recipe = fs::read(path.join("recipe.toml")).unwrap();
    let other = String::from_utf8_lossy(&recipe).replace("seed = 7", "seed = 3").into_bytes();
    for damaged in [&other[..], &recipe[..recipe.len() / 2], b"\xff\xfe"] {
        fs::write(path.join("recipe.toml"), damaged).unwrap();
        let refused = train(place.path(), &["--resume", run, "--budget", "48step"]);
        let error = text(&refused.stderr);
        assert!(matches!(refused.status.code(), Some(1 | 2)), "{error}");
        let command = error.split("with: cp ").nth(1).unwrap_or_else(|| panic!("{error}"));
        let command = command.split(", or start").next().unwrap().lines().next().unwrap();
        let copied =
            Command::new("sh").args(["-c", &format!("cp {command}")]).current_dir(place.path()).status();
        assert!(copied.unwrap().success(), "{command}");
        assert_eq!(fs::read(path.join("recipe.toml")).unwrap(), recipe);
    }
    // Another run's checkpoint, or recipe: eval refuses what a resume refuses.
    fs::write(path.join("recipe.toml"), &other).unwrap();
    for what in ["", "/best", "/checkpoints/step-00000040"] {
        let refused = grawa(place.path(), &["eval", &format!("{run}{what}")]);
        assert_eq!(refused.status.code(), Some(2), "{what}: {}", text(&refused.stderr));
        assert!(text(&refused.stderr).contains("was changed since"), "{what}: {}", text(&refused.stderr));
    }
}

/// Small files that never end, or are huge, are errors at once.
#[cfg(unix)]
#[test]
fn links_to_devices_are_not_read() {
    let (place, run) = run();
    let path = place.path().join(run);
    for file in [
        "events.jsonl",
        "journal.jsonl",
        "recipe.toml",
        "checkpoints/step-00000040/timing.toml",
        "checkpoints/step-00000040/checksums.toml",
    ] {
        let kept = fs::read(path.join(file)).unwrap();
        fs::remove_file(path.join(file)).unwrap();
        std::os::unix::fs::symlink("/dev/zero", path.join(file)).unwrap();
        for words in [&["train", "--resume", run][..], &["eval", run], &["report", run, "--out", "page.html"]]
        {
            let output = grawa(place.path(), words);
            assert!(output.status.code().is_some_and(|code| code <= 2), "{file} {words:?}");
            let _ = fs::remove_file(place.path().join("page.html"));
        }
        fs::remove_file(path.join(file)).unwrap();
        fs::write(path.join(file), kept).unwrap();
    }
}

/// More threads than help are refused with a sentence, before anything is started.
#[test]
fn threads_are_bounded() {
    let place = TempDir::new().unwrap();
    for (threads, code) in [("0", 2), ("1025", 2), ("100000", 2), ("-1", 2), ("2", 0)] {
        let setting = format!("machine.threads={threads}");
        let output = train(place.path(), &["--data", "digits", "--set", &setting, "--dry-run"]);
        assert_eq!(output.status.code(), Some(code), "{threads}: {}", text(&output.stderr));
        let says = text(&output.stderr).contains("a number of threads from 1 to 1024");
        assert_eq!(says, code == 2, "{threads}: {}", text(&output.stderr));
    }
}

//! `grawa demo` and `grawa eval` as a user meets them.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn grawa(place: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_grawa"))
        .args(arguments)
        .current_dir(place)
        .output()
        .expect("the command starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_demo_ends_in_a_table_and_a_page() {
    let place = tempfile::tempdir().unwrap();
    let output = grawa(place.path(), &["demo", "--method", "mean", "--method", "sgd", "--seeds", "2"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let (table, lines) = (text(&output.stdout), text(&output.stderr));
    let row = table.lines().find(|line| line.starts_with("Mean")).unwrap();
    assert!(row.contains(" ± ") && row.contains(" 40 "), "{table}");
    // No terminal here: a line for each run, but at most one a second.
    let count = lines.lines().filter(|line| line.contains("test error")).count();
    assert!((1..=4).contains(&count), "{lines}");
    let page = fs::read_to_string(place.path().join("out/demo/index.html")).unwrap();
    assert!(
        lines.contains("out/demo/index.html") && page.contains("mean-2") && page.contains("sgd-1"),
        "{lines}"
    );
    // What is there is kept: a named folder must be new, and the default is the next free name.
    let demo = ["demo", "--method", "sgd", "--quiet"];
    let taken = grawa(place.path(), &[&demo[..], &["--out", "out/demo"]].concat());
    assert_eq!(taken.status.code(), Some(2), "{}", text(&taken.stderr));
    fs::create_dir(place.path().join("theirs")).unwrap();
    fs::write(place.path().join("theirs/thesis"), "long").unwrap();
    let theirs = grawa(place.path(), &[&demo[..], &["--out", "theirs"]].concat());
    assert_eq!(theirs.status.code(), Some(2), "{}", text(&theirs.stderr));
    assert!(text(&theirs.stderr).contains("thesis"), "{}", text(&theirs.stderr));
    assert_eq!(fs::read_dir(place.path().join("theirs")).unwrap().count(), 1);
    assert_eq!(grawa(place.path(), &demo).status.code(), Some(0));
    assert!(place.path().join("out/demo-2/sgd-1/events.jsonl").exists());
    let slip = grawa(place.path(), &["demo", "--method", "maen"]);
    assert_eq!(slip.status.code(), Some(2));
    assert!(text(&slip.stderr).contains("did you mean 'mean'?"));
}

/// What `grawa eval` measures is what the run itself measured at its end.
#[test]
fn an_evaluated_model_is_the_runs_own() {
    let place = tempfile::tempdir().unwrap();
    let train =
        ["train", "--data", "digits", "--method", "lgrawa:period=8", "--seed", "7", "--budget", "32step"];
    let output = grawa(place.path(), &[&train[..], &["--out", "run", "--quiet"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let metrics = fs::read_to_string(place.path().join("run/metrics.csv")).unwrap();
    let last = metrics.lines().rfind(|line| line.starts_with("evaluated")).unwrap();
    let cell = |column: usize| last.split(',').nth(column).unwrap().parse::<f64>().unwrap();
    let (loss, wrong) = (cell(7), (cell(8) * 359.0).round());
    let newest =
        fs::read_dir(place.path().join("run/checkpoints")).unwrap().map(|entry| entry.unwrap().path()).max();
    let newest = newest.unwrap().display().to_string();
    for what in ["run", &newest] {
        let output = grawa(place.path(), &["eval", what]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let table = text(&output.stdout);
        let all: Vec<&str> =
            table.lines().find(|line| line.starts_with("all")).unwrap().split_whitespace().collect();
        assert_eq!((all[1], all[2].parse::<f64>().unwrap()), ("359", wrong), "{table}");
        assert!(table.contains(&format!("loss {loss:.6}")), "{table}\n{last}");
        assert_eq!(
            table.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit())).count(),
            10,
            "{table}"
        );
    }
    // A file by itself does not say what it is.
    let file = format!("{newest}/model.safetensors");
    let given = ["eval", &file, "--data", "digits", "--model", "digits", "--batch-norm", "recalibrate"];
    assert_eq!(grawa(place.path(), &given).status.code(), Some(0));
    let refused = grawa(place.path(), &["eval", "nothing"]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("there is no file or folder nothing"));
}

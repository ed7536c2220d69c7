//! `grawa lab` as a user meets it: tables and pictures, a kill, a stop, and folders of something else.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

fn command(place: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_grawa"));
    command.arg("lab").args(arguments).current_dir(place);
    command
}

fn lab(place: &Path, arguments: &[&str]) -> Output {
    command(place, arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The files of a folder and their bytes, hidden ones left out; nothing if it is not there.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let Ok(entries) = fs::read_dir(folder) else { return BTreeMap::new() };
    let entries = entries.map(|entry| entry.unwrap());
    let named = entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.path()));
    let files = named.filter(|(name, path)| path.is_file() && !name.starts_with('.'));
    files.map(|(name, path)| (name, fs::read(path).unwrap())).collect()
}

/// An experiment at the scale of smoke ends with these tables and pictures, and prints the same again.
fn smoke(experiment: &str, tables: &[&str], pictures: &[&str]) {
    let place = TempDir::new().unwrap();
    let output = lab(place.path(), &[experiment, "--scale", "smoke", "--out", "here"]);
    assert_eq!(output.status.code(), Some(0), "{experiment}: {}", text(&output.stderr));
    let results = place.path().join("here/results");
    let found = files(&results);
    for name in tables {
        for end in ["csv", "tex"] {
            let file = format!("{name}.{end}");
            let table = text(
                found.get(&file).unwrap_or_else(|| panic!("{experiment} left no {file}: {:?}", found.keys())),
            );
            assert!(
                table.lines().count() > 1 && !table.contains("NaN") && !table.contains("inf"),
                "{file}: {table}"
            );
        }
    }
    for name in pictures {
        assert!(found[&format!("{name}.png")].starts_with(b"\x89PNG\r\n\x1a\n"), "{name}");
        assert!(found[&format!("{name}.svg")].starts_with(b"<svg"), "{name}");
    }
    let page = text(&found["index.html"]);
    assert_eq!(page.matches("<figure>").count(), pictures.len());
    let markdown = text(&found["tables.md"]);
    assert!(
        markdown.matches("| --- |").count() + markdown.matches("| ---").count() >= tables.len(),
        "{markdown}"
    );
    // Everything is there already: the same words, at once, and no file changed.
    let cells = files(&place.path().join("here/cells"));
    let again = lab(place.path(), &[experiment, "--out", "here"]);
    assert_eq!((again.status.code(), text(&again.stdout)), (Some(0), text(&output.stdout)));
    assert!(text(&again.stderr).is_empty(), "{}", text(&again.stderr));
    assert!(files(&place.path().join("here/cells")) == cells && files(&results) == found);
    assert!(found["cells.csv"].iter().filter(|byte| **byte == b'\n').count() == cells.len() + 1);
}

#[test]
fn table1_ends_with_its_table() {
    smoke("table1", &["errors", "errors-differences", "settings"], &["errors-1", "errors-2"]);
}

#[test]
fn table2_ends_with_its_table() {
    let tables = ["ritz-sum", "frobenius", "largest", "trace", "settings"];
    smoke("table2", &tables, &["ritz-sum", "frobenius", "largest", "trace"]);
}

#[test]
fn scalability_ends_with_its_table() {
    smoke("scalability", &["workers"], &["workers"]);
}

#[test]
fn communication_ends_with_its_table() {
    smoke("communication", &["communication", "settings"], &[]);
}

#[test]
fn gap_ends_with_its_table() {
    smoke("gap", &["gap", "train-errors", "settings"], &["gap", "train-errors"]);
}

#[test]
fn gradnorm_ends_with_its_table() {
    smoke("gradnorm", &["correlations"], &["gradient-norm"]);
}

#[test]
fn curves_end_with_their_pictures() {
    smoke("curves", &["errors", "settings"], &["over-epochs", "over-time"]);
}

fn start(place: &Path, arguments: &[&str]) -> Child {
    command(place, arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits until so many cells are finished, while the process still runs.
fn wait_for(cells: usize, folder: &Path, child: &mut Child) {
    let began = Instant::now();
    while files(&folder.join("cells")).len() < cells {
        if child.try_wait().unwrap().is_some() {
            let mut printed = String::new();
            child.stderr.take().unwrap().read_to_string(&mut printed).unwrap();
            panic!("it ended early: {printed}");
        }
        assert!(began.elapsed() < Duration::from_secs(120), "no {cells} cells");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn killed_half_way_it_loses_no_finished_cell() {
    let place = TempDir::new().unwrap();
    let here = place.path().join("here");
    let mut kept = BTreeMap::new();
    // Killed among the searches, then among the finals.
    for cells in [5, 20] {
        let mut child = start(place.path(), &["gap", "--out", "here"]);
        wait_for(cells, &here, &mut child);
        child.kill().unwrap();
        child.wait().unwrap();
        let found = files(&here.join("cells"));
        // What was there before has not been touched.
        assert!(kept.iter().all(|(name, bytes)| found.get(name) == Some(bytes)));
        assert!(found.len() >= cells && !here.join("results").exists());
        kept = found;
    }
    let output = lab(place.path(), &["gap", "--out", "here"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let found = files(&here.join("cells"));
    assert_eq!(found.len(), 35);
    // Each holds the seconds it took: the same bytes mean that it was not run again.
    assert!(kept.iter().all(|(name, bytes)| found.get(name) == Some(bytes)));
    // Lines come for finished cells, at most one a second, and at the end.
    let lines = text(&output.stderr);
    assert!(
        lines.lines().count() <= 35 - kept.len() && lines.lines().last().unwrap().starts_with("35/35 "),
        "{lines}"
    );
    // A run that was never interrupted comes to the same table.
    let whole = lab(place.path(), &["gap", "--out", "whole"]);
    let table = |name: &str| fs::read_to_string(place.path().join(name).join("results/gap.csv")).unwrap();
    assert_eq!((whole.status.code(), table("whole")), (Some(0), table("here")));
}

#[cfg(unix)]
#[test]
fn stopped_it_says_so_and_goes_on() {
    let place = TempDir::new().unwrap();
    let arguments =
        ["curves", "--out", "here", "--method", "mean", "--seeds", "2", "--set", "train.budget=600step"];
    let child =
        command(place.path(), &arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let runs = place.path().join("here/runs");
    let began = Instant::now();
    // A run has begun.
    while fs::read_dir(&runs).map_or(0, Iterator::count) == 0 {
        assert!(began.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
    let stopped = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(stopped.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("the same command continues"), "{}", text(&output.stdout));
    let output = lab(place.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(place.path().join("here/results/over-time.png").exists());
}

#[test]
fn a_folder_belongs_to_one_experiment() {
    let place = TempDir::new().unwrap();
    let quick =
        ["--method", "mean", "--seeds", "1", "--set", "train.budget=8step", "--set", "method.pull=0.5"];
    let run = |arguments: &[&str]| lab(place.path(), &[arguments, &quick].concat());
    let first = run(&["gap", "--out", "here"]);
    assert_eq!(first.status.code(), Some(0), "{}", text(&first.stderr));
    let before = (files(&place.path().join("here/cells")), files(&place.path().join("here/results")));
    for (arguments, words) in [
        (&["table1", "--out", "here"][..], "experiment = \"table1\""),
        (&["gap", "--scale", "small", "--out", "here"], "scale = \"small\""),
        (&["gap", "--select", "test", "--out", "here"], "select = \"test\""),
        (&["gap", "--set", "train.batch=8", "--out", "here"], "train.batch=8"),
    ] {
        let output = run(arguments);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(words) && error.contains("nothing was changed"), "{arguments:?}: {error}");
    }
    // A cell that somebody changed is not believed, and not run over.
    let (name, bytes) = before.0.iter().next().unwrap();
    let path = place.path().join("here/cells").join(name);
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let output = run(&["gap", "--out", "here"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("move it away"), "{}", text(&output.stderr));
    assert_eq!(fs::read(&path).unwrap(), bytes[..bytes.len() / 2]);
    fs::write(&path, bytes).unwrap();
    // Nor is a table that somebody wrote in.
    let table = place.path().join("here/results/tables.md");
    fs::write(&table, "mine").unwrap();
    let output = run(&["gap", "--out", "here"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(fs::read_to_string(&table).unwrap(), "mine");
}

#[test]
fn wrong_requests_write_nothing() {
    for (arguments, words) in [
        (&["table3", "--out", "x"][..], "table3"),
        (&["table1"], "--out"),
        (&["table1", "--out", "x", "--scale", "huge"], "huge"),
        (&["table1", "--out", "x", "--method", "grawa"], "none of the methods"),
        (&["table1", "--out", "x", "--method", "lgrwa"], "did you mean"),
        (&["table1", "--out", "x", "--set", "train.seed=3"], "--seeds"),
        (&["table1", "--out", "x", "--set", "train.bugdet=3step"], "did you mean"),
        (&["gradnorm", "--out", "x", "--select", "test"], "no grid"),
        (&["table1", "--out", "x", "--recipe", "none.toml"], "there is no such file; give a recipe"),
        (&["table1", "--out", "x", "--device", "tpu"], "tpu"),
    ] {
        let place = TempDir::new().unwrap();
        let output = lab(place.path(), arguments);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(words), "{arguments:?} should mention '{words}': {error}");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0, "{arguments:?}");
    }
    let place = TempDir::new().unwrap();
    fs::write(place.path().join("thesis.tex"), "years").unwrap();
    let output = lab(place.path(), &["table1", "--out", "."]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("thesis.tex"), "{}", text(&output.stderr));
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    // Data that is not there is found before a cell is run, and leaves nothing.
    let output = lab(place.path(), &["table1", "--scale", "small", "--dir", "nowhere", "--out", "x"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
}

#[test]
fn a_dry_run_lists_the_cells_and_runs_nothing() {
    let place = TempDir::new().unwrap();
    let output = lab(place.path(), &["table1", "--scale", "paper", "--dry-run"]);
    let listed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(listed.contains("475 cells, and 147 more"), "{listed}");
    // ImageNet is not here, and counts with its published size, which is printed; it is about half of all.
    assert!(listed.contains("published size is used: 1281167 training images of 1000 classes"), "{listed}");
    assert!(listed.contains(": 4.6e20 multiplications and additions"), "{listed}");
    // Rows name their data and network: a method's search of the same setting is done for each of them.
    let cells = || listed.lines().filter(|line| line.starts_with("search"));
    let rows = |network: &str| cells().filter(|line| line.contains(network)).count();
    assert_eq!((rows("resnet50"), rows("vgg16")), (61, 69), "{listed}");
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    // Pictures that are not there are not made up.
    let output = lab(place.path(), &["gap", "--data", "folder", "--dir", "nowhere", "--dry-run"]);
    let listed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(listed.contains("The total leaves out 35 cells") && listed.contains("nowhere"), "{listed}");
    assert!(listed.contains("unknown") && !listed.contains("About "), "{listed}");
}

/// The paper's way to choose is marked wherever its numbers stand.
#[test]
fn choosing_on_the_test_set_is_marked() {
    let place = TempDir::new().unwrap();
    let arguments = [
        "table1",
        "--select",
        "test",
        "--method",
        "mean",
        "--seeds",
        "2",
        "--set",
        "train.budget=16step",
        "--out",
        "x",
    ];
    let output = lab(place.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for file in ["errors.tex", "tables.md", "index.html"] {
        let found = fs::read_to_string(place.path().join("x/results").join(file)).unwrap();
        assert!(found.contains("CHOSEN ON THE TEST SET"), "{file}");
    }
}

/// Methods with knobs of their own against the first: a table, pictures, a page; the same command continues in its folder.
#[test]
fn methods_are_compared() {
    let place = TempDir::new().unwrap();
    let compare = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_grawa"));
        command.args(["compare", "--method", "lgrawa", "--method", "lgrawa:pull=0.9", "--method", "mean"]);
        command.args(["--set", "method.period=4", "--set", "model.width=4", "--workers", "2"]);
        command.args(["--budget", "12step", "--seeds", "3"]).args(more).current_dir(place.path());
        command.output().unwrap()
    };
    let planned = compare(&["--dry-run"]);
    assert!(text(&planned.stdout).contains("9 cells:"), "{}", text(&planned.stdout));
    assert!(!place.path().join("out").exists());
    let output = compare(&[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("9/9"), "{}", text(&output.stderr));
    let found = files(&place.path().join("out/compare-digits/results"));
    for file in ["errors.png", "differences.png", "index.html", "tables.md", "cells.csv"] {
        assert!(found.contains_key(file), "{file}");
    }
    let table = text(&found["comparison.csv"]);
    let rows: Vec<&str> = table.lines().collect();
    assert!(rows.len() == 4 && rows[0].contains("difference to LGRAWA"), "{table}");
    assert!(rows[2].starts_with("LGRAWA pull=0.9,\"lgrawa:period=4,pull=0.9\",3,"), "{table}");
    assert!(rows[3].starts_with("Mean,mean:period=4,3,") && rows[3].contains('±'), "{table}");
    // Nothing is trained again.
    let again = compare(&[]);
    assert_eq!((again.status.code(), &again.stdout), (Some(0), &output.stdout));
    assert!(!text(&again.stderr).contains("/9"), "{}", text(&again.stderr));
}

/// A knob that comes with the method is not searched for.
#[test]
fn a_method_may_bring_its_knobs() {
    let place = TempDir::new().unwrap();
    let all = lab(place.path(), &["table2", "--method", "lgrawa", "--dry-run"]);
    let some = lab(place.path(), &["table2", "--method", "lgrawa:pull=0.5", "--dry-run"]);
    assert!(text(&all.stdout).contains("method.pull="), "{}", text(&all.stdout));
    assert_eq!(some.status.code(), Some(0), "{}", text(&some.stderr));
    assert!(!text(&some.stdout).contains("method.pull="), "{}", text(&some.stdout));
}

/// On a GPU the Hessian is measured there: the table holds what `grawa flatness` finds for the same model on the CPU.
#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn table2_on_a_gpu_holds_the_figures_of_the_cpu() {
    let place = TempDir::new().unwrap();
    let arguments = [
        &["table2", "--device", "cuda", "--method", "mean:pull=0.5", "--seeds", "1", "--out", "here"][..],
        &["--set", "train.budget=16step", "--set", "machine.precision=f32"],
    ];
    let output = lab(place.path(), &arguments.concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let cells = files(&place.path().join("here/cells"));
    assert!(!cells.is_empty());
    for (name, cell) in cells {
        let found: serde_json::Value = serde_json::from_slice(&cell).unwrap();
        let largest = found.pointer("/flatness/largest").and_then(serde_json::Value::as_f64);
        let largest = largest.unwrap_or_else(|| panic!("{found}"));
        let run = place.path().join("here/runs").join(name.trim_end_matches(".json"));
        let model = run.join("checkpoints/step-00000016/model.safetensors");
        let measure = ["--examples", "128", "--steps", "30", "--draws", "2", "--extra", "6", "--out", "flat"];
        let measured = Command::new(env!("CARGO_BIN_EXE_grawa"))
            .arg("flatness")
            .arg(model)
            .args(["--model", "digits", "--data", "digits", "--set", "model.width=8"])
            .args(measure)
            .current_dir(&run)
            .output()
            .unwrap();
        assert_eq!(measured.status.code(), Some(0), "{}", text(&measured.stderr));
        let table = fs::read_to_string(run.join("flat/figures.csv")).unwrap();
        let row = table.lines().find(|line| line.starts_with("λ_max")).unwrap();
        let expected: f64 = row.split(',').nth(1).unwrap().parse().unwrap();
        assert!((largest / expected - 1.0).abs() < 1e-3, "{name}: {largest}, on the CPU {expected}");
    }
}

//! `grawa flatness` and `grawa landscape` as a user meets them.

#![allow(clippy::unwrap_used)]

use grawa_nn::{State, zoo};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

fn grawa(place: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_grawa")).args(arguments).current_dir(place).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn names(place: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(place).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A folder with the states of some seeds of the network for the digits.
fn states() -> TempDir {
    let place = TempDir::new().unwrap();
    let entry = zoo::find("digits").unwrap();
    let graph = entry.build(entry.input, 10).unwrap();
    for seed in 0..4 {
        let path = place.path().join(format!("{seed}.safetensors"));
        State::initial(&graph, seed).save(&graph, &path).unwrap();
    }
    place
}

const COMMON: [&str; 8] = ["--model", "digits", "--data", "digits", "--examples", "64", "--batch", "32"];

fn with<'a>(first: &[&'a str], rest: &[&'a str]) -> Vec<&'a str> {
    [first, &COMMON, rest].concat()
}

#[test]
fn flatness_leaves_figures_and_a_spectrum() {
    let place = states();
    let arguments = with(
        &["flatness", "0.safetensors"],
        &["--steps", "12", "--draws", "2", "--extra", "3", "--out", "flat"],
    );
    let output = grawa(place.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    for word in ["λ_max", "Σθ", "√Σθ²", "‖H‖_F", "trace", "‖g‖", "Σₖ‖Gₖ‖", "ε-sharpness", "Memory:"]
    {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    let flat = place.path().join("flat");
    assert_eq!(
        names(&flat),
        ["examples.csv", "figures.csv", "ritz.csv", "settings.toml", "spectrum.png", "spectrum.svg"]
    );
    let ritz = fs::read_to_string(flat.join("ritz.csv")).unwrap();
    assert_eq!(ritz.lines().count(), 1 + 2 * 12);
    assert_eq!(fs::read_to_string(flat.join("examples.csv")).unwrap().lines().count(), 65);
    // The same again finds the same bytes; on one core too; with another setting it is refused.
    assert_eq!(grawa(place.path(), &arguments).status.code(), Some(0));
    let alone = [&arguments[..], &["--threads", "1", "--memory", "20"]].concat();
    assert_eq!(grawa(place.path(), &alone).status.code(), Some(0), "other threads, other bytes");
    let other = grawa(place.path(), &[&arguments[..], &["--norm", "eval"]].concat());
    assert_eq!(other.status.code(), Some(2));
    assert!(text(&other.stderr).contains("already holds"));
    assert_eq!(fs::read_to_string(flat.join("ritz.csv")).unwrap(), ritz);
}

#[test]
fn landscapes_are_lines_and_planes() {
    let place = states();
    let line =
        with(&["landscape", "0.safetensors", "--to", "1.safetensors"], &["--points", "5", "--out", "line"]);
    let output = grawa(place.path(), &line);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("highest between them"));
    assert_eq!(names(&place.path().join("line")), ["line.csv", "line.png", "line.svg", "settings.toml"]);
    let plane = with(&["landscape", "0.safetensors"], &["--points", "3", "--out", "plane"]);
    assert_eq!(grawa(place.path(), &plane).status.code(), Some(0));
    let files = ["places.csv", "plane.csv", "plane.png", "plane.svg", "settings.toml"];
    assert_eq!(names(&place.path().join("plane")), files);
    let workers = ["--worker", "1.safetensors", "--worker", "2.safetensors", "--worker", "3.safetensors"];
    let arguments =
        with(&["landscape", "0.safetensors"], &[&workers[..], &["--points", "4", "--out", "w"]].concat());
    let output = grawa(place.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let places = fs::read_to_string(place.path().join("w/places.csv")).unwrap();
    assert_eq!(places.lines().count(), 5);
    assert!(places.contains("centre,0,0") && places.contains("worker 2,"));
}

#[test]
fn a_runs_folder_says_what_it_is_of() {
    let place = TempDir::new().unwrap();
    let train = ["train", "--data", "digits", "--method", "lgrawa:period=8,pull=0.3", "--workers", "3"];
    let budget = ["--seed", "7", "--budget", "16step", "--out", "run", "--quiet"];
    let output = grawa(place.path(), &[&train[..], &budget].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let few = ["--examples", "64", "--batch", "32"];
    let flat = ["flatness", "run", "--steps", "4", "--draws", "1", "--extra", "2", "--out", "flat"];
    let output = grawa(place.path(), &[&flat[..], &few].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(
        text(&output.stdout)
            .contains("network digits on the data digits, 64 examples in batches of 32, batch norm: train")
    );
    // Several models: one table, and files that name them.
    let both = ["flatness", "run", "run/best", "--steps", "4", "--draws", "1", "--extra", "2"];
    let output = grawa(place.path(), &[&both[..], &few].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let together = place.path().join("out/flatness-run-run-best");
    assert!(together.join("run-best-spectrum.png").exists() && together.join("run-ritz.csv").exists());
    let table = fs::read_to_string(together.join("figures.csv")).unwrap();
    assert!(table.starts_with("figure,run,run-best,what it is\n") && table.lines().count() == 14, "{table}");
    let twice = grawa(place.path(), &["flatness", "run", "run"]);
    assert_eq!(twice.status.code(), Some(2), "{}", text(&twice.stderr));
    let landscape = ["landscape", "run", "--points", "3", "--out", "plane"];
    let output = grawa(place.path(), &[&landscape[..], &few].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let places = fs::read_to_string(place.path().join("plane/places.csv")).unwrap();
    assert!(places.lines().count() == 5 && places.contains("worker 2,"), "{places}");
    let random = ["landscape", "run", "--random", "--points", "3", "--out", "random"];
    assert_eq!(grawa(place.path(), &[&random[..], &few].concat()).status.code(), Some(0));
    assert_eq!(fs::read_to_string(place.path().join("random/places.csv")).unwrap().lines().count(), 2);
}

#[test]
fn bad_input_is_refused_in_words_and_nothing_is_written() {
    let place = states();
    fs::write(place.path().join("text.safetensors"), "no tensors").unwrap();
    let refused = |arguments: &[&str], code: i32, words: &str| {
        let before = names(place.path());
        let output = grawa(place.path(), arguments);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        assert!(error.contains(words), "{arguments:?} should mention '{words}': {error}");
        assert_eq!(names(place.path()), before);
    };
    refused(&with(&["flatness", "none.safetensors"], &[]), 2, "there is no file or folder none.safetensors");
    refused(&with(&["flatness", "text.safetensors"], &[]), 1, "not a safetensors file");
    refused(&with(&["flatness", "0.safetensors"], &["--batch", "30"]), 2, "cannot be used multiple times");
    let other = ["--data", "digits", "--examples", "64"];
    refused(
        &[&["flatness", "0.safetensors", "--model", "digits"], &other[..], &["--batch", "30"]].concat(),
        2,
        "64 examples do not make whole batches of 30",
    );
    refused(
        &[&["flatness", "0.safetensors", "--model", "resnet20"], &other[..]].concat(),
        1,
        "is it of another network?",
    );
    refused(
        &["flatness", "0.safetensors", "--model", "digist", "--data", "digits"],
        2,
        "did you mean 'digits'?",
    );
    refused(
        &["flatness", "0.safetensors", "--model", "digits", "--data", "digist"],
        2,
        "did you mean 'digits'?",
    );
    refused(
        &["flatness", "0.safetensors", "--model", "digits", "--data", "digits", "--examples", "3200"],
        1,
        "3200 examples",
    );
    refused(&with(&["flatness", "0.safetensors"], &["--steps", "0"]), 2, "must be at least 1");
    refused(&with(&["flatness", "0.safetensors"], &["--memory", "1"]), 2, "MB are allowed");
    refused(
        &with(&["landscape", "0.safetensors", "--to", "0.safetensors"], &["--points", "3"]),
        1,
        "same point",
    );
    refused(
        &with(&["landscape", "0.safetensors", "--worker", "1.safetensors"], &[]),
        2,
        "must be at least 2",
    );
}

/// The Ritz values of a run of Lanczos, with their residuals.
fn ritz(folder: &Path) -> Vec<(f64, f64)> {
    let table = fs::read_to_string(folder.join("ritz.csv")).unwrap();
    let numbers = |line: &str| line.split(',').map(|cell| cell.parse().unwrap()).collect::<Vec<f64>>();
    table.lines().skip(1).map(numbers).map(|row| (row[2], row[4])).collect()
}

/// The spectrum and a plane measured on a GPU are those of the CPU, within the bounds they state.
#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn flatness_on_a_gpu_is_that_of_the_cpu() {
    let place = states();
    for device in ["cpu", "cuda"] {
        let [flat, plane] = ["flat", "plane"].map(|what| format!("{what}-{device}"));
        let spectrum = ["--steps", "40", "--draws", "1", "--extra", "2", "--device", device, "--out", &flat];
        let random = ["--random", "--points", "3", "--device", device, "--out", &plane];
        for arguments in
            [with(&["flatness", "0.safetensors"], &spectrum), with(&["landscape", "0.safetensors"], &random)]
        {
            let output = grawa(place.path(), &arguments);
            assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        }
    }
    let [cpu, gpu] = ["flat-cpu", "flat-cuda"].map(|folder| ritz(&place.path().join(folder)));
    let scale = cpu.iter().map(|(value, _)| value.abs()).fold(0.0, f64::max);
    for at in [0, cpu.len() - 1] {
        let ((found, bound), (expected, other)) = (gpu[at], cpu[at]);
        assert!((found - expected).abs() <= bound + other + 1e-5 * scale, "{found} and {expected}");
    }
    let losses = |folder: &str| {
        let table = fs::read_to_string(place.path().join(folder).join("plane.csv")).unwrap();
        let loss = |line: &str| line.split(',').nth(2).unwrap().parse().unwrap();
        table.lines().skip(1).map(loss).collect::<Vec<f64>>()
    };
    for (found, expected) in losses("plane-cuda").iter().zip(losses("plane-cpu")) {
        assert!((found / expected - 1.0).abs() < 1e-4, "{found} and {expected}");
    }
}

//! The `grawa` command as a user meets it: what it writes, what it refuses, and its exit codes.

#![allow(clippy::unwrap_used)]

use grawa_core::{Method, Name, Preset, Share};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

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

fn names(place: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(place).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Runs with an output folder, expects wrong usage, these words, and nothing written.
fn refused(arguments: &[&str], words: &str) {
    let place = TempDir::new().unwrap();
    let output = grawa(place.path(), arguments);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
    assert!(error.contains(words), "{arguments:?} should mention '{words}': {error}");
    assert!(output.stdout.is_empty());
    assert!(names(place.path()).is_empty(), "{arguments:?} wrote {:?}", names(place.path()));
}

#[test]
fn vincent_leaves_pictures_a_page_and_a_table() {
    let place = TempDir::new().unwrap();
    let output = grawa(place.path(), &["vincent", "--out", "here"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    for (method, point) in
        [("LGRAWA", "(7.706, 7.706)"), ("EASGD", "(4.111, 4.111)"), ("Mean", "(4.111, 4.111)")]
    {
        let row = table.lines().find(|line| line.starts_with(method)).unwrap();
        assert!(row.contains(point), "{row}");
    }
    let here = place.path().join("here");
    let pulls = |name: &Name| Method::named(*name, Preset::Paper).share == Share::Parameters;
    let methods: Vec<Name> = Name::ALL.into_iter().filter(pulls).collect();
    let mut expected: Vec<String> =
        ["ends.csv", "ends.tex", "index.html", "settings.toml", "tables.md"].map(String::from).into();
    for name in ["ends".to_owned()].into_iter().chain(methods.iter().map(|name| format!("trajectory-{name}")))
    {
        expected.extend([format!("{name}.svg"), format!("{name}.png")]);
    }
    expected.sort();
    assert_eq!(names(&here), expected);
    for name in names(&here) {
        let bytes = fs::read(here.join(&name)).unwrap();
        if name.ends_with(".png") {
            assert!(bytes.starts_with(b"\x89PNG\r\n\x1a\n"), "{name}");
        } else if name.ends_with(".svg") {
            assert!(bytes.starts_with(b"<svg") && bytes.trim_ascii_end().ends_with(b"</svg>"), "{name}");
        }
    }
    let csv = fs::read_to_string(here.join("ends.csv")).unwrap();
    assert_eq!(csv.lines().count(), methods.len() + 1);
    // The same run again finds the same bytes and is content; another one is refused and changes nothing.
    assert_eq!(grawa(place.path(), &["vincent", "--out", "here"]).status.code(), Some(0));
    let other = grawa(place.path(), &["vincent", "--out", "here", "--pull", "0.4"]);
    assert_eq!(other.status.code(), Some(2));
    assert!(text(&other.stderr).contains("already holds"), "{}", text(&other.stderr));
    assert_eq!(fs::read_to_string(here.join("ends.csv")).unwrap(), csv);
}

#[test]
fn without_a_folder_the_next_free_name_is_taken() {
    let place = TempDir::new().unwrap();
    for pull in ["0.5", "0.6", "0.5"] {
        let output = grawa(place.path(), &["vincent", "--method", "mean", "--steps", "40", "--pull", pull]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    }
    assert_eq!(names(&place.path().join("out")), ["vincent", "vincent-2"]);
}

#[test]
fn every_knob_changes_the_run() {
    let place = TempDir::new().unwrap();
    let csv = |name: &str, arguments: &[&str]| {
        let output = grawa(
            place.path(),
            &[&["vincent", "--method", "lgrawa", "--steps", "30", "--out", name], arguments].concat(),
        );
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        fs::read_to_string(place.path().join(name).join("ends.csv")).unwrap()
    };
    let plain = csv("plain", &[]);
    for (name, arguments) in [
        ("pull", &["--pull", "0.4"][..]),
        ("lr", &["--lr", "0.02"]),
        ("period", &["--period", "5"]),
        ("start", &["--start", "1,1", "--start", "2,3"]),
        ("edge", &["--edge", "clip"]),
    ] {
        assert_ne!(csv(name, arguments), plain, "{name}");
    }
    assert_eq!(
        csv(
            "starts",
            &["--start", "0.25,0.25", "--start", "0.25,10", "--start", "10,0.25", "--start", "10,10"]
        ),
        plain
    );
}

#[test]
fn a_sweep_maps_every_edge_rule() {
    let place = TempDir::new().unwrap();
    let output = grawa(
        place.path(),
        &["vincent", "--sweep", "--method", "mean", "--method", "lsgd", "--steps", "40", "--out", "map"],
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let map = place.path().join("map");
    let expected = [
        "index.html",
        "settings.toml",
        "sweep-clip.png",
        "sweep-clip.svg",
        "sweep-none.png",
        "sweep-none.svg",
        "sweep-reflect.png",
        "sweep-reflect.svg",
        "sweep.csv",
        "tables.md",
        "valleys.csv",
        "valleys.tex",
    ];
    assert_eq!(names(&map), expected);
    assert_eq!(fs::read_to_string(map.join("sweep.csv")).unwrap().lines().count(), 1 + 2 * 1080);
}

#[test]
fn wrong_usage_is_explained_and_writes_nothing() {
    refused(&["vincent", "--out", "o", "--pull", "1.5"], "pull is 1.5, but must be from 0 to 1");
    refused(&["vincent", "--out", "o", "--pull", "-0.1"], "pull is -0.1, but must be from 0 to 1");
    refused(&["vincent", "--out", "o", "--pull", "nan"], "pull is NaN");
    refused(&["vincent", "--out", "o", "--period", "0"], "period is 0, but must be at least 1");
    refused(&["vincent", "--out", "o", "--steps", "0"], "at least one step");
    refused(&["vincent", "--out", "o", "--lr", "0"], "the learning rate is 0");
    refused(&["vincent", "--out", "o", "--lr", "-1"], "the learning rate is -1");
    refused(&["vincent", "--out", "o", "--method", "lgrwa"], "did you mean 'lgrawa'?");
    refused(&["vincent", "--out", "o", "--method", "lgrawa:perod=3"], "did you mean 'period'?");
    refused(&["vincent", "--out", "o", "--method", "dp-sgd"], "dp-sgd has no pull");
    refused(
        &["vincent", "--out", "o", "--method", "mean", "--method", "mean:pull=0.1"],
        "mean is given twice",
    );
    refused(&["vincent", "--out", "o", "--start", "0,1"], "the start (0, 1) lies outside the domain");
    refused(&["vincent", "--out", "o", "--start", "-1,1"], "lies outside the domain");
    refused(&["vincent", "--out", "o", "--start", "0.1,1", "--edge", "clip"], "from 0.25 to 10");
    refused(&["vincent", "--out", "o", "--start", "one"], "two numbers");
    refused(&["vincent", "--out", "o", "--edge", "wrap"], "[possible values: none, clip, reflect]");
    refused(&["vincent", "--out", "o", "--sweep", "--pull", "0.5"], "cannot be used with");
    refused(
        &["vincent", "--out", "o", "--sweep", "--method", "mean:pull=0.3"],
        "a sweep sets pull and rate itself",
    );
    refused(&["vincent", "--out", "o", "--steps", "18446744073709551615"], "at most 20000000");
    refused(&["vincent", "--out", "o", "--lr", "1e300"], "the learning rate is");
    refused(&["vincnet"], "vincent");
    refused(&["methods", "adam"], "there is no method 'adam'");
    refused(&["models", "resnet21"], "did you mean 'resnet20'?");
    refused(&["data", "get", "cifar11"], "cifar10");
    refused(&["bench", "step", "--workers", "0"], "0 is not in");
    refused(&["bench", "step", "--model", "vgg"], "there is no network 'vgg'");
    refused(&["probe", "--model", "resnet20", "--classes", "10", "--values", "v"], "--out");
    refused(&["theory", "--out", "o", "--slow"], "--slow");
}

/// What people type who know PyTorch, and mistakes of a first hour: each answer says what to type.
#[test]
fn typed_mistakes_lead_to_what_is_meant() {
    for (typed, words) in [
        ("--lr 0.05", "there is no option '--lr'; use --rate 0.05"),
        ("--learning-rate=0.05", "there is no option '--learning-rate'; use --rate 0.05"),
        ("--batch_size 64", "use --batch 64"),
        ("--batch-size 64 --lr 0.1", "use --batch 64"),
        ("--num-epochs 15", "use --budget 15epoch"),
        ("--max-steps 500", "use --budget 500step"),
        ("--gpu", "use --device cuda"),
        ("--num-workers 8", "use --workers 8"),
        ("--momentum 0.8", "use --set train.momentum=0.8"),
        ("--weight-decay 1e-4", "use --set train.weight_decay=1e-4"),
        ("--wd", "use --set train.weight_decay=VALUE"),
        ("--optimizer adamw", "use --set train.optimizer=adamw"),
        ("--pull 0.3", "use --set method.pull=0.3"),
        ("--tau 16", "use --period 16"),
        ("--perod 16", "a similar argument exists: '--period'"),
        ("--set train.lr=0.1", "did you mean 'train.rate'?"),
        ("--set lr=0.1", "did you mean 'train.rate'?"),
        ("--device gpu", "did you mean 'cuda'?"),
        ("--set train.budget=3", "a unit is missing; write 3epoch, 3step or 3m"),
        ("--budget 3", "a unit is missing; write 3epoch, 3step or 3m"),
        ("--set evaluate.every=4", "a unit is missing; write 4epoch"),
        ("--set train.budget=-3epoch", "it must not be negative"),
        ("--budget -3epoch", "it must not be negative"),
        ("--epochs -3", "it must not be negative"),
        ("--epochs ten", "expected a number with a unit"),
        ("--method lgrawa:period=4:pull=0.3", "write a comma between knobs"),
        ("--method lgrawa:period=often", "period cannot be \"often\": expected a whole number"),
        ("--set method.pull=much", "pull"),
        ("--workers four", "--workers: train.workers: found \"four\", expected a whole number, 1 or more"),
        ("--workers -1", "--workers: train.workers: found -1, expected a whole number, 1 or more"),
        ("--batch 1.5", "--batch: train.batch: found 1.5, expected a whole number, 1 or more"),
        ("--seed x", "--seed: train.seed: found \"x\", expected a whole number"),
        ("--rate fast", "--rate: train.rate: cannot read the schedule 'fast'"),
        ("--per-process two", "'two' cannot be the value of '--per-process <N>'; expected a whole number"),
        ("--resume nope", "there is no folder nope"),
    ] {
        let arguments: Vec<&str> = ["train"].into_iter().chain(typed.split(' ')).collect();
        refused(&arguments, words);
        let place = TempDir::new().unwrap();
        let error = text(&grawa(place.path(), &arguments).stderr);
        for rust in ["u32", "f64", "i64", "invalid digit", "text in quotes", "invalid type"] {
            assert!(!error.contains(rust), "{typed}: {error}");
        }
    }
    // What was refused once has an option now.
    let place = TempDir::new().unwrap();
    let short = ["train", "--batch", "64", "--rate", "0.05", "--period", "16", "--epochs", "15", "--dry-run"];
    let plan = text(&grawa(place.path(), &short).stdout);
    for line in ["batch = 64\n", "rate = \"0.05\"", "period = 16\n", "budget = \"15epoch\""] {
        assert!(plan.contains(line), "{line}: {plan}");
    }
    let run = ["train", "--budget", "4step", "--period", "2", "--out", "run", "--quiet"];
    assert_eq!(grawa(place.path(), &run).status.code(), Some(0));
    let again = text(&grawa(place.path(), &run).stderr);
    assert!(again.contains("run already holds a run"), "{again}");
    fs::remove_file(place.path().join("run/events.jsonl")).unwrap();
    let report = text(&grawa(place.path(), &["report", "run", "--out", "page.html"]).stderr);
    assert!(report.contains("it holds no events.jsonl"), "{report}");
}

#[test]
fn what_a_user_has_is_not_touched() {
    let place = TempDir::new().unwrap();
    fs::create_dir(place.path().join("thesis")).unwrap();
    fs::write(place.path().join("thesis/chapter1.tex"), "years of work").unwrap();
    fs::write(place.path().join("file"), "x").unwrap();
    for (out, words) in
        [("thesis", "chapter1.tex"), ("file", "a file of that name"), ("file/below", "a file of that name")]
    {
        for command in [&["vincent", "--method", "mean"][..], &["theory", "--quick"]] {
            let output = grawa(place.path(), &[command, &["--out", out]].concat());
            assert_eq!(output.status.code(), Some(2), "{out}: {}", text(&output.stderr));
            assert!(text(&output.stderr).contains(words), "{}", text(&output.stderr));
        }
    }
    assert_eq!(names(place.path()), ["file", "thesis"]);
    assert_eq!(names(&place.path().join("thesis")), ["chapter1.tex"]);
}

#[test]
fn methods_are_listed_and_read_back() {
    let place = TempDir::new().unwrap();
    let table = text(&grawa(place.path(), &["methods"]).stdout);
    for name in [
        "easgd",
        "lsgd",
        "grawa",
        "mgrawa",
        "lgrawa",
        "local-mgrawa",
        "local-lgrawa",
        "mean",
        "dp-sgd",
        "dp-sam",
        "sgd",
    ] {
        assert!(table.lines().any(|line| line.starts_with(&format!("{name} "))), "{name}");
        for preset in ["paper", "reference"] {
            let shown = text(&grawa(place.path(), &["methods", name, "--preset", preset]).stdout);
            let setting =
                shown.lines().find_map(|line| line.strip_prefix("# on the command line: ")).unwrap();
            assert_eq!(text(&grawa(place.path(), &["methods", setting]).stdout), shown);
        }
    }
}

#[test]
fn models_are_counted() {
    let place = TempDir::new().unwrap();
    let table = text(&grawa(place.path(), &["models"]).stdout);
    let row = table.lines().find(|line| line.starts_with("wrn28-10")).unwrap();
    assert!(row.contains("36,536,884") && row.contains(" 80 "), "{row}");
    let layout = text(&grawa(place.path(), &["models", "vgg16"]).stdout);
    assert!(layout.contains("features.0.bias (before batch norm: no gradient)"), "{layout}");
}

/// Sizes are checked before anything of such a size is allocated.
#[test]
fn sizes_beyond_the_images_or_the_memory_are_refused() {
    for augment in ["crop500", "crop5000", "resized5000"] {
        let augment = format!("data.augment={augment}");
        for dry in [&["--dry-run"][..], &[]] {
            let arguments = [&["train", "--data", "digits", "--set", &augment], dry].concat();
            refused(&arguments, "does not fit images of 1×8×8");
        }
    }
    refused(&["train", "--data", "digits", "--set", "model.width=100000"], "from 1 to 65536");
    if cfg!(target_os = "linux") {
        let place = TempDir::new().unwrap();
        for option in ["--dry-run", "--quiet"] {
            let output =
                grawa(place.path(), &["train", "--data", "digits", "--set", "model.width=65000", option]);
            let error = text(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{error}");
            assert!(error.contains("GB of memory, and this machine has"), "{error}");
        }
        assert!(names(place.path()).is_empty());
    }
}

/// What was asked for is wrong, not the machine: exit code 2.
#[test]
fn wrong_values_and_missing_files_are_wrong_usage() {
    refused(&["models", "nowhere.json"], "cannot read nowhere.json");
    refused(&["train", "--data", "digits", "--set", "data.split=classes:11"], "10 classes need from 3 to 10");
    refused(&["train", "--data", "digits", "--epochs", "0"], "a budget of 0epoch trains nothing");
    refused(&["train", "--data", "digits", "--budget", "0s"], "trains nothing");
    refused(&["train", "--data", "digits", "--rate", "1e40"], "more than a parameter can hold");
    refused(&["train", "--data", "digits", "--rate", "-0.1"], "not negative");
    refused(&["train", "--data", "digits", "--rate", "0.1, cosine over 0epoch"], "cosine over 40epoch");
}

#[test]
fn a_bench_counts_images_and_a_folder_without_data_is_an_error() {
    let place = TempDir::new().unwrap();
    let output = grawa(
        place.path(),
        &["bench", "step", "--model", "digits", "--workers", "3", "--batch", "8", "--seconds", "0.1"],
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let row = text(&output.stdout).lines().find(|line| line.starts_with("digits")).unwrap().to_owned();
    let rate: f64 = row.split_whitespace().nth(4).unwrap().parse().unwrap();
    assert!(rate > 1.0, "{row}");
    assert_eq!(grawa(place.path(), &["data", "info", "nowhere"]).status.code(), Some(2));
    let nothing = grawa(place.path(), &["data", "info", "."]);
    assert_eq!(nothing.status.code(), Some(1));
    assert!(text(&nothing.stdout).contains("problem: "), "{}", text(&nothing.stdout));
}

#[test]
fn a_probe_of_a_missing_or_broken_file_fails_and_writes_nothing() {
    let place = TempDir::new().unwrap();
    let probe = |values: &str| {
        grawa(
            place.path(),
            &["probe", "--model", "resnet20", "--classes", "10", "--values", values, "--out", "out"],
        )
    };
    let missing = probe("nowhere");
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing.stderr).contains("cannot read nowhere"), "{}", text(&missing.stderr));
    fs::write(place.path().join("broken"), b"\x08\0\0\0\0\0\0\0not json").unwrap();
    let broken = probe("broken");
    assert_eq!(broken.status.code(), Some(1));
    assert!(text(&broken.stderr).contains("broken is not a safetensors file"), "{}", text(&broken.stderr));
    assert_eq!(names(place.path()), ["broken"]);
}

#[test]
fn help_teaches() {
    let place = TempDir::new().unwrap();
    for (arguments, words) in [
        (&["--help"][..], "Start with `grawa demo`"),
        (&["vincent", "--help"], "Examples:"),
        (&["vincent", "--help"], "every method with rounds"),
        (&["methods", "--help"], "Examples:"),
        (&["theory", "--help"], "--quick"),
    ] {
        let output = grawa(place.path(), arguments);
        assert_eq!(output.status.code(), Some(0));
        assert!(text(&output.stdout).contains(words), "{arguments:?}");
    }
    assert_eq!(grawa(place.path(), &[]).status.code(), Some(2));
    assert!(text(&grawa(place.path(), &["--version"]).stdout).starts_with("grawa "));
}

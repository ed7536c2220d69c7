//! What the dependencies ask of us: their licences, which `grawa licenses` prints, and a compiler that is new enough.
//!
//! `GRAWA_WRITE_LICENSES=1 cargo test --locked -p grawa-cli --test dependencies` writes the files with the licences anew, from
//! the sources that cargo has.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The lists must not depend on the machine they are made on.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";
const RULE: &str = "================================================================================";

#[test]
fn the_licences_are_those_of_what_is_linked() {
    let crates = linked();
    let mut list = format!("{} crates (on Linux, without the feature mpi):\n\n", crates.len());
    for one in &crates {
        assert!(!one.licence.is_empty(), "{} names no licence", one.name);
        writeln!(list, "{} {}: {}", one.name, one.version, one.licence).unwrap();
    }
    let texts = texts(&crates);
    assert!(texts.len() < 1_000_000, "{} bytes are too many to keep in the repository", texts.len());
    for (file, expected) in [("crates.txt", list), ("texts.txt", texts)] {
        let path = package().join("licenses").join(file);
        if std::env::var_os("GRAWA_WRITE_LICENSES").is_some() {
            fs::write(&path, &expected).unwrap();
        }
        let kept = fs::read_to_string(&path).unwrap_or_default();
        let differ = kept.lines().zip(expected.lines()).find(|(kept, expected)| kept != expected);
        assert!(
            kept == expected,
            "{} is not of these dependencies (first difference: {differ:?}); write it anew with\n  \
             GRAWA_WRITE_LICENSES=1 cargo test --locked -p grawa-cli --test dependencies",
            path.display()
        );
    }
}

#[test]
fn the_program_prints_them() {
    let grawa = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_grawa")).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stdout).unwrap()
    };
    let short = grawa(&["licenses"]);
    for words in ["MIT OR Apache-2.0", "Alpaydın", "CC BY 4.0", "DejaVu Sans", "\nrustls 0.", "\nring 0."] {
        assert!(short.contains(words), "'{words}' is missing in:\n{short}");
    }
    let full = grawa(&["licenses", "--full"]);
    for words in
        ["The grawa developers", "Bitstream Vera", "creativecommons.org/licenses/by/4.0", "Brian Smith"]
    {
        assert!(full.contains(words), "'{words}' is missing in the texts");
    }
}

/// The minimum version that Cargo.toml names is also that of everything we depend on. (Whether our own code keeps to it is for
/// clippy's lint `incompatible_msrv`.)
#[test]
fn no_dependency_asks_for_a_newer_compiler() {
    let number = |version: &str| -> Vec<u32> {
        let parts: Vec<u32> = version.split('.').map(|part| part.parse().unwrap()).collect();
        [&parts[..], &[0; 3]].concat()[..3].to_vec()
    };
    let ours = env!("CARGO_PKG_RUST_VERSION");
    let asking: Vec<(String, String)> = packages()
        .iter()
        .filter_map(|package| Some((text(&package["name"]), package["rust_version"].as_str()?.to_owned())))
        .collect();
    assert!(asking.len() > 100, "only {} packages name a version", asking.len());
    for (name, version) in asking {
        assert!(number(&version) <= number(ours), "{name} needs Rust {version}, but rust-version is {ours}");
    }
}

/// A crate that is linked into the program.
struct Linked {
    name: String,
    version: String,
    licence: String,
    authors: String,
    folder: PathBuf,
}

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What cargo prints.
fn cargo(arguments: &[&str]) -> Vec<u8> {
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(package()).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// All packages that cargo knows.
fn packages() -> Vec<Value> {
    let metadata = cargo(&["metadata", "--locked", "--format-version", "1", "--filter-platform", PLATFORM]);
    let mut metadata: Value = serde_json::from_slice(&metadata).unwrap();
    serde_json::from_value(metadata["packages"].take()).unwrap()
}

/// All crates whose code is in the program, by name: what it and they depend on, but for tests, for building, and for macros,
/// whose code runs in the compiler.
fn linked() -> Vec<Linked> {
    let tree = ["tree", "--locked", "--package", "grawa-cli", "--edges", "normal,no-proc-macro"];
    let tree = cargo(&[&tree[..], &["--target", PLATFORM, "--prefix", "none"]].concat());
    let tree = String::from_utf8(tree).unwrap();
    // "name v1.2.3 (*)"
    let names: BTreeSet<&str> =
        tree.lines().map(|line| line.find(" (").map_or(line, |end| &line[..end])).collect();
    let mut found: Vec<Linked> = packages()
        .iter()
        // Ours have no source.
        .filter(|package| !package["source"].is_null())
        .map(|package| Linked {
            name: text(&package["name"]),
            version: text(&package["version"]),
            licence: package["license"].as_str().unwrap_or_default().into(),
            authors: package["authors"].as_array().unwrap().iter().map(text).collect::<Vec<_>>().join(", "),
            folder: Path::new(&text(&package["manifest_path"])).parent().unwrap().into(),
        })
        .filter(|one| names.contains(&*format!("{} v{}", one.name, one.version)))
        .collect();
    found.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    let ours = names.iter().filter(|name| name.starts_with("grawa-")).count();
    assert_eq!(found.len() + ours, names.len(), "{tree}");
    found
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is not a text")).into()
}

/// Every text once, under the names of all that have it.
fn texts(crates: &[Linked]) -> String {
    let root = package().join("../..");
    let read = |path: PathBuf| fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let mut found: Vec<(String, String)> = [
        ("grawa, the Rust standard library", "LICENSE-MIT"),
        ("grawa, the Rust standard library", "LICENSE-APACHE"),
        ("the handwritten digits", "crates/grawa-data/assets/README.md"),
        ("the font of the pictures", "crates/grawa-toy/assets/GrawaSans-LICENSE.txt"),
    ]
    .map(|(whose, file)| (whose.to_owned(), read(root.join(file))))
    .into();
    for one in crates {
        let whose = format!("{} {}", one.name, one.version);
        let files = licence_files(one);
        if files.is_empty() {
            assert_eq!(one.licence, "MIT", "{whose} has no text of its licence");
            let mit = read(root.join("LICENSE-MIT"));
            let (_, terms) = mit.split_once("developers\n").unwrap();
            found.push((whose.clone(), format!("MIT License\n\nCopyright (c) {}\n{terms}", one.authors)));
        }
        found.extend(files.into_iter().map(|file| (whose.clone(), read(file))));
    }
    let mut order = Vec::new();
    let mut owners: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (whose, text) in found {
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let all = owners.entry(words.clone()).or_insert_with(|| {
            order.push((words, text));
            Vec::new()
        });
        if !all.contains(&whose) {
            all.push(whose);
        }
    }
    let mut out = String::new();
    for (words, text) in order {
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        writeln!(
            out,
            "{RULE}\n{}\n{RULE}\n\n{}\n",
            owners[&words].join(", "),
            lines.join("\n").trim_matches('\n')
        )
        .unwrap();
    }
    out
}

/// The files with a crate's licences. Where there is a choice and MIT is one, that text is enough.
fn licence_files(one: &Linked) -> Vec<PathBuf> {
    let begins = ["license", "licence", "copying", "copyright", "notice", "unlicense"];
    let mut files: Vec<(String, PathBuf)> = fs::read_dir(&one.folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .map(|path| (path.file_name().unwrap().to_string_lossy().to_lowercase(), path))
        .filter(|(name, _)| begins.iter().any(|begin| name.starts_with(begin)))
        .collect();
    files.sort();
    let is_choice = one.licence.contains(" OR ") || one.licence.contains('/');
    if is_choice && files.iter().any(|(name, _)| name.contains("mit")) {
        files.retain(|(name, _)| {
            name.contains("mit") || name.contains("copyright") || name.contains("notice")
        });
    }
    files.into_iter().map(|(_, path)| path).collect()
}

//! The commands of the documentation.

use crate::own_pictures::draw_stripes;
use crate::text;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// The commands of `docs/walk-through.md`, as a new user would type them. A line that ends with & runs beside the next ones.
#[test]
fn the_walk_through_works() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/walk-through.md");
    let page = fs::read_to_string(page).unwrap().replace("\\\n", "");
    let place = TempDir::new().unwrap();
    draw_stripes(&place.path().join("pictures"));
    let start = |line: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_grawa"));
        command.args(line.split_whitespace().skip(1)).current_dir(place.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let succeeds = |line: &str, child: Child| {
        let output = child.wait_with_output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{line}\n{}\n{error}", text(&output.stdout));
        assert!(!error.contains("warning:"), "{line}\n{error}");
    };
    let blocks: Vec<&str> = page.split("```").skip(1).step_by(2).collect();
    assert_eq!(blocks.len(), 11);
    for block in blocks {
        let mut beside = Vec::new();
        for line in block.lines().skip(1) {
            assert!(line.starts_with("grawa "), "{line}");
            match line.strip_suffix('&') {
                Some(line) => beside.push((line, start(line))),
                None => succeeds(line, start(line)),
            }
        }
        beside.into_iter().for_each(|(line, child)| succeeds(line, child));
    }
    for file in ["report.html", "out/vincent/index.html", "out/compare/results/index.html"] {
        assert!(place.path().join(file).exists(), "{file}");
    }
}

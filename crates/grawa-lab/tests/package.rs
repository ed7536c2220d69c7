//! A package contains the files below its own folder. A file included from elsewhere would be missing, and the result of
//! `cargo package` could not be built.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Component, Path, PathBuf};

#[test]
fn everything_that_is_included_lies_in_the_package() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = 0;
    let packages = ["grawa-lab", "grawa-toy"].map(|name| crates.join(name));
    for (package, file) in
        packages.iter().flat_map(|it| sources(&it.join("src")).into_iter().map(move |file| (it, file)))
    {
        let text = fs::read_to_string(&file).unwrap();
        let folder = file.parent().unwrap();
        // Whatever text names a file beside the source: macros of the crate's own include files, too.
        for name in text.lines().flat_map(|line| line.split('"').skip(1).step_by(2)) {
            let path = plain(&folder.join(name));
            if name.contains('.') && path.is_file() {
                assert!(path.starts_with(package), "{} includes {}", file.display(), path.display());
                found += 1;
            }
        }
    }
    // Ten recipes, six studies, two fonts, two styles, a page and a script.
    assert!(found >= 22, "only {found} were found: are files included in another way now?");
}

/// All Rust files below a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let files = files.into_iter().filter(|path| path.extension().is_some_and(|end| end == "rs"));
    files.chain(folders.iter().flat_map(|folder| sources(folder))).collect()
}

/// The path without its `..`, whatever links there are.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir {
            plain.pop();
        } else {
            plain.push(part);
        }
    }
    plain
}

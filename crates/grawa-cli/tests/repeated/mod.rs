//! What a run leaves that its repetition must leave again.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

/// The files that a repetition writes again, with their bytes.
fn facts(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if ["timing.toml", "checksums.toml", "journal.jsonl", "about.toml", "tensorboard"]
                .contains(&name.as_str())
            {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push((path.strip_prefix(folder).unwrap().to_owned(), fs::read(&path).unwrap()));
            }
        }
    }
    files.sort();
    files
}

/// Two runs left the same but for times and what is known of the machine.
pub(crate) fn same(found: &Path, expected: &Path) {
    let (found, expected) = (facts(found), facts(expected));
    let names = |files: &[(PathBuf, Vec<u8>)]| files.iter().map(|file| file.0.clone()).collect::<Vec<_>>();
    assert_eq!(names(&found), names(&expected));
    for ((name, found), (_, expected)) in found.into_iter().zip(expected) {
        let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(found == expected, "{}:\n{}\n---\n{}", name.display(), words(&found), words(&expected));
    }
}

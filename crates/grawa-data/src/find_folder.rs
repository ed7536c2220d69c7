//! Finds the folder of a data set: a user may name it or one above it.

use crate::error::{Result, io};
use std::fs;
use std::path::{Path, PathBuf};

/// Levels of folders that are searched below the named one.
const DEPTH: usize = 2;

/// `dir` itself if it has one of `files`, or else the nearest folder below that is called one of `folders`.
pub(crate) fn find(dir: &Path, folders: &[&str], files: &[&str]) -> Result<Option<PathBuf>> {
    if !dir.is_dir() {
        return Ok(None);
    }
    if files.iter().any(|file| dir.join(file).is_file()) {
        return Ok(Some(dir.to_owned()));
    }
    let mut level = vec![dir.to_owned()];
    for _ in 0..DEPTH {
        let mut next = Vec::new();
        for parent in &level {
            // An unreadable folder below the named one is skipped.
            let children =
                if parent == dir { subfolders(parent)? } else { subfolders(parent).unwrap_or_default() };
            for child in children {
                if child.file_name().is_some_and(|name| folders.iter().any(|folder| name == *folder)) {
                    return Ok(Some(child));
                }
                next.push(child);
            }
        }
        level = next;
    }
    Ok(None)
}

/// The folders in `dir`, by name, hidden ones left out.
pub(crate) fn subfolders(dir: &Path) -> Result<Vec<PathBuf>> {
    Ok(visible(dir)?.into_iter().filter(|path| path.is_dir()).collect())
}

/// What is in `dir`, by name, hidden things left out.
pub(crate) fn visible(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(io("list", dir))? {
        let entry = entry.map_err(io("list", dir))?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            found.push(entry.path());
        }
    }
    found.sort_unstable();
    Ok(found)
}

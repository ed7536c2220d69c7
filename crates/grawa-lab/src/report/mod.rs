//! Runs side by side on one page: curves, weights over rounds, where the time went, tables, and in what the recipes differ.
//!
//! The page is one file with nothing to fetch. What it draws stands in it as JSON, thinned out so that fifty runs open in under a
//! second ([`thin`]); tables are plain HTML, there without a script too. Runs that are not finished are shown as far as they are.

mod page;
mod story;
pub mod thin;
mod weights;

pub use story::{Series, Story};
pub use weights::Weights;

use crate::Error;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Reads the runs in these folders, which must share a metric.
pub fn read(folders: &[PathBuf]) -> Result<Vec<Story>, Error> {
    let layered = weights::Budget::for_runs(folders.len());
    let mut stories =
        folders.iter().map(|folder| Story::read(folder, layered)).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<String> = stories.iter().map(|story| story.name.clone()).collect();
    for (story, folder) in stories.iter_mut().zip(folders) {
        // Folders of the same name are told apart by their paths.
        if names.iter().filter(|name| **name == story.name).count() > 1 {
            story.name = folder.display().to_string();
        }
    }
    shared(&stories)?;
    Ok(stories)
}

/// The metrics that all runs have; an error if there is none.
fn shared(stories: &[Story]) -> Result<BTreeSet<String>, Error> {
    // The learning rate says nothing of how a run did.
    let of = |story: &Story| {
        story.metrics.keys().filter(|name| *name != page::RATE).cloned().collect::<BTreeSet<String>>()
    };
    let mut all = stories.iter().map(of);
    let first = all.next().unwrap_or_default();
    let shared = all.fold(first, |shared, own| shared.intersection(&own).cloned().collect());
    if !shared.is_empty() {
        return Ok(shared);
    }
    let mut found: Vec<String> = Vec::new();
    for story in stories {
        let own: Vec<String> = of(story).into_iter().collect();
        let words = if own.is_empty() { "nothing measured yet".into() } else { own.join(", ") };
        if !found.iter().any(|line| line.ends_with(&words)) {
            found.push(format!("{} has {words}", story.name));
        }
    }
    Err(Error::NothingShared { found: found.join("; ") })
}

/// The page of some runs.
pub fn html(stories: &[Story]) -> Result<String, Error> {
    page::page(stories)
}

/// Writes a page to a file that is not there yet; one that holds the very same may be.
pub fn write(path: &Path, html: &str) -> Result<(), Error> {
    if path.is_dir() {
        return Err(Error::FileInUse { path: path.into(), found: "is a folder" });
    }
    if path.exists() {
        return match fs::read(path) {
            Ok(found) if found == html.as_bytes() => Ok(()),
            _ => Err(Error::FileInUse { path: path.into(), found: "is there already" }),
        };
    }
    let io = |action| move |source| Error::Io { action, path: path.into(), source };
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::create_dir_all(parent).map_err(io("create the folder of"))?;
    }
    let aside = path.with_extension(format!("partial-{}", std::process::id()));
    fs::write(&aside, html).and_then(|()| fs::rename(&aside, path)).map_err(io("write")).inspect_err(|_| {
        // Already failing: the reason to report is the first one.
        let _ = fs::remove_file(&aside);
    })
}

//! Compares runs on one page: curves, weights over rounds, parts of the time, tables, and the differences of the recipes.
//!
//! The page is one file that loads nothing. Its plots are drawn from JSON inside the page, downsampled so that fifty runs
//! open in under a second ([`downsample`]). Tables are plain HTML and need no script. Runs that are not finished are shown
//! as far as they are.

pub mod downsample;
mod page;
mod run_summary;
mod weights;

pub use page::html;
pub use run_summary::RunSummary;
pub use weights::Weights;

use crate::Error;
use grawa_train::durable;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Reads the runs in these folders, which must share a metric. A folder that is named again counts once.
pub fn read(folders: &[PathBuf]) -> Result<Vec<RunSummary>, Error> {
    let mut seen = BTreeSet::new();
    // A folder that is not there is reported below.
    let real = |folder: &PathBuf| folder.canonicalize().unwrap_or_else(|_| folder.clone());
    let folders: Vec<&PathBuf> = folders.iter().filter(|folder| seen.insert(real(folder))).collect();
    let budget = weights::budget(folders.len());
    let mut runs =
        folders.iter().map(|folder| RunSummary::read(folder, budget)).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<String> = runs.iter().map(|run| run.name.clone()).collect();
    for (run, folder) in runs.iter_mut().zip(folders) {
        // Folders of the same name are shown with their paths.
        if names.iter().filter(|name| **name == run.name).count() > 1 {
            run.name = folder.display().to_string();
        }
    }
    check_shared(&runs)?;
    Ok(runs)
}

/// An error unless there is a metric that all runs have.
fn check_shared(runs: &[RunSummary]) -> Result<(), Error> {
    // The learning rate does not show how well a run did.
    let of = |run: &RunSummary| {
        run.metrics.keys().filter(|name| *name != page::RATE).cloned().collect::<Vec<String>>()
    };
    let is_shared = |name: &String| runs.iter().all(|run| run.metrics.contains_key(name));
    if runs.first().is_some_and(|run| of(run).iter().any(is_shared)) {
        return Ok(());
    }
    let mut found: Vec<String> = Vec::new();
    for run in runs {
        let own = of(run).join(", ");
        let words = if own.is_empty() { "nothing measured yet".into() } else { own };
        if !found.iter().any(|line| line.ends_with(&words)) {
            found.push(format!("{} has {words}", run.name));
        }
    }
    Err(Error::NothingShared(found.join("; ")))
}

/// Writes a page to a new file, or to one that holds the same bytes already.
pub fn write(path: &Path, html: &str) -> Result<(), Error> {
    if path.is_dir() {
        return Err(Error::FileInUse(path.into(), "is a folder"));
    }
    if path.exists() {
        return match fs::read(path) {
            Ok(found) if found == html.as_bytes() => Ok(()),
            _ => Err(Error::FileInUse(path.into(), "is there already")),
        };
    }
    let io = |action| grawa_toy::Error::io(action, path);
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::create_dir_all(parent).map_err(io("create the folder of"))?;
    }
    durable::place(path, html.as_bytes()).map_err(io("write"))?;
    Ok(())
}

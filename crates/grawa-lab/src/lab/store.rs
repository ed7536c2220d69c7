//! The folder of an experiment: its manifest, finished cells, their runs, and the results.
//!
//! | | |
//! |---|---|
//! | `lab.toml` | the manifest: which experiment the folder belongs to |
//! | `cells/NAME.json` | a finished cell, written to a temporary file and renamed |
//! | `runs/NAME/` | the run of a cell, as `grawa train` leaves it; of finished ones the model, without the state for a resume |
//! | `results/` | tables and pictures, when all cells are finished |
//!
//! A folder that holds anything else is refused, and so is one that another process uses.

use super::cell::{Cell, Found};
use super::finding::Finding;
use super::plan::Plan;
use crate::{Error, Folder};
use grawa_toy::Error as Output;
use grawa_train::durable;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

const MANIFEST: &str = "lab.toml";

/// The folder of an experiment, locked by this process.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    /// Locked as long as it is open.
    _manifest: File,
}

impl Store {
    /// Claims a folder for a plan: a new one, an empty one, or the plan's own.
    pub fn open(folder: &Path, plan: &Plan) -> Result<Self, Error> {
        let manifest = folder.join(MANIFEST);
        let expected = plan.manifest();
        match fs::read_to_string(&manifest) {
            Ok(found) if settings(&found).eq(settings(&expected)) => {}
            Ok(found) => return Err(another(folder, &found, &expected)),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                if let Some(name) = Folder::entries(folder)?.into_iter().find(|name| !name.starts_with('.')) {
                    let found = format!("'{name}' of something else");
                    return Err(Output::FolderInUse { folder: folder.into(), found }.into());
                }
                fs::create_dir_all(folder).map_err(Output::io("create", folder))?;
                durable::place(&manifest, expected.as_bytes()).map_err(Output::io("write", &manifest))?;
            }
            Err(source) => return Err(Output::io("read", &manifest)(source).into()),
        }
        let held = File::open(&manifest).map_err(Output::io("read", &manifest))?;
        if held.try_lock().is_err() {
            return Err(Error::Busy(folder.into()));
        }
        for part in ["cells", "runs"] {
            let path = folder.join(part);
            fs::create_dir_all(&path).map_err(Output::io("create", &path))?;
        }
        Ok(Store { folder: folder.into(), _manifest: held })
    }

    /// Removes the folder again if nothing was done in it: data that is missing is noticed when the first cell starts.
    pub fn remove_if_unused(&self) {
        let is_empty =
            ["runs", "cells"].into_iter().all(|part| fs::remove_dir(self.folder.join(part)).is_ok());
        if is_empty && fs::remove_file(self.folder.join(MANIFEST)).is_ok() {
            // The user may have put something there.
            let _ = fs::remove_dir(&self.folder);
        }
    }

    /// Its path.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of a cell's run.
    pub(super) fn run(&self, cell: &Cell) -> PathBuf {
        self.folder.join("runs").join(&cell.name)
    }

    /// All finished cells of a plan.
    pub fn found(&self, plan: &Plan) -> Result<Found, Error> {
        let mut found = Found::new();
        loop {
            let mut more = false;
            for cell in plan.cells(&found)? {
                let path = self.path(&cell.name);
                if !found.contains_key(&cell.name) && path.exists() {
                    found.insert(cell.name.clone(), Finding::read(&path, &cell)?);
                    more = true;
                }
            }
            // What was found may name further cells.
            if !more {
                return Ok(found);
            }
        }
    }

    /// Keeps a finished cell.
    pub(super) fn keep(&self, finding: &Finding) -> Result<(), Error> {
        let path = self.path(&finding.cell);
        let text = serde_json::to_string_pretty(finding)
            .map_err(|error| Error::DamagedCell(path.clone(), error.to_string()))?;
        durable::place(&path, text.as_bytes()).map_err(Output::io("write", &path))?;
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join("cells").join(format!("{name}.json"))
    }
}

/// The lines of a manifest without its comments, whose words may change.
fn settings(manifest: &str) -> impl Iterator<Item = &str> {
    manifest.lines().filter(|line| !line.starts_with('#'))
}

/// The first difference of two manifests.
fn another(folder: &Path, found: &str, expected: &str) -> Error {
    let mut pairs = settings(found).zip(settings(expected));
    let (found, expected) =
        pairs.find(|(found, expected)| found != expected).unwrap_or(("more studies", "fewer"));
    Error::AnotherExperiment(folder.into(), found.into(), expected.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_words_in_a_comment_are_no_other_experiment() {
        let (older, newer) = ("# Before.\nscale = \"smoke\"\n", "# Now.\nscale = \"smoke\"\n");
        assert!(settings(older).eq(settings(newer)));
        let error = another(Path::new("lab"), older, "# Now.\nscale = \"small\"\n").to_string();
        assert!(error.contains("smoke") && error.contains("small") && !error.contains('#'), "{error}");
    }
}

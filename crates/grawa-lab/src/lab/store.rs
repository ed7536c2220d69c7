//! The folder of an experiment: its name plate, its finished cells, their runs, and the results.
//!
//! | | |
//! |---|---|
//! | `lab.toml` | which experiment the folder belongs to |
//! | `cells/NAME.json` | a finished cell: written aside and renamed, so that it is whole or not there |
//! | `runs/NAME/` | the run of a cell, as `grawa train` leaves it; of finished ones the model, without what a run goes on from |
//! | `results/` | tables and pictures, when all cells are finished |
//!
//! A folder that belongs to anything else is refused, and so is one that another process works in.

use super::cell::{Cell, Found};
use super::finding::Finding;
use super::plan::Plan;
use crate::Error;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

const PLATE: &str = "lab.toml";

/// An experiment's folder, held by this process.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    /// Locked as long as it is open.
    _plate: File,
}

impl Store {
    /// Claims a folder for a plan: a new or empty one, or the plan's own.
    pub fn open(folder: &Path, plan: &Plan) -> Result<Self, Error> {
        let plate = folder.join(PLATE);
        let expected = plan.plate();
        match fs::read_to_string(&plate) {
            Ok(found) if found == expected => {}
            Ok(found) => return Err(another(folder, &found, &expected)),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                if let Some(found) = anything(folder)? {
                    return Err(Error::FolderInUse { folder: folder.into(), found });
                }
                fs::create_dir_all(folder).map_err(io("create", folder))?;
                write(folder, PLATE, expected.as_bytes())?;
            }
            Err(source) => return Err(io("read", &plate)(source)),
        }
        let held = File::open(&plate).map_err(io("read", &plate))?;
        if held.try_lock().is_err() {
            return Err(Error::Busy { folder: folder.into() });
        }
        for part in ["cells", "runs"] {
            let path = folder.join(part);
            fs::create_dir_all(&path).map_err(io("create", &path))?;
        }
        Ok(Store { folder: folder.into(), _plate: held })
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where the run of a cell lies.
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
            .map_err(|error| Error::DamagedCell { path, why: error.to_string() })?;
        write(&self.folder.join("cells"), &format!("{}.json", finding.cell), text.as_bytes())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join("cells").join(format!("{name}.json"))
    }
}

/// Writes a file aside, brings it to the disk, and renames it.
fn write(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), Error> {
    let (aside, path) = (folder.join(format!(".{name}.partial")), folder.join(name));
    fs::write(&aside, bytes).and_then(|()| File::open(&aside)?.sync_all()).map_err(io("write", &aside))?;
    fs::rename(&aside, &path).map_err(io("write", &path))
}

/// What a folder holds that is not hidden, if anything.
fn anything(folder: &Path) -> Result<Option<String>, Error> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            return Ok(Some("a file of that name".into()));
        }
        Err(source) => return Err(io("look into", folder)(source)),
    };
    let names = entries.map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()));
    let names: Vec<String> = names.collect::<Result<_, _>>().map_err(io("look into", folder))?;
    Ok(names
        .into_iter()
        .filter(|name| !name.starts_with('.'))
        .min()
        .map(|name| format!("'{name}' of something else")))
}

/// In what two name plates differ first.
fn another(folder: &Path, found: &str, expected: &str) -> Error {
    let mut pairs = found.lines().zip(expected.lines());
    let (found, expected) =
        pairs.find(|(found, expected)| found != expected).unwrap_or(("more studies", "fewer"));
    Error::AnotherExperiment { folder: folder.into(), found: found.into(), expected: expected.into() }
}

pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { action, path, source }
}

//! Checkpoints: a folder each, whole or not there.
//!
//! A checkpoint `checkpoints/step-00000064` holds
//!
//! | file | what |
//! |---|---|
//! | `state.safetensors` | every worker's parameters, momentum and running statistics, and the centres, as flat vectors |
//! | `manifest.toml` | everything else that the run goes on from, and what was measured so far |
//! | `timing.toml` | seconds: the one file that differs between two runs of a recipe |
//! | `model.safetensors` | the evaluated model, as PyTorch's `state_dict` of the network's twin |
//! | `group.json` | where workers come and go: what all of them held |
//!
//! It is written aside, brought to the disk, and renamed; only then are older ones removed: two are kept. So whenever
//! the process ends, and however, the newest checkpoint that is there is whole. A run that was asked to stop leaves one more,
//! `step-00000064-stopped-…`, in the middle of a cycle; the next regular one takes its place.

mod manifest;
mod model;

use crate::snapshot::Snapshot;
use crate::{Error, Recipe};
use grawa_nn::{Graph, State, Tensor, Tensors};
use manifest::{Manifest, Timing};
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// How many are kept.
const KEPT: usize = 2;
const STATE: &str = "state.safetensors";
const MANIFEST: &str = "manifest.toml";
const TIMING: &str = "timing.toml";
/// The evaluated model in a checkpoint.
pub(crate) const MODEL: &str = "model.safetensors";

/// A checkpoint that was read: a run can go on from it.
#[derive(Debug)]
pub struct Checkpoint {
    pub(crate) path: PathBuf,
    pub(crate) snapshot: Snapshot,
}

impl Checkpoint {
    /// Reads a checkpoint's folder.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let manifest: Manifest = read_toml(&path.join(MANIFEST))?;
        let timing: Timing = read_toml(&path.join(TIMING))?;
        let state = Tensors::read(&path.join(STATE), "the run")?;
        Ok(Checkpoint { path: path.into(), snapshot: manifest.restore(&timing, &state, path)? })
    }

    /// The newest one in a run's folder. What was being written when the process ended is not one.
    pub fn newest(folder: &Path) -> Result<Self, Error> {
        Checkpoint::read(&Checkpoint::newest_path(folder)?)
    }

    /// Where the newest one lies.
    pub fn newest_path(folder: &Path) -> Result<PathBuf, Error> {
        let place = folder.join(FOLDER);
        let none = || Error::NoCheckpoint { path: folder.into() };
        let name = names(&place).map_err(|_| none())?.pop().ok_or_else(none)?;
        Ok(place.join(name))
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Local steps a worker.
    pub fn steps(&self) -> u64 {
        self.snapshot.at.steps
    }

    /// Whether the run was over.
    pub fn is_finished(&self) -> bool {
        self.snapshot.finished
    }

    /// Every worker that was left: its number, its parameters, its running statistics.
    pub fn workers(&self) -> impl Iterator<Item = (u32, &[f32], &[f32])> {
        self.snapshot.parts.iter().map(|part| (part.worker, &*part.parameters, &*part.statistics))
    }

    /// What was measured so far.
    pub fn history(&self) -> &[crate::Evaluated] {
        &self.snapshot.history
    }
}

/// The folder of all checkpoints in a run's folder.
pub(crate) const FOLDER: &str = "checkpoints";

/// Writes the checkpoints of a run.
#[derive(Debug)]
pub(crate) struct Writer {
    place: PathBuf,
    recipe: Recipe,
    graph: Option<Graph>,
}

impl Writer {
    pub(crate) fn new(folder: &Path, recipe: &Recipe, graph: Option<Graph>) -> Self {
        Writer { place: folder.join(FOLDER), recipe: recipe.clone(), graph }
    }

    /// Where a snapshot will lie.
    pub(crate) fn path(&self, snapshot: &Snapshot) -> PathBuf {
        self.place.join(name(snapshot))
    }

    /// Writes a snapshot and removes what it makes superfluous.
    pub(crate) fn write(&self, snapshot: Snapshot) -> Result<PathBuf, Error> {
        let path = self.path(&snapshot);
        if snapshot.stopped && path.exists() {
            // Stopped again before anything was done.
            return Ok(path);
        }
        fs::create_dir_all(&self.place).map_err(io("create", &self.place))?;
        let aside = self.place.join(format!(".partial-{}", std::process::id()));
        let written = self.write_aside(&aside, snapshot).and_then(|()| {
            if path.exists() {
                fs::remove_dir_all(&path).map_err(io("replace", &path))?;
            }
            fs::rename(&aside, &path).map_err(io("write", &path))?;
            sync(&self.place)
        });
        if let Err(error) = written {
            // Already failing: the reason to report is the first one.
            let _ = fs::remove_dir_all(&aside);
            return Err(error);
        }
        let there = names(&self.place).map_err(io("look into", &self.place))?;
        for name in superfluous(&there) {
            let old = self.place.join(name);
            // Renamed first, so that what is being removed is never taken for a checkpoint.
            let gone = self.place.join(format!(".old-{}", std::process::id()));
            let _ = fs::remove_dir_all(&gone);
            fs::rename(&old, &gone).and_then(|()| fs::remove_dir_all(&gone)).map_err(io("remove", &old))?;
        }
        Ok(path)
    }

    /// Removes what was being written when a process ended.
    pub(crate) fn tidy(&self) -> Result<(), Error> {
        let Ok(entries) = fs::read_dir(&self.place) else { return Ok(()) };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(".partial-") || name.starts_with(".old-") {
                fs::remove_dir_all(entry.path()).map_err(io("remove", &entry.path()))?;
            }
        }
        Ok(())
    }

    fn write_aside(&self, aside: &Path, mut snapshot: Snapshot) -> Result<(), Error> {
        let _ = fs::remove_dir_all(aside);
        fs::create_dir(aside).map_err(io("create", aside))?;
        let (manifest, timing) = Manifest::of(&snapshot);
        write(&aside.join(MANIFEST), toml::to_string(&manifest).map_err(unprintable)?.as_bytes())?;
        write(&aside.join(TIMING), toml::to_string(&timing).map_err(unprintable)?.as_bytes())?;
        if let Some(held) = &snapshot.held {
            held.write(aside)?;
        }
        if let Some(graph) = &self.graph {
            let model: State = model::model(&self.recipe, graph, &mut snapshot)?;
            model.save(graph, &aside.join(MODEL))?;
        }
        let mut state = Tensors::new(&aside.join(STATE), "the run");
        let mut put = |name: String, vector: Vec<f32>| state.put(name, Tensor::f32(&[vector.len()], vector));
        for part in snapshot.parts {
            put(format!("worker.{}.parameters", part.worker), part.parameters);
            put(format!("worker.{}.momentum", part.worker), part.velocity);
            put(format!("worker.{}.statistics", part.worker), part.statistics);
            for (level, group, centre) in part.centres {
                put(format!("centre.{level}.{group}"), centre);
            }
        }
        write(&aside.join(STATE), &state.to_bytes()?)?;
        sync(aside)
    }
}

/// The name of a checkpoint. Names sort by age.
fn name(snapshot: &Snapshot) -> String {
    let steps = snapshot.at.steps;
    if snapshot.stopped {
        let taken: u64 = snapshot.parts.iter().map(|part| part.taken).sum();
        format!("step-{steps:08}-stopped-{taken:012}")
    } else {
        format!("step-{steps:08}")
    }
}

/// The checkpoints in a folder, oldest first.
fn names(place: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(place)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.starts_with("step-") {
            names.push(name);
        }
    }
    // Step numbers may outgrow their zeros.
    names.sort_by_key(|name| (name.split('-').nth(1).map_or(0, str::len), name.clone()));
    Ok(names)
}

/// Those that may go when the last has been written: all but two, and before the others those of a stop that was gone
/// on from.
fn superfluous(names: &[String]) -> Vec<&String> {
    let Some((last, older)) = names.split_last() else { return Vec::new() };
    let is_stop = |name: &str| name.contains("-stopped-");
    let mut room = KEPT - 1;
    let mut gone = Vec::new();
    for name in older.iter().rev() {
        if is_stop(name) || room == 0 {
            gone.push(name);
        } else {
            room -= 1;
        }
    }
    debug_assert!(!gone.contains(&last));
    gone
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    File::create_new(path)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .map_err(io("write", path))
}

/// Brings a folder's entries to the disk.
fn sync(folder: &Path) -> Result<(), Error> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(io("write", folder))
}

fn read_toml<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, Error> {
    let text = fs::read_to_string(path).map_err(io("read", path))?;
    toml::from_str(&text).map_err(|error| Error::NotACheckpoint { path: path.into(), why: error.to_string() })
}

// `map_err` gives what it is given.
#[allow(clippy::needless_pass_by_value)]
fn unprintable(error: toml::ser::Error) -> Error {
    Error::NotACheckpoint { path: MANIFEST.into(), why: error.to_string() }
}

pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { action, path, source }
}

#[cfg(test)]
mod tests;

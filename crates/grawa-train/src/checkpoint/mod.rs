//! Checkpoints: a folder each, which is complete or not there.
//!
//! A checkpoint `checkpoints/step-00000064` holds
//!
//! | file | what |
//! |---|---|
//! | `state.safetensors` | every worker's parameters, momentum (with AdamW both moments, and its number of steps behind the second) and running statistics, and the centres, as flat vectors |
//! | `manifest.toml` | everything else that a resume needs, the evaluations so far, and digests of recipe and network |
//! | `timing.toml` | seconds, and the number of the checkpoint in the order of writing: these differ between two runs of a recipe |
//! | `model.safetensors` | the evaluated model, as PyTorch's `state_dict` of the network's twin |
//! | `group.json` | of an elastic group: its state |
//! | `recipe.toml` | a copy of the recipe in the run's folder, in case that one is damaged |
//! | `checksums.toml` | the CRC-32C of every other file |
//!
//! It is written under another name, synced to the disk, and renamed; only then are older ones removed: two are kept. So at whatever
//! moment the process ends, the newest checkpoint is complete. If the disk damages it, the checksums show it, and the one before is
//! used. A run that was asked to stop writes one more, `step-00000064-stopped-…`, inside a cycle; the next regular one replaces it.

mod checksums;
mod manifest;
mod model;
mod order;
mod write;

pub(crate) use checksums::crc;
pub(crate) use manifest::Origin;
pub(crate) use order::Name;
pub(crate) use write::{DIGEST, Writer, best_error, tidy};

use crate::snapshot::Snapshot;
use crate::{Error, bounded_read, folder, shell};
use checksums::{Checksums, read_file};
use grawa_nn::Tensors;
use manifest::{FORM, Manifest, Timing};
use serde::Deserialize;
use std::path::{Path, PathBuf};

const STATE: &str = "state.safetensors";
const MANIFEST: &str = "manifest.toml";
const TIMING: &str = "timing.toml";
pub(crate) const GROUP: &str = "group.json";
/// The evaluated model in a checkpoint.
pub(crate) const MODEL: &str = "model.safetensors";

/// A checkpoint that was read: a run can be resumed from it.
#[derive(Debug)]
pub struct Checkpoint {
    pub(crate) path: PathBuf,
    pub(crate) snapshot: Snapshot,
    /// What it was made by; not known of those of form 1.
    pub(crate) origin: Option<Origin>,
    skipped: Vec<Error>,
}

impl Checkpoint {
    /// Reads a checkpoint's folder. A damaged one is an error, where it has checksums (form 2).
    pub fn read(path: &Path) -> Result<Self, Error> {
        let (manifest, checksums) = read_manifest(path)?;
        let timing = read_file(path, TIMING, checksums.as_ref())?;
        let timing: Timing = parse_toml(&path.join(TIMING), &timing)?;
        let state = read_file(path, STATE, checksums.as_ref())?;
        let state = Tensors::parse(&state, &path.join(STATE), "the run")?;
        let read: [&str; 3] = [MANIFEST, TIMING, STATE];
        for name in checksums.iter().flat_map(Checksums::keys).filter(|name| !read.contains(&name.as_str())) {
            read_file(path, name, checksums.as_ref())?;
        }
        let (snapshot, origin) = manifest.restore(&timing, &state, path)?;
        Ok(Checkpoint { path: path.into(), snapshot, origin, skipped: Vec::new() })
    }

    /// The newest one in a run's folder that can be read; [`Checkpoint::skipped`] says why any newer one cannot. What was
    /// being written when the process ended is not one.
    pub fn newest(folder: &Path) -> Result<Self, Error> {
        let mut skipped = Vec::new();
        for path in paths(folder)? {
            match Checkpoint::read(&path) {
                Ok(checkpoint) => return Ok(Checkpoint { skipped, ..checkpoint }),
                // It is not damaged: to resume from an older one would discard the work of another version.
                Err(error @ Error::AnotherForm { .. }) => return Err(error),
                Err(error) => skipped.push(error),
            }
        }
        if skipped.is_empty() {
            return Err(Error::NoCheckpoint { path: folder.into() });
        }
        let why: Vec<String> = skipped.iter().map(ToString::to_string).collect();
        let best = folder::best(folder).ok().flatten();
        Err(Error::NoUsableCheckpoint { path: folder.into(), why: why.join("; "), best })
    }

    /// The one of this name in a run's folder, such as `step-00000064`.
    pub fn named(folder: &Path, name: &str) -> Result<Self, Error> {
        let all = paths(folder)?;
        let is_it = |path: &&PathBuf| path.file_name().is_some_and(|file| file == name);
        match all.iter().find(is_it) {
            Some(path) => Checkpoint::read(path),
            None => {
                let names = all.iter().filter_map(|path| Some(path.file_name()?.display().to_string()));
                let there = names.collect::<Vec<_>>().join(", ");
                Err(Error::NoSuchCheckpoint { path: folder.into(), name: name.into(), there })
            }
        }
    }

    /// The path of the newest one, whether it can be read or not.
    pub fn newest_path(folder: &Path) -> Result<PathBuf, Error> {
        paths(folder)?.into_iter().next().ok_or_else(|| Error::NoCheckpoint { path: folder.into() })
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is wrong with those of the same folder that were written after this one.
    pub fn skipped(&self) -> &[Error] {
        &self.skipped
    }

    /// Local steps of each worker.
    pub fn steps(&self) -> u64 {
        self.snapshot.at.steps
    }

    /// Local steps of each worker, those since the last round included; at a free pace the mean.
    pub fn taken(&self) -> u64 {
        let parts = &self.snapshot.parts;
        parts.iter().map(|part| part.taken).sum::<u64>() / parts.len().max(1) as u64
    }

    /// Whether the run was over.
    pub fn is_finished(&self) -> bool {
        self.snapshot.finished
    }

    /// Whether no worker's parameters were finite when the run was over.
    pub fn has_diverged(&self) -> bool {
        self.snapshot.finished
            && !self.snapshot.parts.is_empty()
            && self.snapshot.parts.iter().all(|part| part.diverged)
    }

    /// Checks that the recipe in the run's folder is still the one that this checkpoint was made by.
    pub fn check_recipe(&self) -> Result<(), Error> {
        let then = self.origin.as_ref().and_then(|origin| origin.recipe.as_deref());
        check_digest(&self.path, self.path.ancestors().nth(2), then)
    }

    /// Every worker that was left: its number, its parameters, its running statistics.
    pub fn workers(&self) -> impl Iterator<Item = (u32, &[f32], &[f32])> {
        self.snapshot.parts.iter().map(|part| (part.worker, &*part.parameters, &*part.statistics))
    }

    /// The evaluations so far.
    pub fn history(&self) -> &[crate::Evaluated] {
        &self.snapshot.history
    }
}

/// The folder of the model with the smallest test error, in a run's folder.
pub(crate) const BEST: &str = "best";
/// The folder of all checkpoints in a run's folder.
pub(crate) const FOLDER: &str = "checkpoints";

/// That the recipe in a run's folder has the digest that a checkpoint, or the best model, was made with.
pub(crate) fn check_digest(path: &Path, run: Option<&Path>, then: Option<&str>) -> Result<(), Error> {
    let (Some(run), Some(then)) = (run, then) else { return Ok(()) };
    let Some(now) = folder::digest(run).filter(|now| now != then) else { return Ok(()) };
    let back = recipe_copy(run).map_or("put the recipe back".into(), |copy| {
        let to = shell::path(&run.join(folder::RECIPE));
        format!("put the recipe of the run back, with: cp {} {to}", shell::path(&copy))
    });
    let why = format!(
        "{} was changed since: what it says of data, model, method or training has the digest {now}, and the run had {then}; {back}, \
         or start another run with it: grawa train --recipe FILE",
        folder::RECIPE
    );
    Err(Error::AnotherRun { path: path.into(), why })
}

/// The copy of a run's recipe in its newest checkpoint that has a good one.
pub fn recipe_copy(run: &Path) -> Option<PathBuf> {
    let has_copy = |checkpoint: &PathBuf| {
        let checksums = checksums::read(checkpoint).ok()??;
        read_file(checkpoint, folder::RECIPE, Some(&checksums)).ok()
    };
    let checkpoint = paths(run).ok()?.into_iter().find(|checkpoint| has_copy(checkpoint).is_some())?;
    Some(checkpoint.join(folder::RECIPE))
}

/// The checkpoints of a run's folder, newest first.
pub(crate) fn paths(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let place = folder.join(FOLDER);
    let entries = order::entries(&place).map_err(|error| match place.is_dir() {
        true => io("look into", &place)(error),
        false => Error::NoCheckpoint { path: folder.into() },
    })?;
    Ok(entries.iter().rev().map(|entry| place.join(entry.name.to_string())).collect())
}

/// What made the model of a checkpoint, whose file is checked; not known of form 1.
pub(crate) fn model_origin(path: &Path) -> Result<Option<Origin>, Error> {
    if !path.join(MANIFEST).exists() {
        return Ok(None);
    }
    let (manifest, checksums) = read_manifest(path)?;
    read_file(path, MODEL, checksums.as_ref())?;
    Ok(manifest.into_origin())
}

fn read_manifest(path: &Path) -> Result<(Manifest, Option<Checksums>), Error> {
    #[derive(Deserialize)]
    struct Form {
        form: u32,
    }
    let checksums = checksums::read(path)?;
    let bytes = read_file(path, MANIFEST, checksums.as_ref())?;
    let found = parse_toml::<Form>(&path.join(MANIFEST), &bytes)?.form;
    match (found, &checksums) {
        (1, _) | (FORM, Some(_)) => Ok((parse_toml(&path.join(MANIFEST), &bytes)?, checksums)),
        (FORM, None) => {
            let why = format!("it has no {}", checksums::CHECKSUMS);
            Err(Error::NotACheckpoint { path: path.into(), why })
        }
        _ => Err(Error::AnotherForm { path: path.into(), found, expected: FORM }),
    }
}

fn read_toml<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, Error> {
    parse_toml(path, &bounded_read::read(path, bounded_read::SMALL).map_err(io("read", path))?)
}

fn parse_toml<T: serde::de::DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<T, Error> {
    toml::from_slice(bytes)
        .map_err(|error| Error::NotACheckpoint { path: path.into(), why: error.to_string() })
}

pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { action, path, source }
}

#[cfg(test)]
mod tests;

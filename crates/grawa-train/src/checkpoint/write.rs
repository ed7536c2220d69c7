//! Writing checkpoints, so that a process that ends at any moment leaves the newest or the one before complete.

use super::checksums::{CHECKSUMS, Checksums, crc_of};
use super::manifest::Manifest;
use super::order::{self, Entry};
use super::{BEST, FOLDER, GROUP, MANIFEST, MODEL, Name, Origin, STATE, TIMING, io, model};
use crate::snapshot::{BestModel, Snapshot};
use crate::{Error, Evaluated, Recipe, bounded_read, durable};
use grawa_nn::{Graph, Metadata, State, Tensor, Tensors};
use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};

/// What is being written, what is being replaced, and what is being removed: followed by what makes their names unique.
const PARTIAL: &str = ".partial-";
const OLD: &str = ".old-";
const GONE: &str = ".gone-";

/// The key of the digest of the recipe in a model's metadata.
pub(crate) const DIGEST: &str = "recipe_digest";

/// The key of the best model's error, from 0 to 1.
const TEST_ERROR: &str = "test_error";

/// Writes the checkpoints of a run.
#[derive(Debug)]
pub(crate) struct Writer {
    place: PathBuf,
    best: PathBuf,
    recipe: Recipe,
    /// The file of the recipe in the run's folder, where it has one.
    recipe_file: Option<Vec<u8>>,
    /// The network, and what files of its models say.
    network: Option<(Graph, Metadata)>,
    origin: Origin,
}

impl Writer {
    pub(crate) fn new(folder: &Path, recipe: &Recipe, mut network: Option<(Graph, Metadata)>) -> Self {
        let origin = Origin::of(crate::folder::digest(folder), network.as_ref().map(|(graph, _)| graph));
        if let (Some((_, metadata)), Some(digest)) = (&mut network, &origin.recipe) {
            metadata.insert(DIGEST.into(), digest.clone());
        }
        let (place, best) = (folder.join(FOLDER), folder.join(BEST));
        // A copy of what the digest is of.
        let recipe_file = (origin.recipe.as_ref())
            .and_then(|_| bounded_read::read(&folder.join(crate::folder::RECIPE), bounded_read::SMALL).ok());
        Writer { place, best, recipe: recipe.clone(), recipe_file, network, origin }
    }

    /// Keeps a model if it errs less than the one that is there. The file is replaced as a whole: whenever the process ends, the old one
    /// or the new one is there, and says itself which it is.
    pub(crate) fn write_best(&self, best: BestModel) -> Result<(), Error> {
        let (Some((graph, metadata)), Some(error)) = (&self.network, best.evaluated.error()) else {
            return Ok(());
        };
        let path = self.best.join(MODEL);
        match best_error(&path) {
            Ok(Some(kept)) if kept <= error => return Ok(()),
            Ok(_) => {}
            Err(unreadable @ Error::Engine(grawa_nn::Error::Io { .. })) => return Err(unreadable),
            // It is damaged, and kept for who may want to save some of it.
            Err(_) => {
                let aside = self.best.join(format!("{MODEL}.damaged-{}", durable::unique()));
                durable::rename(&path, &aside).map_err(io("rename", &path))?;
            }
        }
        durable::create_folders(&self.best).map_err(io("create", &self.best))?;
        let (Evaluated { at, models }, mut metadata) = (best.evaluated, metadata.clone());
        let which = models.first().map_or(String::new(), |model| model.which.clone());
        for (key, value) in [
            ("step", at.steps.to_string()),
            ("epochs", at.epochs.to_string()),
            (TEST_ERROR, error.to_string()),
            ("model", which),
        ] {
            metadata.insert(key.into(), value);
        }
        let (parameters, statistics) = (best.parameters, best.statistics);
        let bytes = State { parameters, statistics, batches: at.steps }.to_bytes(graph, metadata)?;
        durable::replace(&path, &bytes).map(drop).map_err(io("write", &path))
    }

    /// The path of a snapshot.
    pub(crate) fn path(&self, snapshot: &Snapshot) -> PathBuf {
        self.place.join(Name::of(snapshot).to_string())
    }

    /// Writes a snapshot and removes what it makes superfluous.
    pub(crate) fn write(&self, snapshot: Snapshot) -> Result<PathBuf, Error> {
        let place = &self.place;
        durable::create_folders(place).map_err(io("create", place))?;
        let name = Name::of(&snapshot);
        let number = order::next(&order::entries(place).map_err(io("look into", place))?);
        let (path, unique) = (self.path(&snapshot), durable::unique());
        let aside = place.join(format!("{PARTIAL}{unique}"));
        let written = self.write_aside(&aside, snapshot, number).and_then(|()| {
            put_in_place(&aside, &path, &place.join(format!("{OLD}{name}~{unique}")))
                .map_err(io("write", &path))
        });
        if let Err(error) = written {
            // Already failing: the reason to report is the first one.
            let _ = durable::remove(&aside);
            return Err(error);
        }
        let there = order::entries(place).map_err(io("look into", place))?;
        for name in order::superfluous(&there, &Entry { name, order: Some(number) }) {
            let old = place.join(name.to_string());
            discard(&old).map_err(io("remove", &old))?;
        }
        Ok(path)
    }

    /// Removes what was being written when a process ended. No other process may be writing here.
    pub(crate) fn tidy(&self) -> Result<(), Error> {
        tidy(&self.place)
    }

    fn write_aside(&self, aside: &Path, mut snapshot: Snapshot, number: u64) -> Result<(), Error> {
        durable::create_folder(aside).map_err(io("create", aside))?;
        let mut checksums = Checksums::new();
        let mut write = |name: &str, pieces: &[Cow<'_, [u8]>]| {
            let path = aside.join(name);
            checksums.insert(name.into(), crc_of(pieces));
            durable::create(&path, pieces).map(drop).map_err(io("write", &path))
        };
        if let Some(held) = &snapshot.held {
            let bytes = serde_json::to_vec(held);
            let bytes = bytes.map_err(|error| io("write", Path::new(GROUP))(error.into()))?;
            write(GROUP, &[bytes.into()])?;
        }
        if let Some(recipe) = &self.recipe_file {
            write(crate::folder::RECIPE, &[recipe.as_slice().into()])?;
        }
        if let Some((graph, metadata)) = &self.network {
            let model: State = model::model(&self.recipe, graph, &mut snapshot)?;
            let mut metadata = metadata.clone();
            metadata.insert("step".into(), snapshot.at.steps.to_string());
            write(MODEL, &[model.to_bytes(graph, metadata)?.into()])?;
        }
        let mut state = Tensors::new(&aside.join(STATE), "the run");
        let mut put = |name: String, vector: Vec<f32>| state.put(name, Tensor::f32(&[vector.len()], vector));
        for part in &mut snapshot.parts {
            put(format!("worker.{}.parameters", part.worker), std::mem::take(&mut part.parameters));
            put(format!("worker.{}.momentum", part.worker), std::mem::take(&mut part.velocity));
            let second_moment = std::mem::take(&mut part.second_moment);
            if !second_moment.is_empty() {
                put(format!("worker.{}.second_moment", part.worker), second_moment);
            }
            put(format!("worker.{}.statistics", part.worker), std::mem::take(&mut part.statistics));
            for (level, group, centre) in std::mem::take(&mut part.centres) {
                put(format!("centre.{level}.{group}"), centre);
            }
        }
        write(STATE, &state.pieces()?)?;
        let (manifest, timing) = Manifest::of(&snapshot, self.origin.clone(), number);
        write(MANIFEST, &[toml::to_string(&manifest).map_err(unprintable)?.into_bytes().into()])?;
        write(TIMING, &[toml::to_string(&timing).map_err(unprintable)?.into_bytes().into()])?;
        let path = aside.join(CHECKSUMS);
        let text = toml::to_string(&checksums).map_err(unprintable)?;
        durable::create(&path, &[text]).map_err(io("write", &path))?;
        durable::sync(aside).map_err(io("write", aside))
    }
}

/// The error of the best model in a file; none if there is no such file.
pub(crate) fn best_error(path: &Path) -> Result<Option<f64>, Error> {
    if !path.exists() {
        return Ok(None);
    }
    let said = Tensors::read(path, "the best model")?.metadata.get(TEST_ERROR).and_then(|it| it.parse().ok());
    let why = || "its metadata have no test_error; move it away".to_owned();
    said.map(Some).ok_or_else(|| Error::NotACheckpoint { path: path.into(), why: why() })
}

/// Gives a folder its name. One that has the name already is renamed to `old` first, and removed when all of it is done: if the process
/// ends between the two, `tidy` gives it its name back.
fn put_in_place(aside: &Path, path: &Path, old: &Path) -> std::io::Result<()> {
    let replaces = path.exists();
    if replaces {
        durable::rename(path, old)?;
    }
    if let Err(error) = durable::rename(aside, path) {
        if replaces {
            // Already failing: the reason to report is the first one.
            let _ = durable::rename(old, path);
        }
        return Err(error);
    }
    durable::sync(path.parent().unwrap_or(path))?;
    if replaces { discard(old) } else { Ok(()) }
}

/// Removes a checkpoint; renamed first, so that what is being removed is never taken for one.
fn discard(checkpoint: &Path) -> std::io::Result<()> {
    let gone = checkpoint.with_file_name(format!("{GONE}{}", durable::unique()));
    match durable::rename(checkpoint, &gone) {
        // Another process was faster.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        renamed => renamed.and_then(|()| durable::remove(&gone)),
    }
}

/// Cleans up what killed processes have left in a folder of checkpoints: one that was about to be replaced gets its name back, and what
/// was being written or removed is removed. No other process may be writing there.
pub(crate) fn tidy(place: &Path) -> Result<(), Error> {
    let Ok(entries) = fs::read_dir(place) else { return Ok(()) };
    for entry in entries.flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let replaced = name.strip_prefix(OLD).and_then(|name| Name::parse(name.split('~').next()?));
        let back = replaced.map(|name| place.join(name.to_string())).filter(|back| !back.exists());
        if let Some(back) = back {
            durable::rename(&path, &back).map_err(io("restore", &back))?;
        } else if [PARTIAL, OLD, GONE].iter().any(|prefix| name.starts_with(prefix)) {
            durable::remove(&path).map_err(io("remove", &path))?;
        }
    }
    Ok(())
}

// `map_err` gives what it is given.
#[allow(clippy::needless_pass_by_value)]
fn unprintable(error: toml::ser::Error) -> Error {
    Error::NotACheckpoint { path: MANIFEST.into(), why: error.to_string() }
}

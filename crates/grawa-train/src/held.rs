//! What a group held when a checkpoint was made. If all workers of a run are lost, one that is started with the folder of such
//! a checkpoint brings it back: the coordinator's log tells whether it once was what all held.

use crate::checkpoint::{Checkpoint, io};
use crate::{Error, Recipe, folder};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The file in a checkpoint's folder.
const GROUP: &str = "group.json";

/// Which run, before which meeting, and what all remembered beside the centre.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Held {
    pub(crate) run: u64,
    pub(crate) meeting: u64,
    pub(crate) memory: String,
}

impl Held {
    pub(crate) fn write(&self, checkpoint: &Path) -> Result<(), Error> {
        let path = checkpoint.join(GROUP);
        let write = || {
            let file = std::fs::File::create_new(&path)?;
            serde_json::to_writer(&file, self)?;
            file.sync_all()
        };
        write().map_err(io("write", &path))
    }

    /// What was held when the newest checkpoint in a run's folder was made, and the centre.
    pub(crate) fn newest(folder: &Path) -> Result<(Self, Vec<f32>), Error> {
        let checkpoint = Checkpoint::newest(folder)?;
        let path = checkpoint.path().join(GROUP);
        let text = std::fs::read(&path).map_err(io("read", &path))?;
        let wrong = |why: String| Error::NotACheckpoint { path: path.clone(), why };
        let held = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
        let mut centres = checkpoint.snapshot.parts.into_iter().flat_map(|part| part.centres);
        let centre = centres.next().ok_or_else(|| wrong("it has no centre".into()))?;
        Ok((held, centre.2))
    }
}

/// Makes a folder for the checkpoints of a worker, or finds that it is one of the same run's.
pub fn make_room(path: &Path, recipe: &Recipe, run: u64) -> Result<(), Error> {
    if !path.join(folder::RECIPE).exists() {
        return folder::create(path, recipe);
    }
    match Held::newest(path) {
        Ok((held, _)) if held.run == run => Ok(()),
        Err(Error::NoCheckpoint { .. }) => Ok(()),
        _ => Err(Error::FolderInUse { path: path.into(), found: "checkpoints of another run".into() }),
    }
}

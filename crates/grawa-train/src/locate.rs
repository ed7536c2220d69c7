//! Where a trained model lies.

use crate::checkpoint::MODEL;
use crate::{Checkpoint, Error};
use std::path::{Path, PathBuf};

/// A model's file, and the recipe it was made by where that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// The file of tensors.
    pub model: PathBuf,
    /// The recipe's file.
    pub recipe: Option<PathBuf>,
}

/// Finds the model that a path means: a run's folder (its newest checkpoint), a checkpoint, or a file of tensors.
pub fn locate(path: &Path) -> Result<Located, Error> {
    if path.is_file() {
        return Ok(Located { model: path.into(), recipe: None });
    }
    let checkpoint = if path.join(MODEL).is_file() {
        path.to_owned()
    } else {
        Checkpoint::newest(path)?.path().to_owned()
    };
    // A checkpoint lies two folders below the run's own.
    let recipe = checkpoint.ancestors().nth(2).map(|run| run.join(crate::folder::RECIPE));
    Ok(Located { model: checkpoint.join(MODEL), recipe: recipe.filter(|recipe| recipe.is_file()) })
}

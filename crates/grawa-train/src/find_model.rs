//! Where a trained model lies.

use crate::checkpoint::{MODEL, Origin, model_origin};
use crate::recipe::Overrides;
use crate::{Checkpoint, Error, folder};
use grawa_nn::Graph;
use std::path::{Path, PathBuf};

/// A model's file, and the recipe it was made by where that is known.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundModel {
    /// The file of tensors.
    pub model: PathBuf,
    /// The recipe's file.
    pub recipe: Option<PathBuf>,
    /// Why newer checkpoints of a run's folder are not used.
    pub skipped: Vec<String>,
    origin: Option<Origin>,
}

impl FoundModel {
    /// What its recipe says, if it has one.
    pub fn overrides(&self) -> Result<Overrides, Error> {
        Ok(self.recipe.as_deref().map_or(Ok(Overrides::default()), |path| Overrides::default().read(path))?)
    }

    /// That this network is the one that was trained, where that is known.
    pub fn check(&self, graph: &Graph) -> Result<(), Error> {
        match self.origin.as_ref().and_then(|origin| origin.objection(graph)) {
            Some(why) => Err(Error::AnotherRun { path: self.model.clone(), why }),
            None => Ok(()),
        }
    }
}

/// Finds the model that a path means: a run's folder (its newest checkpoint), a checkpoint, `RUN/best`, or a file of tensors.
pub fn find_model(path: &Path) -> Result<FoundModel, Error> {
    if !path.exists() {
        return Err(Error::NoModel { path: path.into() });
    }
    if path.is_file() {
        return Ok(FoundModel { model: path.into(), recipe: None, skipped: Vec::new(), origin: None });
    }
    let (checkpoint, skipped, origin) = if path.join(MODEL).is_file() {
        (path.to_owned(), Vec::new(), model_origin(path)?)
    } else {
        let found = Checkpoint::newest(path)?;
        (found.path().to_owned(), found.skipped().iter().map(ToString::to_string).collect(), found.origin)
    };
    // A checkpoint lies two folders below the run's own, the best model one.
    let mut above = checkpoint.ancestors().skip(1).take(2).map(|run| run.join(folder::RECIPE));
    let recipe = above.find(|recipe| recipe.is_file());
    recipe.as_deref().map_or(Ok(()), folder::check_recipe)?;
    Ok(FoundModel { model: checkpoint.join(MODEL), recipe, skipped, origin })
}

//! Where a trained model lies.

use crate::checkpoint::{BEST, DIGEST, MODEL, Origin, check_digest, model_origin};
use crate::recipe::Overrides;
use crate::{Checkpoint, Error, folder};
use grawa_nn::{Graph, Tensors};
use std::path::{Path, PathBuf};

/// A model's file, and the recipe it was made by where that is known.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundModel {
    /// The file of tensors.
    pub model: PathBuf,
    /// The recipe's file.
    pub recipe: Option<PathBuf>,
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

/// Finds the model that a path means: a run's folder (its newest checkpoint), a checkpoint, `RUN/best`, or a file of
/// tensors. If the newest checkpoint is damaged that is an error, which names what else there is: an older one is
/// another model.
pub fn find_model(path: &Path) -> Result<FoundModel, Error> {
    if !path.exists() {
        return Err(Error::NoModel { path: path.into() });
    }
    if path.is_file() {
        return Ok(FoundModel { model: path.into(), recipe: None, origin: None });
    }
    let (checkpoint, origin) = if path.join(MODEL).is_file() {
        (path.to_owned(), model_origin(path)?)
    } else {
        let found = Checkpoint::newest(path)?;
        let why: Vec<String> = found.skipped().iter().map(ToString::to_string).collect();
        if !why.is_empty() {
            let (run, older, steps) = (path.to_owned(), found.path().to_owned(), found.taken());
            let best = folder::best(path).ok().flatten();
            return Err(Error::NewestUnusable { run, why: why.join("; "), older, steps, best });
        }
        (found.path().to_owned(), found.origin)
    };
    // What a resume refuses is not measured either: a checkpoint that another run left in this folder.
    match &origin {
        Some(origin) => check_digest(&checkpoint, checkpoint.ancestors().nth(2), origin.recipe.as_deref())?,
        None if checkpoint.file_name().is_some_and(|name| name == BEST) => {
            let metadata = Tensors::read(&checkpoint.join(MODEL), "the best model")?.metadata;
            let then = metadata.get(DIGEST).map(String::as_str);
            check_digest(&checkpoint, checkpoint.parent(), then)?;
        }
        None => {}
    }
    // A checkpoint lies two folders below the run's own, the best model one.
    let mut above = checkpoint.ancestors().skip(1).take(2).map(|run| run.join(folder::RECIPE));
    let recipe = above.find(|recipe| recipe.is_file());
    recipe.as_deref().map_or(Ok(()), folder::check_recipe)?;
    Ok(FoundModel { model: checkpoint.join(MODEL), recipe, origin })
}

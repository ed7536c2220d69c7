//! The size of the data of a plan, which gives its cost before anything runs.
//!
//! Published sets have a published size. Class folders are counted. Where a folder is missing, the ImageNet study uses
//! ImageNet's published size, and the cost of any other study is unknown.

use super::published;
use grawa_data::DatasetKind;
use grawa_train::Recipe;
use grawa_train::recipe::Facts;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The class folders of a plan: the counts, or why counting failed.
#[derive(Clone, Debug, Default)]
pub(super) struct Sizes(BTreeMap<PathBuf, Result<Facts, String>>);

impl Sizes {
    /// Counts the class folders of a recipe once.
    pub(super) fn count(&mut self, recipe: &Recipe) {
        let dir = &recipe.data.dir;
        if recipe.data.kind != DatasetKind::Folder || self.0.contains_key(dir) {
            return;
        }
        let found = grawa_data::folder(dir).map_err(|error| error.to_string());
        let facts = found.map(|data| Facts {
            examples: data.train.len() as u64,
            classes: data.classes,
            shape: data.train.shape(),
        });
        self.0.insert(dir.clone(), facts);
    }

    /// The known facts about the data of a recipe in a study.
    pub(super) fn facts(&self, study: &str, recipe: &Recipe) -> Option<Facts> {
        let counted = || self.0.get(&recipe.data.dir)?.as_ref().ok().copied();
        Facts::published(recipe)
            .or_else(|| counted().or_else(|| published::size(study)).map(|facts| facts.for_recipe(recipe)))
    }

    /// The origin of sizes, given the studies that use class folders.
    pub(super) fn notes<'a>(&self, studies: impl Iterator<Item = (&'a str, &'a Path)>) -> Vec<String> {
        let mut notes = Vec::new();
        for (study, dir) in studies {
            let Some(found) = self.0.get(dir) else { continue };
            let note = match (found, published::size(study)) {
                (Ok(Facts { examples, classes, .. }), _) => {
                    format!(
                        "{}: {examples} training images of {classes} classes were counted.",
                        dir.display()
                    )
                }
                (Err(why), Some(Facts { examples, classes, .. })) => format!(
                    "{study}: the data is not here ({why}). ImageNet's published size is used: {examples} training images of {classes} classes."
                ),
                (Err(why), None) => format!("{study}: cost unknown, the data is not here ({why})."),
            };
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
        notes
    }
}

//! Arguments of the commands that read a model: what its file does not say.

use crate::failure::Failure;
use clap::Args;
use grawa_train::recipe::Recipe;
use grawa_train::{FoundModel, find_model};
use std::path::Path;

/// What a model file does not say about itself.
#[derive(Args)]
pub(crate) struct SourceArgs {
    /// The network, one of `grawa models` [default: the run's]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// The data set [default: the run's]
    #[arg(long, value_name = "NAME")]
    data: Option<String>,
    /// The folder of the data set [default: the run's]
    #[arg(long, value_name = "DIR")]
    dir: Option<String>,
    /// Any other key of a recipe, such as data.augment=none
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
}

impl SourceArgs {
    /// The model, and the recipe it is measured with; `more` are the command's own options.
    pub(crate) fn find(
        &self,
        model: &Path,
        more: &[(&str, &Option<String>, &str)],
    ) -> Result<(FoundModel, Recipe), Failure> {
        let found = find_model(model)?;
        let overrides = found.overrides()?.options(&[
            ("data.kind", &self.data, "--data"),
            ("data.dir", &self.dir, "--dir"),
            ("model.name", &self.model, "--model"),
        ])?;
        let recipe = Recipe::resolve(&overrides.options(more)?.set_all(&self.settings)?)?;
        Ok((found, recipe))
    }
}

//! A cell of an experiment: one run and its measurements.

use super::finding::Finding;
use crc_fast::CrcAlgorithm::Crc32Iscsi;
use grawa_core::{Amount, Name};
use grawa_train::Recipe;
use grawa_train::recipe::{Facts, Variant};
use std::collections::BTreeMap;

/// Finished cells by their names.
pub type Found = BTreeMap<String, Finding>;

grawa_session::choices! {
    /// What a cell is for.
    #[derive(PartialOrd, Ord)]
    Stage, "stage",
    /// A point of a grid on held-out examples, to choose the setting.
    Search = "search",
    /// What goes into the table.
    Final = "final",
}

/// What is measured of the final model besides its test error.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measurements {
    /// Loss and error on the training set, not augmented.
    pub train: bool,
    /// Loss, error and gradient norms on the training set.
    pub gradient: bool,
    /// The Hessian.
    pub flatness: Option<HessianSettings>,
}

/// How the Hessian is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HessianSettings {
    /// Training examples.
    pub examples: usize,
    /// Examples in a batch, whose statistics batch norm uses.
    pub batch: usize,
    /// Lanczos steps.
    pub steps: usize,
    /// Lanczos runs.
    pub draws: usize,
    /// Further products.
    pub extra: usize,
}

/// One run and its measurements.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Its name, fit for a file. It depends on recipe and measurements.
    pub name: String,
    /// The number of its study.
    pub study: usize,
    /// What it is for.
    pub stage: Stage,
    /// The method as the study names it.
    pub variant: Variant,
    /// The number of its point in the grid.
    pub point: usize,
    /// The settings of that point, such as `method.period=4`.
    pub settings: Vec<String>,
    /// The recipe.
    pub recipe: Recipe,
    /// What is measured.
    pub measurements: Measurements,
    /// Multiplications and additions of training, roughly; none where the size of the data is unknown or the budget is a time.
    pub work: Option<f64>,
}

impl Cell {
    /// The cell of a recipe, with the known facts about its data. The number of cores is left out: it changes no result.
    pub(super) fn new(
        (study, setup): (usize, &str),
        (stage, variant): (Stage, &Variant),
        (point, settings): (usize, Vec<String>),
        mut recipe: Recipe,
        measurements: Measurements,
        facts: Option<Facts>,
    ) -> Self {
        recipe.machine.threads = None;
        let described = format!("{}{measurements:?}", recipe.to_toml());
        let name = format!(
            "{setup}-{}-{}-{}-{:08x}",
            recipe.method.name,
            stage.as_str(),
            recipe.train.seed,
            (crc_fast::checksum(Crc32Iscsi, described.as_bytes()) as u32)
        );
        let work = facts.and_then(|facts| work(&recipe, &facts));
        Cell { name, study, stage, variant: variant.clone(), point, settings, recipe, measurements, work }
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.recipe.train.seed
    }

    /// The network, with its width where it was chosen.
    pub fn network(&self) -> String {
        let model = &self.recipe.model;
        match model.width {
            Some(width) => format!("{} (width {width})", model.name),
            None => model.name.clone(),
        }
    }
}

/// Three forward passes for each image, six for SAM, and the passes of scores.
fn work(recipe: &Recipe, facts: &Facts) -> Option<f64> {
    let graph = facts.network(recipe).ok()?;
    let train = &recipe.train;
    let images = match train.budget {
        Amount::Steps(steps) => steps as f64 * f64::from(train.workers) * f64::from(train.batch),
        Amount::Epochs(epochs) => epochs * facts.examples as f64,
        Amount::Time(_) => return None,
    };
    let passes = match recipe.method.name {
        Name::DpSam => 6.0,
        name if name.title().ends_with("GRAWA") => 3.0 + 3.0 / f64::from(recipe.method.period.max(1)),
        _ => 3.0,
    };
    Some(images * passes * graph.flops() as f64)
}

//! The experiments of the paper, one command each: cells that are run, and their tables.
//!
//! An experiment ([`EXPERIMENTS`]) is a table of [`Cell`]s (a recipe, a seed, what is measured) and a function from finished
//! cells to tables and pictures. [`Plan`] names the cells, [`Store`] keeps finished ones in a folder, [`Scheduler`] runs the
//! others, as many at a time as the cores allow, and [`Results`] gives them to the tables. It can be killed at any time and
//! started again without losing a finished cell.

mod cell;
mod experiment;
mod finding;
mod measure;
mod plan;
mod published;
mod results;
mod run_cell;
mod scheduler;
mod store;
mod tables;

pub use cell::{Cell, Found, HessianSettings, Measurements, Stage};
pub use experiment::{COMPARE, EXPERIMENTS, Experiment, Scale, experiment};
pub use finding::{CurvePoint, Finding, Flatness, Gradient, Measured, Outcome, Score};
pub(crate) use finding::{clocked, mean_times};
pub use plan::{HELD_OUT, Plan, Request, SEARCH_SEED, Select};
pub use results::Results;
pub use scheduler::{Progress, Scheduler};
pub use store::Store;

use crate::{Error, Folder, Output};
use std::path::PathBuf;

/// Writes the tables and pictures of finished cells into the folder `results` of an experiment's folder.
pub fn conclude(plan: &Plan, store: &Store, found: &Found) -> Result<(Output, PathBuf), Error> {
    let results = Results::new(plan, found)?;
    let mut output = (plan.experiment.conclude)(&results)?;
    output.data.push(("cells.csv".into(), tables::all_cells(&results)));
    let mut folder = Folder::claim(&store.folder().join("results"), &plan.manifest())?;
    output.put(&mut folder)?;
    Ok((output, folder.finish()?))
}

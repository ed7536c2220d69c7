//! The experiments of the paper, each one command: cells that are run, and what they come to.
//!
//! An experiment ([`EXPERIMENTS`]) is a table of [`Cell`]s (a recipe, a seed, what is measured) and a function from finished cells to
//! tables and pictures. [`Plan`] names the cells, [`Store`] keeps finished ones in a folder, [`Plan::conduct`] carries the others out, as many at a
//! time as the cores allow, and [`Results`] hands them to the tables. Killed at any time and started again, it loses no finished cell.

mod carry_out;
mod cell;
mod conduct;
mod examine;
mod experiment;
mod finding;
mod plan;
mod published;
mod results;
mod sheet;
mod sizes;
mod store;
mod tables;

pub use cell::{Cell, Found, Lens, Stage, Wants};
pub use conduct::{Means, Progress, Tell};
pub use experiment::{EXPERIMENTS, Experiment, Scale, experiment};
pub use finding::{Finding, Flatness, Gradient, Measured, Outcome, Score, Spot};
pub use plan::{Cost, HELD_OUT, Plan, Request, SEARCH_SEED, Select};
pub use results::Results;
pub use sheet::{Output, Sheet};
pub use store::Store;

use crate::{Error, Folder};
use std::path::PathBuf;

/// Puts the tables and pictures of finished cells into the folder `results` of an experiment's folder.
pub fn conclude(plan: &Plan, store: &Store, found: &Found) -> Result<(Output, PathBuf), Error> {
    let output = (plan.experiment.conclude)(&Results::new(plan, found)?)?;
    let mut folder = Folder::claim(&store.folder().join("results"), &plan.plate())?;
    output.put(&mut folder)?;
    Ok((output, folder.finish()?))
}

//! The paper's motivating example: methods on the Vincent function, whose valleys are equally deep and
//! unequally wide.

pub mod draw;
mod experiment;
pub mod landscape;
mod record;
mod run;
mod setting;
mod sweep;

pub use experiment::Experiment;
pub use record::{Cell, End, Outcome, Path};
pub use run::{run, run_to_end};
pub use setting::{CORNERS, Edge, METHODS, Setting, method};
pub use sweep::{Grid, sweep};

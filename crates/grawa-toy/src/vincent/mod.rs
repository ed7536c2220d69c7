//! The paper's motivating example: methods on the Vincent function, whose valleys are equally deep and unequally wide.
//!
//! Workers start in several valleys and descend with plain SGD; a method pulls them toward its centre. The valley in which
//! they end shows how strongly the method prefers flat regions.

#[cfg(feature = "plots")]
mod draw;
mod edge;
mod experiment;
pub mod landscape;
#[cfg(feature = "plots")]
mod results;
mod run;
mod sweep;

pub use edge::Edge;
pub use experiment::{CORNERS, Experiment, method, methods};
pub use run::{End, Outcome, Path};
pub use sweep::{Cell, Grid};

//! A run: many workers, rounds, budgets, evaluation, checkpoints, and the events that tell of them.
//!
//! - [`Recipe`]: everything that defines a run.
//! - [`Run`]: a recipe carried out, kept in [`Checkpoint`]s, gone on with, or replayed from a [`Recording`].
//! - [`Event`]: what happens in a run, and [`Observer`]: who is told; [`observe`]: files and a terminal that are.
#![deny(missing_docs)]

mod checkpoint;
mod course;
pub mod durable;
mod elastic;
pub mod engine;
mod error;
mod evaluate;
mod event;
mod figure;
pub mod folder;
#[cfg(fuzzing)]
pub mod fuzz;
mod held;
mod init;
mod locate;
mod measure;
pub mod observe;
mod pace;
pub mod recipe;
mod run;
mod shares;
mod snapshot;
pub mod told;
mod watch;
mod word;
mod worker;

pub use checkpoint::Checkpoint;
pub use elastic::{Stop, check, join, objection};
pub use error::Error;
pub use event::{
    Evaluated, Event, Fault, Finished, Mixed, Model, Observer, Place, Reason, Round, Share, Started, Times,
};
pub use held::make_room;
pub use locate::{Located, locate};
pub use measure::{Class, Evaluator, Measured};
pub use pace::Recording;
pub use recipe::Recipe;
pub use run::Run;

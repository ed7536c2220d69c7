//! A run: many workers, rounds, budgets, evaluation, checkpoints, and the events that tell of them.
//!
//! - [`Recipe`]: everything that defines a run.
//! - [`Event`]: what happens in a run, and [`Observer`]: who is told; [`observe`]: files and a terminal that are.
#![deny(missing_docs)]

mod error;
mod event;
mod figure;
pub mod observe;
pub mod recipe;

pub use error::Error;
pub use event::{
    Evaluated, Event, Fault, Finished, Mixed, Model, Observer, Place, Reason, Round, Share, Started, Times,
};
pub use recipe::Recipe;

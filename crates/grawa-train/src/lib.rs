//! A run: workers, rounds, budget, schedule, evaluation, checkpoints, events.
//!
//! A [`Recipe`] says everything that defines a run.
#![deny(missing_docs)]

pub mod recipe;

pub use recipe::Recipe;

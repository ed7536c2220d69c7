//! A run: many workers, rounds, budgets, evaluation, checkpoints, and the events that tell of them.
//!
//! - [`Event`]: what happens in a run, and [`Observer`]: who is told.
#![deny(missing_docs)]

mod error;
mod event;

pub use error::Error;
pub use event::{
    Evaluated, Event, Fault, Finished, Mixed, Model, Observer, Place, Reason, Round, Share, Started, Times,
};

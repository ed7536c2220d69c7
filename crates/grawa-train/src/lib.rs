#![doc = include_str!("../README.md")]
//!
//! ## Where things are
//!
//! - [`Recipe`]: everything that defines a run.
//! - [`Run`]: a recipe carried out, saved in [`Checkpoint`]s, resumed, or replayed from a [`Recording`].
//! - [`coordinate`] and [`join`]: the two sides of a run whose workers join and leave.
//! - [`Event`]: what happens in a run; [`Observer`]: what receives events; [`observe`]: files and a terminal that do.
#![deny(missing_docs)]

mod bounded_read;
mod checkpoint;
#[cfg(feature = "group")]
pub mod coordinate;
pub mod durable;
#[cfg(feature = "group")]
mod elastic;
pub mod engine;
mod error;
#[cfg(test)]
mod evaluate_tests;
mod event;
mod find_model;
pub mod folder;
#[cfg(feature = "group")]
mod group_checkpoint;
mod human_format;
mod init;
mod measure;
mod model_metadata;
pub mod observe;
pub mod recipe;
mod record_check;
mod recording;
mod resume;
mod run;
pub mod shell;
mod supervisor;
mod thread_set;

use grawa_session::{evaluate, membership, milestones, process, round_message, snapshot, worker_set};

pub use checkpoint::{Checkpoint, recipe_copy};
#[cfg(feature = "group")]
pub use elastic::{check, join, objection};
pub use error::Error;
pub use event::{
    Evaluated, Event, Fault, Finished, Mixed, Model, Observer, Place, Reason, Round, Share, Started, Times,
};
pub use find_model::{FoundModel, find_model};
pub use grawa_session::{Error as SessionError, Recording, Stop, event_codec};
#[cfg(feature = "group")]
pub use group_checkpoint::make_room;
pub use measure::{Class, Evaluator, Measured};
pub use model_metadata::data_of;
pub use recipe::Recipe;
#[doc(hidden)]
pub use record_check::{RecordCheck, check_events, check_record};
pub use recording::read_recording;
pub use resume::{Record, ResumePoint, resume_point};
pub use run::{NextStep, Run};

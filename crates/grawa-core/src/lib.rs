#![doc = include_str!("../README.md")]
//!
//! ## Where things are
//!
//! - [`Layout`]: a model is one flat vector with named spans.
//! - [`Method`]: a method is data; EASGD, LSGD, the GRAWA family, the plain mean and the gradient-sharing
//!   baselines are rows of one table, read from and printed to text and TOML.
//! - [`plan()`] decides a round, with reasons in words; [`mix()`] executes it on plain slices.
//! - [`step`]: the local step; [`Optimizer`]: SGD or AdamW; [`norm`]: gradient norms by span; [`Tracker`]: statistics of the local steps.
//! - [`Trigger`], [`Schedule`], [`Amount`]: when a round starts, the learning rate, the budget; time is an argument.
//! - [`Key`]: random numbers as a pure function of the place of their use.
//! - [`Replica`]: the interface to the trained model; [`Sequential`] runs replicas in turn.
#![deny(missing_docs)]

#[macro_use]
mod serde_as_text;

mod amount;
mod error;
mod function_replica;
mod layout;
pub mod method;
mod mix;
pub mod norm;
mod optimizer;
mod plan;
mod replica;
mod schedule;
mod score;
mod seed;
mod sequential;
pub mod step;
mod trigger;
pub mod weights;

pub use amount::{Amount, Progress};
pub use error::{Cause, Error, did_you_mean, nearest};
pub use function_replica::FunctionReplica;
pub use layout::{Layout, Span};
pub use method::{
    By, Centre, Evaluate, Inner, Method, Name, Norm, Outer, Preset, Pull, Rise, Score, Share, Source, Toward,
    Weighting, knobs,
};
pub use mix::{centre_part, finish_centre, mix, mix_part, pull_part};
pub use optimizer::{AdamW, Moments, Optimizer, Update};
pub use plan::{Plan, Weights, plan};
pub use replica::{Replica, StateKind, StepRequest, StepResults};
pub use schedule::{RateDrop, Schedule};
pub use score::{Average, Memory, Notes, Report, Tracker};
pub use seed::{Key, Purpose, Stream};
pub use sequential::{Sequential, mean};
pub use step::{Prox, Sgd};
pub use trigger::Trigger;

/// The README's example is run with the other examples.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

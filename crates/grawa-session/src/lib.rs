#![doc = include_str!("../README.md")]
//!
//! ## Where things are
//!
//! - [`Session`]: for a training loop that calls the library.
//! - [`worker_set::WorkerSet`]: for an engine that the library drives, with several workers at once.
//! - [`event`]: what happens in a run, and [`event_codec`]: how it is sent to the coordinator.
//! - Hidden: the loop that drives models by itself, which grawa-train stands on. A [`Session`] is that loop with one worker, whose
//!   steps the caller takes.
#![deny(missing_docs)]

mod agreement;
mod choices;
mod error;
pub mod event;
pub mod event_codec;
mod example_order;
#[allow(missing_debug_implementations)]
mod pace;
mod pushed_worker;
#[doc(hidden)]
pub mod reporter;
mod session;
mod settings;

// The loop of a process, for grawa-train. Its parts hold what they drive as trait objects, which cannot be printed.
#[doc(hidden)]
#[allow(missing_debug_implementations)]
pub mod connect;
#[doc(hidden)]
#[allow(missing_debug_implementations)]
pub mod elastic;
#[cfg(feature = "group")]
#[doc(hidden)]
#[allow(missing_debug_implementations)]
pub mod enter;
#[doc(hidden)]
pub mod evaluate;
#[doc(hidden)]
#[allow(missing_debug_implementations)]
pub mod membership;
#[doc(hidden)]
pub mod milestones;
#[doc(hidden)]
#[allow(missing_debug_implementations)]
pub mod process;
#[doc(hidden)]
pub mod round_message;
#[doc(hidden)]
pub mod snapshot;
#[allow(missing_debug_implementations)]
pub mod worker_set;

pub use choices::{BatchNorm, Format, Pace};
pub use elastic::Stop;
pub use error::Error;
pub use evaluate::Counts;
pub use example_order::ExampleOrder;
pub use pace::Recording;
#[doc(hidden)]
pub use pace::{Leases, Pacing};
#[doc(hidden)]
pub use reporter::OwnReports;
pub use session::{DataShard, Due, EvaluatedModel, LocalStep, RoundResult, ScoreBatch, Session};
#[cfg(feature = "group")]
#[doc(hidden)]
pub use settings::coordinator_settings;
pub use settings::{QSR_AT_A_FREE_PACE, Settings};

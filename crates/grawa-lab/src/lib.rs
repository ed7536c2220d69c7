//! The experiments of the GRAWA paper and our own: studies, tables, plots, and the report that compares runs.
#![deny(missing_docs)]

pub mod demo;
mod error;
#[cfg(feature = "plots")]
pub mod flatness;
#[cfg(feature = "plots")]
pub mod lab;
mod observer;
#[cfg(feature = "plots")]
pub mod report;
pub mod statistics;

pub use error::Error;
pub use grawa_toy::{Folder, Table};
#[cfg(feature = "plots")]
pub use grawa_toy::{page, picture};

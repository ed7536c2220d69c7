//! The experiments of the GRAWA paper and our own: studies, tables, plots, and the report that compares runs.
#![deny(missing_docs)]

pub mod demo;
mod error;
pub mod flatness;
pub mod lab;
mod observer;
pub mod report;
pub mod statistics;

pub use error::Error;
pub use grawa_toy::{Figure, Folder, Output, Table, TableOutput, page, picture};

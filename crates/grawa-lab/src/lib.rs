#![doc = include_str!("../README.md")]
//!
//! ## Where things are
//!
//! [`lab`] runs studies and makes their tables, [`report`] compares runs, [`flatness`] shows measurements, [`demo`] is the
//! demonstration.
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
#[cfg(feature = "plots")]
pub use grawa_toy::{Figure, Output, TableOutput, page, picture};
pub use grawa_toy::{Folder, Table};
pub use observer::EventObserver;

#![doc = include_str!("../README.md")]
//!
//! ## Where things are
//!
//! [`vincent`] is the first problem, [`theory`] are the others.
//! The crate also holds what experiments write: [`Table`], [`picture`], [`Output`], [`page`] and the result [`Folder`]. `grawa-lab` uses
//! them for its studies.
#![deny(missing_docs)]

mod error;
mod folder;
#[cfg(feature = "plots")]
mod output;
#[cfg(feature = "plots")]
pub mod page;
#[cfg(feature = "plots")]
pub mod picture;
mod table;
#[cfg(feature = "plots")]
pub mod theory;
pub mod vincent;

pub use error::Error;
pub use folder::Folder;
#[cfg(feature = "plots")]
pub use output::{Figure, Output, TableOutput};
pub use table::Table;

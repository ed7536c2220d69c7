//! The methods on problems small enough to see or to solve: the Vincent function of the paper's motivating example, and
//! noisy convex problems behind the theory page.
//!
//! The crate also holds what experiments write: [`Table`], [`picture`], [`Output`], [`page`] and the result [`Folder`]. `grawa-lab` uses
//! them for its studies.
#![deny(missing_docs)]

mod error;
mod folder;
mod output;
pub mod page;
pub mod picture;
mod table;
pub mod theory;
pub mod vincent;

pub use error::Error;
pub use folder::Folder;
pub use output::{Figure, Output, TableOutput};
pub use table::Table;

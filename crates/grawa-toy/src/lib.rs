//! The methods on problems small enough to see or to solve: the Vincent function of the paper's motivating example, and
//! noisy convex problems behind the theory page.
//!
//! The crate also holds what experiments write: [`Table`], [`picture`], [`page`] and the result [`Folder`]. `grawa-lab` uses
//! them for its studies.
#![deny(missing_docs)]

mod error;
mod folder;
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
pub use table::Table;

//! The experiments of the GRAWA paper and our own: runs, comparisons, tables, pictures.
#![deny(missing_docs)]

pub mod demo;
mod error;
pub mod flatness;
mod folder;
pub mod lab;
pub mod page;
pub mod picture;
pub mod report;
pub mod statistics;
mod table;
pub mod theory;
pub mod vincent;

pub use error::Error;
pub use folder::Folder;
pub use table::Table;

//! Tables and pictures of flatness measurements.

mod slices;
mod spectrum;

pub use slices::{put_line, put_plane};
pub use spectrum::{put, side_by_side, table};

//! What was measured of a minimum's flatness, as tables and pictures.

mod slices;
mod spectrum;

pub use slices::{draw_line, draw_plane, put_line, put_plane};
pub use spectrum::{put, table};

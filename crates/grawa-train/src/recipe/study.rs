//! What a recipe file asks to be compared: methods, seeds, and the grid each method is searched over.
//!
//! The table `[study]` is no part of a run. It belongs to the file, so that a setting of the paper and the grids it was
//! tuned over stand in one place.

/// The table's name.
pub(super) const TABLE: &str = "study";

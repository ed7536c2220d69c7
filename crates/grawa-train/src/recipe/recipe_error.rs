//! What can be wrong with a recipe, and where.

use thiserror::Error;

/// Something wrong with a recipe: where it is, what was found, what was expected, what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{place}: {why}")]
pub struct RecipeError {
    /// Where it is: `FILE:LINE`, or the option of the command line.
    pub place: String,
    /// What is wrong.
    pub why: String,
}

impl RecipeError {
    /// What is wrong at a place: a line of a file, or an option.
    pub fn new(place: impl Into<String>, why: impl Into<String>) -> Self {
        RecipeError { place: place.into(), why: why.into() }
    }
}

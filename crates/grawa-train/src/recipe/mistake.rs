//! What can be wrong with a recipe, and where.

use thiserror::Error;

/// Something wrong with a recipe: where it stands, what was found, what was expected, what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{place}: {why}")]
pub struct Mistake {
    /// Where it stands: `FILE:LINE`, or the setting of the command line.
    pub place: String,
    /// What is wrong.
    pub why: String,
}

impl Mistake {
    pub(crate) fn new(place: impl Into<String>, why: impl Into<String>) -> Self {
        Mistake { place: place.into(), why: why.into() }
    }
}

//! Errors of flatness measurements.

use thiserror::Error;

/// Why a measurement failed. The text says what was found, what was expected, what to do.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the engine.
    #[error(transparent)]
    Engine(#[from] grawa_nn::Error),
    /// An error of the data.
    #[error(transparent)]
    Data(#[from] grawa_data::Error),
    /// An error of a layout or a vector.
    #[error(transparent)]
    Core(#[from] grawa_core::Error),
    /// Examples that do not fill their batches.
    #[error(
        "{examples} examples do not make whole batches of {batch}: with the batch's own statistics its size is part of what is measured, so choose a multiple"
    )]
    NotWholeBatches {
        /// The examples.
        examples: usize,
        /// The size of a batch.
        batch: usize,
    },
    /// A count that must be positive.
    #[error("the number of {what} must be at least {least}, not {found}")]
    TooFew {
        /// Of what.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// The least number.
        least: usize,
    },
    /// A request that cannot be met.
    #[error("{0}")]
    Setting(String),
    /// A number that is not finite.
    #[error("{what} is not finite: the network has diverged here, and there is nothing to measure")]
    NotFinite {
        /// What it is.
        what: &'static str,
    },
    /// Points of the landscape that coincide.
    #[error("{what} are the same point: there is no direction between them")]
    SamePoint {
        /// What they are.
        what: &'static str,
    },
}

impl Error {
    /// Whether the request was wrong, rather than something failed.
    pub fn is_usage(&self) -> bool {
        match self {
            Error::Engine(error) => error.is_usage(),
            Error::Data(_) | Error::Core(_) | Error::NotFinite { .. } | Error::SamePoint { .. } => false,
            _ => true,
        }
    }
}

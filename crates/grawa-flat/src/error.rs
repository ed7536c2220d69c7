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
    /// Examples that do not fill their batches, and the size of a batch.
    #[error(
        "{0} examples do not make whole batches of {1}: with the batch's own statistics its size is part of what is measured, so choose a multiple"
    )]
    NotWholeBatches(usize, usize),
    /// A count, what was found, and the least that is needed.
    #[error("the number of {0} must be at least {2}, not {1}")]
    TooFew(&'static str, usize, usize),
    /// A request that cannot be met.
    #[error("{0}")]
    Setting(String),
    /// A number that is not finite.
    #[error("{0} is not finite: the network has diverged here, and there is nothing to measure")]
    NotFinite(&'static str),
    /// Points of the landscape that coincide.
    #[error("{0} are the same point: there is no direction between them")]
    SamePoint(&'static str),
}

impl Error {
    /// Whether the request was wrong, rather than something failed.
    pub fn is_usage(&self) -> bool {
        match self {
            Error::Engine(error) => error.is_usage(),
            Error::Data(_) | Error::Core(_) | Error::NotFinite(_) | Error::SamePoint(_) => false,
            _ => true,
        }
    }
}

//! What can go wrong in an experiment.

use std::path::PathBuf;
use thiserror::Error;

/// What went wrong. [`Error::is_usage`] tells a wrong request from a failure.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A method that cannot be run as asked.
    #[error(transparent)]
    Core(#[from] grawa_core::Error),
    /// A run.
    #[error(transparent)]
    Train(#[from] grawa_train::Error),
    /// A recipe.
    #[error(transparent)]
    Recipe(#[from] grawa_train::recipe::Mistake),
    /// An edge rule that does not exist.
    #[error("there is no edge rule '{found}'; the rules are none, clip and reflect")]
    UnknownEdge {
        /// What was asked for.
        found: String,
    },
    /// A method without a pull.
    #[error(
        "{method} has no pull toward a centre, and nothing to show here; choose easgd, lsgd, grawa, mgrawa, lgrawa, local-mgrawa, local-lgrawa or mean"
    )]
    NothingToPull {
        /// The method.
        method: String,
    },
    /// A learning rate that is not a positive number.
    #[error("the learning rate is {found}, but must be positive and finite")]
    RateOutOfRange {
        /// The rate.
        found: f64,
    },
    /// No method.
    #[error("name at least one method")]
    NoMethod,
    /// The same method twice.
    #[error(
        "{method} is given twice; one picture shows each method once, so run the second setting by itself"
    )]
    MethodTwice {
        /// The method.
        method: String,
    },
    /// No steps.
    #[error("a run needs at least one step")]
    NoSteps,
    /// More positions than are kept.
    #[error(
        "{steps} steps of {workers} workers are more positions than are kept; steps times workers may be at most {most}"
    )]
    TooManySteps {
        /// The steps.
        steps: u64,
        /// The workers.
        workers: usize,
        /// The most that steps times workers may be.
        most: u64,
    },
    /// A knob that a sweep sets itself.
    #[error("a sweep sets pull and rate itself; leave them out of '{method}'")]
    SweptKnob {
        /// The method as it was given.
        method: String,
    },
    /// No workers.
    #[error("a run needs at least one start")]
    NoStart,
    /// A start where the function is not defined, or outside the square.
    #[error("the start ({x}, {y}) lies outside the domain: {domain}")]
    StartOutside {
        /// The first coordinate.
        x: f64,
        /// The second coordinate.
        y: f64,
        /// What is expected.
        domain: String,
    },
    /// The folder for results holds something else.
    #[error("the folder {} already holds {found}; nothing was written. Choose another --out, or move what is there", folder.display())]
    FolderInUse {
        /// The folder.
        folder: PathBuf,
        /// What was found in it.
        found: String,
    },
    /// A file or folder that cannot be written or read.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A picture that could not be drawn.
    #[error("a picture failed: {0}")]
    Picture(#[from] crate::picture::Error),
}

impl Error {
    /// Whether the request itself was wrong (exit code 2), rather than something failing (exit code 1).
    pub fn is_usage(&self) -> bool {
        !matches!(self, Error::Io { .. } | Error::Picture(_) | Error::Train(_))
    }
}

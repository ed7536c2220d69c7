//! Errors of the toy experiments and of the files they write.

use grawa_core::Name;
use std::path::{Path, PathBuf};

/// Why an experiment cannot run, or a result cannot be written. [`Error::is_usage`] separates the two.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A method that cannot run.
    #[error(transparent)]
    Core(#[from] grawa_core::Error),
    /// An unknown edge rule.
    #[error("there is no edge rule '{0}'; the rules are none, clip and reflect")]
    UnknownEdge(String),
    /// A method without a pull.
    #[error(
        "{0} has no pull toward a centre; choose easgd, lsgd, grawa, mgrawa, lgrawa, local-mgrawa, local-lgrawa or mean"
    )]
    NothingToPull(Name),
    /// A learning rate that is not positive and finite.
    #[error("the learning rate is {0}, but must be positive and finite")]
    RateOutOfRange(f64),
    /// No method.
    #[error("name at least one method")]
    NoMethod,
    /// The same method twice.
    #[error("{0} is given twice; one picture shows each method once, so run the second setting by itself")]
    MethodTwice(Name),
    /// No steps.
    #[error("a run needs at least one step")]
    NoSteps,
    /// More steps times workers than a run keeps positions for: steps, workers, limit.
    #[error("{0} steps of {1} workers are too many positions; steps times workers may be at most {2}")]
    TooManySteps(u64, usize, u64),
    /// A knob that a sweep sets itself, in the text of a method.
    #[error("a sweep sets pull and rate itself; leave them out of '{0}'")]
    SweptKnob(String),
    /// No workers.
    #[error("a run needs at least one start")]
    NoStart,
    /// A start outside the domain: its coordinates, and the domain in words.
    #[error("the start ({0}, {1}) lies outside the domain: {2}")]
    StartOutside(f64, f64, String),
    /// The result folder holds something else.
    #[error("the folder {} already holds {found}; nothing was written. Choose another --out, or move what is there", folder.display())]
    FolderInUse {
        /// The folder.
        folder: PathBuf,
        /// What was found in it.
        found: String,
    },
    /// A file or folder that cannot be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The attempted action, such as `write`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A drawing command failed.
    #[cfg(feature = "plots")]
    #[error("the picture could not be drawn: {0}")]
    Draw(#[from] plotters::drawing::DrawingAreaErrorKind<std::io::Error>),
    /// The embedded font cannot be used.
    #[error("the embedded font {0} could not be read")]
    Font(&'static str),
    /// The level lines of a landscape could not be computed.
    #[cfg(feature = "plots")]
    #[error("the level lines could not be computed: {0}")]
    Contour(#[from] contour::Error),
    /// The SVG is not well-formed.
    #[cfg(feature = "plots")]
    #[error("the SVG could not be read back: {0}")]
    Svg(#[from] resvg::usvg::Error),
    /// No image of this width and height can be made.
    #[error("a picture of {0}×{1} pixels cannot be rasterised")]
    Size(u32, u32),
    /// The PNG encoder failed.
    #[error("the PNG could not be encoded: {0}")]
    Png(String),
}

impl Error {
    /// Whether the request was wrong (exit code 2), rather than something failed (exit code 1).
    pub fn is_usage(&self) -> bool {
        match self {
            Error::Io { .. } | Error::Font(_) | Error::Size(..) | Error::Png(_) => false,
            #[cfg(feature = "plots")]
            Error::Draw(_) | Error::Contour(_) | Error::Svg(_) => false,
            _ => true,
        }
    }

    /// For `map_err`: the action on the path failed.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error + use<> {
        let path = path.to_owned();
        move |source| Error::Io { action, path, source }
    }
}

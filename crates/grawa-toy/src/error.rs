//! Errors of the toy experiments and of the files they write.

use std::path::{Path, PathBuf};

/// Why an experiment cannot run, or a result cannot be written. [`Error::is_usage`] separates the two.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A method that cannot run.
    #[error(transparent)]
    Core(#[from] grawa_core::Error),
    /// A setting of an experiment that cannot be run.
    #[error("{0}")]
    Setting(String),
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

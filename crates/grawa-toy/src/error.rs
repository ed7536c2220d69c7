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
    /// A picture cannot be made.
    #[error("{0}")]
    Picture(String),
}

impl Error {
    /// Whether the request was wrong (exit code 2), rather than something failed (exit code 1).
    pub fn is_usage(&self) -> bool {
        !matches!(self, Error::Io { .. } | Error::Picture(_))
    }

    /// For `map_err`: the action on the path failed.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error + use<> {
        let path = path.to_owned();
        move |source| Error::Io { action, path, source }
    }
}

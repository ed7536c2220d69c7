//! What can go wrong in a run.

use std::path::PathBuf;
use thiserror::Error;

/// What went wrong; the text says what was found, what was expected, what to do.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// Something the methods refuse.
    #[error(transparent)]
    Core(#[from] grawa_core::Error),
    /// Something wrong with a recipe.
    #[error(transparent)]
    Recipe(#[from] crate::recipe::Mistake),
    /// A file or folder that cannot be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A run's own file that does not hold what it must.
    #[error("{} line {line}: {why}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong and what to do.
        why: String,
    },
}

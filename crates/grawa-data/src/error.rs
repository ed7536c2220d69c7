//! Errors of data: files, folders, the network or the caller's numbers. Nothing panics.

use crate::{DatasetKind, Shape};
use grawa_core::did_you_mean;
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Data this crate cannot work with. The text says what was found, what was expected, what to do.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The name of a data set that is not known.
    #[error("there is no data set '{0}'{hint}; the data sets are {names}", hint = did_you_mean(.0, DatasetKind::names()), names = DatasetKind::names().join(", "))]
    UnknownDataset(String),
    /// A data set that has no archive to download.
    #[error("{0}")]
    NoArchive(String),
    /// The operating system refused.
    #[error("cannot {doing} {path:?}: {source}")]
    Io {
        /// What was attempted.
        doing: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file or folder that is missing, in the way, or not what it should be. The text names it.
    #[error("{0}")]
    File(String),
    /// A setting in the wrong form, or one that does not fit the images.
    #[error("{0}")]
    Setting(String),
    /// Numbers that leave a worker without examples.
    #[error("{asked} {of} asked for, but there are {have} training examples; {hint}")]
    TooFew {
        /// How many were asked for.
        asked: u64,
        /// Of what.
        of: &'static str,
        /// How many examples there are.
        have: usize,
        /// What to do.
        hint: &'static str,
    },
    /// A worker, step or example outside what exists: what was counted, which was asked for, how many there are.
    #[error("there is no {0} {1}; it must be below {2}")]
    OutOfRange(&'static str, u64, u64),
    /// A buffer, its length, and the needed length.
    #[error("{0} has room for {1}, but {2} are needed")]
    WrongRoom(&'static str, usize, usize),
    /// A download failed.
    #[error("{0}")]
    Download(String),
    /// The loader's thread has ended.
    #[error("the thread that prepares batches has ended{}", if *.panicked { " with a panic: a fault in grawa" } else { " after an earlier error" })]
    NoMoreBatches {
        /// Whether it panicked.
        panicked: bool,
    },
}

impl Error {
    /// Whether the request itself was wrong, rather than a file or the network.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Error::UnknownDataset(_) | Error::NoArchive(_) | Error::Setting(_) | Error::TooFew { .. }
        )
    }

    /// A file or folder that holds something else.
    pub(crate) fn wrong_format(path: &Path, found: impl Display, expected: impl Display) -> Self {
        Error::File(format!("{path:?}: found {found}, expected {expected}"))
    }

    /// A folder without the files of a data set.
    pub(crate) fn missing(path: &Path, what: &str, expected: &str, hint: &str) -> Self {
        Error::File(match path.exists() {
            true => format!("{path:?} holds no {what}: looked for {expected}. {hint}"),
            false => format!("there is no folder {path:?}; expected one with {what}. {hint}"),
        })
    }

    /// An existing file or folder that cannot be used; it is not touched.
    pub(crate) fn in_the_way(path: &Path, why: &str) -> Self {
        let remedy = "move it elsewhere and run the same command again";
        Error::File(format!("{path:?} is in the way: {why}; {remedy}"))
    }

    /// Augmentation and images do not fit.
    pub(crate) fn does_not_fit(augment: &str, shape: Shape, why: &str) -> Self {
        Error::Setting(format!("'{augment}' does not fit images of {shape}: {why}"))
    }

    /// A picture that does not decode.
    pub(crate) fn broken_picture(path: &Path, why: &str) -> Self {
        let expected = "expected an intact JPEG or PNG file: replace or remove it";
        Error::File(format!("{path:?} is not a readable picture: {why}; {expected}"))
    }
}

/// Checks that there is a worker, step or example of this number.
pub(crate) fn check_below(what: &'static str, found: u64, limit: u64) -> Result<()> {
    if found < limit { Ok(()) } else { Err(Error::OutOfRange(what, found, limit)) }
}

/// This crate's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Adds what was attempted, and on what, to an error of the operating system.
pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io { doing, path: path.to_owned(), source }
}

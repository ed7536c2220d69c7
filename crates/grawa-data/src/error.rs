//! Errors of data: files, folders, the network or the caller's numbers. Nothing panics.

use crate::{DatasetKind, Shape};
use grawa_core::did_you_mean;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Data this crate cannot work with. The text says what was found, what was expected, what to do.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A data set's name is not known.
    #[error("there is no data set '{found}'{}; the data sets are {}", did_you_mean(found, DatasetKind::names()), DatasetKind::names().join(", "))]
    UnknownDataset {
        /// What was asked for.
        found: String,
    },
    /// A data set that has no archive to download.
    #[error("'{found}' cannot be downloaded by grawa; it can get cifar10 and cifar100. {hint}")]
    NoArchive {
        /// The data set.
        found: &'static str,
        /// How to get it.
        hint: &'static str,
    },
    /// A file or folder is not there.
    #[error("{path:?} holds no {what}: looked for {expected}. {hint}")]
    Missing {
        /// The searched folder.
        path: PathBuf,
        /// What is missing, in words.
        what: String,
        /// The expected names.
        expected: String,
        /// What to do.
        hint: String,
    },
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
    /// A file whose length does not fit its format.
    #[error(
        "{path:?} is {found} bytes long, but {expected}; it is cut short or not the file it is named after"
    )]
    WrongLength {
        /// The file.
        path: PathBuf,
        /// Its length.
        found: u64,
        /// The expected length, in words.
        expected: String,
    },
    /// A label that no class has.
    #[error("{path:?}: record {record} has label {found}, but labels go from 0 to {last}", last = .classes.saturating_sub(1))]
    WrongLabel {
        /// The file.
        path: PathBuf,
        /// The record, counted from 0.
        record: usize,
        /// Its label.
        found: u32,
        /// How many classes there are.
        classes: u32,
    },
    /// A file that is not what it should be.
    #[error("{path:?}: found {found}, expected {expected}")]
    WrongFormat {
        /// The file.
        path: PathBuf,
        /// What it holds.
        found: String,
        /// What it should hold.
        expected: String,
    },
    /// A file that differs from the official one.
    #[error("{path:?} has md5 {found}, but the official {what} has {expected}. {hint}")]
    WrongSum {
        /// The file.
        path: PathBuf,
        /// What it should be.
        what: String,
        /// Its md5.
        found: String,
        /// The official md5.
        expected: String,
        /// What to do.
        hint: &'static str,
    },
    /// A picture that does not decode.
    #[error("{path:?} is not a readable picture: {why}; expected an intact JPEG or PNG file")]
    BrokenPicture {
        /// The file.
        path: PathBuf,
        /// What the decoder found.
        why: String,
    },
    /// A picture of another size than the rest of its set.
    #[error(
        "{path:?} is {found}, but this set's pictures are {expected}; use 'resizedN' for pictures of any size"
    )]
    WrongPictureSize {
        /// The file.
        path: PathBuf,
        /// Its size.
        found: Shape,
        /// The size of the set.
        expected: Shape,
    },
    /// Augmentation and images do not fit.
    #[error("'{augment}' does not fit images of {shape}: {why}")]
    DoesNotFit {
        /// The augmentation or view, as text.
        augment: String,
        /// The images.
        shape: Shape,
        /// Why not, and what would.
        why: String,
    },
    /// A text in the wrong form.
    #[error("cannot read {what} '{found}': {expected}")]
    Unreadable {
        /// What was being read.
        what: &'static str,
        /// The text.
        found: String,
        /// The right form.
        expected: &'static str,
    },
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
    /// A worker, step or example outside what exists.
    #[error("there is no {what} {found}; it must be below {limit}")]
    OutOfRange {
        /// What was counted.
        what: &'static str,
        /// Which was asked for.
        found: u64,
        /// How many there are.
        limit: u64,
    },
    /// Buffers of the wrong length.
    #[error("{what} has room for {found}, but {expected} are needed")]
    WrongRoom {
        /// The buffer.
        what: &'static str,
        /// Its length.
        found: usize,
        /// The needed length.
        expected: usize,
    },
    /// A download failed.
    #[error(
        "cannot download {url}: {why}. Fetch that address by other means, put the file at {put:?} (md5 {md5}), and run the same command again"
    )]
    Download {
        /// The address.
        url: String,
        /// What went wrong.
        why: String,
        /// Where the file belongs.
        put: PathBuf,
        /// The md5 it must have.
        md5: String,
    },
    /// An archive with an unsafe entry.
    #[error(
        "{path:?} holds the entry '{entry}', which {why}; nothing was unpacked. It is not the official archive"
    )]
    UnsafeArchive {
        /// The archive.
        path: PathBuf,
        /// The entry.
        entry: String,
        /// What is wrong with it.
        why: String,
    },
    /// An existing file or folder is in the way; it is not touched.
    #[error("{path:?} is in the way: {why}; move it elsewhere and run the same command again")]
    InTheWay {
        /// The file or folder.
        path: PathBuf,
        /// Why it cannot be used.
        why: String,
    },
    /// The loader's thread has ended.
    #[error("the thread that prepares batches has ended{}", if *.panicked { " with a panic: a fault in grawa" } else { " after an earlier error" })]
    NoMoreBatches {
        /// Whether it panicked.
        panicked: bool,
    },
}

impl Error {
    pub(crate) fn wrong_format(path: &Path, found: impl Into<String>, expected: impl Into<String>) -> Self {
        Error::WrongFormat { path: path.to_owned(), found: found.into(), expected: expected.into() }
    }
}

/// Checks that every label of a file names a class.
pub(crate) fn check_labels(path: &Path, labels: &[u8], classes: u32) -> Result<()> {
    match labels.iter().position(|&label| u32::from(label) >= classes) {
        None => Ok(()),
        Some(record) => {
            let (path, found) = (path.to_owned(), labels[record].into());
            Err(Error::WrongLabel { path, record, found, classes })
        }
    }
}

/// This crate's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Adds what was attempted, and on what, to an error of the operating system.
pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io { doing, path: path.to_owned(), source }
}

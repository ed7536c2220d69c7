//! Errors of the studies and the report.

use grawa_train::recipe::Variant;
use std::path::PathBuf;

/// Why an experiment cannot run or failed. [`Error::is_usage`] separates the two.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A method that cannot run.
    #[error(transparent)]
    Core(#[from] grawa_core::Error),
    /// A run.
    #[error(transparent)]
    Train(#[from] grawa_train::Error),
    /// A recipe.
    #[error(transparent)]
    Recipe(#[from] grawa_train::recipe::RecipeError),
    /// A picture, or a file or folder of results.
    #[error(transparent)]
    Output(#[from] grawa_toy::Error),
    /// A measurement of flatness.
    #[error(transparent)]
    Flat(Box<grawa_flat::Error>),
    /// A folder of another experiment, the first different line of its manifest, and the same line of this one.
    #[error("the folder {} belongs to an experiment with `{}`, and this one has `{}`; nothing was changed. Choose another --out", .0.display(), .1, .2)]
    AnotherExperiment(PathBuf, String, String),
    /// A folder that another process uses.
    #[error("another grawa lab works in the folder {}; wait for it, or stop it", .0.display())]
    Busy(PathBuf),
    /// The file of a finished cell that cannot be read, and why.
    #[error("{} is not what this experiment left there: {}; move it away, and the cell is run again", .0.display(), .1)]
    DamagedCell(PathBuf, String),
    /// A cell that failed, and why.
    #[error("the cell {0} failed: {1}; all finished cells are kept, and the same command continues")]
    CellFailed(String, String),
    /// The folder of a run whose events contain no end.
    #[error("the run in {} has no end and no evaluation; remove it, and it is run again", .0.display())]
    NoEnd(PathBuf),
    /// An experiment without grids.
    #[error("{0} has no grid to choose a setting from; leave --select out")]
    NothingToChoose(&'static str),
    /// A setting that would give all cells one seed.
    #[error("'{0}' would give every cell the same seed; choose how many there are with --seeds")]
    SeedIsSet(String),
    /// A recipe without a study.
    #[error("{} has no table [study], which says what is compared: methods, seeds, grids", .0.display())]
    NoStudy(PathBuf),
    /// A method that a study does not compare, and those that it does.
    #[error("{} is none of the methods of the study; they are {}", .0, .1.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    NotInStudy(Variant, Vec<Variant>),
    /// A folder that is not a run's, and why.
    #[error("{} is not a run: {}", .0.display(), .1)]
    NotARun(PathBuf, String),
    /// Runs that cannot be compared, with the metrics of each.
    #[error("these runs share no metric: {0}. Make a report of runs on the same data")]
    NothingShared(String),
    /// The data of a page that cannot be written as JSON.
    #[error("the data of the page cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A file that would be overwritten, and what is there.
    #[error("{} {}; nothing was written. Choose another --out, or move it", .0.display(), .1)]
    FileInUse(PathBuf, &'static str),
}

// Boxed: every result has room for the largest error.
impl From<grawa_flat::Error> for Error {
    fn from(error: grawa_flat::Error) -> Self {
        Error::Flat(Box::new(error))
    }
}

impl Error {
    /// Whether the request was wrong (exit code 2), rather than something failed (exit code 1).
    pub fn is_usage(&self) -> bool {
        use Error::{Busy, CellFailed, DamagedCell, Json, NoEnd, Train};
        match self {
            Error::Flat(error) => error.is_usage(),
            Error::Output(error) => error.is_usage(),
            error => {
                !matches!(error, Train(_) | Busy(_) | DamagedCell(..) | CellFailed(..) | NoEnd(_) | Json(_))
            }
        }
    }
}

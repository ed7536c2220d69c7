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
    Recipe(#[from] grawa_train::recipe::RecipeError),
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
    /// A measurement of flatness.
    #[error(transparent)]
    Flat(Box<grawa_flat::Error>),
    /// A folder of another experiment.
    #[error("the folder {} belongs to an experiment with `{found}`, and this one has `{expected}`; nothing was changed. Choose another --out", folder.display())]
    AnotherExperiment {
        /// The folder.
        folder: PathBuf,
        /// What its name plate says.
        found: String,
        /// What it should say.
        expected: String,
    },
    /// A folder that another process works in.
    #[error("another grawa lab works in the folder {}; wait for it, or stop it", folder.display())]
    Busy {
        /// The folder.
        folder: PathBuf,
    },
    /// A finished cell that cannot be read.
    #[error("{} is not what this experiment left there: {why}; move it away, and the cell is run again", path.display())]
    DamagedCell {
        /// Its file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A cell that failed.
    #[error("the cell {cell} failed: {why}; all finished cells are kept, and the same command goes on")]
    CellFailed {
        /// The cell.
        cell: String,
        /// Why.
        why: String,
    },
    /// A run whose events tell of no end.
    #[error("the run in {} has no end and no evaluation; remove it, and it is run again", path.display())]
    NoEnd {
        /// The run's folder.
        path: PathBuf,
    },
    /// An experiment without grids.
    #[error("{experiment} has no grid to choose a setting from; leave --select out")]
    NothingToChoose {
        /// The experiment.
        experiment: &'static str,
    },
    /// A seed that is set for all cells.
    #[error("'{setting}' would give every cell the same seed; choose how many there are with --seeds")]
    SeedIsSet {
        /// The setting.
        setting: String,
    },
    /// A recipe without a study.
    #[error("{} has no table [study], which says what is compared: methods, seeds, grids", path.display())]
    NoStudy {
        /// The recipe.
        path: PathBuf,
    },
    /// A method that a study does not compare.
    #[error("{method} is none of the methods of the study; they are {}", known.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    NotInStudy {
        /// The method.
        method: grawa_core::Name,
        /// Those of the study.
        known: Vec<grawa_core::Name>,
    },
    /// A folder that is not a run's.
    #[error("{} is not a run: {why}", path.display())]
    NotARun {
        /// The folder.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Runs that cannot be compared.
    #[error("these runs share no metric: {found}. Make a report of runs on the same data")]
    NothingShared {
        /// What each has.
        found: String,
    },
    /// A file that would be overwritten.
    #[error("{} {found}; nothing was written. Choose another --out, or move it", path.display())]
    FileInUse {
        /// The file.
        path: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// A picture that could not be drawn.
    #[error("a picture failed: {0}")]
    Picture(#[from] crate::picture::Error),
}

// Boxed: every result carries as much room as the largest error takes.
impl From<grawa_flat::Error> for Error {
    fn from(error: grawa_flat::Error) -> Self {
        Error::Flat(Box::new(error))
    }
}

impl Error {
    /// Whether the request itself was wrong (exit code 2), rather than something failing (exit code 1).
    pub fn is_usage(&self) -> bool {
        match self {
            Error::Flat(error) => error.is_usage(),
            error => !matches!(
                error,
                Error::Io { .. }
                    | Error::Picture(_)
                    | Error::Train(_)
                    | Error::Busy { .. }
                    | Error::DamagedCell { .. }
                    | Error::CellFailed { .. }
                    | Error::NoEnd { .. }
            ),
        }
    }
}

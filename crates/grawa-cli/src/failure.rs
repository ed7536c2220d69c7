//! Why a command failed, and its exit code.

use std::fmt::Display;

/// Why a command ended. A build without groups cannot fail in all these ways.
#[cfg_attr(not(feature = "group"), allow(dead_code))]
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// An experiment.
    #[error(transparent)]
    Lab(#[from] grawa_lab::Error),
    /// A toy experiment, or a folder of results.
    #[error(transparent)]
    Toy(#[from] grawa_toy::Error),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] grawa_nn::Error),
    /// Data.
    #[error(transparent)]
    Data(#[from] grawa_data::Error),
    /// A run.
    #[error(transparent)]
    Train(#[from] grawa_train::Error),
    /// A recipe.
    #[error(transparent)]
    Recipe(#[from] grawa_train::recipe::RecipeError),
    /// Something between workers.
    #[error(transparent)]
    Comm(#[from] grawa_comm::Error),
    /// A measurement of flatness.
    #[error(transparent)]
    Flat(#[from] grawa_flat::Error),
    /// A method.
    #[error(transparent)]
    Core(#[from] grawa_core::Error),
    /// Something on this machine: a process, a signal handler, an address.
    #[error("{0}")]
    Machine(String),
    /// Options that do not fit the command.
    #[error("{0}")]
    Usage(&'static str),
    /// An error that the first rank of the job has printed, and its exit code.
    #[error("the first rank has printed the error")]
    #[cfg_attr(not(feature = "mpi"), allow(dead_code))]
    Reported(u8),
}

/// An option that only `grawa train` has.
#[cfg(feature = "group")]
pub(crate) const ONLY_TRAIN: Failure = Failure::Usage(
    "--seeds, --resume, --checkpoint, --replay and --comm are for `grawa train`; a run whose workers are still there is continued by `grawa coordinate --resume`, one of your own program by `grawa launch --resume DIR -- COMMAND`",
);

impl Failure {
    /// The handler of Ctrl-C cannot be installed.
    pub(crate) fn signals(error: impl Display) -> Self {
        Failure::Machine(format!("cannot listen for Ctrl-C: {error}"))
    }

    /// 2 for a wrong request, 1 for something that failed.
    pub(crate) fn code(&self) -> u8 {
        let is_usage = match self {
            Failure::Lab(error) => error.is_usage(),
            Failure::Toy(error) => error.is_usage(),
            // A file that was named and is not there.
            Failure::Engine(grawa_nn::Error::Io { action: "read", source, .. })
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                true
            }
            Failure::Engine(error) => error.is_usage(),
            Failure::Data(error) => error.is_usage(),
            Failure::Train(error) => error.is_usage(),
            Failure::Comm(error) => matches!(error, grawa_comm::Error::Key { .. }),
            Failure::Flat(error) => error.is_usage(),
            Failure::Core(_) | Failure::Recipe(_) | Failure::Usage(_) => true,
            Failure::Machine(_) => false,
            Failure::Reported(code) => return *code,
        };
        if is_usage { 2 } else { 1 }
    }
}

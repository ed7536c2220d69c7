//! Why a command failed, and its exit code.

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
    /// The handler of Ctrl-C cannot be installed.
    #[error("cannot listen for Ctrl-C: {why}")]
    Signals {
        /// Why not.
        why: String,
    },
    /// Something between workers.
    #[error(transparent)]
    Comm(#[from] grawa_comm::Error),
    /// A page that cannot be served.
    #[error(
        "cannot serve the page at {address}: {why}; choose another place with --page, or none with --page none"
    )]
    Page {
        /// Where.
        address: String,
        /// Why not.
        why: String,
    },
    /// Worker processes cannot be started, or all have ended.
    #[error("{why}")]
    Process {
        /// Why.
        why: String,
    },
    /// An address that cannot be listened at.
    #[error("cannot listen at {address}: {why}; give another, or port 0 for any that is free")]
    Listen {
        /// The address.
        address: String,
        /// Why not.
        why: String,
    },
    /// An option that only `grawa train` has.
    #[error(
        "--resume, --checkpoint, --replay and --comm are for `grawa train`; a run whose workers are still there is continued by `grawa coordinate --resume`"
    )]
    OnlyTrain,
    /// Options of vectors on the network, where all workers are threads.
    #[error(
        "train.overlap and train.wire are for workers in processes of their own: use `grawa launch` or `grawa coordinate`, or leave them away"
    )]
    OnlyApart,
    /// A program that was built without MPI.
    #[error(
        "this grawa was built without MPI; install an MPI and libclang (Debian: apt-get install openmpi-bin libopenmpi-dev \
         libclang-dev), then build it with: cargo build --release --features mpi"
    )]
    #[cfg_attr(feature = "mpi", allow(dead_code))]
    NoMpi,
    /// An error that the first rank of the job has printed.
    #[error("the first rank has told why")]
    #[cfg_attr(not(feature = "mpi"), allow(dead_code))]
    Told {
        /// The exit code.
        code: u8,
    },
    /// Something that failed on another rank of the job.
    #[error("worker {worker} on {machine}: {why}")]
    #[cfg_attr(not(feature = "mpi"), allow(dead_code))]
    Rank {
        /// Its worker.
        worker: u32,
        /// Its machine.
        machine: String,
        /// Its error.
        why: String,
        /// The exit code.
        code: u8,
    },
    /// A measurement of flatness.
    #[error(transparent)]
    Flat(#[from] grawa_flat::Error),
    /// A method.
    #[error(transparent)]
    Core(#[from] grawa_core::Error),
}

impl Failure {
    /// 2 for a wrong request, 1 for something that failed.
    pub(crate) fn code(&self) -> u8 {
        let usage = match self {
            Failure::Lab(error) => error.is_usage(),
            Failure::Toy(error) => error.is_usage(),
            Failure::Engine(error) => error.is_usage(),
            Failure::Data(error) => {
                matches!(
                    error,
                    grawa_data::Error::UnknownDataset { .. } | grawa_data::Error::NoArchive { .. }
                )
            }
            Failure::Train(error) => error.is_usage(),
            Failure::Signals { .. }
            | Failure::Listen { .. }
            | Failure::Process { .. }
            | Failure::Page { .. } => false,
            Failure::Comm(error) => matches!(error, grawa_comm::Error::Key { .. }),
            Failure::Told { code } | Failure::Rank { code, .. } => return *code,
            Failure::OnlyTrain | Failure::OnlyApart | Failure::NoMpi => true,
            Failure::Flat(error) => error.is_usage(),
            Failure::Core(_) | Failure::Recipe(_) => true,
        };
        if usage { 2 } else { 1 }
    }
}

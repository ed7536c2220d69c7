//! What can go wrong in a session.

use std::time::Duration;
use thiserror::Error;

/// What went wrong; the text says what was found, what was expected, what to do.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// Something the methods refuse.
    #[error(transparent)]
    Core(#[from] grawa_core::Error),
    /// Something wrong between the processes.
    #[error(transparent)]
    Comm(#[from] grawa_comm::Error),
    /// What the workers of this process failed with.
    #[error(transparent)]
    Workers(Box<dyn std::error::Error + Send + Sync>),
    /// A message of a worker that cannot be read.
    #[error(
        "the message of worker {worker} is {found} bytes long and cannot be read; do all run the same version?"
    )]
    Garbled {
        /// The worker.
        worker: u32,
        /// Its length.
        found: usize,
    },
    /// A recording without the cycle that is needed.
    #[error(
        "the recording has {rounds} rounds and no cycle that begins at step {from}: replay it with the recipe it was made with, and no further"
    )]
    NotRecorded {
        /// Where a cycle should begin.
        from: u64,
        /// Its rounds.
        rounds: u64,
    },
    /// A worker broke down.
    #[error("worker {worker} broke down: {why}; this is a fault of the program")]
    BrokeDown {
        /// The worker.
        worker: u32,
        /// What it said.
        why: String,
    },
    /// A worker that made no progress for too long.
    #[error("it was silent for {:.1} s", after.as_secs_f64())]
    Stalled {
        /// For how long.
        after: Duration,
    },
    /// A worker that was asked to stop.
    #[error("this worker was asked to stop; the others continue")]
    Left,
    /// A run that was stopped while it waited for its workers.
    #[error("the coordinator stopped the run before its first round")]
    StoppedEarly,
    /// A run whose workers cannot join and leave.
    #[error("workers cannot join and leave in this run: {why}")]
    NotElastic {
        /// Why not.
        why: String,
    },
    /// A method that a session cannot carry out.
    #[error("a session cannot use {method}: {why}")]
    NotInSession {
        /// The method.
        method: String,
        /// Why not, and what to do.
        why: &'static str,
    },
    /// A run that others define in another way.
    #[error("this is not the run of the coordinator: {what} is {found} here and {expected} there")]
    AnotherRun {
        /// What differs.
        what: String,
        /// Here.
        found: String,
        /// At the coordinator.
        expected: String,
    },
    /// Workers of a fixed number of processes that were started with different settings.
    #[error(
        "the workers do not train the same run: {what} is {found} on worker {worker} and {expected} on worker {other}; start all of them with the same settings"
    )]
    WorkersDiffer {
        /// What differs.
        what: String,
        /// A worker.
        worker: u32,
        /// What it has.
        found: String,
        /// Another one.
        other: u32,
        /// What that one has.
        expected: String,
    },
    /// A session of more or fewer processes than its settings have workers.
    #[error(
        "{processes} processes are connected, and the settings have {workers} workers: a session is one worker, so give as many workers as processes"
    )]
    WrongWorkers {
        /// Processes.
        processes: u32,
        /// Workers.
        workers: u32,
    },
    /// A number of the settings that cannot be zero.
    #[error("{what} = 0: a run needs at least 1")]
    Zero {
        /// The setting.
        what: &'static str,
    },
    /// A method that goes by the learning rate, which it was not given.
    #[error(
        "{method} goes by the learning rate, and was given none above 0: give each `step` the rate of your optimizer"
    )]
    NoRate {
        /// The method.
        method: String,
    },
    /// A learning rate that no optimizer has.
    #[error("the learning rate of a step is {found}; expected a number, 0 or more")]
    WrongRate {
        /// The rate.
        found: f64,
    },
    /// A call at the wrong time.
    #[error("{call} was called, but {due} is due")]
    NotDue {
        /// What was called.
        call: &'static str,
        /// What is due.
        due: &'static str,
    },
    /// Steps and measurements that do not belong together.
    #[error("{steps} steps are not measured: call `measured` once for each step, before the round")]
    Unmeasured {
        /// How many.
        steps: u64,
    },
    /// Every worker was lost.
    #[error("no worker is left: {why}")]
    NobodyLeft {
        /// Why each was lost.
        why: String,
    },
}

impl Error {
    /// An error of the workers of this process.
    pub fn workers(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Error::Workers(Box::new(error))
    }
}

//! What can go wrong in a run.

use crate::shell;
use std::path::PathBuf;
use thiserror::Error;

/// What went wrong; the text says what was found, what was expected, what to do.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// Something the methods refuse.
    #[error(transparent)]
    Core(#[from] grawa_core::Error),
    /// Something wrong with the engine.
    #[error(transparent)]
    Engine(#[from] grawa_nn::Error),
    /// Something wrong with the data.
    #[error(transparent)]
    Data(#[from] grawa_data::Error),
    /// Something wrong between the workers.
    #[error(transparent)]
    Comm(#[from] grawa_comm::Error),
    /// Something wrong in the loop of a process.
    #[error(transparent)]
    Session(grawa_session::Error),
    /// A network that tells fewer classes apart than the data has.
    #[error("{network} tells {found} classes apart, but the data has {expected}")]
    TooFewClasses {
        /// The network.
        network: String,
        /// Its classes.
        found: usize,
        /// Those of the data.
        expected: usize,
    },
    /// A run whose events hold no rounds.
    #[error("{} holds no rounds: there is nothing to replay", path.display())]
    NothingRecorded {
        /// The run's folder.
        path: PathBuf,
    },
    /// Nothing of that name.
    #[error("there is no folder {}; give a run's folder, one with a folder 'checkpoints'", path.display())]
    NoFolder {
        /// The name.
        path: PathBuf,
    },
    /// Nothing of that name, where a model was expected.
    #[error("there is no file or folder {}; give a run's folder, a checkpoint, or a model.safetensors", path.display())]
    NoModel {
        /// The name.
        path: PathBuf,
    },
    /// A folder without a checkpoint.
    #[error("{} holds no checkpoint; give a run's folder, one with a folder 'checkpoints'", path.display())]
    NoCheckpoint {
        /// The folder.
        path: PathBuf,
    },
    /// A run's folder without its recipe.
    #[error("{} has checkpoints but no recipe.toml: put that file back", path.display())]
    NoRecipe {
        /// The folder.
        path: PathBuf,
    },
    /// A checkpoint that cannot be read.
    #[error("{} is not a checkpoint this program can resume from: {why}", path.display())]
    NotACheckpoint {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A checkpoint of another version.
    #[error(
        "{} is a checkpoint of form {found}, and this program reads forms 1 to {expected}: use the version of grawa that wrote it",
        path.display()
    )]
    AnotherForm {
        /// The checkpoint.
        path: PathBuf,
        /// Its form.
        found: u32,
        /// The newest form that is read.
        expected: u32,
    },
    /// A folder of whose checkpoints none can be used.
    #[error("{} has no checkpoint that can be used: {why}{}", path.display(), whole(best))]
    NoUsableCheckpoint {
        /// The run's folder.
        path: PathBuf,
        /// What is wrong with each.
        why: String,
        /// The folder of the best model and its test error, if that is whole.
        best: Option<(PathBuf, f64)>,
    },
    /// A run whose newest checkpoint cannot be used, where a model is asked for: an older one is another model.
    #[error(
        "the newest checkpoint of {} cannot be used: {why}. The newest that is whole is {}, {}{}; give the one to use",
        run.display(), older.display(), after(*steps), whole(best)
    )]
    NewestUnusable {
        /// The run's folder.
        run: PathBuf,
        /// What is wrong with those that are newer.
        why: String,
        /// The newest checkpoint that is whole.
        older: PathBuf,
        /// Local steps of each worker there.
        steps: u64,
        /// The folder of the best model and its test error, if that is whole.
        best: Option<(PathBuf, f64)>,
    },
    /// A run of which nothing but its start can be used: to resume it would begin it anew.
    #[error(
        "{why}. Nothing but the start of the run is whole: all {lost} steps of each worker would be lost{}. To begin anew: \
         grawa train --resume {} --checkpoint {start}",
        whole(best),
        shell::path(run)
    )]
    OnlyTheStart {
        /// The run's folder.
        run: PathBuf,
        /// What is wrong with the newer checkpoints.
        why: String,
        /// The local steps of each worker at the newest.
        lost: u64,
        /// The name of the checkpoint of the start.
        start: String,
        /// The folder of the best model and its test error, if that is whole.
        best: Option<(PathBuf, f64)>,
    },
    /// A run whose record does not contain the checkpoint to resume from, or cannot be read.
    #[error(
        "the record of the run cannot be continued: {why}. The checkpoint is whole: put the damaged file back, or set the record \
         aside and begin another: grawa train --resume {}{} --without-record",
        shell::path(run), checkpoint.iter().map(|name| format!(" --checkpoint {}", shell::word(name))).collect::<String>()
    )]
    RecordUnusable {
        /// The run's folder.
        run: PathBuf,
        /// The name of the checkpoint, if it was given.
        checkpoint: Option<String>,
        /// What is wrong with the record.
        why: Box<Error>,
    },
    /// A checkpoint that is not there.
    #[error("{} has no checkpoint '{name}'; there are: {there}", path.display())]
    NoSuchCheckpoint {
        /// The run's folder.
        path: PathBuf,
        /// The name.
        name: String,
        /// The names of those that are there.
        there: String,
    },
    /// A run of a network that only its own program has.
    #[error(
        "{} names the network '{network}', which is not one of `grawa models`: only the program that builds it can use this run, \
         with Run::with_network",
        path.display()
    )]
    OwnNetwork {
        /// The recipe.
        path: PathBuf,
        /// The network.
        network: String,
    },
    /// A checkpoint of another run.
    #[error("the checkpoint {} does not fit the recipe: {why}", path.display())]
    AnotherRun {
        /// The checkpoint.
        path: PathBuf,
        /// In what it differs.
        why: String,
    },
    /// A folder that holds something already.
    #[error("{} already holds {found}; nothing was changed. Choose another folder with --out, or continue a run with --resume", path.display())]
    FolderInUse {
        /// The folder.
        path: PathBuf,
        /// What is in it.
        found: String,
    },
    /// A file to start from that does not fit the network.
    #[error("cannot start from {}: {why}", path.display())]
    CannotStart {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// A folder in which a run is active.
    #[error(
        "a run is at work in {0}: wait for its end, or end it; workers whose coordinator is gone reconnect to \
         `grawa coordinate --resume {1}` with their --key FILE or --wire plain",
        path.display(), shell::path(path)
    )]
    AtWork {
        /// The folder.
        path: PathBuf,
    },
    /// A run whose workers cannot be ranks of an MPI job.
    #[error("workers cannot be the ranks of an MPI job in this run: {why}")]
    NotByRanks {
        /// Why not.
        why: String,
    },
    /// A coordinator that failed.
    #[error("the coordinator cannot continue: {why}")]
    Coordinator {
        /// Why.
        why: String,
    },
    /// A folder whose run another coordinator cannot resume.
    #[error("cannot resume the run of {}: {why}", path.display())]
    CoordinatorFile {
        /// The file that identifies the run.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// A coordinator's log that does not say where the run is.
    #[error(
        "{why}. Nothing was changed: a run that began anew would replace the checkpoints of its workers. Put {}/coordinator.log back from a \
         copy, or continue from the newest checkpoint that a worker has: {}",
        folder.display(), from_workers(folder, *is_recipe)
    )]
    Journal {
        /// The folder of the run.
        folder: PathBuf,
        /// What is wrong with the log.
        why: String,
        /// Whether the run has a recipe; otherwise programs with a session define it.
        is_recipe: bool,
    },
    /// A run whose events are lost.
    #[error(
        "events.jsonl is missing in {0}, and journal.jsonl beside it is not: the record of the run is lost. Put events.jsonl back from a \
         copy; or move journal.jsonl and about.toml to another folder, and give the command again: it begins another record",
        folder.display()
    )]
    EventsLost {
        /// The folder of the run.
        folder: PathBuf,
    },
    /// Something wrong with a recipe.
    #[error(transparent)]
    Recipe(#[from] crate::recipe::RecipeError),
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

/// The commands that continue a run without its log.
fn from_workers(folder: &std::path::Path, is_recipe: bool) -> String {
    let folder = shell::path(folder);
    match is_recipe {
        true => format!(
            "`grawa coordinate --resume {folder} --from-workers` with its --key FILE or --wire plain, and `grawa join HOST:PORT --out KEPT` \
             with the same, where KEPT is the folder with that checkpoint; or without a group `grawa train --resume KEPT`"
        ),
        false => format!(
            "`grawa launch --resume {folder} --from-workers -- COMMAND`, or `grawa coordinate --resume {folder} --from-workers` with its --key \
             FILE or --wire plain, and `grawa join … -- COMMAND` for a program that restores its checkpoint"
        ),
    }
}

/// In words: the best model, if there is one.
fn whole(best: &Option<(PathBuf, f64)>) -> String {
    let words = |(path, error): &(PathBuf, f64)| {
        format!("; the best model so far is whole: {}, test error {:.2} %", path.display(), 100.0 * error)
    };
    best.as_ref().map(words).unwrap_or_default()
}

/// In words: how long a model was trained.
fn after(steps: u64) -> String {
    match steps {
        0 => "the untrained model of the start".into(),
        steps => format!("after {steps} steps of each worker"),
    }
}

impl From<grawa_session::Error> for Error {
    /// What a worker failed with keeps its type.
    fn from(error: grawa_session::Error) -> Self {
        match error {
            grawa_session::Error::Core(error) => Error::Core(error),
            grawa_session::Error::Comm(error) => Error::Comm(error),
            grawa_session::Error::Workers(cause) => match cause.downcast() {
                Ok(own) => *own,
                Err(cause) => Error::Session(grawa_session::Error::Workers(cause)),
            },
            error => Error::Session(error),
        }
    }
}

impl From<Error> for grawa_session::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Core(error) => grawa_session::Error::Core(error),
            Error::Comm(error) => grawa_session::Error::Comm(error),
            Error::Session(error) => error,
            error => grawa_session::Error::workers(error),
        }
    }
}

impl Error {
    /// Whether the request itself was wrong (exit code 2), rather than something failing (exit code 1).
    pub fn is_usage(&self) -> bool {
        match self {
            Error::Engine(error) => error.is_usage(),
            // A replica's own failure is what its cause is; the rest of these is a wrong request.
            Error::Core(error) => error.replica_cause().is_none_or(is_usage_cause),
            Error::Comm(grawa_comm::Error::Core(error)) => error.replica_cause().is_some_and(is_usage_cause),
            Error::Data(error) => error.is_usage(),
            error => matches!(
                error,
                Error::Recipe(_)
                    | Error::TooFewClasses { .. }
                    | Error::NoFolder { .. }
                    | Error::NoModel { .. }
                    | Error::NoCheckpoint { .. }
                    | Error::NoRecipe { .. }
                    | Error::NoSuchCheckpoint { .. }
                    | Error::OwnNetwork { .. }
                    | Error::AnotherRun { .. }
                    | Error::FolderInUse { .. }
                    | Error::CannotStart { .. }
                    | Error::AtWork { .. }
                    | Error::Session(grawa_session::Error::NotElastic { .. })
                    | Error::NotByRanks { .. }
                    | Error::CoordinatorFile { .. }
            ),
        }
    }
}

/// Whether what a replica failed with was a wrong request.
fn is_usage_cause(cause: &(dyn std::error::Error + 'static)) -> bool {
    cause.downcast_ref::<Error>().is_some_and(Error::is_usage)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a replica failed with decides, whichever way it came: from a step, or from a round on a device.
    #[test]
    fn usage_is_told_from_failure_through_a_replica() {
        let too_few = || Error::Data(grawa_data::Error::TooFew { asked: 4, of: "images", have: 3, hint: "" });
        let engine = || Error::Engine(grawa_nn::Error::Threads { why: "no more".into() });
        for (cause, usage) in [(too_few as fn() -> Error, true), (engine, false)] {
            let replica = || grawa_core::Error::replica(cause());
            assert_eq!(cause().is_usage(), usage);
            assert_eq!(Error::from(replica()).is_usage(), usage);
            assert_eq!(Error::from(grawa_comm::Error::from(replica())).is_usage(), usage);
        }
        // A replica of someone else's, whose errors nobody here knows; and a request the methods refuse.
        assert!(!Error::from(grawa_core::Error::replica("of its own")).is_usage());
        assert!(Error::from("nothing".parse::<grawa_core::Method>().unwrap_err()).is_usage());
    }
}

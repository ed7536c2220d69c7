//! `grawa key`: the key that lets workers join a run.

use crate::failure::Failure;
use crate::output::print;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Make the key of a run. Every process that has the key can join.
///
/// The key signs the certificates with which workers and coordinator authenticate each other. Their connections are encrypted. Copy it to
/// every machine of the run, and to no other.
#[derive(Args)]
#[command(after_help = "Example:\n  grawa key new run.key")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Write a new key to a file that does not exist yet
    New {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Action::New { file } = &arguments.action;
    grawa_comm::group::new_key(file)?;
    print(&format!("wrote {}, readable by you alone; copy it to the machines of the run", file.display()));
    Ok(())
}

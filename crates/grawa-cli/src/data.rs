//! `grawa data`: downloads data sets and describes what a folder holds.

use crate::bar::bar;
use crate::failure::Failure;
use crate::output::print;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Download data sets, and describe what a folder holds.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Download CIFAR-10 or CIFAR-100 from its official site, verify it and unpack it
    ///
    /// An archive that is already in the folder is used. No file is overwritten. Without a network the error says what to download
    /// by other means and where to put it.
    Get {
        /// cifar10 or cifar100
        name: String,
        /// Where to put it
        #[arg(long, value_name = "DIR", default_value = "data")]
        dir: PathBuf,
    },
    /// Describe the data in a folder: kind, counts, image size, classes, and anything wrong with it
    Info {
        /// The folder
        dir: PathBuf,
    },
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.what {
        What::Get { name, dir } => {
            let bar = bar(1, "download");
            let place = grawa_data::download(name, dir, &mut |done, total| {
                bar.set_length(total.unwrap_or(done).max(1));
                bar.set_position(done);
            })?;
            bar.finish_and_clear();
            print(&format!("{name} lies in {}", place.display()));
        }
        What::Info { dir } => print(&grawa_data::info(dir)?),
    }
    Ok(())
}

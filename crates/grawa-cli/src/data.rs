//! `grawa data`: downloads data sets and describes what a folder holds.

use crate::bar::bar;
use crate::failure::Failure;
use crate::output::print;
use clap::{Args, Subcommand};
use grawa_train::recipe::RecipeError;
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
    ///
    /// Every picture is decoded. The exit code is 1 if something is wrong.
    Info {
        /// The folder
        dir: PathBuf,
    },
}

/// Runs the command; false if something is wrong with the data.
pub(crate) fn run(arguments: &Arguments) -> Result<bool, Failure> {
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
        What::Info { dir } => {
            if !dir.is_dir() {
                let why = "there is no such folder; give the folder that holds the data";
                return Err(RecipeError::new(dir.display().to_string(), why).into());
            }
            let bar = bar(0, "reading pictures");
            let info = grawa_data::info(dir, &|done, all| {
                bar.set_length(all as u64);
                bar.set_position(done as u64);
            });
            bar.finish_and_clear();
            let info = info?;
            print(&info.text);
            return Ok(info.problems == 0);
        }
    }
    Ok(true)
}

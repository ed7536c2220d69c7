//! `grawa report`: runs side by side on one page.

use crate::failure::Failure;
use crate::output::print;
use clap::Args;
use grawa_lab::report;
use std::path::PathBuf;

/// Put runs side by side on one page: curves, weights, times, tables, and in what their recipes differ.
///
/// The page is one file that opens in any browser and fetches nothing. Curves can be hovered, smoothed, put on a log scale, and
/// switched off by method; the weights β of every round are lines, or for LGRAWA a map of layers and rounds. Runs that are not
/// finished are shown as far as they have come. All runs must share a metric, such as the test error on the same data.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  grawa report runs/lgrawa runs/easgd --out report.html\n  grawa report runs/* --out report.html\n  grawa report out/table1/runs/*final* --out table1.html"
)]
pub(crate) struct Arguments {
    /// Folders of runs, as `grawa train --out` and `grawa lab` (in DIR/runs) leave them
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,
    /// The page; a file that is there already is not overwritten
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let runs = report::read(&arguments.runs)?;
    let html = report::html(&runs)?;
    report::write(&arguments.out, &html)?;
    let (count, size) = (runs.len(), html.len().div_ceil(1000));
    print(&format!(
        "{} holds {count} run{} in {size} kB",
        arguments.out.display(),
        if count == 1 { "" } else { "s" }
    ));
    Ok(())
}

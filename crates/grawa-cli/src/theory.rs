//! `grawa theory`: the numerical experiments behind docs/theory.md.

use crate::bar::bar;
use crate::failure::Failure;
use crate::output::print;
use clap::Args;
use grawa_toy::Folder;
use grawa_toy::theory::{PARTS, Scale, run as experiments, settings};
use std::path::PathBuf;

/// What the theory says and what really happens: the experiments behind docs/theory.md.
///
/// On noisy strongly convex problems: the error floor under a constant step and the rate under a falling one; how
/// often the centre is really no worse than the best worker; and the statements of the paper that do not hold, as
/// numbers. Prints the tables; writes them as CSV and Markdown, the pictures as SVG and PNG, and one page with all of them.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The short form, a second or two: the same tables with wider errors
    #[arg(long)]
    quick: bool,
    /// Folder for the results; must be new, empty, or hold the same results [default: out/theory, or the next free name]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let scale = if arguments.quick { Scale::Quick } else { Scale::Full };
    let mut folder = Folder::claim_or_next(arguments.out.as_deref(), "out/theory", &settings(scale))?;
    let bar = bar(PARTS, "theory");
    let theory = experiments(scale, |name| {
        bar.set_message(name);
        bar.inc(1);
    })?;
    bar.finish_and_clear();
    theory.put(&mut folder)?;
    let path = folder.finish()?;
    theory.tables.iter().for_each(|table| print(&table.text()));
    print(&format!("Tables and pictures: {}", path.join("index.html").display()));
    Ok(())
}

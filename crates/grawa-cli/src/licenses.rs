//! `grawa licenses`: the licences of the program and of everything in it.

use crate::failure::Failure;
use crate::output::print;
use clap::Args;

/// What is in the program besides its own code and the crates.
const PARTS: &str = include_str!("../licenses/parts.txt");
/// Every crate in the program and its licence; written and checked by `tests/dependencies.rs`, as is the file of texts.
const CRATES: &str = include_str!("../licenses/crates.txt");
/// The texts of all licences and notices.
const TEXTS: &str = include_str!("../licenses/texts.txt");

/// The licences of the program and of everything in it.
///
/// Without options: every crate and its licence. With --full: the texts.
#[derive(Args)]
#[command(after_help = "Examples:\n  grawa licenses\n  grawa licenses --full > LICENSES")]
pub(crate) struct Arguments {
    /// Print the texts of all licences and notices
    #[arg(long)]
    full: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.full {
        print(TEXTS.trim_end());
        return Ok(());
    }
    print(&format!(
        "grawa {}, (c) the grawa developers: MIT OR Apache-2.0\n\n{PARTS}\n{CRATES}\nTheir texts: grawa licenses --full",
        env!("CARGO_PKG_VERSION")
    ));
    Ok(())
}

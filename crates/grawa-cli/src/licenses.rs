//! `grawa licenses`: the licences of the program and of everything in it.

use crate::failure::Failure;
use crate::output::print;
use clap::Args;

/// Every crate in the program and its licence; written and checked by `tests/dependencies.rs`, as is the other file.
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
        "grawa {}, (c) the grawa developers: MIT OR Apache-2.0

In it, besides its own code:

Handwritten digits: E. Alpaydın and C. Kaynak, \"Optical Recognition of Handwritten Digits\" (1998), UCI Machine Learning
Repository, https://doi.org/10.24432/C50P49: CC BY 4.0, https://creativecommons.org/licenses/by/4.0/. Its test set, as
scikit-learn ships it; pixels and labels are unchanged, the packing is ours.

The font of the pictures: Grawa Sans, a renamed subset of DejaVu Sans: the licence of Bitstream Vera and Arev fonts.

The Rust standard library, (c) the Rust project contributors: MIT OR Apache-2.0

{}
Their texts: grawa licenses --full",
        env!("CARGO_PKG_VERSION"),
        CRATES
    ));
    Ok(())
}

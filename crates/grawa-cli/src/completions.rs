//! `grawa completions`: a script that completes commands and options in a shell.

use crate::failure::Failure;
use crate::output::print;
use clap::{Args, Command};
use clap_complete::Shell;

/// Print a script that completes commands and options in your shell
#[derive(Args)]
#[command(
    after_help = "Examples:\n  grawa completions bash > ~/.local/share/bash-completion/completions/grawa\n  grawa completions zsh > ~/.zfunc/_grawa          (a folder of $fpath)\n  grawa completions fish > ~/.config/fish/completions/grawa.fish"
)]
pub(crate) struct Arguments {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(arguments: &Arguments, command: &mut Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, command, "grawa", &mut script);
    print(String::from_utf8_lossy(&script).trim_end());
    Ok(())
}

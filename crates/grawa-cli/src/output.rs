//! Standard output and standard error, which may be closed pipes.

use std::io::{ErrorKind, Write};

/// Prints a line. A reader that closed its end, as `head` does, is no error: the work continues.
pub(crate) fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = writeln!(out, "{text}").and_then(|()| out.flush())
        && error.kind() != ErrorKind::BrokenPipe
    {
        warn(&format!("error: cannot write to standard output: {error}"));
        std::process::exit(1);
    }
}

/// Prints a line to standard error. Failing to do so is no error.
pub(crate) fn warn(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

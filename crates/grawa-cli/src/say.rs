//! Standard output that may be a closed pipe.

use std::io::{ErrorKind, Write};

/// Prints a line. A reader that closed its end, as `head` does, ends the program quietly.
pub(crate) fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = writeln!(out, "{text}").and_then(|()| out.flush()) {
        if error.kind() != ErrorKind::BrokenPipe {
            eprintln!("error: cannot write to standard output: {error}");
        }
        std::process::exit(if error.kind() == ErrorKind::BrokenPipe { 0 } else { 1 });
    }
}

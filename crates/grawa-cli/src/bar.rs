//! A progress bar with the time left, on a terminal; nothing elsewhere.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar of `length` parts.
pub(crate) fn bar(length: u64, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {percent:>3} %  {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(length).with_style(style).with_message(what)
}

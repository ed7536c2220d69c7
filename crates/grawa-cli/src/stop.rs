//! Signals that ask a command to stop: Ctrl-C, or SIGTERM.

use crate::failure::Failure;
use std::time::{Duration, Instant};

/// One request may arrive as several signals: `timeout`, Slurm and supervisors send them to a process and to its group. Signals within
/// this time of the first one are the same request.
const SAME: Duration = Duration::from_secs(1);

/// Calls `ask` at the first signal. A signal a second or more later ends the process at once: the newest checkpoint is complete,
/// whatever is being written.
pub(crate) fn on_signal(ask: impl FnMut() + Send + 'static) -> Result<(), Failure> {
    on_signals(ask, || {})
}

/// The same; before the process ends `last` is called.
pub(crate) fn on_signals(
    mut ask: impl FnMut() + Send + 'static,
    last: impl Fn() + Send + 'static,
) -> Result<(), Failure> {
    let mut first: Option<Instant> = None;
    let watch = move || match first {
        None => {
            first = Some(Instant::now());
            ask();
        }
        Some(first) if is_impatience(first.elapsed()) => {
            last();
            std::process::exit(1)
        }
        Some(_) => {}
    };
    ctrlc::set_handler(watch).map_err(Failure::signals)
}

/// Whether a signal this long after the first one is another request.
fn is_impatience(later: Duration) -> bool {
    later >= SAME
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_comes_twice_is_one_request() {
        assert!(!is_impatience(Duration::ZERO) && !is_impatience(Duration::from_millis(999)));
        assert!(is_impatience(Duration::from_secs(1)));
    }
}

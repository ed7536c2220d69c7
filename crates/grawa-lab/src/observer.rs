//! An observer that calls a function with every event of a run.

use grawa_train::{Error, Event, Observer};

/// Calls a function with every event.
pub(crate) struct EventObserver<F>(pub(crate) F);

impl<F: FnMut(&Event) + Send> Observer for EventObserver<F> {
    fn event(&mut self, event: &Event) -> Result<(), Error> {
        (self.0)(event);
        Ok(())
    }
}

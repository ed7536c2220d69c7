//! An observer that calls a function with every event of a run.

use grawa_train::{Error, Event, Observer};

/// Calls a function with every event.
#[derive(Debug)]
pub struct EventObserver<F>(pub F);

impl<F: FnMut(&Event) + Send> Observer for EventObserver<F> {
    fn event(&mut self, event: &Event) -> Result<(), Error> {
        (self.0)(event);
        Ok(())
    }
}

//! Who receives the events of a run: files, a terminal, a page.

pub use grawa_session::event::*;

use crate::Error;

/// Receives the events of a run. An error ends the run: nothing is trained that is not recorded.
pub trait Observer: Send {
    /// Receives an event.
    fn event(&mut self, event: &Event) -> Result<(), Error>;
}

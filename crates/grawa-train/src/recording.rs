//! The recording of a run at a free pace, from its folder.

use crate::{Error, Recording};
use std::path::Path;

/// Reads the recording in a run's folder.
pub fn read_recording(folder: &Path) -> Result<Recording, Error> {
    let events = crate::observe::read(folder)?;
    let recording = Recording::of(events.iter().map(|(event, _)| event));
    match recording.rounds() {
        0 => Err(Error::NothingRecorded { path: folder.into() }),
        _ => Ok(recording),
    }
}

//! The files of a run's folder, as one observer.
//!
//! | file | what it holds | the same after a resume |
//! |---|---|---|
//! | `events.jsonl` | what happened | yes |
//! | `metrics.csv` | the same as a table | yes |
//! | `about.toml` | program, commit, machine | no |
//! | `journal.jsonl` | when, where the time went, sessions, checkpoints | no |
//! | `tensorboard/` | curves for TensorBoard, which have a time of day | no |

use super::about::{ABOUT, About};
use super::appended::Appended;
use super::log::{self, Log};
use super::{METRICS, TENSORBOARD, metrics, tensorboard};
use crate::checkpoint::io;
use crate::{Error, Event, Observer, durable};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// All files of a run's folder but its checkpoints.
#[derive(Debug)]
pub struct Files {
    log: Log,
    metrics: Appended,
    board: Appended,
}

impl Files {
    /// New files in a run's folder that has none yet.
    pub fn create(folder: &Path, about: &About) -> Result<Self, Error> {
        let now = now();
        // The log first: it refuses a folder that has one.
        let log = Log::create(folder)?;
        let path = folder.join(ABOUT);
        let file = File::create_new(&path);
        let written = file.and_then(|mut file| file.write_all(about.to_toml(now).as_bytes()));
        written.map_err(io("write", &path))?;
        let (metrics, board) = (metrics::create(folder, [])?, tensorboard::create(folder, [], now)?);
        Ok(Files { log, metrics, board })
    }

    /// Checks that the record in a folder can be truncated to a checkpoint, or that there is none. Nothing is changed.
    pub fn check(folder: &Path, checkpoint: &Path) -> Result<(), Error> {
        match [log::EVENTS, log::JOURNAL].map(|name| fs::symlink_metadata(folder.join(name)).is_ok()) {
            [true, _] => Log::back_to(folder, checkpoint).map(|_| ()),
            [false, false] => Ok(()),
            [false, true] => {
                let why = "it belongs to events.jsonl, which is missing";
                Err(Error::Damaged { path: folder.join(log::JOURNAL), line: 1, why: why.into() })
            }
        }
    }

    /// Renames the record of a run, `events.jsonl` to `events.jsonl.aside-1` and so on, so that another can begin.
    /// Nothing is overwritten. Returns the number in the names, or nothing if there is no record.
    pub fn set_aside(folder: &Path) -> Result<Option<u32>, Error> {
        let is_there = |path: &Path| fs::symlink_metadata(path).is_ok();
        let names = [log::EVENTS, log::JOURNAL, METRICS, ABOUT, TENSORBOARD];
        let aside = |name: &str, number: u32| folder.join(format!("{name}.aside-{number}"));
        let there: Vec<&str> = names.into_iter().filter(|name| is_there(&folder.join(name))).collect();
        let is_free = |number: &u32| names.iter().all(|name| !is_there(&aside(name, *number)));
        let Some(number) = (1..).find(is_free).filter(|_| !there.is_empty()) else { return Ok(None) };
        for name in there {
            let path = folder.join(name);
            durable::rename(&path, &aside(name, number)).map_err(io("rename", &path))?;
        }
        durable::sync(folder).map_err(io("write", folder))?;
        Ok(Some(number))
    }

    /// The files of a run, truncated to a checkpoint of it.
    pub fn resume(folder: &Path, checkpoint: &Path) -> Result<Self, Error> {
        Files::after(folder, Log::resume(folder, checkpoint)?)
    }

    /// The files of a run that is continued by another coordinator: only an incomplete last line is removed.
    pub fn reopen(folder: &Path) -> Result<Self, Error> {
        Files::after(folder, Log::reopen(folder, now())?)
    }

    fn after(folder: &Path, log: Log) -> Result<Self, Error> {
        let so_far = log::read(folder)?;
        Ok(Files {
            log,
            metrics: metrics::create(folder, so_far.iter().map(|(event, _)| event))?,
            board: tensorboard::create(folder, &so_far, so_far.first().map_or(0.0, |(_, wall)| *wall))?,
        })
    }
}

impl Observer for Files {
    fn event(&mut self, event: &Event) -> Result<(), Error> {
        // The folder itself shows it.
        if matches!(event, Event::CheckpointWritten { .. }) {
            return Ok(());
        }
        let now = now();
        self.metrics.append(metrics::rows(event).as_bytes())?;
        self.board.append(&tensorboard::records(event, now))?;
        // Last: after a checkpoint all that belongs to it is there.
        self.log.write(event, now)
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::{EVENTS, METRICS, sample};
    use std::fs;

    fn tell(files: &mut Files, events: &[Event]) {
        for event in events {
            files.event(event).unwrap();
        }
    }

    /// Stopped after any event and resumed from its last checkpoint, a run leaves the same events and metrics.
    #[test]
    fn a_resumed_run_leaves_the_same_files() {
        let about = About::here("test", None);
        let events = sample::run("mgrawa", 2, 6);
        let whole = tempfile::tempdir().unwrap();
        tell(&mut Files::create(whole.path(), &about).unwrap(), &events);
        for stop in 2..events.len() {
            let folder = tempfile::tempdir().unwrap();
            let (at, checkpoint) = sample::last_checkpoint(&events[..stop]).unwrap();
            tell(&mut Files::create(folder.path(), &about).unwrap(), &events[..stop]);
            let mut files = Files::resume(folder.path(), checkpoint).unwrap();
            files.event(&sample::resumed(&events)).unwrap();
            tell(&mut files, &events[at + 1..]);
            for name in [EVENTS, METRICS] {
                let read = |folder: &Path| fs::read_to_string(folder.join(name)).unwrap();
                assert_eq!(read(folder.path()), read(whole.path()), "{name} after {stop}");
            }
        }
        let again = Files::create(whole.path(), &about).unwrap_err().to_string();
        assert!(again.contains("cannot create"), "{again}");
        let (_, checkpoint) = sample::last_checkpoint(&events).unwrap();
        Files::check(whole.path(), checkpoint).unwrap();
        fs::remove_file(whole.path().join(EVENTS)).unwrap();
        let missing = Files::check(whole.path(), checkpoint).unwrap_err().to_string();
        assert!(missing.contains("events.jsonl, which is missing"), "{missing}");
    }
}

//! The supervisor of a run: the thread that starts the loop of the workers, passes its events to the observers, writes checkpoints, and
//! finds out how the run ended.

use crate::Error;
use crate::checkpoint::Writer;
use crate::event::{Event, Fault, Finished, Observer, Place};
use crate::process::{Common, Note, Process};
use crate::run::{Launch, milestones};
use crate::snapshot::{BestModel, Pending, Snapshot};
use grawa_session::OwnReports;
use grawa_session::process::broke_down;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender};

/// The supervisor of a run.
pub(crate) struct Supervisor<'a> {
    launch: &'a Launch,
    observers: &'a mut [Box<dyn Observer>],
    written: Sender<()>,
    place: Place,
    /// Why the run must fail: the first reason counts.
    failure: Option<Error>,
    /// Why the last checkpoint was not written.
    unwritten: Option<Error>,
    has_written: bool,
    /// Those of this process to the coordinator.
    reports: OwnReports,
}

impl<'a> Supervisor<'a> {
    pub(crate) fn new(
        launch: &'a Launch,
        observers: &'a mut [Box<dyn Observer>],
        written: Sender<()>,
        place: Place,
    ) -> Self {
        let has_written = launch.resumed;
        let (failure, unwritten, reports) = (None, None, OwnReports::default());
        Supervisor { launch, observers, written, place, failure, unwritten, has_written, reports }
    }

    /// Lets the process run, until it has ended.
    pub(crate) fn over(
        mut self,
        mut process: Process,
        common: &Arc<Common>,
        inbox: &Receiver<Note>,
    ) -> Result<Finished, Error> {
        let notes = common.notes.clone();
        let work = move || {
            let first = process.workers.first().map_or(0, |worker| worker.id);
            let ended = catch_unwind(AssertUnwindSafe(|| process.run()));
            let ended = ended.unwrap_or_else(|panic| Err(broke_down(first, &*panic)));
            if let Err(error) = &ended {
                process.report_failure(error);
            }
            // Nothing of the workers is left when the run returns.
            drop(process);
            // The supervisor receives until then.
            let _ = notes.send(Note::Ended(ended));
        };
        (std::thread::Builder::new().name("grawa-process".into()).spawn(work))
            .map_err(|error| grawa_nn::Error::Threads { why: error.to_string() })?;
        let mut finished: Option<Finished> = None;
        let ended = loop {
            match inbox.recv() {
                Ok(Note::Own(event)) => {
                    if let Event::Finished(end) = &event {
                        finished = Some(end.clone());
                    }
                    self.tell(&event);
                }
                Ok(Note::Event(event)) => self.show(&event),
                Ok(Note::NotReported(error)) => self.fail(error.into()),
                Ok(Note::Snapshot(snapshot)) => self.keep(snapshot),
                Ok(Note::Best(best)) => self.keep_best(best),
                Ok(Note::Ended(ended)) => break ended,
                // The loop sends its end last.
                Err(_) => break Ok(()),
            }
        };
        match (self.failure.or(self.unwritten), ended, finished) {
            (Some(error), ..) => Err(error),
            (None, Err(error), _) => Err(error.into()),
            (None, Ok(()), Some(end)) => Ok(end),
            (None, Ok(()), None) => {
                let why = "the run ended without a result".into();
                Err(grawa_session::Error::NobodyLeft { why }.into())
            }
        }
    }

    /// Reports an event of this process.
    pub(crate) fn tell(&mut self, event: &Event) {
        if let Some(reporter) = &self.launch.reporter {
            let report = self.reports.next(event.clone());
            let sent = report.encode().and_then(|bytes| Ok(reporter.send(bytes)?));
            sent.unwrap_or_else(|error| self.fail(error.into()));
        }
        self.show(event);
    }

    /// Passes it to all observers.
    fn show(&mut self, event: &Event) {
        self.place = *event.place();
        self.inform(event);
    }

    /// The same for one that may be late: the run may stand elsewhere by now.
    fn inform(&mut self, event: &Event) {
        let failed: Vec<Error> =
            self.observers.iter_mut().filter_map(|observer| observer.event(event).err()).collect();
        failed.into_iter().for_each(|error| self.fail(error));
    }

    /// An event could not be recorded, and the run stops: nothing is trained that is not recorded.
    fn fail(&mut self, error: Error) {
        self.launch.stop.store(true, Ordering::Relaxed);
        self.failure.get_or_insert(error);
    }

    /// Writes the best model so far. If it cannot be written that is reported, and the run continues.
    fn keep_best(&mut self, best: Pending<BestModel>) {
        let Some(writer) = &self.launch.writer else { return };
        if let Err(error) = best.complete().map_err(Error::from).and_then(|best| writer.write_best(best)) {
            let what = format!("the best model was not kept: {error}; the run continues");
            self.tell(&Event::Fault(Fault { at: self.place, worker: None, what }));
        }
    }

    /// Writes a checkpoint. If it cannot be written that is reported, and the run continues: the older ones are still there. Without a
    /// first one the run does not start.
    fn keep(&mut self, snapshot: Pending<Snapshot>) {
        let launch = self.launch;
        if let Some(writer) = &launch.writer {
            let snapshot = snapshot.complete().map_err(Error::from);
            match snapshot.and_then(|snapshot| self.write(writer, snapshot)) {
                Ok(()) => {
                    self.has_written = true;
                    self.unwritten = None;
                }
                Err(error) if !self.has_written => self.fail(error),
                Err(error) => {
                    let what = format!("{error}; the run continues, and the checkpoint before is complete");
                    self.tell(&Event::Fault(Fault { at: self.place, worker: None, what }));
                    self.unwritten = Some(error);
                }
            }
        }
        // The worker that waits for this may be gone.
        let _ = self.written.send(());
    }

    fn write(&mut self, writer: &Writer, snapshot: Snapshot) -> Result<(), Error> {
        let milestones = milestones(&self.launch.recipe, self.launch.examples);
        let (at, path) = (milestones.place(&snapshot.at), writer.path(&snapshot));
        self.tell(&Event::Checkpoint { at, path });
        let path = writer.write(snapshot)?;
        // The coordinator has no use for a folder of this machine.
        self.inform(&Event::CheckpointWritten { at, path });
        Ok(())
    }
}

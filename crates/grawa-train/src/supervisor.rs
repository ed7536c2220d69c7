//! The supervisor of a run: the thread that starts the workers, passes their events to the observers, writes checkpoints, and finds out
//! how the run ended.

use crate::Error;
use crate::event::{Event, Fault, Finished, Observer, Place};
use crate::event_codec::Report;
use crate::milestones::Milestones;
use crate::run::Launch;
use crate::snapshot::Snapshot;
use crate::worker::{Common, Note, Worker};
use grawa_comm::Collective;
use grawa_core::Replica;
use std::hash::{BuildHasher, Hasher};
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
    /// A random number of this process, and how many reports it has sent to the coordinator.
    sender: u64,
    reported: u64,
}

impl<'a> Supervisor<'a> {
    pub(crate) fn new(
        launch: &'a Launch,
        observers: &'a mut [Box<dyn Observer>],
        written: Sender<()>,
        place: Place,
    ) -> Self {
        let has_written = launch.resumed;
        let sender = std::hash::RandomState::new().build_hasher().finish();
        let (failure, unwritten, reported) = (None, None, 0);
        Supervisor { launch, observers, written, place, failure, unwritten, has_written, sender, reported }
    }

    pub(crate) fn over<R, C>(
        mut self,
        workers: Vec<Worker<R, C>>,
        common: &Arc<Common>,
        inbox: &Receiver<Note>,
    ) -> Result<Finished, Error>
    where
        R: Replica + Send + 'static,
        C: Collective<Buffer = R::Buffer> + Send + 'static,
    {
        let mut running: Vec<u32> = Vec::new();
        let mut threads = Vec::new();
        for mut worker in workers {
            let (id, notes) = (worker.id, common.notes.clone());
            let work = move || {
                let run = std::panic::AssertUnwindSafe(|| worker.run());
                let why = std::panic::catch_unwind(run).unwrap_or_else(|panic| {
                    let why = panic.downcast_ref::<String>().cloned();
                    let why = why.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
                    Err(Error::BrokeDown { worker: id, why: why.unwrap_or_default() })
                });
                // A worker that is done is dropped before its note is sent, so that nothing of it is left when the run returns. One that
                // failed is dropped after: as soon as it leaves its groups, the others may end the run, and the failure must be known.
                let failed = why.is_err().then_some(worker);
                // The supervisor receives until all have ended.
                let _ = notes.send(Note::Ended { worker: id, why });
                drop(failed);
            };
            let thread = std::thread::Builder::new().name(format!("grawa-worker-{id}")).spawn(work);
            // Workers that were not started are dropped; to the others they have left.
            threads.push(thread.map_err(|error| grawa_nn::Error::Threads { why: error.to_string() })?);
            running.push(id);
        }
        let mut finished: Option<Finished> = None;
        let mut reasons = Vec::new();
        // A worker that stalled never ends; it is not waited for when all others are done.
        let done = |running: &[u32], finished: &Option<Finished>| match finished {
            None => running.is_empty(),
            Some(end) => !end.workers.iter().any(|share| running.contains(&share.worker)),
        };
        while !done(&running, &finished) {
            match inbox.recv() {
                Ok(Note::Event(event)) => match &event {
                    Event::Finished(end) => {
                        finished = Some(end.clone());
                        self.tell(&event);
                    }
                    _ => self.show(&event),
                },
                Ok(Note::NotReported(error)) => self.fail(error),
                Ok(Note::Snapshot(snapshot)) => self.keep(*snapshot),
                Ok(Note::Ended { worker, why }) => {
                    running.retain(|&other| other != worker);
                    if let Err(error) = why {
                        self.report_failure(worker, &error);
                        reasons.push(error);
                    }
                }
                Err(_) => break,
            }
        }
        for thread in threads.into_iter().filter(std::thread::JoinHandle::is_finished) {
            // It has ended, and sent its result.
            let _ = thread.join();
        }
        match (self.failure.or(self.unwritten), finished) {
            (Some(error), _) => Err(error),
            (None, Some(end)) => Ok(end),
            (None, None) if reasons.len() == 1 => Err(reasons.swap_remove(0)),
            (None, None) => {
                let why: Vec<String> = reasons.iter().map(ToString::to_string).collect();
                Err(Error::NobodyLeft { why: why.join("; ") })
            }
        }
    }

    /// Reports an event of this process.
    pub(crate) fn tell(&mut self, event: &Event) {
        if let Some(teller) = &self.launch.teller {
            self.reported += 1;
            let report = Report::Own { sender: self.sender, number: self.reported, event: event.clone() };
            let sent = report.encode().and_then(|bytes| Ok(teller.report(bytes)?));
            sent.unwrap_or_else(|error| self.fail(error));
        }
        self.show(event);
    }

    /// Passes it to all observers.
    fn show(&mut self, event: &Event) {
        self.place = *event.place();
        let failed: Vec<Error> =
            self.observers.iter_mut().filter_map(|observer| observer.event(event).err()).collect();
        failed.into_iter().for_each(|error| self.fail(error));
    }

    /// An event could not be recorded, and the run stops: nothing is trained that is not recorded.
    fn fail(&mut self, error: Error) {
        self.launch.stop.store(true, Ordering::Relaxed);
        self.failure.get_or_insert(error);
    }

    /// Writes a checkpoint. If it cannot be written that is reported, and the run continues: the older ones are still there. Without a
    /// first one the run does not start.
    fn keep(&mut self, snapshot: Snapshot) {
        if let Some(writer) = &self.launch.writer {
            let path = writer.path(&snapshot);
            let milestones = Milestones::new(&self.launch.recipe, self.launch.examples);
            self.tell(&Event::Checkpoint { at: milestones.place(&snapshot.at), path });
            match writer.write(snapshot) {
                Ok(_) => {
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

    fn report_failure(&mut self, worker: u32, error: &Error) {
        let what = format!("worker {worker} is lost: {error}");
        self.tell(&Event::Fault(Fault { at: self.place, worker: Some(worker), what }));
    }
}

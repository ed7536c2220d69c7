//! Calls that wait for others: outside Python's lock, and with an ear for Ctrl-C.

use grawa_comm::Error as CommError;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

pyo3::create_exception!(
    grawa,
    GrawaError,
    PyRuntimeError,
    "Something that went wrong in a run; the text says what was found, what was expected, what to do."
);

pyo3::create_exception!(grawa, RunEnded, GrawaError, "The others have ended the run without this worker.");

/// How often Python's signals are looked at.
const POLL: Duration = Duration::from_millis(50);
/// After a Ctrl-C: how long a call may take before the user is told what it waits for.
const HINT: Duration = Duration::from_secs(2);

/// An error of a session.
pub(crate) fn failed(error: &grawa_session::Error) -> PyErr {
    use grawa_session::Error::{
        AnotherRun, Comm, Core, NoRate, NotElastic, NotInSession, StoppedEarly, WorkersDiffer, WrongRate,
        Zero,
    };
    match error {
        Core(_) | NotElastic { .. } | NotInSession { .. } | AnotherRun { .. } => wrong(error),
        WorkersDiffer { .. } | Zero { .. } | NoRate { .. } | WrongRate { .. } => wrong(error),
        Comm(CommError::Over) | StoppedEarly => RunEnded::new_err(error.to_string()),
        _ => GrawaError::new_err(error.to_string()),
    }
}

/// A wrong argument.
pub(crate) fn wrong<E: ToString>(error: E) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// A thread on which calls are carried out, one after the other: to start one takes as long as a small message to another process.
pub(crate) struct CallThread(Sender<Box<dyn FnOnce() + Send>>);

impl CallThread {
    /// It ends when this is dropped and the last call is over.
    pub(crate) fn start() -> std::io::Result<Self> {
        let (send, calls) = channel::<Box<dyn FnOnce() + Send>>();
        let thread = std::thread::Builder::new().name("grawa-call".into());
        thread.spawn(move || calls.iter().for_each(|call| call()))?;
        Ok(CallThread(send))
    }

    /// Does some work on the thread, and waits for it. Ctrl-C does not cut it short if it `must_end`: its exception is returned beside
    /// the result. Otherwise, and at a second Ctrl-C, the exception comes at once, and what the work returns is dropped. `meanwhile`
    /// is called here; an exception of it counts as a Ctrl-C.
    pub(crate) fn attend<T: Send + 'static>(
        &self,
        py: Python<'_>,
        must_end: bool,
        meanwhile: Option<&Bound<'_, PyAny>>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> PyResult<(T, Option<PyErr>)> {
        let (send, mut results) = channel();
        // If the thread is gone the work is dropped, and `send` with it.
        drop(self.0.send(Box::new(move || drop(send.send(work())))));
        let raised = meanwhile.and_then(|call| call.call0().err());
        let mut interrupted: Option<(PyErr, Instant)> = raised.map(|error| (error, Instant::now()));
        let mut has_hinted = false;
        loop {
            let waiting = &mut results;
            match py.detach(move || waiting.recv_timeout(POLL)) {
                Ok(result) => return Ok((result, interrupted.map(|(signal, _)| signal))),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(GrawaError::new_err(
                        "a thread of grawa panicked; this is a fault of the program",
                    ));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Err(signal) = py.check_signals() {
                if !must_end || interrupted.is_some() {
                    return Err(signal);
                }
                interrupted = Some((signal, Instant::now()));
            }
            if !has_hinted && interrupted.as_ref().is_some_and(|(_, since)| since.elapsed() > HINT) {
                has_hinted = true;
                eprintln!("grawa: waiting for the round to end; Ctrl-C again leaves at once");
            }
        }
    }
}

//! A session of `grawa-session`, as a class of Python.

use crate::attend::{CallThread, GrawaError, failed, wrong};
use crate::memory::{Array, write};
use crate::process_group::ProcessGroup;
use grawa_comm::group::{Joiner, Security};
use grawa_core::{Key, Layout};
use grawa_session::event::Event;
use grawa_session::{DataShard, Due, Error, LocalStep, RoundResult, Settings, Stop};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// What `grawa launch` asks of this process.
static LAUNCHER: OnceLock<Stop> = OnceLock::new();

/// A worker's part in a run.
#[pyclass(frozen, module = "grawa._native")]
pub(crate) struct Session {
    /// `None` once it has ended, and while a call has it.
    inner: Mutex<Option<grawa_session::Session>>,
    /// A call has it.
    is_lent: AtomicBool,
    /// Works also while a call has the session.
    stop: Stop,
    /// Asks all others to stop.
    ask: Box<dyn Fn() + Send + Sync>,
    /// The memory of the last round: fresh memory would cost a page fault for every 4 KB.
    spare: Mutex<Vec<f32>>,
    calls: CallThread,
    settings: Settings,
    is_alone: bool,
    process: u32,
}

/// Where the coordinator is: its address, the key's file, where to listen, and the host by which others reach this process.
type Place = (String, Option<String>, String, Option<String>);

/// A process group: what carries its operations out, the rank of this process, and how many there are.
type OwnGroup = (Py<PyAny>, u32, u32);

/// Joins the run of the command that has started this program, the one at `place`, or that of a process group. Without any the worker is
/// alone. `parameters` is an array of all numbers of the `tensors`, which are replaced by those that all start from.
#[pyfunction]
#[pyo3(signature = (*, method, tensors, parameters, budget, name, evaluate, batch, examples, seed, pace, wire, patience, wait=None, statistics=Vec::new(), buffers=None, place=None, checkpoint=None, process_group=None))]
#[allow(clippy::too_many_arguments)]
pub(crate) fn join(
    py: Python<'_>,
    method: &str,
    tensors: Vec<(String, Vec<usize>)>,
    parameters: Bound<'_, PyAny>,
    budget: &str,
    name: String,
    evaluate: Option<&str>,
    batch: u32,
    examples: usize,
    seed: u64,
    pace: &str,
    wire: &str,
    patience: f64,
    wait: Option<f64>,
    statistics: Vec<(String, Vec<usize>)>,
    buffers: Option<String>,
    place: Option<Place>,
    checkpoint: Option<Vec<u8>>,
    process_group: Option<OwnGroup>,
) -> PyResult<Session> {
    let layout = Layout::new(tensors).map_err(wrong)?;
    let array = Array::new(parameters, layout.len());
    let method = method.parse().map_err(|error: grawa_core::Error| wrong(error))?;
    let budget = budget.parse().map_err(|error: grawa_core::Error| wrong(error))?;
    let evaluate = evaluate.map(str::parse).transpose().map_err(|error: grawa_core::Error| wrong(error))?;
    let (pace, wire) = (pace.parse().map_err(wrong::<String>)?, wire.parse().map_err(wrong::<String>)?);
    let statistics = match statistics.is_empty() {
        true => None,
        false => Some(Layout::new(statistics).map_err(wrong)?),
    };
    let usual = Settings::new(method, layout, 1, budget);
    let patience = seconds("patience", patience)?;
    let wait = wait.map(|wait| seconds("wait", wait)).transpose()?;
    let settings =
        Settings { name, evaluate, batch, examples, seed, pace, wire, wait, statistics, buffers, ..usual };
    if std::env::var_os("GRAWA_LAUNCHED").is_some() {
        LAUNCHER.get_or_init(Stop::from_launcher);
    }
    let mut held = array.read()?;
    let work = move || {
        if let Some((carrier, rank, size)) = process_group {
            let settings = Settings { workers: size, ..settings };
            let session =
                grawa_session::Session::over(&ProcessGroup::new(carrier, rank, size), &settings, &mut held)?;
            return Ok((session, settings, held, false));
        }
        let joiner = match place {
            None => Joiner::from_environment_within(patience)?,
            Some((address, key, listen, host)) => {
                let security =
                    key.map_or(Ok(Security::Plain), |path| Security::with_key(Path::new(&path)))?;
                Some(Joiner::new(&address, security, &listen, host.as_deref(), patience)?)
            }
        };
        let is_alone = joiner.is_none();
        let (session, settings) = match joiner {
            Some(joiner) => {
                let settings = Settings { workers: joiner.founders, ..settings };
                let session =
                    grawa_session::Session::join_from(joiner, &settings, &mut held, checkpoint.as_deref());
                (session?, settings)
            }
            None => (grawa_session::Session::alone(&settings, &mut held)?, settings),
        };
        Ok::<_, Error>((session, settings, held, is_alone))
    };
    let calls = CallThread::start()?;
    let (joined, _) = calls.attend(py, false, None, work)?;
    let (session, settings, held, is_alone) = joined.map_err(|error| failed(&error))?;
    write(&[array], &held)?;
    let (stop, ask, is_lent) = (session.stop(), Box::new(session.asker()), AtomicBool::new(false));
    let (inner, spare) = (Mutex::new(Some(session)), Mutex::default());
    Ok(Session { inner, is_lent, stop, ask, spare, calls, settings, is_alone, process: std::process::id() })
}

fn seconds(name: &str, number: f64) -> PyResult<Duration> {
    let time = Duration::try_from_secs_f64(number).ok().filter(|time| !time.is_zero() || name != "wait");
    time.ok_or_else(|| wrong(format!("{name} is {number}; a positive number of seconds is expected")))
}

/// How a round went: the round as JSON, who took part, the other events as JSON, whether the parameters were replaced, whether there is
/// no connection, a warning.
type Held = (Option<String>, Vec<u32>, Vec<String>, bool, bool, Option<String>);

#[pymethods]
impl Session {
    /// What is due: step, round, evaluate or end.
    fn due(&self) -> PyResult<&'static str> {
        self.look(|session| word(session.due()))
    }

    /// The number of this worker.
    fn worker(&self) -> PyResult<u32> {
        self.look(grawa_session::Session::worker)
    }

    /// Workers that the run begins with.
    fn workers(&self) -> u32 {
        self.settings.workers
    }

    /// Whether there are no others: no coordinator was found.
    fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// The workers of the last round; after the last one those that have the final model.
    fn members(&self) -> PyResult<Vec<u32>> {
        self.look(grawa_session::Session::members)
    }

    /// Whether the run has ended for this worker without the others.
    fn has_ended_alone(&self) -> PyResult<bool> {
        self.look(grawa_session::Session::has_ended_alone)
    }

    /// Whether that is because the others have ended the run without this worker.
    fn has_missed_end(&self) -> PyResult<bool> {
        self.look(grawa_session::Session::has_missed_end)
    }

    /// Whether all were asked to stop together.
    fn is_stopping(&self) -> PyResult<bool> {
        self.hear_launcher()?;
        self.look(grawa_session::Session::is_stopping)
    }

    /// Ends the run with all others, in the place of what is due, after all were asked to stop.
    fn end_stopped(&self, py: Python<'_>) -> PyResult<()> {
        let ((), signal) = self.with(py, None, grawa_session::Session::end_stopped)?;
        signal.map_or(Ok(()), Err)
    }

    /// Whether each step needs the norm of each tensor's gradient.
    fn wants_norms(&self) -> PyResult<bool> {
        self.look(grawa_session::Session::wants_norms)
    }

    /// Whether workers are scored by their losses.
    fn wants_loss(&self) -> bool {
        matches!(self.settings.method.score, grawa_core::Score::Loss { .. })
    }

    /// The seed of the batch that scores this worker in the next round, and whether dropout is on; `None` if the method scores none.
    fn score_batch(&self) -> PyResult<Option<(u64, bool)>> {
        self.look(|session| session.score_batch().map(|batch| (seed_of(batch.key), batch.dropout)))
    }

    /// Which examples this worker reads next: its shard, of how many, and the batch; or those after `taken` steps of its own.
    #[pyo3(signature = (taken=None))]
    fn shard(&self, taken: Option<u64>) -> PyResult<(u32, u32, u64)> {
        self.look(|session| {
            let taken = taken.unwrap_or_else(|| session.steps_taken());
            let DataShard { shard, of, step } = session.shard_after(taken);
            (shard, of, step)
        })
    }

    /// How many steps this worker has taken in all.
    fn steps_taken(&self) -> PyResult<u64> {
        self.look(grawa_session::Session::steps_taken)
    }

    /// Steps, epochs, seconds, and the share of the budget.
    fn progress(&self) -> PyResult<(u64, f64, f64, f64)> {
        let budget = self.settings.budget;
        self.look(|session| {
            let at = session.progress();
            (at.steps, at.epochs, at.elapsed.as_secs_f64(), budget.share(&at).min(1.0))
        })
    }

    /// The strength of the pull toward the centre after each step; 0 where the method has none.
    fn prox(&self) -> PyResult<f32> {
        self.look(grawa_session::Session::prox)
    }

    /// Writes the centre to an array.
    fn centre(&self, out: Bound<'_, PyAny>) -> PyResult<()> {
        let centre = self.look(grawa_session::Session::centre)?;
        write(&[Array::new(out, centre.len())], &centre)
    }

    /// Counts a step. Returns what is due.
    fn step(&self, loss: f64, norms: Vec<f64>, rate: Option<f64>) -> PyResult<&'static str> {
        self.check_process()?;
        let rate = self.rate_of(rate)?;
        self.hear_launcher()?;
        let mut place = self.place()?;
        let due = place.as_mut().ok_or_else(|| self.absent())?.step(LocalStep { loss, norms: &norms, rate });
        due.map(word).map_err(|error| failed(&error))
    }

    /// Counts a step whose loss and norms come later. Returns what is due.
    fn step_unmeasured(&self, rate: Option<f64>) -> PyResult<&'static str> {
        self.check_process()?;
        let rate = self.rate_of(rate)?;
        self.hear_launcher()?;
        let mut place = self.place()?;
        let due = place.as_mut().ok_or_else(|| self.absent())?.step_unmeasured(rate);
        due.map(word).map_err(|error| failed(&error))
    }

    /// The losses of steps, and the norms of each, in their order.
    fn measured(&self, losses: Vec<f64>, norms: Vec<Vec<f64>>) -> PyResult<()> {
        self.check_process()?;
        let mut place = self.place()?;
        let session = place.as_mut().ok_or_else(|| self.absent())?;
        let none = Vec::new();
        for (at, loss) in losses.into_iter().enumerate() {
            session.measured(loss, norms.get(at).unwrap_or(&none)).map_err(|error| failed(&error))?;
        }
        Ok(())
    }

    /// Holds a round with all workers. The parameters, given as arrays and the length of each, are pulled in place. `meanwhile` is
    /// called while the round is held.
    #[pyo3(signature = (scores, arrays, meanwhile=None))]
    fn round(
        &self,
        py: Python<'_>,
        scores: Vec<f64>,
        arrays: Vec<(Bound<'_, PyAny>, usize)>,
        meanwhile: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Held> {
        self.check_process()?;
        self.hear_launcher()?;
        let arrays: Vec<Array<'_>> = arrays.into_iter().map(|(array, len)| Array::new(array, len)).collect();
        let (found, expected) = (arrays.iter().map(Array::len).sum::<usize>(), self.settings.layout.len());
        if found != expected {
            return Err(wrong(format!(
                "the arrays have {found} numbers in all, where {expected} are expected"
            )));
        }
        let spare = || self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let mut parameters = std::mem::take(&mut *spare());
        parameters.clear();
        arrays.iter().try_for_each(|array| array.append_to(&mut parameters))?;
        let ((result, parameters, members), signal) = self.with(py, meanwhile, move |session| {
            let result = session.round_owned(&scores, &mut parameters);
            result.map(|result| (result, parameters, session.members()))
        })?;
        write(&arrays, &parameters).map_err(|error| {
            GrawaError::new_err(format!(
                "the parameters were moved, resized or replaced while a round was held, so its result is lost: {error}; \
                 let no other thread do so"
            ))
        })?;
        *spare() = parameters;
        signal.map_or(Ok(()), Err)?;
        let RoundResult { round, was_replaced, is_alone, events, warning } = result;
        let text = |event: &Event| serde_json::to_string(event).map_err(wrong);
        let round = round.map(|round| text(&Event::Round(round))).transpose()?;
        Ok((
            round,
            members,
            events.iter().map(text).collect::<PyResult<_>>()?,
            was_replaced,
            is_alone,
            warning,
        ))
    }

    /// Writes the evaluated model to `out`, and the average of all workers' statistics over this one's. False if this worker lost its
    /// connection meanwhile.
    #[pyo3(signature = (parameters, out, statistics=None))]
    fn evaluated_model<'py>(
        &self,
        py: Python<'py>,
        parameters: Bound<'py, PyAny>,
        out: Bound<'py, PyAny>,
        statistics: Option<Bound<'py, PyAny>>,
    ) -> PyResult<bool> {
        let len = self.settings.layout.len();
        let counts = match (&self.settings.statistics, statistics) {
            (None, None) => None,
            (Some(layout), Some(array)) => Some(Array::new(array, layout.len())),
            (Some(layout), None) => {
                return Err(wrong(format!(
                    "the session was given statistics, {} numbers in all: pass this worker's to evaluated_model",
                    layout.len()
                )));
            }
            (None, Some(_)) => {
                return Err(wrong(
                    "the session was given no statistics to average: name them when it is made, or pass none",
                ));
            }
        };
        let own = counts.as_ref().map_or(Ok(Vec::new()), Array::read)?;
        let parameters = Array::new(parameters, len).read()?;
        let (made, signal) = self.with(py, None, move |session| session.evaluate(&parameters, &own))?;
        signal.map_or(Ok(()), Err)?;
        let Some(made) = made else { return Ok(false) };
        write(&[Array::new(out, len)], &made.parameters)?;
        counts.map_or(Ok(()), |counts| write(&[counts], &made.statistics))?;
        Ok(true)
    }

    /// What a group needs to continue if all of its workers are lost.
    fn checkpoint<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let bytes = self.look(grawa_session::Session::checkpoint)?.map_err(|error| failed(&error))?;
        Ok(bytes.map(|bytes| PyBytes::new(py, &bytes)))
    }

    /// Asks this worker to stop within a step; with `together` all of them. From any thread, also while a round is held.
    fn stop(&self, together: bool) -> PyResult<()> {
        self.check_process()?;
        let is_first_time = together && !self.stop.together.swap(true, Ordering::Relaxed);
        self.stop.asked.store(true, Ordering::Relaxed);
        if is_first_time {
            (self.ask)();
        }
        Ok(())
    }

    /// Reports the end, which must be due. Returns the workers that were there.
    fn finish(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        self.check_process()?;
        let session = self.place()?.take().ok_or_else(|| self.absent())?;
        let (finished, signal) = self.calls.attend(py, true, None, move || session.finish_with_members())?;
        signal.map_or(Ok(()), Err)?;
        finished.map(|(_, members)| members).map_err(|error| failed(&error))
    }

    /// Leaves the run; the others continue.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        self.check_process()?;
        if let Some(session) = self.place()?.take() {
            self.calls.attend(py, false, None, move || drop(session))?;
        }
        Ok(())
    }
}

impl Session {
    fn place(&self) -> PyResult<MutexGuard<'_, Option<grawa_session::Session>>> {
        match self.inner.try_lock() {
            Ok(place) => Ok(place),
            Err(std::sync::TryLockError::Poisoned(place)) => Ok(PoisonError::into_inner(place)),
            Err(std::sync::TryLockError::WouldBlock) => {
                Err(GrawaError::new_err("another thread uses this session; a session belongs to one thread"))
            }
        }
    }

    /// Why the session is not there.
    fn absent(&self) -> PyErr {
        GrawaError::new_err(match self.is_lent.load(Ordering::Relaxed) {
            true => "another thread holds a round of this session; meanwhile only stop() can be called",
            false => "this session is over: the run has ended, or it was left",
        })
    }

    fn check_process(&self) -> PyResult<()> {
        if self.process == std::process::id() {
            return Ok(());
        }
        Err(GrawaError::new_err(
            "this session belongs to the process that this one was forked from: threads and connections do not survive a fork; \
             join in the process that trains, after forking",
        ))
    }

    /// The rate of a step, which some methods need.
    fn rate_of(&self, rate: Option<f64>) -> PyResult<f64> {
        let method = &self.settings.method;
        match rate {
            None if method.goes_by_rate() => Err(failed(&Error::NoRate { method: method.to_string() })),
            rate => Ok(rate.unwrap_or(0.0)),
        }
    }

    fn look<T>(&self, look: impl FnOnce(&grawa_session::Session) -> T) -> PyResult<T> {
        self.check_process()?;
        Ok(look(self.place()?.as_ref().ok_or_else(|| self.absent())?))
    }

    /// Calls the session on another thread. If Ctrl-C came meanwhile, its exception is there beside the result.
    fn with<T: Send + 'static>(
        &self,
        py: Python<'_>,
        meanwhile: Option<&Bound<'_, PyAny>>,
        call: impl FnOnce(&mut grawa_session::Session) -> Result<T, Error> + Send + 'static,
    ) -> PyResult<(T, Option<PyErr>)> {
        self.check_process()?;
        let mut session = self.place()?.take().ok_or_else(|| self.absent())?;
        let work = move || {
            let result = call(&mut session);
            (session, result)
        };
        self.is_lent.store(true, Ordering::Relaxed);
        let attended = self.calls.attend(py, true, meanwhile, work);
        self.is_lent.store(false, Ordering::Relaxed);
        let ((session, result), signal) = attended?;
        *self.place()? = Some(session);
        match (result, signal) {
            (Ok(result), signal) => Ok((result, signal)),
            (Err(_), Some(signal)) => Err(signal),
            (Err(error), None) => Err(failed(&error)),
        }
    }

    /// Stops where the launcher asks for it.
    fn hear_launcher(&self) -> PyResult<()> {
        match LAUNCHER.get() {
            Some(launcher) if launcher.asked.load(Ordering::Relaxed) => self.stop(true),
            _ => Ok(()),
        }
    }
}

impl Drop for Session {
    /// A process that was forked from a worker's is no worker: its copy of the session is forgotten, with its threads and connections.
    fn drop(&mut self) {
        if self.process != std::process::id() {
            std::mem::forget(std::mem::take(&mut self.inner));
        }
    }
}

/// A seed that Python draws a score batch with.
pub(crate) fn seed_of(key: Key) -> u64 {
    key.stream().below(1 << 63)
}

fn word(due: Due) -> &'static str {
    match due {
        Due::Step => "step",
        Due::Round => "round",
        Due::Evaluate => "evaluate",
        Due::End => "end",
    }
}

/// The order in which all workers read the examples of a training set.
#[pyclass(module = "grawa._native")]
pub(crate) struct ExampleOrder(grawa_session::ExampleOrder);

#[pymethods]
impl ExampleOrder {
    #[new]
    fn new(seed: u64, examples: u32) -> Self {
        ExampleOrder(grawa_session::ExampleOrder::new(seed, examples))
    }

    /// The examples of a batch of so many.
    fn batch(&mut self, shard: u32, of: u32, step: u64, size: u32) -> Vec<u32> {
        self.0.batch(DataShard { shard, of, step }, size)
    }
}

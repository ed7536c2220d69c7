//! A session of `grawa-session`, as a class of Python.

use crate::attend::{CallThread, GrawaError, failed, wrong};
use crate::memory::Numbers;
use crate::process_group::ProcessGroup;
use grawa_comm::group::{Joiner, Security};
use grawa_core::{Key, Layout};
use grawa_session::event::Event;
use grawa_session::{DataShard, Due, Error, LocalStep, RoundResult, Settings, Stop};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// What `grawa launch` asks of this process.
static LAUNCHER: OnceLock<Stop> = OnceLock::new();

/// A worker's part in a run.
#[pyclass(frozen, module = "grawa._native")]
pub(crate) struct Session {
    /// `None` once it has ended.
    inner: Mutex<Option<grawa_session::Session>>,
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
/// alone. `parameters` is the address of all numbers of the `tensors`, which are replaced by those that all start from.
#[pyfunction]
#[pyo3(signature = (*, method, tensors, parameters, budget, name, evaluate, batch, examples, seed, pace, wire, patience, statistics=Vec::new(), place=None, checkpoint=None, process_group=None))]
#[allow(clippy::too_many_arguments)]
pub(crate) fn join(
    py: Python<'_>,
    method: &str,
    tensors: Vec<(String, Vec<usize>)>,
    parameters: usize,
    budget: &str,
    name: String,
    evaluate: Option<&str>,
    batch: u32,
    examples: usize,
    seed: u64,
    pace: &str,
    wire: &str,
    patience: f64,
    statistics: Vec<(String, Vec<usize>)>,
    place: Option<Place>,
    checkpoint: Option<Vec<u8>>,
    process_group: Option<OwnGroup>,
) -> PyResult<Session> {
    let layout = Layout::new(tensors).map_err(wrong)?;
    let numbers = Numbers { address: parameters, len: layout.len() };
    let method = method.parse().map_err(|error: grawa_core::Error| wrong(error))?;
    let budget = budget.parse().map_err(|error: grawa_core::Error| wrong(error))?;
    let evaluate = evaluate.map(str::parse).transpose().map_err(|error: grawa_core::Error| wrong(error))?;
    let (pace, wire) = (pace.parse().map_err(wrong::<String>)?, wire.parse().map_err(wrong::<String>)?);
    let statistics = match statistics.is_empty() {
        true => None,
        false => Some(Layout::new(statistics).map_err(wrong)?),
    };
    let usual = Settings::new(method, layout, 1, budget);
    let settings = Settings { name, evaluate, batch, examples, seed, pace, wire, statistics, ..usual };
    let patience = Duration::try_from_secs_f64(patience).map_err(wrong)?;
    if std::env::var_os("GRAWA_LAUNCHED").is_some() {
        LAUNCHER.get_or_init(Stop::from_launcher);
    }
    let mut held = numbers.read();
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
    numbers.write(&held);
    let (inner, spare) = (Mutex::new(Some(session)), Mutex::default());
    Ok(Session { inner, spare, calls, settings, is_alone, process: std::process::id() })
}

/// How a round went: the round as JSON, who took part, the other events as JSON, whether the parameters were replaced, whether there is
/// no connection.
type Held = (Option<String>, Vec<u32>, Vec<String>, bool, bool);

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

    /// Which examples this worker reads next: its shard, of how many, and the batch.
    fn shard(&self) -> PyResult<(u32, u32, u64)> {
        self.look(|session| {
            let DataShard { shard, of, step } = session.shard();
            (shard, of, step)
        })
    }

    /// Steps, epochs, seconds, and the share of the budget.
    fn progress(&self) -> PyResult<(u64, f64, f64, f64)> {
        let budget = self.settings.budget;
        self.look(|session| {
            let at = session.progress();
            (at.steps, at.epochs, at.elapsed.as_secs_f64(), budget.share(&at))
        })
    }

    /// The strength of the pull toward the centre after each step; 0 where the method has none.
    fn prox(&self) -> PyResult<f32> {
        self.look(grawa_session::Session::prox)
    }

    /// Writes the centre to these numbers.
    fn centre(&self, address: usize) -> PyResult<()> {
        let centre = self.look(grawa_session::Session::centre)?;
        Numbers { address, len: centre.len() }.write(&centre);
        Ok(())
    }

    /// Counts a step. Returns what is due.
    fn step(&self, loss: f64, norms: Vec<f64>, rate: f64) -> PyResult<&'static str> {
        self.check_process()?;
        self.hear_launcher()?;
        let mut place = self.place()?;
        let due = place.as_mut().ok_or_else(over)?.step(LocalStep { loss, norms: &norms, rate });
        due.map(word).map_err(|error| failed(&error))
    }

    /// Counts a step whose loss and norms come later. Returns what is due.
    fn step_unmeasured(&self, rate: f64) -> PyResult<&'static str> {
        self.hear_launcher()?;
        let mut place = self.place()?;
        let due = place.as_mut().ok_or_else(over)?.step_unmeasured(rate);
        due.map(word).map_err(|error| failed(&error))
    }

    /// The losses of steps, and the norms of each, in their order.
    fn measured(&self, losses: Vec<f64>, norms: Vec<Vec<f64>>) -> PyResult<()> {
        self.check_process()?;
        let mut place = self.place()?;
        let session = place.as_mut().ok_or_else(over)?;
        let none = Vec::new();
        for (at, loss) in losses.into_iter().enumerate() {
            session.measured(loss, norms.get(at).unwrap_or(&none)).map_err(|error| failed(&error))?;
        }
        Ok(())
    }

    /// Holds a round with all workers. The parameters, given by address and length, are pulled in place. `meanwhile` is called while
    /// the round is held.
    #[pyo3(signature = (scores, places, meanwhile=None))]
    fn round(
        &self,
        py: Python<'_>,
        scores: Vec<f64>,
        places: Vec<(usize, usize)>,
        meanwhile: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Held> {
        self.hear_launcher()?;
        let spare = || self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let mut parameters = std::mem::take(&mut *spare());
        parameters.clear();
        let numbers = || places.iter().map(|&(address, len)| Numbers { address, len });
        numbers().for_each(|part| part.append_to(&mut parameters));
        let ((result, parameters), signal) = self.with(py, meanwhile, move |session| {
            let result = session.round_owned(&scores, &mut parameters);
            result.map(|result| (result, parameters))
        })?;
        let mut rest = &parameters[..];
        numbers().for_each(|part| part.write(rest.split_off(..part.len).unwrap_or_default()));
        *spare() = parameters;
        signal.map_or(Ok(()), Err)?;
        let RoundResult { round, was_replaced, is_alone, events } = result;
        let text = |event: &Event| serde_json::to_string(event).map_err(wrong);
        let mixed = round.as_ref().and_then(|round| round.mixed.last());
        let members = mixed.map(|mixed| mixed.workers.clone()).unwrap_or_default();
        let round = round.map(|round| text(&Event::Round(round))).transpose()?;
        Ok((round, members, events.iter().map(text).collect::<PyResult<_>>()?, was_replaced, is_alone))
    }

    /// Writes the evaluated model to the numbers at `out`, and the average of all workers' statistics over this one's. False if this worker
    /// lost its connection meanwhile.
    #[pyo3(signature = (address, out, statistics=0))]
    fn evaluated_model(
        &self,
        py: Python<'_>,
        address: usize,
        out: usize,
        statistics: usize,
    ) -> PyResult<bool> {
        let len = self.settings.layout.len();
        let counts =
            Numbers { address: statistics, len: self.settings.statistics.as_ref().map_or(0, Layout::len) };
        let (parameters, own) = (Numbers { address, len }.read(), counts.read());
        let (made, signal) = self.with(py, None, move |session| session.evaluate(&parameters, &own))?;
        signal.map_or(Ok(()), Err)?;
        let Some(made) = made else { return Ok(false) };
        Numbers { address: out, len }.write(&made.parameters);
        counts.write(&made.statistics);
        Ok(true)
    }

    /// What a group needs to continue if all of its workers are lost.
    fn checkpoint<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let bytes = self.look(grawa_session::Session::checkpoint)?.map_err(|error| failed(&error))?;
        Ok(bytes.map(|bytes| PyBytes::new(py, &bytes)))
    }

    /// Asks this worker to stop within a step; with `together` all of them.
    fn stop(&self, together: bool) -> PyResult<()> {
        let stop = self.look(grawa_session::Session::stop)?;
        if together {
            stop.together.store(true, Ordering::Relaxed);
        }
        stop.asked.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Reports the end, which must be due. Returns it as JSON.
    fn finish(&self, py: Python<'_>) -> PyResult<String> {
        self.check_process()?;
        let session = self.place()?.take().ok_or_else(over)?;
        let (finished, signal) = self.calls.attend(py, true, None, move || session.finish())?;
        signal.map_or(Ok(()), Err)?;
        let finished = finished.map_err(|error| failed(&error))?;
        serde_json::to_string(&Event::Finished(finished)).map_err(wrong)
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

    fn check_process(&self) -> PyResult<()> {
        if self.process == std::process::id() {
            return Ok(());
        }
        Err(GrawaError::new_err(
            "this session belongs to the process that this one was forked from: threads and connections do not survive a fork; \
             join in the process that trains, after forking",
        ))
    }

    fn look<T>(&self, look: impl FnOnce(&grawa_session::Session) -> T) -> PyResult<T> {
        self.check_process()?;
        Ok(look(self.place()?.as_ref().ok_or_else(over)?))
    }

    /// Calls the session on another thread. If Ctrl-C came meanwhile, its exception is there beside the result.
    fn with<T: Send + 'static>(
        &self,
        py: Python<'_>,
        meanwhile: Option<&Bound<'_, PyAny>>,
        call: impl FnOnce(&mut grawa_session::Session) -> Result<T, Error> + Send + 'static,
    ) -> PyResult<(T, Option<PyErr>)> {
        self.check_process()?;
        let mut session = self.place()?.take().ok_or_else(over)?;
        let work = move || {
            let result = call(&mut session);
            (session, result)
        };
        let ((session, result), signal) = self.calls.attend(py, true, meanwhile, work)?;
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

/// A seed that Python draws a score batch with.
pub(crate) fn seed_of(key: Key) -> u64 {
    key.stream().below(1 << 63)
}

fn over() -> PyErr {
    GrawaError::new_err("this session is over: the run has ended, or it was left")
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

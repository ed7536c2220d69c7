//! A worker's copy of the network: parameters, momentum, running statistics, and its stream of batches.
//!
//! Between the gradient and the step that uses it the worker holds a lane, in which the gradient lies; where gradients
//! are shared it keeps a gradient of its own, since all workers hold theirs at once.

use super::lanes::Borrowed;
use super::{Engine, Lanes};
use crate::Error;
use grawa_core::norm::norms;
use grawa_core::step::{ascend, descend};
use grawa_core::{Key, Layout, Prox, Purpose, Replica, Sgd, StateKind};
use grawa_data::{Loader, PrefetchLoader, Sampler};
use grawa_nn::{Mode, Program, State};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Batches prepared ahead: the next one is always ready, and 64 workers do not fill the memory with them.
const AHEAD: usize = 1;

/// One worker's network.
#[derive(Debug)]
pub struct Net {
    program: Arc<Program>,
    lanes: Arc<Lanes>,
    order: Sampler,
    reader: Loader,
    state: State,
    velocity: Vec<f32>,
    /// Its own gradient, where gradients are shared.
    gradient: Option<Vec<f32>>,
    lane: Option<Borrowed>,
    /// Whether the parameters are where SAM's ascent led, and those to come back to lie in the lane.
    ascended: bool,
    batches: Option<PrefetchLoader>,
    /// The place of the batch at hand, and the step of the one that comes next.
    key: Option<Key>,
    next: u64,
    waits: Arc<Waits>,
}

/// How long a worker waited for what is not its work; read and cleared by the run's accounting.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    queue: AtomicU64,
    data: AtomicU64,
}

impl Waits {
    pub(super) fn wait_for_data(&self, time: Duration) {
        self.data.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Seconds waited for a core and for data since the last call.
    pub(crate) fn take(&self) -> (f64, f64) {
        let seconds =
            |nanos: &AtomicU64| Duration::from_nanos(nanos.swap(0, Ordering::Relaxed)).as_secs_f64();
        (seconds(&self.queue), seconds(&self.data))
    }
}

impl Net {
    pub(super) fn new(engine: &Engine, reader: Loader, state: State, step: u64) -> Result<Self, Error> {
        let graph = engine.graph();
        let (found, expected) = (state.parameters.len(), graph.parameters().len());
        if found != expected {
            let what = "the state to start from".into();
            return Err(grawa_core::Error::WrongLength { what, found, expected }.into());
        }
        Ok(Net {
            velocity: vec![0.0; expected],
            gradient: engine.keeps_gradient.then(|| vec![0.0; expected]),
            program: Arc::clone(&engine.program),
            lanes: Arc::clone(&engine.lanes),
            order: engine.order,
            reader,
            state,
            lane: None,
            ascended: false,
            batches: None,
            key: None,
            next: step,
            waits: Arc::default(),
        })
    }

    /// What it waited for.
    pub(crate) fn waits(&self) -> Arc<Waits> {
        Arc::clone(&self.waits)
    }

    fn kept(&mut self, what: StateKind) -> &mut [f32] {
        match what {
            StateKind::Parameters => &mut self.state.parameters,
            StateKind::Velocity => &mut self.velocity,
            StateKind::Statistics => &mut self.state.statistics,
        }
    }

    fn lane(&mut self) -> Borrowed {
        self.lane.take().unwrap_or_else(|| {
            let start = Instant::now();
            let lane = self.lanes.borrow();
            self.waits.queue.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
            lane
        })
    }

    /// Makes the batch of `key` the one at hand.
    fn fetch(&mut self, key: Key) -> Result<bool, Error> {
        if self.key == Some(key) {
            return Ok(false);
        }
        let (_, step) = key.place();
        if self.batches.is_none() || step != self.next {
            self.batches = Some(PrefetchLoader::training(self.reader.clone(), step, AHEAD)?);
        }
        let start = Instant::now();
        if let Some(batches) = &mut self.batches {
            batches.fetch()?;
        }
        self.waits.wait_for_data(start.elapsed());
        self.key = Some(key);
        self.next = step + 1;
        Ok(true)
    }

    fn pass(&mut self, key: Key) -> Result<f64, Error> {
        let is_new = self.fetch(key)?;
        let mut lane = self.lane();
        let Some(batch) = self.batches.as_ref().and_then(PrefetchLoader::current) else {
            return Err(grawa_data::Error::NoMoreBatches { panicked: false }.into());
        };
        let mode = Mode::Train { dropout: Some(key.purpose(Purpose::Dropout)) };
        let factor = 1.0 / batch.labels.len() as f64;
        let lane_parts = &mut *lane;
        let gradient = self.gradient.as_mut().unwrap_or(&mut lane_parts.gradient);
        let loss = self.program.gradient(
            &mut lane_parts.arena,
            (&self.state.parameters, &self.state.statistics),
            (&batch.images, &batch.labels),
            mode,
            factor,
            gradient,
        )? * factor;
        // SAM's second look at the same batch is from where the model will not stay.
        if is_new {
            self.program.track(&lane.arena, &mut self.state.statistics)?;
            self.state.batches += 1;
        }
        self.lane = Some(lane);
        Ok(loss)
    }

    fn score_pass(&mut self, key: Key, dropout: bool, out: &mut [f64]) -> Result<(), Error> {
        let (who, round) = key.place();
        let size = self.program.batch();
        let examples = self.order.examples() as usize;
        let mut chosen = self.order.score_batch(size.min(examples), who, round)?;
        // A batch larger than the training set holds some examples twice.
        for at in examples..size {
            chosen.push(chosen[at - examples]);
        }
        let mut lane = self.lane();
        let lane_parts = &mut *lane;
        let batch = &mut lane_parts.batch;
        self.reader.feed().plain(&chosen, &mut batch.images, &mut batch.labels)?;
        let mode = Mode::Train { dropout: dropout.then(|| key.purpose(Purpose::Dropout)) };
        self.program.gradient(
            &mut lane_parts.arena,
            (&self.state.parameters, &self.state.statistics),
            (&batch.images, &batch.labels),
            mode,
            1.0,
            &mut lane_parts.gradient,
        )?;
        Ok(norms(self.program.graph().parameters(), &lane_parts.gradient, out)?)
    }
}

/// The methods know one kind of error; what the engine or the data failed with travels in it as its cause.
pub(super) fn told(error: Error) -> grawa_core::Error {
    match error {
        Error::Core(error) => error,
        other => grawa_core::Error::replica(other),
    }
}

impl Replica for Net {
    type Buffer = [f32];

    fn layout(&self) -> &Layout {
        self.program.graph().parameters()
    }

    fn deal(&mut self, seat: u32, of: u32) -> Result<(), grawa_core::Error> {
        let order =
            Sampler::new(self.order.seed(), self.order.examples() as usize, of, self.order.batch_size());
        let order = order.map_err(|error| told(error.into()))?;
        let reader = Loader::new(self.reader.feed().clone(), order, seat);
        self.reader = reader.map_err(|error| told(error.into()))?;
        // A step may have the same number among others: what was read for it before is not its batch any more.
        (self.order, self.batches, self.key) = (order, None, None);
        Ok(())
    }

    fn gradient(&mut self, key: Key) -> Result<f64, grawa_core::Error> {
        let loss = self.pass(key).map_err(told)?;
        if self.gradient.is_some() && !self.ascended {
            // The lane is for others while this worker waits for their gradients.
            self.lane = None;
        }
        Ok(loss)
    }

    fn descend(&mut self, sgd: &Sgd, rate: f32, prox: &[Prox<'_>]) -> Result<bool, grawa_core::Error> {
        let lane = self.lane.take();
        let gradient = match (&self.gradient, &lane) {
            (Some(own), _) => own,
            (None, Some(lane)) => &lane.gradient,
            (None, None) => return Err(no_gradient()),
        };
        descend(sgd, rate, &mut self.state.parameters, &mut self.velocity, gradient, prox)
    }

    fn ascend(&mut self, radius: f32) -> Result<(), grawa_core::Error> {
        let mut lane = self.lane();
        let len = self.state.parameters.len();
        let parts = &mut *lane;
        parts.saved.resize(len, 0.0);
        let gradient = self.gradient.as_ref().unwrap_or(&parts.gradient);
        ascend(radius, &mut self.state.parameters, &mut parts.saved, gradient)?;
        self.lane = Some(lane);
        self.ascended = true;
        Ok(())
    }

    fn restore(&mut self) -> Result<(), grawa_core::Error> {
        let lane = self.lane.take().ok_or_else(no_gradient)?;
        self.state.parameters.copy_from_slice(&lane.saved);
        self.ascended = false;
        if self.gradient.is_none() {
            self.lane = Some(lane);
        }
        Ok(())
    }

    fn norms(&mut self, out: &mut [f64]) -> Result<(), grawa_core::Error> {
        let gradient = match (&self.gradient, &self.lane) {
            (Some(own), _) => own,
            (None, Some(lane)) => &lane.gradient,
            (None, None) => return Err(no_gradient()),
        };
        norms(self.program.graph().parameters(), gradient, out)
    }

    fn score(&mut self, key: Key, dropout: bool, out: &mut [f64]) -> Result<(), grawa_core::Error> {
        self.score_pass(key, dropout, out).map_err(told)
    }

    fn reset(&mut self) {
        self.velocity.fill(0.0);
    }

    fn parameters(&mut self) -> &mut [f32] {
        &mut self.state.parameters
    }

    fn gradients(&mut self) -> &mut [f32] {
        match (&mut self.gradient, &mut self.lane) {
            (Some(own), _) => own,
            (None, Some(lane)) => &mut lane.gradient,
            (None, None) => &mut [],
        }
    }

    fn copy(&mut self, what: StateKind) -> Result<Vec<f32>, grawa_core::Error> {
        Ok(self.kept(what).to_vec())
    }

    fn put(&mut self, what: StateKind, values: &[f32]) -> Result<(), grawa_core::Error> {
        what.fill(self.kept(what), values)
    }
}

fn no_gradient() -> grawa_core::Error {
    grawa_core::Error::replica("a step was asked for before a gradient")
}

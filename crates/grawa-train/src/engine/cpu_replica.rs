//! A worker's replica on the CPU: parameters, moments, running statistics, and its stream of batches.
//!
//! Between a gradient and the step that uses it, the worker keeps the compute slot that holds the gradient. Where
//! gradients are shared it has a gradient of its own, because all workers hold theirs at the same time.

use super::Engine;
use super::compute_slots::SlotGuard;
use crate::Error;
use grawa_core::norm::norms;
use grawa_core::step::ascend;
use grawa_core::{Key, Layout, Moments, Optimizer, Prox, Purpose, Replica, StateKind};
use grawa_data::{Loader, PrefetchLoader};
use grawa_nn::{Mode, State};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Batches prepared ahead: the next one is always ready, and 64 workers do not fill the memory.
const AHEAD: usize = 1;

/// One worker's replica.
#[derive(Debug)]
pub struct CpuReplica {
    engine: Engine,
    reader: Loader,
    state: State,
    moments: Moments,
    /// Its own gradient, where gradients are shared.
    gradient: Option<Vec<f32>>,
    slot: Option<SlotGuard>,
    /// Whether the parameters are those of SAM's ascent, and the ones to restore are in the slot.
    ascended: bool,
    batches: Option<PrefetchLoader>,
    /// The key of the current batch, and the step of the next one.
    key: Option<Key>,
    next: u64,
    waits: Arc<WaitTimes>,
}

/// How long a worker waited; read and cleared by the run's accounting.
#[derive(Debug, Default)]
pub(crate) struct WaitTimes {
    queue: AtomicU64,
    data: AtomicU64,
}

impl WaitTimes {
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

impl CpuReplica {
    pub(super) fn new(engine: &Engine, reader: Loader, state: State, step: u64) -> Result<Self, Error> {
        let graph = engine.graph();
        let (found, expected) = (state.parameters.len(), graph.parameters().len());
        if found != expected {
            let what = "the state to start from".into();
            return Err(grawa_core::Error::WrongLength { what, found, expected }.into());
        }
        Ok(CpuReplica {
            moments: Moments::new(expected),
            gradient: engine.keeps_gradient.then(|| vec![0.0; expected]),
            engine: engine.clone(),
            reader,
            state,
            slot: None,
            ascended: false,
            batches: None,
            key: None,
            next: step,
            waits: Arc::default(),
        })
    }

    /// Its waiting times.
    pub(crate) fn waits(&self) -> Arc<WaitTimes> {
        Arc::clone(&self.waits)
    }

    fn slot(&mut self) -> SlotGuard {
        self.slot.take().unwrap_or_else(|| {
            let start = Instant::now();
            let slot = self.engine.slots.borrow();
            self.waits.queue.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
            slot
        })
    }

    /// Makes the batch of `key` the current one.
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
        let mut slot = self.slot();
        let Some(batch) = self.batches.as_ref().and_then(PrefetchLoader::current) else {
            return Err(grawa_data::Error::NoMoreBatches { panicked: false }.into());
        };
        let mode = Mode::Train { dropout: Some(key.purpose(Purpose::Dropout)) };
        let factor = 1.0 / batch.labels.len() as f64;
        let slot_parts = &mut *slot;
        let gradient = self.gradient.as_mut().unwrap_or(&mut slot_parts.gradient);
        let loss = self.engine.program.gradient(
            &mut slot_parts.arena,
            (&self.state.parameters, &self.state.statistics),
            (&batch.images, &batch.labels),
            mode,
            factor,
            gradient,
        )? * factor;
        // SAM's second pass on the same batch is at parameters that will be discarded.
        if is_new {
            self.engine.program.track(&slot.arena, &mut self.state.statistics)?;
            self.state.batches += 1;
        }
        self.slot = Some(slot);
        Ok(loss)
    }

    fn score_pass(&mut self, key: Key, dropout: bool, out: &mut [f64]) -> Result<(), Error> {
        let chosen = super::score_examples(&self.engine.order, key)?;
        let mut slot = self.slot();
        let slot_parts = &mut *slot;
        let batch = &mut slot_parts.batch;
        self.engine.train.plain(&chosen, &mut batch.images, &mut batch.labels)?;
        let mode = Mode::Train { dropout: dropout.then(|| key.purpose(Purpose::Dropout)) };
        self.engine.program.gradient(
            &mut slot_parts.arena,
            (&self.state.parameters, &self.state.statistics),
            (&batch.images, &batch.labels),
            mode,
            1.0,
            &mut slot_parts.gradient,
        )?;
        Ok(norms(self.engine.graph().parameters(), &slot_parts.gradient, out)?)
    }
}

/// Converts to the error type of the methods. The original error becomes its cause.
pub(super) fn replica_error(error: Error) -> grawa_core::Error {
    match error {
        Error::Core(error) => error,
        other => grawa_core::Error::replica(other),
    }
}

impl Replica for CpuReplica {
    fn layout(&self) -> &Layout {
        self.engine.graph().parameters()
    }

    fn assign_shard(&mut self, shard: u32, of: u32) -> Result<(), grawa_core::Error> {
        let order = self.engine.order.for_workers(of).map_err(|error| replica_error(error.into()))?;
        let reader = Loader::new(self.engine.train.clone(), &order, shard);
        self.reader = reader.map_err(|error| replica_error(error.into()))?;
        // In the new shard, a step of the same number has another batch.
        (self.engine.order, self.batches, self.key) = (order, None, None);
        Ok(())
    }

    fn gradient(&mut self, key: Key) -> Result<f64, grawa_core::Error> {
        let loss = self.pass(key).map_err(replica_error)?;
        if self.gradient.is_some() && !self.ascended {
            // Other workers use the slot while this one waits for their gradients.
            self.slot = None;
        }
        Ok(loss)
    }

    fn descend(
        &mut self,
        optimizer: &Optimizer,
        rate: f32,
        prox: &[Prox<'_>],
    ) -> Result<bool, grawa_core::Error> {
        let slot = self.slot.take();
        let lent = slot.as_deref().map(|slot| &slot.gradient);
        let gradient = self.gradient.as_ref().or(lent).ok_or_else(no_gradient)?;
        let update = self.moments.update(optimizer, rate, &mut self.state.parameters, gradient, prox)?;
        // The threads of the slot share the update.
        Ok(match &slot {
            Some(slot) => slot.arena.update(update),
            None => update.run(),
        })
    }

    fn ascend(&mut self, radius: f32) -> Result<(), grawa_core::Error> {
        let mut slot = self.slot();
        let len = self.state.parameters.len();
        let parts = &mut *slot;
        parts.saved.resize(len, 0.0);
        let gradient = self.gradient.as_ref().unwrap_or(&parts.gradient);
        ascend(radius, &mut self.state.parameters, &mut parts.saved, gradient)?;
        self.slot = Some(slot);
        self.ascended = true;
        Ok(())
    }

    fn restore(&mut self) -> Result<(), grawa_core::Error> {
        let slot = self.slot.take().ok_or_else(no_gradient)?;
        self.state.parameters.copy_from_slice(&slot.saved);
        self.ascended = false;
        if self.gradient.is_none() {
            self.slot = Some(slot);
        }
        Ok(())
    }

    fn norms(&mut self, out: &mut [f64]) -> Result<(), grawa_core::Error> {
        let lent = self.slot.as_deref().map(|slot| &slot.gradient);
        let gradient = self.gradient.as_ref().or(lent).ok_or_else(no_gradient)?;
        norms(self.engine.graph().parameters(), gradient, out)
    }

    fn score(&mut self, key: Key, dropout: bool, out: &mut [f64]) -> Result<(), grawa_core::Error> {
        self.score_pass(key, dropout, out).map_err(replica_error)
    }

    fn reset(&mut self) {
        self.moments.reset();
    }

    fn parameters(&mut self) -> &mut [f32] {
        &mut self.state.parameters
    }

    fn gradients(&mut self) -> &mut [f32] {
        match (&mut self.gradient, &mut self.slot) {
            (Some(own), _) => own,
            (None, Some(slot)) => &mut slot.gradient,
            (None, None) => &mut [],
        }
    }

    fn copy(&mut self, what: StateKind) -> Result<Vec<f32>, grawa_core::Error> {
        Ok(match what {
            StateKind::Parameters => self.state.parameters.clone(),
            StateKind::Statistics => self.state.statistics.clone(),
            what => self.moments.copy(what),
        })
    }

    fn put(&mut self, what: StateKind, values: &[f32]) -> Result<(), grawa_core::Error> {
        match what {
            StateKind::Parameters => what.fill(&mut self.state.parameters, values),
            StateKind::Statistics => what.fill(&mut self.state.statistics, values),
            what => self.moments.put(what, values),
        }
    }
}

fn no_gradient() -> grawa_core::Error {
    grawa_core::Error::replica("a step needs a gradient first")
}

//! A worker's replica on a GPU. Its vectors stay there; only losses, norms, and copies for checkpoints come to the
//! host.

use super::batch::{Batch, load_host_batches};
use super::{DeviceShared, DeviceVector, Lockstep};
use crate::Error;
use crate::engine::WaitTimes;
use crate::engine::cpu_replica::replica_error;
use grawa_core::{Key, Layout, Prox, Purpose, Replica, Sgd, StateKind, StepRequest, StepResults};
use grawa_data::{Loader, PrefetchLoader, Sampler, WorkerSampler};
use grawa_nn::cuda::Split;
use std::sync::Arc;
use std::time::Instant;

/// The most steps in one request.
pub(super) const STRIDE: usize = 256;
/// Batches prepared ahead on the host, if the data are not on the GPU.
const AHEAD: usize = 2;

/// One worker's replica on a GPU.
#[derive(Debug)]
pub(crate) struct CudaReplica {
    shared: Arc<DeviceShared>,
    /// Its index on the GPU.
    worker: usize,
    cursor: WorkerSampler,
    /// Batches from the host and the step of the next one, if the data are not on the GPU.
    host_batches: Option<(Option<PrefetchLoader>, u64)>,
    reader: Loader,
    /// The key of the last gradient's batch.
    key: Option<Key>,
    parameters: DeviceVector,
    gradients: DeviceVector,
    waits: Arc<WaitTimes>,
}

/// A worker's request for steps.
struct Request {
    key: Key,
    batches: Vec<Batch>,
    rates: Vec<f32>,
    prox: [f32; 2],
    sgd: Sgd,
    radius: Option<f32>,
    norms: bool,
}

impl CudaReplica {
    pub(super) fn new(shared: Arc<DeviceShared>, worker: u32, step: u64) -> Result<Self, Error> {
        let cursor = shared.order.for_worker(worker)?;
        let reader = Loader::new(shared.train.clone(), shared.order, worker)?;
        let host_batches = (!shared.data_on_device).then_some((None, step));
        let (parameters, gradients) = (DeviceVector::Parameters, DeviceVector::Gradients);
        let waits = Arc::default();
        Ok(CudaReplica {
            worker: shared.index_of(worker),
            cursor,
            host_batches,
            reader,
            key: None,
            parameters,
            gradients,
            waits,
            shared,
        })
    }

    /// Its waiting times.
    pub(crate) fn waits(&self) -> Arc<WaitTimes> {
        Arc::clone(&self.waits)
    }

    fn lockstep(&self) -> &Lockstep {
        &self.shared.lockstep
    }

    /// The batches of `count` steps.
    fn batches(&mut self, first: u64, count: usize) -> Result<Vec<Batch>, Error> {
        let mut batches = Vec::with_capacity(count);
        for step in first..first + count as u64 {
            batches.push(match &mut self.host_batches {
                None => Batch::Examples(self.cursor.batch(step)?.to_vec()),
                Some((prefetch, next)) => {
                    if prefetch.is_none() || *next != step {
                        *prefetch = Some(PrefetchLoader::training(self.reader.clone(), step, AHEAD)?);
                    }
                    *next = step + 1;
                    let start = Instant::now();
                    let batch = match prefetch {
                        Some(prefetch) => {
                            prefetch.fetch()?;
                            prefetch.current().map(|batch| (batch.images.clone(), batch.labels.clone()))
                        }
                        None => None,
                    };
                    self.waits.wait_for_data(start.elapsed());
                    let (images, labels) =
                        batch.ok_or(grawa_data::Error::NoMoreBatches { panicked: false })?;
                    Batch::Images(images, labels)
                }
            });
        }
        Ok(batches)
    }

    /// The batch of a score, as on the CPU.
    fn score_batch(&self, key: Key) -> Result<Batch, Error> {
        self.shared.train_batch(None, crate::engine::score_examples(&self.shared.order, key)?)
    }

    fn take_steps(&mut self, stretch: &StepRequest<'_, DeviceVector>) -> Result<StepResults, Error> {
        let (_, first) = stretch.key.place();
        let request = Request {
            key: stretch.key,
            batches: self.batches(first, stretch.rates.len())?,
            rates: stretch.rates.to_vec(),
            prox: strengths(stretch.prox),
            sgd: *stretch.sgd,
            radius: stretch.radius,
            norms: stretch.norms,
        };
        self.lockstep().together(self.worker, request, |set, mut requests| {
            let count = requests.iter().map(|request| request.rates.len()).min().unwrap_or(0);
            if count == 0 {
                return Ok(vec![StepResults::default(); requests.len()]);
            }
            let keys: Vec<Key> = requests.iter().map(|request| request.key).collect();
            let (prox, sgd) = (requests[0].prox, requests[0].sgd);
            let (radius, norms, rates) =
                (requests[0].radius, requests[0].norms, requests[0].rates[..count].to_vec());
            let host_batches = matches!(requests[0].batches[0], Batch::Images(..));
            if !host_batches {
                for (worker, request) in requests.iter().enumerate() {
                    let examples: Vec<u32> = (request.batches[..count].iter())
                        .flat_map(|batch| match batch {
                            Batch::Examples(examples) => examples.as_slice(),
                            Batch::Images(..) => &[],
                        })
                        .copied()
                        .collect();
                    set.assign(Split::Train, worker, &examples)?;
                }
            }
            set.set_positions(&keys, &rates, prox)?;
            let mut found: Vec<Vec<f64>> = vec![Vec::new(); requests.len()];
            if radius.is_none() && !norms && !host_batches {
                set.steps(sgd, count)?;
            } else {
                for step in 0..count {
                    if host_batches {
                        let next = requests.iter_mut().map(|request| {
                            std::mem::replace(&mut request.batches[step], Batch::Examples(Vec::new()))
                        });
                        load_host_batches(set, next.collect())?;
                    }
                    set.compute_gradients()?;
                    if let Some(radius) = radius {
                        set.ascend(radius)?;
                        set.recompute_gradients()?;
                        set.restore()?;
                    }
                    if norms {
                        found.iter_mut().zip(set.norms()?).for_each(|(all, norms)| all.extend(norms));
                    }
                    set.descend(sgd)?;
                }
            }
            let mut taken = Vec::with_capacity(requests.len());
            for (worker, norms) in found.into_iter().enumerate() {
                let (losses, lost) = set.losses(worker, count)?;
                // The GPU records whether a number was ever not finite; such a number stays.
                taken.push(StepResults { losses, finite: vec![!lost; count], norms });
            }
            Ok(taken)
        })
    }

    /// The gradient at `key`; at the same key again, on the same batch.
    fn compute_gradient(&mut self, key: Key) -> Result<f64, Error> {
        let again = self.key == Some(key);
        let batch = match again {
            true => None,
            false => self.batches(key.place().1, 1)?.pop(),
        };
        self.key = Some(key);
        self.lockstep().together(self.worker, (key, batch), |set, requests| {
            let keys: Vec<Key> = requests.iter().map(|request| request.0).collect();
            let workers = keys.len();
            let batches: Vec<Batch> = requests.into_iter().filter_map(|request| request.1).collect();
            if batches.is_empty() {
                set.recompute_gradients()?;
                // The loss of SAM's second pass is not used.
                return Ok(vec![f64::NAN; workers]);
            }
            if let Some(examples) = load_host_batches(set, batches)? {
                for (worker, examples) in examples.iter().enumerate() {
                    set.assign(Split::Train, worker, examples)?;
                }
            }
            set.set_positions(&keys, &[0.0], [0.0; 2])?;
            set.compute_gradients()?;
            (0..workers).map(|worker| Ok(set.losses(worker, 1)?.0[0])).collect()
        })
    }
}

/// The strengths of the pulls to the centre of all and to that of the group.
fn strengths(prox: &[Prox<'_, DeviceVector>]) -> [f32; 2] {
    let mut strengths = [0.0; 2];
    for prox in prox {
        if let DeviceVector::Centre { level, .. } = prox.centre
            && let Some(strength) = strengths.get_mut(*level)
        {
            *strength = prox.strength;
        }
    }
    strengths
}

impl Replica for CudaReplica {
    type Buffer = DeviceVector;

    fn layout(&self) -> &Layout {
        self.shared.graph.parameters()
    }

    fn deal(&mut self, seat: u32, of: u32) -> Result<(), grawa_core::Error> {
        let known = &self.shared.order;
        let order = Sampler::new(known.seed(), known.examples() as usize, of, known.batch_size())
            .map_err(|error| replica_error(error.into()))?;
        self.cursor = order.for_worker(seat).map_err(|error| replica_error(error.into()))?;
        self.reader = Loader::new(self.shared.train.clone(), order, seat)
            .map_err(|error| replica_error(error.into()))?;
        // Prefetched and loaded batches were those of another shard.
        self.host_batches.iter_mut().for_each(|(prefetch, _)| *prefetch = None);
        self.key = None;
        Ok(())
    }

    fn gradient(&mut self, key: Key) -> Result<f64, grawa_core::Error> {
        self.compute_gradient(key).map_err(replica_error)
    }

    fn descend(
        &mut self,
        sgd: &Sgd,
        rate: f32,
        prox: &[Prox<'_, DeviceVector>],
    ) -> Result<bool, grawa_core::Error> {
        let request = (*sgd, rate, strengths(prox));
        let done = self.lockstep().together(self.worker, request, |set, requests| {
            let (sgd, rate, prox) = requests[0];
            set.set_rate(rate, prox)?;
            set.descend(sgd)?;
            (0..requests.len()).map(|worker| Ok(!set.losses(worker, 1)?.1)).collect()
        });
        done.map_err(replica_error)
    }

    fn stride(&self) -> usize {
        if self.host_batches.is_some() { 1 } else { STRIDE }
    }

    fn steps(&mut self, stretch: &StepRequest<'_, DeviceVector>) -> Result<StepResults, grawa_core::Error> {
        self.take_steps(stretch).map_err(replica_error)
    }

    fn ascend(&mut self, radius: f32) -> Result<(), grawa_core::Error> {
        let done = self.lockstep().together(self.worker, radius, |set, requests| {
            set.ascend(requests[0])?;
            Ok(vec![(); requests.len()])
        });
        done.map_err(replica_error)
    }

    fn restore(&mut self) -> Result<(), grawa_core::Error> {
        let done = self.lockstep().together(self.worker, (), |set, requests| {
            set.restore()?;
            Ok(requests)
        });
        done.map_err(replica_error)
    }

    fn norms(&mut self, out: &mut [f64]) -> Result<(), grawa_core::Error> {
        let norms =
            self.lockstep().together(self.worker, (), |set, _| Ok(set.norms()?)).map_err(replica_error)?;
        out.copy_from_slice(&norms);
        Ok(())
    }

    fn score(&mut self, key: Key, dropout: bool, out: &mut [f64]) -> Result<(), grawa_core::Error> {
        let batch = self.score_batch(key).map_err(replica_error)?;
        let key = key.purpose(Purpose::Dropout);
        let norms = self.lockstep().together(self.worker, (key, batch, dropout), |set, requests| {
            let keys: Vec<Key> = requests.iter().map(|request| request.0).collect();
            let dropout = requests[0].2;
            let examples = load_host_batches(set, requests.into_iter().map(|request| request.1).collect())?;
            Ok(set.score(&keys, examples.as_deref(), dropout)?)
        });
        out.copy_from_slice(&norms.map_err(replica_error)?);
        Ok(())
    }

    fn reset(&mut self) {
        let (worker, zeros) = (self.worker, vec![0.0; self.layout().len()]);
        // If the GPU fails, the next step reports it.
        let _ = self.lockstep().alone(|set| set.load_velocity(worker, &zeros));
    }

    fn parameters(&mut self) -> &mut DeviceVector {
        &mut self.parameters
    }

    fn gradients(&mut self) -> &mut DeviceVector {
        &mut self.gradients
    }

    fn copy(&mut self, what: StateKind) -> Result<Vec<f32>, grawa_core::Error> {
        let worker = self.worker;
        let copied = self.lockstep().alone(|set| match what {
            StateKind::Parameters => set.parameters(worker),
            StateKind::Velocity => set.velocity(worker),
            StateKind::Statistics => set.statistics(worker),
        });
        copied.map_err(|error| replica_error(error.into()))
    }

    fn put(&mut self, what: StateKind, values: &[f32]) -> Result<(), grawa_core::Error> {
        let worker = self.worker;
        let done = self.lockstep().alone(|set| match what {
            StateKind::Parameters => set.load_parameters(worker, values),
            StateKind::Velocity => set.load_velocity(worker, values),
            StateKind::Statistics => set.load_statistics(worker, values),
        });
        done.map_err(|error| replica_error(error.into()))
    }
}

impl Drop for CudaReplica {
    fn drop(&mut self) {
        self.lockstep().leave(self.shared.workers.start + self.worker as u32);
    }
}

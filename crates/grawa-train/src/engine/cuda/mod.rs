//! Training on GPUs: the workers are placed on the GPUs, with their vectors and the data set.
//!
//! The worker's loop is the same as on the CPU. What differs is here: a `CudaReplica` steps together with the others,
//! a `CudaMember` mixes in device memory, a `CudaEvaluator` evaluates there.

mod batch;
mod evaluate;
mod lockstep;
mod member;
mod placement;
mod replica;
mod staged;

pub(crate) use evaluate::CudaEvaluator;
pub(crate) use lockstep::Lockstep;
pub(crate) use member::CudaMember;
use member::DeviceMembers;
pub(crate) use replica::CudaReplica;
pub(crate) use staged::Staged;

use super::Material;
use crate::run::Group;
use crate::snapshot::Part;
use crate::{Error, Recipe};
use batch::Batch;
use grawa_comm::Collective;
use grawa_core::{Key, Replica, Share, StateKind};
use grawa_data::{Crop, Feed, Sampler};
use grawa_nn::cuda::{AllReduce, DatasetBytes, Device, MultiGpu, ReplicaSet, Settings, Split, View, devices};
use grawa_nn::{Graph, State};
use placement::{in_step, place_workers};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The name of a vector on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceVector {
    /// A worker's parameters.
    Parameters,
    /// A worker's gradient.
    Gradients,
    /// The centre of a group: level 0 for all workers, 1 for the groups of the GPU, 2 for the model to evaluate.
    Centre { level: usize, group: usize },
}

/// The level of the model to evaluate.
const EVALUATED: usize = 2;
/// The largest share of a GPU's memory for data.
const SHARE_OF_DATA: f64 = 0.5;

/// What the workers of a GPU share.
#[derive(Debug)]
pub(crate) struct DeviceShared {
    pub(super) lockstep: Lockstep,
    /// Their numbers.
    pub(super) workers: Range<u32>,
    pub(super) graph: Graph,
    pub(super) order: Sampler,
    pub(super) train: Feed,
    pub(super) test: Feed,
    /// Whether the data are on the GPU.
    pub(super) data_on_device: bool,
}

impl DeviceShared {
    /// The index of a worker on the GPU.
    fn index_of(&self, worker: u32) -> usize {
        worker.saturating_sub(self.workers.start) as usize
    }

    /// A batch of training examples, augmented with the draws at `key` if there is one.
    fn train_batch(&self, key: Option<Key>, examples: Vec<u32>) -> Result<Batch, Error> {
        if self.data_on_device {
            return Ok(Batch::Examples(examples));
        }
        host_batch(&self.train, examples.len(), |images, labels| match key {
            Some(key) => self.train.augmented(key, &examples, images, labels),
            None => self.train.plain(&examples, images, labels),
        })
    }

    /// A batch of the test set, padded with its last example.
    fn test_batch(&self, number: usize) -> Result<Batch, Error> {
        let size = self.order.batch_size() as usize;
        if self.data_on_device {
            let last = self.test.len().saturating_sub(1);
            let examples = number * size..(number + 1) * size;
            return Ok(Batch::Examples(examples.map(|example| example.min(last) as u32).collect()));
        }
        host_batch(&self.test, size, |images, labels| {
            self.test.evaluation(number, images, labels).map(|_| ())
        })
    }
}

/// A batch of `size` examples that `fill` writes on the host.
fn host_batch(
    feed: &Feed,
    size: usize,
    fill: impl FnOnce(&mut [f32], &mut [u32]) -> Result<(), grawa_data::Error>,
) -> Result<Batch, Error> {
    let (mut images, mut labels) = (vec![0.0; size * feed.output().len()], vec![0; size]);
    fill(&mut images, &mut labels)?;
    Ok(Batch::Images(images, labels))
}

/// A network and its data on every GPU in use, ready to create workers.
#[derive(Clone, Debug)]
pub(crate) struct CudaEngine {
    /// The connection between the GPUs, if there are several.
    multi_gpu: Option<Arc<MultiGpu>>,
    devices: Vec<Arc<DeviceShared>>,
    policy: crate::recipe::BatchNorm,
    batches: usize,
    levels: usize,
    /// Workers in a group of the inner level.
    group: u32,
}

impl CudaEngine {
    /// Compiles the network for the GPUs of the recipe, places the workers and copies the data.
    pub(crate) fn new(recipe: &Recipe, material: &Material) -> Result<Self, Error> {
        let mut found = match recipe.machine.cards {
            None => usable(u32::MAX, false)?,
            Some(asked) => usable(asked, true)?,
        };
        if recipe.train.workers.div_ceil(found.len() as u32) > MOST && recipe.method.share != Share::Nothing {
            let why = format!("a GPU can have at most {MOST} workers; use more GPUs or more processes");
            return Err(grawa_nn::Error::Device {
                action: format!("train {} workers", recipe.train.workers),
                why,
            }
            .into());
        }
        found.truncate(place_workers(recipe.train.workers, found.len()).len());
        let multi_gpu = match found.len() {
            1 => None,
            _ => Some(MultiGpu::new(AllReduce::Nccl, &found)?),
        };
        CudaEngine::on(recipe, material, &found, multi_gpu)
    }

    /// The engine for this process's single worker of a run, on the GPU that its number selects: the workers of a
    /// machine take its GPUs in turn. A machine may have fewer GPUs than the recipe names.
    pub(crate) fn of_one(
        recipe: &Recipe,
        material: &Material,
        seat: u32,
        number: u32,
    ) -> Result<Self, Error> {
        let found = usable(recipe.machine.cards.unwrap_or(u32::MAX).max(1), false)?;
        let device = &found[number as usize % found.len()];
        let shared = share_device(recipe, material, device, seat..seat + 1)?;
        Ok(CudaEngine::with(recipe, material, vec![Arc::new(shared)], None))
    }

    /// The engine on these GPUs. A single GPU needs no connection.
    fn on(
        recipe: &Recipe,
        material: &Material,
        devices: &[Device],
        multi_gpu: Option<MultiGpu>,
    ) -> Result<Self, Error> {
        let devices = (devices.iter().zip(place_workers(recipe.train.workers, devices.len())))
            .map(|(device, workers)| Ok(Arc::new(share_device(recipe, material, device, workers)?)))
            .collect::<Result<_, Error>>()?;
        Ok(CudaEngine::with(recipe, material, devices, multi_gpu.map(Arc::new)))
    }

    fn with(
        recipe: &Recipe,
        material: &Material,
        devices: Vec<Arc<DeviceShared>>,
        multi_gpu: Option<Arc<MultiGpu>>,
    ) -> Self {
        CudaEngine {
            devices,
            multi_gpu,
            policy: recipe.evaluate.batch_norm,
            batches: super::recalibration_batches(recipe, material.train.len()),
            levels: 1 + usize::from(recipe.method.inner.is_some()),
            group: recipe.method.inner.as_ref().map_or(1, |inner| inner.group.max(1)),
        }
    }

    /// The GPU of a worker.
    fn shared_of(&self, worker: u32) -> &Arc<DeviceShared> {
        let found = self.devices.iter().find(|shared| shared.workers.contains(&worker));
        found.unwrap_or(&self.devices[0])
    }

    /// Whether workers at these positions of a cycle can continue together.
    pub(crate) fn is_in_step(&self, parts: &[Part]) -> bool {
        let blocks: Vec<Range<u32>> = self.devices.iter().map(|shared| shared.workers.clone()).collect();
        in_step(&blocks, &parts.iter().map(|part| (part.worker, part.in_cycle)).collect::<Vec<_>>())
    }

    /// A worker with this state and no momentum, at this step of its data.
    pub(crate) fn worker(&self, worker: u32, state: &State, step: u64) -> Result<CudaReplica, Error> {
        let mut net = CudaReplica::new(Arc::clone(self.shared_of(worker)), worker, step)?;
        net.put(StateKind::Statistics, &state.statistics)?;
        net.put(StateKind::Parameters, &state.parameters)?;
        Ok(net)
    }

    /// Loads a model in place of the first worker, for evaluation only.
    pub(crate) fn place_model(&self, model: &State) -> Result<DeviceVector, Error> {
        self.devices[0].lockstep.alone(|set| set.load(0, &model.parameters, &model.statistics))?;
        Ok(DeviceVector::Parameters)
    }

    /// Connects a group of workers and sets its centre on every GPU where it has members.
    pub(crate) fn gather(&self, group: &Group, deadline: Duration) -> Result<Vec<CudaMember>, Error> {
        let mut members = Vec::new();
        for shared in &self.devices {
            let workers =
                group.workers.start.max(shared.workers.start)..group.workers.end.min(shared.workers.end);
            if workers.is_empty() {
                continue;
            }
            let centre = self.centre_place(group.place, shared);
            if !group.centre.is_empty() {
                shared.lockstep.alone(|set| set.load_centre(centre.0, centre.1, &group.centre))?;
            }
            members.push(DeviceMembers { shared: Arc::clone(shared), workers, centre });
        }
        // A group on one GPU needs no connection.
        let multi_gpu = self.multi_gpu.clone().filter(|_| members.len() > 1);
        Ok(member::group(members, multi_gpu.as_ref(), deadline))
    }

    /// A worker's member of a group of other processes.
    pub(crate) fn staged<C: Collective<Buffer = [f32]>>(
        &self,
        member: C,
        place: Option<(usize, usize)>,
    ) -> Result<Staged<C>, Error> {
        let shared = &self.devices[0];
        Ok(Staged::new(member, Arc::clone(shared), self.centre_place(place, shared))?)
    }

    /// Level and group of a group's centre on a GPU. The group of the evaluated model has no level in the run.
    fn centre_place(&self, of: Option<(usize, usize)>, shared: &DeviceShared) -> (usize, usize) {
        match of {
            None => (EVALUATED, 0),
            // The level of all workers is the last in the run, and the first on the GPU.
            Some((level, _)) if level + 1 == self.levels => (0, 0),
            // A GPU counts groups from its first one.
            Some((level, number)) => {
                (self.levels - 1 - level, number - (shared.workers.start / self.group) as usize)
            }
        }
    }

    /// Evaluates models for one worker.
    pub(crate) fn evaluator(&self, worker: u32) -> CudaEvaluator {
        let shared = Arc::clone(self.shared_of(worker));
        CudaEvaluator { worker: shared.index_of(worker), shared, policy: self.policy, batches: self.batches }
    }
}

/// At most `most` usable GPUs; with `all`, exactly that many or an error.
fn usable(most: u32, all: bool) -> Result<Vec<Device>, Error> {
    let mut found = devices()?;
    if found.iter().any(Device::is_usable) {
        found.retain(Device::is_usable);
    }
    let asked = most as usize;
    if found.is_empty() || (all && asked > found.len()) {
        let (action, why) = match found.len() {
            0 => ("use a GPU".into(), "the driver reports none; see `grawa devices`".into()),
            count => {
                let why = format!("there are {count}; set machine.cards to {count} or less");
                (format!("use {asked} GPUs"), why)
            }
        };
        return Err(grawa_nn::Error::Device { action, why }.into());
    }
    found.truncate(asked);
    Ok(found)
}

/// Compiles the network for a GPU with these workers, and copies the data.
fn share_device(
    recipe: &Recipe,
    material: &Material,
    device: &Device,
    workers: Range<u32>,
) -> Result<DeviceShared, Error> {
    let Material { graph, order, train, test } = material;
    let settings = Settings {
        batch: recipe.train.batch as usize,
        workers: workers.len(),
        precision: recipe.machine.precision,
        fixed: recipe.machine.deterministic,
    };
    let room = device.memory as f64 * SHARE_OF_DATA;
    let mut set = ReplicaSet::new(device, graph, settings)?;
    if let Some(inner) = &recipe.method.inner {
        set.group_by(inner.group as usize, (workers.start % inner.group.max(1)) as usize)?;
    }
    let bytes = |feed: &Feed| feed.split().bytes().map(<[u8]>::len);
    let data_on_device =
        bytes(train).zip(bytes(test)).is_some_and(|(train, test)| ((train + test) as f64) < room);
    if data_on_device {
        for (split, feed, steps) in [(Split::Train, train, replica::STRIDE), (Split::Test, test, 1)] {
            let data = DatasetBytes {
                shape: super::network_shape(feed.split().shape()),
                images: feed.split().bytes().unwrap_or_default(),
                labels: feed.split().labels(),
                table: feed.table(),
            };
            let crop = match feed.augment().crop {
                Crop::Random { pad, .. } => Some(pad),
                Crop::Whole | Crop::Resized { .. } => None,
            };
            set.load_dataset(split, data, View { flip: feed.augment().flip, crop }, steps)?;
        }
    }
    Ok(DeviceShared {
        lockstep: Lockstep::new(set),
        workers,
        graph: graph.clone(),
        order: *order,
        train: train.clone(),
        test: test.clone(),
        data_on_device,
    })
}

/// The most workers on one GPU.
const MOST: u32 = 64;

/// A setting that a GPU does not support, if any: its key and the reason.
pub(crate) fn objection(recipe: &Recipe) -> Option<(&'static str, String)> {
    use crate::recipe::Pace;
    if recipe.train.pace == Pace::Free {
        let why = "on a GPU all workers step together; set train.pace = 'even', or machine.device = 'cpu'";
        return Some(("train.pace", why.into()));
    }
    None
}

#[cfg(test)]
mod tests;

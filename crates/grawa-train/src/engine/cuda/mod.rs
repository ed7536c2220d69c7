//! Training on GPUs: workers are dealt to the GPUs, their vectors and the data set with them.
//!
//! The worker's loop is the same as on the CPU. What differs is here: a `CudaReplica` takes its steps together with the
//! others, a `CudaMember` mixes where the vectors lie, a `CudaEvaluator` measures there.

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
use grawa_core::{Kept, Key, Replica, Share};
use grawa_data::{Crop, Feed, Order};
use grawa_nn::cuda::{AllReduce, DatasetBytes, Device, MultiGpu, ReplicaSet, Settings, Split, View, devices};
use grawa_nn::{Graph, Shape, State};
use placement::{in_step, place_workers};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// A vector on the GPU, to those who cannot look into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceVector {
    /// A worker's parameters.
    Parameters,
    /// A worker's gradient.
    Gradients,
    /// The centre of a group of a level: 0 that of all workers, 1 that of the GPU's groups, 2 the model that is looked at.
    Centre { level: usize, group: usize },
}

/// The level of the model that is looked at.
const EVALUATED: usize = 2;
/// Of a GPU's free memory no more than this share is given to data.
const SHARE_OF_DATA: f64 = 0.5;

/// What a GPU's workers share.
#[derive(Debug)]
pub(crate) struct DeviceShared {
    pub(super) lockstep: Lockstep,
    /// Who they are.
    pub(super) workers: Range<u32>,
    pub(super) graph: Graph,
    pub(super) order: Order,
    pub(super) train: Feed,
    pub(super) test: Feed,
    /// Whether the data lie on the GPU.
    pub(super) data_on_device: bool,
}

impl DeviceShared {
    /// Which of the GPU's workers this one is.
    fn index_of(&self, worker: u32) -> usize {
        worker.saturating_sub(self.workers.start) as usize
    }

    /// A batch of these training examples as evaluation shows them.
    fn plain(&self, examples: Vec<u32>) -> Result<Batch, Error> {
        if self.data_on_device {
            return Ok(Batch::Examples(examples));
        }
        let mut images = vec![0.0; examples.len() * self.train.output().len()];
        let mut labels = vec![0; examples.len()];
        self.train.plain(&examples, &mut images, &mut labels)?;
        Ok(Batch::Images(images, labels))
    }

    /// A batch of these training examples, augmented by the draws at `key`.
    fn augmented(&self, key: Key, examples: Vec<u32>) -> Result<Batch, Error> {
        if self.data_on_device {
            return Ok(Batch::Examples(examples));
        }
        let mut images = vec![0.0; examples.len() * self.train.output().len()];
        let mut labels = vec![0; examples.len()];
        self.train.augmented(key, &examples, &mut images, &mut labels)?;
        Ok(Batch::Images(images, labels))
    }

    /// A batch of the test set; what is missing at its end is filled up.
    fn test_batch(&self, number: usize) -> Result<Batch, Error> {
        let size = self.order.batch_size() as usize;
        if self.data_on_device {
            let last = self.test.len().saturating_sub(1);
            let examples = number * size..(number + 1) * size;
            return Ok(Batch::Examples(examples.map(|example| example.min(last) as u32).collect()));
        }
        let mut images = vec![0.0; size * self.test.output().len()];
        let mut labels = vec![0; size];
        self.test.evaluation(number, &mut images, &mut labels)?;
        Ok(Batch::Images(images, labels))
    }
}

/// A network and its data on every GPU that is used, ready to make workers.
#[derive(Clone, Debug)]
pub(crate) struct CudaEngine {
    /// What connects the GPUs, if there are several.
    multi_gpu: Option<Arc<MultiGpu>>,
    devices: Vec<Arc<DeviceShared>>,
    policy: crate::recipe::BatchNorm,
    batches: usize,
    levels: usize,
    /// Workers in a group of the inner level.
    group: u32,
}

impl CudaEngine {
    /// Compiles the network for the GPUs that the recipe asks for, deals the workers to them and puts the data there.
    pub(crate) fn new(recipe: &Recipe, material: &Material) -> Result<Self, Error> {
        let mut found = match recipe.machine.cards {
            None => usable(u32::MAX, false)?,
            Some(asked) => usable(asked, true)?,
        };
        if recipe.train.workers.div_ceil(found.len() as u32) > MOST && recipe.method.share != Share::Nothing {
            let why = format!(
                "{MOST} workers a GPU are the most there can be; use more GPUs, or processes of their own"
            );
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

    /// The same for the one worker that this process has of a run's, on the GPU that its number chooses: those of a machine take
    /// turns. A machine may have fewer GPUs than the recipe names for another.
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

    /// The same on these GPUs; what connects them may be left out if it is one.
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

    /// The GPU that a worker lives on.
    fn shared_of(&self, worker: u32) -> &Arc<DeviceShared> {
        let found = self.devices.iter().find(|shared| shared.workers.contains(&worker));
        found.unwrap_or(&self.devices[0])
    }

    /// Whether workers that are in the middle of such cycles can go on together.
    pub(crate) fn is_in_step(&self, parts: &[Part]) -> bool {
        let blocks: Vec<Range<u32>> = self.devices.iter().map(|shared| shared.workers.clone()).collect();
        in_step(&blocks, &parts.iter().map(|part| (part.worker, part.in_cycle)).collect::<Vec<_>>())
    }

    /// A worker that starts with this state and no momentum, at this step of its data.
    pub(crate) fn worker(&self, worker: u32, state: &State, step: u64) -> Result<CudaReplica, Error> {
        let mut net = CudaReplica::new(Arc::clone(self.shared_of(worker)), worker, step)?;
        net.put(Kept::Statistics, &state.statistics)?;
        net.put(Kept::Parameters, &state.parameters)?;
        Ok(net)
    }

    /// Puts a model into the place of the first worker, for one who only looks at it.
    pub(crate) fn place_model(&self, model: &State) -> Result<DeviceVector, Error> {
        self.devices[0].lockstep.alone(|set| set.load(0, &model.parameters, &model.statistics))?;
        Ok(DeviceVector::Parameters)
    }

    /// Connects a group of workers and gives it its centre, one on every GPU where it has workers.
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
        // A group that lies on one GPU stays there.
        let multi_gpu = self.multi_gpu.clone().filter(|_| members.len() > 1);
        Ok(member::group(members, multi_gpu.as_ref(), deadline))
    }

    /// A worker's end of a group that lies elsewhere.
    pub(crate) fn staged<C: Collective<Buffer = [f32]>>(
        &self,
        member: C,
        place: Option<(usize, usize)>,
    ) -> Result<Staged<C>, Error> {
        let shared = &self.devices[0];
        Ok(Staged::new(member, Arc::clone(shared), self.centre_place(place, shared))?)
    }

    /// Where a GPU keeps the centre of a group; the group that makes the evaluated model has no place in the run.
    fn centre_place(&self, of: Option<(usize, usize)>, shared: &DeviceShared) -> (usize, usize) {
        match of {
            None => (EVALUATED, 0),
            // The level of all workers is the last of the run's, and the GPU's first.
            Some((level, _)) if level + 1 == self.levels => (0, 0),
            // A GPU counts groups from its own first one on.
            Some((level, number)) => {
                (self.levels - 1 - level, number - (shared.workers.start / self.group) as usize)
            }
        }
    }

    /// A worker's share in measuring models.
    pub(crate) fn evaluator(&self, worker: u32) -> CudaEvaluator {
        let shared = Arc::clone(self.shared_of(worker));
        CudaEvaluator { worker: shared.index_of(worker), shared, policy: self.policy, batches: self.batches }
    }
}

/// At most so many of the GPUs that can be used; or all of these, or none.
fn usable(most: u32, all: bool) -> Result<Vec<Device>, Error> {
    let mut found = devices()?;
    if found.iter().any(Device::is_usable) {
        found.retain(Device::is_usable);
    }
    let asked = most as usize;
    if found.is_empty() || (all && asked > found.len()) {
        let (action, why) = match found.len() {
            0 => ("use a GPU".into(), "the driver knows of none; see `grawa devices`".into()),
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

/// Compiles the network for a GPU, for these workers, and puts the data there.
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
    let bytes = |feed: &Feed| feed.part().bytes().map(<[u8]>::len);
    let data_on_device =
        bytes(train).zip(bytes(test)).is_some_and(|(train, test)| ((train + test) as f64) < room);
    if data_on_device {
        for (split, feed, steps) in [(Split::Train, train, replica::STRIDE), (Split::Test, test, 1)] {
            let shape = feed.part().shape();
            let data = DatasetBytes {
                shape: Shape {
                    channels: shape.channels as usize,
                    height: shape.height as usize,
                    width: shape.width as usize,
                },
                images: feed.part().bytes().unwrap_or_default(),
                labels: feed.part().labels(),
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

/// The most workers of one GPU.
const MOST: u32 = 64;

/// What does not go together with a GPU, if anything: the key to change and why.
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

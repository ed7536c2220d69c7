//! Training on GPUs: the workers are placed on the GPUs, with their vectors and the data set.

mod batch;
mod evaluate;
mod gpu;
mod placement;
mod set;

use super::Workload;
use crate::engine::EvaluateShard;
use crate::recipe::BatchNorm;
use crate::snapshot::Part;
use crate::worker_set::{Slot, WorkerSet};
use crate::{Error, Recipe};
use batch::{Data, Stream};
use gpu::Gpu;
use grawa_comm::Heartbeat;
use grawa_core::{Layout, Share, StateKind};
use grawa_data::{Crop, Feed};
use grawa_nn::Compiled as _;
use grawa_nn::cuda::{AllReduce, DatasetBytes, Device, MultiGpu, ReplicaSet, Settings, Split, View, devices};
use placement::{in_step, place_workers};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The largest share of a GPU's memory for data.
const SHARE_OF_DATA: f64 = 0.5;

/// The workers of one process on its GPUs.
pub(crate) struct CudaSet {
    /// None for a GPU that failed.
    gpus: Vec<Option<Gpu>>,
    /// The connection between the GPUs, if there are several.
    multi_gpu: Option<Arc<MultiGpu>>,
    /// Whether rounds use the connection even on one GPU: for tests.
    always_connect: bool,
    /// The numbers of the workers, and how many make an inner group.
    workers: Range<u32>,
    group: u32,
    policy: BatchNorm,
    /// The number of recalibration batches.
    batches: usize,
    statistics: Layout,
    heartbeat: Option<Heartbeat>,
    /// Evaluations end early once it is true.
    stop: Arc<AtomicBool>,
    /// The mean of its workers in the last round between processes, for its memory.
    combined: Vec<f32>,
}

impl std::fmt::Debug for CudaSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaSet").field("gpus", &self.gpus).finish_non_exhaustive()
    }
}

impl CudaSet {
    /// Compiles the network for the GPUs of the recipe, places all workers of the run and copies the data.
    pub(crate) fn new(recipe: &Recipe, workload: &Workload) -> Result<Self, Error> {
        let mut found = match recipe.machine.cards {
            None => usable(u32::MAX, false)?,
            Some(asked) => usable(asked, true)?,
        };
        found.truncate(place_workers(recipe.train.workers, found.len()).len());
        let multi_gpu = match found.len() {
            1 => None,
            _ => Some(MultiGpu::new(AllReduce::Nccl, &found)?),
        };
        CudaSet::on(recipe, workload, &found, 0..recipe.train.workers, multi_gpu)
    }

    /// For the workers of this process alone, on the GPU that their number selects: the processes of a machine take its GPUs in turn. A
    /// machine may have fewer GPUs than the recipe names.
    pub(crate) fn of_some(recipe: &Recipe, workload: &Workload, workers: Range<u32>) -> Result<Self, Error> {
        let mut found = usable(recipe.machine.cards.unwrap_or(u32::MAX).max(1), false)?;
        let process = workers.start as usize / workers.len().max(1);
        let device = found.swap_remove(process % found.len());
        CudaSet::on(recipe, workload, &[device], workers, None)
    }

    /// On these GPUs. A single GPU needs no connection.
    fn on(
        recipe: &Recipe,
        workload: &Workload,
        devices: &[Device],
        workers: Range<u32>,
        multi_gpu: Option<MultiGpu>,
    ) -> Result<Self, Error> {
        let count = workers.len() as u32;
        if count.div_ceil(devices.len() as u32) > MOST && recipe.method.share != Share::Nothing {
            let why = format!("a GPU can have at most {MOST} workers; use more GPUs or more processes");
            return Err(grawa_nn::Error::Device { action: format!("train {count} workers"), why }.into());
        }
        let mut gpus = Vec::with_capacity(devices.len());
        for (device, block) in devices.iter().zip(place_workers(count, devices.len())) {
            let numbers = workers.start + block.start..workers.start + block.end;
            gpus.push(Some(open_gpu(recipe, workload, device, numbers, block.start as usize)?));
        }
        Ok(CudaSet {
            gpus,
            multi_gpu: multi_gpu.map(Arc::new),
            always_connect: false,
            workers,
            group: recipe.method.inner.as_ref().map_or(1, |inner| inner.group.max(1)),
            policy: recipe.evaluate.batch_norm,
            batches: super::recalibration_batches(recipe, workload.train.len()),
            statistics: workload.graph.statistics().clone(),
            heartbeat: None,
            stop: Arc::default(),
            combined: Vec::new(),
        })
    }

    /// Whether workers at these positions of a cycle can continue together.
    pub(crate) fn is_in_step(&self, parts: &[Part]) -> bool {
        let blocks: Vec<Range<u32>> = self.gpus.iter().flatten().map(|gpu| gpu.workers.clone()).collect();
        in_step(&blocks, &parts.iter().map(|part| (part.worker, part.in_cycle)).collect::<Vec<_>>())
    }

    /// What the user should know about how the network runs.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.gpus.iter().flatten().next().map_or_else(Vec::new, |gpu| gpu.set.warnings())
    }

    pub(crate) fn evaluator(self) -> Box<dyn EvaluateShard> {
        Box::new(self)
    }

    /// Loads the state of its workers.
    pub(crate) fn load(mut self, parts: &mut [Part]) -> Result<Box<dyn WorkerSet>, Error> {
        for (index, part) in parts.iter_mut().enumerate() {
            let state = crate::engine::take_state(part);
            self.put(index, StateKind::Statistics, &state.statistics)?;
            self.put(index, StateKind::Parameters, &state.parameters)?;
            self.put(index, StateKind::Velocity, &part.velocity)?;
            self.put(index, StateKind::SecondMoment, &part.second_moment)?;
        }
        // Its memory also serves to combine the workers for other processes.
        let length = self.gpus.iter().flatten().next().map_or(0, |gpu| gpu.graph.parameters().len());
        self.set_centre(Slot::View, Arc::new(vec![0.0; length]))?;
        Ok(Box::new(self))
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
            0 => ("use a GPU".into(), "the driver reports none; see `grawa doctor`".into()),
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
fn open_gpu(
    recipe: &Recipe,
    workload: &Workload,
    device: &Device,
    workers: Range<u32>,
    first: usize,
) -> Result<Gpu, Error> {
    let Workload { graph, order, train, test, .. } = workload;
    let settings = Settings {
        batch: recipe.train.batch as usize,
        workers: workers.len(),
        precision: recipe.machine.precision,
        fixed: recipe.machine.deterministic,
    };
    let room = device.memory as f64 * SHARE_OF_DATA;
    let mut set = ReplicaSet::new(device, graph, settings)?;
    set.reserve_evaluation()?;
    if let Some(inner) = &recipe.method.inner {
        set.group_by(inner.group as usize, (workers.start % inner.group.max(1)) as usize)?;
    }
    let bytes = |feed: &Feed| feed.split().bytes().map(<[u8]>::len);
    let on_device = bytes(train).zip(bytes(test)).is_some_and(|(train, test)| ((train + test) as f64) < room);
    if on_device {
        for (split, feed, steps) in [(Split::Train, train, gpu::STRIDE), (Split::Test, test, gpu::STRIDE)] {
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
    let data = Data { order: order.clone(), train: train.clone(), test: test.clone(), on_device };
    let shard = |worker: u32| worker.min(order.workers().saturating_sub(1));
    let streams =
        (workers.clone()).map(|worker| Stream::new(&data, order, shard(worker))).collect::<Result<_, _>>()?;
    let graph = graph.clone();
    let mut gpu = Gpu { set, workers, first, graph, data, streams, ahead: None, recalibration: None };
    gpu.load_labels()?;
    Ok(gpu)
}

/// The most workers on one GPU.
const MOST: u32 = 64;

#[cfg(test)]
mod tests;

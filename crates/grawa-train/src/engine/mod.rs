//! The training engine: a network compiled once, the cores divided among the workers, and the data.
//!
//! A worker owns its parameters, moments and statistics. The memory of a pass is much larger and belongs to a
//! `ComputeSlot`: one for each core (or group of cores) that runs passes, borrowed for a step. So 64 workers on two
//! cores need the memory of two passes, not of 64.

mod compute_slots;
mod cpu_replica;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "without_cuda.rs"]
mod cuda;
mod evaluate;

use compute_slots::ComputeSlots;
pub use cpu_replica::CpuReplica;
pub(crate) use cpu_replica::WaitTimes;
pub(crate) use cuda::CudaSet;
pub use evaluate::CpuEvaluator;
pub use evaluate::EvaluateShard;
#[cfg(feature = "cuda")]
pub(crate) use evaluate::{SHARE, recalibration, recalibration_batches};
pub use grawa_session::evaluate::Counts;

use crate::model_metadata::describe;
use crate::snapshot::Part;
use crate::thread_set::Seat;
use crate::{Error, Recipe};
use grawa_core::{Key, Replica, Share, StateKind};
use grawa_data::{Augment, Dataset, Feed, Loader, Sampler};
use grawa_nn::{Compiled as _, Graph, Metadata, Program, Shape, State};
use std::sync::Arc;

/// Takes the state of a worker's network out of its part.
pub(crate) fn take_state(part: &mut Part) -> State {
    State {
        parameters: std::mem::take(&mut part.parameters),
        statistics: std::mem::take(&mut part.statistics),
        batches: part.taken,
    }
}

/// What a run works on, on any device: a network, the data, and which worker sees which examples when.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    pub(crate) graph: Graph,
    pub(crate) order: Sampler,
    pub(crate) train: Feed,
    pub(crate) test: Feed,
    /// What files of its models say.
    pub(crate) metadata: Metadata,
}

impl Workload {
    /// The network and data of a recipe.
    pub(crate) fn new(recipe: &Recipe, data: &Dataset) -> Result<Self, Error> {
        let input = network_shape(recipe.data.augment.output(data.train.shape()));
        let graph = recipe.model.build(input, data.classes as usize)?;
        Workload::with_network(recipe, data, &graph)
    }

    /// The same with a given network.
    pub(crate) fn with_network(recipe: &Recipe, data: &Dataset, graph: &Graph) -> Result<Self, Error> {
        if graph.classes() < data.classes as usize {
            let (found, expected) = (graph.classes(), data.classes as usize);
            return Err(Error::TooFewClasses { network: graph.name().into(), found, expected });
        }
        let (train, test) = match recipe.data.held_out {
            0 => (data.train.clone(), data.test.clone()),
            n => data.train.hold_out(n as usize, recipe.train.seed)?,
        };
        let feed = |part, augment: Augment| Feed::new(part, &data.normalise, augment);
        let (train, test) = (feed(&train, recipe.data.augment)?, feed(&test, recipe.data.augment)?);
        let order = Sampler::new(recipe.train.seed, train.len(), recipe.train.workers, recipe.train.batch)?;
        let order = order.skewed(&recipe.data.skew(), train.split().labels(), data.classes)?;
        let metadata = describe(recipe, data, graph);
        Ok(Workload { graph: graph.clone(), order, train, test, metadata })
    }
}

/// The shape of the data as the network's type.
pub(crate) fn network_shape(shape: grawa_data::Shape) -> Shape {
    let [channels, height, width] = [shape.channels, shape.height, shape.width].map(|side| side as usize);
    Shape { channels, height, width }
}

/// The examples of a worker's score in a round. A batch larger than the training set contains some examples twice.
fn score_examples(order: &Sampler, key: Key) -> Result<Vec<u32>, Error> {
    let ((worker, round), examples) = (key.place(), order.examples() as usize);
    let size = order.batch_size() as usize;
    let mut chosen = order.score_batch(size.min(examples), worker, round)?;
    for at in examples..size {
        chosen.push(chosen[at - examples]);
    }
    Ok(chosen)
}

/// A network and its data on the CPU, ready to create workers.
#[derive(Clone, Debug)]
pub struct Engine {
    program: Arc<Program>,
    slots: Arc<ComputeSlots>,
    order: Sampler,
    train: Feed,
    test: Feed,
    /// Whether workers share gradients, so that each keeps its own.
    keeps_gradient: bool,
}

impl Engine {
    /// The engine for a recipe on its data set, with the network of the recipe.
    pub fn new(recipe: &Recipe, data: &Dataset) -> Result<Self, Error> {
        Engine::of(
            recipe,
            Workload::new(recipe, data)?,
            recipe.train.workers as usize,
            recipe.machine.threads,
        )
    }

    /// For this many workers in this process, which may use this many cores; all if `None`.
    pub(crate) fn of(
        recipe: &Recipe,
        workload: Workload,
        workers: usize,
        cores: Option<u32>,
    ) -> Result<Self, Error> {
        let Workload { graph, order, train, test, .. } = workload;
        let program = Arc::new(Program::compile(&graph, recipe.train.batch as usize)?);
        let cores = cores.map_or_else(
            || std::thread::available_parallelism().map_or(1, usize::from),
            |threads| threads as usize,
        );
        let keeps_gradient = recipe.method.share == Share::Gradients;
        let slots = ComputeSlots::new(&program, &train, workers, cores.max(1))?;
        Ok(Engine { program, slots: Arc::new(slots), order, train, test, keeps_gradient })
    }

    /// The network.
    pub fn graph(&self) -> &Graph {
        self.program.graph()
    }

    /// What the user should know about how the network runs.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.program.warnings()
    }

    /// Which worker sees which examples when.
    pub fn order(&self) -> &Sampler {
        &self.order
    }

    /// A worker with this state and no momentum, at this step of its data.
    pub fn worker(&self, worker: u32, state: State, step: u64) -> Result<CpuReplica, Error> {
        let reader = Loader::new(self.train.clone(), &self.order, worker)?;
        CpuReplica::new(self, reader, state, step)
    }

    /// The workers of these parts.
    pub(crate) fn seats(&self, recipe: &Recipe, parts: &mut [Part]) -> Result<Vec<Seat>, Error> {
        let evaluator = self.evaluator(recipe);
        let seat = |part: &mut Part| {
            let mut replica = self.worker(part.worker, take_state(part), part.taken)?;
            replica.put(StateKind::Velocity, &part.velocity)?;
            replica.put(StateKind::SecondMoment, &part.second_moment)?;
            let (worker, waits) = (part.worker, Some(replica.waits()));
            Ok(Seat {
                worker,
                replica: Box::new(replica),
                waits,
                evaluator: Some(Box::new(evaluator.clone())),
            })
        };
        parts.iter_mut().map(seat).collect()
    }

    /// Evaluates models on the CPU.
    pub fn evaluator(&self, recipe: &Recipe) -> CpuEvaluator {
        let batches = evaluate::recalibration_batches(recipe, self.train.len());
        CpuEvaluator { engine: self.clone(), policy: recipe.evaluate.batch_norm, batches }
    }
}

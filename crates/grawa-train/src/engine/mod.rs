//! What trains: a network compiled once, the cores shared out among the workers, and the data.
//!
//! A worker owns its parameters, momentum and statistics. What a pass writes to is much larger and belongs to a `Lane`:
//! one for each core (or group of cores) that runs passes, borrowed for a step. So 64 workers on two cores need the
//! memory of two passes, not of 64.

mod card;
mod examine;
mod lanes;
mod net;

pub(crate) use card::{CardEngine, CardNet, objection};
pub use examine::Examiner;
pub(crate) use examine::{Counts, Examine, SHARE, average, recalibration, recalibration_batches};
pub use lanes::Lanes;
pub use net::Net;
pub(crate) use net::Waits;

use crate::{Error, Recipe};
use grawa_core::Share;
use grawa_data::{Augment, Dataset, Feed, Loader, Sampler};
use grawa_nn::{Graph, Program, Shape, State};
use std::sync::Arc;

/// What a run works on, wherever it runs: a network, examples, and who sees them when.
#[derive(Clone, Debug)]
pub(crate) struct Material {
    pub(crate) graph: Graph,
    pub(crate) order: Sampler,
    pub(crate) train: Feed,
    pub(crate) test: Feed,
}

impl Material {
    /// What a recipe asks for, with the network it names.
    pub(crate) fn new(recipe: &Recipe, data: &Dataset) -> Result<Self, Error> {
        let shape = recipe.data.augment.output(data.train.shape());
        let input = Shape {
            channels: shape.channels as usize,
            height: shape.height as usize,
            width: shape.width as usize,
        };
        let graph = recipe.model.build(input, data.classes as usize)?;
        Material::with_network(recipe, data, &graph)
    }

    /// The same with a network of one's own.
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
        Ok(Material { graph: graph.clone(), order, train, test })
    }
}

/// A network and its data on the CPU, ready to make workers.
#[derive(Clone, Debug)]
pub struct Engine {
    program: Arc<Program>,
    lanes: Arc<Lanes>,
    order: Sampler,
    train: Feed,
    test: Feed,
    /// Whether workers share gradients, and each must keep its own.
    keeps_gradient: bool,
}

impl Engine {
    /// The engine for a recipe on its data set, with the network it asks for.
    pub fn new(recipe: &Recipe, data: &Dataset) -> Result<Self, Error> {
        Engine::of(recipe, Material::new(recipe, data)?)
    }

    /// The same with a network of one's own, which must take images as the recipe's augmentation leaves them and tell
    /// at least the classes of the data set apart.
    pub fn with_network(recipe: &Recipe, data: &Dataset, graph: &Graph) -> Result<Self, Error> {
        Engine::of(recipe, Material::with_network(recipe, data, graph)?)
    }

    pub(crate) fn of(recipe: &Recipe, material: Material) -> Result<Self, Error> {
        let Material { graph, order, train, test } = material;
        let program = Arc::new(Program::compile(&graph, recipe.train.batch as usize)?);
        let cores = recipe.machine.threads.map_or_else(
            || std::thread::available_parallelism().map_or(1, usize::from),
            |threads| threads as usize,
        );
        let keeps_gradient = recipe.method.share == Share::Gradients;
        let lanes = Lanes::new(&program, &train, recipe.train.workers as usize, cores.max(1))?;
        Ok(Engine { program, lanes: Arc::new(lanes), order, train, test, keeps_gradient })
    }

    /// The network.
    pub fn graph(&self) -> &Graph {
        self.program.graph()
    }

    /// Which examples each worker sees when.
    pub fn order(&self) -> &Sampler {
        &self.order
    }

    /// Examples that models are measured on.
    pub fn test_examples(&self) -> usize {
        self.test.len()
    }

    /// A worker that starts with this state and no momentum, at this step of its data.
    pub fn worker(&self, worker: u32, state: State, step: u64) -> Result<Net, Error> {
        let reader = Loader::new(self.train.clone(), self.order, worker)?;
        Net::new(self, reader, state, step)
    }

    /// Who evaluates models.
    pub fn examiner(&self, recipe: &Recipe) -> Examiner {
        Examiner::new(self, recipe)
    }

    /// Bytes that a worker owns besides its batches, and bytes of what the cores share.
    pub fn bytes(&self) -> (usize, usize) {
        let graph = self.graph();
        let vectors = if self.keeps_gradient { 3 } else { 2 };
        (4 * (vectors * graph.parameters().len() + graph.statistics().len()), self.lanes.bytes())
    }
}

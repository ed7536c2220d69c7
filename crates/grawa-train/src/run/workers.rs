//! What the workers of a run are: copies of a network on an engine of ours, or replicas of the caller's own.

use super::DEADLINE;
use crate::engine::{CudaSet, Engine, EvaluateShard, Workload};
use crate::recipe::Device;
use crate::snapshot::Part;
use crate::thread_set::{Seat, ThreadSet};
use crate::worker_set::WorkerSet;
use crate::{Error, Recipe};
use grawa_core::{Layout, Replica, StateKind};
use grawa_nn::{Graph, Metadata, State};
use std::fmt;
use std::ops::Range;
use std::sync::OnceLock;

/// Where the work of a network is done.
#[derive(Debug)]
pub(crate) enum AnyEngine {
    Cpu(Box<Engine>),
    Cuda(Box<CudaSet>),
}

impl AnyEngine {
    /// For all workers of a run in this process.
    pub(crate) fn of_all(recipe: &Recipe, workload: Workload) -> Result<Self, Error> {
        match recipe.machine.device {
            Device::Cpu => {
                AnyEngine::of_some(recipe, workload, 0..recipe.train.workers, recipe.machine.threads)
            }
            // All GPUs, and not the one of a process.
            Device::Cuda => Ok(AnyEngine::Cuda(Box::new(CudaSet::new(recipe, &workload)?))),
        }
    }

    /// For these workers of a run, which are in this process. On a CPU they may use this many cores; all if `None`.
    pub(crate) fn of_some(
        recipe: &Recipe,
        workload: Workload,
        workers: Range<u32>,
        cores: Option<u32>,
    ) -> Result<Self, Error> {
        match recipe.machine.device {
            Device::Cpu => Ok(AnyEngine::Cpu(Box::new(Engine::of(recipe, workload, workers.len(), cores)?))),
            Device::Cuda => Ok(AnyEngine::Cuda(Box::new(CudaSet::of_some(recipe, &workload, workers)?))),
        }
    }
}

/// A replica of the caller's own, and what measures models, if they are evaluated.
type OwnReplica = (Box<dyn Replica + Send>, Option<Box<dyn EvaluateShard>>);

/// The workers of a run in this process.
pub(crate) enum Workers {
    Network {
        graph: Box<Graph>,
        metadata: Metadata,
        engine: AnyEngine,
        start: OnceLock<(State, Option<String>)>,
    },
    Own {
        name: String,
        layout: Layout,
        make: Box<dyn Fn(u32) -> Result<OwnReplica, Error>>,
        /// What worker 0's replica starts with: it may take long to make one.
        start: OnceLock<(Vec<f32>, Vec<f32>)>,
    },
    Set {
        name: String,
        layout: Layout,
        start: Vec<f32>,
        make: MakeSet,
    },
}

/// Makes a set of the caller's own, of these workers.
pub(crate) type MakeSet = Box<dyn FnOnce(&[u32]) -> Result<Box<dyn WorkerSet>, grawa_session::Error>>;

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Workers").field(&self.name()).finish()
    }
}

impl Workers {
    pub(crate) fn name(&self) -> &str {
        match self {
            Workers::Network { graph, .. } => graph.name(),
            Workers::Own { name, .. } | Workers::Set { name, .. } => name,
        }
    }

    pub(crate) fn layout(&self) -> &Layout {
        match self {
            Workers::Network { graph, .. } => graph.parameters(),
            Workers::Own { layout, .. } | Workers::Set { layout, .. } => layout,
        }
    }

    /// What the user should know about how the network runs.
    pub(crate) fn warnings(&self) -> Vec<String> {
        match self {
            Workers::Network { engine: AnyEngine::Cpu(engine), .. } => engine.warnings(),
            Workers::Network { engine: AnyEngine::Cuda(set), .. } => set.warnings(),
            Workers::Own { .. } | Workers::Set { .. } => Vec::new(),
        }
    }

    pub(crate) fn graph(&self) -> Option<&Graph> {
        if let Workers::Network { graph, .. } = self { Some(graph) } else { None }
    }

    /// The network, and what files of its models say.
    pub(crate) fn described(&self) -> Option<(Graph, Metadata)> {
        let Workers::Network { graph, metadata, .. } = self else { return None };
        Some((Graph::clone(graph), metadata.clone()))
    }

    /// What all workers start with: parameters and statistics.
    pub(crate) fn start(&self, recipe: &Recipe) -> Result<(Vec<f32>, Vec<f32>), Error> {
        match self {
            Workers::Network { graph, start, .. } => {
                if start.get().is_none() {
                    let seed = recipe.train.seed;
                    let made = match &recipe.model.init {
                        Some(path) => {
                            let (state, words) = crate::init::start(graph, path, seed)?;
                            (state, Some(words))
                        }
                        None => (State::initial(graph, seed), None),
                    };
                    let _ = start.set(made);
                }
                let (start, _) = start.get().ok_or(grawa_session::Error::Left)?;
                Ok((start.parameters.clone(), start.statistics.clone()))
            }
            Workers::Own { make, layout, start, .. } => {
                if start.get().is_none() {
                    let (mut replica, _) = make(0)?;
                    let parameters = replica.copy(StateKind::Parameters)?;
                    check_length(&parameters, layout)?;
                    let _ = start.set((parameters, replica.copy(StateKind::Statistics)?));
                }
                Ok(start.get().ok_or(grawa_session::Error::Left)?.clone())
            }
            Workers::Set { start, layout, .. } => {
                check_length(start, layout)?;
                Ok((start.clone(), Vec::new()))
            }
        }
    }

    /// Which tensors of a file the workers start with, in words, where they start from one and that has been read.
    pub(crate) fn start_in_words(&self) -> Option<&str> {
        if let Workers::Network { start, .. } = self { start.get()?.1.as_deref() } else { None }
    }

    /// Whether workers at these positions of a cycle can continue together.
    pub(crate) fn is_in_step(&self, parts: &[Part]) -> bool {
        match self {
            Workers::Network { engine: AnyEngine::Cuda(set), .. } => set.is_in_step(parts),
            _ => true,
        }
    }

    /// The workers of these parts.
    pub(crate) fn set(self, recipe: &Recipe, parts: &mut [Part]) -> Result<Box<dyn WorkerSet>, Error> {
        let layout = self.layout().clone();
        match self {
            Workers::Network { engine: AnyEngine::Cuda(set), .. } => set.load(parts),
            Workers::Network { engine: AnyEngine::Cpu(engine), .. } => {
                Ok(Box::new(ThreadSet::new(layout, engine.seats(recipe, parts)?, DEADLINE)))
            }
            Workers::Own { make, .. } => {
                let seat = |part: &mut Part| {
                    let (mut replica, evaluator) = make(part.worker)?;
                    replica.put(StateKind::Parameters, &part.parameters)?;
                    replica.put(StateKind::Velocity, &part.velocity)?;
                    replica.put(StateKind::Statistics, &part.statistics)?;
                    Ok(Seat { worker: part.worker, replica, waits: None, evaluator })
                };
                let seats = parts.iter_mut().map(seat).collect::<Result<_, Error>>()?;
                Ok(Box::new(ThreadSet::new(layout, seats, DEADLINE)))
            }
            Workers::Set { make, .. } => {
                let mut set = make(&parts.iter().map(|part| part.worker).collect::<Vec<_>>())?;
                for (index, part) in parts.iter().enumerate() {
                    set.put(index, StateKind::Parameters, &part.parameters)?;
                    set.put(index, StateKind::Velocity, &part.velocity)?;
                    set.put(index, StateKind::Statistics, &part.statistics)?;
                }
                Ok(set)
            }
        }
    }
}

fn check_length(start: &[f32], layout: &Layout) -> Result<(), Error> {
    let (found, expected) = (start.len(), layout.len());
    match found == expected {
        true => Ok(()),
        false => {
            let what = "the parameters of worker 0".into();
            Err(grawa_core::Error::WrongLength { what, found, expected }.into())
        }
    }
}

//! A run from its start to its end: workers are made and supervised.
//!
//! Each worker is a thread; the calling thread watches: it passes events on to the observers and writes checkpoints. A
//! worker that fails is named in an event and the others continue without it; the run fails only when no worker is left.

use crate::checkpoint::{Checkpoint, Writer};
use crate::engine::{
    CpuEvaluator, CpuReplica, CudaEngine, CudaReplica, Engine, EvaluateShard, Material, WaitTimes,
};
use crate::evaluate::viewing;
use crate::event::{Event, Finished, Observer, Started};
use crate::milestones::{Milestones, Position, cycle};
use crate::pace::{Pacing, Recording};
use crate::recipe::{Device, Model, Pace};
use crate::snapshot::{Part, Snapshot, Snapshots};
use crate::supervisor::Supervisor;
use crate::worker::{Clock, Common, Level, Worker};
use crate::{Error, Recipe};
use grawa_comm::group::Reporter;
use grawa_comm::{Collective, threads};
use grawa_core::{Layout, Memory, Method, Replica, Share, StateKind, Tracker};
use grawa_data::Dataset;
use grawa_nn::{Graph, State};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// A worker that takes no step for so long while others wait is given up.
const DEADLINE: Duration = Duration::from_secs(600);

/// A run that is ready to start.
///
/// ```
/// use grawa_train::{Recipe, Run, recipe::Overrides};
/// let overrides = Overrides::default().method("mgrawa:period=8", "here")?.set("train.budget=16step")?;
/// let recipe = Recipe::resolve(&overrides)?;
/// let data = grawa_data::load("digits", ".".as_ref())?;
/// let end = Run::new(recipe, &data)?.go(&mut [])?;
/// assert_eq!((end.at.steps, end.at.rounds), (16, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Run {
    recipe: Recipe,
    graph: Graph,
    examples: usize,
    engine: AnyEngine,
    folder: Option<PathBuf>,
    checkpoint: Option<Checkpoint>,
    recording: Option<Recording>,
    stop: Arc<AtomicBool>,
    /// What all workers start with, once it was made.
    start: OnceLock<State>,
}

/// Where the work is done.
#[derive(Debug)]
pub(crate) enum AnyEngine {
    Cpu(Box<Engine>),
    Cuda(CudaEngine),
}

impl AnyEngine {
    /// For the one worker that this process has of a run's: whose data it begins with, and its number, which chooses among several
    /// cards. On a CPU it may use this many cores; all if `None`.
    pub(crate) fn of_one(
        recipe: &Recipe,
        material: Material,
        (seat, number): (u32, u32),
        cores: Option<u32>,
    ) -> Result<Self, Error> {
        match recipe.machine.device {
            Device::Cpu => {
                let mut alone = recipe.clone();
                (alone.train.workers, alone.machine.threads) = (1, cores);
                Ok(AnyEngine::Cpu(Box::new(Engine::of(&alone, material)?)))
            }
            Device::Cuda => Ok(AnyEngine::Cuda(CudaEngine::of_one(recipe, &material, seat, number)?)),
        }
    }
}

impl Run {
    /// A run of a recipe on its data.
    pub fn new(recipe: Recipe, data: &Dataset) -> Result<Self, Error> {
        let material = Material::new(&recipe, data)?;
        Run::of(recipe, material)
    }

    /// The same with a network of one's own instead of the recipe's; [`Run::recipe`] names that one from here on.
    pub fn with_network(mut recipe: Recipe, data: &Dataset, network: &Graph) -> Result<Self, Error> {
        let material = Material::with_network(&recipe, data, network)?;
        let name = network.name().into();
        recipe.model = Model { name, width: None, classes: None, init: recipe.model.init };
        Run::of(recipe, material)
    }

    /// The recipe, which names the network that is trained: the one to make a folder with.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    fn of(recipe: Recipe, material: Material) -> Result<Self, Error> {
        let (graph, examples) = (material.graph.clone(), material.order.examples() as usize);
        let engine = match recipe.machine.device {
            Device::Cpu => AnyEngine::Cpu(Box::new(Engine::of(&recipe, material)?)),
            Device::Cuda => AnyEngine::Cuda(CudaEngine::new(&recipe, &material)?),
        };
        Ok(Run::by(engine, recipe, graph, examples))
    }

    fn by(engine: AnyEngine, recipe: Recipe, graph: Graph, examples: usize) -> Self {
        let (folder, checkpoint, recording, stop) = (None, None, None, Arc::default());
        Run { recipe, graph, examples, engine, folder, checkpoint, recording, stop, start: OnceLock::new() }
    }

    /// The same on cards of the test's choice.
    #[cfg(test)]
    pub(crate) fn on_gpus(engine: CudaEngine, recipe: Recipe, material: &Material) -> Self {
        let (graph, examples) = (material.graph.clone(), material.order.examples() as usize);
        Run::by(AnyEngine::Cuda(engine), recipe, graph, examples)
    }

    /// Leaves checkpoints in this folder.
    pub fn keep_in(self, folder: &Path) -> Self {
        Run { folder: Some(folder.into()), ..self }
    }

    /// Goes on from a checkpoint.
    pub fn resume(self, checkpoint: Checkpoint) -> Self {
        Run { checkpoint: Some(checkpoint), ..self }
    }

    /// Gives every worker the steps it took when the run was recorded.
    pub fn replay(self, recording: Recording) -> Self {
        Run { recording: Some(recording), ..self }
    }

    /// Stops within a step when this becomes true, and writes a checkpoint.
    pub fn stop_by(self, stop: Arc<AtomicBool>) -> Self {
        Run { stop, ..self }
    }

    /// That the run can start: what it starts from is there and fits.
    pub fn check(&self) -> Result<(), Error> {
        match &self.checkpoint {
            Some(checkpoint) => fits(&self.recipe, &self.graph, checkpoint),
            None => self.start().map(|_| ()),
        }
    }

    /// What all workers start with.
    fn start(&self) -> Result<&State, Error> {
        if let Some(state) = self.start.get() {
            return Ok(state);
        }
        let (graph, seed) = (&self.graph, self.recipe.train.seed);
        let state = match &self.recipe.model.init {
            Some(path) => crate::init::start(graph, path, seed)?.0,
            None => State::initial(graph, seed),
        };
        Ok(self.start.get_or_init(|| state))
    }

    /// Trains. Returns how it ended; an error if every worker was lost, or what happened could not be recorded.
    pub fn go(self, observers: &mut [Box<dyn Observer>]) -> Result<Finished, Error> {
        let snapshot = match &self.checkpoint {
            Some(checkpoint) => {
                fits(&self.recipe, &self.graph, checkpoint)?;
                checkpoint.snapshot.clone()
            }
            None => {
                let state = self.start()?;
                let start = (state.parameters.clone(), state.statistics.clone());
                let starts = vec![start; self.recipe.train.workers as usize];
                fresh(&self.recipe.method, self.graph.parameters(), starts)?
            }
        };
        let Run { recipe, graph, examples, engine, folder, checkpoint, recording, stop, start } = self;
        drop(start);
        let resumed = checkpoint.is_some();
        let launch =
            Launch { recording, ..Launch::new(recipe, graph, examples, folder.as_deref(), stop, resumed) };
        match engine {
            AnyEngine::Cpu(engine) => {
                let examiner = engine.evaluator(&launch.recipe);
                launch.go(
                    snapshot,
                    |part| WorkerParts::on_cpu(&engine, &examiner, part),
                    by_threads(DEADLINE),
                    observers,
                )
            }
            AnyEngine::Cuda(engine) => {
                if let Some(Checkpoint { path, .. }) =
                    checkpoint.filter(|_| !engine.is_in_step(&snapshot.parts))
                {
                    let why = "the workers of a GPU stand at different steps between two rounds; it was stopped with \
                               another machine.cards or machine.device, and must be resumed with those";
                    return Err(Error::AnotherRun { path, why: why.into() });
                }
                let make = |part: &mut Part| WorkerParts::on_gpus(&engine, part);
                launch.go(snapshot, make, |group| engine.gather(&group, DEADLINE), observers)
            }
        }
    }
}

/// Whether a checkpoint is of such a run.
fn fits(recipe: &Recipe, graph: &Graph, checkpoint: &Checkpoint) -> Result<(), Error> {
    let wrong = |why: String| Err(Error::AnotherRun { path: checkpoint.path.clone(), why });
    if let Some(why) = checkpoint.origin.as_ref().and_then(|origin| origin.objection(graph)) {
        return wrong(why);
    }
    checkpoint.check_recipe()?;
    for part in &checkpoint.snapshot.parts {
        let (found, expected) = (part.parameters.len(), graph.parameters().len());
        if found != expected || part.velocity.len() != expected {
            return wrong(format!("it has {found} parameters, and {} has {expected}", graph.name()));
        }
        if part.worker >= recipe.train.workers {
            return wrong(format!("it has a worker {}, and there are {}", part.worker, recipe.train.workers));
        }
    }
    let groups: Vec<usize> = checkpoint.snapshot.memories.iter().map(Vec::len).collect();
    let expected: Vec<usize> =
        levels(&recipe.method, recipe.train.workers).iter().map(|(_, groups)| groups.len()).collect();
    if groups != expected {
        return wrong(format!("it has groups {groups:?} by level, and the method has {expected:?}"));
    }
    Ok(())
}

/// The levels of rounds and their groups: the inner level, if there is one, then all workers.
fn levels(method: &Method, workers: u32) -> Vec<(Method, Vec<Range<u32>>)> {
    let inner = method.inner.as_ref().map(|inner| (inner.method.clone(), inner.group.max(1)));
    (inner.into_iter().chain([(method.clone(), workers.max(1))]))
        .map(|(method, size)| {
            let starts = (0..workers).step_by(size as usize);
            (method, starts.map(|start| start..(start + size).min(workers)).collect())
        })
        .collect()
}

/// The snapshot before the first step. Each group's centre is the mean of where its finite workers start.
pub(crate) fn fresh(
    method: &Method,
    layout: &Layout,
    starts: Vec<(Vec<f32>, Vec<f32>)>,
) -> Result<Snapshot, Error> {
    method.check()?;
    let levels = levels(method, starts.len() as u32);
    let is_finite = |start: &[f32]| start.iter().all(|x| x.is_finite());
    if !starts.iter().any(|(parameters, _)| is_finite(parameters)) {
        return Err(grawa_core::Error::NothingFinite.into());
    }
    let mut centres = Vec::new();
    for (level, (_, groups)) in levels.iter().enumerate() {
        for (index, group) in groups.iter().enumerate() {
            let mut sums = vec![0.0f64; layout.len()];
            let mut count = 0.0;
            for worker in group.clone() {
                let start = &starts[worker as usize].0;
                if is_finite(start) {
                    sums.iter_mut().zip(start).for_each(|(sum, &x)| *sum += f64::from(x));
                    count += 1.0;
                }
            }
            centres.push((level, index, sums.into_iter().map(|sum| (sum / count) as f32).collect()));
        }
    }
    let notes: Vec<_> =
        levels.iter().map(|(method, _)| Tracker::new(method, layout).notes().clone()).collect();
    let mut parts: Vec<Part> = (0..)
        .zip(starts)
        .map(|(worker, (parameters, statistics))| Part {
            worker,
            velocity: vec![0.0; parameters.len()],
            parameters,
            statistics,
            notes: notes.clone(),
            loss: f64::NAN,
            finite: true,
            ..Part::default()
        })
        .collect();
    parts[0].centres = centres;
    let memories = levels.iter().map(|(_, groups)| vec![Memory::default(); groups.len()]).collect();
    Ok(Snapshot { parts, memories, ..Snapshot::default() })
}

/// A worker's replica and what goes with it.
pub(crate) struct WorkerParts<R: Replica> {
    pub(crate) replica: R,
    pub(crate) waits: Option<Arc<WaitTimes>>,
    pub(crate) examiner: Option<Box<dyn EvaluateShard<R::Buffer>>>,
}

impl WorkerParts<CpuReplica> {
    /// A worker on the CPU, from its part.
    pub(crate) fn on_cpu(engine: &Engine, examiner: &CpuEvaluator, part: &mut Part) -> Result<Self, Error> {
        let mut net = engine.worker(part.worker, part.take_state(), part.taken)?;
        net.put(StateKind::Velocity, &part.velocity)?;
        let waits = net.waits();
        Ok(WorkerParts { replica: net, waits: Some(waits), examiner: Some(Box::new(examiner.clone())) })
    }
}

impl WorkerParts<CudaReplica> {
    /// A worker on a card, from its part.
    pub(crate) fn on_gpus(engine: &CudaEngine, part: &mut Part) -> Result<Self, Error> {
        let mut net = engine.worker(part.worker, &part.take_state(), part.taken)?;
        net.put(StateKind::Velocity, &part.velocity)?;
        let waits = net.waits();
        let examiner = Box::new(engine.evaluator(part.worker));
        Ok(WorkerParts { replica: net, waits: Some(waits), examiner: Some(examiner) })
    }
}

/// A group of workers to be connected.
pub(crate) struct Group {
    /// Its level and its number there; the group that makes the evaluated model has none.
    pub(crate) place: Option<(usize, usize)>,
    pub(crate) workers: Range<u32>,
    pub(crate) centre: Vec<f32>,
}

/// Everything a run needs besides its replicas.
pub(crate) struct Launch {
    pub(crate) recipe: Recipe,
    pub(crate) layout: Layout,
    pub(crate) network: String,
    pub(crate) examples: usize,
    /// Whether models are evaluated.
    pub(crate) examines: bool,
    pub(crate) writer: Option<Writer>,
    pub(crate) recording: Option<Recording>,
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) clock: Clock,
    pub(crate) resumed: bool,
    /// Sends reports to the coordinator, if there is one.
    pub(crate) teller: Option<Reporter>,
    /// In an elastic group: all workers were asked to stop, not this one alone.
    pub(crate) together: Arc<AtomicBool>,
}

impl Launch {
    /// A run of this recipe from now on, which leaves checkpoints in a folder if there is one.
    pub(crate) fn new(
        recipe: Recipe,
        graph: Graph,
        examples: usize,
        folder: Option<&Path>,
        stop: Arc<AtomicBool>,
        resumed: bool,
    ) -> Self {
        let started = Instant::now();
        Launch {
            layout: graph.parameters().clone(),
            network: graph.name().into(),
            examples,
            examines: true,
            writer: folder.map(|folder| Writer::new(folder, &recipe, Some(graph))),
            recording: None,
            stop,
            clock: Arc::new(move || started.elapsed()),
            resumed,
            teller: None,
            together: Arc::default(),
            recipe,
        }
    }

    /// Starts all workers from a snapshot, with replicas made of their parts, and watches until they are done.
    pub(crate) fn go<R, C>(
        self,
        mut snapshot: Snapshot,
        make: impl Fn(&mut Part) -> Result<WorkerParts<R>, Error>,
        gather: impl Fn(Group) -> Result<Vec<C>, Error>,
        observers: &mut [Box<dyn Observer>],
    ) -> Result<Finished, Error>
    where
        R: Replica + Send + 'static,
        C: Collective<Buffer = R::Buffer> + Send + 'static,
    {
        let recipe = &self.recipe;
        revive(&self.recipe, &self.layout, &mut snapshot);
        let pacing = match (&self.recording, recipe.train.pace) {
            (Some(recording), pace) => {
                Pacing::Replay { recording: recording.clone(), even: pace == Pace::Even }
            }
            (None, Pace::Even) => Pacing::Even,
            (None, Pace::Free) => {
                let taken = snapshot.parts.iter().map(|part| part.in_cycle).sum();
                Pacing::free(snapshot.at.steps / u64::from(cycle(&recipe.method)), taken)
            }
        };
        if let Some(writer) = &self.writer {
            writer.tidy()?;
        }
        let at = snapshot.at;
        self.run(at, pacing, |launch, common| workers(launch, common, snapshot, make, gather), observers)
    }

    /// Starts the workers that `make` makes, and watches until they are done.
    pub(crate) fn run<R, C>(
        self,
        at: Position,
        pacing: Pacing,
        make: impl FnOnce(&Launch, &Arc<Common>) -> Result<Vec<Worker<R, C>>, Error>,
        observers: &mut [Box<dyn Observer>],
    ) -> Result<Finished, Error>
    where
        R: Replica + Send + 'static,
        C: Collective<Buffer = R::Buffer> + Send + 'static,
    {
        let recipe = &self.recipe;
        let milestones = Milestones::new(recipe, self.examples);
        let started = Started {
            at: milestones.place(&at),
            method: recipe.method.to_string(),
            network: self.network.clone(),
            data: recipe.data.kind.to_string(),
            workers: recipe.train.workers,
            batch: recipe.train.batch,
            seed: recipe.train.seed,
            budget: recipe.train.budget,
            steps: milestones.steps(),
            parameters: self.layout.len(),
            spans: self.layout.spans().iter().map(|span| span.name().to_owned()).collect(),
            examples: self.examples,
            resumed: self.resumed,
        };
        let (notes, inbox) = channel();
        let (written, acknowledged) = channel();
        let common = Arc::new(Common {
            method: recipe.method.clone(),
            layout: self.layout.clone(),
            sgd: recipe.train.sgd,
            rate: recipe.train.rate.clone(),
            seed: recipe.train.seed,
            milestones,
            pacing,
            stop: Arc::clone(&self.stop),
            clock: Arc::clone(&self.clock),
            notes,
            teller: self.teller.clone(),
            together: Arc::clone(&self.together),
            snapshots: self.writer.as_ref().map(|_| Snapshots::new(acknowledged)),
        });
        let workers = make(&self, &common)?;
        let mut watch = Supervisor::new(&self, observers, written, started.at);
        watch.tell(&Event::Started(started));
        watch.over(workers, &common, &inbox)
    }
}

/// Connects the workers of a group as threads of one process.
pub(crate) fn by_threads(deadline: Duration) -> impl Fn(Group) -> Result<Vec<threads::Member>, Error> {
    move |group| Ok(threads::group(group.workers, group.centre, deadline))
}

/// Restores workers that were lost: with the centre and no momentum where parameters are shared, as a copy of another
/// worker where gradients are and all must be the same.
fn revive(recipe: &Recipe, layout: &Layout, snapshot: &mut Snapshot) {
    let all = snapshot.memories.len().saturating_sub(1);
    let Some(model) = snapshot.parts.first().cloned() else { return };
    let centre = (snapshot.parts.iter().flat_map(|part| &part.centres))
        .find(|(level, _, _)| *level == all)
        .map(|(_, _, centre)| centre.clone());
    for worker in 0..recipe.train.workers {
        if snapshot.parts.iter().any(|part| part.worker == worker) {
            continue;
        }
        let mut part = Part { worker, centres: Vec::new(), ..model.clone() };
        if recipe.method.share == Share::Parameters {
            part.parameters = centre.clone().unwrap_or_else(|| model.parameters.clone());
            part.velocity.fill(0.0);
            part.notes = (levels(&recipe.method, recipe.train.workers).iter())
                .map(|(method, _)| Tracker::new(method, layout).notes().clone())
                .collect();
        }
        snapshot.parts.push(part);
    }
    snapshot.parts.sort_by_key(|part| part.worker);
}

/// The workers, each with its ends of all groups.
fn workers<R: Replica, C: Collective<Buffer = R::Buffer>>(
    launch: &Launch,
    common: &Arc<Common>,
    snapshot: Snapshot,
    make: impl Fn(&mut Part) -> Result<WorkerParts<R>, Error>,
    gather: impl Fn(Group) -> Result<Vec<C>, Error>,
) -> Result<Vec<Worker<R, C>>, Error> {
    let Snapshot { at, settled, mut parts, memories, history, .. } = snapshot;
    let method = &common.method;
    let count = launch.recipe.train.workers;
    let len = common.layout.len();
    let mut centres: Vec<(usize, usize, Vec<f32>)> =
        parts.iter_mut().flat_map(|part| std::mem::take(&mut part.centres)).collect();
    let mut seats: Vec<Vec<Level<C>>> = (0..count).map(|_| Vec::new()).collect();
    for (index, (level_method, groups)) in levels(method, count).into_iter().enumerate() {
        for (own, group) in groups.iter().enumerate() {
            let kept = centres.iter().position(|(level, at, _)| (*level, *at) == (index, own));
            let centre = match (method.share, kept) {
                (Share::Nothing, _) => Vec::new(),
                (Share::Parameters, Some(at)) => centres.swap_remove(at).2,
                (Share::Gradients | Share::Parameters, _) => vec![0.0; len],
            };
            let place = Some((index, own));
            for member in gather(Group { place, workers: group.clone(), centre })? {
                let id = member.worker() as usize;
                seats[id].push(Level {
                    tracker: Tracker::new(&level_method, &common.layout),
                    method: level_method.clone(),
                    member,
                    groups: groups.clone(),
                    own,
                    memories: memories[index].clone(),
                });
            }
        }
    }
    let looks = launch.examines && viewing(method.evaluate).is_some();
    let centre = vec![0.0; if looks { len } else { 0 }];
    let views = gather(Group { place: None, workers: 0..count, centre })?;
    let mut workers = Vec::with_capacity(parts.len());
    // The parts are those of the workers here, which need not be all.
    for (mut part, view) in parts.into_iter().zip(views) {
        let mut levels = std::mem::take(&mut seats[part.worker as usize]);
        let parts = make(&mut part)?;
        for (level, notes) in levels.iter_mut().zip(part.notes) {
            level.tracker.recall(notes)?;
        }
        let mut worker = Worker::new(common, part.worker, parts, levels, view);
        (worker.at, worker.before, worker.settled) = (at, at.elapsed, settled);
        (worker.taken, worker.in_cycle, worker.loss) = (part.taken, part.in_cycle, part.loss);
        (worker.finite, worker.diverged) = (part.finite, part.diverged);
        (worker.tally, worker.past, worker.history) = (part.tally, part.past, history.clone());
        workers.push(worker);
    }
    Ok(workers)
}

#[cfg(feature = "mpi")]
mod ranks;
#[cfg(test)]
mod tests;

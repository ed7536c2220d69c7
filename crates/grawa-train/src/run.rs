//! A run from its start to its end: workers are made and supervised.
//!
//! A thread runs the loop of this process's workers; the calling thread passes events on to the observers and writes
//! checkpoints. A worker that fails is named in an event and the others continue without it; the run fails only when no
//! worker is left.

use crate::checkpoint::{Checkpoint, Writer};
#[cfg(all(test, feature = "cuda"))]
use crate::engine::CudaSet;
use crate::engine::{EvaluateShard, Workload};
use crate::event::{Event, Fault, Finished, Observer, Started};
use crate::membership::Membership;
use crate::milestones::{MilestoneSettings, Milestones, Position, cycle};
use crate::process::{Clock, Common, Connections, Process};
use crate::recipe::{CHECKPOINT, Device, Model, Pace};
use crate::snapshot::{Part, Snapshot, Snapshots, fresh};
use crate::supervisor::Supervisor;
use crate::worker_set::WorkerSet;
use crate::{Error, Recipe};
use grawa_core::{Amount, Layout, Replica, Share, Tracker};
use grawa_data::Dataset;
use grawa_nn::Graph;
use grawa_session::reporter::SendReport;
use grawa_session::{Pacing, Recording};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
pub(crate) use workers::{AnyEngine, Workers};

/// A worker that takes no step for so long while others wait is given up.
pub(crate) const DEADLINE: Duration = Duration::from_secs(600);

/// How often a model of one's own is saved.
const OWN_CHECKPOINT: Duration = Duration::from_secs(600);

/// The next step of a run that goes on from a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NextStep {
    /// Local steps of each worker so far.
    pub steps: u64,
    /// Epochs so far.
    pub epochs: f64,
    /// Its learning rate.
    pub rate: f64,
    /// Whether the budget is spent: there is no next step.
    pub is_spent: bool,
}

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
pub struct Run {
    launch: Launch,
    pub(crate) workers: Workers,
    pub(crate) folder: Option<PathBuf>,
    checkpoint: Option<Checkpoint>,
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run").field("recipe", self.recipe()).finish_non_exhaustive()
    }
}

impl Run {
    /// A run of a recipe on its data.
    pub fn new(recipe: Recipe, data: &Dataset) -> Result<Self, Error> {
        let workload = Workload::new(&recipe, data)?;
        Run::of(recipe, workload, AnyEngine::of_all)
    }

    /// The same with a network of one's own instead of the recipe's; [`Run::recipe`] names that one from here on.
    pub fn with_network(mut recipe: Recipe, data: &Dataset, network: &Graph) -> Result<Self, Error> {
        let workload = Workload::with_network(&recipe, data, network)?;
        let name = network.name().into();
        recipe.model = Model { name, graph: None, width: None, classes: None, init: recipe.model.init };
        Run::of(recipe, workload, AnyEngine::of_all)
    }

    /// A run of replicas of one's own: of any model, in any framework. `make` makes that of a worker. All workers start with the parameters
    /// of worker 0's. `examples` is the number of training examples, by which epochs are counted. Checkpoints are written every ten minutes
    /// and at the end, unless the recipe has another `checkpoint.every` than the default.
    ///
    /// ```
    /// use grawa_core::{FunctionReplica, Key, Layout};
    /// use grawa_train::{Recipe, Run, recipe::Overrides};
    /// let overrides = Overrides::default().method("easgd:period=4", "here")?.set("train.budget=64step")?;
    /// let layout = Layout::new([("x", vec![3])])?;
    /// let bowl = |x: &[f32], _: Key, gradient: &mut [f32]| {
    ///     gradient.copy_from_slice(x);
    ///     x.iter().map(|x| f64::from(x * x) / 2.0).sum()
    /// };
    /// let run = Run::of_replicas(Recipe::resolve(&overrides)?, "bowl", layout.clone(), 1000, move |_| {
    ///     FunctionReplica::new(layout.clone(), vec![1.0; 3], bowl)
    /// })?;
    /// assert_eq!(run.go(&mut [])?.at.rounds, 16);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of_replicas<R: Replica + Send + 'static>(
        mut recipe: Recipe,
        name: &str,
        layout: Layout,
        examples: usize,
        make: impl Fn(u32) -> Result<R, grawa_core::Error> + 'static,
    ) -> Result<Self, Error> {
        recipe.method.check()?;
        expect_examples(examples)?;
        of_own_model(&mut recipe, name);
        let make = move |worker| Ok((Box::new(make(worker)?) as Box<dyn Replica + Send>, None));
        Ok(Run::by(
            recipe,
            Workers::Own { name: name.into(), layout, make: Box::new(make), start: OnceLock::new() },
            examples,
        ))
    }

    /// A run of a set of one's own: an engine that steps several workers at once. `make` makes the set of these workers, in this process;
    /// all start with the parameters `start`. [`grawa_session::worker_set::conformance`] checks a set.
    pub fn of_set(
        mut recipe: Recipe,
        name: &str,
        layout: Layout,
        examples: usize,
        start: Vec<f32>,
        make: impl FnOnce(&[u32]) -> Result<Box<dyn WorkerSet>, grawa_session::Error> + 'static,
    ) -> Result<Self, Error> {
        recipe.method.check()?;
        expect_examples(examples)?;
        of_own_model(&mut recipe, name);
        let workers = Workers::Set { name: name.into(), layout, start, make: Box::new(make) };
        Ok(Run::by(recipe, workers, examples))
    }

    /// Evaluates the models of [`Run::of_replicas`] in this way; `make` makes what measures a worker's share. Without it nothing is
    /// evaluated.
    pub fn evaluate_by(self, evaluator: impl Fn(u32) -> Box<dyn EvaluateShard> + 'static) -> Self {
        let workers = match self.workers {
            Workers::Own { name, layout, make, start } => {
                let make = move |worker| Ok((make(worker)?.0, Some(evaluator(worker))));
                Workers::Own { name, layout, make: Box::new(make), start }
            }
            others => others,
        };
        Run { workers, ..self }
    }

    /// The number of training examples.
    pub fn examples(&self) -> u64 {
        self.launch.examples as u64
    }

    /// The recipe, which names the network that is trained: the one to make a folder with.
    pub fn recipe(&self) -> &Recipe {
        &self.launch.recipe
    }

    /// A run whose network is trained by this engine.
    pub(crate) fn of(
        recipe: Recipe,
        workload: Workload,
        engine: impl FnOnce(&Recipe, Workload) -> Result<AnyEngine, Error>,
    ) -> Result<Self, Error> {
        let (graph, examples) = (Box::new(workload.graph.clone()), workload.order.examples() as usize);
        let metadata = workload.metadata.clone();
        let engine = engine(&recipe, workload)?;
        let workers = Workers::Network { graph, metadata, engine, start: OnceLock::new() };
        Ok(Run::by(recipe, workers, examples))
    }

    fn by(recipe: Recipe, workers: Workers, examples: usize) -> Self {
        let launch = Launch::new(recipe, &workers, examples);
        Run { launch, workers, folder: None, checkpoint: None }
    }

    /// The same on GPUs of the test's choice.
    #[cfg(all(test, feature = "cuda"))]
    pub(crate) fn on_gpus(set: CudaSet, recipe: Recipe, workload: &Workload) -> Result<Self, Error> {
        Run::of(recipe, workload.clone(), |_, _| Ok(AnyEngine::Cuda(Box::new(set))))
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
    pub fn replay(mut self, recording: Recording) -> Self {
        self.launch.recording = Some(recording);
        self
    }

    /// Stops within a step when this becomes true, and writes a checkpoint.
    pub fn stop_by(mut self, stop: Arc<AtomicBool>) -> Self {
        self.launch.stop = stop;
        self
    }

    /// That the run can start: what it starts from is there and fits.
    pub fn check(&self) -> Result<(), Error> {
        match &self.checkpoint {
            Some(checkpoint) => fits(self.recipe(), &self.workers, checkpoint),
            None => self.workers.start(self.recipe()).map(|_| ()),
        }
    }

    /// Which tensors of `model.init` the run starts with, in words; none if it starts at random, or from a checkpoint.
    pub fn start_in_words(&self) -> Result<Option<String>, Error> {
        if self.checkpoint.is_none() {
            self.workers.start(self.recipe())?;
        }
        Ok(self.workers.start_in_words().map(str::to_owned))
    }

    /// The next step of a run that goes on from a checkpoint.
    pub fn next_step(&self) -> Option<NextStep> {
        let (at, recipe) = (&self.checkpoint.as_ref()?.snapshot.at, self.recipe());
        let milestones = milestones(recipe, self.launch.examples);
        let progress = milestones.progress(at, 0, 0);
        let (steps, epochs) = (progress.steps, progress.epochs);
        Some(NextStep {
            steps,
            epochs,
            rate: recipe.train.rate.rate(&progress),
            is_spent: milestones.is_spent(at),
        })
    }

    /// Trains. Returns how it ended; an error if every worker was lost, or what happened could not be recorded.
    pub fn go(self, observers: &mut [Box<dyn Observer>]) -> Result<Finished, Error> {
        let snapshot = match &self.checkpoint {
            Some(checkpoint) => {
                fits(self.recipe(), &self.workers, checkpoint)?;
                if !self.workers.is_in_step(&checkpoint.snapshot.parts) {
                    let why = "the workers of a GPU stand at different steps between two rounds; it was stopped with another \
                               machine.cards or machine.device, and must be resumed with those";
                    return Err(Error::AnotherRun { path: checkpoint.path.clone(), why: why.into() });
                }
                checkpoint.snapshot.clone()
            }
            None => {
                let recipe = self.recipe();
                let starts = vec![self.workers.start(recipe)?; recipe.train.workers as usize];
                fresh(&recipe.method, self.workers.layout(), starts)?
            }
        };
        let (launch, workers) = self.launch();
        launch.go(snapshot, |recipe, parts| workers.set(recipe, parts), observers)
    }

    /// What the run needs besides its workers, and these.
    pub(crate) fn launch(self) -> (Launch, Workers) {
        let Run { mut launch, workers, folder, checkpoint } = self;
        let writer = |folder: &Path| Writer::new(folder, &launch.recipe, workers.described());
        (launch.writer, launch.resumed) = (folder.as_deref().map(writer), checkpoint.is_some());
        (launch, workers)
    }
}

/// A pass over no examples would be over before the first step.
fn expect_examples(examples: usize) -> Result<(), Error> {
    match examples {
        0 => Err(Error::Session(grawa_session::Error::Zero { what: "examples" })),
        _ => Ok(()),
    }
}

/// Whether a checkpoint is of such a run.
fn fits(recipe: &Recipe, workers: &Workers, checkpoint: &Checkpoint) -> Result<(), Error> {
    let wrong = |why: String| Err(Error::AnotherRun { path: checkpoint.path.clone(), why });
    let objection = |graph: &Graph| checkpoint.origin.as_ref().and_then(|origin| origin.objection(graph));
    if let Some(why) = workers.graph().and_then(objection) {
        return wrong(why);
    }
    checkpoint.check_recipe()?;
    for part in &checkpoint.snapshot.parts {
        let (found, expected) = (part.parameters.len(), workers.layout().len());
        if found != expected || part.velocity.len() != expected {
            return wrong(format!("it has {found} parameters, and {} has {expected}", workers.name()));
        }
        if part.worker >= recipe.train.workers {
            return wrong(format!("it has a worker {}, and there are {}", part.worker, recipe.train.workers));
        }
    }
    let groups: Vec<usize> = checkpoint.snapshot.memories.iter().map(Vec::len).collect();
    let expected: Vec<usize> =
        recipe.method.levels(recipe.train.workers).iter().map(|(_, groups)| groups.len()).collect();
    if groups != expected {
        return wrong(format!("it has groups {groups:?} by level, and the method has {expected:?}"));
    }
    Ok(())
}

/// Everything a run needs besides its workers.
pub(crate) struct Launch {
    pub(crate) recipe: Recipe,
    pub(crate) layout: Layout,
    pub(crate) network: String,
    /// What the user should know about how the network runs.
    pub(crate) warnings: Vec<String>,
    pub(crate) examples: usize,
    pub(crate) writer: Option<Writer>,
    pub(crate) recording: Option<Recording>,
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) clock: Clock,
    pub(crate) resumed: bool,
    /// Sends reports to the coordinator, if there is one.
    pub(crate) reporter: Option<Arc<dyn SendReport>>,
    /// In an elastic group: all workers were asked to stop, not this one alone.
    pub(crate) together: Arc<AtomicBool>,
}

impl Launch {
    /// A run of this recipe.
    fn new(recipe: Recipe, workers: &Workers, examples: usize) -> Self {
        let started = Instant::now();
        Launch {
            layout: workers.layout().clone(),
            network: workers.name().into(),
            warnings: workers.warnings(),
            examples,
            writer: None,
            recording: None,
            stop: Arc::default(),
            clock: Arc::new(move || started.elapsed()),
            resumed: false,
            reporter: None,
            together: Arc::default(),
            recipe,
        }
    }

    /// Starts all workers of a snapshot in this process, and watches until they are done.
    pub(crate) fn go(
        self,
        mut snapshot: Snapshot,
        set: impl FnOnce(&Recipe, &mut [Part]) -> Result<Box<dyn WorkerSet>, Error>,
        observers: &mut [Box<dyn Observer>],
    ) -> Result<Finished, Error> {
        let recipe = &self.recipe;
        revive(&self.recipe, &self.layout, &mut snapshot);
        let taken = snapshot.parts.iter().map(|part| part.in_cycle).sum();
        let pacing =
            self.pacing(|| Ok(Pacing::free(snapshot.at.steps / u64::from(cycle(&recipe.method)), taken)))?;
        if let Some(writer) = &self.writer {
            writer.tidy()?;
        }
        let set = set(recipe, &mut snapshot.parts)?;
        let (at, workers) = (snapshot.at, 0..recipe.train.workers);
        let connections = Connections {
            membership: Membership::Alone,
            processes: vec![(0, workers.clone().collect())],
            view: None,
            inner: match &recipe.method.levels(workers.end)[..] {
                [(_, groups), _] => (0..groups.len()).map(|number| (number, None)).collect(),
                _ => Vec::new(),
            },
        };
        let make = |common: &_| Ok(Process::new(common, set, snapshot, workers, connections)?);
        self.run(at, pacing, make, observers)
    }

    /// How many steps each worker takes; `free` is a free pace.
    fn pacing(&self, free: impl FnOnce() -> Result<Pacing, Error>) -> Result<Pacing, Error> {
        match (&self.recording, self.recipe.train.pace) {
            (Some(recording), pace) => {
                Ok(Pacing::Replay { recording: recording.clone(), even: pace == Pace::Even })
            }
            (None, Pace::Even) => Ok(Pacing::Even),
            (None, Pace::Free) => free(),
        }
    }

    /// Starts the process that `make` makes, and watches until it is done.
    pub(crate) fn run(
        self,
        at: Position,
        pacing: Pacing,
        make: impl FnOnce(&Arc<Common>) -> Result<Process, Error>,
        observers: &mut [Box<dyn Observer>],
    ) -> Result<Finished, Error> {
        let recipe = &self.recipe;
        let milestones = milestones(recipe, self.examples);
        let started = Started {
            at: milestones.place(&at),
            method: recipe.method_with_sam().to_string(),
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
        // No snapshot is being written yet. Copies on a GPU are cheap: there a second one may wait for the first, so that training does
        // not wait for a disk that is slow for a moment.
        let unwritten = if recipe.machine.device == Device::Cuda { 2 } else { 1 };
        (0..unwritten).for_each(|_| {
            let _ = written.send(());
        });
        let common = Arc::new(Common {
            method: recipe.method_with_sam(),
            layout: self.layout.clone(),
            optimizer: recipe.train.local_optimizer(),
            slow: recipe.train.slow.all().to_vec(),
            rate: recipe.train.rate.clone(),
            seed: recipe.train.seed,
            milestones,
            pacing,
            stop: Arc::clone(&self.stop),
            clock: Arc::clone(&self.clock),
            notes,
            reporter: self.reporter.clone(),
            together: Arc::clone(&self.together),
            snapshots: self.writer.as_ref().map(|_| Snapshots::new(acknowledged, recipe.checkpoint.best)),
        });
        let process = make(&common)?;
        let mut supervisor = Supervisor::new(&self, observers, written, started.at);
        let at = started.at;
        supervisor.tell(&Event::Started(started));
        for what in self.warnings.clone() {
            supervisor.tell(&Event::Fault(Fault { at, worker: None, what }));
        }
        supervisor.over(process, &common, &inbox)
    }
}

/// The recipe of a model of one's own, called `name`. How often networks are saved by default says nothing about it: its epochs may take
/// milliseconds.
fn of_own_model(recipe: &mut Recipe, name: &str) {
    recipe.model = Model { name: name.into(), graph: None, width: None, classes: None, init: None };
    if recipe.checkpoint.every == Some(CHECKPOINT) {
        recipe.checkpoint.every = Some(Amount::Time(OWN_CHECKPOINT));
    }
}

/// The milestones of a recipe over this many training examples.
pub(crate) fn milestones(recipe: &Recipe, examples: usize) -> Milestones {
    let Recipe { method, train, evaluate, checkpoint, .. } = recipe;
    Milestones::new(&MilestoneSettings {
        method,
        workers: train.workers,
        batch: train.batch,
        examples,
        budget: train.budget,
        evaluate: evaluate.every,
        checkpoint: checkpoint.every,
    })
}

/// Restores workers that were lost: with the centre and no momentum where parameters are shared, as a copy of another
/// worker where gradients are and all must be the same.
fn revive(recipe: &Recipe, layout: &Layout, snapshot: &mut Snapshot) {
    let all = snapshot.memories.len().saturating_sub(1);
    let Some(model) = snapshot.parts.first().cloned() else { return };
    let centre = (snapshot.parts.iter().flat_map(|part| &part.centres))
        .find(|(level, _, _)| *level == all)
        .map(|(_, _, centre)| centre[..layout.len().min(centre.len())].to_vec());
    for worker in 0..recipe.train.workers {
        if snapshot.parts.iter().any(|part| part.worker == worker) {
            continue;
        }
        let mut part = Part { worker, centres: Vec::new(), ..model.clone() };
        if recipe.method.share == Share::Parameters {
            part.parameters = centre.clone().unwrap_or_else(|| model.parameters.clone());
            part.velocity.fill(0.0);
            part.second_moment.clear();
            part.notes = (recipe.method.levels(recipe.train.workers).iter())
                .map(|(method, _)| Tracker::new(method, layout).notes().clone())
                .collect();
        }
        snapshot.parts.push(part);
    }
    snapshot.parts.sort_by_key(|part| part.worker);
}

mod across;
#[cfg(test)]
mod tests;
mod workers;

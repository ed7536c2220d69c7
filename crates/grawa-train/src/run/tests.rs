//! Runs of toy replicas: against [`Sequential`] bit for bit, and with everything that can go wrong put in on purpose.

mod even_pace;
mod faults;
mod free_pace;
mod processes;
mod resume;

use super::*;
use crate::Fault;
use crate::event::Reason;
use crate::thread_set::{Seat, on_threads};
use grawa_core::{
    Amount, FunctionReplica, Key, Name, Optimizer, Prox, Replica, Schedule, Sequential, Sgd, StateKind,
};
use grawa_data::DatasetKind;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

type Function = fn(&[f32], Key, &mut [f32]) -> f64;
type Toy = Odd<FunctionReplica<Function>>;

const RATE: f64 = 0.05;
const SEED: u64 = 7;

/// ½‖x‖² with a push of each worker's own, so that workers part between rounds.
fn bowl(x: &[f32], key: Key, gradient: &mut [f32]) -> f64 {
    let push = key.stream().unit() - 0.5;
    gradient.iter_mut().zip(x).for_each(|(g, &x)| *g = x + push);
    x.iter().map(|&x| f64::from(x * x) / 2.0).sum()
}

fn layout() -> Layout {
    Layout::new([("a", vec![5]), ("b", vec![40])]).unwrap()
}

/// What befalls a worker at one of its steps.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mishap {
    None,
    Delay(Duration),
    NotANumber,
    Fails,
    CannotRead,
    Panics,
    Hangs,
}

type Mishaps = fn(u32, u64) -> Mishap;

/// What the data of a real replica may fail with.
fn unreadable() -> Error {
    let source = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
    grawa_data::Error::Io { doing: "open", path: "picture.png".into(), source }.into()
}

/// A replica that mishaps befall.
struct Odd<R> {
    inner: R,
    worker: u32,
    mishap: Mishaps,
}

impl<R: Replica> Replica for Odd<R> {
    fn layout(&self) -> &Layout {
        self.inner.layout()
    }

    fn gradient(&mut self, key: Key) -> Result<f64, grawa_core::Error> {
        let loss = self.inner.gradient(key)?;
        match (self.mishap)(self.worker, key.place().1) {
            Mishap::None => {}
            Mishap::Delay(time) => std::thread::sleep(time),
            Mishap::NotANumber => self.inner.gradients()[3] = f32::NAN,
            Mishap::Fails => return Err(grawa_core::Error::replica("the disk is on fire")),
            Mishap::CannotRead => return Err(grawa_core::Error::replica(unreadable())),
            Mishap::Panics => panic!("on purpose"),
            Mishap::Hangs => std::thread::park(),
        }
        Ok(loss)
    }

    fn descend(
        &mut self,
        optimizer: &Optimizer,
        rate: f32,
        prox: &[Prox<'_>],
    ) -> Result<bool, grawa_core::Error> {
        self.inner.descend(optimizer, rate, prox)
    }

    fn ascend(&mut self, radius: f32) -> Result<(), grawa_core::Error> {
        self.inner.ascend(radius)
    }

    fn restore(&mut self) -> Result<(), grawa_core::Error> {
        self.inner.restore()
    }

    fn norms(&mut self, out: &mut [f64]) -> Result<(), grawa_core::Error> {
        self.inner.norms(out)
    }

    fn score(&mut self, key: Key, dropout: bool, out: &mut [f64]) -> Result<(), grawa_core::Error> {
        self.inner.score(key, dropout, out)
    }

    fn reset(&mut self) {
        self.inner.reset();
    }

    fn parameters(&mut self) -> &mut [f32] {
        self.inner.parameters()
    }

    fn gradients(&mut self) -> &mut [f32] {
        self.inner.gradients()
    }

    fn copy(&mut self, what: StateKind) -> Result<Vec<f32>, grawa_core::Error> {
        self.inner.copy(what)
    }

    fn put(&mut self, what: StateKind, values: &[f32]) -> Result<(), grawa_core::Error> {
        self.inner.put(what, values)
    }
}

/// All events of a run, shared with the test.
#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Vec<Event>>>);

impl Observer for Ear {
    fn event(&mut self, event: &Event) -> Result<(), Error> {
        self.0.lock().unwrap().push(event.clone());
        Ok(())
    }
}

impl Ear {
    fn events(&self) -> Vec<Event> {
        self.0.lock().unwrap().clone()
    }

    fn faults(&self) -> Vec<Fault> {
        let events = self.events().into_iter();
        events.filter_map(|event| if let Event::Fault(fault) = event { Some(fault) } else { None }).collect()
    }

    fn rounds(&self) -> Vec<crate::Round> {
        let events = self.events().into_iter();
        events.filter_map(|event| if let Event::Round(round) = event { Some(round) } else { None }).collect()
    }
}

/// A toy run and what it left.
struct Trial {
    recipe: Recipe,
    starts: Vec<f32>,
    mishap: Mishaps,
    deadline: Duration,
    stop: Arc<AtomicBool>,
    recording: Option<Recording>,
    folder: tempfile::TempDir,
    ear: Ear,
}

impl Trial {
    fn new(method: &str, starts: &[f32], steps: u64) -> Self {
        let mut recipe = Recipe::for_data(DatasetKind::Digits, None).unwrap();
        recipe.method = method.parse().unwrap();
        recipe.train.workers = starts.len() as u32;
        recipe.train.seed = SEED;
        recipe.train.budget = Amount::Steps(steps);
        recipe.train.rate = Schedule::constant(RATE).unwrap();
        recipe.train.sgd = Sgd::default();
        recipe.checkpoint.every = Some(Amount::Steps(5));
        Trial {
            recipe,
            starts: starts.into(),
            mishap: |_, _| Mishap::None,
            stop: Arc::default(),
            recording: None,
            deadline: DEADLINE,
            folder: tempfile::tempdir().unwrap(),
            ear: Ear::default(),
        }
    }

    fn go(&self) -> Result<Finished, Error> {
        self.launch(self.fresh(), false)
    }

    fn resume(&self) -> Result<Finished, Error> {
        self.launch(self.newest().snapshot, true)
    }

    fn fresh(&self) -> Snapshot {
        let starts = self.starts.iter().map(|&x| (vec![x; layout().len()], Vec::new())).collect();
        fresh(&self.recipe.method, &layout(), starts).unwrap()
    }

    fn newest(&self) -> Checkpoint {
        Checkpoint::newest(self.folder.path()).unwrap()
    }

    /// This run, with a clock that stands still.
    fn plan(&self, resumed: bool) -> Launch {
        Launch {
            recipe: self.recipe.clone(),
            layout: layout(),
            network: "toy".into(),
            warnings: Vec::new(),
            examples: 100,
            writer: Some(Writer::new(self.folder.path(), &self.recipe, None)),
            recording: self.recording.clone(),
            stop: Arc::clone(&self.stop),
            clock: Arc::new(|| Duration::ZERO),
            resumed,
            reporter: None,
            together: Arc::default(),
        }
    }

    fn launch(&self, snapshot: Snapshot, resumed: bool) -> Result<Finished, Error> {
        self.stop.store(false, Ordering::Relaxed);
        let started = Instant::now();
        let launch = Launch { clock: Arc::new(move || started.elapsed()), ..self.plan(resumed) };
        let make = |part: &mut Part| {
            let mut inner = FunctionReplica::new(layout(), part.parameters.clone(), bowl as Function)?;
            inner.put(StateKind::Velocity, &part.velocity)?;
            let replica: Toy = Odd { inner, worker: part.worker, mishap: self.mishap };
            Ok(Seat { worker: part.worker, replica: Box::new(replica), waits: None, evaluator: None })
        };
        launch.go(snapshot, on_threads(layout(), self.deadline, make), &mut [Box::new(self.ear.clone())])
    }

    /// The workers' parameters in the newest checkpoint.
    fn parameters(&self) -> Vec<Vec<f32>> {
        self.newest().snapshot.parts.into_iter().map(|part| part.parameters).collect()
    }

    fn centre(&self) -> Vec<f32> {
        let snapshot = self.newest().snapshot;
        let all = snapshot.memories.len() - 1;
        let mut centres = snapshot.parts.into_iter().flat_map(|part| part.centres);
        let centre = centres.find(|(level, _, _)| *level == all).map(|(_, _, centre)| centre).unwrap();
        centre[..layout().len()].to_vec()
    }

    /// Every file of the checkpoints but those of times, with its bytes.
    fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files = Vec::new();
        for checkpoint in std::fs::read_dir(self.folder.path().join("checkpoints")).unwrap() {
            for file in std::fs::read_dir(checkpoint.unwrap().path()).unwrap() {
                let path = file.unwrap().path();
                if !path.ends_with("timing.toml") && !path.ends_with("checksums.toml") {
                    let name = path.strip_prefix(self.folder.path()).unwrap().to_owned();
                    files.push((name, std::fs::read(&path).unwrap()));
                }
            }
        }
        files.sort();
        files
    }
}

/// Every method, with settings that make rounds frequent; presets where they differ; groups.
fn methods() -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for name in Name::ALL {
        match name {
            Name::DpSgd | Name::DpSam | Name::Sgd => all.push(name.to_string()),
            _ => {
                all.push(format!("{name}:period=3"));
                all.push(format!("{name}:preset=reference,period=3"));
            }
        }
    }
    all.push("mean:period=3,pull=1,centre=outer".into());
    all.push("mean:period=3,centre=outer,nesterov=false,by_rate=true".into());
    all.push("lgrawa:period=3,push=0.1,push_rise=linear,by=steps".into());
    all.push("mean:period=2,qsr=0.1".into());
    all.push("lsgd:period=4,inner.group=2,inner.period=2".into());
    all.push("mgrawa:period=6,inner.group=3,inner.period=3".into());
    all
}

fn starts(method: &str) -> Vec<f32> {
    let all = [2.0, -3.0, 4.0, 1.0];
    if method == "sgd" { vec![2.0] } else { all.into() }
}

fn sequential(method: &str, starts: &[f32], steps: u64) -> (Vec<Vec<f32>>, Vec<f32>) {
    let replicas = starts
        .iter()
        .map(|&x| FunctionReplica::new(layout(), vec![x; layout().len()], bowl as Function).unwrap())
        .collect();
    let mut run =
        Sequential::new(method.parse().unwrap(), Sgd::default(), SEED, replicas).unwrap().over(steps);
    for _ in 0..steps {
        run.advance(RATE as f32).unwrap();
    }
    let centre = run.centre().to_vec();
    (run.replicas().iter_mut().map(|replica| replica.parameters().to_vec()).collect(), centre)
}

/// Remembers checkpoints as they are told of.
struct Uploader(Arc<Mutex<Vec<PathBuf>>>);

impl Observer for Uploader {
    fn event(&mut self, event: &Event) -> Result<(), Error> {
        if let Event::CheckpointWritten { path, at } = event {
            let whole = Checkpoint::read(path)?;
            assert_eq!(whole.steps(), at.steps);
            self.0.lock().unwrap().push(path.clone());
        }
        Ok(())
    }
}

/// An observer is told of every checkpoint when it is complete: it can be read then, and be removed. Of the caller's
/// own replicas one is made to learn the start, however often the run is checked, and one for each worker.
#[test]
fn checkpoints_are_told_of_when_they_are_whole_and_replicas_are_made_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut recipe = Recipe::for_data(DatasetKind::Digits, None).unwrap();
    recipe.method = "mean:period=4".parse().unwrap();
    (recipe.train.workers, recipe.train.budget) = (3, Amount::Steps(16));
    recipe.checkpoint.every = Some(Amount::Steps(4));
    let made = Arc::<Mutex<Vec<u32>>>::default();
    let counted = Arc::clone(&made);
    let make = move |worker| {
        counted.lock().unwrap().push(worker);
        FunctionReplica::new(layout(), vec![1.0; layout().len()], bowl as Function)
    };
    let run = Run::of_replicas(recipe, "bowl", layout(), 100, make).unwrap().keep_in(folder.path());
    run.check().unwrap();
    run.start_in_words().unwrap();
    run.check().unwrap();
    let told = Arc::<Mutex<Vec<PathBuf>>>::default();
    run.go(&mut [Box::new(Uploader(Arc::clone(&told)))]).unwrap();
    assert_eq!(*made.lock().unwrap(), [0, 0, 1, 2]);
    let steps = |step: u64| folder.path().join(format!("checkpoints/step-{step:08}"));
    assert_eq!(*told.lock().unwrap(), [0, 4, 8, 12, 16].map(steps));
}

/// A model of one's own is not saved as often as a network by default: its epochs may be short.
#[test]
fn a_small_model_of_ones_own_has_few_checkpoints() {
    for (every, expected) in [(None, &[0, 2000][..]), (Some("1000step"), &[0, 1000, 2000])] {
        let folder = tempfile::tempdir().unwrap();
        let mut recipe = Recipe::for_data(DatasetKind::Digits, None).unwrap();
        recipe.method = "mean:period=4".parse().unwrap();
        (recipe.train.workers, recipe.train.budget) = (2, Amount::Steps(2000));
        if let Some(every) = every {
            recipe.checkpoint.every = Some(every.parse().unwrap());
        }
        let make = |_| FunctionReplica::new(layout(), vec![1.0; layout().len()], bowl as Function);
        let run = Run::of_replicas(recipe, "bowl", layout(), 1000, make).unwrap().keep_in(folder.path());
        let told = Arc::<Mutex<Vec<PathBuf>>>::default();
        run.go(&mut [Box::new(Uploader(Arc::clone(&told)))]).unwrap();
        let steps = |step: &u64| folder.path().join(format!("checkpoints/step-{step:08}"));
        assert_eq!(*told.lock().unwrap(), expected.iter().map(steps).collect::<Vec<_>>());
    }
}

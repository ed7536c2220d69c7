//! Runs of toy replicas: against [`Sequential`] bit for bit, and with everything that can go wrong put in on purpose.

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

    fn launch(&self, snapshot: Snapshot, resumed: bool) -> Result<Finished, Error> {
        self.stop.store(false, Ordering::Relaxed);
        let started = Instant::now();
        let launch = Launch {
            recipe: self.recipe.clone(),
            layout: layout(),
            network: "toy".into(),
            warnings: Vec::new(),
            examples: 100,
            writer: Some(Writer::new(self.folder.path(), &self.recipe, None)),
            recording: self.recording.clone(),
            stop: Arc::clone(&self.stop),
            clock: Arc::new(move || started.elapsed()),
            resumed,
            reporter: None,
            together: Arc::default(),
        };
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

#[test]
fn an_even_run_has_the_bits_of_the_sequential_one() {
    for method in methods() {
        let starts = starts(&method);
        // The last cycle is cut short.
        let trial = Trial::new(&method, &starts, 14);
        let end = trial.go().unwrap();
        assert_eq!((end.at.steps, end.reason), (14, Reason::Spent), "{method}");
        let (parameters, centre) = sequential(&method, &starts, 14);
        assert_eq!(trial.parameters(), parameters, "{method}");
        if trial.recipe.method.share == Share::Parameters {
            assert_eq!(trial.centre(), centre, "{method}");
        }
        assert_eq!(end.workers.len(), starts.len());
        assert!(end.workers.iter().all(|share| share.total == 14));
        // Every byte is told of once, in the round that took it.
        let rounds = trial.ear.rounds();
        assert_eq!(rounds.iter().map(|round| round.bytes).sum::<u64>(), end.bytes, "{method}");
        let vectors = 4 * layout().len() as u64 * starts.len() as u64;
        assert!(rounds[0].bytes >= if method == "sgd" { 0 } else { vectors }, "{method}");
    }
}

/// A run of processes that are threads of the test, which have as many workers each. Returns the parameters of all workers.
fn across(trial: &Trial, processes: u32) -> Vec<Vec<f32>> {
    let transports = grawa_comm::threads::transports(processes, DEADLINE);
    std::thread::scope(|scope| {
        for transport in transports {
            scope.spawn(move || {
                let recipe = &trial.recipe;
                let is_first = grawa_comm::Transport::rank(&transport) == 0;
                let launch = Launch {
                    recipe: recipe.clone(),
                    layout: layout(),
                    network: "toy".into(),
                    warnings: Vec::new(),
                    examples: 100,
                    // All processes say whether there is a folder; the first one writes.
                    writer: Some(Writer::new(trial.folder.path(), recipe, None)),
                    recording: None,
                    stop: Arc::default(),
                    clock: Arc::new(|| Duration::ZERO),
                    resumed: false,
                    reporter: None,
                    together: Arc::default(),
                };
                let make = |part: &mut Part| {
                    let inner = FunctionReplica::new(layout(), part.parameters.clone(), bowl as Function)?;
                    let replica: Toy = Odd { inner, worker: part.worker, mishap: trial.mishap };
                    Ok(Seat { worker: part.worker, replica: Box::new(replica), waits: None, evaluator: None })
                };
                let beginning = is_first.then(|| (trial.fresh(), false));
                let set = on_threads(layout(), DEADLINE, make);
                let ear: Box<dyn Observer> =
                    Box::new(if is_first { trial.ear.clone() } else { Ear::default() });
                launch.go_across(&transport, beginning, set, &mut [ear]).unwrap();
            });
        }
    });
    trial.parameters()
}

/// Processes with one worker each have the bits of one process. With several, sums are taken in another order: only rounding differs,
/// and it is the same every time.
#[test]
fn processes_with_several_workers_train_as_one() {
    for method in methods().into_iter().filter(|method| method != "sgd") {
        let starts = starts(&method);
        // 100 rounds.
        let steps = 100 * u64::from(method.parse::<grawa_core::Method>().unwrap().period.max(1));
        let trial = || {
            let mut trial = Trial::new(&method, &starts, steps);
            trial.recipe.checkpoint.every = None;
            trial
        };
        let (expected, _) = sequential(&method, &starts, steps);
        assert_eq!(across(&trial(), 4), expected, "{method}");
        // Two processes with two workers each, and one with four.
        for processes in [2, 1] {
            let (found, again) = (across(&trial(), processes), across(&trial(), processes));
            assert_eq!(found, again, "{method}");
            let pairs = || found.iter().flatten().zip(expected.iter().flatten());
            let off = pairs().map(|(a, b)| (a - b).abs() / b.abs().max(1.0)).fold(0.0, f32::max);
            let size = pairs().map(|(_, b)| b.abs()).fold(0.0, f32::max);
            println!("{method}, {processes} processes: off by {off:e} of numbers up to {size:e}");
            assert!(off <= 1e-6, "{method} is off by {off:e} with {processes} processes");
        }
    }
}

/// A worker of a process with several fails: the others of the process and of the run continue.
#[test]
fn a_worker_of_one_process_is_lost_alone() {
    for method in ["mean:period=3", "lgrawa:period=3", "dp-sgd", "lsgd:period=4,inner.group=2,inner.period=2"]
    {
        let mut trial = Trial::new(method, &starts(method), 12);
        trial.mishap = |worker, step| if (worker, step) == (1, 4) { Mishap::Fails } else { Mishap::None };
        assert_eq!(across(&trial, 2).len(), 3, "{method}");
        let rounds = trial.ear.rounds();
        let last: Vec<u32> = rounds.last().unwrap().workers.iter().map(|share| share.worker).collect();
        assert_eq!(last, [0, 2, 3], "{method}");
    }
    // The second process loses its only worker of the first group, which has workers in both.
    let mut trial = Trial::new("lsgd:period=4,inner.group=3,inner.period=2", &[2.0, -3.0, 4.0, 1.0], 12);
    trial.mishap = |worker, step| if (worker, step) == (2, 4) { Mishap::Fails } else { Mishap::None };
    assert_eq!(across(&trial, 2).len(), 3);
    assert_eq!(trial.ear.rounds().last().unwrap().at.steps, 12);
}

#[test]
fn more_workers_than_the_machine_has_cores_give_the_same_bits() {
    let starts: Vec<f32> = (0..64).map(|worker| worker as f32 / 7.0 - 4.0).collect();
    let trial = Trial::new("lgrawa:period=2", &starts, 6);
    trial.go().unwrap();
    assert_eq!(trial.parameters(), sequential("lgrawa:period=2", &starts, 6).0);
}

/// Stopped at any step, even in the middle of a cycle, and gone on with: the same bits and the same files.
#[test]
fn a_run_that_was_stopped_and_resumed_leaves_what_an_unbroken_one_leaves() {
    for method in methods() {
        let starts = starts(&method);
        let unbroken = Trial::new(&method, &starts, 14);
        unbroken.go().unwrap();
        let broken = Trial::new(&method, &starts, 14);
        stop_at_steps(&broken, &[1, 2, 4, 5, 9, 11, 12]);
        assert_eq!(broken.resume().unwrap().reason, Reason::Spent, "{method}");
        assert_eq!(broken.parameters(), unbroken.parameters(), "{method}");
        let (found, expected) = (broken.files(), unbroken.files());
        let names =
            |files: &[(PathBuf, Vec<u8>)]| files.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&found), names(&expected), "{method}");
        for ((name, found), (_, expected)) in found.into_iter().zip(expected) {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            assert!(found == expected, "{method}: {}\n{}\n{}", name.display(), text(&found), text(&expected));
        }
    }
}

/// Runs and resumes a trial so that it is asked to stop at about these steps.
fn stop_at_steps(trial: &Trial, steps: &[u64]) {
    for (index, &step) in steps.iter().enumerate() {
        let snapshot = if index == 0 { trial.fresh() } else { trial.newest().snapshot };
        let stopping = Stopping { trial, step };
        let end = stopping.launch(snapshot, index > 0).unwrap();
        assert_eq!(end.reason, Reason::Interrupted, "at {step}");
    }
}

/// A trial that is asked to stop when a worker takes this step, as a user would at a keyboard.
struct Stopping<'a> {
    trial: &'a Trial,
    step: u64,
}

impl Stopping<'_> {
    fn launch(&self, snapshot: Snapshot, resumed: bool) -> Result<Finished, Error> {
        let trial = self.trial;
        trial.stop.store(false, Ordering::Relaxed);
        let launch = Launch {
            recipe: trial.recipe.clone(),
            layout: layout(),
            network: "toy".into(),
            warnings: Vec::new(),
            examples: 100,
            writer: Some(Writer::new(trial.folder.path(), &trial.recipe, None)),
            recording: None,
            stop: Arc::clone(&trial.stop),
            clock: Arc::new(|| Duration::ZERO),
            resumed,
            reporter: None,
            together: Arc::default(),
        };
        let make = |part: &mut Part| {
            let (stop, step) = (Arc::clone(&trial.stop), self.step);
            let function = move |x: &[f32], key: Key, gradient: &mut [f32]| {
                if key.place().1 >= step {
                    stop.store(true, Ordering::Relaxed);
                }
                bowl(x, key, gradient)
            };
            let mut inner = FunctionReplica::new(layout(), part.parameters.clone(), function)?;
            inner.put(StateKind::Velocity, &part.velocity)?;
            Ok(Seat { worker: part.worker, replica: Box::new(inner), waits: None, evaluator: None })
        };
        launch.go(snapshot, on_threads(layout(), DEADLINE, make), &mut [])
    }
}

#[test]
fn a_budget_of_zero_is_a_checkpoint_and_nothing_else() {
    for method in methods() {
        let starts = starts(&method);
        let trial = Trial::new(&method, &starts, 0);
        let end = trial.go().unwrap();
        assert_eq!((end.at.steps, end.at.share, end.reason), (0, 1.0, Reason::Spent), "{method}");
        assert!(trial.newest().is_finished());
        let expected: Vec<Vec<f32>> = starts.iter().map(|&x| vec![x; layout().len()]).collect();
        assert_eq!(trial.parameters(), expected, "{method}");
        assert!(trial.ear.rounds().is_empty());
    }
}

/// A worker whose gradient is not a number: healed by the next round, left out where gradients are shared; one by itself
/// has no centre to restore it from, and its loss says so.
#[test]
fn a_gradient_that_is_not_a_number_poisons_nobody() {
    for method in methods() {
        let starts = starts(&method);
        let mut trial = Trial::new(&method, &starts, 12);
        trial.mishap =
            |worker, step| if (worker, step) == (3, 4) { Mishap::NotANumber } else { Mishap::None };
        let end = trial.go().unwrap();
        assert_eq!(end.workers.len(), starts.len(), "{method}: nobody leaves for a NaN");
        assert!(trial.parameters().iter().flatten().all(|x| x.is_finite()), "{method}");
        if method == "sgd" {
            // There is no worker 3; see below.
            continue;
        }
        let told = trial
            .ear
            .rounds()
            .iter()
            .flat_map(|round| round.mixed.clone())
            .any(|mixed| mixed.reasons.iter().any(|reason| reason.contains("worker 3 is not finite")));
        assert!(told, "{method}");
        let faults: Vec<Option<u32>> = trial.ear.faults().iter().map(|fault| fault.worker).collect();
        assert_eq!(faults, [Some(3)], "{method}");
    }
}

#[test]
fn one_worker_by_itself_is_not_healed_and_says_so() {
    let mut trial = Trial::new("sgd", &[2.0], 6);
    trial.mishap = |_, step| if step == 2 { Mishap::NotANumber } else { Mishap::None };
    trial.go().unwrap();
    assert!(trial.parameters()[0].iter().any(|x| x.is_nan()));
    assert_eq!(trial.ear.rounds().last().unwrap().loss, None);
    let faults = trial.ear.faults();
    assert!(faults.len() == 1 && faults[0].what.contains("no centre to restore it from"), "{faults:?}");
}

/// A run in which nobody is finite at the last round or at the end has diverged; one that is healed has not.
#[test]
fn a_run_says_whether_it_has_diverged() {
    for method in methods() {
        let starts = starts(&method);
        for (mishap, diverged) in [
            ((|_, _| Mishap::NotANumber) as Mishaps, true),
            (|worker, _| if worker == 0 { Mishap::None } else { Mishap::NotANumber }, false),
            (|_, step| if step < 5 { Mishap::NotANumber } else { Mishap::None }, method == "sgd"),
        ] {
            let mut trial = Trial::new(&method, &starts, 14);
            trial.mishap = mishap;
            assert_eq!(trial.go().unwrap().diverged, diverged, "{method}");
        }
    }
}

#[test]
fn a_worker_that_dies_is_named_and_the_others_go_on() {
    for method in methods() {
        let starts = starts(&method);
        for mishap in [
            (|worker, step| if (worker, step) == (1, 4) { Mishap::Fails } else { Mishap::None }) as Mishaps,
            |worker, step| if (worker, step) == (1, 4) { Mishap::Panics } else { Mishap::None },
        ] {
            let mut trial = Trial::new(&method, &starts, 12);
            trial.mishap = mishap;
            let end = trial.go().unwrap();
            if method == "sgd" {
                // There is no worker 1.
                assert!(trial.ear.faults().is_empty());
                continue;
            }
            let left: Vec<u32> = end.workers.iter().map(|share| share.worker).collect();
            assert_eq!((left, end.at.steps), (vec![0, 2, 3], 12), "{method}");
            let faults = trial.ear.faults();
            assert_eq!((faults.len(), faults[0].worker), (1, Some(1)), "{method}: {faults:?}");
            assert!(
                faults[0].what.contains("the disk is on fire") || faults[0].what.contains("on purpose"),
                "{faults:?}"
            );
            let last = trial.newest();
            assert_eq!(last.snapshot.parts.len(), 3);
            assert!(last.snapshot.parts.iter().flat_map(|part| &part.parameters).all(|x| x.is_finite()));
        }
    }
}

/// Who was lost comes back when the run is gone on with: at the centre, or as one of equal copies.
#[test]
fn a_lost_worker_comes_back_at_a_resume() {
    for method in ["mean:period=3", "dp-sgd", "lsgd:period=4,inner.group=2,inner.period=2"] {
        let mut trial = Trial::new(method, &starts(method), 8);
        trial.mishap = |worker, step| if (worker, step) == (1, 4) { Mishap::Fails } else { Mishap::None };
        trial.go().unwrap();
        trial.recipe.train.budget = Amount::Steps(14);
        trial.mishap = |_, _| Mishap::None;
        let mut snapshot = trial.newest().snapshot;
        snapshot.finished = false;
        let end = trial.launch(snapshot, true).unwrap();
        assert_eq!((end.workers.len(), end.at.steps), (4, 14), "{method}");
        let parameters = trial.parameters();
        assert!(parameters.iter().flatten().all(|x| x.is_finite()));
        if method == "dp-sgd" {
            let apart = |x: &[f32]| x.iter().zip(&parameters[0]).any(|(a, b)| (a - b).abs() > 7.5);
            assert!(!parameters.iter().any(|x| apart(x)));
        }
    }
}

#[test]
fn when_all_die_the_run_fails_and_says_why() {
    for method in ["mean:period=3", "dp-sgd", "sgd"] {
        let mut trial = Trial::new(method, &starts(method), 12);
        trial.mishap = |_, step| if step == 4 { Mishap::Fails } else { Mishap::None };
        let error = trial.go().unwrap_err().to_string();
        assert!(error.contains("the disk is on fire"), "{method}: {error}");
        // What was saved is still there.
        assert!(trial.newest().steps() < 12);
    }
}

/// A file that cannot be read is a failure and no wrong usage, and the system's own error is in the chain.
#[test]
fn what_a_replica_failed_with_outlives_the_run() {
    let mut trial = Trial::new("sgd", &starts("sgd"), 12);
    trial.mishap = |_, step| if step == 4 { Mishap::CannotRead } else { Mishap::None };
    let error = trial.go().unwrap_err();
    assert_eq!(error.to_string(), unreadable().to_string());
    assert!(!error.is_usage(), "{error:?}");
    let cause = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<std::io::Error>());
    assert_eq!(cause.map(std::io::Error::kind), Some(std::io::ErrorKind::PermissionDenied));
}

#[test]
fn a_worker_that_hangs_is_given_up() {
    for method in ["mgrawa:period=3", "dp-sam", "lsgd:period=4,inner.group=2,inner.period=2"] {
        let mut trial = Trial::new(method, &starts(method), 8);
        // Long enough that a busy machine does not make the others late too.
        trial.deadline = Duration::from_secs(2);
        trial.mishap = |worker, step| if (worker, step) == (2, 3) { Mishap::Hangs } else { Mishap::None };
        let end = trial.go().unwrap();
        let left: Vec<u32> = end.workers.iter().map(|share| share.worker).collect();
        assert_eq!(left, [0, 1, 3], "{method}");
        let faults = trial.ear.faults();
        assert!(
            faults.iter().any(|fault| fault.worker == Some(2) && fault.what.contains("was silent for")),
            "{method}: {faults:?}"
        );
    }
}

/// At a free pace the slow worker takes fewer steps, a cycle has M·τ of them, and a replay gives the bits back.
#[test]
fn uneven_workers_share_the_steps_and_a_replay_has_the_same_bits() {
    for method in methods() {
        let mut trial = Trial::new(&method, &starts(&method), 20);
        let slow: Mishaps =
            |worker, _| Mishap::Delay(Duration::from_micros(if worker == 0 { 3000 } else { 150 }));
        trial.mishap = slow;
        if trial.recipe.method.share != Share::Parameters {
            // Even workers wait for a slow one: the same bits as without it.
            trial.go().unwrap();
            let (parameters, _) = sequential(&method, &starts(&method), 20);
            assert_eq!(trial.parameters(), parameters, "{method}");
            continue;
        }
        if trial.recipe.method.qsr > 0.0 {
            // A recipe with both is refused.
            continue;
        }
        trial.recipe.train.pace = Pace::Free;
        let end = trial.go().unwrap();
        let cycle = u64::from(cycle(&trial.recipe.method));
        for round in trial.ear.rounds().iter().filter(|round| round.at.steps % cycle == 0) {
            assert_eq!(round.workers.iter().map(|share| share.steps).sum::<u64>(), 4 * cycle, "{method}");
        }
        let total: u64 = end.workers.iter().map(|share| share.total).sum();
        assert_eq!(total, 80, "{method}");
        assert!(end.workers[0].total < 20, "{method}: {:?}", end.workers);

        let mut again = Trial::new(&method, &starts(&method), 20);
        again.recipe.train.pace = Pace::Free;
        again.recording = Some(Recording::of(&trial.ear.events()));
        again.go().unwrap();
        assert_eq!(again.parameters(), trial.parameters(), "{method}");
        assert_eq!(again.centre(), trial.centre(), "{method}");
    }
}

/// A free run that is stopped goes on exactly from where it was: no step is lost, none is made twice.
#[test]
fn a_free_run_goes_on_from_its_checkpoint() {
    for method in ["lgrawa:period=5", "lsgd:period=4,inner.group=2,inner.period=2"] {
        let mut trial = Trial::new(method, &starts(method), 20);
        trial.recipe.train.pace = Pace::Free;
        stop_at_steps(&trial, &[2, 7, 11]);
        let end = trial.resume().unwrap();
        assert_eq!(end.workers.iter().map(|share| share.total).sum::<u64>(), 80, "{method}");
        assert_eq!(end.at.rounds, if method.starts_with("lgrawa") { 4 } else { 10 });
    }
}

/// A time budget ends at the first meeting after it; the clock is the test's.
#[test]
fn a_time_budget_is_by_the_given_clock() {
    let mut trial = Trial::new("mean:period=2", &[1.0, 2.0], 0);
    trial.recipe.train.budget = "10s".parse().unwrap();
    trial.recipe.train.rate = "0.05, x0.1 at 5s".parse().unwrap();
    let seconds = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let count = Arc::clone(&seconds);
    let launch = Launch {
        recipe: trial.recipe.clone(),
        layout: layout(),
        network: "toy".into(),
        warnings: Vec::new(),
        examples: 100,
        writer: None,
        recording: None,
        stop: Arc::default(),
        clock: Arc::new(move || Duration::from_millis(seconds.load(Ordering::Relaxed))),
        resumed: false,
        reporter: None,
        together: Arc::default(),
    };
    let make = |part: &mut Part| {
        let count = Arc::clone(&count);
        let function = move |x: &[f32], key: Key, gradient: &mut [f32]| {
            // A second for each step; the others' clocks do not count.
            if key.place().0 == 0 {
                count.fetch_add(1000, Ordering::Relaxed);
            }
            bowl(x, key, gradient)
        };
        let replica = FunctionReplica::new(layout(), part.parameters.clone(), function)?;
        Ok(Seat { worker: part.worker, replica: Box::new(replica), waits: None, evaluator: None })
    };
    let set = on_threads(layout(), DEADLINE, make);
    let end = launch.go(trial.fresh(), set, &mut [Box::new(trial.ear.clone())]).unwrap();
    assert_eq!((end.at.steps, end.at.elapsed), (10, 10.0));
    let rates: Vec<f64> = trial.ear.rounds().iter().map(|round| round.rate).collect();
    // The drop is seen at the first meeting after five seconds, which is at six.
    assert_eq!(rates, [0.05, 0.05, 0.05, 0.05 * 0.1, 0.05 * 0.1]);
}

#[test]
fn an_observer_that_fails_stops_the_run_and_nothing_is_lost() {
    struct Deaf(u32);
    impl Observer for Deaf {
        fn event(&mut self, _: &Event) -> Result<(), Error> {
            self.0 += 1;
            match self.0 {
                6 => Err(grawa_session::Error::NobodyLeft { why: "the pen broke".into() }.into()),
                _ => Ok(()),
            }
        }
    }
    let trial = Trial::new("mean:period=2", &[1.0, 2.0], 1_000_000);
    let started = Instant::now();
    let launch = Launch {
        recipe: trial.recipe.clone(),
        layout: layout(),
        network: "toy".into(),
        warnings: Vec::new(),
        examples: 100,
        writer: Some(Writer::new(trial.folder.path(), &trial.recipe, None)),
        recording: None,
        stop: Arc::default(),
        clock: Arc::new(move || started.elapsed()),
        resumed: false,
        reporter: None,
        together: Arc::default(),
    };
    let make = |part: &mut Part| {
        let replica = FunctionReplica::new(layout(), part.parameters.clone(), bowl as Function)?;
        Ok(Seat { worker: part.worker, replica: Box::new(replica), waits: None, evaluator: None })
    };
    let error =
        launch.go(trial.fresh(), on_threads(layout(), DEADLINE, make), &mut [Box::new(Deaf(0))]).unwrap_err();
    assert!(error.to_string().contains("the pen broke"));
    assert!(trial.newest().snapshot.stopped);
}

/// A network with an operation without kernels is slow: observers, and so the terminal, get the warning at the start.
#[test]
fn a_plain_operation_is_reported_at_the_start() {
    let data = grawa_data::load("digits", ".".as_ref()).unwrap();
    for plain in [true, false] {
        let mut net = grawa_nn::Builder::new("own", grawa_nn::Shape::image(1, 8));
        let x = net.input();
        let x = net.conv(x, "a", grawa_nn::Conv::same(4)).unwrap();
        let x = if plain { net.group_norm(x, "b", 2).unwrap() } else { net.batch_norm(x, "b").unwrap() };
        let x = net.linear(x, "c", 10).unwrap();
        let mut recipe = Recipe::for_data(DatasetKind::Digits, None).unwrap();
        recipe.train.budget = Amount::Steps(2);
        let ear = Ear::default();
        let run = Run::with_network(recipe, &data, &net.finish(x).unwrap()).unwrap();
        run.go(&mut [Box::new(ear.clone())]).unwrap();
        let found: Vec<(u64, String)> =
            ear.faults().into_iter().map(|fault| (fault.at.steps, fault.what)).collect();
        let warning = "group norm has no CPU kernel: its plain form runs, slowly".to_owned();
        assert_eq!(found, if plain { vec![(0, warning)] } else { Vec::new() });
    }
}

//! What is evaluated, and that nothing of it is missing when a worker is lost meanwhile.

use crate::Error;
use crate::engine::EvaluateShard;
use crate::event::Event;
use crate::event::Observer;
use crate::recipe::BatchNorm;
use crate::run::Launch;
use crate::snapshot::{Part, fresh};
use crate::thread_set::{Seat, on_threads};
use crate::worker_set::WorkerSet;
use crate::{Checkpoint, Fault, Model, Reason, Recipe, Run};
use grawa_core::{Amount, FunctionReplica, Key, Layout, Schedule, Sequential, Sgd};
use grawa_data::DatasetKind;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Function = fn(&[f32], Key, &mut [f32]) -> f64;

const RATE: f64 = 0.05;
const SEED: u64 = 7;
/// Batches of the test set, and of recalibration.
const BATCHES: usize = 13;

fn layout() -> Layout {
    Layout::new([("a", vec![5]), ("b", vec![40])]).unwrap()
}

/// A bowl that is steeper from one parameter to the next, with a push of each worker's own.
fn bowl(x: &[f32], key: Key, gradient: &mut [f32]) -> f64 {
    let push = key.stream().unit() - 0.5;
    let steepness = (1..).map(|at: u8| f32::from(at) / 45.0);
    gradient.iter_mut().zip(x).zip(steepness).for_each(|((g, &x), steep)| *g = steep * x + push);
    x.iter().map(|&x| f64::from(x * x) / 2.0).sum()
}

/// Where a worker fails, if it does: in which of its evaluations, and whether at the statistics or at the test.
type Fails = fn(u32) -> Option<(u32, &'static str)>;

/// Counts batches, and remembers the model.
struct Toy {
    worker: u32,
    fails: Fails,
    evaluations: u32,
    statistics: Layout,
    seen: Arc<Mutex<Vec<f32>>>,
}

impl Toy {
    fn at(&self, stage: &'static str) -> Result<(), Error> {
        match (self.fails)(self.worker) {
            Some(at) if at == (self.evaluations, stage) => {
                Err(grawa_core::Error::replica(format!("it fails at the {stage}")).into())
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Toy {
    /// A worker that fails leaves its groups first and is slow to drop the rest: the others may have ended the run by then.
    fn drop(&mut self) {
        if (self.fails)(self.worker).is_some() {
            std::thread::sleep(Duration::from_millis(300));
        }
    }
}

impl EvaluateShard for Toy {
    fn policy(&self) -> BatchNorm {
        BatchNorm::Recalibrate
    }

    fn statistics(&self) -> &Layout {
        &self.statistics
    }

    fn recalibrate(
        &mut self,
        _: &[f32],
        (seat, seats): (usize, usize),
        alive: &mut dyn FnMut() -> bool,
    ) -> Result<(Vec<f64>, u64), Error> {
        self.at("statistics")?;
        let own: Vec<usize> = (seat..BATCHES).step_by(seats).take_while(|_| alive()).collect();
        Ok((vec![own.iter().map(|number| number * number).sum::<usize>() as f64], own.len() as u64))
    }

    fn each(
        &mut self,
        model: &[f32],
        statistics: &[f32],
        (seat, seats): (usize, usize),
        alive: &mut dyn FnMut() -> bool,
        show: &mut dyn FnMut(&[f32], usize),
    ) -> Result<(), Error> {
        self.at("test")?;
        // The mean of the squares of all batches' numbers: every batch was counted once.
        assert_eq!(statistics, [((BATCHES - 1) * (2 * BATCHES - 1)) as f32 / 6.0]);
        let batches = (seat..BATCHES).step_by(seats).take_while(|_| alive());
        batches.for_each(|number| show(&[0.0, 1.0], number % 2));
        self.evaluations += 1;
        *self.seen.lock().unwrap() = model.to_vec();
        Ok(())
    }
}

#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Vec<Event>>>);

impl Observer for Ear {
    fn event(&mut self, event: &Event) -> Result<(), Error> {
        self.0.lock().unwrap().push(event.clone());
        Ok(())
    }
}

/// A run with an evaluation after every third step. Returns what it told, and the model evaluated last.
fn go(method: &str, starts: &[f32], steps: u64, fails: Fails) -> (Vec<Event>, Vec<f32>) {
    let (ear, seen) = (Ear::default(), Arc::<Mutex<Vec<f32>>>::default());
    let (launch, snapshot) = launch(method, starts, steps);
    launch.go(snapshot, set(fails, &seen), &mut [Box::new(ear.clone())]).unwrap();
    let (events, seen) = (ear.0.lock().unwrap().clone(), seen.lock().unwrap().clone());
    (events, seen)
}

/// The same in two processes that are threads. Returns what the first one told.
fn go_across(method: &str, starts: &[f32], steps: u64, fails: Fails) -> Vec<Event> {
    let ear = Ear::default();
    std::thread::scope(|scope| {
        for transport in grawa_comm::threads::transports(2, Duration::from_secs(60)) {
            let ear = ear.clone();
            scope.spawn(move || {
                let (launch, snapshot) = launch(method, starts, steps);
                let is_first = grawa_comm::Transport::rank(&transport) == 0;
                let beginning = is_first.then_some((snapshot, false));
                let observer = if is_first { ear } else { Ear::default() };
                let set = set(fails, &Arc::default());
                launch.go_across(&transport, beginning, set, &mut [Box::new(observer)]).unwrap();
            });
        }
    });
    ear.0.lock().unwrap().clone()
}

fn launch(method: &str, starts: &[f32], steps: u64) -> (Launch, crate::snapshot::Snapshot) {
    let mut recipe = Recipe::for_data(DatasetKind::Digits, None).unwrap();
    recipe.method = method.parse().unwrap();
    recipe.train.workers = starts.len() as u32;
    recipe.train.seed = SEED;
    recipe.train.budget = Amount::Steps(steps);
    recipe.train.rate = Schedule::constant(RATE).unwrap();
    recipe.train.sgd = Sgd::default();
    recipe.evaluate.every = Some(Amount::Steps(3));
    let starts = starts.iter().map(|&x| (vec![x; layout().len()], Vec::new())).collect();
    let snapshot = fresh(&recipe.method, &layout(), starts).unwrap();
    let launch = Launch {
        recipe,
        layout: layout(),
        network: "toy".into(),
        warnings: Vec::new(),
        examples: 100,
        writer: None,
        recording: None,
        stop: Arc::default(),
        clock: Arc::new(|| Duration::ZERO),
        resumed: false,
        reporter: None,
        together: Arc::default(),
    };
    (launch, snapshot)
}

/// The workers, on threads.
fn set(
    fails: Fails,
    seen: &Arc<Mutex<Vec<f32>>>,
) -> impl FnOnce(&Recipe, &mut [Part]) -> Result<Box<dyn WorkerSet>, Error> + use<> {
    let seen = Arc::clone(seen);
    on_threads(layout(), Duration::from_secs(60), move |part: &mut Part| {
        let replica = FunctionReplica::new(layout(), part.parameters.clone(), bowl as Function)?;
        let statistics = Layout::new([("bn.running_mean", vec![1])])?;
        let toy = Toy { worker: part.worker, fails, evaluations: 0, statistics, seen: Arc::clone(&seen) };
        Ok(Seat {
            worker: part.worker,
            replica: Box::new(replica),
            waits: None,
            evaluator: Some(Box::new(toy)),
        })
    })
}

/// A worker of one of two processes is lost while statistics are counted, or while the test set is measured, of one model or of each
/// worker's: both processes know it, and continue.
#[test]
fn an_evaluation_across_processes_survives_the_loss_of_a_worker() {
    for method in ["mean:period=3", "easgd:period=3", "mean:period=3,evaluate=each"] {
        for fails in [(|worker| (worker == 1).then_some((1, "statistics"))) as Fails, |worker| {
            (worker == 2).then_some((1, "test"))
        }] {
            let events = go_across(method, &[2.0, -3.0, 4.0, 1.0], 12, fails);
            let evaluated = events.iter().filter(|event| matches!(event, Event::Evaluated(_))).count();
            assert_eq!(evaluated, 4, "{method}");
            let Some(Event::Finished(end)) = events.last() else { panic!("{method}: {events:?}") };
            assert_eq!((end.at.steps, end.workers.len()), (12, 3), "{method}");
        }
    }
}

/// Workers are lost while statistics are counted and while the test set is measured: those who are left measure the whole.
#[test]
fn an_evaluation_covers_the_whole_test_set_whoever_is_lost() {
    let fails: Fails = |worker| match worker {
        1 => Some((1, "statistics")),
        2 => Some((2, "test")),
        _ => None,
    };
    for method in ["mean:period=3", "easgd:period=3", "lsgd:period=3", "mean:period=3,evaluate=best"] {
        let (events, _) = go(method, &[2.0, -3.0, 4.0, 1.0, 5.0], 12, fails);
        let faults: Vec<&Fault> = (events.iter())
            .filter_map(|event| if let Event::Fault(fault) = event { Some(fault) } else { None })
            .collect();
        let workers: Vec<Option<u32>> = faults.iter().map(|fault| fault.worker).collect();
        assert_eq!(workers, [Some(1), Some(2)], "{method}: {faults:?}");
        let counts: Vec<(u64, u64)> = (events.iter())
            .filter_map(|event| if let Event::Evaluated(told) = event { Some(told) } else { None })
            .map(|told| (told.models[0].examples, told.models[0].wrong))
            .collect();
        assert_eq!(counts, [(BATCHES as u64, BATCHES.div_ceil(2) as u64); 4], "{method}");
    }
}

/// The evaluated model of a run has the bits of that of the sequential one.
#[test]
fn the_evaluated_model_is_that_of_the_sequential_run() {
    let starts = [2.0, -3.0, 4.1];
    for method in ["mean:period=3", "mgrawa:period=4", "easgd:period=3", "mean:period=3,evaluate=best"] {
        let (_, found) = go(method, &starts, 14, |_| None);
        let replicas = starts
            .map(|x| FunctionReplica::new(layout(), vec![x; layout().len()], bowl as Function).unwrap());
        let mut run =
            Sequential::new(method.parse().unwrap(), Sgd::default(), SEED, replicas.into()).unwrap();
        (0..14).for_each(|_| drop(run.advance(RATE as f32).unwrap()));
        assert_eq!(run.evaluated(), [found], "{method}");
    }
}

/// Asks the run to stop before its n-th batch, and counts those that are measured after that.
#[derive(Clone)]
struct Stopping {
    statistics: Layout,
    left: Arc<AtomicI64>,
    late: Arc<AtomicI64>,
    stop: Arc<AtomicBool>,
}

impl Stopping {
    fn goes_on(&self, alive: &mut dyn FnMut() -> bool) -> bool {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 0 {
            self.stop.store(true, Ordering::Relaxed);
        }
        let goes_on = alive();
        if goes_on && self.stop.load(Ordering::Relaxed) {
            self.late.fetch_add(1, Ordering::Relaxed);
        }
        goes_on
    }
}

impl EvaluateShard for Stopping {
    fn policy(&self) -> BatchNorm {
        BatchNorm::Recalibrate
    }

    fn statistics(&self) -> &Layout {
        &self.statistics
    }

    fn recalibrate(
        &mut self,
        _: &[f32],
        (seat, seats): (usize, usize),
        alive: &mut dyn FnMut() -> bool,
    ) -> Result<(Vec<f64>, u64), Error> {
        let count = (seat..BATCHES).step_by(seats).take_while(|_| self.goes_on(alive)).count() as u64;
        Ok((vec![count as f64], count))
    }

    fn each(
        &mut self,
        model: &[f32],
        _: &[f32],
        (seat, seats): (usize, usize),
        alive: &mut dyn FnMut() -> bool,
        show: &mut dyn FnMut(&[f32], usize),
    ) -> Result<(), Error> {
        let batches = (seat..BATCHES).step_by(seats).take_while(|_| self.goes_on(alive));
        batches.for_each(|number| show(&[model[0], 1.0], number % 2));
        Ok(())
    }
}

/// Asked to stop before any batch of any evaluation, also the last, a run breaks it off within a batch of each worker
/// and leaves a checkpoint; after a resume its evaluations and its vectors are those of a run that was not stopped.
#[test]
fn an_evaluation_is_broken_off_and_made_again() {
    const WORKERS: u32 = 2;
    let go = |folder: &std::path::Path, batches: i64, checkpoint: Option<Checkpoint>| {
        let mut recipe = Recipe::for_data(DatasetKind::Digits, None).unwrap();
        recipe.method = "mgrawa:period=3".parse().unwrap();
        (recipe.train.workers, recipe.train.budget) = (WORKERS, Amount::Steps(6));
        recipe.train.rate = Schedule::constant(RATE).unwrap();
        recipe.evaluate.every = Some(Amount::Steps(3));
        let stopping = Stopping {
            statistics: Layout::new([("bn.running_mean", vec![1])]).unwrap(),
            left: Arc::new(batches.into()),
            late: Arc::default(),
            stop: Arc::default(),
        };
        let (ear, evaluator) = (Ear::default(), stopping.clone());
        let make = |_| FunctionReplica::new(layout(), vec![2.0; layout().len()], bowl as Function);
        let run = Run::of_replicas(recipe, "bowl", layout(), 100, make).unwrap();
        let run = run.evaluate_by(move |_| Box::new(evaluator.clone())).keep_in(folder);
        let run = checkpoint.into_iter().fold(run.stop_by(Arc::clone(&stopping.stop)), Run::resume);
        let end = run.go(&mut [Box::new(ear.clone())]).unwrap();
        assert!(stopping.late.load(Ordering::Relaxed) <= 1, "measured on after the stop at {batches}");
        let events = ear.0.lock().unwrap().clone();
        let found: Vec<(u64, Vec<Model>)> = (events.into_iter())
            .filter_map(|event| if let Event::Evaluated(told) = event { Some(told) } else { None })
            .map(|told| (told.at.steps, told.models))
            .collect();
        (end.reason, found)
    };
    let vectors = |folder: &std::path::Path| {
        let checkpoint = Checkpoint::newest(folder).unwrap();
        checkpoint.workers().map(|(_, parameters, _)| parameters.to_vec()).collect::<Vec<_>>()
    };
    let whole = tempfile::tempdir().unwrap();
    let (reason, evaluated) = go(whole.path(), i64::MAX, None);
    assert_eq!((reason, evaluated.len()), (Reason::Spent, 2));
    for batches in 0..4 * BATCHES as i64 {
        let place = tempfile::tempdir().unwrap();
        let (reason, mut first) = go(place.path(), batches, None);
        assert_eq!((reason, first.len()), (Reason::Interrupted, (batches / (2 * BATCHES as i64)) as usize));
        let checkpoint = Checkpoint::newest(place.path()).unwrap();
        assert_eq!((checkpoint.is_finished(), checkpoint.taken()), (false, 3 * (first.len() as u64 + 1)));
        let (reason, rest) = go(place.path(), i64::MAX, Some(checkpoint));
        first.extend(rest);
        assert_eq!((reason, &first), (Reason::Spent, &evaluated), "stopped before batch {batches}");
        assert_eq!(vectors(place.path()), vectors(whole.path()));
    }
}

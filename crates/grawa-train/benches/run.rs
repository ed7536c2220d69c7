//! What a whole run costs beside bare steps: ResNet-20, four workers, augmentation, rounds and all, no evaluation.
//!
//! Bare steps (what `grawa bench step` measures) and runs are timed in turn, so that a machine that is busy with other things
//! is busy for both; compare the shares, not the images a second. Three promises are looked at: a run makes at least
//! 92 % of the images of bare steps; a round without scoring costs less than 3 % of a local step; a score costs no more than a
//! forward and a backward pass.

#![allow(clippy::unwrap_used)]

use grawa_core::{Key, Purpose, Sgd, step::descend};
use grawa_data::{Dataset, DatasetKind, Shape, Split};
use grawa_nn::{Arena, Mode, Program, State, zoo};
use grawa_train::{Error, Event, Observer, Recipe, Run, Times};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const WORKERS: usize = 4;
const BATCH: usize = 128;
const TURNS: usize = 5;
/// Local steps a worker in a turn; the first cycle is not counted.
const STEPS: u64 = 12;
const PERIOD: u64 = 4;

fn main() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let data = images();
    let mut found: Vec<[f64; 2]> = Vec::new();
    let mut times: Vec<(Times, u64, u64)> = Vec::new();
    for _ in 0..TURNS {
        let bare = bare(cores);
        let mut rates = [0.0; 2];
        for (rate, method) in rates.iter_mut().zip(["mean", "lgrawa"]) {
            let (images, spent) = run(method, &data);
            *rate = images / bare;
            times.push(spent);
        }
        println!(
            "bare steps {bare:7.1} images/s; a run makes of them: mean {:.1} %, lgrawa {:.1} %",
            100.0 * rates[0],
            100.0 * rates[1]
        );
        found.push(rates);
    }
    let median = |mut shares: Vec<f64>| {
        shares.sort_by(f64::total_cmp);
        shares[shares.len() / 2]
    };
    let share = |at: usize| median(found.iter().map(|rates| rates[at]).collect());
    // Times are of all workers together: a step's is the mean of one worker's.
    let cost = |skip: usize, part: fn(&Times) -> f64, per_round: bool| {
        median(
            (times.iter().skip(skip).step_by(2))
                .map(|(times, steps, rounds)| part(times) / *(if per_round { rounds } else { steps }) as f64)
                .collect(),
        )
    };
    let step = cost(0, |times| times.compute, false);
    let round = cost(0, |times| times.wire + times.apply, true);
    let score = cost(1, |times| times.score, true);
    println!("\nmedian of {TURNS} turns, {cores} cores, {WORKERS} workers");
    println!("a run without scoring (mean):  {:6.1} % of bare steps' images (at least 92)", 100.0 * share(0));
    println!(
        "a run with scoring (lgrawa):   {:6.1} % of bare steps' images (a score every {PERIOD} steps)",
        100.0 * share(1)
    );
    println!("a local step of a worker:      {:6.1} ms", 1e3 * step);
    println!("a round without scoring:       {:6.2} % of a local step (less than 3)", 100.0 * round / step);
    println!("a score:                       {:6.1} % of a local step (at most 100)", 100.0 * score / step);
}

/// Random images of CIFAR's shape.
fn images() -> Dataset {
    let shape = Shape::new(3, 32, 32);
    let part = |count: usize, seed| {
        let mut draws = Key::new(seed, Purpose::Problem).stream();
        let bytes = (0..count * shape.len()).map(|_| draws.word() as u8).collect();
        let labels = (0..count).map(|_| draws.below(10) as u32).collect();
        Split::from_bytes(shape, bytes, labels, 10).unwrap()
    };
    Dataset {
        classes: 10,
        class_names: Vec::new(),
        normalise: DatasetKind::Cifar10.normalise(),
        train: part(4096, 1),
        test: part(BATCH, 2),
    }
}

/// Images a second of bare steps: as many lanes as cores, each running its workers in turn.
fn bare(cores: usize) -> f64 {
    let entry = zoo::find("resnet20").unwrap();
    let graph = entry.build(entry.input, 10).unwrap();
    let program = Program::compile(&graph, BATCH).unwrap();
    let mut draws = Key::new(1, Purpose::Problem).stream();
    let images: Vec<f32> = (0..BATCH * graph.input().len()).map(|_| draws.normal() as f32).collect();
    let labels: Vec<u32> = (0..BATCH).map(|_| draws.below(10) as u32).collect();
    let lanes = WORKERS.min(cores);
    let barrier = std::sync::Barrier::new(lanes);
    let lane = |lane: usize| {
        let mut arena = Arena::new(&program, cores / lanes).unwrap();
        let zeros = vec![0.0; graph.parameters().len()];
        let mut workers: Vec<(State, Vec<f32>, Vec<f32>)> = (lane..WORKERS)
            .step_by(lanes)
            .map(|_| (State::initial(&graph, 1), zeros.clone(), zeros.clone()))
            .collect();
        let mut step = |(state, velocity, gradient): &mut (State, Vec<f32>, Vec<f32>)| {
            let mode = Mode::Train { dropout: None };
            let batch = (&images[..], &labels[..]);
            let model = (&state.parameters[..], &state.statistics[..]);
            program.gradient(&mut arena, model, batch, mode, 1.0 / BATCH as f64, gradient).unwrap();
            program.track(&arena, &mut state.statistics).unwrap();
            descend(&Sgd::default(), 0.1, &mut state.parameters, velocity, gradient, &[]).unwrap();
        };
        // Touches all memory before the clock starts.
        workers.iter_mut().for_each(&mut step);
        barrier.wait();
        let start = Instant::now();
        for _ in 0..STEPS - PERIOD {
            workers.iter_mut().for_each(&mut step);
        }
        (STEPS - PERIOD) as f64 * (workers.len() * BATCH) as f64 / start.elapsed().as_secs_f64()
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..lanes).map(|index| scope.spawn(move || lane(index))).collect();
        running.into_iter().map(|lane| lane.join().unwrap()).sum()
    })
}

#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Vec<Event>>>);

impl Observer for Ear {
    fn event(&mut self, event: &Event) -> Result<(), Error> {
        self.0.lock().unwrap().push(event.clone());
        Ok(())
    }
}

/// Images a second of a run after its first cycle; where its time went, its steps and its rounds, of all workers.
fn run(method: &str, data: &Dataset) -> (f64, (Times, u64, u64)) {
    let mut recipe = Recipe::for_data(DatasetKind::Cifar10, None).unwrap();
    recipe.method = format!("{method}:period={PERIOD}").parse().unwrap();
    recipe.train.workers = WORKERS as u32;
    recipe.train.batch = BATCH as u32;
    recipe.train.budget = grawa_core::Amount::Steps(STEPS);
    recipe.evaluate.every = None;
    recipe.evaluate.images = BATCH as u32;
    let ear = Ear::default();
    let end = Run::new(recipe, data).unwrap().go(&mut [Box::new(ear.clone())]).unwrap();
    let events = ear.0.lock().unwrap();
    let first = events.iter().find_map(|event| match event {
        Event::Round(round) => Some(Duration::from_secs_f64(round.at.elapsed)),
        _ => None,
    });
    let elapsed = end.at.elapsed - first.unwrap().as_secs_f64();
    let mut times = Times::default();
    end.workers.iter().for_each(|share| times += share.times);
    let images = (STEPS - PERIOD) as f64 * (WORKERS * BATCH) as f64 / elapsed;
    (images, (times, STEPS * WORKERS as u64, end.at.rounds * WORKERS as u64))
}

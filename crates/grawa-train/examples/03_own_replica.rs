//! A model of one's own in plain Rust, trained by several processes that join a coordinator. Here the processes are threads; `work` is what
//! a program on another machine would do. Each process has two workers.
//!
//!     cargo run --release -p grawa-train --example 03_own_replica
//!
//! As processes of their own, with the method, budget and workers of the command line:
//!
//!     cargo build --release -p grawa-train --example 03_own_replica
//!     grawa launch --workers 4 --per-process 2 --method lgrawa:period=16 --budget 256step -- target/release/examples/03_own_replica

use grawa_comm::group::{Joiner, Security};
use grawa_core::norm::norms;
use grawa_core::step::ascend;
use grawa_core::{Error, Key, Layout, Moments, Optimizer, Prox, Purpose, Replica, StateKind};
use grawa_train::coordinate::{Connect, Control, CoordinatedRun, Outcome};
use grawa_train::observe::About;
use grawa_train::recipe::Overrides;
use grawa_train::{Recipe, Run, Stop, folder};
use std::path::Path;
use std::time::Duration;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Numbers that an example has, and examples of a batch.
const INPUTS: usize = 8;
const BATCH: u64 = 16;

/// Logistic regression: a weight for each input, and a bias.
struct Logistic {
    layout: Layout,
    parameters: Vec<f32>,
    gradient: Vec<f32>,
    moments: Moments,
    saved: Vec<f32>,
    /// Which shard of the examples it reads, of how many.
    shard: (u32, u32),
}

impl Logistic {
    fn new() -> Result<Self, Error> {
        let layout = Layout::new([("weight", vec![INPUTS]), ("bias", vec![1])])?;
        let zeros = || vec![0.0; layout.len()];
        let (parameters, gradient, moments) = (zeros(), zeros(), Moments::new(layout.len()));
        Ok(Logistic { layout, parameters, gradient, moments, saved: Vec::new(), shard: (0, 1) })
    }

    /// The example of this number, and its class: whether the sum of the inputs is positive.
    fn example(number: u64) -> ([f32; INPUTS], f32) {
        let mut draws = Key::new(1, Purpose::Problem).step(number).stream();
        let inputs = [0; INPUTS].map(|_| draws.normal() as f32);
        (inputs, f32::from(u8::from(inputs.iter().sum::<f32>() > 0.0)))
    }

    /// The mean loss on the examples at these numbers, and its gradient.
    fn pass(&mut self, numbers: impl Iterator<Item = u64>) -> f64 {
        self.gradient.fill(0.0);
        let (weights, bias) = self.parameters.split_at(INPUTS);
        let mut loss = 0.0;
        for (inputs, class) in numbers.map(Logistic::example) {
            let logit = bias[0] + inputs.iter().zip(weights).map(|(x, w)| x * w).sum::<f32>();
            let share = 1.0 / (1.0 + (-logit).exp());
            let error = (share - class) / BATCH as f32;
            self.gradient.iter_mut().zip(inputs.iter().chain([&1.0])).for_each(|(g, x)| *g += error * x);
            let right = if class > 0.5 { share } else { 1.0 - share };
            loss -= f64::from(right.max(1e-7).ln()) / BATCH as f64;
        }
        loss
    }
}

impl Replica for Logistic {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The key says which step of its shard the worker is at: no example is read twice.
    fn gradient(&mut self, key: Key) -> Result<f64, Error> {
        let (step, (shard, of)) = (key.place().1, self.shard);
        let number = move |at: u64| (step * BATCH + at) * u64::from(of) + u64::from(shard);
        Ok(self.pass((0..BATCH).map(number)))
    }

    fn descend(&mut self, optimizer: &Optimizer, rate: f32, prox: &[Prox<'_>]) -> Result<bool, Error> {
        self.moments.descend(optimizer, rate, &mut self.parameters, &self.gradient, prox)
    }

    fn ascend(&mut self, radius: f32) -> Result<(), Error> {
        self.saved.resize(self.parameters.len(), 0.0);
        ascend(radius, &mut self.parameters, &mut self.saved, &self.gradient)
    }

    fn restore(&mut self) -> Result<(), Error> {
        self.parameters.copy_from_slice(&self.saved);
        Ok(())
    }

    fn norms(&mut self, out: &mut [f64]) -> Result<(), Error> {
        norms(&self.layout, &self.gradient, out)
    }

    fn score(&mut self, key: Key, _dropout: bool, out: &mut [f64]) -> Result<(), Error> {
        let (worker, round) = key.place();
        // Beyond the examples of the steps.
        let first = (1 << 40) + (round * 4096 + u64::from(worker)) * BATCH;
        self.pass(first..first + BATCH);
        norms(&self.layout, &self.gradient, out)
    }

    fn assign_shard(&mut self, shard: u32, of: u32) -> Result<(), Error> {
        self.shard = (shard, of);
        Ok(())
    }

    fn reset(&mut self) {
        self.moments.reset();
    }

    fn parameters(&mut self) -> &mut [f32] {
        &mut self.parameters
    }

    fn gradients(&mut self) -> &mut [f32] {
        &mut self.gradient
    }

    fn copy(&mut self, what: StateKind) -> Result<Vec<f32>, Error> {
        Ok(match what {
            StateKind::Parameters => self.parameters.clone(),
            what => self.moments.copy(what),
        })
    }

    fn put(&mut self, what: StateKind, values: &[f32]) -> Result<(), Error> {
        match what {
            StateKind::Parameters => what.fill(&mut self.parameters, values),
            what => self.moments.put(what, values),
        }
    }
}

/// One process with two workers.
fn work(address: &str) -> Result<(), Failure> {
    let listen = ("127.0.0.1:0", None);
    train(
        Joiner::with_workers(2, address, Security::Plain, listen, Duration::from_secs(60))?,
        Stop::default(),
    )
}

/// Takes part in a run. The recipe comes from the coordinator.
fn train(joiner: Joiner, stop: Stop) -> Result<(), Failure> {
    let text = String::from_utf8_lossy(&joiner.charter).into_owned();
    let recipe = Recipe::resolve(&Overrides::default().file("the coordinator's recipe", &text)?)?;
    let (founders, layout) = (recipe.train.workers, Logistic::new()?.layout);
    let run = Run::of_replicas(recipe, "logistic", layout, 100_000, move |shard| {
        let mut replica = Logistic::new()?;
        replica.assign_shard(shard, founders)?;
        Ok(replica)
    })?;
    run.join(joiner, stop, &mut [])?;
    Ok(())
}

/// Coordinates a run of two processes in a new folder.
pub fn learn(place: &Path) -> Result<Outcome, Failure> {
    let overrides = Overrides::default()
        .method("lgrawa:period=16", "here")?
        .set("train.workers=4")?
        .set("train.rate=0.2")?
        .set("train.budget=256step")?;
    let recipe = Recipe::resolve(&overrides)?;
    folder::create(place, &recipe)?;
    let connect = Connect {
        listen: None,
        wire: Security::Plain,
        patience: Duration::from_secs(60),
        stall: Connect::STALL,
        wait: None,
    };
    let run = CoordinatedRun::begin(&recipe, place, &connect, &About::here("own_replica", None))?;
    let address = run.address().to_string();
    std::thread::scope(|scope| {
        let processes = [scope.spawn(|| work(&address)), scope.spawn(|| work(&address))];
        let are_gone = || processes.iter().all(std::thread::ScopedJoinHandle::is_finished);
        let outcome =
            run.follow(&mut [], || if are_gone() { Control::NoWorkers } else { Control::Continue })?;
        for process in processes {
            process.join().map_err(|_| "a process panicked")??;
        }
        Ok(outcome)
    })
}

fn main() -> Result<(), Failure> {
    if let Some(joiner) = Joiner::from_environment()? {
        return train(joiner, Stop::from_launcher());
    }
    let place = std::env::args().nth(1).unwrap_or("runs/own-replica".into());
    let end = learn(Path::new(&place))?.finished.ok_or("the processes have not reported an end")?;
    println!("{} rounds of {} workers; see {place}", end.at.rounds, end.workers.len());
    Ok(())
}

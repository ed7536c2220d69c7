//! A training loop of one's own, in a run with others: logistic regression, three workers, and a worker that leaves and comes back. The
//! workers are threads here; `work` is what a program on another machine would do.
//!
//!     cargo run --release -p grawa-session --example 06_session

use grawa_comm::group::{CoordinatorEvent, CoordinatorServer, Joiner, Security, ServerEvent};
use grawa_core::{Key, Layout, Purpose};
use grawa_session::{Due, LocalStep, Session, Settings};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Numbers that an example has, examples to train on, and examples of a batch.
const INPUTS: usize = 8;
const EXAMPLES: usize = 4096;
const BATCH: u32 = 16;
const RATE: f32 = 0.1;

/// The example of this number, and its class: whether the sum of the inputs is positive. The first are to train on, all others for tests.
fn example(number: u64) -> ([f32; INPUTS], f32) {
    let mut draws = Key::new(1, Purpose::Problem).step(number).stream();
    let inputs = [0; INPUTS].map(|_| draws.normal() as f32);
    (inputs, f32::from(u8::from(inputs.iter().sum::<f32>() > 0.0)))
}

/// The model: a weight for each input, and a bias. Returns the mean loss on the examples with these numbers, and its gradient.
fn loss_and_gradient(parameters: &[f32], numbers: &[u64]) -> (f64, Vec<f32>) {
    let (weights, bias) = parameters.split_at(INPUTS);
    let (mut loss, mut gradient) = (0.0, vec![0.0; parameters.len()]);
    for (inputs, class) in numbers.iter().map(|&number| example(number)) {
        let logit = bias[0] + inputs.iter().zip(weights).map(|(x, w)| x * w).sum::<f32>();
        let output = 1.0 / (1.0 + (-logit).exp());
        let error = (output - class) / numbers.len() as f32;
        gradient.iter_mut().zip(inputs.iter().chain([&1.0])).for_each(|(g, x)| *g += error * x);
        let right = if class > 0.5 { output } else { 1.0 - output };
        loss -= f64::from(right.max(1e-7).ln()) / numbers.len() as f64;
    }
    (loss, gradient)
}

/// The loss on examples that nobody trains on.
fn test_loss(parameters: &[f32]) -> f64 {
    let numbers: Vec<u64> = (EXAMPLES as u64..).take(1000).collect();
    loss_and_gradient(parameters, &numbers).0
}

/// What all workers and the coordinator agree on. Three workers begin, and average their models after every 16 steps.
fn settings() -> Result<Settings, Failure> {
    let layout = Layout::new([("weight", vec![INPUTS]), ("bias", vec![1])])?;
    let settings = Settings::new("mean:period=16,pull=1".parse()?, layout, 3, "3s".parse()?);
    let evaluate = Some("1s".parse()?);
    Ok(Settings {
        name: "logistic regression".into(),
        evaluate,
        batch: BATCH,
        examples: EXAMPLES,
        ..settings
    })
}

/// What a worker has at the end.
#[derive(Debug)]
pub struct Trained {
    /// When it joined, in steps of the run.
    pub joined_at: u64,
    pub parameters: Vec<f32>,
    pub test_loss: f64,
}

/// A worker, to the end of the run, or until it leaves after some training.
fn work(address: &str, leaves_after: Duration) -> Result<Trained, Failure> {
    let settings = settings()?;
    let joiner = Joiner::new(address, Security::Plain, "127.0.0.1:0", None, Duration::from_secs(60))?;
    let mut parameters = vec![0.0; settings.layout.len()];
    let mut session = Session::join(joiner, &settings, &mut parameters)?;
    let joined_at = session.progress().steps;
    println!("worker {} joins at step {joined_at}", session.worker());
    while session.progress().elapsed < leaves_after {
        match session.due() {
            Due::Step => {
                // Of all examples, those of this worker. They change when workers join or leave.
                let data = session.shard();
                let first = data.step * u64::from(BATCH);
                let number = |at| (at * u64::from(data.of) + u64::from(data.shard)) % EXAMPLES as u64;
                let numbers: Vec<u64> = (first..first + u64::from(BATCH)).map(number).collect();
                let (loss, gradient) = loss_and_gradient(&parameters, &numbers);
                parameters.iter_mut().zip(&gradient).for_each(|(x, g)| *x -= RATE * g);
                session.step(LocalStep::new(loss, f64::from(RATE)))?;
            }
            // With a momentum, `was_replaced` of the result says when to drop it.
            Due::Round => drop(session.round(&[], &mut parameters)?),
            Due::Evaluate => {
                if let Some(model) = session.evaluated_model(&parameters)?.filter(|_| session.worker() == 0) {
                    println!("step {}: test loss {:.4}", session.progress().steps, test_loss(&model));
                }
            }
            Due::End => {
                session.finish()?;
                break;
            }
        }
    }
    let test_loss = test_loss(&parameters);
    Ok(Trained { joined_at, parameters, test_loss })
}

/// Prints who joins and who is lost, as long as there are workers.
fn follow(coordinator: &CoordinatorServer, workers: &[ScopedJoinHandle<'_, Result<Trained, Failure>>]) {
    use CoordinatorEvent::{Joined, Lost};
    while !workers.iter().all(ScopedJoinHandle::is_finished) {
        let event = coordinator.next(Duration::from_millis(100));
        if let Some(ServerEvent::Decision(decision @ (Joined { .. } | Lost(_)))) = event {
            println!("coordinator: {decision}");
        }
    }
}

/// Coordinates a run, and has three workers join it. Returns what each has at the end.
pub fn learn() -> Result<Vec<Trained>, Failure> {
    let coordinator = settings()?.coordinate("127.0.0.1:0", Security::Plain, 1, None)?;
    let address = coordinator.address().to_string();
    let stays = || work(&address, Duration::MAX);
    let comes_back = || {
        work(&address, Duration::from_millis(500))?;
        println!("a worker has left");
        work(&address, Duration::MAX)
    };
    thread::scope(|scope| {
        let workers = [scope.spawn(stays), scope.spawn(stays), scope.spawn(comes_back)];
        follow(&coordinator, &workers);
        workers.into_iter().map(|worker| worker.join().map_err(|_| "a worker panicked")?).collect()
    })
}

fn main() -> Result<(), Failure> {
    for Trained { joined_at, test_loss, .. } in learn()? {
        println!("a worker from step {joined_at} on: test loss {test_loss:.4}");
    }
    Ok(())
}

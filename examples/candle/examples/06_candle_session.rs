//! A Candle model in a session: the training loop and the optimizer are Candle's, and grawa is called for rounds. Three workers join a
//! coordinator; they are threads here, and `work` is what a program on another machine would do.
//!
//!     cargo run --release --example 06_candle_session

use candle_core::backprop::GradStore;
use candle_nn::{AdamW, Optimizer};
use grawa_candle::{BATCH, EXAMPLES, FlatVars, Network, score_batch, test_set, train_batch};
use grawa_comm::group::{Joiner, Security};
use grawa_core::norm;
use grawa_session::{Due, LocalStep, Session, Settings};
use std::thread;
use std::time::Duration;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const RATE: f64 = 0.01;

/// What all workers and the coordinator agree on. Other methods need no other code.
fn settings(vars: &FlatVars) -> Result<Settings, Failure> {
    let settings = Settings::new("lgrawa:period=16".parse()?, vars.layout()?, 3, "512step".parse()?);
    Ok(Settings { name: "candle".into(), batch: BATCH, examples: EXAMPLES, ..settings })
}

/// The norm of each variable's gradient.
fn norms(vars: &FlatVars, settings: &Settings, gradients: &GradStore) -> Result<Vec<f64>, Failure> {
    let mut norms = vec![0.0; settings.layout.spans().len()];
    norm::norms(&settings.layout, &vars.gradient(gradients)?, &mut norms)?;
    Ok(norms)
}

/// What a worker has at the end.
#[derive(Debug)]
pub struct Trained {
    /// The last model that all workers made together.
    pub model: Vec<f32>,
    pub test_loss: f32,
}

/// A worker.
fn work(address: &str) -> Result<Trained, Failure> {
    let (network, vars) = Network::new()?;
    let settings = settings(&vars)?;
    let joiner = Joiner::new(address, Security::Plain, "127.0.0.1:0", None, Duration::from_secs(60))?;
    let mut parameters = vars.gather()?;
    let mut session = Session::join(joiner, &settings, &mut parameters)?;
    vars.scatter(&parameters)?;
    let mut optimizer = AdamW::new_lr(vars.vars(), RATE)?;
    let mut model = parameters;
    loop {
        match session.due() {
            Due::Step => {
                let data = session.shard();
                let loss = network.loss(&train_batch(data.shard, data.of, data.step))?;
                let gradients = loss.backward()?;
                let norms = match session.wants_norms() {
                    true => norms(&vars, &settings, &gradients)?,
                    false => Vec::new(),
                };
                optimizer.step(&gradients)?;
                let loss = f64::from(loss.to_scalar::<f32>()?);
                session.step(LocalStep { loss, norms: &norms, rate: RATE })?;
            }
            Due::Round => {
                let scores = match session.score_batch() {
                    Some(batch) => {
                        norms(&vars, &settings, &network.loss(&score_batch(batch.key))?.backward()?)?
                    }
                    None => Vec::new(),
                };
                let mut parameters = vars.gather()?;
                let result = session.round(&scores, &mut parameters)?;
                vars.scatter(&parameters)?;
                if result.was_replaced {
                    optimizer = AdamW::new_lr(vars.vars(), RATE)?;
                }
            }
            Due::Evaluate => {
                if let Some(made) = session.evaluated_model(&vars.gather()?)? {
                    model = made;
                }
            }
            Due::End => break,
        }
    }
    session.finish()?;
    vars.scatter(&model)?;
    let test_loss = network.loss(&test_set())?.to_scalar()?;
    Ok(Trained { model, test_loss })
}

/// Coordinates a run, and has three workers join it. Returns what each has at the end.
pub fn learn() -> Result<Vec<Trained>, Failure> {
    let (_, vars) = Network::new()?;
    let coordinator = settings(&vars)?.coordinate("127.0.0.1:0", Security::Plain, 1, None)?;
    let address = coordinator.address().to_string();
    thread::scope(|scope| {
        let workers = [0; 3].map(|_| scope.spawn(|| work(&address)));
        workers.into_iter().map(|worker| worker.join().map_err(|_| "a worker panicked")?).collect()
    })
}

fn main() -> Result<(), Failure> {
    for Trained { test_loss, .. } in learn()? {
        println!("test loss {test_loss:.4}");
    }
    Ok(())
}

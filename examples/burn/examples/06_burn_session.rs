//! A Burn model in a session: the training loop and the optimizer are Burn's, and grawa is called for rounds. Started by `grawa launch`,
//! the program is one of several workers, which may be killed and started again; started otherwise, it trains alone.
//!
//!     cargo build --release --example 06_burn_session
//!     grawa launch --workers 4 --restarts 1 -- target/release/examples/06_burn_session

use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::Device;
use grawa_burn::{BATCH, EXAMPLES, Network, flat, score_batch, test_set};
use grawa_comm::group::Joiner;
use grawa_core::{Error, norm};
use grawa_session::{Due, ExampleOrder, LocalStep, Session, Settings, Stop};
use std::sync::atomic::Ordering;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const RATE: f64 = 0.01;

/// What all workers agree on. Other methods need no other code.
fn settings(network: &Network, workers: u32, budget: &str) -> Result<Settings, Error> {
    let (method, layout) = ("lgrawa:period=16".parse()?, flat::layout(network)?);
    let usual = Settings::new(method, layout, workers, budget.parse()?);
    let (evaluate, examples) = (Some("128step".parse()?), EXAMPLES as usize);
    Ok(Settings { name: "burn".into(), evaluate, batch: BATCH, examples, ..usual })
}

/// The norm of each parameter's gradient.
fn norms(network: &Network, settings: &Settings, gradients: &GradientsParams) -> Result<Vec<f64>, Error> {
    let mut norms = vec![0.0; settings.layout.spans().len()];
    norm::norms(&settings.layout, &flat::gradient(network, gradients)?, &mut norms)?;
    Ok(norms)
}

fn main() -> Result<(), Failure> {
    let budget = std::env::args().nth(1).unwrap_or("512step".into());
    let device = Device::flex().autodiff();
    let mut network = Network::new(&device);
    let mut parameters = flat::gather(&network)?;
    let joiner = Joiner::from_environment()?;
    let settings = settings(&network, joiner.as_ref().map_or(1, |joiner| joiner.founders), &budget)?;
    let mut session = match joiner {
        Some(joiner) => Session::join(joiner, &settings, &mut parameters)?,
        None => Session::alone(&settings, &mut parameters)?,
    };
    println!("joined at step {}", session.progress().steps);
    network = flat::scatter(network, &parameters)?;
    let (launcher, stop) = (Stop::from_launcher(), session.stop());
    let mut optimizer = AdamWConfig::new().init();
    let mut order = ExampleOrder::new(settings.seed, EXAMPLES);
    loop {
        match session.due() {
            Due::Step => {
                let loss = network.loss(&order.batch(session.shard(), BATCH), &device);
                let gradients = GradientsParams::from_grads(loss.backward(), &network);
                let norms = match session.wants_norms() {
                    true => norms(&network, &settings, &gradients)?,
                    false => Vec::new(),
                };
                network = optimizer.step(RATE, network, gradients);
                if session.prox() > 0.0 {
                    parameters = flat::gather(&network)?;
                    session.apply_prox(&mut parameters)?;
                    network = flat::scatter(network, &parameters)?;
                }
                session.step(LocalStep { loss: loss.into_scalar(), norms: &norms, rate: RATE })?;
            }
            Due::Round => {
                let scores = match session.score_batch() {
                    Some(batch) => {
                        let loss = network.loss(&score_batch(batch.key), &device);
                        let gradients = GradientsParams::from_grads(loss.backward(), &network);
                        norms(&network, &settings, &gradients)?
                    }
                    None => Vec::new(),
                };
                // Ctrl-C of the launcher: all workers stop with this round.
                if launcher.asked.load(Ordering::Relaxed) {
                    stop.together.store(true, Ordering::Relaxed);
                    stop.asked.store(true, Ordering::Relaxed);
                }
                parameters = flat::gather(&network)?;
                let result = session.round(&scores, &mut parameters)?;
                network = flat::scatter(network, &parameters)?;
                if result.was_replaced {
                    optimizer = AdamWConfig::new().init();
                }
            }
            Due::Evaluate => {
                let steps = session.progress().steps;
                // None if this worker lost its connection meanwhile.
                if let Some(model) = session.evaluated_model(&flat::gather(&network)?)? {
                    let accuracy = flat::scatter(network.clone(), &model)?.accuracy(&test_set(), &device);
                    println!("step {steps}: accuracy {accuracy:.3}");
                }
            }
            Due::End => break,
        }
    }
    session.finish()?;
    Ok(())
}

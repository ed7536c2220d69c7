//! A function as a model, trained by four workers: a line through noisy points, whose gradient is worked out by hand.
//!
//!     cargo run --release -p grawa-train --example 01_function

use grawa_core::{FunctionReplica, Key, Layout};
use grawa_train::recipe::Overrides;
use grawa_train::{Error, Event, Observer, Recipe, Run};

/// A point of the line y = 2x − 1, with noise. The key is that of the worker and the step.
fn point(key: Key) -> (f32, f32) {
    let mut draws = key.stream();
    let x = draws.normal() as f32;
    (x, 2.0 * x - 1.0 + 0.1 * draws.normal() as f32)
}

/// Prints the mean loss of every round.
struct Losses;

impl Observer for Losses {
    fn event(&mut self, event: &Event) -> Result<(), Error> {
        if let Event::Round(round) = event {
            println!("round {}: loss {:.4}", round.at.rounds, round.loss.unwrap_or(f64::NAN));
        }
        Ok(())
    }
}

/// Trains. Returns the number of rounds.
pub fn learn() -> Result<u64, Box<dyn std::error::Error>> {
    let overrides = Overrides::default()
        .method("mgrawa:period=32", "here")?
        .set("train.workers=4")?
        .set("train.rate=0.02")?
        .set("train.budget=512step")?;
    let layout = Layout::new([("slope", vec![1]), ("offset", vec![1])])?;
    let squared_error = |line: &[f32], key: Key, gradient: &mut [f32]| {
        let (x, y) = point(key);
        let error = line[0] * x + line[1] - y;
        gradient.copy_from_slice(&[error * x, error]);
        f64::from(error * error) / 2.0
    };
    let recipe = Recipe::resolve(&overrides)?;
    let run = Run::of_replicas(recipe, "line", layout.clone(), 10_000, move |_| {
        FunctionReplica::new(layout.clone(), vec![0.0, 0.0], squared_error)
    })?;
    Ok(run.go(&mut [Box::new(Losses)])?.at.rounds)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("{} rounds", learn()?);
    Ok(())
}

//! A model of one's own, trained by four workers with MGRAWA: `cargo run -p grawa-core --example own_model`.
//!
//! The model is a line through noisy points; its gradient is worked out by hand. Each worker sees its own points.

use grawa_core::{FunctionReplica, Key, Layout, Sequential, Sgd};

/// The line y = 2x − 1, with noise.
fn point(key: Key) -> (f32, f32) {
    let mut draws = key.stream();
    let x = draws.normal() as f32;
    (x, 2.0 * x - 1.0 + 0.1 * draws.normal() as f32)
}

fn main() -> Result<(), grawa_core::Error> {
    let squared_error = |line: &[f32], key: Key, gradient: &mut [f32]| {
        let (x, y) = point(key);
        let error = line[0] * x + line[1] - y;
        gradient.copy_from_slice(&[error * x, error]);
        f64::from(error * error) / 2.0
    };
    let layout = || Layout::new([("slope", vec![1]), ("offset", vec![1])]);
    let workers: Result<Vec<_>, grawa_core::Error> = (0..4)
        .map(|worker| FunctionReplica::new(layout()?, vec![worker as f32, 0.0], squared_error))
        .collect();
    let mut run = Sequential::new("mgrawa:period=8".parse()?, Sgd::PLAIN, 36, workers?)?;
    for _ in 0..1000 {
        run.advance(0.02)?;
    }
    let line = &run.evaluated()[0];
    println!("y = {:.2}x {:+.2}", line[0], line[1]);
    Ok(())
}

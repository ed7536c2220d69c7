//! Repeats training steps that PyTorch took, and reports how far the losses diverge. Reads the file that `oracle/steps.py` writes:
//! `cargo run --release -p grawa-nn --example steps -- FILE [NETWORK]`.
//!
//! With plain SGD at a small learning rate each loss must be within 0.1 % of PyTorch's. With momentum, PyTorch's own memory formats
//! differ from each other by some tenths of a percent, and at a large rate completely, as any two orders of summation do. There no
//! loss may be twice as far from PyTorch's default as the farthest of its other variants, and the mean of the last ten steps no
//! farther from the range of all of them than that range is wide.

use grawa_core::{Sgd, step::descend};
use grawa_nn::{Arena, Mode, Program, Tensors, zoo};
use std::error::Error;
use std::path::Path;

const VARIANTS: [&str; 3] = ["default", "channels_last", "no_onednn"];
const CASES: [(&str, f32, Sgd); 3] = [
    ("slow", 0.001, Sgd { momentum: 0.0, weight_decay: 1e-4, nesterov: false }),
    ("momentum", 0.001, Sgd { momentum: 0.9, weight_decay: 1e-4, nesterov: true }),
    ("fast", 0.1, Sgd { momentum: 0.9, weight_decay: 1e-4, nesterov: true }),
];

/// The largest relative difference between the losses of two runs.
fn distance(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a / b - 1.0).abs()).fold(0.0, f32::max)
}

fn last_ten(losses: &[f32]) -> f32 {
    losses.iter().rev().take(10).sum::<f32>() / 10.0
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let file = arguments.first().ok_or("usage: steps FILE [NETWORK]")?;
    let network = arguments.get(1).map_or("resnet20", String::as_str);
    let file = Tensors::read(Path::new(file), network)?;
    let entry = zoo::find(network)?;
    let graph = entry.build(entry.input, entry.classes)?;
    let shape = &file.find("labels").ok_or("the file has no labels")?.shape;
    let [steps, batch] = shape[..] else { return Err("labels must be steps × batch".into()) };
    let input = graph.input();
    let images = file.f32("images", &[steps, batch, input.channels, input.height, input.width])?;
    let labels: Vec<u32> =
        file.i64("labels", shape)?.iter().map(|&label| u32::try_from(label)).collect::<Result<_, _>>()?;
    let program = Program::compile(&graph, batch)?;
    let mut arena = Arena::new(&program, std::thread::available_parallelism()?.get())?;

    let mut passed = true;
    for (case, rate, sgd) in CASES {
        if file.find(&format!("loss.{case}.{}", VARIANTS[0])).is_none() {
            continue;
        }
        let mut parameters = file.vector("param.", graph.parameters())?;
        let mut statistics = file.vector("buffer.", graph.statistics())?;
        let mut velocity = vec![0.0; parameters.len()];
        let mut gradient = velocity.clone();
        let mut losses = Vec::with_capacity(steps);
        for (images, labels) in images.chunks_exact(batch * input.len()).zip(labels.chunks_exact(batch)) {
            let mode = Mode::Train { dropout: None };
            let of_mean = 1.0 / batch as f64;
            let given = (&parameters[..], &statistics[..]);
            let loss = program.gradient(&mut arena, given, (images, labels), mode, of_mean, &mut gradient)?;
            losses.push((loss * of_mean) as f32);
            program.track(&arena, &mut statistics)?;
            descend(&sgd, rate, &mut parameters, &mut velocity, &gradient, &[])?;
        }
        let run = |variant: &str| file.f32(&format!("loss.{case}.{variant}"), &[steps]);
        let variants = [run(VARIANTS[0])?, run(VARIANTS[1])?, run(VARIANTS[2])?];
        let own = distance(&losses, variants[0]);
        let theirs = distance(variants[1], variants[0]).max(distance(variants[2], variants[0]));
        println!(
            "{case}: losses differ from PyTorch's default by at most {own:.1e}; its other variants by {theirs:.1e}"
        );
        let (mean, means) = (last_ten(&losses), variants.map(last_ten));
        println!("{case}: the mean of the last ten steps is {mean:.4}; PyTorch's {means:.4?}");
        let (low, high) =
            means.iter().fold((f32::MAX, f32::MIN), |(low, high), &x| (low.min(x), high.max(x)));
        passed &= match case {
            "slow" => own < 1e-3,
            "momentum" => own < 2.0 * theirs,
            _ => (low - (high - low)..=high + (high - low)).contains(&mean),
        };
    }
    if passed { Ok(()) } else { Err("the losses diverge more than allowed".into()) }
}

//! `grawa bench product`: how fast this machine multiplies the Hessian of a loss with vectors.

use crate::bench::{random_batch, seconds};
use crate::doctor::cores;
use crate::failure::Failure;
use crate::output::print;
use clap::Args;
use grawa_core::{Key, Purpose};
use grawa_flat::{Engine, Examples, Hessian, direction};
use grawa_lab::Table;
use grawa_nn::{Graph, Mode, State, zoo};
use grawa_train::recipe::Device;
use std::time::Instant;

/// Products with the Hessian of the mean loss on random images, as `grawa flatness` makes them: with the statistics of each
/// batch, in f32.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  grawa bench product --model resnet20\n  grawa bench product --model resnet20 --device cuda --profile"
)]
pub(crate) struct ProductArguments {
    /// The network, one of `grawa models`
    #[arg(long, value_name = "NAME", default_value = "resnet20")]
    model: String,
    /// Images
    #[arg(long, value_name = "N", default_value_t = 320)]
    examples: usize,
    /// Images in a batch
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// How long to measure, from 0.1 to 3600 seconds
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    seconds: f64,
    /// Where to run it: cpu (all cores) or cuda (the first NVIDIA GPU)
    #[arg(long, default_value_t = Device::Cpu)]
    device: Device,
    /// Cores to use [default: all]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// On a GPU, also print where the time goes, kernel by kernel
    #[arg(long)]
    profile: bool,
}

pub(crate) fn run(arguments: &ProductArguments) -> Result<(), Failure> {
    let entry = zoo::find(&arguments.model)?;
    let graph = entry.build(entry.input, entry.classes)?;
    let state = State::initial(&graph, 1);
    let (images, labels) = random_batch(&graph, arguments.examples);
    let examples = Examples::new(images, labels, arguments.batch as usize)?;
    let engine = match arguments.device {
        Device::Cpu => Engine::Cpu { threads: arguments.threads.map_or_else(cores, |count| count as usize) },
        Device::Cuda => Engine::Cuda,
    };
    let begin = Instant::now();
    let mode = Mode::Train { dropout: None };
    let mut hessian = Hessian::new(&graph, &state, &examples, mode, engine, usize::MAX)?;
    let v = direction(Key::new(1, Purpose::Direction), hessian.len());
    let mut product = vec![0.0; v.len()];
    hessian.apply(&v, &mut product)?;
    let ready = begin.elapsed();

    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed().as_secs_f64() < arguments.seconds {
        hessian.apply(&v, &mut product)?;
        count += 1;
    }
    let time = start.elapsed().as_secs_f64() / f64::from(count);
    let (kept, batches) = hessian.kept();
    // Each of the three passes of a gradient has two products for one of the forward pass.
    let flops = 6.0 * graph.flops() as f64 * arguments.examples as f64;
    let table = Table::of_one_row([
        ("network", arguments.model.clone()),
        ("device", arguments.device.to_string()),
        ("examples", arguments.examples.to_string()),
        ("batch", arguments.batch.to_string()),
        ("ms a product", format!("{:.3}", time * 1e3)),
        ("TFLOP/s", format!("{:.2}", flops / time / 1e12)),
        ("kept batches", format!("{kept} of {batches}")),
        ("MB", format!("{:.0}", hessian.bytes() as f64 / 1e6)),
        ("s to start", format!("{:.1}", ready.as_secs_f64())),
    ]);
    print(&table.text());
    drop(hessian);
    if arguments.profile && arguments.device == Device::Cuda {
        profile(&graph, &state, &examples, &v)?;
    }
    Ok(())
}

#[cfg(feature = "cuda")]
fn profile(graph: &Graph, state: &State, examples: &Examples, v: &[f32]) -> Result<(), Failure> {
    let batches: Vec<_> = examples.batches().collect();
    let gpu = crate::doctor::first_gpu()?;
    let mut curvature = grawa_nn::cuda::Curvature::new(&gpu, graph, examples.batch(), batches.len())?;
    curvature.load(&state.parameters, &state.statistics)?;
    let mut product = vec![0.0; v.len()];
    let factor = 1.0 / examples.len() as f64;
    let first = &batches[..batches.len().min(curvature.at_once())];
    curvature.visit(first, (Mode::Train { dropout: None }, factor), &mut product)?;
    curvature.product(v, &mut product)?;
    // The first time is slower than those of a run.
    curvature.profile()?;
    crate::bench_cuda::print_kernels(
        "One product, kernel after kernel, each alone: longer than the captured product, where they overlap.",
        curvature.profile()?,
    );
    Ok(())
}

#[cfg(not(feature = "cuda"))]
fn profile(_: &Graph, _: &State, _: &Examples, _: &[f32]) -> Result<(), Failure> {
    Err(grawa_nn::Error::BuiltWithoutCuda.into())
}

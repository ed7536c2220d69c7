//! `grawa flatness`: how flat the minimum around a checkpoint is.

use crate::bar::bar;
use crate::failure::Failure;
use crate::model_args::ModelArgs;
use crate::output::print;
use clap::Args;
use grawa_flat::{Settings, measure};
use grawa_lab::Folder;
use grawa_lab::flatness::{put, table};
use std::path::PathBuf;
use std::time::Instant;

/// Measure how flat the minimum around a checkpoint is.
///
/// Measures the Hessian of the mean loss on some training examples, with exact products: its largest and smallest
/// eigenvalues, trace, Frobenius norm and spectral density (Lanczos with full re-orthogonalisation), the sum of the Ritz
/// values, which is what the paper's table lists, the norms of the gradient (the scores of GRAWA and MGRAWA), and the
/// ε-sharpness. Prints them; writes them as CSV with all Ritz values, and the spectrum as SVG and PNG.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  grawa flatness runs/lgrawa\n  grawa flatness state.safetensors --model resnet20 --data cifar10 --dir data\n  grawa flatness state.safetensors --model resnet20 --data cifar10 --norm eval --steps 40 --draws 1"
)]
pub(crate) struct Arguments {
    /// The run's folder (its newest checkpoint), a checkpoint, or a file of tensors
    #[arg(value_name = "CHECKPOINT")]
    checkpoint: PathBuf,
    #[command(flatten)]
    model_args: ModelArgs,
    /// Lanczos steps
    #[arg(long, default_value_t = 100)]
    steps: usize,
    /// Lanczos runs, each from a random direction of its own
    #[arg(long, default_value_t = 3)]
    draws: usize,
    /// Further products with random directions, for trace and Frobenius norm
    #[arg(long, value_name = "N", default_value_t = 10)]
    extra: usize,
    /// ε of the ε-sharpness: parameter x may move by ε·(|x| + 1)
    #[arg(long, value_name = "ε", default_value_t = 1e-3)]
    radius: f64,
    /// Memory to use at most, in MB. The vectors of a run take 4 bytes per parameter and step; what is left keeps passes
    #[arg(long, value_name = "MB", default_value_t = 4096)]
    memory: usize,
    /// Folder for the results; must be new, empty, or hold the same results [default: out/flatness, or the next free name]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let view = arguments.model_args.open(&arguments.checkpoint)?;
    let settings = Settings {
        mode: view.mode,
        steps: arguments.steps,
        draws: arguments.draws,
        extra: arguments.extra,
        radius: arguments.radius,
        seed: arguments.model_args.seed,
        threads: view.threads,
        memory: arguments.memory.saturating_mul(1_000_000),
        ..Settings::default()
    };
    let described = format!(
        "{}steps = {}\ndraws = {}\nextra = {}\nradius = {}\n",
        arguments.model_args.settings("flatness", &view, &[]),
        settings.steps,
        settings.draws,
        settings.extra,
        settings.radius
    );
    let mut folder = Folder::claim_or_next(arguments.out.as_deref(), "out/flatness", &described)?;
    let bar = bar(settings.work() as u64, "flatness");
    let mut clock = vec![Instant::now()];
    let figures = measure(&view.graph, &view.state, &view.examples, &settings, || {
        clock.push(Instant::now());
        bar.inc(1);
    })?;
    bar.finish_and_clear();
    put(&figures, &settings, &view.words, &view.chosen, &mut folder)?;
    let path = folder.finish()?;
    print(&format!("{}; {} parameters", view.words, figures.parameters));
    print(&table(&figures, &settings).text());
    let (kept, batches) = figures.kept;
    print(&format!(
        "Memory: {} MB at most; the passes of {kept} of {batches} batches were kept.",
        figures.bytes.div_ceil(1_000_000)
    ));
    // The search of the box comes first, the further products last.
    let [start, end] = [settings.search + 1, clock.len() - 1 - settings.extra].map(|at| clock[at]);
    print(&format!(
        "Lanczos took {:.1} s, with the passes at the checkpoint.",
        end.duration_since(start).as_secs_f64()
    ));
    print(&format!("Tables and spectrum: {}", path.display()));
    Ok(())
}

//! `grawa flatness`: how flat the minimum around a checkpoint is.

use crate::bar::bar;
use crate::failure::Failure;
use crate::model_args::{ModelArgs, View, name_of};
use crate::output::print;
use clap::Args;
use grawa_flat::{Settings, measure};
use grawa_lab::Folder;
use grawa_lab::flatness::{put, side_by_side, table};
use grawa_train::recipe::RecipeError;
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
    after_help = "Examples:\n  grawa flatness runs/lgrawa\n  grawa flatness runs/lgrawa runs/mean runs/easgd\n  grawa flatness state.safetensors --model resnet20 --data cifar10 --dir data\n  grawa flatness state.safetensors --model resnet20 --data cifar10 --norm eval --steps 40 --draws 1\n  grawa flatness runs/lgrawa --device cuda"
)]
pub(crate) struct Arguments {
    /// Runs' folders (their newest checkpoints), RUN/best, checkpoints, or files of tensors; several are compared in one table
    #[arg(value_name = "CHECKPOINT", required = true)]
    checkpoints: Vec<PathBuf>,
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
    /// Folder for the results; must be new, empty, or hold the same results [default:
    /// out/flatness-RUN, or the next free name]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let views = arguments.checkpoints.iter().map(|path| arguments.model_args.open(path));
    let views = views.collect::<Result<Vec<View>, Failure>>()?;
    let names: Vec<String> = arguments.checkpoints.iter().map(|path| name_of(path)).collect();
    let Some((first, others)) = views.split_first() else { return Ok(()) };
    if let Some(twice) = (1..names.len()).find(|&at| names[..at].contains(&names[at])) {
        return Err(Failure::from(RecipeError::new(
            "CHECKPOINT",
            format!("two models are called {}: rename a folder, or measure them apart", names[twice]),
        )));
    }
    let settings = Settings {
        mode: first.mode,
        steps: arguments.steps,
        draws: arguments.draws,
        extra: arguments.extra,
        radius: arguments.radius,
        seed: arguments.model_args.seed,
        engine: first.engine,
        memory: arguments.memory.saturating_mul(1_000_000),
        ..Settings::default()
    };
    let files: Vec<PathBuf> = others.iter().map(|view| view.found.model.clone()).collect();
    let described = format!(
        "{}steps = {}\ndraws = {}\nextra = {}\nradius = {}\n",
        arguments.model_args.settings("flatness", first, &files),
        settings.steps,
        settings.draws,
        settings.extra,
        settings.radius
    );
    let default = format!("out/flatness-{}", names.join("-"));
    let mut folder = Folder::claim_or_next(arguments.out.as_deref(), &default, &described)?;
    let mut all = Vec::with_capacity(views.len());
    let bar = bar((settings.work() * views.len()) as u64, "flatness");
    for (name, view) in names.into_iter().zip(&views) {
        let mut clock = vec![Instant::now()];
        let figures = measure(&view.graph, &view.state, &view.examples, &settings, || {
            clock.push(Instant::now());
            bar.inc(1);
        })?;
        let before = if others.is_empty() { String::new() } else { format!("{name}-") };
        let title = format!("{name}: {}", view.words);
        put(&figures, &settings, (&before, &title), &view.chosen, &mut folder)?;
        let (kept, batches) = figures.kept;
        // The search of the box comes first, the further products last.
        let [start, end] = [settings.search + 1, clock.len() - 1 - settings.extra].map(|at| clock[at]);
        let words = format!(
            "{title}; {} parameters. Lanczos took {:.2} s, with the passes at the checkpoint. Memory: {} MB at most; the passes of {kept} of \
             {batches} batches were kept.",
            figures.parameters,
            end.duration_since(start).as_secs_f64(),
            figures.bytes.div_ceil(1_000_000)
        );
        bar.suspend(|| print(&words));
        all.push((name, figures));
    }
    bar.finish_and_clear();
    let shown = match &all[..] {
        [(_, figures)] => table(figures, &settings),
        several => side_by_side(several, &settings),
    };
    if all.len() > 1 {
        folder.put("figures.csv", shown.csv());
    }
    let path = folder.finish()?;
    print(&format!("\n{}", shown.text()));
    print(&format!("Tables and spectrum: {}", path.display()));
    Ok(())
}

//! `grawa lab`: the paper's experiments, each one command.

use crate::bar::bar;
use crate::failure::Failure;
use crate::output::print;
use crate::train::{about, listen_for_stop};
use clap::Args;
use clap::builder::PossibleValuesParser;
use grawa_lab::Table;
use grawa_lab::lab::{
    self, Cell, EXPERIMENTS, Finding, Plan, Progress, Request, Scale, Scheduler, Select, Stage, Store,
};
use grawa_train::observe::LinePace;
use grawa_train::recipe::Variant;
use indicatif::{HumanDuration, ProgressBar};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The paper's tables and figures, one command each.
///
/// An experiment is a table of cells: a recipe, a seed, and what is measured. Cells run in parallel. Each finished cell is kept in
/// the folder, and the same command continues where it was stopped or killed. At the end it writes tables (Markdown, CSV,
/// LaTeX), pictures (SVG, PNG) and a page to DIR/results. Where a method has a grid, its setting is chosen on held-out training examples, then run on the
/// whole training set with fresh seeds.
#[derive(Args)]
#[command(after_help = AFTER)]
pub(crate) struct Arguments {
    /// What to measure
    #[arg(value_name = "EXPERIMENT", value_parser = PossibleValuesParser::new(EXPERIMENTS.iter().map(|it| it.name)))]
    experiment: String,
    /// Folder for cells and results: a new one, or that of the same experiment, which is then continued
    #[arg(long, value_name = "DIR", required_unless_present = "dry_run")]
    out: Option<PathBuf>,
    /// Scale: smoke is the digits in seconds, small is CIFAR-10 and ResNet-20 in hours on a laptop or minutes on a GPU,
    /// paper is the paper's networks, budgets and grids
    #[arg(long, default_value_t)]
    scale: Scale,
    /// What settings are chosen on: held-out (training examples that are held out), or test (the test set as in the paper, which
    /// is marked in the table) [default: held-out]
    #[arg(long)]
    select: Option<Select>,
    /// The data set, instead of the scale's
    #[arg(long, value_name = "NAME")]
    data: Option<String>,
    /// The folder of the data set
    #[arg(long, value_name = "FOLDER")]
    dir: Option<String>,
    /// Device that trains the networks, and measures the Hessian of table2
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// A recipe with a table `[study]`, instead of the scale's own; may be given several times
    #[arg(long = "recipe", value_name = "FILE")]
    recipes: Vec<PathBuf>,
    /// Only this method; knobs given with it, as in lgrawa:pull=0.5, are not searched for; may be given several times
    #[arg(long = "method", value_name = "METHOD")]
    methods: Vec<String>,
    /// How many seeds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    seeds: Option<u16>,
    /// Any key of a recipe for all cells, such as train.budget=500step; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Cells at a time [default: one per core; one where seconds are measured, and on a GPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// List the cells and what they cost; run nothing
    #[arg(long)]
    dry_run: bool,
}

const AFTER: &str = "Experiments:\n  table1         test error by method and network\n  table2         how flat the minima are: the Hessian by method and network\n  scalability    test error with 4, 8 and 12 workers\n  communication  where the time goes, rounds, and bytes handed over\n  gap            generalisation gap: test error less training error\n  gradnorm       does a small gradient norm go with a small gap? Over a grid of hyper-parameters\n  curves         test error over epochs and over time\n\nExamples:\n  grawa lab table1 --out out/table1\n  grawa lab table1 --scale small --dir data --out out/small --dry-run\n  grawa lab gradnorm --scale paper --out out/gradnorm --jobs 2\n  grawa lab table1 --data mnist --dir data --set train.budget=2epoch --out out/mnist\n  grawa report out/table1/runs/* --out report.html";

/// Runs the experiment; false if it was stopped before its end.
pub(crate) fn run(arguments: &Arguments) -> Result<bool, Failure> {
    let plan = plan(arguments)?;
    let Some(out) = arguments.out.as_ref().filter(|_| !arguments.dry_run) else {
        return dry_run(&plan).map(|()| true);
    };
    carry_out(&plan, &Store::open(out, &plan)?, arguments.jobs)
}

/// Runs what is not finished, and concludes; false if it was stopped before its end.
pub(crate) fn carry_out(plan: &Plan, store: &Store, jobs: Option<u16>) -> Result<bool, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    listen_for_stop(&stop)?;
    let jobs = jobs.map(usize::from);
    let (bar, pace) = (bar(1000, plan.experiment.name), LinePace::default());
    let scheduler = Scheduler { plan, store, jobs, about: about(), stop };
    let ran = scheduler.run(&|progress| show(&bar, &pace, progress));
    let (found, is_all) = ran.inspect_err(|_| store.remove_if_unused())?;
    bar.finish_and_clear();
    if !is_all {
        print(&format!("stopped with {} finished cells; the same command continues", found.len()));
        return Ok(false);
    }
    let (output, path) = lab::conclude(plan, store, &found)?;
    for table in &output.tables {
        print(&table.text());
    }
    print(&format!("Tables and pictures: {}", path.join("index.html").display()));
    Ok(true)
}

fn plan(arguments: &Arguments) -> Result<Plan, Failure> {
    // clap accepts no other name.
    let experiment = lab::experiment(&arguments.experiment).unwrap_or(&EXPERIMENTS[0]);
    let mut settings = Vec::new();
    for (key, value) in
        [("data.kind", &arguments.data), ("data.dir", &arguments.dir), ("machine.device", &arguments.device)]
    {
        settings.extend(value.as_ref().map(|value| format!("{key}={value:?}")));
    }
    settings.extend(arguments.settings.iter().cloned());
    let request = Request {
        scale: arguments.scale,
        select: arguments.select,
        seeds: arguments.seeds.map(usize::from),
        methods: variants(&arguments.methods)?,
        settings,
        recipes: arguments.recipes.clone(),
    };
    Ok(Plan::new(experiment, &request)?)
}

/// Methods with their knobs.
pub(crate) fn variants(methods: &[String]) -> Result<Vec<Variant>, Failure> {
    Ok(methods.iter().map(|method| method.parse()).collect::<Result<_, grawa_core::Error>>()?)
}

/// The cells that are known, and what all of them cost.
pub(crate) fn dry_run(plan: &Plan) -> Result<(), Failure> {
    let cells = plan.cells(&lab::Found::new())?;
    let mut table =
        Table::new(["cell", "data", "network", "seed", "method", "setting", "budget", "operations"]);
    for cell in &cells {
        table.push([
            cell.stage.as_str().into(),
            cell.recipe.data.kind.to_string(),
            cell.network(),
            cell.seed().to_string(),
            cell.variant.to_string(),
            cell.settings.join(", "),
            cell.recipe.train.budget.to_string(),
            cell.work.map_or("unknown".into(), |work| format!("{work:.2e}")),
        ]);
    }
    print(table.text().trim_end());
    let ((work, unknown), count) = (plan.cost(&cells), cells.len());
    let more = match plan.unnamed(&cells) {
        0 => String::new(),
        unnamed => format!(", and {unnamed} more when settings have been chosen"),
    };
    print(&format!("\n{count} cells{more}: {work:.1e} multiplications and additions of training."));
    plan.notes().into_iter().for_each(print);
    if unknown > 0 {
        print(&format!(
            "The total leaves out {unknown} cells whose cost is unknown: their data is not here, or their budget is a time."
        ));
    }
    if work > 0.0 {
        let hours = |rate: f64| HumanDuration(Duration::from_secs_f64(work / rate));
        print(&format!(
            "About {} at 100 GFLOP/s (two good cores), {} at 10 TFLOP/s (a GPU); measurements besides training not counted.",
            hours(1e11),
            hours(1e13)
        ));
    }
    Ok(())
}

/// Shows the progress: a bar on a terminal, elsewhere lines of finished cells, at most one a second.
fn show(bar: &ProgressBar, pace: &LinePace, progress: &Progress<'_>) {
    bar.set_position((1000.0 * progress.share) as u64);
    bar.set_message(format!("{}/{} cells", progress.done, progress.all));
    let Some((cell, finding)) = progress.news else { return };
    let line = news(cell, finding);
    if !bar.is_hidden() {
        return bar.println(line);
    }
    // The last line tells that all are finished.
    if progress.done < progress.all && !pace.is_due() {
        return;
    }
    let spent = bar.elapsed().as_secs_f64();
    let left = Duration::try_from_secs_f64(spent * (1.0 / progress.share - 1.0)).unwrap_or_default();
    eprintln!("{}/{} {line}; {} left", progress.done, progress.all, HumanDuration(left));
}

/// A finished cell in a line.
fn news(cell: &Cell, finding: &Finding) -> String {
    let stage = if cell.stage == Stage::Search { "held-out" } else { "test" };
    let what = match finding.measured() {
        Some(found) => format!("{stage} error {:.2} % in {:.1} s", 100.0 * found.test.error, found.seconds),
        None => "diverged".into(),
    };
    let mut words = vec![format!("{}, {}:", cell.recipe.data.kind, cell.network()), cell.variant.title()];
    words.extend(cell.settings.iter().cloned());
    format!("{} seed {}: {what}", words.join(" "), cell.seed())
}

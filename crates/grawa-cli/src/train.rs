//! `grawa train`: a run from a recipe, resumed, or replayed.

use crate::bar::bar;
use crate::dry_run::{ALL, Place, check_memory, dry_run};
use crate::failure::Failure;
use crate::output::{print, warn};
use crate::seeds;
use crate::stop::on_signal;
use clap::Args;
use grawa_data::{Dataset, DatasetKind};
use grawa_train::observe::{About, EVENTS, Files, Screen};
use grawa_train::recipe::{Facts, Format, Overrides, Recipe, RecipeError};
#[cfg(feature = "plots")]
use grawa_train::recipe::{Study, Variant};
use grawa_train::{
    Checkpoint, Error, Finished, Observer, Reason, Record, Recording, ResumePoint, Run, folder,
    read_recording, recipe_copy, resume_point, shell,
};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What defines a run, besides its method: options over those of a recipe file.
#[derive(Args, Clone, Default)]
pub(crate) struct RecipeArgs {
    /// A recipe: everything that defines a run, as TOML
    #[arg(long, value_name = "FILE")]
    pub(crate) recipe: Option<PathBuf>,
    /// The data set: digits, cifar10, cifar100, mnist, fashion-mnist, folder
    #[arg(long, value_name = "NAME")]
    data: Option<String>,
    /// The folder of the data set
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<String>,
    /// The network, one of `grawa models`; for one from PyTorch: --set model.graph=net.json
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Defaults of the method: the paper's pseudo-code (paper) or the authors' published code (reference)
    #[arg(long, value_parser = ["paper", "reference"])]
    preset: Option<String>,
    /// Workers
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    workers: Option<String>,
    /// Images in the batch of each worker
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    batch: Option<String>,
    /// Learning rate: 0.1, or a schedule such as "0.1, warmup 5epoch, cosine over 60epoch"
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    rate: Option<String>,
    /// Local steps of each worker between two rounds
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    period: Option<String>,
    /// Seed of every random draw
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    seed: Option<String>,
    /// How much training: 5000step (of each worker), 60epoch (passes over the data, by all workers together), or a time: 90s, 10m, 1h30m
    #[arg(long, value_name = "AMOUNT", allow_hyphen_values = true)]
    pub(crate) budget: Option<String>,
    /// The same in epochs: --epochs 60 is --budget 60epoch
    #[arg(long, value_name = "N", allow_hyphen_values = true, conflicts_with = "budget")]
    epochs: Option<String>,
    /// Device: cpu or cuda
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// Number format of a GPU: bf16, tf32 or f32
    #[arg(long, value_name = "PRECISION")]
    precision: Option<String>,
    /// Start from the model of this run, checkpoint or file of tensors; the last layer may differ
    #[arg(long, value_name = "MODEL")]
    init: Option<String>,
    /// Any key of a recipe, such as train.batch=64; may be given several times, the last value counts
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) settings: Vec<String>,
}

impl RecipeArgs {
    /// The recipe file.
    fn file(&self) -> Result<Overrides, Failure> {
        Ok(self.recipe.as_deref().map_or(Ok(Overrides::default()), |path| Overrides::default().read(path))?)
    }

    /// How much training: --budget or --epochs.
    pub(crate) fn budget(&self) -> Option<String> {
        self.budget.clone().or_else(|| self.epochs.as_deref().map(with_unit))
    }

    /// Adds the options, but not --period and those of --set.
    fn options(&self, overrides: Overrides) -> Result<Overrides, Failure> {
        let overrides = overrides.options(&[
            ("method.preset", &self.preset, "--preset"),
            ("data.kind", &self.data, "--data"),
            ("data.dir", &self.dir, "--dir"),
            ("model.name", &self.model, "--model"),
            ("model.init", &self.init, "--init"),
            ("train.budget", &self.budget, "--budget"),
            ("train.budget", &self.epochs.as_deref().map(with_unit), "--epochs"),
            ("machine.device", &self.device, "--device"),
            ("machine.precision", &self.precision, "--precision"),
        ])?;
        Ok(overrides.written(&[
            ("train.workers", &self.workers, "--workers"),
            ("train.batch", &self.batch, "--batch"),
            ("train.rate", &self.rate, "--rate"),
            ("train.seed", &self.seed, "--seed"),
        ])?)
    }

    /// Methods over one recipe, with consecutive seeds from its own on.
    #[cfg(feature = "plots")]
    pub(crate) fn study(&self, methods: Vec<Variant>, seeds: u16) -> Result<Study, Failure> {
        let overrides = self.options(self.file()?)?;
        // What --period and --set say of the method is for all of them.
        let (mut of_method, others): (Vec<String>, Vec<String>) =
            self.settings.iter().cloned().partition(|setting| setting.trim_start().starts_with("method."));
        of_method.extend(self.period.iter().map(|period| format!("method.period={period}")));
        let overrides = overrides.set_all(&others)?;
        let said = overrides.says("method.period") || of_method.iter().any(|it| it.contains("method.period"));
        let overrides = fit_pictures(overrides, false)?;
        let methods = match !said && overrides.says("method.period") {
            // Few pictures make few steps: the period that was chosen for them is for all methods.
            true => {
                let period = Recipe::resolve(&overrides)?.method.period;
                methods.into_iter().map(|method| method.with_period_at_most(period)).collect()
            }
            false => methods,
        };
        let first = Recipe::resolve(&overrides)?.train.seed;
        let study = Study::of(overrides, methods, (first..first + u64::from(seeds)).collect())?;
        Ok(of_method.iter().try_fold(study, |study, setting| study.set(setting))?)
    }
}

/// Train a network on many workers.
///
/// What is not set has a default that depends on the data set; `--dry-run` shows all settings. The run's folder holds its recipe, its
/// events, and checkpoints. Ctrl-C stops the run within a step, writes a checkpoint and prints the command that resumes it (exit code
/// 1: the run is not finished). A second Ctrl-C, a second or more later, ends the process at once.
///
/// A run at whose end no worker's parameters are finite has diverged: its files stay, and the exit code is 1.
#[derive(Args, Clone)]
#[command(
    after_help = "Examples:\n  grawa train --data digits --method lgrawa --workers 4 --seed 7 --out runs/first\n  grawa train --recipe recipes/cifar10-resnet20.toml --method lgrawa --seed 36 --set train.budget=500step\n  grawa train --data cifar10 --set model.graph=net.json\n  grawa train --data digits --method lgrawa --seeds 5 --out runs/five\n  grawa train --resume runs/first\n  grawa train --resume runs/first --budget 80epoch\n  grawa train --resume runs/first --checkpoint step-00000064\n  grawa train --replay runs/free --out runs/again\n  mpirun -n 4 grawa train --comm mpi --data digits --method lgrawa"
)]
pub(crate) struct Arguments {
    /// The method with any of its knobs, such as lgrawa:period=16,pull=0.7; see `grawa methods`
    #[arg(long, value_name = "METHOD")]
    pub(crate) method: Option<String>,
    #[command(flatten)]
    pub(crate) recipe: RecipeArgs,
    /// With `launch` and --comm mpi: workers in each process; vectors travel once for each process [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) per_process: Option<u32>,
    /// With `launch` and `coordinate`: workers train while vectors are sent, one round behind
    #[arg(long)]
    pub(crate) overlap: bool,
    /// Train once with each of N consecutive seeds, and print mean ± standard deviation; the folder then holds one run per seed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000), conflicts_with_all = ["resume", "replay"])]
    pub(crate) seeds: Option<u16>,
    /// The run's folder, which must be new or empty [default: runs/DATA-METHOD-SEED]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Resume the run in this folder, from its newest complete checkpoint. With --budget AMOUNT: train to that amount in all, also if the
    /// run was finished. With --dir DIR: the data is there now
    #[arg(long, value_name = "DIR", conflicts_with_all = ["recipe", "data", "model", "method", "preset", "workers", "seed", "batch", "rate", "period", "device", "precision", "overlap", "init", "settings", "out", "replay", "dry_run"])]
    pub(crate) resume: Option<PathBuf>,
    /// With --resume: resume from this checkpoint, a name in DIR/checkpoints; later ones are removed as the run continues
    #[arg(long, value_name = "NAME", requires = "resume", conflicts_with_all = ["recipe", "data", "model", "method", "preset", "workers", "seed", "batch", "rate", "period", "device", "precision", "overlap", "init", "settings", "out", "replay", "dry_run"])]
    pub(crate) checkpoint: Option<String>,
    /// With --resume: leave the record so far (events.jsonl, journal.jsonl and the files made of them) under other
    /// names, and begin another. For a record that is damaged
    #[arg(long, requires = "resume")]
    pub(crate) without_record: bool,
    /// Repeat the run in this folder: its recipe and, at a free pace, the number of steps of each worker
    #[arg(long, value_name = "DIR", conflicts_with_all = ["recipe", "data", "dir", "model", "method", "preset", "workers", "seed", "batch", "rate", "period", "budget", "epochs", "device", "precision", "overlap", "init", "settings", "dry_run"])]
    pub(crate) replay: Option<PathBuf>,
    /// How workers communicate: as threads of this process, or as the ranks of an MPI job started by `mpirun`
    #[arg(long, value_parser = ["threads", "mpi"], default_value = "threads")]
    comm: String,
    /// Print the recipe with every key and what the run will take, check all that a start checks, and measure a second of training;
    /// nothing is written
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print nothing until the end
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool, Failure> {
    if arguments.comm == "threads" && arguments.per_process.is_some() {
        return Err(Failure::Usage(
            "--per-process is for `grawa launch` and --comm mpi; without them all workers are in one process",
        ));
    }
    if arguments.comm == "mpi" && arguments.seeds.is_some() {
        return Err(Failure::Usage(
            "--seeds is for workers in one process; start the ranks once for each --seed",
        ));
    }
    if arguments.comm == "mpi" {
        #[cfg(feature = "mpi")]
        return crate::mpi::run(arguments);
        #[cfg(not(feature = "mpi"))]
        return Err(Failure::Usage(
            "this grawa was built without MPI; install an MPI and libclang (Debian: apt-get install openmpi-bin \
             libopenmpi-dev libclang-dev), then build it with: cargo build --release --features mpi",
        ));
    }
    let stop = Arc::new(AtomicBool::new(false));
    if seeds::is_asked(arguments) {
        return seeds::run(arguments, &stop);
    }
    match decide(arguments, None)? {
        ControlFlow::Continue(task) => {
            let Trained { recipe, facts, end, place } =
                carry_out(arguments, task, &stop, |recipe, facts| {
                    listen_for_stop(&stop)?;
                    if !arguments.quiet {
                        warn_at_start(recipe, facts, arguments.resume.as_deref());
                    }
                    Ok(())
                })?;
            warn_at_end(&recipe, &facts, &end, arguments.resume.as_deref());
            print(&summary(&end, &place, "grawa train"));
            // A damaged one was named at the start.
            if let Ok(Some((best, error))) = folder::best(&place) {
                let from = if recipe.data.held_out > 0 { "held-out examples" } else { "the test set" };
                let (error, place) = (100.0 * error, best.display());
                print(&format!("best model: test error {error:.2} % (chosen on {from}), in {place}"));
            }
            Ok(succeeded(&end))
        }
        ControlFlow::Break(has_succeeded) => Ok(has_succeeded),
    }
}

/// A run that was carried out, and its folder.
pub(crate) struct Trained {
    pub(crate) recipe: Recipe,
    pub(crate) facts: Facts,
    pub(crate) end: Finished,
    pub(crate) place: PathBuf,
}

/// Prints what is probably not meant before a run, or before the rest of one.
pub(crate) fn warn_at_start(recipe: &Recipe, facts: &Facts, resumed: Option<&Path>) {
    warn_of_any(recipe, facts.examples, None, resumed);
    warn_of_folder(recipe);
}

/// Prints what is probably not meant by the recipe of a run that begins, or is resumed in its folder.
pub(crate) fn warn_of_any(recipe: &Recipe, examples: u64, rounds: Option<u64>, resumed: Option<&Path>) {
    let warnings = match resumed {
        Some(run) => recipe.warnings_of_resumed(run, Some(examples), rounds),
        None => recipe.warnings(Some(examples), rounds),
    };
    warnings.iter().for_each(|warning| warn(&format!("warning: {warning}")));
}

/// Prints what is probably not meant by the class folders of a run.
pub(crate) fn warn_of_folder(recipe: &Recipe) {
    if recipe.data.kind == DatasetKind::Folder {
        // What cannot be listed is an error elsewhere.
        let found = grawa_data::folder_warnings(&recipe.data.dir, &recipe.reading()).unwrap_or_default();
        found.iter().for_each(|words| warn(&format!("warning: {words}")));
    }
}

/// Prints what was probably not meant after a run that was not stopped.
pub(crate) fn warn_at_end(recipe: &Recipe, facts: &Facts, end: &Finished, resumed: Option<&Path>) {
    if end.reason == Reason::Spent {
        warn_of_any(recipe, facts.examples, Some(end.at.rounds), resumed);
    }
}

/// Trains until the run is over or `stop` is true; `ready` is called when the data is loaded.
pub(crate) fn carry_out(
    arguments: &Arguments,
    mut task: Task,
    stop: &Arc<AtomicBool>,
    ready: impl FnOnce(&Recipe, &Facts) -> Result<(), Failure>,
) -> Result<Trained, Failure> {
    let data = load(&task.recipe);
    if let (Err(_), Some(place)) = (&data, &arguments.resume) {
        warn(&format!("if the data was moved: grawa train --resume {} --dir DIR", shell::path(place)));
    }
    let data = data?;
    // What the run needs is known before it is allocated.
    let facts = Facts::of(&task.recipe, &data);
    check_memory(&task.recipe, &facts, ALL, arguments.resume.is_some())?;
    ready(&task.recipe, &facts)?;
    let from = task.checkpoint.as_ref().map(|checkpoint| checkpoint.path().to_owned());
    let run = start(Run::new(task.recipe.clone(), &data)?, task.recording.take(), task.checkpoint.take());
    // All that can be wrong with the request is found before a folder is made, or a record is cut back.
    check(&run, arguments)?;
    let (place, (_hold, files)) = open(arguments, &task.recipe, task.hold.zip(from))?;
    let mut observers = observers(files, arguments.quiet);
    let end = run.keep_in(&place).stop_by(Arc::clone(stop)).go(&mut observers)?;
    Ok(Trained { recipe: task.recipe, facts, end, place })
}

/// That the run can start. Prints what it starts from: tensors of a file, or the learning rate of a run that is prolonged.
pub(crate) fn check(run: &Run, arguments: &Arguments) -> Result<(), Failure> {
    run.check()?;
    if let Some(words) = run.start_in_words()?.filter(|_| !arguments.quiet) {
        print(&words);
    }
    let (Some(budget), Some(next)) = (arguments.recipe.budget(), run.next_step()) else { return Ok(()) };
    let schedule = &run.recipe().train.rate;
    let wrong = |why: String| Err(RecipeError::new(format!("--budget {budget}"), why).into());
    if next.is_spent {
        return wrong(format!(
            "the run has taken {} steps a worker, {:.1} epochs: this budget is spent; give the amount of the whole run",
            next.steps, next.epochs
        ));
    }
    if next.rate == 0.0 {
        return wrong(format!(
            "the learning rate is 0 from here on (train.rate = \"{schedule}\"), so nothing would be learnt; start a new run from this \
             model, with a --rate of its own: {}",
            arguments.resume.as_deref().map(folder::begin_from).unwrap_or_default()
        ));
    }
    if !arguments.quiet {
        print(&format!(
            "the learning rate continues as it was set, train.rate = \"{schedule}\": {:.3e} at the next step",
            next.rate
        ));
    }
    Ok(())
}

/// What a command line asks to train.
pub(crate) struct Task {
    pub(crate) recipe: Recipe,
    pub(crate) recording: Option<Recording>,
    pub(crate) checkpoint: Option<Checkpoint>,
    /// The lock on the folder of a run that is resumed.
    pub(crate) hold: Option<folder::Hold>,
}

/// What is to be trained, by `ranks` where the job has some; if there is nothing to do, whether that is a success.
pub(crate) fn decide(arguments: &Arguments, ranks: Option<u32>) -> Result<ControlFlow<bool, Task>, Failure> {
    if let Some(place) = &arguments.resume {
        let (dir, budget) = (&arguments.recipe.dir, arguments.recipe.budget());
        let changes = [("data.dir", dir, "--dir"), ("train.budget", &budget, "--budget")];
        let read = || Ok(Recipe::resolve(&folder::overrides(place)?.options(&changes)?)?);
        let recipe = read().inspect_err(|_: &Failure| offer_recipe(place))?;
        let hold = Some(folder::hold(place, true)?);
        let checkpoint = choose(place, arguments)?;
        if budget.is_none() && is_finished(place, &checkpoint)? {
            return Ok(ControlFlow::Break(!checkpoint.has_diverged()));
        }
        if is_for_processes(&recipe) {
            print("train.overlap and train.wire are not used: they are for workers that join and leave");
        }
        let checkpoint = Some(checkpoint);
        return Ok(ControlFlow::Continue(Task { recipe, recording: None, checkpoint, hold }));
    }
    let recipe = match &arguments.replay {
        Some(place) => folder::recipe(place)?,
        None => {
            let mut overrides = overrides(arguments)?;
            if let Some(ranks) = ranks.filter(|_| !overrides.says("train.workers")) {
                let workers = i64::from(ranks) * i64::from(arguments.per_process.unwrap_or(1));
                overrides = overrides.value("train.workers", workers, "the number of ranks")?;
            }
            resolve(overrides, arguments.quiet)?
        }
    };
    expect_threads(&recipe)?;
    if let (Some(ranks), Some(each)) = (ranks, arguments.per_process)
        && recipe.train.workers != ranks.saturating_mul(each)
    {
        return Err(Failure::Usage(
            "--workers is not the number of ranks times --per-process: leave one of the two away",
        ));
    }
    if arguments.dry_run {
        return dry_run(&recipe, Place::Here(ALL)).map(|()| ControlFlow::Break(true));
    }
    let recording = arguments.replay.as_deref().map(read_recording).transpose()?;
    Ok(ControlFlow::Continue(Task { recipe, recording, checkpoint: None, hold: None }))
}

/// The run as a replay or from a checkpoint, where there is one.
pub(crate) fn start(run: Run, recording: Option<Recording>, checkpoint: Option<Checkpoint>) -> Run {
    match (recording, checkpoint) {
        (Some(recording), _) => run.replay(recording),
        (None, Some(checkpoint)) => run.resume(checkpoint),
        (None, None) => run,
    }
}

/// The run's folder, which nobody else may use, and its record.
pub(crate) fn open(
    arguments: &Arguments,
    recipe: &Recipe,
    resumed: Option<(folder::Hold, PathBuf)>,
) -> Result<(PathBuf, (folder::Hold, Files)), Failure> {
    if let (Some(place), Some((hold, checkpoint))) = (&arguments.resume, resumed) {
        let hold = folder::amend(place, recipe, hold)?;
        if arguments.without_record
            && let Some(number) = Files::set_aside(place)?
        {
            print(&format!(
                "the record was set aside: {EVENTS} is {EVENTS}.aside-{number}, and so are the files beside it"
            ));
        }
        // The folder of a worker of a group has checkpoints and no record: then the record begins here.
        let files = match place.join(EVENTS).exists() {
            true => Files::resume(place, &checkpoint)?,
            false => Files::create(place, &about())?,
        };
        return Ok((place.clone(), (hold, files)));
    }
    let place = claim_for(arguments, recipe)?;
    let hold = folder::hold(&place, true)?;
    let files = Files::create(&place, &about())?;
    Ok((place, (hold, files)))
}

/// Who sees the events: the record, and the terminal.
pub(crate) fn observers(files: Files, quiet: bool) -> Vec<Box<dyn Observer>> {
    let mut observers: Vec<Box<dyn Observer>> = vec![Box::new(files)];
    if !quiet {
        observers.push(Box::new(Screen::new()));
    }
    observers
}

/// That the recipe can be trained by workers in one process.
pub(crate) fn expect_threads(recipe: &Recipe) -> Result<(), Failure> {
    match is_for_processes(recipe) {
        true => Err(Failure::Usage(
            "train.overlap and train.wire are for workers in processes of their own: use `grawa launch` or `grawa coordinate`, or leave them away",
        )),
        false => Ok(()),
    }
}

/// Whether the recipe has settings for vectors between processes.
fn is_for_processes(recipe: &Recipe) -> bool {
    recipe.train.overlap || recipe.train.wire != Format::F32
}

/// The recipe of a new run, for commands that start one; and whether nothing but the number of workers was said.
#[cfg(feature = "group")]
pub(crate) fn recipe(arguments: &Arguments) -> Result<(Recipe, bool), Failure> {
    let is_for_train = arguments.resume.is_some() || arguments.replay.is_some() || arguments.seeds.is_some();
    if is_for_train || arguments.comm != "threads" {
        return Err(crate::failure::ONLY_TRAIN);
    }
    let overrides = overrides(arguments)?;
    let has_only_workers = arguments.recipe.recipe.is_none() && overrides.says_nothing_but("train.workers");
    let elsewhere = |failure: Failure| match failure {
        Failure::Data(error) => Failure::Machine(format!(
            "{error}. If only the workers have the pictures, give --recipe, or --model and --set data.augment=AUGMENT"
        )),
        failure => failure,
    };
    Ok((resolve(overrides, arguments.quiet).map_err(elsewhere)?, has_only_workers))
}

/// The recipe of these settings, with those that fit the pictures.
fn resolve(overrides: Overrides, quiet: bool) -> Result<Recipe, Failure> {
    Ok(Recipe::resolve(&fit_pictures(overrides, quiet)?)?)
}

/// Where there are pictures: adds settings that fit them in the place of those that nobody set, and prints them.
fn fit_pictures(overrides: Overrides, quiet: bool) -> Result<Overrides, Failure> {
    if !overrides.need_a_survey()? {
        return Ok(overrides);
    }
    let recipe = Recipe::resolve(&overrides)?;
    let survey = grawa_data::survey(&recipe.data.dir, &recipe.reading())?;
    let (overrides, chosen) = overrides.for_pictures(&survey)?;
    if !quiet {
        print(&format!("{}\n", chosen.join("\n  ")));
    }
    Ok(overrides)
}

/// The data set of a recipe, with a progress bar while pictures are decoded. Its images fit the recipe's augmentation.
pub(crate) fn load(recipe: &Recipe) -> Result<Dataset, Failure> {
    Facts::check_images(recipe)?;
    let bar = bar(0, "reading pictures");
    let data = recipe.load_data(&|done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    let data = data?;
    recipe.data.augment.check_for(data.train.shape(), recipe.data.kind == DatasetKind::Folder)?;
    Ok(data)
}

/// That a group is not resumed with options that only `grawa train --resume` can apply.
#[cfg(feature = "group")]
pub(crate) fn refuse_changes(arguments: &Arguments) -> Result<(), Failure> {
    let RecipeArgs { budget, epochs, dir, .. } = &arguments.recipe;
    let is_changed = budget.is_some() || epochs.is_some() || dir.is_some() || arguments.without_record;
    match arguments.resume.is_some() && is_changed {
        true => Err(Failure::Usage("--resume with --budget, --dir or --without-record is for `grawa train`")),
        false => Ok(()),
    }
}

/// Sets the flag at the first Ctrl-C.
pub(crate) fn listen_for_stop(stop: &Arc<AtomicBool>) -> Result<(), Failure> {
    let asked = Arc::clone(stop);
    on_signal(move || asked.store(true, Ordering::Relaxed))
}

/// This program, for the record of a run.
pub(crate) fn about() -> About {
    About::here(concat!("grawa ", env!("CARGO_PKG_VERSION")), option_env!("GRAWA_COMMIT"))
}

/// A number of epochs as an amount; an amount stays as it is.
fn with_unit(epochs: &str) -> String {
    match epochs.trim().ends_with(|c: char| c.is_ascii_digit() || c == '.') {
        true => format!("{}epoch", epochs.trim()),
        false => epochs.into(),
    }
}

/// The options of the command line, over those of the recipe file.
fn overrides(arguments: &Arguments) -> Result<Overrides, Failure> {
    let mut overrides = arguments.recipe.file()?;
    if let Some(method) = &arguments.method {
        overrides = overrides.method(method, "--method")?;
    }
    let overrides = arguments.recipe.options(overrides)?;
    let overrides = overrides
        .options(&[("train.overlap", &arguments.overlap.then_some(true), "--overlap")])?
        .written(&[("method.period", &arguments.recipe.period, "--period")])?;
    Ok(overrides.set_all(&arguments.recipe.settings)?)
}

/// Prints what is probably not meant by a recipe; `rounds` are those that there were.
pub(crate) fn warn_of(recipe: &Recipe, examples: Option<u64>, rounds: Option<u64>) {
    for warning in recipe.warnings(examples, rounds) {
        warn(&format!("warning: {warning}"));
    }
}

/// The folder of a new run of a recipe.
pub(crate) fn claim_for(arguments: &Arguments, recipe: &Recipe) -> Result<PathBuf, Failure> {
    let name = format!("{}-{}-{}", recipe.data.kind, recipe.method.name, recipe.train.seed);
    claim(arguments, &name, |path| folder::create(path, recipe))
}

/// The folder of a new run: the one that was named, or the first free one of this name.
pub(crate) fn claim(
    arguments: &Arguments,
    name: &str,
    create: impl Fn(&Path) -> Result<(), Error>,
) -> Result<PathBuf, Failure> {
    if let Some(out) = &arguments.out {
        create(out)?;
        return Ok(out.clone());
    }
    for number in 1.. {
        let name = if number == 1 { name.to_owned() } else { format!("{name}-{number}") };
        let place = Path::new("runs").join(name);
        match create(&place) {
            Err(Error::FolderInUse { .. }) => {}
            made => return made.map(|()| place).map_err(Failure::from),
        }
    }
    unreachable!("there is always a next number")
}

/// The checkpoint to resume from. Prints which it is, and what is not as it should be.
fn choose(place: &Path, arguments: &Arguments) -> Result<Checkpoint, Failure> {
    let record = if arguments.without_record { Record::SetAside } else { Record::Continued };
    let ResumePoint { checkpoint, notes } = resume_point(place, arguments.checkpoint.as_deref(), record)?;
    notes.iter().for_each(|note| warn(note));
    if !arguments.quiet && (!checkpoint.is_finished() || arguments.recipe.budget().is_some()) {
        print(&format!("resuming from {}", checkpoint.path().display()));
    }
    Ok(checkpoint)
}

/// Prints how to put back the recipe of a run that cannot be read, where there is a copy of it.
fn offer_recipe(place: &Path) {
    if let Some(copy) = recipe_copy(place) {
        let to = shell::path(&place.join(folder::RECIPE));
        warn(&format!("the recipe as the run had it can be put back with: cp {} {to}", shell::path(&copy)));
    }
}

/// Whether the run is finished, which is then printed.
fn is_finished(place: &Path, checkpoint: &Checkpoint) -> Result<bool, Failure> {
    if checkpoint.is_finished() {
        checkpoint.check_recipe()?;
        let (place, steps) = (place.display(), checkpoint.steps());
        let how = if checkpoint.has_diverged() { "has diverged" } else { "is finished" };
        print(&format!("the run in {place} {how}, at step {steps}: nothing to do"));
    }
    Ok(checkpoint.is_finished())
}

/// Whether a run is finished and has not diverged.
pub(crate) fn succeeded(end: &Finished) -> bool {
    end.reason == Reason::Spent && !end.diverged
}

/// How a run ended, and how to resume it by `command`.
pub(crate) fn summary(end: &Finished, place: &Path, command: &str) -> String {
    let (folder, word) = (place.display(), shell::path(place));
    let steps = end.at.steps;
    match end.reason {
        Reason::Spent if end.diverged => format!(
            "diverged: after {steps} steps a worker no worker's parameters are finite; its files stay in {folder}\n\
             start again with a smaller learning rate: --set train.rate=RATE"
        ),
        Reason::Spent => format!(
            "done: {steps} steps a worker, {} rounds, {:.1} epochs in {:.1} s of training; see {folder}\n\
             evaluate it with: grawa eval {word}",
            end.at.rounds, end.at.epochs, end.at.elapsed
        ),
        Reason::Interrupted => {
            format!("stopped: {} are saved; resume it with: {command} --resume {word}", saved(end))
        }
    }
}

/// What a run that was stopped has done, in words: also the steps since its last round.
fn saved(end: &Finished) -> String {
    let steps = end.workers.iter().map(|share| share.total);
    let (least, most) = (steps.clone().min().unwrap_or(end.at.steps), steps.max().unwrap_or(end.at.steps));
    let plural = |count: u64| if count == 1 { "" } else { "s" };
    let range = if least == most { most.to_string() } else { format!("{least} to {most}") };
    let rounds = end.at.rounds;
    format!("{range} step{} of each worker and {rounds} round{}", plural(most), plural(rounds))
}

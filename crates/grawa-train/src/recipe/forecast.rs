//! What a run will take, before it starts: steps, rounds, memory, traffic.
//!
//! A pure function of the recipe and a few [`Facts`] about the data. Bytes on the wire are the payload that every worker
//! sends: its parameters (or gradients) once a round, and its message before it.

use super::{Device, OptimizerKind, Recipe};
use crate::engine::network_shape;
use crate::human_format::{bytes, group, rate};
use crate::milestones::Position;
use crate::round_message;
use crate::run::milestones;
use grawa_core::{Amount, Progress, Share};
use grawa_data::{Dataset, DatasetKind, Shape};
use grawa_nn::{Arena, Error, Program};

/// Memory of the program itself, its threads and its record, measured with the digits and rounded up.
const PROGRAM: u64 = 64 << 20;

/// More cycles of different lengths than these are not counted one by one.
const COUNTED: u64 = 1 << 20;

/// What a forecast needs to know of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Training examples, those held out not counted.
    pub examples: u64,
    /// Classes.
    pub classes: u32,
    /// The shape of an image as the network sees it.
    pub shape: Shape,
    /// Bytes of the images that are kept in memory.
    pub data_bytes: u64,
}

impl Facts {
    /// What is known of a published data set without reading it; `None` for folders.
    pub fn published(recipe: &Recipe) -> Option<Self> {
        Facts::of_kind(recipe.data.kind).map(|facts| facts.for_recipe(recipe))
    }

    /// Checks that the recipe's augmentation fits the images of a published data set, without reading it.
    pub fn check_images(recipe: &Recipe) -> Result<(), grawa_data::Error> {
        Facts::of_kind(recipe.data.kind)
            .map_or(Ok(()), |facts| recipe.data.augment.check_for(facts.shape, false))
    }

    fn of_kind(kind: DatasetKind) -> Option<Self> {
        let (examples, tests, classes, shape) = match kind {
            DatasetKind::Digits => (1_438, 359, 10, Shape::new(1, 8, 8)),
            DatasetKind::Cifar10 => (50_000, 10_000, 10, Shape::new(3, 32, 32)),
            DatasetKind::Cifar100 => (50_000, 10_000, 100, Shape::new(3, 32, 32)),
            DatasetKind::Mnist | DatasetKind::FashionMnist => (60_000, 10_000, 10, Shape::new(1, 28, 28)),
            DatasetKind::Folder => return None,
        };
        let data_bytes = (examples + tests) * shape.len() as u64;
        Some(Facts { examples, classes, shape, data_bytes })
    }

    /// What a recipe makes of a data set that was read.
    pub fn of(recipe: &Recipe, data: &Dataset) -> Self {
        let data_bytes = (data.train.memory() + data.test.memory()) as u64;
        let (examples, shape) = (data.train.len() as u64, data.train.shape());
        Facts { examples, classes: data.classes, shape, data_bytes }.for_recipe(recipe)
    }

    /// What a recipe makes of a data set whose training set is this.
    pub fn for_recipe(self, recipe: &Recipe) -> Self {
        Facts {
            examples: self.examples.saturating_sub(recipe.data.held_out.into()),
            shape: recipe.data.augment.output(self.shape),
            ..self
        }
    }

    /// The recipe's network for such data, if it fits.
    pub fn network(&self, recipe: &Recipe) -> Result<grawa_nn::Graph, Error> {
        recipe.model.build(network_shape(self.shape), self.classes as usize)
    }
}

/// What a run will take.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// The network.
    pub network: String,
    /// Its parameters.
    pub parameters: u64,
    /// Its tensors.
    pub tensors: u64,
    /// Local steps a worker; unknown if the budget is a time.
    pub steps: Option<u64>,
    /// Passes over the training set by all workers together.
    pub epochs: Option<f64>,
    /// Rounds of all workers.
    pub rounds: Option<u64>,
    /// Rounds inside groups only.
    pub inner_rounds: Option<u64>,
    /// Whether there may be fewer rounds and bytes: periods follow a learning rate that is not known before the run.
    pub is_most: bool,
    /// Bytes a worker owns: parameters, moments, batch-norm statistics, two batches; its gradient where those are shared.
    pub worker_bytes: u64,
    /// Bytes of the centres that all workers share.
    pub centre_bytes: u64,
    /// Bytes of an arena, in which steps are computed, with a gradient and a batch.
    pub arena_bytes: u64,
    /// Arenas.
    pub arenas: u64,
    /// Bytes of the images in memory, and of reading them.
    pub data_bytes: u64,
    /// Bytes of what the workers own again, while a checkpoint is written.
    pub checkpoint_bytes: u64,
    /// Bytes a worker hands over in one round.
    pub round_bytes: u64,
    /// Bytes all workers hand over in the whole run.
    pub total_bytes: Option<u64>,
    /// Multiplications and additions of the whole run: three forward passes a step.
    pub flops: Option<f64>,
}

impl Recipe {
    /// The share of an epoch that a step of every worker is.
    pub(super) fn epochs_a_step(&self, examples: u64) -> f64 {
        (u64::from(self.train.workers) * u64::from(self.train.batch)) as f64 / examples.max(1) as f64
    }

    /// An amount of training in steps of each worker; unknown if it is a time.
    pub(super) fn steps(&self, amount: Amount, examples: u64) -> Option<u64> {
        match amount {
            Amount::Steps(steps) => Some(steps),
            Amount::Epochs(epochs) => Some((epochs / self.epochs_a_step(examples)).ceil() as u64),
            Amount::Time(_) => None,
        }
    }

    /// Rounds where the period follows the learning rate, by the run's own milestones; unknown if the rate follows the time,
    /// or if they are too many to be counted.
    fn rounds_by_rate(&self, steps: u64, examples: u64) -> Option<u64> {
        let schedule = &self.train.rate;
        let falls = schedule.drops().iter().map(|drop| drop.at);
        let mut amounts = falls.chain(schedule.warmup()).chain(schedule.cosine());
        let is_timed = amounts.any(|amount| matches!(amount, Amount::Time(_)));
        if is_timed || steps / u64::from(self.method.cycle().max(1)) > COUNTED {
            return None;
        }
        let milestones = milestones(self, examples as usize);
        let workers = self.train.workers as usize;
        let mut at = Position::default();
        while !milestones.is_spent(&at) {
            let quota = milestones.quota(&at);
            let rate = schedule.rate(&milestones.progress(&at, quota - 1, workers));
            at = Position {
                steps: at.steps + quota,
                total: at.total + quota * workers as u64,
                rounds: at.rounds + u64::from(milestones.is_round(&at)),
                rate,
                is_rising: rate > at.rate,
                ..at
            };
        }
        Some(at.rounds)
    }
}

impl Forecast {
    /// What this recipe will take on a machine with this many cores.
    pub fn of(recipe: &Recipe, facts: &Facts, cores: usize) -> Result<Self, Error> {
        let graph = facts.network(recipe)?;
        let (train, method) = (&recipe.train, &recipe.method);
        let workers = u64::from(train.workers);
        let cores = recipe.machine.threads.map_or(cores, |threads| threads as usize).max(1);
        let arenas = cores.min(train.workers as usize);
        let arena = Arena::bytes_for(&Program::compile(&graph, train.batch as usize)?, 1) as u64;
        let images = u64::from(train.batch) * facts.shape.len() as u64;

        let epoch = |steps: u64| steps as f64 * recipe.epochs_a_step(facts.examples);
        let steps = recipe.steps(train.budget, facts.examples);
        let mut is_most = false;
        let (inner_rounds, rounds) = match (steps, method.share) {
            (_, Share::Nothing) => (Some(0), Some(0)),
            (None, _) => (None, None),
            (Some(steps), _) if method.qsr > 0.0 => {
                let rounds = recipe.rounds_by_rate(steps, facts.examples);
                is_most = rounds.is_none();
                // A stretched cycle that the budget cuts short ends with a round.
                (Some(0), rounds.or(Some(steps.div_ceil(method.period.max(1).into()))))
            }
            (Some(steps), _) => {
                let cycles = steps / u64::from(method.cycle().max(1));
                let outer = steps / u64::from(method.period.max(1));
                (Some(cycles - outer), Some(outer))
            }
        };
        let (parameters, spans) = (graph.parameters().len() as u64, graph.parameters().spans().len());
        let round_bytes = match method.share {
            Share::Nothing => 0,
            _ => 4 * parameters + round_message::LENGTH + 8 * method.scores(spans) as u64,
        };
        // Where gradients are shared each worker keeps its own; else a gradient belongs to whoever computes.
        let adamw = u64::from(recipe.train.optimizer == OptimizerKind::AdamW);
        let vectors = 2 + adamw + u64::from(method.share == Share::Gradients);
        // A round of all also has its groups' round.
        let mixes =
            |rounds: u64, inner: u64| rounds + inner + if method.inner.is_some() { rounds } else { 0 };
        let centres = match (method.share, &method.inner) {
            (Share::Nothing | Share::Gradients, _) => 0,
            (Share::Parameters, None) => method.centre.state_len(1) as u64,
            (Share::Parameters, Some(inner)) => {
                method.centre.state_len(1) as u64 + workers / u64::from(inner.group.max(1))
            }
        };
        Ok(Forecast {
            network: graph.name().to_owned(),
            parameters,
            tensors: spans as u64,
            steps,
            epochs: steps.map(epoch),
            rounds,
            inner_rounds,
            is_most,
            worker_bytes: 4 * (vectors * parameters + graph.statistics().len() as u64 + 2 * images),
            centre_bytes: 4 * parameters * centres,
            arena_bytes: arena + 4 * (parameters + images),
            arenas: arenas as u64,
            data_bytes: facts.data_bytes,
            checkpoint_bytes: 4 * workers * (vectors * parameters + graph.statistics().len() as u64),
            round_bytes,
            total_bytes: rounds
                .zip(inner_rounds)
                .map(|(outer, inner)| mixes(outer, inner) * round_bytes * workers),
            flops: steps
                .map(|steps| (steps * workers * u64::from(train.batch)) as f64 * 3.0 * graph.flops() as f64),
        })
    }

    /// All memory of the run, with the program's own.
    pub fn memory(&self, workers: u32) -> u64 {
        let training =
            u64::from(workers) * self.worker_bytes + self.centre_bytes + self.arenas * self.arena_bytes;
        // A checkpoint is a copy, and the bytes of the file.
        training + self.data_bytes + 2 * self.checkpoint_bytes + PROGRAM
    }

    /// The plan in words, for a user to read before the run.
    pub fn plan(&self, recipe: &Recipe) -> String {
        let (train, method) = (&recipe.train, &recipe.method);
        let known = |number: Option<u64>| number.map_or("as many as the time allows".into(), group);
        let most = if self.is_most { "at most " } else { "" };
        // A warm-up may be counted in epochs, of which a step is a part.
        let epochs = self.epochs.zip(self.steps).map_or(0.0, |(epochs, steps)| epochs / steps.max(1) as f64);
        let first = rate(train.rate.rate(&Progress { steps: 1, epochs, ..Progress::default() }));
        let rounds = match (self.rounds, self.inner_rounds) {
            (Some(rounds), Some(inner)) if inner > 0 => {
                format!("{} of all, {} inside groups", group(rounds), group(inner))
            }
            (Some(rounds), _) => format!("{most}{}", group(rounds)),
            (None, _) => known(None),
        };
        let mut lines = vec![
            ("method", format!("{method} — {}", method.name.summary())),
            (
                "network",
                format!(
                    "{}, {} parameters in {} tensors",
                    self.network,
                    group(self.parameters),
                    self.tensors
                ),
            ),
            ("workers", format!("{}, batches of {}, pace {}", train.workers, train.batch, train.pace)),
            ("budget", train.budget.to_string()),
            ("steps a worker", known(self.steps)),
            ("epochs", self.epochs.map_or("unknown".into(), |epochs| format!("{epochs:.1}"))),
            ("rounds", rounds),
            ("learning rate", format!("{} (first step: {first})", train.rate)),
            (
                "memory",
                if recipe.machine.device == Device::Cuda {
                    "on the GPU, where activations take most of it: `grawa bench step --device cuda` tells"
                        .into()
                } else {
                    format!(
                        "{}: {} workers × {}, centre {}, {} arenas × {}, data {}, checkpoints {}, program {}",
                        bytes(self.memory(train.workers)),
                        train.workers,
                        bytes(self.worker_bytes),
                        bytes(self.centre_bytes),
                        self.arenas,
                        bytes(self.arena_bytes),
                        bytes(self.data_bytes),
                        bytes(2 * self.checkpoint_bytes),
                        bytes(PROGRAM)
                    )
                },
            ),
            ("traffic", format!("{} a worker and round", bytes(self.round_bytes))),
        ];
        if let Some(total) = self.total_bytes {
            lines.push(("", format!("{most}{} in all", bytes(total))));
        }
        if let Some(flops) = self.flops {
            lines.push(("arithmetic", format!("{flops:.3e} operations")));
        }
        let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        lines.iter().map(|(name, what)| format!("{name:width$}  {what}\n")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Overrides;

    fn forecast(settings: &[&str]) -> (Recipe, Forecast) {
        let said = settings.iter().try_fold(Overrides::default(), |said, setting| said.set(setting)).unwrap();
        let recipe = Recipe::resolve(&said).unwrap();
        let forecast = Forecast::of(&recipe, &Facts::published(&recipe).unwrap(), 2).unwrap();
        (recipe, forecast)
    }

    /// ResNet-20, 4 workers, τ = 32: the figures of the authors' code (1.08 MB a round, 98 steps an epoch).
    #[test]
    fn the_papers_resnet20() {
        let (recipe, forecast) = forecast(&["data.kind=cifar10", "train.budget=10500step"]);
        assert_eq!((forecast.parameters, forecast.tensors), (269_722, 59));
        assert_eq!((forecast.steps, forecast.rounds), (Some(10_500), Some(328)));
        assert!((forecast.epochs.unwrap() - 107.5).abs() < 0.1);
        assert_eq!(forecast.round_bytes, 4 * 269_722 + 120 + 8 * 59);
        assert_eq!(forecast.total_bytes, Some(328 * 4 * forecast.round_bytes));
        assert_eq!(forecast.worker_bytes, 4 * (2 * 269_722 + 1_376 + 2 * 128 * 3 * 28 * 28));
        assert_eq!((forecast.arenas, forecast.centre_bytes), (2, 4 * 269_722));
        let plan = forecast.plan(&recipe);
        for words in ["269,722 parameters in 59 tensors", "328", "1.1 MB a worker and round", "1.4 GB in all"]
        {
            assert!(plan.contains(words), "{plan}");
        }
    }

    /// The quadratic synchronization rule: the periods are those of the run.
    #[test]
    fn rounds_become_rarer_as_the_rate_falls() {
        let (_, paper) = forecast(&[
            "data.kind=cifar10",
            "method.name=qsr",
            "train.budget=10496step",
            "train.rate=0.1, x0.1 at 5831step",
        ]);
        assert_eq!((paper.rounds, paper.is_most), (Some(195), false));
        assert_eq!(paper.total_bytes, Some(195 * 4 * paper.round_bytes));
        let data = grawa_data::digits().unwrap();
        for (budget, rate) in [
            ("64step", "0.1, x0.3 at 31step"),
            ("40step", "0.2, warmup 20step"),
            ("6epoch", "0.1, cosine over 6epoch"),
            ("9step", "0.01"),
        ] {
            let [budget, rate] = [format!("train.budget={budget}"), format!("train.rate={rate}")];
            let settings = [
                "data.kind=digits",
                "method.name=qsr",
                "method.period=4",
                "evaluate.every=end",
                &budget,
                &rate,
            ];
            let (recipe, forecast) = forecast(&settings);
            let end = crate::Run::new(recipe, &data).unwrap().go(&mut []).unwrap();
            assert_eq!(
                (Some(end.at.steps), Some(end.at.rounds)),
                (forecast.steps, forecast.rounds),
                "{rate}"
            );
            assert_eq!((Some(end.bytes), false), (forecast.total_bytes, forecast.is_most), "{rate}");
        }
        let (recipe, timed) =
            forecast(&["method.name=qsr", "train.budget=100step", "train.rate=0.1, x0.1 at 1m"]);
        assert_eq!((timed.rounds, timed.is_most), (Some(4), true));
        assert!(timed.plan(&recipe).contains("rounds          at most 4\n"), "{}", timed.plan(&recipe));
    }

    #[test]
    fn groups_times_and_gradients() {
        let (_, lsgd) = forecast(&[
            "method.name=lsgd",
            "method.period=16",
            "method.inner.group=2",
            "train.budget=64step",
        ]);
        assert_eq!((lsgd.rounds, lsgd.inner_rounds), (Some(4), Some(12)));
        // Sixteen rounds inside groups, four of all.
        assert_eq!(lsgd.total_bytes, Some(20 * 4 * lsgd.round_bytes));
        let (recipe, timed) = forecast(&["train.budget=10m"]);
        assert_eq!((timed.steps, timed.rounds, timed.total_bytes), (None, None, None));
        assert!(timed.plan(&recipe).contains("as many as the time allows"));
        let (_, shared) = forecast(&["method.name=dp-sgd", "train.budget=10step"]);
        assert_eq!(
            (shared.rounds, shared.round_bytes, shared.centre_bytes),
            (Some(10), 4 * shared.parameters + 120, 0)
        );
        // The warm-up of MNIST's defaults is an epoch, which is 469 steps.
        let (recipe, warm) = forecast(&["data.kind=mnist"]);
        let plan = warm.plan(&recipe);
        assert!(plan.contains("(first step: 0.000043)"), "{plan}");
        let (_, alone) = forecast(&["method.name=sgd", "train.budget=10step"]);
        assert_eq!((alone.rounds, alone.total_bytes, alone.arenas), (Some(0), Some(0), 1));
    }
}

//! What is probably not meant by a recipe, though it can be run, and what to type instead.
//!
//! A pure function of the recipe and the number of training examples. It is asked before a run, by a dry run, and at the end.

use super::{BatchNorm, Recipe};
use grawa_core::{Amount, Progress, Share};
use std::path::Path;
use std::time::Duration;

/// Fewer rounds than this are hardly a run of several workers.
const FEW_ROUNDS: u64 = 5;
/// Rounds that a changed period is to give.
const ROUNDS: u64 = 10;
/// Batch-norm statistics of fewer images than this are noise.
const FEW_IMAGES: u64 = 64;

/// Something that is probably not meant, and what to type instead in a new run.
struct Warning {
    what: String,
    mend: String,
}

impl Warning {
    fn new(what: impl Into<String>, mend: impl Into<String>) -> Self {
        Warning { what: what.into(), mend: mend.into() }
    }
}

impl Recipe {
    /// What is probably not meant, each with what to type instead. `examples` are the training examples, where they are known; `rounds` is
    /// how many there were, or will be, where that is not for the budget to say.
    pub fn warnings(&self, examples: Option<u64>, rounds: Option<u64>) -> Vec<String> {
        let found = self.found(examples, rounds).into_iter();
        found.map(|Warning { what, mend }| format!("{what}. Use {mend}")).collect()
    }

    /// The same for a run that is resumed, in this folder: its settings stay, but for the budget.
    pub fn warnings_of_resumed(&self, run: &Path, examples: Option<u64>, rounds: Option<u64>) -> Vec<String> {
        let found = self.found(examples, rounds).into_iter();
        let mut found: Vec<String> = found.map(|warning| warning.what).collect();
        if !found.is_empty() {
            found.push(format!(
                "the settings of a run stay when it is resumed. Use a longer --budget where that helps, or begin another run from its \
                 model, with other settings: {}",
                crate::folder::begin_from(run)
            ));
        }
        found
    }

    fn found(&self, examples: Option<u64>, rounds: Option<u64>) -> Vec<Warning> {
        let steps = self.steps_of(self.train.budget, examples);
        let mut found = Vec::new();
        found.extend(self.few_rounds(steps, rounds));
        match self.train.rate.base() {
            0.0 => found.push(Warning::new("the learning rate is 0: nothing is learnt", "--rate 0.1")),
            _ => found.extend(self.rate_outlasts(steps, examples, rounds)),
        }
        // Without any there is an error, which says why.
        let examples = examples.filter(|examples| *examples > 0);
        found.extend(examples.and_then(|examples| self.too_few_examples(examples)));
        found.extend(examples.and_then(|examples| self.few_images(examples)));
        found
    }

    fn steps_of(&self, amount: Amount, examples: Option<u64>) -> Option<u64> {
        match (amount, examples) {
            (Amount::Epochs(_), None) => None,
            (amount, examples) => self.steps(amount, examples.unwrap_or(1)),
        }
    }

    fn few_rounds(&self, steps: Option<u64>, rounds: Option<u64>) -> Option<Warning> {
        let method = &self.method;
        if method.share != Share::Parameters || method.qsr > 0.0 || self.train.workers < 2 {
            return None;
        }
        let period = u64::from(method.period.max(1));
        let rounds = rounds.or(steps.map(|steps| steps / period))?;
        // A budget of nothing evaluates the start.
        if rounds >= FEW_ROUNDS || steps == Some(0) {
            return None;
        }
        // The period of all is a multiple of that of the groups.
        let of_groups = method.inner.as_ref().map_or(1, |inner| u64::from(inner.method.period.max(1)));
        let shorter = steps.map_or(0, |steps| steps / ROUNDS / of_groups * of_groups);
        let mend = match steps.filter(|steps| *steps >= 2 * FEW_ROUNDS && shorter > 0) {
            Some(_) => format!("--period {shorter}"),
            None if steps.is_none() && period > of_groups => {
                format!("--period {of_groups}, or a longer --budget")
            }
            None if steps.is_none() => "a longer --budget".into(),
            None => format!("a longer run: --budget {}step", ROUNDS * period),
        };
        let steps = steps.map_or(String::new(), |steps| format!("{steps} steps of each worker, "));
        let plural = if rounds == 1 { "" } else { "s" };
        let few = if rounds == 0 {
            "no round will take place".into()
        } else {
            format!("only {rounds} round{plural}")
        };
        let every = if period == 1 { "step".into() } else { format!("{period} steps") };
        Some(Warning::new(format!("{few}: {steps}a round every {every}"), mend))
    }

    /// Changes of the learning rate that come after the end, or a rate that is zero before it.
    fn rate_outlasts(
        &self,
        steps: Option<u64>,
        examples: Option<u64>,
        rounds: Option<u64>,
    ) -> Option<Warning> {
        let (rate, budget) = (&self.train.rate, self.train.budget);
        // How far a time leads is known from the rounds that there were, or will be.
        let in_time = rounds
            .filter(|_| self.method.inner.is_none())
            .map(|rounds| rounds * u64::from(self.method.cycle().max(1)));
        let end = match (budget, steps) {
            (Amount::Time(time), _) => {
                let steps = in_time.unwrap_or(0);
                let epochs = examples.map_or(0.0, |examples| steps as f64 * self.epochs_a_step(examples));
                Progress { steps, epochs, elapsed: time }
            }
            (budget, Some(steps)) => {
                let epochs = match budget {
                    Amount::Epochs(epochs) => epochs,
                    _ => examples.map_or(0.0, |examples| steps as f64 * self.epochs_a_step(examples)),
                };
                Progress { steps, epochs, elapsed: Duration::ZERO }
            }
            (_, None) => return None,
        };
        // Amounts of training and times cannot be compared before the run.
        let share = |amount: Amount| match (amount, budget) {
            (Amount::Time(_), Amount::Time(_)) => Some(amount.share(&end)),
            (Amount::Time(_), _) => None,
            (_, Amount::Time(_)) if in_time.is_none() => None,
            (Amount::Epochs(_), Amount::Steps(_) | Amount::Time(_)) if examples.is_none() => None,
            (amount, _) => Some(amount.share(&end)),
        };
        let is_after = |amount: &Amount| share(*amount).is_some_and(|share| share < 1.0);
        let late: Vec<String> =
            rate.drops().iter().filter(|drop| is_after(&drop.at)).map(|drop| drop.at.to_string()).collect();
        let warmup = rate.warmup().filter(|amount| share(*amount).is_some_and(|share| share <= 1.0));
        // A hundredth more or less is rounding.
        let cosine =
            rate.cosine().filter(|amount| share(*amount).is_some_and(|share| !(0.99..1.01).contains(&share)));
        let why = match (late.is_empty(), warmup, cosine) {
            (false, ..) => {
                format!("the learning rate drops at {}, and the run ends at {budget}", late.join(" and "))
            }
            (_, Some(warmup), _) => {
                format!("the learning rate rises for {warmup}, and the run ends at {budget}")
            }
            (_, _, Some(over)) if is_after(&over) => {
                format!("the learning rate falls until {over}, and the run ends at {budget}")
            }
            (_, _, Some(over)) => {
                format!("the learning rate is zero from {over} on, and the run ends at {budget}")
            }
            _ => return None,
        };
        Some(Warning::new(why, format!("--rate \"{}\"", self.rate_for(budget))))
    }

    /// The same kind of schedule, for this budget.
    fn rate_for(&self, budget: Amount) -> String {
        let rate = &self.train.rate;
        let mut parts = vec![rate.base().to_string()];
        parts.extend(rate.warmup().map(|_| format!("warmup {}", part(budget, 0.1))));
        for (number, drop) in rate.drops().iter().enumerate() {
            parts.push(format!("x{} at {}", drop.factor, part(budget, 1.0 - 0.5f64.powi(number as i32 + 1))));
        }
        parts.extend(rate.cosine().map(|_| format!("cosine over {budget}")));
        parts.join(", ")
    }

    fn too_few_examples(&self, examples: u64) -> Option<Warning> {
        let (workers, batch) = (u64::from(self.train.workers), u64::from(self.train.batch));
        if workers > examples {
            let what = format!("{workers} workers have only {examples} training examples");
            // Groups must stay whole.
            let group = self.method.inner.as_ref().map_or(1, |inner| u64::from(inner.group.max(1)));
            let mend = match examples / group * group {
                0 => "a data set with more examples".into(),
                fewer => format!("--workers {fewer}"),
            };
            return Some(Warning::new(what, mend));
        }
        let shard = examples / workers.max(1);
        (batch > shard).then(|| {
            let what = format!(
                "a batch of {batch} is larger than a worker's share of the {examples} training examples"
            );
            Warning::new(what, format!("--batch {shard}"))
        })
    }

    fn few_images(&self, examples: u64) -> Option<Warning> {
        let has_statistics = self.model.own().is_none_or(|graph| !graph.statistics().is_empty());
        let (asked, batch) = (u64::from(self.evaluate.images), u64::from(self.train.batch));
        // Whole batches, and at least one.
        let images = (asked.min(examples) / batch.max(1)).max(1) * batch;
        if self.evaluate.batch_norm != BatchNorm::Recalibrate || !has_statistics || images >= FEW_IMAGES {
            return None;
        }
        let mend = if asked < examples { "evaluate.images=25600" } else { "evaluate.batch_norm=average" };
        let what = format!("batch-norm statistics are measured on only {images} images");
        Some(Warning::new(what, format!("--set {mend}")))
    }
}

/// A share of an amount.
fn part(amount: Amount, share: f64) -> Amount {
    match amount {
        Amount::Steps(steps) => Amount::Steps(((steps as f64 * share).round() as u64).max(1)),
        // Two digits are enough.
        Amount::Epochs(epochs) if epochs >= 1.0 => Amount::Epochs((epochs * share * 100.0).round() / 100.0),
        Amount::Epochs(epochs) => Amount::Epochs(epochs * share),
        Amount::Time(time) => {
            Amount::Time(Duration::from_millis((time.as_secs_f64() * share * 1000.0) as u64))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Overrides;

    fn recipe(settings: &[&str]) -> Recipe {
        let said = settings.iter().fold(Overrides::default(), |said, setting| said.set(setting).unwrap());
        Recipe::resolve(&said).unwrap()
    }

    /// Each warning, and that what it says to type ends it.
    #[test]
    fn each_mistake_has_its_warning_and_what_it_says_helps() {
        for (settings, examples, words, mend) in [
            (
                &["train.budget=64step", "train.rate=0.1"][..],
                1438,
                "only 2 rounds: 64 steps of each worker, a round every 32 steps. Use --period 6",
                "method.period=6",
            ),
            (
                &["train.budget=3step", "train.rate=0.1"],
                1438,
                "no round will take place: 3 steps of each worker, a round every 32 steps. Use a longer run: --budget 320step",
                "train.budget=320step",
            ),
            (
                &["train.budget=10epoch", "method.period=4"],
                1438,
                "the learning rate drops at 20epoch and 30epoch, and the run ends at 10epoch. Use --rate \"0.1, x0.1 at 5epoch, x0.1 at 7.5epoch\"",
                "train.rate=0.1, x0.1 at 5epoch, x0.1 at 7.5epoch",
            ),
            (
                &["train.rate=0.1, cosine over 20epoch"],
                1438,
                "the learning rate is zero from 20epoch on, and the run ends at 40epoch. Use --rate \"0.1, cosine over 40epoch\"",
                "train.rate=0.1, cosine over 40epoch",
            ),
            (
                &["train.rate=0.1, cosine over 80epoch"],
                1438,
                "the learning rate falls until 80epoch, and the run ends at 40epoch. Use --rate \"0.1, cosine over 40epoch\"",
                "train.rate=0.1, cosine over 40epoch",
            ),
            (
                &["train.rate=0.1, warmup 50epoch"],
                1438,
                "the learning rate rises for 50epoch, and the run ends at 40epoch. Use --rate \"0.1, warmup 4epoch\"",
                "train.rate=0.1, warmup 4epoch",
            ),
            (
                &["train.rate=0, cosine over 20epoch"],
                1438,
                "the learning rate is 0: nothing is learnt. Use --rate 0.1",
                "train.rate=0.1",
            ),
            (
                &["train.batch=32", "method.period=1"],
                100,
                "a batch of 32 is larger than a worker's share of the 100 training examples. Use --batch 25",
                "train.batch=25",
            ),
            (
                &["train.batch=1", "train.workers=64", "method.period=1", "evaluate.batch_norm=keep"],
                50,
                "64 workers have only 50 training examples. Use --workers 50",
                "train.workers=50",
            ),
            (
                &[
                    "method.name=lsgd",
                    "method.period=32",
                    "method.inner.group=2",
                    "method.inner.period=8",
                    "train.budget=100step",
                    "train.rate=0.1",
                ],
                1438,
                "only 3 rounds: 100 steps of each worker, a round every 32 steps. Use --period 8",
                "method.period=8",
            ),
            (
                &[
                    "method.name=lsgd",
                    "method.period=32",
                    "method.inner.group=2",
                    "method.inner.period=8",
                    "train.budget=40step",
                    "train.rate=0.1",
                ],
                1438,
                "only 1 round: 40 steps of each worker, a round every 32 steps. Use a longer run: --budget 320step",
                "train.budget=320step",
            ),
            (
                &[
                    "method.name=lsgd",
                    "method.inner.group=2",
                    "method.period=1",
                    "method.inner.period=1",
                    "train.batch=1",
                    "evaluate.batch_norm=keep",
                ],
                3,
                "4 workers have only 3 training examples. Use --workers 2",
                "train.workers=2",
            ),
            (
                &["evaluate.images=32"],
                1438,
                "batch-norm statistics are measured on only 32 images. Use --set evaluate.images=25600",
                "evaluate.images=25600",
            ),
            (
                &["train.batch=8", "method.period=1"],
                40,
                "batch-norm statistics are measured on only 40 images. Use --set evaluate.batch_norm=average",
                "evaluate.batch_norm=average",
            ),
        ] {
            assert_eq!(recipe(settings).warnings(Some(examples), None), [words], "{settings:?}");
            let mended = recipe(&[settings, &[mend]].concat());
            assert_eq!(mended.warnings(Some(examples), None), [""; 0], "{settings:?} {mend}");
        }
    }

    /// A resume accepts none of the options that a new run is told to use, and without examples there is nothing to
    /// advise.
    #[test]
    fn advice_is_what_the_command_accepts() {
        let few = recipe(&["train.budget=10epoch", "method.period=400"]);
        let run = Path::new("my runs/1");
        let words = few.warnings_of_resumed(run, Some(1438), None).join("; ");
        assert!(words.contains("no round will take place") && words.contains("drops at 20epoch"), "{words}");
        for refused in ["--rate", "--period", "--workers", "--batch", "--set"] {
            assert!(!words.contains(refused), "{words}");
        }
        let other = "grawa train --recipe 'my runs/1/recipe.toml' --init 'my runs/1'";
        assert!(words.contains("--budget") && words.ends_with(other), "{words}");
        assert_eq!(recipe(&[]).warnings_of_resumed(run, Some(1438), None), [""; 0]);
        let none = recipe(&[]).warnings(Some(0), None).join("; ");
        assert!(!none.contains("--workers") && !none.contains("--batch"), "{none}");
    }

    /// The defaults of the published data sets, methods without rounds, and what only the end knows.
    #[test]
    fn nothing_is_said_of_what_is_meant() {
        for kind in grawa_data::DatasetKind::ALL {
            let recipe = recipe(&[&format!("data.kind={kind}")]);
            let examples = crate::recipe::Facts::published(&recipe).map(|facts| facts.examples);
            assert_eq!(recipe.warnings(examples, None), [""; 0], "{kind}");
        }
        for method in ["dp-sgd", "sgd"] {
            let recipe = recipe(&[&format!("method.name={method}"), "train.budget=3step", "train.rate=0.1"]);
            assert_eq!(recipe.warnings(Some(1438), None), [""; 0], "{method}");
        }
        let timed = recipe(&["train.budget=10s", "train.rate=0.1"]);
        assert_eq!(timed.warnings(Some(1438), None), [""; 0]);
        let few = "only 1 round: a round every 32 steps. Use --period 1, or a longer --budget";
        assert_eq!(timed.warnings(Some(1438), Some(1)), [few]);
        let inner = ["method.name=lsgd", "method.period=32", "method.inner.group=2", "method.inner.period=8"];
        let timed_groups = recipe(&[&inner[..], &["train.budget=10s", "train.rate=0.1"]].concat());
        assert_eq!(timed_groups.warnings(Some(1438), Some(1)), [few.replace("period 1", "period 8")]);
        // How far a time leads is known from its rounds: then a drop that is never reached is seen.
        let timed = recipe(&["train.budget=10s", "method.period=4"]);
        assert_eq!(timed.warnings(Some(1438), None), [""; 0]);
        let drops = "the learning rate drops at 20epoch and 30epoch, and the run ends at 10s. Use --rate \"0.1, x0.1 at 5s, x0.1 at 7.5s\"";
        assert_eq!(timed.warnings(Some(1438), Some(10)), [drops]);
        assert_eq!(timed.warnings(Some(1438), Some(10_000)), [""; 0]);
        // Nothing is known of the data.
        assert_eq!(recipe(&["train.budget=1epoch", "train.rate=0.1"]).warnings(None, None), [""; 0]);
    }
}

//! Settings that fit a folder of one's own pictures: network, image size, batch, period, length and learning rate.
//!
//! A pure function of what was set and of what the pictures are like. It adds to what was set, so that the recipe holds each choice
//! explicitly, and says each in words. The aim is a run of minutes on two cores that learns. From few pictures a network learns after many
//! small steps only: so images and network are small, and two workers share their parameters often. Four workers with 600 steps
//! each and a period of 30 did not fit even the training pictures of the hardest set tried.

use super::{OptimizerKind, Overrides, Recipe, RecipeError};
use grawa_core::{Amount, Share};
use grawa_data::{DatasetKind, Survey};

/// Where a setting was chosen by the pictures.
const PLACE: &str = "the settings chosen for the pictures";
/// From so many training pictures on, the settings are ImageNet's.
const MANY: usize = 100_000;
/// Pictures of one size are shown as they are up to this side.
const LARGEST: u32 = 64;
/// The smallest part of a picture that training shows, in percent of its area: what it shows should still be in it.
const LEAST: u32 = 50;
/// The same of few photographs, which are otherwise learnt by heart, and the weight decay for few pictures.
const LEAST_OF_FEW: u32 = 25;
const DECAY_FOR_FEW: f64 = 0.002;
/// Pictures are kept in memory up to this many bytes in all.
const KEPT: u64 = 2 << 30;
/// Fewer pictures than these are soon learnt by heart. Large ones are shown at a smaller size: steps are then worth more than detail.
const SMALL: usize = 1000;
/// More workers take fewer steps each of the same pictures.
const WORKERS: u32 = 2;
/// Local steps of each worker that a small data set gets: with 600, sets of a hundred photographs did not learn.
const STEPS: f64 = 3000.0;
/// The most passes over the training pictures.
const EPOCHS: f64 = 500.0;
/// Images that all workers read in a run, unless that is less than twenty epochs.
const READ: f64 = 48_000.0;
/// Fewer pictures than these give no batch-norm statistics; more than those are not needed for them.
const FEW: usize = 64;
const ENOUGH: usize = 1024;
/// Rounds that a run has at least.
const ROUNDS: u64 = 20;
/// The most local steps between two rounds.
const PERIOD: u64 = 8;

impl Overrides {
    /// Whether the settings of a run should fit its pictures: it is one of a folder, and network or image size were not set.
    pub fn need_a_survey(&self) -> Result<bool, RecipeError> {
        let recipe = Recipe::resolve(self)?;
        let has_network = self.says("model.name") || self.says("model.graph");
        Ok(recipe.data.kind == DatasetKind::Folder && !(has_network && self.says("data.augment")))
    }

    /// Adds the settings that fit these pictures, where nothing else was set. Returns what was chosen, a line each.
    pub fn for_pictures(self, survey: &Survey) -> Result<(Self, Vec<String>), RecipeError> {
        let base = Recipe::resolve(&self)?;
        let [examples, _] = survey.count;
        let mut lines = vec![describe(survey, &base)];
        if examples >= MANY {
            lines.push(format!("{MANY} pictures or more are trained on with ImageNet's settings"));
            return Ok((self, lines));
        }
        let mut chosen = Chosen { overrides: self, lines };
        let (augment, side) = augmentation(survey);
        let shown = match survey.same {
            Some(_) if augment.starts_with("pad") => "as they are, shifted at random",
            _ => "a random part of each, resized",
        };
        // A network of one's own has its image size.
        if !chosen.overrides.says("model.graph") {
            chosen.add(
                "data.augment",
                augment,
                &format!("images of {side}×{side}: {shown}; not mirrored"),
            )?;
        }
        let kept = if survey.same.is_some_and(|(height, _)| height <= side) { side } else { 2 * side };
        // Wide pictures keep their width.
        let bytes = survey.count.iter().sum::<usize>() as u64 * 3 * u64::from(kept * kept) * 3 / 2;
        if bytes <= KEPT {
            chosen.add("data.shrink", kept, "decoded once and kept in memory, larger ones shrunk")?;
        }
        if !chosen.overrides.says("model.name") && !chosen.overrides.says("model.graph") {
            chosen.add("model.name", "resnet20", "a small network")?;
            if side > 32 {
                chosen.add("model.width", 8, "half its channels: large images cost more")?;
            }
        }

        // Some methods have one worker.
        if base.train.workers > WORKERS {
            chosen.add("train.workers", WORKERS, "few, so that each takes many steps")?;
        }
        let base = Recipe::resolve(&chosen.overrides)?;
        let workers = base.train.workers.max(1) as usize;
        let batch =
            (examples / (64 * workers)).next_power_of_two().clamp(8, 32).min((examples / workers).max(2));
        chosen.add("train.batch", batch as u32, "small, so that there are many steps")?;
        let base = Recipe::resolve(&chosen.overrides)?;
        let epoch = examples.max(1) as f64 / (workers as f64 * f64::from(base.train.batch));
        let epochs = (STEPS / epoch).min(READ / examples.max(1) as f64).ceil().clamp(20.0, EPOCHS);
        chosen.add(
            "train.budget",
            Amount::Epochs(epochs).to_string(),
            "passes over the training pictures",
        )?;

        let budget = Recipe::resolve(&chosen.overrides)?.train.budget;
        let steps = match budget {
            Amount::Steps(steps) => steps,
            Amount::Epochs(epochs) => (epochs * epoch) as u64,
            Amount::Time(_) => STEPS as u64,
        };
        let period = (steps / ROUNDS).clamp(1, PERIOD) as u32;
        // A method with a shorter period of its own keeps it.
        if base.method.share == Share::Parameters && base.method.qsr == 0.0 && base.method.period > period {
            chosen.add("method.period", period, "local steps between two rounds")?;
        }
        let rate = if base.train.optimizer == OptimizerKind::AdamW { 0.001 } else { 0.05 };
        let tenth = tenth(budget);
        let schedule = format!("{rate}, warmup {tenth}, cosine over {budget}");
        chosen.add("train.rate", schedule, "rises, then falls to zero at the end")?;
        if examples < SMALL && base.train.optimizer == OptimizerKind::Sgd {
            chosen.add("train.weight_decay", DECAY_FOR_FEW, "few pictures are soon learnt by heart")?;
        }
        if examples < FEW {
            chosen.add(
                "evaluate.batch_norm",
                "average",
                "there are too few pictures to measure statistics on",
            )?;
        } else if examples > ENOUGH {
            chosen.add("evaluate.images", ENOUGH as u32, "to measure batch-norm statistics on")?;
        }
        chosen.add("evaluate.every", tenth.to_string(), "ten times")?;
        chosen.add("checkpoint.every", tenth.to_string(), "ten times")?;
        Ok((chosen.overrides, chosen.lines))
    }
}

/// What was set and chosen, and the choices in words.
struct Chosen {
    overrides: Overrides,
    lines: Vec<String>,
}

impl Chosen {
    /// Sets a key, unless it was set before.
    fn add(&mut self, key: &str, value: impl Into<toml::Value>, why: &str) -> Result<(), RecipeError> {
        if !self.overrides.says(key) {
            let value = value.into();
            self.lines.push(format!("{key} = {value}  ({why})"));
            self.overrides = std::mem::take(&mut self.overrides).value(key, value, PLACE)?;
        }
        Ok(())
    }
}

fn describe(survey: &Survey, recipe: &Recipe) -> String {
    let [train, test] = survey.count;
    let colours = if survey.is_grey { "greyscale" } else { "colour" };
    let size = match survey.same {
        Some((height, width)) => format!("all of {width}×{height}"),
        None => format!("of different sizes, the shorter side about {}", survey.side),
    };
    let split = match survey.is_split {
        true => "for testing".to_owned(),
        false => format!("for testing, drawn by the seed: data.split_test = {}", recipe.data.split_test),
    };
    format!("{colours} pictures {size}, in {} classes: {train} to train on, {test} {split}", survey.classes)
}

/// The augmentation, and the side of the images. Nothing is mirrored: a mirrored letter or arrow may be of another class.
fn augmentation(survey: &Survey) -> (String, u32) {
    let are_few = survey.count[0] < SMALL;
    match survey.same {
        // Few pictures that are only shifted are learnt by heart.
        Some((side, width)) if side == width && (32..=LARGEST).contains(&side) && are_few => {
            (format!("resized{side}from{LEAST}"), side)
        }
        Some((side, width)) if side == width && (8..=LARGEST).contains(&side) => {
            (format!("pad{}crop{side}", (side / 8).max(1)), side)
        }
        _ => {
            let (side, least) = match survey.side {
                0..=40 => (32, LEAST),
                41..=96 => (48, LEAST),
                _ if are_few => (48, LEAST_OF_FEW),
                _ => (LARGEST, LEAST),
            };
            (format!("resized{side}from{least}"), side)
        }
    }
}

/// A tenth of a budget, in whole steps and epochs.
fn tenth(budget: Amount) -> Amount {
    match budget {
        Amount::Steps(steps) => Amount::Steps((steps / 10).max(1)),
        Amount::Epochs(epochs) if epochs >= 10.0 => Amount::Epochs((epochs / 10.0).round()),
        Amount::Epochs(epochs) if epochs > 0.0 => Amount::Epochs(epochs / 10.0),
        Amount::Epochs(_) => Amount::Epochs(1.0),
        Amount::Time(time) if time.as_secs() >= 10 => {
            Amount::Time(std::time::Duration::from_secs(time.as_secs() / 10))
        }
        Amount::Time(_) => Amount::Time(std::time::Duration::from_secs(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::{Facts, Forecast};
    use grawa_data::Shape;

    fn survey(count: [usize; 2], classes: u32, side: u32, same: bool) -> Survey {
        let same = same.then_some((side, side));
        Survey { count, classes, is_split: false, side, same, is_grey: false }
    }

    fn chosen(survey: &Survey, settings: &[&str]) -> (Recipe, Vec<String>) {
        let said = ["data.kind=folder"].iter().chain(settings);
        let said = said.fold(Overrides::default(), |said, setting| said.set(setting).unwrap());
        let (said, lines) = said.for_pictures(survey).unwrap();
        (Recipe::resolve(&said).unwrap(), lines)
    }

    /// Whatever the pictures are, a run has rounds, and its recipe reads back the same without looking at them again.
    #[test]
    fn every_folder_gets_rounds_and_a_network_that_fits() {
        for (count, side, same) in [
            ([6, 2], 16, true),
            ([96, 24], 32, true),
            ([96, 24], 33, true),
            ([1600, 400], 40, false),
            ([160, 40], 3000, false),
            ([40_000, 8_000], 224, false),
            ([96, 24], 3, true),
        ] {
            for settings in [&[][..], &["train.budget=200step"], &["train.workers=2", "train.budget=10epoch"]]
            {
                let survey = survey(count, 2, side, same);
                let (recipe, lines) = chosen(&survey, settings);
                let shape = Shape::new(3, side, side);
                let facts =
                    Facts { examples: count[0] as u64, classes: 2, shape, data_bytes: 0 }.for_recipe(&recipe);
                let forecast = Forecast::of(&recipe, &facts, 2).unwrap();
                assert!(forecast.rounds.unwrap() >= 5, "{side} {settings:?}: {recipe:?}");
                assert!(forecast.memory(recipe.train.workers) < 1 << 30);
                assert!(lines.len() > 5);
                if count[0] > 6 {
                    assert_eq!(recipe.warnings(Some(facts.examples), None), [""; 0], "{side} {settings:?}");
                }
                let again = Overrides::default().file("recipe.toml", &recipe.to_toml()).unwrap();
                assert!(!again.need_a_survey().unwrap());
                assert_eq!(Recipe::resolve(&again).unwrap(), recipe);
            }
        }
    }

    /// Few pictures are learnt in many small steps, with parameters that are shared often.
    #[test]
    fn few_pictures_get_many_steps_and_rounds() {
        for (count, batch, epochs) in [([96, 24], 8, 500.0), ([160, 40], 8, 300.0), ([800, 200], 8, 60.0)] {
            let (recipe, _) = chosen(&survey(count, 2, 1200, false), &[]);
            assert_eq!((recipe.train.workers, recipe.train.batch, recipe.method.period), (2, batch, 8));
            assert_eq!(recipe.train.budget, Amount::Epochs(epochs));
            assert_eq!(recipe.data.augment.to_string(), "resized48from25");
            assert_eq!(recipe.train.sgd.weight_decay, DECAY_FOR_FEW as f32);
            let facts =
                Facts { examples: count[0] as u64, classes: 2, shape: Shape::new(3, 48, 48), data_bytes: 0 };
            let rounds = Forecast::of(&recipe, &facts.for_recipe(&recipe), 2).unwrap().rounds.unwrap();
            assert!(rounds >= 180, "{count:?}: {rounds} rounds");
        }
    }

    #[test]
    fn sizes_decide_and_what_was_set_stays() {
        let augment = |side, same| chosen(&survey([96, 24], 3, side, same), &[]).0.data.augment.to_string();
        assert_eq!(augment(16, true), "pad2crop16");
        assert_eq!(augment(32, true), "resized32from50");
        let many = chosen(&survey([SMALL, 500], 3, 32, true), &[]).0;
        assert_eq!(many.data.augment.to_string(), "pad4crop32");
        assert_eq!(augment(28, false), "resized32from50");
        assert_eq!(augment(60, false), "resized48from50");
        assert_eq!(augment(2000, true), "resized48from25");
        let many = chosen(&survey([SMALL, 500], 3, 2000, true), &[]).0;
        assert_eq!(many.data.augment.to_string(), "resized64from50");
        let said =
            ["data.augment=flip", "train.rate=0.3", "train.batch=5", "method.name=easgd", "method.period=2"];
        let (recipe, lines) = chosen(&survey([96, 24], 3, 32, true), &said);
        assert_eq!((recipe.data.augment.to_string().as_str(), recipe.train.batch), ("flip", 5));
        assert_eq!((recipe.train.rate.to_string().as_str(), recipe.method.period), ("0.3", 2));
        assert!(!lines.iter().any(|line| line.contains("train.rate")), "{lines:?}");
        assert_eq!(chosen(&survey([96, 24], 3, 32, true), &["method.name=sgd"]).0.train.workers, 1);
        assert_eq!(chosen(&survey([96, 24], 3, 32, true), &["train.workers=4"]).0.train.workers, 4);
        // Many pictures are another matter.
        let (recipe, _) = chosen(&survey([1_000_000, 50_000], 1000, 400, false), &[]);
        assert_eq!(recipe.model.name, "resnet50");
    }
}

//! A model by itself: its loss and error on the test set, class by class.

use crate::engine::{Counts, Engine};
use crate::recipe::BatchNorm;
use crate::{Error, Recipe};
use grawa_nn::State;

/// A model on the test set.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// The mean loss.
    pub loss: f64,
    /// What was told wrong, class by class.
    pub classes: Vec<Class>,
}

/// The examples of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// How many there are.
    pub examples: u64,
    /// How many of them were told wrong.
    pub wrong: u64,
}

impl Class {
    /// The share that was told wrong, from 0 to 1.
    pub fn error(&self) -> f64 {
        self.wrong as f64 / self.examples.max(1) as f64
    }
}

impl Measured {
    /// All classes together.
    pub fn total(&self) -> Class {
        let sum = |count: fn(&Class) -> u64| self.classes.iter().map(count).sum();
        Class { examples: sum(|class| class.examples), wrong: sum(|class| class.wrong) }
    }
}

/// Measures a model on the test set of a recipe: with the statistics it has (`keep`, `average`), or counted anew on
/// training images (`recalibrate`). `done` is told the share that is done, from 0 to 1.
pub fn measure(
    recipe: &Recipe,
    engine: &Engine,
    model: &State,
    mut done: impl FnMut(f64),
) -> Result<Measured, Error> {
    let examiner = engine.examiner(recipe);
    let statistics = match recipe.evaluate.batch_norm {
        BatchNorm::Keep | BatchNorm::Average => model.statistics.clone(),
        BatchNorm::Recalibrate => {
            let (sums, batches) = examiner.recalibrate(&model.parameters, (0, 1), || {})?;
            sums.into_iter().map(|sum| (sum / batches as f64) as f32).collect()
        }
    };
    let all = engine.test_examples().max(1) as f64;
    let mut counts = Counts::default();
    let mut classes = vec![Class::default(); engine.graph().classes()];
    examiner.each(
        &model.parameters,
        &statistics,
        (0, 1),
        || {},
        |logits, label| {
            let before = counts.wrong;
            counts.take(logits, label);
            if let Some(class) = classes.get_mut(label) {
                class.examples += 1;
                class.wrong += counts.wrong - before;
            }
            done(counts.examples as f64 / all);
        },
    )?;
    Ok(Measured { loss: counts.loss / counts.examples.max(1) as f64, classes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use grawa_data::Kind;

    /// A network that knows nothing gives every class the same: nothing is right, and the loss is ln 10.
    #[test]
    fn a_blank_network_is_wrong_everywhere() {
        let mut recipe = Recipe::for_data(Kind::Digits, None).unwrap();
        let data = grawa_data::load("digits", ".".as_ref()).unwrap();
        let engine = Engine::new(&recipe, &data).unwrap();
        let mut blank = State::initial(engine.graph(), 1);
        blank.parameters.fill(0.0);
        for policy in BatchNorm::ALL {
            recipe.evaluate.batch_norm = *policy;
            let mut last = 0.0;
            let measured = measure(&recipe, &engine, &blank, |share| last = share).unwrap();
            assert!((measured.loss - 10f64.ln()).abs() < 1e-6, "{}", measured.loss);
            assert_eq!((measured.total(), last), (Class { examples: 359, wrong: 359 }, 1.0));
            let labels = data.test.labels();
            for (label, class) in measured.classes.iter().enumerate() {
                assert_eq!(class.examples, labels.iter().filter(|&&it| it as usize == label).count() as u64);
            }
        }
    }
}

//! A model by itself: its loss and error on the test set, class by class.

use crate::engine::{Counts, EvaluateShard, Material};
use crate::recipe::BatchNorm;
use crate::run::AnyEngine;
use crate::{Error, Recipe};
use grawa_data::Dataset;
use grawa_nn::{Graph, State};

/// A model on the test set.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// The mean loss.
    pub loss: f64,
    /// Errors, class by class.
    pub classes: Vec<Class>,
}

/// The examples of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// How many there are.
    pub examples: u64,
    /// How many of them were classified wrong.
    pub wrong: u64,
}

impl Class {
    /// The share that was classified wrong, from 0 to 1.
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

/// Measures models on the test set of a recipe, on the device it names.
#[derive(Debug)]
pub struct Evaluator {
    engine: AnyEngine,
    graph: Graph,
    recipe: Recipe,
    examples: usize,
}

impl Evaluator {
    /// For the data set of a recipe and the network it asks for.
    pub fn new(recipe: &Recipe, data: &Dataset) -> Result<Self, Error> {
        let material = Material::new(recipe, data)?;
        let (graph, examples) = (material.graph.clone(), material.test.len());
        let engine = AnyEngine::of_one(recipe, material, (0, 0), recipe.machine.threads)?;
        Ok(Evaluator { engine, graph, recipe: recipe.clone(), examples })
    }

    /// The network.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Measures a model with [`Evaluator::statistics`]. `done` receives the share that is done, from 0 to 1.
    pub fn measure(&self, model: &State, mut done: impl FnMut(f64)) -> Result<Measured, Error> {
        match &self.engine {
            AnyEngine::Cpu(engine) => {
                self.by(&mut engine.evaluator(&self.recipe), &model.parameters[..], model, &mut done)
            }
            AnyEngine::Cuda(engine) => {
                let placed = engine.place_model(model)?;
                self.by(&mut engine.evaluator(0), &placed, model, &mut done)
            }
        }
    }

    /// Batch norm's statistics that a model is measured with: those it has (`keep`, `average`), or those of training batches
    /// as training shows them, augmented, with dropout off (`recalibrate`).
    pub fn statistics(&self, model: &State) -> Result<Vec<f32>, Error> {
        match &self.engine {
            AnyEngine::Cpu(engine) => {
                self.settle(&mut engine.evaluator(&self.recipe), &model.parameters[..], model)
            }
            AnyEngine::Cuda(engine) => {
                let placed = engine.place_model(model)?;
                self.settle(&mut engine.evaluator(0), &placed, model)
            }
        }
    }

    fn settle<B: ?Sized>(
        &self,
        examiner: &mut dyn EvaluateShard<B>,
        of: &B,
        model: &State,
    ) -> Result<Vec<f32>, Error> {
        Ok(match self.recipe.evaluate.batch_norm {
            BatchNorm::Keep | BatchNorm::Average => model.statistics.clone(),
            BatchNorm::Recalibrate => {
                let (sums, batches) = examiner.recalibrate(of, (0, 1), &mut || {})?;
                sums.into_iter().map(|sum| (sum / batches as f64) as f32).collect()
            }
        })
    }

    fn by<B: ?Sized>(
        &self,
        examiner: &mut dyn EvaluateShard<B>,
        of: &B,
        model: &State,
        done: &mut dyn FnMut(f64),
    ) -> Result<Measured, Error> {
        let statistics = self.settle(examiner, of, model)?;
        let all = self.examples.max(1) as f64;
        let mut counts = Counts::default();
        let mut classes = vec![Class::default(); self.graph.classes()];
        examiner.each(of, &statistics, (0, 1), &mut || {}, &mut |logits, label| {
            let before = counts.wrong;
            counts.take(logits, label);
            if let Some(class) = classes.get_mut(label) {
                class.examples += 1;
                class.wrong += counts.wrong - before;
            }
            done(counts.examples as f64 / all);
        })?;
        Ok(Measured { loss: counts.loss / counts.examples.max(1) as f64, classes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use grawa_data::DatasetKind;

    /// A network that knows nothing gives every class the same: nothing is right, and the loss is ln 10.
    #[test]
    fn a_blank_network_is_wrong_everywhere() {
        let mut recipe = Recipe::for_data(DatasetKind::Digits, None).unwrap();
        let data = grawa_data::load("digits", ".".as_ref()).unwrap();
        for policy in BatchNorm::ALL {
            recipe.evaluate.batch_norm = *policy;
            let meter = Evaluator::new(&recipe, &data).unwrap();
            let mut blank = State::initial(meter.graph(), 1);
            blank.parameters.fill(0.0);
            let mut last = 0.0;
            let measured = meter.measure(&blank, |share| last = share).unwrap();
            assert!((measured.loss - 10f64.ln()).abs() < 1e-6, "{}", measured.loss);
            assert_eq!((measured.total(), last), (Class { examples: 359, wrong: 359 }, 1.0));
            let labels = data.test.labels();
            for (label, class) in measured.classes.iter().enumerate() {
                assert_eq!(class.examples, labels.iter().filter(|&&it| it as usize == label).count() as u64);
            }
        }
    }
}

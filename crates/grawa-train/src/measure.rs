//! A model by itself: its loss and error on the test set, class by class.

use crate::engine::{Counts, EvaluateShard, Workload};
use crate::recipe::BatchNorm;
use crate::run::AnyEngine;
use crate::{Error, Recipe};
use grawa_data::Dataset;
use grawa_nn::{Graph, State};
use std::sync::{Mutex, PoisonError};

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
pub struct Evaluator {
    evaluator: Mutex<Box<dyn EvaluateShard>>,
    graph: Graph,
    examples: usize,
}

impl std::fmt::Debug for Evaluator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Evaluator").field("network", &self.graph.name()).finish_non_exhaustive()
    }
}

impl Evaluator {
    /// For the data set of a recipe and the network it asks for.
    pub fn new(recipe: &Recipe, data: &Dataset) -> Result<Self, Error> {
        let workload = Workload::new(recipe, data)?;
        let (graph, examples) = (workload.graph.clone(), workload.test.len());
        let evaluator: Box<dyn EvaluateShard> =
            match AnyEngine::of_some(recipe, workload, 0..1, recipe.machine.threads)? {
                AnyEngine::Cpu(engine) => Box::new(engine.evaluator(recipe)),
                AnyEngine::Cuda(set) => set.evaluator(),
            };
        Ok(Evaluator { evaluator: Mutex::new(evaluator), graph, examples })
    }

    /// The network.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Measures a model with [`Evaluator::statistics`]. `done` receives the share that is done, from 0 to 1.
    pub fn measure(&self, model: &State, mut done: impl FnMut(f64)) -> Result<Measured, Error> {
        let mut evaluator = self.evaluator.lock().unwrap_or_else(PoisonError::into_inner);
        let statistics = settle(&mut **evaluator, model)?;
        let all = self.examples.max(1) as f64;
        let mut counts = Counts::default();
        let mut classes = vec![Class::default(); self.graph.classes()];
        evaluator.each(&model.parameters, &statistics, (0, 1), &mut || true, &mut |logits, label| {
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

    /// The probability of each class for every example of the test set, in order.
    pub fn probabilities(&self, model: &State) -> Result<Vec<Vec<f64>>, Error> {
        let mut evaluator = self.evaluator.lock().unwrap_or_else(PoisonError::into_inner);
        let statistics = settle(&mut **evaluator, model)?;
        let mut all = Vec::with_capacity(self.examples);
        evaluator.each(&model.parameters, &statistics, (0, 1), &mut || true, &mut |logits, _| {
            all.push(softmax(logits));
        })?;
        Ok(all)
    }

    /// Batch norm's statistics that a model is measured with: those it has (`keep`, `average`), or those of training batches
    /// as training shows them, augmented, with dropout off (`recalibrate`).
    pub fn statistics(&self, model: &State) -> Result<Vec<f32>, Error> {
        settle(&mut **self.evaluator.lock().unwrap_or_else(PoisonError::into_inner), model)
    }
}

/// exp(x) over their sum; the largest is subtracted first, so that none overflows.
fn softmax(logits: &[f32]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exps: Vec<f64> = logits.iter().map(|&x| libm::exp(f64::from(x) - f64::from(largest))).collect();
    let sum: f64 = exps.iter().sum();
    exps.into_iter().map(|x| x / sum).collect()
}

fn settle(evaluator: &mut dyn EvaluateShard, model: &State) -> Result<Vec<f32>, Error> {
    Ok(match evaluator.policy() {
        BatchNorm::Keep | BatchNorm::Average => model.statistics.clone(),
        BatchNorm::Recalibrate => {
            let (sums, batches) = evaluator.recalibrate(&model.parameters, (0, 1), &mut || true)?;
            sums.into_iter().map(|sum| (sum / batches as f64) as f32).collect()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use grawa_data::DatasetKind;

    #[test]
    fn probabilities_sum_to_one_whatever_the_logits() {
        let found = softmax(&[1000.0, 1000.0 + 3f32.ln(), -1000.0]);
        assert!((found[0] - 0.25).abs() < 1e-4 && (found[1] - 0.75).abs() < 1e-4 && found[2] < 1e-300);
    }

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
            let all = meter.probabilities(&blank).unwrap();
            assert!(all.len() == 359 && all.iter().flatten().all(|p| (p - 0.1).abs() < 1e-12));
            let labels = data.test.labels();
            for (label, class) in measured.classes.iter().enumerate() {
                assert_eq!(class.examples, labels.iter().filter(|&&it| it as usize == label).count() as u64);
            }
        }
    }
}

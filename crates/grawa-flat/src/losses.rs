//! Losses and gradients at any parameters, on fixed examples.

use crate::{Error, Examples};
use grawa_nn::{Arena, Graph, Mode, Program};

/// Loss and error of a network on the examples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossAndError {
    /// The mean loss.
    pub loss: f64,
    /// The share of examples that are classified wrong.
    pub error: f64,
}

/// A network's mean loss on fixed examples.
#[derive(Debug)]
pub struct Losses<'a> {
    program: Program,
    arena: Arena,
    examples: &'a Examples,
    mode: Mode,
    part: Vec<f32>,
}

impl<'a> Losses<'a> {
    /// The mean loss of `examples`, with batch norm in this mode, on `threads` threads.
    pub fn new(graph: &Graph, examples: &'a Examples, mode: Mode, threads: usize) -> Result<Self, Error> {
        examples.fit(graph)?;
        let program = Program::compile(graph, examples.batch())?;
        let arena = Arena::new(&program, threads)?;
        let part = vec![0.0; graph.parameters().len()];
        Ok(Losses { program, arena, examples, mode, part })
    }

    /// Loss and error at some parameters and running statistics (unused in training mode).
    pub fn at(&mut self, parameters: &[f32], statistics: &[f32]) -> Result<LossAndError, Error> {
        let classes = self.program.graph().classes();
        let (mut loss, mut wrong) = (0.0, 0);
        for (images, labels) in self.examples.batches() {
            let logits = self.program.forward(&mut self.arena, parameters, statistics, images, self.mode)?;
            for (logits, &label) in logits.chunks_exact(classes).zip(labels) {
                let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let sum: f64 = logits.iter().map(|&logit| libm::exp(f64::from(logit) - f64::from(top))).sum();
                let own = logits.get(label as usize).copied().unwrap_or(f32::NAN);
                loss += libm::log(sum) - (f64::from(own) - f64::from(top));
                // The first of several equal logits is the prediction.
                wrong += usize::from(logits.iter().position(|&logit| logit == top) != Some(label as usize));
            }
        }
        let count = self.examples.len() as f64;
        Ok(LossAndError { loss: loss / count, error: wrong as f64 / count })
    }

    /// The mean loss, and its gradient.
    pub fn gradient(
        &mut self,
        parameters: &[f32],
        statistics: &[f32],
        gradient: &mut [f32],
    ) -> Result<f64, Error> {
        gradient.fill(0.0);
        let (share, mut loss) = (1.0 / self.examples.len() as f64, 0.0);
        for batch in self.examples.batches() {
            let model = (parameters, statistics);
            loss += share
                * self.program.gradient(&mut self.arena, model, batch, self.mode, share, &mut self.part)?;
            gradient.iter_mut().zip(&self.part).for_each(|(sum, part)| *sum += part);
        }
        Ok(loss)
    }
}

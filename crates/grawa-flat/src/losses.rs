//! Losses and gradients at any parameters, on fixed examples.

use crate::engine::Passes;
use crate::{Engine, Error, Examples};
use grawa_nn::{Graph, Mode};

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
pub struct Losses<'a>(Box<dyn Passes + 'a>);

impl<'a> Losses<'a> {
    /// The mean loss of `examples`, with batch norm in this mode.
    pub fn new(graph: &Graph, examples: &'a Examples, mode: Mode, engine: Engine) -> Result<Self, Error> {
        examples.fit(graph)?;
        Ok(Losses(engine.passes(graph, examples, mode)?))
    }

    /// Loss and error at some parameters and running statistics (unused in training mode).
    pub fn at(&mut self, parameters: &[f32], statistics: &[f32]) -> Result<LossAndError, Error> {
        self.0.at((parameters, statistics))
    }

    /// The mean loss, and its gradient.
    pub fn gradient(
        &mut self,
        parameters: &[f32],
        statistics: &[f32],
        gradient: &mut [f32],
    ) -> Result<f64, Error> {
        self.0.gradient((parameters, statistics), gradient)
    }
}

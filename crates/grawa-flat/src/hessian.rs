//! The Hessian of a network's mean loss on fixed examples, as an operator with exact products.
//!
//! Batch norm's mode is part of it: in training mode a batch's own statistics move with the parameters.

use crate::engine::Products;
use crate::{Engine, Error, Examples};
use grawa_nn::{Graph, Mode, State};

/// The Hessian at a state.
#[derive(Debug)]
pub struct Hessian<'a> {
    products: Box<dyn Products + 'a>,
    batches: usize,
    loss: f64,
    gradient: Vec<f32>,
}

impl<'a> Hessian<'a> {
    /// The Hessian of the mean loss of `examples` at `state`. On the CPU it keeps the passes of batches in at most `memory`
    /// bytes; it needs at least the memory of two batches' passes.
    pub fn new(
        graph: &Graph,
        state: &'a State,
        examples: &'a Examples,
        mode: Mode,
        engine: Engine,
        memory: usize,
    ) -> Result<Self, Error> {
        examples.fit(graph)?;
        let mut products = engine.products(graph, state, examples, mode, memory)?;
        let mut gradient = vec![0.0; state.parameters.len()];
        let loss = products.visit(&mut gradient)?;
        if !loss.is_finite() || !gradient.iter().all(|g| g.is_finite()) {
            return Err(Error::NotFinite("the loss or its gradient"));
        }
        Ok(Hessian { products, batches: examples.batches().count(), loss, gradient })
    }

    /// Dimensions: the number of parameters.
    pub fn len(&self) -> usize {
        self.gradient.len()
    }

    /// Whether there are no parameters.
    pub fn is_empty(&self) -> bool {
        self.gradient.is_empty()
    }

    /// The mean loss.
    pub fn loss(&self) -> f64 {
        self.loss
    }

    /// The gradient of the mean loss.
    pub fn gradient(&self) -> &[f32] {
        &self.gradient
    }

    /// The number of kept batches, and of all batches.
    pub fn kept(&self) -> (usize, usize) {
        (self.products.kept(), self.batches)
    }

    /// Bytes in use; on a GPU, mostly of its memory.
    pub fn bytes(&self) -> usize {
        self.products.bytes() + 4 * self.len()
    }

    /// out ← H·v.
    pub fn apply(&mut self, v: &[f32], out: &mut [f32]) -> Result<(), Error> {
        self.products.apply(v, out)
    }
}

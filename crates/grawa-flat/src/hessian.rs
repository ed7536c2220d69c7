//! The Hessian of a network's mean loss on fixed examples, as an operator with exact products.
//!
//! Batch norm's mode is part of it: in training mode a batch's own statistics move with the parameters. The
//! results of the passes at the parameters are kept for as many batches as the memory allows, and computed again for the
//! others: a product costs about two gradients with them, three without, and gives the same bits.

use crate::{Error, Examples};
use grawa_nn::{Curvature, Graph, Mode, Point, State, Tangents};

/// The Hessian at a state.
#[derive(Debug)]
pub struct Hessian<'a> {
    curvature: Curvature,
    tangents: Tangents,
    state: &'a State,
    examples: &'a Examples,
    mode: Mode,
    /// The first batches, kept.
    kept: Vec<Point>,
    /// The working memory of the other batches.
    passing: Option<Point>,
    part: Vec<f32>,
    loss: f64,
    gradient: Vec<f32>,
}

impl<'a> Hessian<'a> {
    /// The Hessian of the mean loss of `examples` at `state`, on `threads` threads, keeping batches in at most
    /// `memory` bytes. It needs at least the memory of two batches' passes.
    pub fn new(
        graph: &Graph,
        state: &'a State,
        examples: &'a Examples,
        mode: Mode,
        threads: usize,
        memory: usize,
    ) -> Result<Self, Error> {
        examples.fit(graph)?;
        let curvature = Curvature::compile(graph, examples.batch())?;
        let tangents = curvature.tangents(threads)?;
        let len = state.parameters.len();
        let mut hessian = Hessian {
            curvature,
            tangents,
            state,
            examples,
            mode,
            kept: Vec::new(),
            passing: None,
            part: vec![0.0; len],
            loss: 0.0,
            gradient: vec![0.0; len],
        };
        let mut points = vec![hessian.curvature.point(&hessian.tangents)];
        let room = memory.saturating_sub(hessian.tangents.bytes() + 3 * 4 * len) / points[0].bytes().max(1);
        let batches = examples.batches().count();
        // Unless all fit, one arena is for the other batches.
        let count = if room >= batches { batches } else { room.max(1) };
        points.extend((1..count).map(|_| hessian.curvature.point(&hessian.tangents)));
        if count < batches {
            hessian.passing = points.pop();
        }
        hessian.kept = points;
        hessian.visit_all()?;
        Ok(hessian)
    }

    /// Visits every batch: keeps passes, and computes loss and gradient.
    fn visit_all(&mut self) -> Result<(), Error> {
        let share = 1.0 / self.examples.len() as f64;
        let (model, mode) = ((&*self.state.parameters, &*self.state.statistics), (self.mode, share));
        for (number, batch) in self.examples.batches().enumerate() {
            let point = self.kept.get_mut(number).or(self.passing.as_mut());
            let Some(point) = point else { continue };
            let loss = self.curvature.visit(point, &mut self.tangents, model, batch, mode, &mut self.part)?;
            self.loss += share * loss;
            self.gradient.iter_mut().zip(&self.part).for_each(|(sum, part)| *sum += part);
        }
        if self.loss.is_finite() && self.gradient.iter().all(|g| g.is_finite()) {
            Ok(())
        } else {
            Err(Error::NotFinite("the loss or its gradient"))
        }
    }

    /// Dimensions: the number of parameters.
    pub fn len(&self) -> usize {
        self.state.parameters.len()
    }

    /// Whether there are no parameters.
    pub fn is_empty(&self) -> bool {
        self.state.parameters.is_empty()
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
        (self.kept.len(), self.examples.batches().count())
    }

    /// Bytes in use.
    pub fn bytes(&self) -> usize {
        let points: usize = self.kept.iter().chain(&self.passing).map(Point::bytes).sum();
        points + self.tangents.bytes() + 2 * 4 * self.len()
    }

    /// out ← H·v.
    pub fn apply(&mut self, v: &[f32], out: &mut [f32]) -> Result<(), Error> {
        let mode = (self.mode, 1.0 / self.examples.len() as f64);
        let model = (&*self.state.parameters, &*self.state.statistics);
        out.fill(0.0);
        for (number, batch) in self.examples.batches().enumerate() {
            let point = match (self.kept.get_mut(number), self.passing.as_mut()) {
                (Some(point), _) => point,
                (None, Some(point)) => {
                    self.curvature.visit(point, &mut self.tangents, model, batch, mode, &mut self.part)?;
                    point
                }
                (None, None) => continue,
            };
            self.curvature.product(point, &mut self.tangents, model.0, v, &mut self.part)?;
            out.iter_mut().zip(&self.part).for_each(|(out, part)| *out += part);
        }
        Ok(())
    }
}

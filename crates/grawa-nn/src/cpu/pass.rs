//! Forward and backward passes of a program.
//!
//! Images are independent in every step and are divided among threads. Sums over images (statistics, weight gradients)
//! have an order that depends on the shape alone. So the bits do not depend on the number of threads.

use super::arena::{Arena, Buffer};
use super::profile::Part;
use super::program::Program;
use crate::error::expect_len;
use crate::graph::pair;
use crate::op::{batch_norm, cross_entropy};
use crate::{Error, Mode, Op, TensorId};
use rayon::prelude::*;
use std::sync::Arc;
use std::time::Instant;

/// Parameters and running statistics.
pub(super) type Model<'a> = (&'a [f32], &'a [f32]);

impl Program {
    /// Runs a forward pass on a batch and returns the logits.
    pub fn forward<'a>(
        &self,
        arena: &'a mut Arena,
        parameters: &[f32],
        statistics: &[f32],
        images: &[f32],
        mode: Mode,
    ) -> Result<&'a [f32], Error> {
        self.expect_inputs((parameters, statistics), images)?;
        let pool = Arc::clone(&arena.pool);
        pool.install(|| self.forward_pass(arena, (parameters, statistics), images, mode));
        Ok(&arena.logits)
    }

    fn forward_pass(&self, arena: &mut Arena, model: Model<'_>, images: &[f32], mode: Mode) {
        let input = *self.planes(0);
        let packed = arena.values[0].as_mut().map_or(&mut [][..], Buffer::planes_mut);
        let images = images.par_chunks_exact(self.graph.input().len());
        let packed = packed.par_chunks_exact_mut(input.image());
        packed.zip(images).for_each(|(packed, image)| input.pack(image, packed));
        for index in 0..self.steps.len() {
            let start = Instant::now();
            self.run(index, arena, model, mode);
            if let Some(profile) = &mut arena.profile {
                profile.note(index, Part::Forward, start.elapsed());
            }
        }
        arena.trained = mode != Mode::Evaluate;
        let last = self.last();
        if let Some(buffer) = &arena.values[last] {
            buffer.copy_to(&self.places[last], &mut arena.logits);
        }
    }

    /// The node of the logits.
    fn last(&self) -> usize {
        self.steps.last().map_or(0, |step| step.output)
    }

    /// A forward and a backward pass in training mode. Returns the sum of the losses, and writes the gradient of that
    /// sum times `factor` (1 for the sum, 1/N for the mean). Changes only the arena and `gradient`.
    pub fn gradient(
        &self,
        arena: &mut Arena,
        model: Model<'_>,
        (images, labels): (&[f32], &[u32]),
        mode: Mode,
        factor: f64,
        gradient: &mut [f32],
    ) -> Result<f64, Error> {
        expect_len("the list of labels", labels.len(), self.batch)?;
        expect_len("the gradient", gradient.len(), self.graph.parameters().len())?;
        self.expect_inputs(model, images)?;
        // The thread pool is entered once: its queue must not grow in every step.
        let pool = Arc::clone(&arena.pool);
        pool.install(|| {
            self.forward_pass(arena, model, images, mode);
            let Arena { logits, flow, .. } = arena;
            let loss = cross_entropy::loss(self.graph.classes(), logits, labels, factor as f32, flow)?;
            self.backward_pass(arena, model.0, mode, gradient);
            Ok(loss)
        })
    }

    fn expect_inputs(&self, (parameters, statistics): Model<'_>, images: &[f32]) -> Result<(), Error> {
        expect_len("the parameters", parameters.len(), self.graph.parameters().len())?;
        expect_len("the statistics", statistics.len(), self.graph.statistics().len())?;
        expect_len("the batch of images", images.len(), self.batch * self.graph.input().len())
    }

    fn backward_pass(&self, arena: &mut Arena, parameters: &[f32], mode: Mode, gradient: &mut [f32]) {
        let last = self.last();
        if let Some(buffer) = self.slots[last].and_then(|slot| arena.gradients[slot].as_mut()) {
            buffer.store(&self.places[last], &arena.flow, false);
        }
        gradient.par_chunks_mut(1 << 16).for_each(|part| part.fill(0.0));
        for index in (0..self.steps.len()).rev() {
            let start = Instant::now();
            self.flow_back(index, arena, parameters, mode, gradient);
            if let Some(profile) = &mut arena.profile {
                profile.note(index, Part::Backward, start.elapsed());
            }
        }
    }

    /// Updates the running statistics with those of the last batch; does nothing after an evaluation.
    pub fn track(&self, arena: &Arena, statistics: &mut [f32]) -> Result<(), Error> {
        expect_len("the statistics", statistics.len(), self.graph.statistics().len())?;
        if !arena.trained {
            return Ok(());
        }
        for (step, scratch) in self.steps.iter().zip(&arena.scratch) {
            if let Op::BatchNorm { mean, variance, .. } = &step.op {
                let [mean, variance] = pair(self.graph.statistics(), statistics, *mean, Some(*variance));
                let count = self.batch * self.planes(step.inputs[0]).shape.area();
                batch_norm::track(count, (&scratch.mean, &scratch.variance), mean, variance);
            }
        }
        Ok(())
    }

    pub(super) fn parameter<'v>(&self, parameters: &'v [f32], id: TensorId) -> &'v [f32] {
        &parameters[self.graph.parameters().spans()[id.0].range()]
    }
}

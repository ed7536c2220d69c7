//! Losses and products on the CPU.
//!
//! The results of the passes at the parameters are kept for as many batches as the memory allows, and computed again for the
//! others: a product costs about two gradients with them, three without, and gives the same bits.

use crate::engine::{Passes, Products};
use crate::{Error, Examples, LossAndError};
use grawa_nn::{Arena, Curvature, Graph, Mode, Point, Program, State, Tangents};

/// Losses and gradients.
#[derive(Debug)]
pub(crate) struct CpuPasses<'a> {
    program: Program,
    arena: Arena,
    examples: &'a Examples,
    mode: Mode,
    part: Vec<f32>,
}

impl<'a> CpuPasses<'a> {
    pub(crate) fn new(
        graph: &Graph,
        examples: &'a Examples,
        mode: Mode,
        threads: usize,
    ) -> Result<Self, Error> {
        let program = Program::compile(graph, examples.batch())?;
        let arena = Arena::new(&program, threads)?;
        let part = vec![0.0; graph.parameters().len()];
        Ok(CpuPasses { program, arena, examples, mode, part })
    }
}

impl Passes for CpuPasses<'_> {
    fn at(&mut self, (parameters, statistics): (&[f32], &[f32])) -> Result<LossAndError, Error> {
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

    fn gradient(&mut self, model: (&[f32], &[f32]), gradient: &mut [f32]) -> Result<f64, Error> {
        gradient.fill(0.0);
        let (share, mut loss) = (1.0 / self.examples.len() as f64, 0.0);
        for batch in self.examples.batches() {
            loss += share
                * self.program.gradient(&mut self.arena, model, batch, self.mode, share, &mut self.part)?;
            gradient.iter_mut().zip(&self.part).for_each(|(sum, part)| *sum += part);
        }
        Ok(loss)
    }
}

/// Products with the Hessian.
#[derive(Debug)]
pub(crate) struct CpuProducts<'a> {
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
}

impl<'a> CpuProducts<'a> {
    /// Keeps batches in at most `memory` bytes. It needs at least the memory of two batches' passes.
    pub(crate) fn new(
        graph: &Graph,
        state: &'a State,
        examples: &'a Examples,
        mode: Mode,
        threads: usize,
        memory: usize,
    ) -> Result<Self, Error> {
        let curvature = Curvature::compile(graph, examples.batch())?;
        let tangents = curvature.tangents(threads)?;
        let len = state.parameters.len();
        let mut points = vec![curvature.point(&tangents)];
        let room = memory.saturating_sub(tangents.bytes() + 3 * 4 * len) / points[0].bytes().max(1);
        let batches = examples.batches().count();
        // Unless all fit, one arena is for the other batches.
        let count = if room >= batches { batches } else { room.max(1) };
        points.extend((1..count).map(|_| curvature.point(&tangents)));
        let passing = if count < batches { points.pop() } else { None };
        let part = vec![0.0; len];
        Ok(CpuProducts { curvature, tangents, state, examples, mode, kept: points, passing, part })
    }

    fn model(&self) -> (&'a [f32], &'a [f32]) {
        let state: &'a State = self.state;
        (&state.parameters, &state.statistics)
    }

    /// Batch norm's mode, and the share of an example in the mean.
    fn mode(&self) -> (Mode, f64) {
        (self.mode, 1.0 / self.examples.len() as f64)
    }
}

impl Products for CpuProducts<'_> {
    fn visit(&mut self, gradient: &mut [f32]) -> Result<f64, Error> {
        let (model, mode) = (self.model(), self.mode());
        let mut sum = 0.0;
        for (number, batch) in self.examples.batches().enumerate() {
            let point = self.kept.get_mut(number).or(self.passing.as_mut());
            let Some(point) = point else { continue };
            let loss = self.curvature.visit(point, &mut self.tangents, model, batch, mode, &mut self.part)?;
            sum += mode.1 * loss;
            gradient.iter_mut().zip(&self.part).for_each(|(sum, part)| *sum += part);
        }
        Ok(sum)
    }

    fn apply(&mut self, v: &[f32], out: &mut [f32]) -> Result<(), Error> {
        let (model, mode) = (self.model(), self.mode());
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

    fn kept(&self) -> usize {
        self.kept.len()
    }

    fn bytes(&self) -> usize {
        let points: usize = self.kept.iter().chain(&self.passing).map(Point::bytes).sum();
        points + self.tangents.bytes() + 4 * self.part.len()
    }
}

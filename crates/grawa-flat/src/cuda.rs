//! Losses and products on a GPU: all batches at once, or as many as fit.

use crate::engine::{Passes, Products};
use crate::{Error, Examples, LossAndError};
use grawa_nn::cuda::{Curvature, Device, devices};
use grawa_nn::{Graph, Mode, State};

/// A network on a GPU. With a state, the Hessian there.
#[derive(Debug)]
pub(crate) struct Gpu<'a> {
    curvature: Curvature,
    batches: Vec<(&'a [f32], &'a [u32])>,
    examples: usize,
    mode: Mode,
    part: Vec<f32>,
}

impl<'a> Gpu<'a> {
    pub(crate) fn new(
        graph: &Graph,
        examples: &'a Examples,
        mode: Mode,
        state: Option<&State>,
    ) -> Result<Self, Error> {
        let why = "there is none of compute capability 8.0 or newer; see `grawa doctor`".into();
        let missing = grawa_nn::Error::Device { action: "use a GPU".into(), why };
        let device = devices()?.into_iter().find(Device::is_usable).ok_or(missing)?;
        let batches: Vec<_> = examples.batches().collect();
        let mut curvature = Curvature::new(&device, graph, examples.batch(), batches.len())?;
        if let Some(state) = state {
            curvature.load(&state.parameters, &state.statistics)?;
        }
        let part = vec![0.0; graph.parameters().len()];
        Ok(Gpu { curvature, batches, examples: examples.len(), mode, part })
    }

    fn all_fit(&self) -> bool {
        self.curvature.at_once() >= self.batches.len()
    }

    /// Visits the batches, as many at once as fit. Calls `each` after every visit, and adds up what it leaves in the vector,
    /// which holds the gradient before.
    fn visit_all(
        &mut self,
        sum: &mut [f32],
        mut each: impl FnMut(&mut Curvature, &mut [f32]) -> Result<(), Error>,
    ) -> Result<f64, Error> {
        let (share, mut loss) = (1.0 / self.examples as f64, 0.0);
        sum.fill(0.0);
        for batches in self.batches.chunks(self.curvature.at_once()) {
            loss += share * self.curvature.visit(batches, (self.mode, share), &mut self.part)?;
            each(&mut self.curvature, &mut self.part)?;
            sum.iter_mut().zip(&self.part).for_each(|(sum, part)| *sum += part);
        }
        Ok(loss)
    }
}

impl Passes for Gpu<'_> {
    fn at(&mut self, (parameters, statistics): (&[f32], &[f32])) -> Result<LossAndError, Error> {
        self.curvature.load(parameters, statistics)?;
        let (mut loss, mut right) = (0.0, 0);
        for batches in self.batches.chunks(self.curvature.at_once()) {
            for outcome in self.curvature.evaluate(batches, self.mode)? {
                loss += outcome.loss;
                right += outcome.correct as usize;
            }
        }
        let count = self.examples as f64;
        Ok(LossAndError { loss: loss / count, error: (self.examples - right) as f64 / count })
    }

    fn gradient(
        &mut self,
        (parameters, statistics): (&[f32], &[f32]),
        gradient: &mut [f32],
    ) -> Result<f64, Error> {
        self.curvature.load(parameters, statistics)?;
        self.visit_all(gradient, |_, _| Ok(()))
    }
}

impl Products for Gpu<'_> {
    fn visit(&mut self, gradient: &mut [f32]) -> Result<f64, Error> {
        self.visit_all(gradient, |_, _| Ok(()))
    }

    fn apply(&mut self, v: &[f32], out: &mut [f32]) -> Result<(), Error> {
        if self.all_fit() {
            return Ok(self.curvature.product(v, out)?);
        }
        self.visit_all(out, |curvature, part| Ok(curvature.product(v, part)?)).map(|_| ())
    }

    fn kept(&self) -> usize {
        if self.all_fit() { self.batches.len() } else { 0 }
    }

    fn bytes(&self) -> usize {
        self.curvature.bytes() + 4 * self.part.len()
    }
}

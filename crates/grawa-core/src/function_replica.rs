//! A replica of a plain function: for toy problems, for tests, and as the simplest example of a replica.

use crate::error::expect_len;
use crate::norm::norms;
use crate::step::ascend;
use crate::{Error, Key, Layout, Moments, Optimizer, Prox, Replica, StateKind};
use std::fmt;

/// A function of a flat vector, with the state of a worker.
///
/// The function receives the parameters and the key, writes its gradient, and returns its value.
///
/// ```
/// use grawa_core::{Key, Layout, FunctionReplica, Purpose, Replica, Sgd};
/// let bowl = |x: &[f32], _: Key, gradient: &mut [f32]| {
///     gradient.copy_from_slice(x);
///     x.iter().map(|&x| f64::from(x * x) / 2.0).sum()
/// };
/// let mut replica = FunctionReplica::new(Layout::flat(2), vec![1.0, -2.0], bowl)?;
/// assert_eq!(replica.gradient(Key::new(0, Purpose::Step))?, 2.5);
/// replica.descend(&Sgd::PLAIN.into(), 0.5, &[])?;
/// assert_eq!(replica.parameters(), [0.5, -1.0]);
/// # Ok::<(), grawa_core::Error>(())
/// ```
pub struct FunctionReplica<F> {
    layout: Layout,
    function: F,
    bound: Option<fn(&mut [f32])>,
    parameters: Vec<f32>,
    moments: Moments,
    gradient: Vec<f32>,
    saved: Vec<f32>,
}

impl<F: FnMut(&[f32], Key, &mut [f32]) -> f64> FunctionReplica<F> {
    /// A replica that starts at `start`.
    pub fn new(layout: Layout, start: Vec<f32>, function: F) -> Result<Self, Error> {
        expect_len("the start", start.len(), layout.len())?;
        let zeros = || vec![0.0; start.len()];
        let (moments, gradient, saved) = (Moments::new(start.len()), zeros(), zeros());
        Ok(FunctionReplica { layout, function, bound: None, parameters: start, moments, gradient, saved })
    }

    /// The same replica, with every step brought back into a domain by `bound`.
    pub fn bounded(self, bound: fn(&mut [f32])) -> Self {
        FunctionReplica { bound: Some(bound), ..self }
    }
}

impl<F: FnMut(&[f32], Key, &mut [f32]) -> f64> Replica for FunctionReplica<F> {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn gradient(&mut self, key: Key) -> Result<f64, Error> {
        Ok((self.function)(&self.parameters, key, &mut self.gradient))
    }

    fn descend(&mut self, optimizer: &Optimizer, rate: f32, prox: &[Prox<'_>]) -> Result<bool, Error> {
        let finite = self.moments.descend(optimizer, rate, &mut self.parameters, &self.gradient, prox)?;
        if let Some(bound) = self.bound {
            bound(&mut self.parameters);
        }
        Ok(finite)
    }

    fn ascend(&mut self, radius: f32) -> Result<(), Error> {
        ascend(radius, &mut self.parameters, &mut self.saved, &self.gradient)
    }

    fn restore(&mut self) -> Result<(), Error> {
        self.parameters.copy_from_slice(&self.saved);
        Ok(())
    }

    fn norms(&mut self, out: &mut [f64]) -> Result<(), Error> {
        norms(&self.layout, &self.gradient, out)
    }

    fn score(&mut self, key: Key, _dropout: bool, out: &mut [f64]) -> Result<(), Error> {
        self.gradient(key)?;
        self.norms(out)
    }

    fn reset(&mut self) {
        self.moments.reset();
    }

    fn parameters(&mut self) -> &mut [f32] {
        &mut self.parameters
    }

    fn gradients(&mut self) -> &mut [f32] {
        &mut self.gradient
    }

    fn copy(&mut self, what: StateKind) -> Result<Vec<f32>, Error> {
        Ok(match what {
            StateKind::Parameters => self.parameters.clone(),
            what => self.moments.copy(what),
        })
    }

    fn put(&mut self, what: StateKind, values: &[f32]) -> Result<(), Error> {
        match what {
            StateKind::Parameters => what.fill(&mut self.parameters, values),
            what => self.moments.put(what, values),
        }
    }
}

impl<F> fmt::Debug for FunctionReplica<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FunctionReplica")
            .field("layout", &self.layout)
            .field("parameters", &self.parameters)
            .finish_non_exhaustive()
    }
}

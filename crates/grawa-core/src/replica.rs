//! The interface between the methods and the trained model.

use crate::error::expect_len;
use crate::{Error, Key, Layout, Optimizer, Prox};

/// The parts of a replica's state that a checkpoint keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateKind {
    /// The parameters.
    Parameters,
    /// The momentum, or AdamW's first moment.
    Velocity,
    /// AdamW's second moment, and its number of steps as the last number; empty before its first step, and with SGD.
    SecondMoment,
    /// The running statistics of batch norm; empty if there are none.
    Statistics,
}

impl StateKind {
    /// Copies kept values into the replica.
    pub fn fill(self, to: &mut [f32], values: &[f32]) -> Result<(), Error> {
        let what = match self {
            StateKind::Parameters => "the restored parameters",
            StateKind::Velocity => "the restored velocity",
            StateKind::SecondMoment => "the restored second moment",
            StateKind::Statistics => "the restored statistics",
        };
        expect_len(what, values.len(), to.len())?;
        to.copy_from_slice(values);
        Ok(())
    }
}

/// A request for local steps in sequence.
#[derive(Debug)]
pub struct StepRequest<'a> {
    /// The key of the first step; the others follow.
    pub key: Key,
    /// The learning rate of each.
    pub rates: &'a [f32],
    /// The settings that are the same for all steps.
    pub optimizer: &'a Optimizer,
    /// SAM's radius, if the optimiser is SAM.
    pub radius: Option<f32>,
    /// The light pulls after each step.
    pub prox: &'a [Prox<'a>],
    /// Whether to return the norms of each gradient.
    pub norms: bool,
}

/// The results of local steps, step by step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepResults {
    /// The loss of each step's batch.
    pub losses: Vec<f64>,
    /// Whether the parameters were finite after it.
    pub finite: Vec<bool>,
    /// The norms of its gradient, span by span, if requested.
    pub norms: Vec<f64>,
}

/// One worker's copy of a model: a function with parameters, a gradient, and an optimiser state.
///
/// It loads its own batch by the [`Key`], so that a plain function needs none.
pub trait Replica {
    /// The names and places of the parameters.
    fn layout(&self) -> &Layout;

    /// Computes the gradient of the mean loss on the batch of `key` at the current parameters, and returns
    /// that loss.
    fn gradient(&mut self, key: Key) -> Result<f64, Error>;

    /// Takes a step of the optimizer with the last gradient, then the light pulls to the last centres. Returns whether
    /// the parameters are finite afterwards.
    fn descend(&mut self, optimizer: &Optimizer, rate: f32, prox: &[Prox<'_>]) -> Result<bool, Error>;

    /// Takes local steps and returns their results.
    fn steps(&mut self, request: &StepRequest<'_>) -> Result<StepResults, Error> {
        let mut results = StepResults::default();
        let (_, first) = request.key.place();
        for (&rate, step) in request.rates.iter().zip(first..) {
            let key = request.key.step(step);
            results.losses.push(self.gradient(key)?);
            if let Some(radius) = request.radius {
                self.ascend(radius)?;
                self.gradient(key)?;
                self.restore()?;
            }
            if request.norms {
                let start = results.norms.len();
                results.norms.resize(start + self.layout().spans().len(), 0.0);
                self.norms(&mut results.norms[start..])?;
            }
            results.finite.push(self.descend(request.optimizer, rate, request.prox)?);
        }
        Ok(results)
    }

    /// Saves the parameters and moves them by `radius` along the last gradient (SAM).
    fn ascend(&mut self, radius: f32) -> Result<(), Error>;

    /// Puts the saved parameters back.
    fn restore(&mut self) -> Result<(), Error>;

    /// The norm of the last gradient, span by span.
    fn norms(&mut self, out: &mut [f64]) -> Result<(), Error>;

    /// The norm of the summed gradient on the score batch of `key`, span by span. Does not change the
    /// training state, except the last gradient.
    fn score(&mut self, key: Key, dropout: bool, out: &mut [f64]) -> Result<(), Error>;

    /// Reads another shard of the examples from now on: number `shard` of `of`. Replicas without data ignore it.
    fn assign_shard(&mut self, shard: u32, of: u32) -> Result<(), Error> {
        let _ = (shard, of);
        Ok(())
    }

    /// Forgets the state of the optimizer: the parameters were replaced.
    fn reset(&mut self);

    /// The parameters.
    fn parameters(&mut self) -> &mut [f32];

    /// The last gradient. Where gradients are not shared it need not outlive [`Replica::descend`].
    fn gradients(&mut self) -> &mut [f32];

    /// A copy of a part of the state, wherever it is stored.
    fn copy(&mut self, what: StateKind) -> Result<Vec<f32>, Error>;

    /// Restores a part of the state.
    fn put(&mut self, what: StateKind, values: &[f32]) -> Result<(), Error>;
}

//! The seam between the methods and whatever is being trained.

use crate::{Error, Key, Layout, Prox, Sgd};

/// One worker's copy of a model: a function with parameters, a gradient, and an optimiser state.
///
/// It fetches its own batch from the [`Key`], so that a plain function needs none and a GPU never brings one
/// to the host. Its vectors are handed out as `Buffer`, which only a `mix` made for it can open: `[f32]` for
/// the plain one.
pub trait Replica {
    /// What holds a flat vector.
    type Buffer: ?Sized;

    /// The names and places of the parameters.
    fn layout(&self) -> &Layout;

    /// Computes the gradient of the mean loss on the batch of `key` at the current parameters, and returns
    /// that loss.
    fn gradient(&mut self, key: Key) -> Result<f64, Error>;

    /// Takes a step of SGD with the last gradient, then the light pulls to the last centres. Returns whether
    /// the parameters are finite afterwards.
    fn descend(&mut self, sgd: &Sgd, rate: f32, prox: &[Prox<'_>]) -> Result<bool, Error>;

    /// Saves the parameters and moves them by `radius` along the last gradient (SAM).
    fn ascend(&mut self, radius: f32) -> Result<(), Error>;

    /// Puts the saved parameters back.
    fn restore(&mut self) -> Result<(), Error>;

    /// The norm of the last gradient, span by span.
    fn norms(&mut self, out: &mut [f64]) -> Result<(), Error>;

    /// The norm of the summed gradient on the score batch of `key`, span by span. Changes nothing that
    /// training can see, the last gradient excepted.
    fn score(&mut self, key: Key, dropout: bool, out: &mut [f64]) -> Result<(), Error>;

    /// Forgets the momentum: the parameters were replaced.
    fn reset(&mut self);

    /// The parameters.
    fn parameters(&mut self) -> &mut Self::Buffer;

    /// The last gradient. Where gradients are not shared it need not outlive [`Replica::descend`].
    fn gradients(&mut self) -> &mut Self::Buffer;

    /// The momentum: with the parameters and the statistics all that a replica must keep to go on later.
    fn velocity(&mut self) -> &mut Self::Buffer;

    /// What was learnt beside the parameters: the running statistics of batch norm. Empty where there are none.
    fn statistics(&mut self) -> &mut Self::Buffer;
}

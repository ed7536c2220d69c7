//! The seam between the methods and whatever is being trained.

use crate::{Error, Key, Layout, Prox, Sgd};

/// What a replica must keep to go on later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The parameters.
    Parameters,
    /// The momentum.
    Velocity,
    /// What was learnt beside the parameters: the running statistics of batch norm. Empty where there are none.
    Statistics,
}

impl Kept {
    /// Copies kept values to where they belong.
    pub fn fill(self, to: &mut [f32], values: &[f32]) -> Result<(), Error> {
        if to.len() != values.len() {
            let what = match self {
                Kept::Parameters => "the kept parameters",
                Kept::Velocity => "the kept velocity",
                Kept::Statistics => "the kept statistics",
            };
            return Err(Error::WrongLength { what: what.into(), found: values.len(), expected: to.len() });
        }
        to.copy_from_slice(values);
        Ok(())
    }
}

/// Local steps to be taken one after the other.
#[derive(Debug)]
pub struct Stretch<'a, B: ?Sized> {
    /// The place of the first step; the others follow.
    pub key: Key,
    /// The learning rate of each.
    pub rates: &'a [f32],
    /// What does not change from step to step.
    pub sgd: &'a Sgd,
    /// How far SAM looks around, where it does.
    pub radius: Option<f32>,
    /// The light pulls after each step.
    pub prox: &'a [Prox<'a, B>],
    /// Whether the norms of each gradient are asked for.
    pub norms: bool,
}

/// What local steps came to, step after step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Taken {
    /// The loss of each step's batch.
    pub losses: Vec<f64>,
    /// Whether the parameters were finite after it.
    pub finite: Vec<bool>,
    /// The norms of its gradient, span by span, where they were asked for.
    pub norms: Vec<f64>,
}

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
    fn descend(&mut self, sgd: &Sgd, rate: f32, prox: &[Prox<'_, Self::Buffer>]) -> Result<bool, Error>;

    /// How many local steps it likes to take at a time: more than one where a device would else wait for its host.
    fn stride(&self) -> usize {
        1
    }

    /// Takes local steps by itself and says what they came to. A replica that works together with others on one device
    /// may take fewer: as many as the one that was asked for fewest.
    fn steps(&mut self, stretch: &Stretch<'_, Self::Buffer>) -> Result<Taken, Error> {
        let mut taken = Taken::default();
        let (_, first) = stretch.key.place();
        for (&rate, step) in stretch.rates.iter().zip(first..) {
            let key = stretch.key.step(step);
            taken.losses.push(self.gradient(key)?);
            if let Some(radius) = stretch.radius {
                self.ascend(radius)?;
                self.gradient(key)?;
                self.restore()?;
            }
            if stretch.norms {
                let start = taken.norms.len();
                taken.norms.resize(start + self.layout().spans().len(), 0.0);
                self.norms(&mut taken.norms[start..])?;
            }
            taken.finite.push(self.descend(stretch.sgd, rate, stretch.prox)?);
        }
        Ok(taken)
    }

    /// Saves the parameters and moves them by `radius` along the last gradient (SAM).
    fn ascend(&mut self, radius: f32) -> Result<(), Error>;

    /// Puts the saved parameters back.
    fn restore(&mut self) -> Result<(), Error>;

    /// The norm of the last gradient, span by span.
    fn norms(&mut self, out: &mut [f64]) -> Result<(), Error>;

    /// The norm of the summed gradient on the score batch of `key`, span by span. Changes nothing that
    /// training can see, the last gradient excepted.
    fn score(&mut self, key: Key, dropout: bool, out: &mut [f64]) -> Result<(), Error>;

    /// From now on it is dealt the data of the worker at `seat` of `of`. Who needs no data need not know.
    fn deal(&mut self, seat: u32, of: u32) -> Result<(), Error> {
        let _ = (seat, of);
        Ok(())
    }

    /// Forgets the momentum: the parameters were replaced.
    fn reset(&mut self);

    /// The parameters.
    fn parameters(&mut self) -> &mut Self::Buffer;

    /// The last gradient. Where gradients are not shared it need not outlive [`Replica::descend`].
    fn gradients(&mut self) -> &mut Self::Buffer;

    /// A copy of what must be kept, wherever it lies.
    fn copy(&mut self, what: Kept) -> Result<Vec<f32>, Error>;

    /// Puts back what was kept.
    fn put(&mut self, what: Kept, values: &[f32]) -> Result<(), Error>;
}

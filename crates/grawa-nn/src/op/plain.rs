//! Operations that have only their plain form: every backend runs them through this table, slowly, without kernels.
//!
//! A new operation starts here. Once it has kernels in all backends it becomes a variant of [`Op`](crate::Op).

use super::group_norm;
use crate::Shape;
use crate::scalar::Scalar;

/// An operation that has only its plain form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plain {
    /// Group normalisation, with a scale and a shift for each channel.
    GroupNorm {
        /// Groups of channels.
        groups: usize,
    },
}

/// What an operation reads, or the gradients of it: batches in plain order, example by example, and tensors.
#[derive(Debug)]
pub(crate) struct Operands<T> {
    /// The inputs, with the shape of one example.
    pub(crate) inputs: Vec<(Shape, Vec<T>)>,
    /// The tensors that the operation learns.
    pub(crate) tensors: Vec<Vec<T>>,
}

impl Plain {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Plain::GroupNorm { .. } => "group norm",
        }
    }

    /// The result of a batch, which has `length` numbers.
    pub(crate) fn forward<T: Scalar>(self, operands: &Operands<T>, length: usize) -> Vec<T> {
        let mut y = vec![T::zero(); length];
        match self {
            Plain::GroupNorm { groups } => group_norm::forward(groups, operands, &mut y),
        }
        y
    }

    /// The gradients, given that of the result.
    pub(crate) fn backward<T: Scalar>(self, operands: &Operands<T>, dy: &[T]) -> Operands<T> {
        let zeros = |x: &Vec<T>| vec![T::zero(); x.len()];
        let mut gradients = Operands {
            inputs: operands.inputs.iter().map(|(shape, x)| (*shape, zeros(x))).collect(),
            tensors: operands.tensors.iter().map(zeros).collect(),
        };
        match self {
            Plain::GroupNorm { groups } => group_norm::backward(groups, operands, dy, &mut gradients),
        }
        gradients
    }
}

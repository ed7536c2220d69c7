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

/// What an operation reads: batches in plain order, example by example, and tensors.
#[derive(Debug)]
pub(crate) struct Operands<'a, T> {
    /// The inputs, with the shape of one example.
    pub(crate) inputs: Vec<(Shape, &'a [T])>,
    /// The tensors that the operation learns.
    pub(crate) tensors: Vec<&'a [T]>,
}

/// The gradients of all that an operation reads.
#[derive(Debug)]
pub(crate) struct Gradients<T> {
    pub(crate) inputs: Vec<Vec<T>>,
    pub(crate) tensors: Vec<Vec<T>>,
}

impl Plain {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Plain::GroupNorm { .. } => "group norm",
        }
    }

    /// Computes the result of a batch.
    pub(crate) fn forward<T: Scalar>(self, operands: &Operands<'_, T>, y: &mut [T]) {
        match self {
            Plain::GroupNorm { groups } => group_norm::forward(groups, operands, y),
        }
    }

    /// The gradients, given that of the result.
    pub(crate) fn backward<T: Scalar>(self, operands: &Operands<'_, T>, dy: &[T]) -> Gradients<T> {
        let mut gradients = Gradients {
            inputs: operands.inputs.iter().map(|(_, x)| vec![T::zero(); x.len()]).collect(),
            tensors: operands.tensors.iter().map(|tensor| vec![T::zero(); tensor.len()]).collect(),
        };
        match self {
            Plain::GroupNorm { groups } => group_norm::backward(groups, operands, dy, &mut gradients),
        }
        gradients
    }
}

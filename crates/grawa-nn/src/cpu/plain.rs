//! Steps without kernels: an operation in its plain form, on unpacked batches.
//!
//! Tangents are those of dual numbers, so a plain operation needs no tangent of its own.

use super::arena::Buffer;
use super::program::Program;
use crate::op::plain::{Gradients, Operands, Plain};
use crate::plan::Step;
use crate::{Dual, Scalar, TensorId};

/// What a plain operation reads, in plain order: its inputs and its tensors.
pub(super) struct PlainInputs<T> {
    inputs: Vec<Vec<T>>,
    tensors: Vec<Vec<T>>,
}

impl PlainInputs<f32> {
    /// Adds tangents to values.
    pub(super) fn with_tangents(self, tangents: PlainInputs<f32>) -> PlainInputs<Dual<f32>> {
        let pair = |(values, tangents): (Vec<f32>, Vec<f32>)| duals(&values, &tangents);
        PlainInputs {
            inputs: self.inputs.into_iter().zip(tangents.inputs).map(pair).collect(),
            tensors: self.tensors.into_iter().zip(tangents.tensors).map(pair).collect(),
        }
    }
}

/// Values with their tangents.
pub(super) fn duals(values: &[f32], tangents: &[f32]) -> Vec<Dual<f32>> {
    values.iter().zip(tangents).map(|(&value, &tangent)| Dual { value, tangent }).collect()
}

/// The tangents of gradients.
pub(super) fn tangents(gradients: Gradients<Dual<f32>>) -> Gradients<f32> {
    let tangents = |duals: Vec<Dual<f32>>| duals.into_iter().map(|dual| dual.tangent).collect();
    let Gradients { inputs, tensors } = gradients;
    Gradients {
        inputs: inputs.into_iter().map(tangents).collect(),
        tensors: tensors.into_iter().map(tangents).collect(),
    }
}

impl Program {
    /// What a plain operation reads from these results and this vector of parameters.
    pub(super) fn plain_inputs(
        &self,
        step: &Step,
        tensors: &[TensorId],
        values: &[Option<Buffer>],
        parameters: &[f32],
    ) -> PlainInputs<f32> {
        let value = |&node: &usize| match &values[node] {
            Some(buffer) => buffer.to_plain(&self.places[node]),
            None => Vec::new(),
        };
        let tensor = |&id: &TensorId| self.parameter(parameters, id).to_vec();
        PlainInputs {
            inputs: step.inputs.iter().map(value).collect(),
            tensors: tensors.iter().map(tensor).collect(),
        }
    }

    fn operands<'a, T>(&self, step: &Step, from: &'a PlainInputs<T>) -> Operands<'a, T> {
        let shapes = step.inputs.iter().map(|&node| self.graph.nodes()[node].shape);
        Operands {
            inputs: shapes.zip(&from.inputs).map(|(shape, x)| (shape, x.as_slice())).collect(),
            tensors: from.tensors.iter().map(Vec::as_slice).collect(),
        }
    }

    /// The result of a plain operation in plain order.
    pub(super) fn plain_forward<T: Scalar>(
        &self,
        step: &Step,
        plain: Plain,
        from: &PlainInputs<T>,
    ) -> Vec<T> {
        let mut y = vec![T::zero(); self.batch * self.graph.nodes()[step.output].shape.len()];
        plain.forward(&self.operands(step, from), &mut y);
        y
    }

    /// The gradients of a plain operation, given that of its result in plain order.
    pub(super) fn plain_backward<T: Scalar>(
        &self,
        step: &Step,
        plain: Plain,
        from: &PlainInputs<T>,
        dy: &[T],
    ) -> Gradients<T> {
        plain.backward(&self.operands(step, from), dy)
    }

    /// Adds the gradients of a plain operation to the buffers of its inputs and to the gradient of its tensors.
    pub(super) fn store_plain(
        &self,
        step: &Step,
        tensors: &[TensorId],
        found: Gradients<f32>,
        buffers: &mut [Option<Buffer>],
        gradient: &mut [f32],
    ) {
        for (input, dx) in found.inputs.iter().enumerate() {
            if let Some((slot, mut buffer, add)) = self.flow(buffers, step, input) {
                buffer.store(&self.places[step.inputs[input]], dx, add);
                buffers[slot] = Some(buffer);
            }
        }
        for (id, found) in tensors.iter().zip(found.tensors) {
            let into = &mut gradient[self.graph.parameters().spans()[id.0].range()];
            into.iter_mut().zip(found).for_each(|(into, found)| *into += found);
        }
    }
}

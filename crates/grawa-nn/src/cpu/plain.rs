//! Steps without kernels: an operation in its plain form, on unpacked batches.
//!
//! Tangents are those of dual numbers, so a plain operation needs no tangent of its own.

use super::arena::Buffer;
use super::program::Program;
use crate::op::plain::Operands;
use crate::plan::Step;
use crate::{Dual, TensorId};

impl Operands<f32> {
    /// Adds tangents to values.
    pub(super) fn with_tangents(self, tangents: Operands<f32>) -> Operands<Dual<f32>> {
        let inputs = self.inputs.into_iter().zip(tangents.inputs);
        let tensors = self.tensors.into_iter().zip(tangents.tensors);
        Operands {
            inputs: inputs.map(|((shape, x), (_, change))| (shape, duals(&x, &change))).collect(),
            tensors: tensors.map(|(x, change)| duals(&x, &change)).collect(),
        }
    }
}

/// Values with their tangents.
pub(super) fn duals(values: &[f32], tangents: &[f32]) -> Vec<Dual<f32>> {
    values.iter().zip(tangents).map(|(&value, &tangent)| Dual { value, tangent }).collect()
}

impl Operands<Dual<f32>> {
    /// The tangents alone.
    pub(super) fn tangents(self) -> Operands<f32> {
        let tangents = |duals: Vec<Dual<f32>>| duals.into_iter().map(|dual| dual.tangent).collect();
        Operands {
            inputs: self.inputs.into_iter().map(|(shape, dx)| (shape, tangents(dx))).collect(),
            tensors: self.tensors.into_iter().map(tangents).collect(),
        }
    }
}

impl Program {
    /// What a plain operation reads from these results and this vector of parameters.
    pub(super) fn operands(
        &self,
        step: &Step,
        tensors: &[TensorId],
        values: &[Option<Buffer>],
        parameters: &[f32],
    ) -> Operands<f32> {
        let value = |&node: &usize| {
            let x = values[node].as_ref().map_or_else(Vec::new, |buffer| buffer.to_plain(&self.places[node]));
            (self.graph.nodes()[node].shape, x)
        };
        let tensor = |&id: &TensorId| self.parameter(parameters, id).to_vec();
        Operands {
            inputs: step.inputs.iter().map(value).collect(),
            tensors: tensors.iter().map(tensor).collect(),
        }
    }

    /// Numbers in the result of a step.
    pub(super) fn result_length(&self, step: &Step) -> usize {
        self.batch * self.graph.nodes()[step.output].shape.len()
    }

    /// Adds the gradients of a plain operation to the buffers of its inputs and to the gradient of its tensors.
    pub(super) fn store_plain(
        &self,
        step: &Step,
        tensors: &[TensorId],
        found: Operands<f32>,
        buffers: &mut [Option<Buffer>],
        gradient: &mut [f32],
    ) {
        for (input, (_, dx)) in found.inputs.iter().enumerate() {
            self.flow(buffers, step, input, |buffer, place, add| buffer.store(place, dx, add));
        }
        for (id, found) in tensors.iter().zip(found.tensors) {
            let into = &mut gradient[self.graph.parameters().spans()[id.0].range()];
            into.iter_mut().zip(found).for_each(|(into, found)| *into += found);
        }
    }
}

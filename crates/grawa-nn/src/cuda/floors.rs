//! The least that a kernel must do: the bytes that it must move, the arithmetic, and the time of both on this GPU.

use super::compile::Program;
use super::device::Device;
use crate::plan::Flow;
use crate::{Op, Precision};
use std::time::Duration;

/// One kernel of a profiled step, all its launches together.
#[derive(Clone, Debug)]
pub struct KernelTime {
    /// The kernel.
    pub name: String,
    /// Launches.
    pub calls: usize,
    /// Their time.
    pub time: Duration,
    /// The time that no kernel for the same work can beat: every byte moved once at the memory's rate, or all products at the
    /// arithmetic's rate, whichever takes longer. Zero for kernels that only prepare others.
    pub floor: Duration,
}

/// Where a launch belongs: a step, and whether it is the step's backward pass.
pub(super) type Place = Option<(usize, bool)>;

/// Bytes and floating-point operations of a launch for one replica.
pub(super) fn work(program: &Program, name: &str, place: Place) -> (usize, usize) {
    // The tangents of a product run between the steps of its passes.
    if name.contains("tangent") || name.contains("pair") {
        return (0, 0);
    }
    let parameters = program.graph.parameters().len();
    let Some((index, backward)) = place else {
        // Parameters and velocity are read and written, the gradient read, the rounded copy written.
        return (if name == "update" { parameters * (16 + 2 * program.wide) } else { 0 }, 0);
    };
    let step = &program.steps[index];
    let (bytes, out) = (|node: usize| program.bytes(node), program.bytes(step.output));
    let inputs: usize = step.inputs.iter().map(|&node| bytes(node)).sum();
    // Backward: the gradients that are written, and read before where they are added to.
    let flows: usize = (step.inputs.iter().zip(&step.flows))
        .map(|(&node, flow)| match flow {
            Flow::Nowhere | Flow::Shared => 0,
            Flow::Store => bytes(node),
            Flow::Add => 2 * bytes(node),
        })
        .sum();
    match (&step.op, backward) {
        (Op::Conv { .. } | Op::Linear { .. }, _) => {
            let geometry = &program.layers[program.part(step)].forward;
            let weights = geometry.o as usize * geometry.columns();
            let flops = 2 * geometry.pixels() * weights / geometry.cp as usize
                * program.layers[program.part(step)].channels;
            let moved = match () {
                _ if name == "channel_sums" || name == "add_bias" => return (out, 0),
                _ if name == "add_backward" => return (flows + bytes(step.inputs[0]), 0),
                _ if !backward => inputs + out + weights * program.wide,
                _ if name.starts_with("wgrad") || name.ends_with("(weights)") => {
                    inputs + out + weights * program.wide
                }
                _ => out + flows + weights * program.wide,
            };
            (moved, flops)
        }
        (Op::BatchNorm { .. }, _) => {
            let masked = if step.relu && step.inputs.len() > 1 && !program.is_joined(step) { out } else { 0 };
            let moved = match name {
                "norm_moments" => inputs,
                "norm_reduce" => out + bytes_of_first(program, index) + masked,
                "norm_backward" => out + bytes_of_first(program, index) + masked + flows,
                "norm_forward" | "norm_forward_moments" => inputs + out,
                _ => 0,
            };
            (moved, 0)
        }
        (_, false) => (inputs + out, 0),
        (_, true) => (out + flows, 0),
    }
}

/// Bytes of what a batch norm normalises: its first input, or all parts of a concatenation.
fn bytes_of_first(program: &Program, index: usize) -> usize {
    let step = &program.steps[index];
    match program.is_joined(step) {
        true => step.inputs.iter().map(|&node| program.bytes(node)).sum(),
        false => program.bytes(step.inputs[0]),
    }
}

/// Seconds that this GPU needs at least.
pub(super) fn seconds(device: &Device, precision: Precision, (bytes, flops): (usize, usize)) -> f64 {
    (bytes as f64 / device.bandwidth).max(flops as f64 / device.arithmetic(precision))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zoo::ZOO;

    /// The graph counts the same products in another way.
    #[test]
    fn the_layers_together_do_the_work_of_the_network() {
        for entry in ZOO {
            let graph = entry.build(entry.input, entry.classes).unwrap();
            let program = Program::new(&graph, 4, 2).unwrap();
            let layers = (0..program.steps.len()).map(|step| work(&program, "conv", Some((step, false))).1);
            assert_eq!(layers.sum::<usize>(), 4 * graph.flops() as usize, "{}", entry.name);
        }
    }

    /// A batch norm with a shortcut and a ReLU, backward: the gradient, the input and the result are read, two gradients written.
    #[test]
    fn a_batch_norm_moves_each_tensor_once() {
        let resnet = ZOO.iter().find(|entry| entry.name == "resnet20").unwrap();
        let program = Program::new(&resnet.build(resnet.input, resnet.classes).unwrap(), 1, 2).unwrap();
        let is_sum = |index: &usize| {
            matches!(program.steps[*index].op, Op::BatchNorm { .. })
                && program.steps[*index].inputs.len() == 2
        };
        let index = (0..program.steps.len()).find(is_sum).unwrap();
        let tensor = program.bytes(program.steps[index].output);
        assert_eq!(work(&program, "norm_forward", Some((index, false))), (3 * tensor, 0));
        assert_eq!(work(&program, "norm_reduce", Some((index, true))), (3 * tensor, 0));
        assert_eq!(work(&program, "norm_settle", Some((index, true))), (0, 0));
    }
}

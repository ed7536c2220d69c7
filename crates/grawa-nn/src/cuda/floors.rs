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
        // Parameters and moments are read and written, the gradient read, the rounded copy written.
        let moved = match name {
            "update" => parameters * (16 + 2 * program.wide),
            "adamw" => parameters * (24 + 2 * program.wide),
            _ => 0,
        };
        return (moved, 0);
    };
    let step = &program.steps[index];
    let (bytes, out) = (|node: usize| program.bytes(node), program.bytes(step.output));
    // A shortcut that is only padded is read, and its gradient written, as it was before.
    let flow = |input: usize| step.flows.get(input).copied().unwrap_or(Flow::Nowhere);
    let mut operands: Vec<(usize, Flow)> =
        step.inputs.iter().enumerate().map(|(input, &node)| (node, flow(input))).collect();
    if let Some((pad, _)) = program.padding(index) {
        operands[1] = (pad.inputs[0], pad.flows[0]);
    }
    let inputs: usize = operands.iter().map(|(node, _)| bytes(*node)).sum();
    // Backward: the gradients that are written, and read before where they are added to. cuDNN cannot add.
    let adds = if name.starts_with("cudnn") { 1 } else { 2 };
    let flow_bytes = |(node, flow): &(usize, Flow)| match flow {
        Flow::Nowhere | Flow::Shared => 0,
        Flow::Store => bytes(*node),
        Flow::Add => adds * bytes(*node),
    };
    let flows: usize = operands.iter().map(flow_bytes).sum();
    match (&step.op, backward) {
        (Op::Conv { .. } | Op::Linear { .. }, _) => {
            let layer = &program.layers[program.part(step)];
            let geometry = &layer.forward;
            let weights = geometry.o as usize * geometry.columns();
            let flops = 2 * geometry.pixels() * weights / geometry.cp as usize * layer.channels;
            let of_weights = name.starts_with("wgrad") || name.ends_with("(weights)");
            let moved = match name {
                "channel_sums" | "add_bias" => return (out, 0),
                "add_backward" => return (flows + inputs, 0),
                _ if !backward || of_weights => inputs + out + weights * program.wide,
                _ => out + flows + weights * program.wide,
            };
            (moved, flops)
        }
        (Op::BatchNorm { .. }, _) => {
            let is_joined = program.is_joined(step);
            // The bits that mask, and a gradient that is masked where it is.
            let norm = &program.norms[program.part(step)];
            let bits = if norm.positive != 0 { out / program.wide / 8 } else { 0 };
            let masks = if norm.masked_by_layer { 0 } else { bits };
            let in_place = if masks > 0 && flow(1) == Flow::Shared { out } else { 0 };
            // What it normalises, and the part of it whose moments are not known.
            let own = if is_joined { inputs } else { bytes(step.inputs[0]) };
            let unknown = program
                .known(index)
                .map_or(own, |(_, unknown)| own / program.shape(step.node).channels * unknown.len());
            let moved = match name {
                "norm_moments" => unknown,
                "norm_reduce" | "norm_pool_reduce" => out + own + masks,
                "norm_backward" | "norm_pool_backward" => out + own + masks + in_place + flows,
                "norm_forward" | "norm_forward_moments" | "norm_pool_forward" => inputs + out + bits,
                _ => 0,
            };
            (moved, 0)
        }
        // Two launches, one for each part.
        (Op::Concat, false) => ((inputs + out) / 2, 0),
        (Op::Concat, true) => ((out + flows) / 2, 0),
        (_, false) => (inputs + out, 0),
        (_, true) => (out + flows, 0),
    }
}

/// The time that this GPU needs at least; none if it does not tell its rates.
pub(super) fn time(device: &Device, precision: Precision, (bytes, flops): (usize, usize)) -> Duration {
    let seconds = (bytes as f64 / device.bandwidth).max(flops as f64 / device.arithmetic(precision));
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::compile::WorkspaceNeeds;
    use crate::zoo::ZOO;
    use crate::{Builder, Conv, Shape};

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

    /// A batch norm with a shortcut and a ReLU, backward: the gradient, the input and a bit for each result are read, two gradients
    /// written; if the layer behind it masks, the gradient of the shortcut is there.
    #[test]
    fn a_batch_norm_moves_each_tensor_once() {
        let resnet = ZOO.iter().find(|entry| entry.name == "resnet20").unwrap();
        let mut program = Program::new(&resnet.build(resnet.input, resnet.classes).unwrap(), 1, 2).unwrap();
        let is_sum = |index: &usize| {
            matches!(program.steps[*index].op, Op::BatchNorm { .. })
                && program.steps[*index].inputs.len() == 2
        };
        let index = (0..program.steps.len()).find(is_sum).unwrap();
        let tensor = program.bytes(program.steps[index].output);
        let bits = tensor / 16;
        for (masks, expected) in [
            (false, [3 * tensor + bits, 2 * tensor + bits, 4 * tensor + bits]),
            (true, [3 * tensor + bits, 2 * tensor, 3 * tensor]),
        ] {
            let need = WorkspaceNeeds { masks, ..WorkspaceNeeds::default() };
            program.allocate(&vec![need; program.layers.len()], 1);
            let names = ["norm_forward", "norm_reduce", "norm_backward"];
            assert_eq!(names.map(|name| work(&program, name, Some((index, true))).0), expected);
            assert_eq!(work(&program, "norm_settle", Some((index, true))), (0, 0));
        }
    }

    /// Of a concatenation only the part that is new is read for its moments; of a padded shortcut only what is there.
    #[test]
    fn what_is_not_read_does_not_count() {
        let mut net = Builder::new("joined", Shape::image(3, 4));
        let x = net.input();
        let a = net.conv(x, "a", Conv::same(16)).unwrap();
        let y = net.batch_norm(a, "b").unwrap();
        let y = net.conv(y, "c", Conv::same(8)).unwrap();
        let y = net.concat(a, y).unwrap();
        let y = net.batch_norm(y, "d").unwrap();
        let y = net.linear(y, "e", 2).unwrap();
        let joined = Program::new(&net.finish(y).unwrap(), 2, 2).unwrap();
        let index = (0..joined.steps.len()).find(|&index| joined.known(index).is_some()).unwrap();
        let new = joined.bytes(*joined.steps[index].inputs.last().unwrap());
        assert_eq!(work(&joined, "norm_moments", Some((index, false))), (new, 0));
        let entry = ZOO.iter().find(|entry| entry.name == "pyramidnet110").unwrap();
        let pyramid = Program::new(&entry.build(entry.input, entry.classes).unwrap(), 2, 2).unwrap();
        let index = (0..pyramid.steps.len()).find(|&index| pyramid.padding(index).is_some()).unwrap();
        let step = &pyramid.steps[index];
        let [input, padded] = [0, 1].map(|input| pyramid.bytes(step.inputs[input]));
        let (moved, _) = work(&pyramid, "norm_forward", Some((index, false)));
        assert!(
            moved < input + padded + pyramid.bytes(step.output) && moved > input + pyramid.bytes(step.output)
        );
    }
}

//! The tangents of the forward and the backward pass along a direction of the parameters: the kernels that each step launches.
//!
//! A slab of tangents has the layout of the slab of results: what a step reads or writes is at the same offset in both.
//! Operations that are linear given the results, as sums, copies and averages, run their own kernels on the slab of tangents.
//! All primal gradients are kept, so a buffer of tangents is never overwritten either.

use super::device::{Grid, arguments};
use super::kernel_choice::{KernelChoice, Machine, conv_f32, wgrad_f32};
use super::pass::{Pass, PassMode};
use crate::plan::{NO_STEP, Step};
use crate::{Error, Op};

/// The kernels of this file and of `curvature.rs`. They are loaded before a graph is recorded.
pub(super) const TANGENT_KERNELS: &str = "conv_pair_16 conv_pair_32 conv_pair_64 conv_pair_64_tall wgrad_pair_16 wgrad_pair_32 \
     wgrad_pair_64 norm_tangent_moments norm_tangent_settle norm_tangent_forward norm_tangent_reduce norm_tangent_settle_flow norm_tangent_backward \
     add_tangent max_tangent loss_tangent spread sum_replicas";

/// A pass over tangents.
pub(super) struct TangentPass<'a> {
    /// The slabs of results.
    pub(super) at: Pass<'a>,
    /// The slabs of tangents.
    pub(super) change: Pass<'a>,
    pub(super) pass_mode: PassMode,
}

impl TangentPass<'_> {
    /// Enqueues the tangents of a forward pass, of the gradient of the losses' sum times `factor`, and of a backward pass.
    /// They leave the product where `collect` finds the gradient of the slab of tangents.
    pub(super) fn enqueue(&self, factor: f32) -> Result<(), Error> {
        let program = &self.at.program;
        (0..program.steps.len()).try_for_each(|index| self.forward(index))?;
        self.loss(factor)?;
        let has_flow = |&index: &usize| program.slots[program.steps[index].output].is_some();
        (0..program.steps.len()).rev().filter(has_flow).try_for_each(|index| self.backward(index))?;
        if self.at.profile.is_none() {
            let last = &self.at.events[2 * program.layers.len()];
            self.at.side.mark(last)?;
            self.at.main.wait_for(last)?;
        }
        self.at.at_step(None);
        self.change.collect(self.pass_mode)
    }

    fn machine(&self) -> Machine {
        let device = &self.at.context.device;
        Machine { processors: device.processors, replicas: self.at.workers, shared: device.shared }
    }

    /// The address of a tangent; 0 for the images, which do not change.
    fn change_of(&self, node: usize) -> u64 {
        if node == 0 { 0 } else { self.change.value(node) }
    }

    fn forward(&self, index: usize) -> Result<(), Error> {
        let (at, change, program) = (&self.at, &self.change, &self.at.program);
        at.at_step(None);
        let step = &program.steps[index];
        let (main, slab) = (at.main, program.slab);
        let (input, output) = (step.inputs[0], step.output);
        let (x, dx, dy) = (at.value(input), change.value(input), change.value(output));
        let other = step.inputs.get(1).map_or(0, |&other| change.value(other));
        // After a ReLU, the tangent is zero where the result is.
        let gate = if step.relu { at.value(output) } else { 0 };
        match &step.op {
            Op::Conv { .. } | Op::Linear { .. } => {
                let layer = &program.layers[program.part(step)];
                let (_, name, grid) = conv_f32(&layer.forward, self.machine());
                let working = program.spans[layer.weight.0].working;
                let [weight, moved] = [at, change].map(|pass| pass.address(working));
                let bias = layer.bias.map_or(0, |bias| change.parameter(bias));
                let (geometry, dx) = (layer.forward, self.change_of(input));
                let arguments = arguments![geometry, x, moved, dx, weight, bias, dy, 0i32, slab];
                at.start(main, name, grid, arguments)
            }
            Op::BatchNorm { .. } => {
                let layer = &program.norms[program.part(step)];
                let [norm, mut moved] = [at, change].map(|pass| pass.norm(layer, false));
                let (rows, channels) = (program.batch * layer.shape.area(), layer.shape.channels);
                let (count, of_batch) = (rows as i32, i32::from(self.pass_mode.of_batch));
                let grid = at.sums(rows, channels);
                moved.rows = grid.blocks.0 as i32;
                let arguments = arguments![x, dx, count, of_batch, norm, moved, slab];
                at.start(main, "norm_tangent_moments", grid, arguments)?;
                let groups = Grid::row(norm.groups());
                at.start(main, "norm_tangent_settle", groups, arguments![of_batch, norm, moved, slab])?;
                let grid = at.down("norm_tangent_forward", rows, channels)?;
                let arguments = arguments![x, dx, other, gate, dy, count, norm, moved, slab];
                at.start(main, "norm_tangent_forward", grid, arguments)
            }
            Op::Relu | Op::Add => {
                let eights = at.eights(output);
                let arguments = arguments![dx, other, gate, dy, eights, slab];
                at.start(main, "add_tangent", at.over(eights as usize), arguments)
            }
            Op::MaxPool(_) => {
                let (pool, grid) = (at.pool(step), at.over(at.eights(output) as usize));
                at.start(main, "max_tangent", grid, arguments![pool, x, dx, dy, slab])
            }
            // Linear: the pass itself, on tangents.
            Op::AveragePool(_) | Op::GlobalAverage | Op::PadChannels { .. } | Op::Subsample { .. } => {
                change.step_forward(index, self.pass_mode)
            }
            Op::Concat | Op::Dropout { .. } => change.step_forward(index, self.pass_mode),
            Op::Plain { plain, .. } => Err(Error::NoTangent { operation: plain.name().into() }),
            Op::Input => unreachable!("{NO_STEP}"),
        }
    }

    fn loss(&self, factor: f32) -> Result<(), Error> {
        let (at, change, program) = (&self.at, &self.change, &self.at.program);
        let (last, classes) = (program.last(), program.graph.classes());
        let (logits, moved, to) = (at.value(last), change.value(last), change.gradient(last));
        let [n, classes, wide] = [program.batch, classes, super::compile::pitch(classes)].map(|x| x as i32);
        let arguments = arguments![logits, moved, to, n, classes, wide, factor, program.slab];
        at.start(at.main, "loss_tangent", Grid::row(program.batch.div_ceil(8)), arguments)
    }

    fn backward(&self, index: usize) -> Result<(), Error> {
        let (at, change, program) = (&self.at, &self.change, &self.at.program);
        at.at_step(None);
        let step = &program.steps[index];
        let (main, slab) = (at.main, program.slab);
        let (input, output) = (step.inputs[0], step.output);
        let (x, dx) = (at.value(input), change.value(input));
        let [flow, dflow] = [at, change].map(|pass| pass.gradient(output));
        let gate = if step.relu { at.value(output) } else { 0 };
        let (to, add) = change.flow(step, 0);
        let (other, add_other) = change.flow(step, 1);
        match &step.op {
            Op::Conv { .. } | Op::Linear { .. } => self.layer_backward(step),
            Op::BatchNorm { .. } => {
                let layer = &program.norms[program.part(step)];
                let [norm, mut moved] = [at, change].map(|pass| pass.norm(layer, false));
                let (rows, channels) = (program.batch * layer.shape.area(), layer.shape.channels);
                let (count, of_batch) = (rows as i32, i32::from(self.pass_mode.of_batch));
                let [of_weight, dweight] = [at, change].map(|pass| pass.slope(layer.weight));
                let [of_bias, dbias] = [at, change].map(|pass| pass.slope(layer.bias));
                let grid = at.sums(rows, channels);
                moved.rows = grid.blocks.0 as i32;
                let arguments = arguments![flow, dflow, x, dx, gate, count, norm, moved, slab];
                at.start(main, "norm_tangent_reduce", grid, arguments)?;
                let groups = Grid::row(norm.groups());
                let arguments = arguments![of_batch, of_weight, of_bias, dweight, dbias, norm, moved, slab];
                at.start(main, "norm_tangent_settle_flow", groups, arguments)?;
                if to == 0 && other == 0 {
                    return Ok(());
                }
                let grid = at.down("norm_tangent_backward", rows, channels)?;
                let arguments =
                    arguments![flow, dflow, x, dx, gate, count, to, add, other, add_other, norm, moved, slab];
                at.start(main, "norm_tangent_backward", grid, arguments)
            }
            Op::Plain { plain, .. } => Err(Error::NoTangent { operation: plain.name().into() }),
            _ if to == 0 && other == 0 => Ok(()),
            // Linear in the gradient, given the results of the forward pass.
            Op::Relu | Op::Add => {
                let eights = at.eights(output);
                let arguments = arguments![dflow, gate, to, add, other, add_other, eights, slab];
                at.start(main, "add_backward", at.over(eights as usize), arguments)
            }
            Op::MaxPool(_) => at.pool_backward(step, dflow, (to, add)),
            Op::AveragePool(_) | Op::GlobalAverage | Op::PadChannels { .. } | Op::Subsample { .. } => {
                change.step_backward(index, self.pass_mode, &mut [])
            }
            Op::Concat | Op::Dropout { .. } => change.step_backward(index, self.pass_mode, &mut []),
            Op::Input => unreachable!("{NO_STEP}"),
        }
    }

    /// dw′ = x·dy′ + x′·dy and dx′ = w·dy′ + w′·dy.
    fn layer_backward(&self, step: &Step) -> Result<(), Error> {
        let (at, change, program) = (&self.at, &self.change, &self.at.program);
        let index = program.part(step);
        let (layer, slab) = (&program.layers[index], program.slab);
        let (x, dx) = (at.value(step.inputs[0]), self.change_of(step.inputs[0]));
        let [flow, dflow] = [at, change].map(|pass| pass.gradient(step.output));
        let side = at.fork(2 * index)?;
        let (span, kernels) = (&program.spans[layer.weight.0], &at.layer_kernels[index]);
        let KernelChoice::Own { grid, .. } = kernels.backward_weights else {
            return Err(Error::device(
                "make a product with the Hessian",
                "its layers are not computed in f32",
            ));
        };
        let (_, name, ..) = wgrad_f32(&layer.forward);
        let (geometry, stretch) = (layer.forward, kernels.stretch as i32);
        let partial = change.address(span.partial);
        let arguments = arguments![geometry, x, dflow, dx, flow, partial, stretch, slab];
        at.start(side, name, grid, arguments)?;
        change.sum_bias(side, layer, dflow, self.pass_mode)?;
        let (to, add) = change.flow(step, 0);
        if to == 0 {
            return Ok(());
        }
        let (_, name, grid) = conv_f32(&layer.backward, self.machine());
        let [flipped, moved] = [at, change].map(|pass| pass.address(span.flipped));
        let geometry = layer.backward;
        let arguments = arguments![geometry, dflow, flipped, flow, moved, 0u64, to, add, slab];
        at.start(at.main, name, grid, arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::super::compile::{Program, WorkspaceNeeds};
    use crate::plan::{Flow, Reuse};
    use crate::zoo::ZOO;

    /// No gradient shares a buffer: each has its own bytes in the slab.
    #[test]
    fn all_gradients_are_kept() {
        let entry = ZOO.iter().find(|entry| entry.name == "resnet20").unwrap();
        let graph = entry.build(entry.input, entry.classes).unwrap();
        let mut program = Program::planned(&graph, 32, 4, Reuse::Never).unwrap();
        let mut slots: Vec<usize> = program.slots.iter().flatten().copied().collect();
        slots.sort_unstable();
        assert!(slots.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(program.steps.iter().all(|step| !step.flows.contains(&Flow::Shared)));
        let need = WorkspaceNeeds { splits: 4, flipped: true, ..WorkspaceNeeds::default() };
        program.allocate(&vec![need; program.layers.len()], 64);
        let of_gradients: usize = (0..program.slots.len())
            .filter(|&node| program.slots[node].is_some())
            .map(|node| program.bytes(node).next_multiple_of(256))
            .sum();
        assert_eq!((program.slab - program.buffers[0]) as usize, of_gradients + 256);
    }
}

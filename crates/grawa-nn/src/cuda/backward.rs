//! The backward pass: the kernels that each step launches, in reverse order.
//!
//! Weight gradients run on a side stream, because nothing waits for them until the end. A buffer is not overwritten while the
//! side stream still reads it.

use super::compile::{Layer, pitch};
use super::device::{Grid, Stream, arguments};
use super::kernel_choice::KernelChoice;
use super::pass::{NormArgument, Pass, PassMode, SumsArgument};
use super::pooled::tiles;
use crate::plan::{Flow, NO_STEP, Step};
use crate::{Error, Op};
use bytemuck::Zeroable;

/// A step, and work for the side stream that may begin when the steps after it are done.
pub(super) type Early<'a> = (usize, &'a dyn Fn() -> Result<(), Error>);

impl Pass<'_> {
    /// Enqueues a backward pass, after a forward pass and the loss. It leaves the gradient where `collect` finds it.
    pub(crate) fn backward(&self, pass_mode: PassMode, early: Option<Early<'_>>) -> Result<(), Error> {
        // For each buffer, the event of the side stream's last reader.
        let mut readers: Vec<Option<usize>> = vec![None; self.program.buffers.len()];
        for (index, step) in self.program.steps.iter().enumerate().rev() {
            if self.program.slots[step.output].is_none() {
                continue;
            }
            let padding = self.program.padding(index).map(|(pad, _)| pad.inputs.iter().zip(&pad.flows));
            // A batch norm may mask the gradient that its shortcut takes over.
            let is_norm = matches!(step.op, Op::BatchNorm { .. });
            for (&input, flow) in step.inputs.iter().zip(&step.flows).chain(padding.into_iter().flatten()) {
                let writes = match flow {
                    Flow::Nowhere => false,
                    Flow::Store | Flow::Add => true,
                    Flow::Shared => is_norm,
                };
                if let (true, Some(slot)) = (writes, self.program.slots[input])
                    && let Some(reader) = readers[slot].take()
                {
                    self.main.wait_for(&self.events[reader])?;
                }
            }
            if let Some((_, work)) = early.filter(|(step, _)| *step == index) {
                self.fork(2 * self.program.layers.len() + 1)?;
                work()?;
            }
            self.step_backward(index, pass_mode, &mut readers)?;
        }
        self.at_step(None);
        if self.profile.is_none() {
            let last = &self.events[2 * self.program.layers.len()];
            self.side.mark(last)?;
            self.main.wait_for(last)?;
        }
        Ok(())
    }

    /// Gathers the gradient into its vector.
    pub(crate) fn collect(&self, pass_mode: PassMode) -> Result<(), Error> {
        let (gradient, slab) = (self.address(self.program.offsets.gradient), self.program.slab);
        let of_batch = i32::from(pass_mode.of_batch);
        let arguments = arguments![self.spans.start, self.chunks.start, gradient, self.base, of_batch, slab];
        self.start(self.main, "collect", Grid::row(self.program.chunks.len()), arguments)
    }

    pub(super) fn step_backward(
        &self,
        index: usize,
        pass_mode: PassMode,
        readers: &mut [Option<usize>],
    ) -> Result<(), Error> {
        if self.program.left_out(index) {
            return Ok(());
        }
        self.at_step(Some((index, true)));
        let step = &self.program.steps[index];
        let (main, slab) = (self.main, self.program.slab);
        let (input, output) = (step.inputs[0], step.output);
        let (x, y, flow) = (self.value(input), self.value(output), self.gradient(output));
        let (from, to) = (self.program.shape(input), self.program.shape(output));
        let (dx, add) = self.flow(step, 0);
        let (dother, add_other) = self.flow(step, 1);
        let (eights, per_eight) = (self.eights(output), self.over(self.eights(output) as usize));
        match &step.op {
            Op::Conv { .. } | Op::Linear { .. } => self.layer_backward(step, pass_mode, readers),
            Op::BatchNorm { .. } => {
                let layer = &self.program.norms[self.program.part(step)];
                let mut norm = self.norm(layer, false);
                let rows = self.program.batch * from.area();
                let (count, mut sums) = (rows as i32, self.backward_sums(step, pass_mode));
                if layer.masked_by_layer {
                    sums.mask = 0;
                }
                let (parts, flows) = (self.values(step), self.flows(step));
                let is_pooled = self.program.is_pooled(step);
                let (windows, width) = ((self.program.batch * to.area()) as i32, to.width as i32);
                let grid = self.sums(rows, to.channels);
                let left = match layer.flow_by_layer {
                    Some(rows) => rows,
                    None => {
                        if is_pooled {
                            let arguments = arguments![flow, x, windows, width, sums, norm, slab];
                            self.start(main, "norm_pool_reduce", grid, arguments)?;
                        } else {
                            let arguments = arguments![flow, parts, count, sums, norm, slab];
                            self.start(main, "norm_reduce", grid, arguments)?;
                        }
                        grid.blocks.0 as usize
                    }
                };
                let name = if is_pooled { "norm_pool_backward" } else { "norm_backward" };
                let mut grid = self.down(name, rows, to.channels)?;
                if !self.settle_in(&mut grid, &mut norm, left, to.channels) {
                    let groups = Grid::row(norm.groups());
                    self.start(main, "norm_settle_flow", groups, arguments![sums, norm, slab])?;
                    norm.rows = 0;
                }
                if is_pooled {
                    let arguments = arguments![flow, x, dx, add, windows, width, sums, norm, slab];
                    return self.start(main, name, grid, arguments);
                }
                let (_, of, (dother, add_other)) = self.other(index, step);
                let arguments =
                    arguments![flow, parts, count, sums, flows, dother, of, add_other, norm, slab];
                self.start(main, name, grid, arguments)
            }
            Op::Plain { .. } => self.plain(step, true),
            _ if dx == 0 && dother == 0 => Ok(()),
            Op::Relu | Op::Add => {
                let result = if step.relu { y } else { 0 };
                let arguments = arguments![flow, result, dx, add, dother, add_other, eights, slab];
                self.start(main, "add_backward", per_eight, arguments)
            }
            Op::MaxPool(_) | Op::AveragePool(_) => self.pool_backward(step, flow, (dx, add)),
            Op::GlobalAverage => {
                let [n, area, wide] =
                    [self.program.batch, from.area(), pitch(from.channels)].map(|x| x as i32);
                let grid = self.over(self.eights(input) as usize);
                self.start(main, "global_backward", grid, arguments![flow, dx, n, area, wide, add, slab])
            }
            Op::PadChannels { before, .. } => {
                let shift = (*before as i32, before + from.channels);
                self.copy((output, flow), (input, dx), (0, pitch(from.channels)), shift, (1, 1), add)
            }
            Op::Subsample { stride } => {
                let (all, shift) = ((0, pitch(from.channels)), (0, from.channels));
                self.copy((output, flow), (input, dx), all, shift, (1, *stride), add)
            }
            Op::Concat => {
                if dx != 0 {
                    let (all, shift) = ((0, pitch(from.channels)), (0, from.channels));
                    self.copy((output, flow), (input, dx), all, shift, (1, 1), add)?;
                }
                if dother == 0 {
                    return Ok(());
                }
                let wide = self.program.shape(step.inputs[1]).channels;
                let shift = ((to.channels - wide) as i32, to.channels);
                let target = (step.inputs[1], dother);
                self.copy((output, flow), target, (0, pitch(wide)), shift, (1, 1), add_other)
            }
            Op::Dropout { probability } => {
                if pass_mode.dropout {
                    return self.drop(step, *probability, flow, dx, add);
                }
                let arguments = arguments![flow, 0u64, dx, add, 0u64, 0i32, eights, slab];
                self.start(main, "add_backward", per_eight, arguments)
            }
            Op::Input => unreachable!("{NO_STEP}"),
        }
    }

    /// Enqueues the gradient of a pooling's input, or its tangent, from that of the output.
    pub(super) fn pool_backward(&self, step: &Step, flow: u64, (dx, add): (u64, i32)) -> Result<(), Error> {
        let (pool, chosen) = (self.pool(step), self.address(self.program.chosen[step.node]));
        let (x, slab) = (self.value(step.inputs[0]), self.program.slab);
        // Most windows do not overlap: then every input is read once.
        if tiles(&self.program.graph, step.node) {
            let grid = self.over(self.eights(step.output) as usize);
            let arguments = arguments![pool, x, flow, dx, add, slab];
            return self.start(self.main, "pool_backward_tiles", grid, arguments);
        }
        let grid = self.over(self.eights(step.inputs[0]) as usize);
        self.start(self.main, "pool_backward", grid, arguments![pool, chosen, flow, dx, add, slab])
    }

    /// Enqueues the gradient of a layer's bias, or its tangent. A bias before a batch norm has none.
    pub(super) fn sum_bias(
        &self,
        stream: &Stream,
        layer: &Layer,
        flow: u64,
        pass_mode: PassMode,
    ) -> Result<(), Error> {
        let Some(bias) = layer.bias.filter(|_| layer.norm.is_none() || !pass_mode.of_batch) else {
            return Ok(());
        };
        let (sums, rows, slab) = (self.slope(bias), layer.forward.pixels() as i32, self.program.slab);
        let (channels, wide) = (layer.forward.o, layer.forward.op);
        let arguments = arguments![flow, sums, rows, channels, wide, slab];
        self.start(stream, "channel_sums", Grid::row(channels as usize), arguments)
    }

    fn layer_backward(
        &self,
        step: &Step,
        pass_mode: PassMode,
        readers: &mut [Option<usize>],
    ) -> Result<(), Error> {
        let index = self.program.part(step);
        let (layer, kernels) = (&self.program.layers[index], &self.layer_kernels[index]);
        let (x, flow) = (self.value(step.inputs[0]), self.gradient(step.output));
        let (slab, offsets) = (self.program.slab, &self.program.offsets);
        let side = self.fork(2 * index)?;
        let span = &self.program.spans[layer.weight.0];
        let partial = self.address(span.partial);
        match &kernels.backward_weights {
            KernelChoice::Own { name, grid, .. } => {
                let (geometry, stretch) = (layer.forward, kernels.stretch as i32);
                self.start(side, name, *grid, arguments![geometry, x, flow, partial, stretch, slab])?;
            }
            KernelChoice::Wide(wide) => {
                let [input, gradient] = wide.maps([x, flow], slab, self.workers)?;
                let arguments = arguments![input, gradient, partial, wide.tiles, slab];
                self.start(side, wide.name, wide.grid, arguments)?;
            }
            KernelChoice::Cudnn(plan) => {
                self.cudnn(side, plan, offsets.side_workspace, [x, partial, flow])?
            }
        }
        self.sum_bias(side, layer, flow, pass_mode)?;
        if self.profile.is_none() {
            side.mark(&self.events[2 * index + 1])?;
            if let Some(slot) = self.program.slots[step.output] {
                readers[slot] = Some(2 * index + 1);
            }
        }
        let (dx, add) = self.flow(step, 0);
        if dx == 0 {
            return Ok(());
        }
        let source = layer.source.map(|step| &self.program.steps[step]);
        let reader = source.map(|step| (step, &self.program.norms[self.program.part(step)]));
        match &kernels.backward_data {
            KernelChoice::Own { name, grid, rows } => {
                let (geometry, flipped) = (layer.backward, self.address(span.flipped));
                // 2 is FLOW in `conv.cu`.
                let (kind, norm, sums) = match reader.filter(|(_, norm)| norm.flow_by_layer.is_some()) {
                    Some((step, norm)) => (2i32, self.norm(norm, false), self.backward_sums(step, pass_mode)),
                    None => (0, NormArgument::unused(), SumsArgument::zeroed()),
                };
                let arguments =
                    arguments![geometry, flow, flipped, 0u64, dx, add, kind, norm, sums, *rows, slab];
                self.start(self.main, name, *grid, arguments)
            }
            KernelChoice::Wide(wide) => {
                let maps = wide.maps([flow, self.address(span.working)], slab, self.workers)?;
                let norm = NormArgument::unused();
                let masks = reader.filter(|(_, norm)| norm.masked_by_layer);
                let positive = masks.map_or(0, |(_, norm)| self.address(norm.positive));
                let arguments =
                    arguments![maps[0], maps[1], 0u64, dx, wide.tiles, positive, add, 0i32, norm, slab];
                self.start(self.main, wide.name, wide.grid, arguments)
            }
            KernelChoice::Cudnn(plan) => {
                let to = if add == 0 { dx } else { self.address(offsets.arriving) };
                let tensors = [to, self.address(span.working), flow];
                self.cudnn(self.main, plan, offsets.workspace, tensors)?;
                if add == 0 {
                    return Ok(());
                }
                let eights = self.eights(step.inputs[0]);
                let arguments = arguments![to, 0u64, dx, add, 0u64, 0i32, eights, slab];
                self.start(self.main, "add_backward", self.over(eights as usize), arguments)
            }
        }
    }
}

//! Backward passes on a GPU: each step of the plan turned around.
//!
//! Gradients of kernels run on a side stream, since nothing waits for them until the end; a buffer that one still reads is
//! not written to before it is done.

use super::compile::{Flow, Kind, Layer, Step, pitch};
use super::device::{Grid, Stream, at};
use super::kernel_choice::{KernelChoice, LayerKernels};
use super::pass::{NORMLESS, Pass, PassMode};
use crate::Error;

impl Pass<'_> {
    /// A backward pass, after a forward pass and the loss; the gradient is left where `collect` finds it.
    pub(crate) fn backward(&self, pass_mode: PassMode) -> Result<(), Error> {
        // For each buffer what still reads it on the side.
        let mut readers: Vec<Option<usize>> = vec![None; self.program.buffers.len()];
        for step in self.program.steps.iter().rev() {
            if self.program.slots[step.output].is_none() {
                continue;
            }
            for (&input, flow) in step.inputs.iter().zip(&step.flows) {
                if let (true, Some(slot)) =
                    (matches!(flow, Flow::Store | Flow::Add), self.program.slots[input])
                    && let Some(reader) = readers[slot].take()
                {
                    self.main.wait_for(&self.events[reader])?;
                }
            }
            self.step_backward(step, pass_mode, &mut readers)?;
        }
        if self.profile.is_none() {
            let last = &self.events[2 * self.program.layers.len()];
            self.side.mark(last)?;
            self.main.wait_for(last)?;
        }
        Ok(())
    }

    /// Gathers the gradient into its vector.
    pub(crate) fn collect(&self, pass_mode: PassMode) -> Result<(), Error> {
        let gradient = self.address(self.program.offsets.gradient);
        let of_batch = i32::from(pass_mode.of_batch);
        let mut arguments = [
            at(&self.spans),
            at(&self.chunks),
            at(&gradient),
            at(&self.base),
            at(&of_batch),
            at(&self.program.slab),
        ];
        self.start(self.main, "collect", Grid::row(self.program.chunks.len()), &mut arguments)
    }

    pub(super) fn step_backward(
        &self,
        step: &Step,
        pass_mode: PassMode,
        readers: &mut [Option<usize>],
    ) -> Result<(), Error> {
        let (main, slab) = (self.main, self.program.slab);
        let (x, y, flow) = (self.value(step.inputs[0]), self.value(step.output), self.gradient(step.output));
        let (from, to) = (self.program.shape(step.inputs[0]), self.program.shape(step.output));
        let (dx, add) = self.flow(step, 0);
        let (dother, add_other) = self.flow(step, 1);
        let batch = self.program.batch;
        match &step.kind {
            Kind::Layer(index) => self.layer_backward(*index, step, pass_mode, readers),
            Kind::Norm { norm, relu } => {
                let normed = &self.program.norms[*norm];
                let argument = self.norm(normed, false);
                let rows = batch * from.area();
                let rows_argument = rows as i32;
                let mask = match (relu, step.inputs.len()) {
                    (false, _) => 0i32,
                    (true, 1) => 1,
                    (true, _) => 2,
                };
                let (dweight, dbias) = (self.slope(normed.weight), self.slope(normed.bias));
                let grid = self.sums("norm_reduce", rows, from.channels)?;
                let of_batch = i32::from(pass_mode.of_batch);
                let mut arguments = [
                    at(&flow),
                    at(&x),
                    at(&y),
                    at(&rows_argument),
                    at(&mask),
                    at(&of_batch),
                    at(&dweight),
                    at(&dbias),
                    at(&argument),
                    at(&slab),
                ];
                self.start(main, "norm_reduce", grid, &mut arguments)?;
                let grid = self.down("norm_backward", rows, from.channels)?;
                let mut arguments = [
                    at(&flow),
                    at(&x),
                    at(&y),
                    at(&rows_argument),
                    at(&mask),
                    at(&dx),
                    at(&add),
                    at(&dother),
                    at(&add_other),
                    at(&argument),
                    at(&slab),
                ];
                self.start(main, "norm_backward", grid, &mut arguments)
            }
            _ if dx == 0 && dother == 0 && !matches!(step.kind, Kind::Norm { .. }) => Ok(()),
            Kind::AllReduce { relu } => {
                let result = if *relu { y } else { 0 };
                let eights = self.eights(step.output);
                let mut arguments = [
                    at(&flow),
                    at(&result),
                    at(&dx),
                    at(&add),
                    at(&dother),
                    at(&add_other),
                    at(&eights),
                    at(&slab),
                ];
                self.start(main, "add_backward", self.over(eights as usize), &mut arguments)
            }
            Kind::Pool { .. } => {
                let pool = self.pool(step);
                // Windows side by side, as most are, are read once.
                let tiles = pool.largest == 1 && pool.kernel == 2 && pool.stride == 2 && pool.pad == 0;
                if tiles && from.height == 2 * to.height && from.width == 2 * to.width {
                    let grid = self.over(self.eights(step.output) as usize);
                    let mut arguments = [at(&pool), at(&x), at(&flow), at(&dx), at(&add), at(&slab)];
                    return self.start(main, "pool_backward_tiles", grid, &mut arguments);
                }
                let grid = self.over(self.eights(step.inputs[0]) as usize);
                let mut arguments = [at(&pool), at(&x), at(&flow), at(&dx), at(&add), at(&slab)];
                self.start(main, "pool_backward", grid, &mut arguments)
            }
            Kind::GlobalAverage => {
                let (n, area, wide) = (batch as i32, from.area() as i32, pitch(from.channels) as i32);
                let grid = self.over(self.eights(step.inputs[0]) as usize);
                let mut arguments = [at(&flow), at(&dx), at(&n), at(&area), at(&wide), at(&add), at(&slab)];
                self.start(main, "global_backward", grid, &mut arguments)
            }
            Kind::PadChannels { before } => {
                let all = (0, pitch(from.channels));
                self.copy(
                    step.output,
                    step.inputs[0],
                    all,
                    (*before as i32, before + from.channels),
                    (1, 1),
                    flow,
                    dx,
                    add,
                )
            }
            Kind::Subsample { stride } => self.copy(
                step.output,
                step.inputs[0],
                (0, pitch(from.channels)),
                (0, from.channels),
                (1, *stride),
                flow,
                dx,
                add,
            ),
            Kind::Concat => {
                if dx != 0 {
                    self.copy(
                        step.output,
                        step.inputs[0],
                        (0, pitch(from.channels)),
                        (0, from.channels),
                        (1, 1),
                        flow,
                        dx,
                        add,
                    )?;
                }
                if dother == 0 {
                    return Ok(());
                }
                let wide = self.program.shape(step.inputs[1]).channels;
                let shift = (to.channels - wide) as i32;
                self.copy(
                    step.output,
                    step.inputs[1],
                    (0, pitch(wide)),
                    (shift, to.channels),
                    (1, 1),
                    flow,
                    dother,
                    add_other,
                )
            }
            Kind::Dropout { probability, node } => {
                if pass_mode.dropout {
                    return self.drop(step, (*probability, *node), flow, dx, add);
                }
                let eights = self.eights(step.output);
                let mut arguments =
                    [at(&flow), at(&0u64), at(&dx), at(&add), at(&0u64), at(&0i32), at(&eights), at(&slab)];
                self.start(main, "add_backward", self.over(eights as usize), &mut arguments)
            }
        }
    }

    fn layer_backward(
        &self,
        index: usize,
        step: &Step,
        pass_mode: PassMode,
        readers: &mut [Option<usize>],
    ) -> Result<(), Error> {
        let (layer, layer_kernels) = (&self.program.layers[index], &self.layer_kernels[index]);
        let (x, flow) = (self.value(step.inputs[0]), self.gradient(step.output));
        let aside = self.profile.is_none();
        let side = if aside { self.side } else { self.main };
        if aside {
            self.main.mark(&self.events[2 * index])?;
            side.wait_for(&self.events[2 * index])?;
        }
        self.layer_sums(layer, layer_kernels, side, x, flow)?;
        if let (Some(bias), false) = (layer.bias, layer.is_normed && pass_mode.of_batch) {
            let (sums, rows) = (self.slope(bias), layer.forward.pixels() as i32);
            let mut arguments = [
                at(&flow),
                at(&sums),
                at(&rows),
                at(&layer.forward.o),
                at(&layer.forward.op),
                at(&self.program.slab),
            ];
            self.start(side, "channel_sums", Grid::row(layer.forward.o as usize), &mut arguments)?;
        }
        if aside {
            side.mark(&self.events[2 * index + 1])?;
            if let Some(slot) = self.program.slots[step.output] {
                readers[slot] = Some(2 * index + 1);
            }
        }
        let (dx, add) = self.flow(step, 0);
        if dx == 0 {
            return Ok(());
        }
        let span = &self.program.spans[layer.weight.0];
        match &layer_kernels.backward_data {
            KernelChoice::Own { name, grid } => {
                let flipped = self.address(span.flipped);
                let mut arguments = [
                    at(&layer.backward),
                    at(&flow),
                    at(&flipped),
                    at(&0u64),
                    at(&dx),
                    at(&add),
                    at(&0i32),
                    at(&NORMLESS),
                    at(&self.program.slab),
                ];
                self.start(self.main, name, *grid, &mut arguments)
            }
            KernelChoice::Cudnn(plan) => {
                let to = if add == 0 { dx } else { self.address(self.program.offsets.arriving) };
                self.cudnn(
                    self.main,
                    plan,
                    self.program.offsets.workspace,
                    [to, self.address(span.working), flow],
                )?;
                if add == 0 {
                    return Ok(());
                }
                let eights = self.eights(step.inputs[0]);
                let mut arguments = [
                    at(&to),
                    at(&0u64),
                    at(&dx),
                    at(&add),
                    at(&0u64),
                    at(&0i32),
                    at(&eights),
                    at(&self.program.slab),
                ];
                self.start(self.main, "add_backward", self.over(eights as usize), &mut arguments)
            }
        }
    }

    fn layer_sums(
        &self,
        layer: &Layer,
        layer_kernels: &LayerKernels,
        stream: &Stream,
        x: u64,
        flow: u64,
    ) -> Result<(), Error> {
        let partial = self.address(self.program.spans[layer.weight.0].partial);
        match &layer_kernels.backward_weights {
            KernelChoice::Own { name, grid } => {
                let stretch = layer_kernels.stretch as i32;
                let mut arguments = [
                    at(&layer.forward),
                    at(&x),
                    at(&flow),
                    at(&partial),
                    at(&stretch),
                    at(&self.program.slab),
                ];
                self.start(stream, name, *grid, &mut arguments)
            }
            KernelChoice::Cudnn(plan) => {
                self.cudnn(stream, plan, self.program.offsets.side_workspace, [x, partial, flow])
            }
        }
    }
}

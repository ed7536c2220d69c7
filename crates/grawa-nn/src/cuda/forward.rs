//! The forward pass: the kernels that each step of the program launches, and the loss.

use super::compile::pitch;
use super::device::{Grid, arguments};
use super::kernel_choice::KernelChoice;
use super::pass::{NormArgument, Pass, PassMode, SumsArgument};
use crate::plan::NO_STEP;
use crate::{Error, Op};
use bytemuck::Zeroable;

impl Pass<'_> {
    /// Enqueues a forward pass; it computes the logits.
    pub(crate) fn forward(&self, pass_mode: PassMode) -> Result<(), Error> {
        (0..self.program.steps.len()).try_for_each(|index| self.step_forward(index, pass_mode))?;
        self.at_step(None);
        Ok(())
    }

    pub(super) fn step_forward(&self, index: usize, pass_mode: PassMode) -> Result<(), Error> {
        if self.program.left_out(index) {
            return Ok(());
        }
        self.at_step(Some((index, false)));
        let step = &self.program.steps[index];
        let (main, slab) = (self.main, self.program.slab);
        let (input, output) = (step.inputs[0], step.output);
        let (x, y) = (self.value(input), self.value(output));
        let (from, to) = (self.program.shape(input), self.program.shape(output));
        let other = step.inputs.get(1).map_or(0, |&other| self.value(other));
        let (rows, wide) = (self.program.batch * from.area(), pitch(from.channels) as i32);
        let per_eight = self.over(self.eights(output) as usize);
        match &step.op {
            Op::Conv { .. } | Op::Linear { .. } => {
                self.layer_forward(self.program.part(step), x, y, pass_mode)
            }
            Op::BatchNorm { .. } => {
                let layer = &self.program.norms[self.program.part(step)];
                let mut norm = self.norm(layer, pass_mode.track);
                let (relu, count, parts) = (i32::from(step.relu), rows as i32, self.values(step));
                let reader = self.program.readers[output].map(|norm| &self.program.norms[norm]);
                let reader = reader.filter(|_| pass_mode.of_batch);
                let is_pooled = self.program.is_pooled(step);
                let mut grid = match reader {
                    Some(_) => self.sums(rows, to.channels),
                    None if is_pooled => self.down("norm_pool_forward", rows, to.channels)?,
                    None => self.down("norm_forward", rows, to.channels)?,
                };
                let (known, unknown) = self.known(index);
                if pass_mode.of_batch {
                    let sums = self.sums(rows, unknown);
                    if layer.by_layer.is_none() && !layer.by_sum {
                        self.start(main, "norm_moments", sums, arguments![parts, count, known, norm, slab])?;
                    }
                    let left = layer.by_layer.unwrap_or(sums.blocks.0 as usize);
                    if !self.settle_in(&mut grid, &mut norm, left, unknown) {
                        let groups = Grid::row(norm.groups());
                        self.start(main, "norm_settle", groups, arguments![known, norm, slab])?;
                        norm.rows = 0;
                    }
                } else {
                    self.start(main, "norm_fold", Grid::row(1), arguments![norm, slab])?;
                }
                if is_pooled {
                    let (windows, width) = ((self.program.batch * to.area()) as i32, to.width as i32);
                    let arguments = arguments![x, y, windows, width, relu, known, norm, slab];
                    return self.start(main, "norm_pool_forward", grid, arguments);
                }
                let (node, of, _) = self.other(index, step);
                let other = node.map_or(0, |node| self.value(node));
                let positive = self.address(layer.positive);
                if let Some(reader) = reader {
                    let next = self.summed(reader, to.channels);
                    let arguments =
                        arguments![parts, other, of, y, positive, count, relu, known, norm, next, slab];
                    return self.start(main, "norm_forward_moments", grid, arguments);
                }
                let arguments = arguments![parts, other, of, y, positive, count, relu, known, norm, slab];
                self.start(main, "norm_forward", grid, arguments)
            }
            Op::Relu | Op::Add => {
                let (relu, count, eights) = (i32::from(step.relu), rows as i32, self.eights(output));
                let reader = self.program.readers[output].map(|norm| &self.program.norms[norm]);
                if let Some(layer) = reader.filter(|_| pass_mode.of_batch) {
                    let norm = self.summed(layer, from.channels);
                    let grid = self.sums(rows, from.channels);
                    let arguments = arguments![x, other, y, count, relu, norm, slab];
                    return self.start(main, "add_moments", grid, arguments);
                }
                self.start(main, "add_forward", per_eight, arguments![x, other, y, eights, relu, slab])
            }
            Op::MaxPool(_) | Op::AveragePool(_) => {
                let (pool, chosen) = (self.pool(step), self.address(self.program.chosen[step.node]));
                self.start(main, "pool_forward", per_eight, arguments![pool, x, y, chosen, slab])
            }
            Op::GlobalAverage => {
                let (n, area) = (self.program.batch as i32, from.area() as i32);
                self.start(main, "global_forward", per_eight, arguments![x, y, n, area, wide, slab])
            }
            Op::PadChannels { before, .. } => {
                let shift = (-(*before as i32), from.channels);
                self.copy((input, x), (output, y), (0, pitch(to.channels)), shift, (1, 1), 0)
            }
            Op::Subsample { stride } => {
                let channels = (0, pitch(to.channels));
                self.copy((input, x), (output, y), channels, (0, from.channels), (*stride, 1), 0)
            }
            Op::Concat => {
                let (second, middle) = (step.inputs[1], from.channels);
                self.copy((input, x), (output, y), (0, middle), (0, middle), (1, 1), 0)?;
                let (rest, shift) = ((middle, pitch(to.channels)), (-(middle as i32), to.channels - middle));
                self.copy((second, other), (output, y), rest, shift, (1, 1), 0)
            }
            Op::Dropout { probability } => {
                if pass_mode.dropout {
                    return self.drop(step, *probability, x, y, 0);
                }
                let eights = self.eights(output);
                self.start(main, "add_forward", per_eight, arguments![x, 0u64, y, eights, 0i32, slab])
            }
            Op::Input => unreachable!("{NO_STEP}"),
            Op::Plain { .. } => self.plain(step, false),
        }
    }

    fn layer_forward(&self, index: usize, x: u64, y: u64, pass_mode: PassMode) -> Result<(), Error> {
        let (layer, slab) = (&self.program.layers[index], self.program.slab);
        let weight = self.address(self.program.spans[layer.weight.0].working);
        let bias = layer.bias.map_or(0, |bias| self.parameter(bias));
        let reader = layer.moments.map(|norm| &self.program.norms[norm]);
        let reader = reader.filter(|norm| norm.by_layer.is_some() && pass_mode.of_batch);
        let channels = layer.forward.o as usize;
        let norm = reader.map_or_else(NormArgument::unused, |norm| self.summed(norm, channels));
        let moments = i32::from(reader.is_some());
        match &self.layer_kernels[index].forward {
            KernelChoice::Own { name, grid, rows } => {
                let geometry = layer.forward;
                let none = SumsArgument::zeroed();
                let arguments =
                    arguments![geometry, x, weight, bias, y, 0i32, moments, norm, none, *rows, slab];
                self.start(self.main, name, *grid, arguments)
            }
            KernelChoice::Wide(wide) => {
                let [source, weights] = wide.maps([x, weight], slab, self.workers)?;
                let arguments =
                    arguments![source, weights, bias, y, wide.tiles, 0u64, 0i32, moments, norm, slab];
                self.start(self.main, wide.name, wide.grid, arguments)
            }
            KernelChoice::Cudnn(plan) => {
                self.cudnn(self.main, plan, self.program.offsets.workspace, [x, weight, y])?;
                // A bias before a batch norm has no effect.
                if bias == 0 || (layer.norm.is_some() && pass_mode.of_batch) {
                    return Ok(());
                }
                let (rows, wide, channels) =
                    (layer.forward.pixels() as i32, layer.forward.op, layer.forward.o);
                let grid = self.over(rows as usize * wide as usize / 8);
                self.start(self.main, "add_bias", grid, arguments![y, bias, rows, channels, wide, slab])
            }
        }
    }

    /// Enqueues the loss of the batch. `backward` also computes the gradient of its sum times `factor`. With `rates` the loss
    /// is recorded in the history, and the step's learning rate is taken from there.
    pub(crate) fn loss(&self, factor: f32, backward: bool, rates: Option<u64>) -> Result<(), Error> {
        let (last, classes) = (self.program.last(), self.program.graph.classes());
        let (logits, dlogits) = (self.value(last), if backward { self.gradient(last) } else { 0 });
        let (offsets, slab) = (&self.program.offsets, self.program.slab);
        let [labels, losses] = [offsets.labels, offsets.losses].map(|offset| self.address(offset));
        let history = if rates.is_some() { self.address(offsets.history) } else { 0 };
        let rates = rates.unwrap_or(0);
        let (n, classes, wide) = (self.program.batch as i32, classes as i32, pitch(classes) as i32);
        let grid = Grid::row(self.program.batch.div_ceil(8));
        let arguments = arguments![logits, labels, dlogits, losses, n, classes, wide, factor, slab];
        self.start(self.main, "loss", grid, arguments)?;
        // The backward pass does not wait for the sum.
        let stream = if backward { self.fork(2 * self.program.layers.len() + 4)? } else { self.main };
        let grid = Grid { threads: 32, ..Grid::row(1) };
        self.start(stream, "loss_sum", grid, arguments![self.base, losses, n, history, rates, slab])
    }
}

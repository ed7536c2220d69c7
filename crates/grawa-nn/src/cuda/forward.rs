//! Forward passes on a GPU: each step of the plan as the kernels it starts, and the loss.

use super::compile::{Kind, Step, pitch, reader};
use super::device::{Grid, at};
use super::kernel_choice::KernelChoice;
use super::pass::{NORMLESS, Pass, PassMode};
use crate::Error;

impl Pass<'_> {
    /// A forward pass: the logits are there then.
    pub(crate) fn forward(&self, pass_mode: PassMode) -> Result<(), Error> {
        for step in &self.program.steps {
            self.step_forward(step, pass_mode)?;
        }
        Ok(())
    }

    fn step_forward(&self, step: &Step, pass_mode: PassMode) -> Result<(), Error> {
        let (main, slab) = (self.main, self.program.slab);
        let (x, y) = (self.value(step.inputs[0]), self.value(step.output));
        let (from, to) = (self.program.shape(step.inputs[0]), self.program.shape(step.output));
        let batch = self.program.batch;
        match &step.kind {
            Kind::Layer(index) => self.layer_forward(*index, x, y, pass_mode),
            Kind::Norm { norm, relu } => {
                let normed = &self.program.norms[*norm];
                let argument = self.norm(normed, pass_mode.track);
                let rows = batch * from.area();
                if !pass_mode.of_batch {
                    self.start(main, "norm_fold", Grid::row(1), &mut [at(&argument), at(&slab)])?;
                } else if !normed.by_layer && !normed.by_sum {
                    let grid = self.sums("norm_moments", rows, from.channels)?;
                    self.start(
                        main,
                        "norm_moments",
                        grid,
                        &mut [at(&x), at(&(rows as i32)), at(&argument), at(&slab)],
                    )?;
                }
                let other = step.inputs.get(1).map_or(0, |&other| self.value(other));
                let grid = self.down("norm_forward", rows, from.channels)?;
                let relu = i32::from(*relu);
                let rows = rows as i32;
                let mut arguments =
                    [at(&x), at(&other), at(&y), at(&rows), at(&relu), at(&argument), at(&slab)];
                self.start(main, "norm_forward", grid, &mut arguments)
            }
            Kind::AllReduce { relu } => {
                let other = step.inputs.get(1).map_or(0, |&other| self.value(other));
                let eights = self.eights(step.output);
                let relu = i32::from(*relu);
                let reader = reader(&self.program.steps, step.output).map(|norm| &self.program.norms[norm]);
                if let Some(normed) = reader.filter(|normed| normed.by_sum && pass_mode.of_batch) {
                    let (argument, rows) = (self.norm(normed, pass_mode.track), batch * from.area());
                    let (grid, rows) = (self.sums("add_moments", rows, from.channels)?, rows as i32);
                    let mut arguments =
                        [at(&x), at(&other), at(&y), at(&rows), at(&relu), at(&argument), at(&slab)];
                    return self.start(main, "add_moments", grid, &mut arguments);
                }
                let mut arguments = [at(&x), at(&other), at(&y), at(&eights), at(&relu), at(&slab)];
                self.start(main, "add_forward", self.over(eights as usize), &mut arguments)
            }
            Kind::Pool { .. } => {
                let pool = self.pool(step);
                let grid = self.over(self.eights(step.output) as usize);
                self.start(main, "pool_forward", grid, &mut [at(&pool), at(&x), at(&y), at(&slab)])
            }
            Kind::GlobalAverage => {
                let (n, area, wide) = (batch as i32, from.area() as i32, pitch(from.channels) as i32);
                let grid = self.over(self.eights(step.output) as usize);
                let mut arguments = [at(&x), at(&y), at(&n), at(&area), at(&wide), at(&slab)];
                self.start(main, "global_forward", grid, &mut arguments)
            }
            Kind::PadChannels { before } => self.copy(
                step.inputs[0],
                step.output,
                (0, pitch(to.channels)),
                (-(*before as i32), from.channels),
                (1, 1),
                x,
                y,
                0,
            ),
            Kind::Subsample { stride } => self.copy(
                step.inputs[0],
                step.output,
                (0, pitch(to.channels)),
                (0, from.channels),
                (*stride, 1),
                x,
                y,
                0,
            ),
            Kind::Concat => {
                let (second, middle) = (step.inputs[1], from.channels);
                self.copy(step.inputs[0], step.output, (0, middle), (0, middle), (1, 1), x, y, 0)?;
                let rest = (middle, pitch(to.channels));
                self.copy(
                    second,
                    step.output,
                    rest,
                    (-(middle as i32), to.channels - middle),
                    (1, 1),
                    self.value(second),
                    y,
                    0,
                )
            }
            Kind::Dropout { probability, node } => {
                if pass_mode.dropout {
                    return self.drop(step, (*probability, *node), x, y, 0);
                }
                let eights = self.eights(step.output);
                let mut arguments = [at(&x), at(&0u64), at(&y), at(&eights), at(&0i32), at(&slab)];
                self.start(main, "add_forward", self.over(eights as usize), &mut arguments)
            }
        }
    }

    fn layer_forward(&self, index: usize, x: u64, y: u64, pass_mode: PassMode) -> Result<(), Error> {
        let layer = &self.program.layers[index];
        let weight = self.address(self.program.spans[layer.weight.0].working);
        let bias = layer.bias.map_or(0, |bias| self.parameter(bias));
        match &self.layer_kernels[index].forward {
            KernelChoice::Own { name, grid } => {
                let normed = layer
                    .norm
                    .map(|norm| &self.program.norms[norm])
                    .filter(|norm| norm.by_layer && pass_mode.of_batch);
                let argument = match (normed, self.program.norms.first()) {
                    (Some(norm), _) | (None, Some(norm)) => self.norm(norm, pass_mode.track),
                    (None, None) => NORMLESS,
                };
                let moments = i32::from(normed.is_some());
                let mut arguments = [
                    at(&layer.forward),
                    at(&x),
                    at(&weight),
                    at(&bias),
                    at(&y),
                    at(&0i32),
                    at(&moments),
                    at(&argument),
                    at(&self.program.slab),
                ];
                self.start(self.main, name, *grid, &mut arguments)
            }
            KernelChoice::Cudnn(plan) => {
                self.cudnn(self.main, plan, self.program.offsets.workspace, [x, weight, y])?;
                // Before a batch norm a bias changes nothing.
                if bias == 0 || (layer.is_normed && pass_mode.of_batch) {
                    return Ok(());
                }
                let (rows, wide, channels) =
                    (layer.forward.pixels() as i32, layer.forward.op, layer.forward.o);
                let grid = self.over(rows as usize * wide as usize / 8);
                let mut arguments =
                    [at(&y), at(&bias), at(&rows), at(&channels), at(&wide), at(&self.program.slab)];
                self.start(self.main, "add_bias", grid, &mut arguments)
            }
        }
    }

    /// The loss of the batch; `back` leaves the gradient of its sum times `factor`.
    pub(crate) fn loss(&self, factor: f32, back: bool, rates: Option<u64>) -> Result<(), Error> {
        let last = self.program.steps.last().map_or(0, |step| step.output);
        let classes = self.program.graph.classes();
        let (logits, dlogits) = (self.value(last), if back { self.gradient(last) } else { 0 });
        let offsets = &self.program.offsets;
        let [labels, losses] = [offsets.labels, offsets.losses].map(|offset| self.address(offset));
        let history = if rates.is_some() { self.address(offsets.history) } else { 0 };
        let rates = rates.unwrap_or(0);
        let (n, classes, wide) = (self.program.batch as i32, classes as i32, pitch(classes) as i32);
        let mut arguments = [
            at(&self.base),
            at(&logits),
            at(&labels),
            at(&dlogits),
            at(&losses),
            at(&n),
            at(&classes),
            at(&wide),
            at(&factor),
            at(&history),
            at(&rates),
            at(&self.program.slab),
        ];
        self.start(self.main, "loss", Grid { threads: 1024, ..Grid::row(1) }, &mut arguments)
    }
}

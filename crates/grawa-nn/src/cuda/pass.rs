//! Forward and backward passes on a card: each step of the plan as the kernels it starts.
//!
//! A pass is only asked for here; it runs when the card comes to it, or is recorded as a graph. Gradients of kernels run
//! on a side stream, since nothing waits for them until the end.

use super::card::{Event, Grid, Kernels, Stream, at};
use super::cudnn::Cudnn;
use super::engine::{Engine, Ways};
use super::plan::{Flow, Kind, Layer, Normed, Plan, Step, pitch};
use crate::{Error, TensorId};
use std::cell::RefCell;
use std::ffi::c_void;
use std::time::Duration;

/// Batch norm as the kernels read it; see `prelude.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct NormArgument {
    record: u64,
    weight: u64,
    bias: u64,
    running_mean: u64,
    running_variance: u64,
    partial: u64,
    arrived: u64,
    offset: u64,
    channels: i32,
    pitch: i32,
    track: i32,
    count: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Pool {
    n: i32,
    h: i32,
    w: i32,
    oh: i32,
    ow: i32,
    pitch: i32,
    kernel: i32,
    stride: i32,
    pad: i32,
    largest: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Move {
    n: i32,
    h: i32,
    w: i32,
    pitch: i32,
    low: i32,
    high: i32,
    sh: i32,
    sw: i32,
    sp: i32,
    channels: i32,
    shift: i32,
    mul: i32,
    div: i32,
}

/// What a pass is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Manner {
    /// The batch's own statistics, not the running ones.
    pub(crate) of_batch: bool,
    /// Whether the running statistics move.
    pub(crate) track: bool,
    /// Whether dropout drops.
    pub(crate) dropout: bool,
}

/// Time a kernel took, for a profile.
#[derive(Clone, Debug)]
pub(crate) struct Timed {
    pub(crate) name: String,
    pub(crate) time: Duration,
}

/// Everything a pass is asked with.
pub(crate) struct Pass<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) ways: &'a [Ways],
    pub(crate) kernels: &'a Kernels,
    pub(crate) cudnn: Option<&'a Cudnn>,
    pub(crate) main: &'a Stream,
    pub(crate) side: &'a Stream,
    /// Streams for cuDNN's calls of the other replicas: beside the main stream, and beside the side stream.
    pub(crate) lanes: [&'a [Stream]; 2],
    pub(crate) events: &'a [Event],
    pub(crate) base: u64,
    pub(crate) replicas: usize,
    pub(crate) processors: usize,
    /// The tables of spans and chunks.
    pub(crate) spans: u64,
    pub(crate) chunks: u64,
    /// Where times are noted; nothing runs side by side then.
    pub(crate) profile: Option<&'a RefCell<Vec<Timed>>>,
}

impl Pass<'_> {
    /// Starts a kernel on all replicas.
    pub(crate) fn start(
        &self,
        stream: &Stream,
        name: &'static str,
        grid: Grid,
        arguments: &mut [*mut c_void],
    ) -> Result<(), Error> {
        self.timed(name, || stream.launch(self.kernels, name, grid, self.replicas, arguments))
    }

    fn timed(&self, name: &str, work: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        let Some(profile) = self.profile else { return work() };
        let [begin, end] = [0, 1].map(|_| Event::new(&self.kernels.context, true));
        let (begin, end) = (begin?, end?);
        self.main.mark(&begin)?;
        work()?;
        self.main.mark(&end)?;
        self.main.synchronise()?;
        let time = Duration::from_secs_f64(begin.seconds_to(&end)?);
        profile.borrow_mut().push(Timed { name: name.to_owned(), time });
        Ok(())
    }

    pub(crate) fn place(&self, offset: u64) -> u64 {
        if offset == 0 { 0 } else { self.base + offset }
    }

    fn value(&self, node: usize) -> u64 {
        self.place(self.plan.values[node])
    }

    fn gradient(&self, node: usize) -> u64 {
        self.plan.slots[node].map_or(0, |slot| self.base + self.plan.buffers[slot])
    }

    /// Where the gradient of a step's input goes, and whether it is added.
    fn flow(&self, step: &Step, input: usize) -> (u64, i32) {
        match step.flows.get(input) {
            None | Some(Flow::Nowhere | Flow::Shared) => (0, 0),
            Some(flow) => (self.gradient(step.inputs[input]), i32::from(*flow == Flow::Add)),
        }
    }

    fn parameter(&self, id: TensorId) -> u64 {
        self.base + self.plan.offsets.parameters + 4 * u64::from(self.plan.spans[id.0].start)
    }

    fn slope(&self, id: TensorId) -> u64 {
        self.base + self.plan.offsets.gradient + 4 * u64::from(self.plan.spans[id.0].start)
    }

    fn statistic(&self, id: TensorId) -> u64 {
        let start = self.plan.graph.statistics().spans()[id.0].range().start as u64;
        self.base + self.plan.offsets.statistics + 4 * start
    }

    fn norm(&self, norm: &Normed, track: bool) -> NormArgument {
        NormArgument {
            record: self.place(norm.record),
            weight: self.parameter(norm.weight),
            bias: self.parameter(norm.bias),
            running_mean: self.statistic(norm.mean),
            running_variance: self.statistic(norm.variance),
            partial: self.place(norm.partial),
            arrived: self.place(norm.arrived),
            offset: self.unadded(norm),
            channels: norm.shape.channels as i32,
            pitch: pitch(norm.shape.channels) as i32,
            track: i32::from(track),
            count: (self.plan.batch * norm.shape.area()) as f32,
        }
    }

    /// The bias of the layer before a batch norm, where cuDNN leaves it out.
    fn unadded(&self, norm: &Normed) -> u64 {
        let of =
            |layer: &&Layer| layer.norm.is_some_and(|index| self.plan.norms[index].record == norm.record);
        let found = self.plan.layers.iter().zip(self.ways).find(|(layer, _)| of(layer));
        match found {
            Some((Layer { bias: Some(bias), .. }, Ways { forth: Engine::Cudnn(_), .. })) => {
                self.parameter(*bias)
            }
            _ => 0,
        }
    }

    /// A grid for a pass over `items`, a few for each thread.
    fn over(&self, items: usize) -> Grid {
        Grid::row(items.div_ceil(256).clamp(1, 8 * self.processors))
    }

    /// A grid for a walk down rows of that many channels.
    fn down(&self, rows: usize, channels: usize, most: usize) -> Grid {
        let lanes = 256 / (pitch(channels) / 8);
        Grid::row(rows.div_ceil(4 * lanes).clamp(1, most))
    }

    /// The same where channels are summed: see `totals` for the shared memory.
    fn sums(&self, rows: usize, channels: usize) -> Grid {
        let sum = if self.plan.wide == 2 { 4 } else { 8 };
        let shared = (256 * 17 * sum).max(8192 + 16 * pitch(channels));
        let most = summing_blocks(self.processors, self.replicas);
        Grid { shared: shared as u32, ..self.down(rows, channels, most) }
    }

    fn eights(&self, node: usize) -> u64 {
        (self.plan.bytes(node) / self.plan.wide / 8) as u64
    }

    /// A forward pass: the logits are there then.
    pub(crate) fn forward(&self, manner: Manner) -> Result<(), Error> {
        for step in &self.plan.steps {
            self.step_forward(step, manner)?;
        }
        Ok(())
    }

    fn step_forward(&self, step: &Step, manner: Manner) -> Result<(), Error> {
        let (main, slab) = (self.main, self.plan.slab);
        let (x, y) = (self.value(step.inputs[0]), self.value(step.output));
        let (from, to) = (self.plan.shape(step.inputs[0]), self.plan.shape(step.output));
        let batch = self.plan.batch;
        match &step.kind {
            Kind::Layer(index) => self.layer_forward(*index, x, y, manner),
            Kind::Norm { norm, relu } => {
                let normed = &self.plan.norms[*norm];
                let argument = self.norm(normed, manner.track);
                let rows = batch * from.area();
                if !manner.of_batch {
                    self.start(main, "norm_fold", Grid::row(1), &mut [at(&argument), at(&slab)])?;
                } else if !normed.by_layer {
                    let grid = self.sums(rows, from.channels);
                    self.start(
                        main,
                        "norm_moments",
                        grid,
                        &mut [at(&x), at(&(rows as i32)), at(&argument), at(&slab)],
                    )?;
                }
                let other = step.inputs.get(1).map_or(0, |&other| self.value(other));
                let grid = self.down(rows, from.channels, 8 * self.processors);
                let mut arguments = [
                    at(&x),
                    at(&other),
                    at(&y),
                    at(&(rows as i32)),
                    at(&i32::from(*relu)),
                    at(&argument),
                    at(&slab),
                ];
                self.start(main, "norm_forward", grid, &mut arguments)
            }
            Kind::Sum { relu } => {
                let other = step.inputs.get(1).map_or(0, |&other| self.value(other));
                let eights = self.eights(step.output);
                let mut arguments =
                    [at(&x), at(&other), at(&y), at(&eights), at(&i32::from(*relu)), at(&slab)];
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
                if manner.dropout {
                    return self.drop(step, (*probability, *node), x, y, 0);
                }
                let eights = self.eights(step.output);
                let mut arguments = [at(&x), at(&0u64), at(&y), at(&eights), at(&0i32), at(&slab)];
                self.start(main, "add_forward", self.over(eights as usize), &mut arguments)
            }
        }
    }

    fn layer_forward(&self, index: usize, x: u64, y: u64, manner: Manner) -> Result<(), Error> {
        let layer = &self.plan.layers[index];
        let weight = self.place(self.plan.spans[layer.weight.0].working);
        let bias = layer.bias.map_or(0, |bias| self.parameter(bias));
        match &self.ways[index].forth {
            Engine::Own { name, grid } => {
                let normed = layer
                    .norm
                    .map(|norm| &self.plan.norms[norm])
                    .filter(|norm| norm.by_layer && manner.of_batch);
                let argument = match (normed, self.plan.norms.first()) {
                    (Some(norm), _) | (None, Some(norm)) => self.norm(norm, manner.track),
                    (None, None) => NORMLESS,
                };
                let moments = i32::from(normed.is_some());
                let mut arguments = [
                    at(&layer.forth),
                    at(&x),
                    at(&weight),
                    at(&bias),
                    at(&y),
                    at(&0i32),
                    at(&moments),
                    at(&argument),
                    at(&self.plan.slab),
                ];
                self.start(self.main, name, *grid, &mut arguments)
            }
            Engine::Cudnn(plan) => {
                self.cudnn(self.main, plan, self.plan.offsets.workspace, [x, weight, y])?;
                // Before a batch norm a bias changes nothing.
                if bias == 0 || (layer.is_normed && manner.of_batch) {
                    return Ok(());
                }
                let (rows, wide, channels) = (layer.forth.pixels() as i32, layer.forth.op, layer.forth.o);
                let grid = self.over(rows as usize * wide as usize / 8);
                let mut arguments =
                    [at(&y), at(&bias), at(&rows), at(&channels), at(&wide), at(&self.plan.slab)];
                self.start(self.main, "add_bias", grid, &mut arguments)
            }
        }
    }

    /// Runs a plan of cuDNN's for every replica, side by side.
    fn cudnn(
        &self,
        stream: &Stream,
        plan: &super::cudnn::Plan,
        workspace: u64,
        tensors: [u64; 3],
    ) -> Result<(), Error> {
        let Some(cudnn) = self.cudnn else {
            return Err(Error::Device {
                action: "run a convolution".into(),
                why: "cuDNN is not open".into(),
            });
        };
        let aside = usize::from(std::ptr::eq(stream, self.side));
        let lanes = self.lanes[aside];
        let alone = self.replicas == 1 || self.profile.is_some() || lanes.is_empty();
        let lane = |replica: usize| match replica {
            0 => stream,
            _ if alone => stream,
            _ => &lanes[(replica - 1) % lanes.len()],
        };
        // The last events are kept for this.
        let count = lanes.len() + 1;
        let events = &self.events[self.events.len() - (2 - aside) * count..][..count];
        self.timed(plan.name, || {
            if !alone {
                stream.mark(&events[0])?;
                lanes.iter().take(self.replicas - 1).try_for_each(|lane| lane.wait_for(&events[0]))?;
            }
            for replica in 0..self.replicas {
                let shift = self.plan.slab * replica as u64;
                let room = self.place(workspace) + shift;
                cudnn.run(plan, lane(replica), tensors.map(|tensor| tensor + shift), room)?;
            }
            if !alone {
                for (lane, event) in lanes.iter().zip(&events[1..]).take(self.replicas - 1) {
                    lane.mark(event)?;
                    stream.wait_for(event)?;
                }
            }
            Ok(())
        })
    }

    /// The loss of the batch; `back` leaves the gradient of its sum times `factor`.
    pub(crate) fn loss(&self, factor: f32, back: bool, history: bool) -> Result<(), Error> {
        let last = self.plan.steps.last().map_or(0, |step| step.output);
        let classes = self.plan.graph.classes();
        let (logits, dlogits) = (self.value(last), if back { self.gradient(last) } else { 0 });
        let offsets = &self.plan.offsets;
        let [labels, losses] = [offsets.labels, offsets.losses].map(|offset| self.place(offset));
        let history = if history { self.place(offsets.history) } else { 0 };
        let (n, classes, wide) = (self.plan.batch as i32, classes as i32, pitch(classes) as i32);
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
            at(&self.plan.slab),
        ];
        self.start(self.main, "loss", Grid { threads: 1024, ..Grid::row(1) }, &mut arguments)
    }

    /// A backward pass, after a forward pass and the loss; the gradient is left where `collect` finds it.
    pub(crate) fn backward(&self, manner: Manner) -> Result<(), Error> {
        // For each buffer what still reads it on the side.
        let mut readers: Vec<Option<usize>> = vec![None; self.plan.buffers.len()];
        for step in self.plan.steps.iter().rev() {
            if self.plan.slots[step.output].is_none() {
                continue;
            }
            for (&input, flow) in step.inputs.iter().zip(&step.flows) {
                if let (true, Some(slot)) = (matches!(flow, Flow::Store | Flow::Add), self.plan.slots[input])
                    && let Some(reader) = readers[slot].take()
                {
                    self.main.wait_for(&self.events[reader])?;
                }
            }
            self.step_backward(step, manner, &mut readers)?;
        }
        if self.profile.is_none() {
            let last = &self.events[2 * self.plan.layers.len()];
            self.side.mark(last)?;
            self.main.wait_for(last)?;
        }
        Ok(())
    }

    /// Gathers the gradient into its vector.
    pub(crate) fn collect(&self, manner: Manner) -> Result<(), Error> {
        let gradient = self.place(self.plan.offsets.gradient);
        let of_batch = i32::from(manner.of_batch);
        let mut arguments = [
            at(&self.spans),
            at(&self.chunks),
            at(&gradient),
            at(&self.base),
            at(&of_batch),
            at(&self.plan.slab),
        ];
        self.start(self.main, "collect", Grid::row(self.plan.chunks.len()), &mut arguments)
    }

    fn step_backward(&self, step: &Step, manner: Manner, readers: &mut [Option<usize>]) -> Result<(), Error> {
        let (main, slab) = (self.main, self.plan.slab);
        let (x, y, flow) = (self.value(step.inputs[0]), self.value(step.output), self.gradient(step.output));
        let (from, to) = (self.plan.shape(step.inputs[0]), self.plan.shape(step.output));
        let (dx, add) = self.flow(step, 0);
        let (dother, add_other) = self.flow(step, 1);
        let batch = self.plan.batch;
        match &step.kind {
            Kind::Layer(index) => self.layer_backward(*index, step, manner, readers),
            Kind::Norm { norm, relu } => {
                let normed = &self.plan.norms[*norm];
                let argument = self.norm(normed, false);
                let rows = batch * from.area();
                let rows_argument = rows as i32;
                let mask = match (relu, step.inputs.len()) {
                    (false, _) => 0i32,
                    (true, 1) => 1,
                    (true, _) => 2,
                };
                let (dweight, dbias) = (self.slope(normed.weight), self.slope(normed.bias));
                let grid = self.sums(rows, from.channels);
                let mut arguments = [
                    at(&flow),
                    at(&x),
                    at(&y),
                    at(&rows_argument),
                    at(&mask),
                    at(&i32::from(manner.of_batch)),
                    at(&dweight),
                    at(&dbias),
                    at(&argument),
                    at(&slab),
                ];
                self.start(main, "norm_reduce", grid, &mut arguments)?;
                let grid = self.down(rows, from.channels, 8 * self.processors);
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
            Kind::Sum { relu } => {
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
                let wide = self.plan.shape(step.inputs[1]).channels;
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
                if manner.dropout {
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
        manner: Manner,
        readers: &mut [Option<usize>],
    ) -> Result<(), Error> {
        let (layer, ways) = (&self.plan.layers[index], &self.ways[index]);
        let (x, flow) = (self.value(step.inputs[0]), self.gradient(step.output));
        let aside = self.profile.is_none();
        let side = if aside { self.side } else { self.main };
        if aside {
            self.main.mark(&self.events[2 * index])?;
            side.wait_for(&self.events[2 * index])?;
        }
        self.layer_sums(layer, ways, side, x, flow)?;
        if let (Some(bias), false) = (layer.bias, layer.is_normed && manner.of_batch) {
            let (sums, rows) = (self.slope(bias), layer.forth.pixels() as i32);
            let mut arguments = [
                at(&flow),
                at(&sums),
                at(&rows),
                at(&layer.forth.o),
                at(&layer.forth.op),
                at(&self.plan.slab),
            ];
            self.start(side, "channel_sums", Grid::row(layer.forth.o as usize), &mut arguments)?;
        }
        if aside {
            side.mark(&self.events[2 * index + 1])?;
            if let Some(slot) = self.plan.slots[step.output] {
                readers[slot] = Some(2 * index + 1);
            }
        }
        let (dx, add) = self.flow(step, 0);
        if dx == 0 {
            return Ok(());
        }
        let span = &self.plan.spans[layer.weight.0];
        match &ways.back {
            Engine::Own { name, grid } => {
                let turned = self.place(span.turned);
                let mut arguments = [
                    at(&layer.back),
                    at(&flow),
                    at(&turned),
                    at(&0u64),
                    at(&dx),
                    at(&add),
                    at(&0i32),
                    at(&NORMLESS),
                    at(&self.plan.slab),
                ];
                self.start(self.main, name, *grid, &mut arguments)
            }
            Engine::Cudnn(plan) => {
                let to = if add == 0 { dx } else { self.place(self.plan.offsets.arriving) };
                self.cudnn(
                    self.main,
                    plan,
                    self.plan.offsets.workspace,
                    [to, self.place(span.working), flow],
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
                    at(&self.plan.slab),
                ];
                self.start(self.main, "add_backward", self.over(eights as usize), &mut arguments)
            }
        }
    }

    fn layer_sums(
        &self,
        layer: &Layer,
        ways: &Ways,
        stream: &Stream,
        x: u64,
        flow: u64,
    ) -> Result<(), Error> {
        let partial = self.place(self.plan.spans[layer.weight.0].partial);
        match &ways.sums {
            Engine::Own { name, grid } => {
                let mut arguments = [
                    at(&layer.forth),
                    at(&x),
                    at(&flow),
                    at(&partial),
                    at(&(ways.stretch as i32)),
                    at(&self.plan.slab),
                ];
                self.start(stream, name, *grid, &mut arguments)
            }
            Engine::Cudnn(plan) => {
                self.cudnn(stream, plan, self.plan.offsets.side_workspace, [x, partial, flow])
            }
        }
    }

    fn pool(&self, step: &Step) -> Pool {
        let (from, to) = (self.plan.shape(step.inputs[0]), self.plan.shape(step.output));
        let Kind::Pool { window, largest } = &step.kind else {
            unreachable!("only pools are asked for a pool")
        };
        let [n, h, w, oh, ow, pitch, kernel, stride, pad] = [
            self.plan.batch,
            from.height,
            from.width,
            to.height,
            to.width,
            pitch(from.channels),
            window.kernel,
            window.stride,
            window.pad,
        ]
        .map(|x| x as i32);
        Pool { n, h, w, oh, ow, pitch, kernel, stride, pad, largest: i32::from(*largest) }
    }

    /// Channels `low..high` of `to` from those of `from`, `shift` higher and below `limit`; zero where there are none.
    #[allow(clippy::too_many_arguments, reason = "one geometry, two ends")]
    fn copy(
        &self,
        from: usize,
        to: usize,
        (low, high): (usize, usize),
        (shift, limit): (i32, usize),
        (mul, div): (usize, usize),
        source: u64,
        target: u64,
        add: i32,
    ) -> Result<(), Error> {
        let (f, t) = (self.plan.shape(from), self.plan.shape(to));
        let [n, h, w, wide, low_, high_, sh, sw, sp, channels, mul, div] = [
            self.plan.batch,
            t.height,
            t.width,
            pitch(t.channels),
            low,
            high,
            f.height,
            f.width,
            pitch(f.channels),
            limit,
            mul,
            div,
        ]
        .map(|x| x as i32);
        let moved =
            Move { n, h, w, pitch: wide, low: low_, high: high_, sh, sw, sp, channels, shift, mul, div };
        // Eight channels at a time where all begins and ends at eight.
        let whole = [low, high, limit, shift.unsigned_abs() as usize].iter().all(|&x| x % 8 == 0);
        let (name, at_once) = if whole { ("move_eight", 8) } else { ("move_one", 1) };
        let grid = self.over(self.plan.batch * t.area() * (high - low) / at_once);
        self.start(
            self.main,
            name,
            grid,
            &mut [at(&moved), at(&source), at(&target), at(&add), at(&self.plan.slab)],
        )
    }

    fn drop(
        &self,
        step: &Step,
        (probability, node): (f64, usize),
        x: u64,
        y: u64,
        add: i32,
    ) -> Result<(), Error> {
        let shape = self.plan.shape(step.output);
        let bound = (probability * 4_294_967_296.0) as u64;
        let (bound, scale) = (bound.min(u64::from(u32::MAX)) as u32, (1.0 / (1.0 - probability)) as f32);
        let [n, channels, area, wide] =
            [self.plan.batch, shape.channels, shape.area(), pitch(shape.channels)].map(|x| x as i32);
        let mut arguments = [
            at(&self.base),
            at(&(node as u32)),
            at(&bound),
            at(&scale),
            at(&x),
            at(&y),
            at(&n),
            at(&channels),
            at(&area),
            at(&wide),
            at(&add),
            at(&self.plan.slab),
        ];
        let grid = self.over(self.plan.batch * shape.area() * pitch(shape.channels));
        self.start(self.main, "dropout", grid, &mut arguments)
    }
}

/// Blocks that sum channels: enough to fill the card, few enough for one block to add up what they leave.
pub(crate) fn summing_blocks(processors: usize, replicas: usize) -> usize {
    (4 * processors).div_ceil(replicas).max(64)
}

/// For kernels that are told to leave batch norm alone.
const NORMLESS: NormArgument = NormArgument {
    record: 0,
    weight: 0,
    bias: 0,
    running_mean: 0,
    running_variance: 0,
    partial: 0,
    arrived: 0,
    offset: 0,
    channels: 0,
    pitch: 8,
    track: 0,
    count: 1.0,
};

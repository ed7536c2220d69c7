//! What the forward and the backward pass share: the addresses of a step's tensors and the launch of its kernels.
//!
//! A pass is only enqueued. The GPU runs it later, or records it as a graph.

use super::compile::{Layer, Normed, pitch, summing_columns};
use super::device::{Argument, Event, Grid, Stream, arguments, integers};
use super::floors::{self, KernelTime, Place};
use super::joined::PARTS;
use super::kernel_choice::{KernelChoice, LayerKernels};
use super::kernels::Kernels;
use super::replica_set::ReplicaSet;
use crate::plan::{Flow, Step};
use crate::{Error, Op, TensorId};
use bytemuck::Zeroable;
use std::cell::{Cell, RefCell};
use std::time::Duration;

/// Batch norm as the kernels read it; see `prelude.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Zeroable)]
pub(super) struct NormArgument {
    record: u64,
    weight: u64,
    bias: u64,
    running_mean: u64,
    running_variance: u64,
    partial: u64,
    offset: u64,
    epsilon: f64,
    channels: i32,
    pitch: i32,
    track: i32,
    /// Rows of sums that the kernel adds; 0 if the record is complete.
    pub(super) rows: i32,
    count: f32,
    spare: i32,
}

impl NormArgument {
    /// For kernels that skip batch norm.
    pub(super) fn unused() -> Self {
        NormArgument { pitch: 8, count: 1.0, ..Zeroable::zeroed() }
    }

    /// For a kernel that leaves sums of this many channels at `partial`, which nobody reads. It reads numbers at `record`.
    pub(super) fn leaving(partial: u64, record: u64, channels: i32) -> Self {
        NormArgument { record, bias: record, partial, channels, pitch: channels, ..NormArgument::unused() }
    }

    /// Groups of eight channels.
    pub(super) fn groups(&self) -> usize {
        self.pitch as usize / 8
    }
}

/// The backward sums of a batch norm as the kernels read them; see `prelude.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Zeroable)]
pub(super) struct SumsArgument {
    y: u64,
    positive: u64,
    dweight: u64,
    dbias: u64,
    pub(super) mask: i32,
    of_batch: i32,
}

impl SumsArgument {
    /// For a kernel that reads what a batch norm normalised at `y`, and masks by bits there.
    pub(super) fn reading(y: u64) -> Self {
        SumsArgument { y, positive: y, mask: 2, ..Zeroable::zeroed() }
    }
}

/// The tensors that a batch norm reads, or the gradients that it adds to, as the kernels read them; see `norm.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Zeroable)]
pub(super) struct PartsArgument {
    count: i32,
    only_pitch: i32,
    only_at: u64,
    adds: u64,
    first: [i32; PARTS],
    pitch: [i32; PARTS],
    at: [u64; PARTS],
}

/// Moments that another batch norm has computed, and the channels for which it has none, as the kernels read them; see `norm.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownArgument {
    record: u64,
    pitch: i32,
    first_unknown: i32,
    unknown: i32,
}

integers! {
    /// The windows of a pooling; see `simple.cu`.
    struct Pool { n, h, w, oh, ow, pitch, kernel, stride, pad, largest }
}

integers! {
    /// A copy of channels; see `simple.cu`.
    struct Move { n, h, w, pitch, low, high, sh, sw, sp, channels, shift, mul, div }
}

integers! {
    /// The second operand of a sum; see `norm.cu`.
    struct Other { pitch, channels, before }
}

/// What batch norm and dropout do in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PassMode {
    /// Normalise with the statistics of the batch instead of the running ones.
    pub(crate) of_batch: bool,
    /// Update the running statistics.
    pub(crate) track: bool,
    /// Apply dropout.
    pub(crate) dropout: bool,
}

/// What a profiled pass records.
#[derive(Debug, Default)]
pub(crate) struct Times {
    /// Each launch: the kernel, its time, and the least that it could take.
    launches: RefCell<Vec<(String, Duration, Duration)>>,
    /// The step whose kernels are launched.
    place: Cell<Place>,
}

impl Times {
    /// Sums by kernel, the longest first.
    pub(super) fn by_kernel(self) -> Vec<KernelTime> {
        let mut kernels: Vec<KernelTime> = Vec::new();
        for (name, time, floor) in self.launches.into_inner() {
            match kernels.iter_mut().find(|kernel| kernel.name == name) {
                Some(kernel) => {
                    (kernel.calls, kernel.time, kernel.floor) =
                        (kernel.calls + 1, kernel.time + time, kernel.floor + floor);
                }
                None => kernels.push(KernelTime { name, calls: 1, time, floor }),
            }
        }
        kernels.sort_by_key(|kernel| std::cmp::Reverse(kernel.time));
        kernels
    }
}

/// Everything that is needed to enqueue a pass.
///
/// Safety of [`Pass::start`] rests on this contract of its callers. Arguments have the types of the kernel's parameters. Every
/// address among them is the first replica's address of memory that [`Program::allocate`] reserved in every slab for the shapes
/// passed to the kernel, or memory of the replica set that is large enough for them. No address comes from a caller of the replica
/// set: those pass indices, which the replica set checks.
pub(crate) struct Pass<'a> {
    pub(super) set: &'a ReplicaSet,
    /// The first of its replicas, and their number.
    pub(super) first: usize,
    pub(super) workers: usize,
    /// The address of their first slab.
    pub(crate) base: u64,
    /// The stream of the pass, one for what nothing waits for until the end, and events between them.
    pub(super) main: &'a Stream,
    pub(super) side: &'a Stream,
    pub(super) events: &'a [Event],
    /// Where times are recorded. Kernels then run one after the other.
    pub(crate) profile: Option<&'a Times>,
}

/// A pass reads the memory, kernels and streams of its replica set.
impl std::ops::Deref for Pass<'_> {
    type Target = ReplicaSet;

    fn deref(&self) -> &ReplicaSet {
        self.set
    }
}

impl Pass<'_> {
    /// Launches a kernel for all replicas of the pass.
    pub(super) fn start(
        &self,
        stream: &Stream,
        name: &'static str,
        grid: Grid,
        arguments: &mut [Argument<'_>],
    ) -> Result<(), Error> {
        self.start_on(stream, name, grid, self.workers, arguments)
    }

    /// Launches a kernel that loops over the replicas itself.
    pub(super) fn start_once(
        &self,
        name: &'static str,
        grid: Grid,
        arguments: &mut [Argument<'_>],
    ) -> Result<(), Error> {
        self.start_on(self.main, name, grid, 1, arguments)
    }

    #[allow(unsafe_code, reason = "the one place that launches the kernels of a pass")]
    fn start_on(
        &self,
        stream: &Stream,
        name: &'static str,
        grid: Grid,
        replicas: usize,
        arguments: &mut [Argument<'_>],
    ) -> Result<(), Error> {
        self.timed(name, || {
            // SAFETY: the contract of `Pass`. The memory belongs to the replica set, which waits for the GPU before it frees any.
            unsafe { stream.launch(&self.kernels, name, grid, replicas, arguments) }
        })
    }

    #[allow(unsafe_code, reason = "a profile launches a kernel that waits")]
    pub(super) fn timed(&self, name: &str, work: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        let Some(profile) = self.profile else { return work() };
        let [begin, end] = [0, 1].map(|_| Event::new(&self.kernels.context, true));
        let (begin, end) = (begin?, end?);
        // The GPU waits a little first: else it would count the time until the launch arrives.
        // SAFETY: the kernel has no arguments and accesses no memory.
        unsafe { self.main.launch(&self.kernels, "pause", Grid::row(1), 1, &mut []) }?;
        self.main.mark(&begin)?;
        work()?;
        self.main.mark(&end)?;
        self.main.synchronise()?;
        let time = Duration::from_secs_f64(begin.seconds_to(&end)?);
        let (bytes, flops) = floors::work(&self.program, name, profile.place.get());
        let work = (bytes * self.workers, flops * self.workers);
        let floor = floors::time(&self.context.device, self.precision, work);
        profile.launches.borrow_mut().push((name.to_owned(), time, floor));
        Ok(())
    }

    /// Says to which step the next launches belong: its index, and whether it is the backward pass.
    pub(super) fn at_step(&self, place: Place) {
        if let Some(profile) = self.profile {
            profile.place.set(place);
        }
    }

    /// The side stream, after what the main stream has got so far; `event` says so. A profiled pass has the main stream alone.
    pub(super) fn fork(&self, event: usize) -> Result<&Stream, Error> {
        if self.profile.is_some() {
            return Ok(self.main);
        }
        self.main.mark(&self.events[event])?;
        self.side.wait_for(&self.events[event])?;
        Ok(self.side)
    }

    pub(crate) fn address(&self, offset: u64) -> u64 {
        if offset == 0 { 0 } else { self.base + offset }
    }

    pub(super) fn value(&self, node: usize) -> u64 {
        self.address(self.program.values[node])
    }

    pub(super) fn gradient(&self, node: usize) -> u64 {
        self.program.slots[node].map_or(0, |slot| self.base + self.program.buffers[slot])
    }

    /// The address of the gradient of a step's input, and whether to add to it.
    pub(super) fn flow(&self, step: &Step, input: usize) -> (u64, i32) {
        match step.flows.get(input) {
            None | Some(Flow::Nowhere | Flow::Shared) => (0, 0),
            Some(flow) => (self.gradient(step.inputs[input]), i32::from(*flow == Flow::Add)),
        }
    }

    /// The second operand of a batch norm's step: its node, its channels, and the step whose flow leads there. Channels padded
    /// for the sum are not stored.
    pub(super) fn other<'s>(&'s self, index: usize, step: &'s Step) -> (Option<usize>, Other, (u64, i32)) {
        let Some(&node) = step.inputs.get(1).filter(|_| !self.program.is_joined(step)) else {
            return (None, Other { pitch: 8, channels: 0, before: 0 }, (0, 0));
        };
        let (node, before, flow) = match self.program.padding(index) {
            Some((pad, before)) => (pad.inputs[0], before, self.flow(pad, 0)),
            // In the buffer of the step's gradient: what was not masked when that was stored is masked now.
            None if step.flows.get(1) == Some(&Flow::Shared) => {
                let norm = &self.program.norms[self.program.part(step)];
                let masks = norm.positive != 0 && !norm.masked_by_layer;
                (node, 0, (if masks { self.gradient(step.output) } else { 0 }, 0))
            }
            None => (node, 0, self.flow(step, 1)),
        };
        let channels = self.program.shape(node).channels;
        let [pitch, channels, before] = [pitch(channels), channels, before].map(|x| x as i32);
        (Some(node), Other { pitch, channels, before }, flow)
    }

    pub(super) fn parameter(&self, id: TensorId) -> u64 {
        self.base + self.program.offsets.parameters + 4 * u64::from(self.program.spans[id.0].start)
    }

    pub(super) fn slope(&self, id: TensorId) -> u64 {
        self.base + self.program.offsets.gradient + 4 * u64::from(self.program.spans[id.0].start)
    }

    pub(super) fn statistic(&self, id: TensorId) -> u64 {
        let start = self.program.graph.statistics().spans()[id.0].range().start as u64;
        self.base + self.program.offsets.statistics + 4 * start
    }

    pub(super) fn norm(&self, norm: &Normed, track: bool) -> NormArgument {
        NormArgument {
            record: self.address(norm.record),
            weight: self.parameter(norm.weight),
            bias: self.parameter(norm.bias),
            running_mean: self.statistic(norm.mean),
            running_variance: self.statistic(norm.variance),
            partial: self.address(norm.partial),
            offset: self.unadded(norm),
            epsilon: norm.epsilon,
            channels: norm.shape.channels as i32,
            pitch: pitch(norm.shape.channels) as i32,
            track: i32::from(track),
            rows: 0,
            count: (self.program.batch * norm.shape.area()) as f32,
            spare: 0,
        }
    }

    /// A batch norm as a kernel reads it that sums for its moments `channels` channels: all, or the new ones of a concatenation.
    pub(super) fn summed(&self, norm: &Normed, channels: usize) -> NormArgument {
        NormArgument { channels: channels as i32, pitch: pitch(channels) as i32, ..self.norm(norm, false) }
    }

    /// The tensors that a batch norm's step reads: the address of each, and whether to add to it, comes from `place`.
    fn parts(&self, step: &Step, place: impl Fn(usize) -> (u64, i32)) -> PartsArgument {
        let count = if self.program.is_joined(step) { step.inputs.len() } else { 1 };
        let mut parts = PartsArgument { count: count as i32, ..PartsArgument::zeroed() };
        let mut groups = 0;
        for (part, &node) in step.inputs[..count].iter().enumerate() {
            let (at, add) = place(part);
            let pitch = pitch(self.program.shape(node).channels);
            (parts.first[part], parts.pitch[part], parts.at[part]) = (groups, pitch as i32, at);
            parts.adds |= u64::from(at != 0 && add != 0) << part;
            groups += pitch as i32 / 8;
        }
        (parts.only_pitch, parts.only_at) = (parts.pitch[0], parts.at[0]);
        parts
    }

    /// What a batch norm's step reads.
    pub(super) fn values(&self, step: &Step) -> PartsArgument {
        self.parts(step, |part| (self.value(step.inputs[part]), 0))
    }

    /// Where the gradients of that go.
    pub(super) fn flows(&self, step: &Step) -> PartsArgument {
        self.parts(step, |part| self.flow(step, part))
    }

    /// The moments that are known before a batch norm's step, and the number of channels whose moments are not.
    pub(super) fn known(&self, index: usize) -> (KnownArgument, usize) {
        let (record, wide, unknown) = match self.program.known(index) {
            Some((norm, unknown)) => (self.address(norm.record), pitch(norm.shape.channels), unknown),
            None => (0, 0, 0..self.program.shape(self.program.steps[index].node).channels),
        };
        let count = unknown.len();
        let [pitch, first_unknown, unknown] = [wide, unknown.start, pitch(count)].map(|x| x as i32);
        (KnownArgument { record, pitch, first_unknown, unknown }, count)
    }

    /// The backward sums of a batch norm's step.
    pub(super) fn backward_sums(&self, step: &Step, pass_mode: PassMode) -> SumsArgument {
        let norm = &self.program.norms[self.program.part(step)];
        SumsArgument {
            y: self.value(step.inputs[0]),
            positive: self.address(norm.positive),
            dweight: self.slope(norm.weight),
            dbias: self.slope(norm.bias),
            // MASK_BY_VALUE and MASK_BY_BITS in `prelude.cu`.
            mask: match (step.relu, norm.positive != 0) {
                (false, _) => 0,
                (true, false) => 1,
                (true, true) => 2,
            },
            of_batch: i32::from(pass_mode.of_batch),
        }
    }

    /// The bias of the layer before a batch norm, if cuDNN computes the layer and omits it.
    pub(super) fn unadded(&self, norm: &Normed) -> u64 {
        let of =
            |layer: &&Layer| layer.norm.is_some_and(|index| self.program.norms[index].record == norm.record);
        let found = self.program.layers.iter().zip(&self.layer_kernels).find(|(layer, _)| of(layer));
        match found {
            Some((Layer { bias: Some(bias), .. }, LayerKernels { forward: KernelChoice::Cudnn(_), .. })) => {
                self.parameter(*bias)
            }
            _ => 0,
        }
    }

    /// A grid for `items` items, a few for each thread.
    pub(super) fn over(&self, items: usize) -> Grid {
        Grid::row(items.div_ceil(256).clamp(1, 8 * self.context.device.processors))
    }

    /// A grid for rows of `channels` channels. It has no more blocks than are resident at once: a second wave would leave most
    /// of the GPU idle.
    pub(super) fn down(&self, name: &'static str, rows: usize, channels: usize) -> Result<Grid, Error> {
        let lanes = 256 / (pitch(channels) / 8);
        let most = self.kernels.resident(name, 0)?.div_ceil(self.set.workers);
        Ok(Grid::row(rows.div_ceil(4 * lanes).clamp(1, most)))
    }

    /// A grid for sums over rows, with at most 128 channels for each column of blocks. A row of blocks leaves a row of sums. It has
    /// no more blocks than are resident at once, as above.
    pub(super) fn sums(&self, rows: usize, channels: usize) -> Grid {
        let columns = summing_columns(channels);
        let lanes = 256 / (pitch(channels) / 8).div_ceil(columns);
        let blocks = rows.div_ceil(4 * lanes).clamp(1, (self.summing_blocks / columns).max(1));
        let shared = summing_room(self.program.wide);
        Grid { blocks: (blocks as u32, columns as u32), threads: 256, shared }
    }

    /// Has the kernel with grid `reader` add `rows` rows of sums of `channels` channels, and returns true; unless there are so many
    /// that a kernel of its own must add them first.
    pub(super) fn settle_in(
        &self,
        reader: &mut Grid,
        norm: &mut NormArgument,
        rows: usize,
        channels: usize,
    ) -> bool {
        norm.rows = rows as i32;
        let (each, width) = (2 * self.program.wide, pitch(channels));
        let bytes = rows * 2 * width * each;
        let settles = bytes <= SETTLED_BY_BLOCK
            && bytes * reader.blocks.0 as usize * self.set.workers <= SETTLED_BY_READER;
        if settles {
            // See `settled` in `norm.cu`.
            let room = 2 * width * 8 + 1024 * each + norm.pitch as usize * 8;
            reader.shared = reader.shared.max(room as u32);
        }
        settles
    }

    pub(super) fn eights(&self, node: usize) -> u64 {
        (self.program.bytes(node) / self.program.wide / 8) as u64
    }

    /// Enqueues a cuDNN plan for every replica.
    #[allow(unsafe_code, reason = "the one place that runs the cuDNN plans of a pass")]
    pub(super) fn cudnn(
        &self,
        stream: &Stream,
        plan: &super::cudnn::Plan,
        workspace: u64,
        tensors: [u64; 3],
    ) -> Result<(), Error> {
        let Some(cudnn) = &self.cudnn else {
            return Err(Error::device("run a convolution", "cuDNN is not open"));
        };
        self.timed(plan.name, || {
            (0..self.workers).try_for_each(|replica| {
                let shift = self.program.slab * replica as u64;
                let room = self.address(workspace) + shift;
                // SAFETY: the contract of `Pass`. `Program::allocate` reserved the largest workspace of all layers.
                unsafe { cudnn.run(plan, stream, tensors.map(|tensor| tensor + shift), room) }
            })
        })
    }

    pub(super) fn pool(&self, step: &Step) -> Pool {
        let (from, to) = (self.program.shape(step.inputs[0]), self.program.shape(step.output));
        let (Op::MaxPool(window) | Op::AveragePool(window)) = &step.op else {
            unreachable!("called for pooling steps only")
        };
        let largest = matches!(step.op, Op::MaxPool(_));
        let [n, h, w, oh, ow, pitch, kernel, stride, pad] = [
            self.program.batch,
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
        Pool { n, h, w, oh, ow, pitch, kernel, stride, pad, largest: i32::from(largest) }
    }

    /// Copies channels to `low..high` of the target from those of the source shifted by `shift`. Source channels below zero or
    /// from `limit` on read as zero. `mul` and `div` are the strides in the source and in the target.
    pub(super) fn copy(
        &self,
        (from, source): (usize, u64),
        (to, target): (usize, u64),
        (low, high): (usize, usize),
        (shift, limit): (i32, usize),
        (mul, div): (usize, usize),
        add: i32,
    ) -> Result<(), Error> {
        let (f, t) = (self.program.shape(from), self.program.shape(to));
        // Eight channels at a time where all bounds are multiples of eight.
        let whole = [low, high, limit, shift.unsigned_abs() as usize].iter().all(|&x| x % 8 == 0);
        let (name, at_once) = if whole { ("move_eight", 8) } else { ("move_one", 1) };
        let grid = self.over(self.program.batch * t.area() * (high - low) / at_once);
        let [n, h, w, sh, sw] = [self.program.batch, t.height, t.width, f.height, f.width].map(|x| x as i32);
        let [pitch, sp] = [t, f].map(|shape| pitch(shape.channels) as i32);
        let [low, high, channels, mul, div] = [low, high, limit, mul, div].map(|x| x as i32);
        let moved = Move { n, h, w, pitch, low, high, sh, sw, sp, channels, shift, mul, div };
        self.start(self.main, name, grid, arguments![moved, source, target, add, self.program.slab])
    }

    /// Enqueues dropout; it is the same function in both directions.
    pub(super) fn drop(&self, step: &Step, probability: f64, x: u64, y: u64, add: i32) -> Result<(), Error> {
        let shape = self.program.shape(step.output);
        let bound = (probability * 4_294_967_296.0) as u64;
        let (bound, scale) = (bound.min(u64::from(u32::MAX)) as u32, (1.0 / (1.0 - probability)) as f32);
        let [n, channels, area, wide] =
            [self.program.batch, shape.channels, shape.area(), pitch(shape.channels)].map(|x| x as i32);
        let (node, slab) = (step.node as u32, self.program.slab);
        let grid = self.over(self.program.batch * shape.area() * pitch(shape.channels));
        let arguments = arguments![self.base, node, bound, scale, x, y, n, channels, area, wide, add, slab];
        self.start(self.main, "dropout", grid, arguments)
    }
}

/// The blocks with which a kernel sums the channels of one replica: all that the GPU runs at once, but at least 64, however many
/// replicas there are.
pub(crate) fn summing_blocks(kernels: &Kernels, wide: usize, replicas: usize) -> Result<usize, Error> {
    let resident = kernels.resident("norm_reduce", summing_room(wide))?;
    Ok(resident.div_ceil(replicas).max(64))
}

/// Shared memory of a kernel that sums channels; see `store_sums` in `norm.cu`.
fn summing_room(wide: usize) -> u32 {
    256 * 17 * 2 * wide as u32
}

/// The most bytes of sums that a block adds before its work, and all blocks of a kernel together.
const SETTLED_BY_BLOCK: usize = 64 << 10;
const SETTLED_BY_READER: usize = 16 << 20;

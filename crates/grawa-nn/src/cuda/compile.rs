//! A network compiled for a GPU: the steps, what is fused, and the memory layout of a replica's slab.
//!
//! A slab holds all memory of one replica: vectors, statistics, activations, gradients, partial sums. All replicas have the same
//! layout, one slab after the other, so one kernel launch serves all replicas of a chain. Gradient buffers are reused as soon as their
//! contents are consumed.

use super::device::integers;
use super::joined::join;
use super::pooled::{is_pooled, pool, tiles};
use crate::plan::{Flow, Plan, Reuse, Step, fuse};
use crate::{Conv, Error, Graph, Node, Op, Shape, TensorId};
use bytemuck::{Pod, Zeroable};
use std::ops::Range;

integers! {
    /// The geometry of a convolution as the kernels read it; see `prelude.cu`.
    struct ConvGeometry { n, h, w, cp, oh, ow, op, o, kh, kw, mul, off_y, off_x, div }
}

impl ConvGeometry {
    /// Pixels of the target.
    pub(crate) fn pixels(&self) -> usize {
        (self.n * self.oh * self.ow) as usize
    }

    /// Elements of a patch, with channel padding.
    pub(crate) fn columns(&self) -> usize {
        (self.kh * self.kw * self.cp) as usize
    }
}

/// Channels rounded up to a multiple of eight, the number read at a time.
pub(crate) fn pitch(channels: usize) -> usize {
    channels.next_multiple_of(8)
}

/// A convolution, or a linear layer as a convolution over its whole input.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) forward: ConvGeometry,
    pub(crate) backward: ConvGeometry,
    pub(crate) stride: usize,
    pub(crate) pad: usize,
    pub(crate) channels: usize,
    pub(crate) weight: TensorId,
    pub(crate) bias: Option<TensorId>,
    /// The batch norm that is its only reader. Its bias then has no gradient.
    pub(crate) norm: Option<usize>,
    /// The batch norm for whose moments it can sum.
    pub(crate) moments: Option<usize>,
    /// Whether the gradient of its input is added to earlier contributions.
    pub(crate) adds: bool,
    /// The step of the batch norm that made its input, if this layer has the last contribution to the gradient of it: then it can
    /// compute the batch norm's backward sums.
    pub(crate) source: Option<usize>,
}

impl Layer {
    fn new(
        batch: usize,
        (from, to): (Shape, Shape),
        conv: Conv,
        sides: (usize, usize),
        (weight, bias): (TensorId, Option<TensorId>),
    ) -> Self {
        let [n, h, w, oh, ow] = [batch, from.height, from.width, to.height, to.width].map(|x| x as i32);
        let [cp, op] = [from, to].map(|shape| pitch(shape.channels) as i32);
        let [kh, kw, stride, pad] = [sides.0, sides.1, conv.stride, conv.pad].map(|x| x as i32);
        let (o, mul, off_y, off_x, div) = (to.channels as i32, stride, pad, pad, 1);
        let forward = ConvGeometry { n, h, w, cp, oh, ow, op, o, kh, kw, mul, off_y, off_x, div };
        let (o, mul, off_y, off_x, div) = (from.channels as i32, 1, kh - 1 - pad, kw - 1 - pad, stride);
        let (h, w, cp, oh, ow, op) = (oh, ow, op, h, w, cp);
        let backward = ConvGeometry { n, h, w, cp, oh, ow, op, o, kh, kw, mul, off_y, off_x, div };
        let (Conv { stride, pad, .. }, channels) = (conv, from.channels);
        Layer {
            forward,
            backward,
            stride,
            pad,
            channels,
            weight,
            bias,
            norm: None,
            moments: None,
            adds: false,
            source: None,
        }
    }
}

/// A batch norm.
#[derive(Clone, Debug)]
pub(crate) struct Normed {
    pub(crate) shape: Shape,
    pub(crate) weight: TensorId,
    pub(crate) bias: TensorId,
    pub(crate) mean: TensorId,
    pub(crate) variance: TensorId,
    pub(crate) epsilon: f64,
    /// If the layer before it sums for its moments, how many rows of sums it leaves.
    pub(crate) by_layer: Option<usize>,
    /// If the layer after it computes its backward sums, how many rows of sums that leaves.
    pub(crate) flow_by_layer: Option<usize>,
    /// The bits of its results, whether each is positive, if the gradient cannot be masked by what it normalised: it adds a
    /// shortcut before the ReLU.
    pub(crate) positive: u64,
    /// Whether the layer after it masks the gradient by these bits.
    pub(crate) masked_by_layer: bool,
    /// Whether the sum or the batch norm before it computes its moments.
    pub(crate) by_sum: bool,
    pub(crate) record: u64,
    pub(crate) partial: u64,
}

/// A parameter tensor as the kernels read it; see `vector.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub(crate) struct Span {
    pub(crate) start: u32,
    pub(crate) length: u32,
    pub(crate) taps: i32,
    pub(crate) channels: i32,
    pub(crate) pitch: i32,
    pub(crate) out_pitch: i32,
    pub(crate) out: i32,
    pub(crate) source: i32,
    pub(crate) splits: i32,
    pub(crate) spare: i32,
    pub(crate) working: u64,
    pub(crate) flipped: u64,
    pub(crate) partial: u64,
}

/// A range inside one span: the work of a block.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub(crate) struct Chunk {
    pub(crate) start: u32,
    pub(crate) length: u32,
    pub(crate) span: u32,
    pub(crate) spare: u32,
}

/// Whether a step is a batch norm that reads the parts of a concatenation.
fn is_joined(graph: &Graph, step: &Step) -> bool {
    let channels = |node: usize| graph.nodes()[node].shape.channels;
    matches!(step.op, Op::BatchNorm { .. }) && channels(step.inputs[0]) != channels(step.node)
}

/// Columns of blocks that divide the channels when they are summed.
pub(crate) fn summing_columns(channels: usize) -> usize {
    pitch(channels).div_ceil(128)
}

/// Bytes of results of this shape for a whole batch.
pub(crate) fn bytes(shape: Shape, batch: usize, wide: usize) -> usize {
    batch * shape.area() * pitch(shape.channels) * wide
}

/// Numbers in a chunk. Small vectors get small chunks, so that the whole GPU works on them. A thread has at most four numbers,
/// so that neighbouring blocks read neighbouring memory.
fn chunk(numbers: usize) -> usize {
    (numbers / 2048).next_power_of_two().clamp(256, 1024)
}

/// Offsets in a slab, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Offsets {
    pub(crate) parameters: u64,
    pub(crate) velocity: u64,
    pub(crate) gradient: u64,
    pub(crate) saved: u64,
    pub(crate) statistics: u64,
    pub(crate) labels: u64,
    pub(crate) losses: u64,
    pub(crate) history: u64,
    pub(crate) squares: u64,
    pub(crate) norms: u64,
    pub(crate) intake: u64,
    /// Gradients that cuDNN computes before they are added to earlier contributions.
    pub(crate) arriving: u64,
    /// Workspaces of cuDNN: on the main stream, and on the side stream.
    pub(crate) workspace: u64,
    pub(crate) side_workspace: u64,
}

/// Steps whose losses the GPU records.
pub(crate) const HISTORY: usize = 4096;

/// A compiled network.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) graph: Graph,
    pub(crate) batch: usize,
    /// Bytes of a stored number.
    pub(crate) wide: usize,
    /// Whether a step may do the work of the one before it.
    merges: bool,
    pub(crate) steps: Vec<Step>,
    pub(crate) layers: Vec<Layer>,
    pub(crate) norms: Vec<Normed>,
    /// For each node, the index of its layer or batch norm.
    parts: Vec<usize>,
    /// For each node that a sum or a batch norm makes, the batch norm for whose moments that step sums.
    pub(crate) readers: Vec<Option<usize>>,
    /// The offset of each node's result; 0 inside a fused step.
    pub(crate) values: Vec<u64>,
    /// For each node, where its windows record the place of their maximum; 0 if they do not.
    pub(crate) chosen: Vec<u64>,
    /// The index of the buffer of each node's gradient.
    pub(crate) slots: Vec<Option<usize>>,
    /// The bytes of each buffer, and its offset.
    sizes: Vec<usize>,
    pub(crate) buffers: Vec<u64>,
    pub(crate) spans: Vec<Span>,
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) first_chunk: Vec<u32>,
    pub(crate) offsets: Offsets,
    /// Bytes of a slab.
    pub(crate) slab: u64,
}

/// Reserves memory in a slab.
struct Reserve(u64);

impl Reserve {
    fn bytes(&mut self, bytes: usize) -> u64 {
        let at = self.0;
        self.0 = (at + bytes as u64).next_multiple_of(256);
        at
    }
}

/// The memory that the chosen kernels of a layer need.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WorkspaceNeeds {
    /// Partial weight gradients to be summed afterwards; 0 if the gradient is one tensor of stored numbers.
    pub(crate) splits: usize,
    /// Whether the backward pass reads flipped weights.
    pub(crate) flipped: bool,
    /// Rows of sums that are left for the batch norm; none if nothing is summed.
    pub(crate) rows: Option<usize>,
    /// The same for the gradient of the input.
    pub(crate) backward_rows: Option<usize>,
    /// Whether the gradient of the input can be masked.
    pub(crate) masks: bool,
    pub(crate) workspace: usize,
    pub(crate) side_workspace: usize,
}

impl Program {
    /// The steps of a network, before memory is allocated.
    #[cfg(test)]
    pub(crate) fn new(graph: &Graph, batch: usize, wide: usize) -> Result<Self, Error> {
        Program::planned(graph, batch, wide, Reuse::ConsumedOrEqual)
    }

    /// The same, with a choice of when the buffers of gradients are used again.
    pub(crate) fn planned(graph: &Graph, batch: usize, wide: usize, reuse: Reuse) -> Result<Self, Error> {
        let layouts: Vec<usize> = graph.nodes().iter().map(|node| bytes(node.shape, batch, wide)).collect();
        // Every result and gradient is kept for tangents: then nothing is left out.
        let merges = reuse != Reuse::Never;
        let steps = if merges { pool(graph, join(graph, fuse(graph))) } else { fuse(graph) };
        let Plan { steps, slots, buffers } = Plan::new(steps, batch, &layouts, reuse)?;
        let mut program = Program {
            graph: graph.clone(),
            batch,
            wide,
            merges,
            steps,
            layers: Vec::new(),
            norms: Vec::new(),
            parts: vec![0; graph.nodes().len()],
            readers: vec![None; graph.nodes().len()],
            values: vec![0; graph.nodes().len()],
            chosen: vec![0; graph.nodes().len()],
            slots,
            sizes: buffers,
            buffers: Vec::new(),
            spans: Vec::new(),
            chunks: Vec::new(),
            first_chunk: Vec::new(),
            offsets: Offsets::default(),
            slab: 0,
        };
        graph.nodes().iter().enumerate().try_for_each(|(index, node)| program.add_part(index, node))?;
        for step in program.steps.iter().filter(|step| matches!(step.op, Op::Conv { .. } | Op::Linear { .. }))
        {
            let layer = &mut program.layers[program.parts[step.node]];
            layer.adds = step.flows.first() == Some(&Flow::Add);
            let input = step.inputs[0];
            // Backward, the first step that reads the input comes last.
            let is_first = program.steps.iter().find(|step| step.inputs.contains(&input)) == Some(step)
                && step.flows.first().is_some_and(|flow| matches!(flow, Flow::Store | Flow::Add));
            let maker = |maker: &Step| {
                matches!(maker.op, Op::BatchNorm { .. })
                    && maker.output == input
                    && !is_joined(&program.graph, maker)
                    && !is_pooled(&program.graph, maker)
            };
            layer.source = program.steps.iter().position(maker).filter(|_| is_first);
        }
        // A layer, a sum or a batch norm sums for the moments of the first batch norm that needs them.
        for step in &program.steps {
            let norm = program.moments_reader(step.output);
            match (&step.op, norm) {
                (Op::Conv { .. } | Op::Linear { .. }, _) => {
                    program.layers[program.parts[step.node]].moments = norm;
                }
                (Op::Add | Op::BatchNorm { .. }, Some(reader)) if !is_pooled(graph, step) => {
                    program.norms[reader].by_sum = true;
                    program.readers[step.output] = norm;
                }
                _ => {}
            }
        }
        Ok(program)
    }

    /// Adds the layer or the batch norm of a node.
    fn add_part(&mut self, index: usize, node: &Node) -> Result<(), Error> {
        let input = node.inputs.first().map_or(0, |input| input.0);
        let from = self.shape(input);
        match node.op {
            Op::Conv { conv, weight, bias } => {
                self.parts[index] = self.layers.len();
                let sides = (conv.kernel, conv.kernel);
                self.layers.push(Layer::new(self.batch, (from, node.shape), conv, sides, (weight, bias)));
            }
            Op::Linear { weight, bias } => {
                self.parts[index] = self.layers.len();
                let (conv, sides) = (Conv::point(node.shape.channels), (from.height, from.width));
                let tensors = (weight, Some(bias));
                self.layers.push(Layer::new(self.batch, (from, node.shape), conv, sides, tensors));
            }
            Op::BatchNorm { weight, bias, mean, variance, epsilon } => {
                if node.shape.channels > 2048 {
                    return Err(Error::misfit("batch norm on a GPU", node.shape, "at most 2048 channels"));
                }
                self.parts[index] = self.norms.len();
                let is_layer = matches!(self.graph.nodes()[input].op, Op::Conv { .. } | Op::Linear { .. });
                if is_layer && self.graph.only_user(input).is_some() {
                    self.layers[self.parts[input]].norm = Some(self.norms.len());
                }
                self.norms.push(Normed {
                    shape: node.shape,
                    weight,
                    bias,
                    mean,
                    variance,
                    epsilon,
                    by_layer: None,
                    by_sum: false,
                    flow_by_layer: None,
                    positive: 0,
                    masked_by_layer: false,
                    record: 0,
                    partial: 0,
                });
            }
            Op::Input | Op::Relu | Op::Add | Op::MaxPool(_) | Op::AveragePool(_) | Op::GlobalAverage => {}
            Op::PadChannels { .. }
            | Op::Subsample { .. }
            | Op::Concat
            | Op::Dropout { .. }
            | Op::Plain { .. } => {}
        }
        Ok(())
    }

    /// The index of the layer or batch norm that a step computes.
    pub(crate) fn part(&self, step: &Step) -> usize {
        self.parts[step.node]
    }

    /// The first batch norm that reads a node alone, or beside parts whose moments are known.
    fn moments_reader(&self, node: usize) -> Option<usize> {
        let reads = |(index, step): &(usize, &Step)| match (&step.op, self.is_joined(step)) {
            (Op::BatchNorm { .. }, false) => step.inputs[0] == node,
            (Op::BatchNorm { .. }, true) => {
                self.new_parts(*index).is_some_and(|(_, new)| step.inputs[new] == [node])
            }
            _ => false,
        };
        self.steps.iter().enumerate().find(reads).map(|(_, step)| self.part(step))
    }

    /// Whether a batch norm reads the parts of a concatenation.
    pub(crate) fn is_joined(&self, step: &Step) -> bool {
        is_joined(&self.graph, step)
    }

    /// A step before a batch norm's that normalised the same parts without some that lie together, and which those are.
    fn new_parts(&self, index: usize) -> Option<(&Step, Range<usize>)> {
        let step = &self.steps[index];
        let is_whole = |step: &Step| {
            matches!(step.op, Op::BatchNorm { .. }) && (self.is_joined(step) || step.inputs.len() == 1)
        };
        let new = |before: &Step| {
            let count = step.inputs.len().checked_sub(before.inputs.len()).filter(|&count| count > 0)?;
            let first = before.inputs.iter().zip(&step.inputs).take_while(|(a, b)| a == b).count();
            let is_rest = step.inputs[first + count..] == before.inputs[first..];
            (is_rest && is_whole(before)).then_some(first..first + count)
        };
        let found = self.steps[..index].iter().filter_map(|before| Some((before, new(before)?)));
        found.filter(|_| self.is_joined(step)).min_by_key(|(_, parts)| parts.len())
    }

    /// A batch norm before this one that has computed moments of its channels, and the channels of which it has not.
    pub(crate) fn known(&self, index: usize) -> Option<(&Normed, Range<usize>)> {
        let (before, new) = self.new_parts(index)?;
        let inputs = &self.steps[index].inputs;
        let channels = |parts: &[usize]| parts.iter().map(|&part| self.shape(part).channels).sum::<usize>();
        let first = channels(&inputs[..new.start]);
        Some((&self.norms[self.part(before)], first..first + channels(&inputs[new])))
    }

    /// The step before a batch norm's step that only pads the channels of its second operand, and the zero channels in front.
    /// The sum reads what is padded, and the step before is left out: it directly precedes, so nothing else changes in between.
    pub(crate) fn padding(&self, index: usize) -> Option<(&Step, usize)> {
        let (step, before) = (&self.steps[index], self.steps.get(index.checked_sub(1)?)?);
        match (&step.op, &before.op, step.inputs.as_slice()) {
            (Op::BatchNorm { .. }, Op::PadChannels { before: zeros, .. }, &[_, padded])
                if self.merges
                    && !self.is_joined(step)
                    && before.output == padded
                    && zeros.is_multiple_of(8)
                    && self.graph.only_user(padded).is_some() =>
            {
                Some((before, *zeros))
            }
            _ => None,
        }
    }

    /// Whether a step is left out because the next one does its work.
    pub(crate) fn left_out(&self, index: usize) -> bool {
        index + 1 < self.steps.len() && self.padding(index + 1).is_some()
    }

    /// Whether a batch norm pools its result.
    pub(crate) fn is_pooled(&self, step: &Step) -> bool {
        is_pooled(&self.graph, step)
    }

    /// Whether the forward pass records where the maxima of a node are.
    fn records_maxima(&self, node: usize) -> bool {
        matches!(self.graph.nodes()[node].op, Op::MaxPool(_)) && !tiles(&self.graph, node)
    }

    /// Bytes of a node's result for the whole batch.
    pub(crate) fn bytes(&self, node: usize) -> usize {
        bytes(self.shape(node), self.batch, self.wide)
    }

    /// The node of the logits.
    pub(crate) fn last(&self) -> usize {
        self.steps.last().map_or(0, |step| step.output)
    }

    pub(crate) fn shape(&self, node: usize) -> Shape {
        self.graph.nodes()[node].shape
    }

    /// Allocates the slab. `needs` holds what the kernels of each layer need. At most `blocks` blocks sum the channels of a batch
    /// norm.
    pub(crate) fn allocate(&mut self, needs: &[WorkspaceNeeds], blocks: usize) {
        // The controls come first; see `simple.cu`.
        let mut reserve = Reserve(256);
        let (parameters, statistics) = (self.graph.parameters().len(), self.graph.statistics().len());
        let (images, classes) =
            (self.batch * self.graph.input().len(), self.graph.parameters().spans().len());
        self.offsets = Offsets {
            parameters: reserve.bytes(4 * parameters),
            velocity: reserve.bytes(4 * parameters),
            gradient: reserve.bytes(4 * parameters),
            saved: reserve.bytes(4 * parameters),
            statistics: reserve.bytes(4 * statistics),
            labels: reserve.bytes(4 * self.batch),
            losses: reserve.bytes(8 * self.batch),
            history: reserve.bytes(8 * HISTORY),
            norms: reserve.bytes(8 * classes),
            intake: reserve.bytes(4 * images),
            ..Offsets::default()
        };
        self.divide();
        self.offsets.squares = reserve.bytes(8 * self.chunks.len());
        for (layer, need) in self.layers.iter().zip(needs) {
            let columns = layer.forward.columns();
            let numbers = layer.forward.o as usize * columns;
            // cuDNN computes padding channels like others: their weights are zero.
            let padded = layer.forward.op as usize * columns;
            let span = &mut self.spans[layer.weight.0];
            span.taps = layer.forward.kh * layer.forward.kw;
            span.channels = layer.channels as i32;
            span.pitch = layer.forward.cp;
            span.out_pitch = layer.forward.op;
            span.out = layer.forward.o;
            span.working = reserve.bytes(padded * self.wide);
            if need.flipped {
                let flipped = layer.backward.o as usize * layer.backward.columns();
                span.flipped = reserve.bytes(flipped * self.wide);
            }
            span.splits = need.splits as i32;
            (span.source, span.partial) = match need.splits {
                0 => (2, reserve.bytes(padded * self.wide)),
                splits => (1, reserve.bytes(splits * numbers * 4)),
            };
            if let (Some(bias), true) = (layer.bias, layer.norm.is_some()) {
                self.spans[bias.0].source = 3;
            }
        }
        for index in 0..self.norms.len() {
            let layer = self.layers.iter().position(|layer| layer.moments == Some(index));
            let by_layer = layer.and_then(|layer| needs[layer].rows);
            let summed = layer.map_or(0, |layer| self.layers[layer].forward.op as usize);
            let reader = self.layers.iter().position(|layer| {
                layer.source.is_some_and(|step| self.parts[self.steps[step].node] == index)
            });
            let flow_by_layer = reader.and_then(|layer| needs[layer].backward_rows);
            let of_norm = |step: &&Step| matches!(step.op, Op::BatchNorm { .. }) && self.part(step) == index;
            let is_masked =
                |step: &Step| step.relu && step.inputs.len() == 2 && !is_joined(&self.graph, step);
            let masked = self.steps.iter().find(of_norm).filter(|step| is_masked(step));
            let results = masked.map(|step| self.bytes(step.output) / self.wide);
            let norm = &mut self.norms[index];
            if let Some(results) = results {
                norm.positive = reserve.bytes(results / 8);
                norm.masked_by_layer = reader.is_some_and(|layer| needs[layer].masks);
            }
            (norm.by_layer, norm.flow_by_layer) = (by_layer, flow_by_layer);
            let wide = pitch(norm.shape.channels);
            norm.record = reserve.bytes(6 * wide * 4);
            // Two sums per channel for each row. A column of blocks has at most 128 channels.
            let own = (blocks + summing_columns(wide)) * 2 * 128;
            let [rows, flow_rows] = [by_layer, flow_by_layer].map(|rows| rows.unwrap_or(0));
            let by_layers = (rows * summed).max(flow_rows * wide) * 2;
            norm.partial = reserve.bytes(2 * self.wide * own.max(by_layers));
        }
        for node in 0..self.values.len() {
            if node == 0 || self.steps.iter().any(|step| step.output == node) {
                self.values[node] = reserve.bytes(self.bytes(node));
                if self.records_maxima(node) {
                    self.chosen[node] = reserve.bytes(bytes(self.shape(node), self.batch, 2));
                }
            }
        }
        self.buffers = self.sizes.iter().map(|&bytes| reserve.bytes(bytes)).collect();
        let largest = |of: fn(&WorkspaceNeeds) -> usize| needs.iter().map(of).max().unwrap_or(0);
        self.offsets.workspace = reserve.bytes(largest(|need| need.workspace));
        self.offsets.side_workspace = reserve.bytes(largest(|need| need.side_workspace));
        if needs.iter().any(|need| !need.flipped) {
            let widest =
                self.steps.iter().filter(|step| matches!(step.op, Op::Conv { .. } | Op::Linear { .. }));
            let bytes = widest.map(|step| self.bytes(step.inputs[0])).max().unwrap_or(0);
            self.offsets.arriving = reserve.bytes(bytes);
        }
        // A box of a gradient may end up to 112 bytes after its tensor, where nothing is used; see `wide.rs`.
        self.slab = reserve.0 + 256;
    }

    /// A step before which the backward pass has the gradients of most parameters, and the first chunk of those: they can be
    /// updated while it goes on.
    pub(crate) fn early(&self) -> Option<(usize, usize)> {
        // The first step that reads each span.
        let mut first_use = vec![0; self.spans.len()];
        for (index, step) in self.steps.iter().enumerate().rev() {
            let tensors = match &self.graph.nodes()[step.node].op {
                Op::Conv { weight, bias, .. } => vec![Some(*weight), *bias],
                Op::Linear { weight, bias } | Op::BatchNorm { weight, bias, .. } => {
                    vec![Some(*weight), Some(*bias)]
                }
                _ => Vec::new(),
            };
            tensors.into_iter().flatten().for_each(|tensor| first_use[tensor.0] = index);
        }
        let length = self.graph.parameters().len();
        // A layer whose result nothing uses has no backward pass.
        let is_layer = |&step: &usize| {
            let Step { op, output, .. } = &self.steps[step];
            matches!(op, Op::Conv { .. } | Op::Linear { .. }) && self.slots[*output].is_some()
        };
        (1..self.steps.len()).rev().filter(is_layer).find_map(|step| {
            let span = self.spans.len() - first_use.iter().rev().take_while(|&&first| first > step).count();
            let start = self.spans.get(span)?.start as usize;
            (4 * (length - start) >= 3 * length).then_some((step, self.first_chunk[span] as usize))
        })
    }

    /// Divides the parameters into spans and chunks.
    fn divide(&mut self) {
        let chunk = chunk(self.graph.parameters().len());
        for (index, span) in self.graph.parameters().spans().iter().enumerate() {
            self.spans.push(Span {
                start: span.range().start as u32,
                length: span.len() as u32,
                ..Span::default()
            });
            self.first_chunk.push(self.chunks.len() as u32);
            for start in span.range().step_by(chunk) {
                let length = chunk.min(span.range().end - start) as u32;
                self.chunks.push(Chunk { start: start as u32, length, span: index as u32, spare: 0 });
            }
        }
        self.first_chunk.push(self.chunks.len() as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zoo::ZOO;

    /// Steps, gradient buffers, and bytes of a slab at batch 32 in bf16, with the same kernels everywhere.
    const PLANS: [(&str, usize, usize, u64); 11] = [
        ("resnet20", 44, 12, 37_784_576),
        ("resnet56", 116, 12, 113_450_752),
        ("vgg16", 33, 14, 599_020_288),
        ("pyramidnet110", 331, 85, 2_139_725_824),
        ("densenet121", 245, 114, 929_226_496),
        ("wrn28-10", 67, 13, 1_765_025_792),
        ("resnet18-w4", 42, 14, 156_779_008),
        ("resnet18-w6", 42, 14, 308_314_880),
        ("resnet18-w8", 42, 14, 510_064_128),
        ("resnet50", 109, 18, 2_740_478_464),
        ("digits", 5, 5, 2_992_384),
    ];

    /// What is fused and how much memory a worker needs. A change to the plan must be meant: then copy the numbers that this
    /// test prints.
    #[test]
    fn plans_of_the_zoo_are_unchanged() {
        let found = ZOO.map(|entry| {
            let mut program = Program::new(&entry.build(entry.input, entry.classes).unwrap(), 32, 2).unwrap();
            let (rows, workspace, side_workspace) = (None, 1 << 20, 1 << 20);
            let need = WorkspaceNeeds {
                splits: 4,
                flipped: true,
                rows,
                backward_rows: rows,
                masks: false,
                workspace,
                side_workspace,
            };
            program.allocate(&vec![need; program.layers.len()], 64);
            (entry.name, program.steps.len(), program.buffers.len(), program.slab)
        });
        assert_eq!(found, PLANS);
    }

    /// Each batch norm of a DenseNet reads 32 new channels in front of those whose moments are known. All layers sum for a batch
    /// norm, but the three in front of a pooling and the classifier.
    #[test]
    fn moments_are_known_wherever_the_new_channels_are() {
        let unknown = |graph: &Graph| -> Vec<Range<usize>> {
            let program = Program::new(graph, 2, 2).unwrap();
            let known = (0..program.steps.len()).filter_map(|index| program.known(index));
            known.map(|(_, unknown)| unknown).collect()
        };
        let densenet = ZOO.iter().find(|entry| entry.name == "densenet121").unwrap();
        let graph = densenet.build(densenet.input, densenet.classes).unwrap();
        assert_eq!(unknown(&graph), vec![0..32; 58]);
        let layers = Program::new(&graph, 2, 2).unwrap().layers;
        assert_eq!(layers.iter().filter(|layer| layer.moments.is_some()).count(), layers.len() - 4);
        let networks = crate::networks::all_networks();
        let of = |name: &str| unknown(&networks.iter().find(|(found, _)| *found == name).unwrap().1);
        assert_eq!(of("new in front"), [0..24, 0..136, 0..8, 40..64, 80..160]);
        assert_eq!(of("new behind"), [16..40, 40..176, 176..184, 40..64, 80..160]);
    }

    /// Nothing uses the result of the second convolution: it has no backward pass, at which an update could begin.
    #[test]
    fn an_early_update_waits_for_a_layer_with_a_gradient() {
        let mut net = crate::Builder::new("unused", Shape::image(3, 4));
        let x = net.input();
        let a = net.conv(x, "a", Conv::same(8)).unwrap();
        net.conv(a, "unused", Conv::same(8)).unwrap();
        let y = net.linear(a, "b", 64).unwrap();
        let graph = net.finish(y).unwrap();
        let mut program = Program::new(&graph, 2, 2).unwrap();
        program.allocate(&vec![WorkspaceNeeds::default(); program.layers.len()], 1);
        if let Some((step, _)) = program.early() {
            assert!(program.slots[program.steps[step].output].is_some());
        }
    }

    #[test]
    fn what_is_updated_early_no_step_before_reads() {
        for entry in ZOO {
            let mut program = Program::new(&entry.build(entry.input, entry.classes).unwrap(), 2, 2).unwrap();
            program.allocate(&vec![WorkspaceNeeds::default(); program.layers.len()], 1);
            // The first layer of the digits' network has most of the parameters.
            let Some((last, chunk)) = program.early() else {
                assert_eq!(entry.name, "digits");
                continue;
            };
            let early = program.chunks[chunk..].iter().map(|chunk| chunk.length as usize).sum::<usize>();
            assert!(4 * early >= 3 * program.graph.parameters().len(), "{}", entry.name);
            for step in &program.steps[..=last] {
                let (Op::Conv { weight, .. } | Op::Linear { weight, .. } | Op::BatchNorm { weight, .. }) =
                    step.op
                else {
                    continue;
                };
                let is_of_it = |chunk: &Chunk| chunk.span as usize == weight.0;
                assert!(!program.chunks[chunk..].iter().any(is_of_it), "{}", entry.name);
            }
        }
    }
}

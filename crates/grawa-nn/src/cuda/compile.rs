//! A network compiled for a GPU: the steps, what is fused, and the memory layout of a replica's slab.
//!
//! A slab holds all memory of one replica: vectors, statistics, activations, gradients, partial sums. All replicas have the same
//! layout, one slab after the other, so one kernel launch serves every replica. Gradient buffers are reused as soon as their
//! contents are consumed.

use crate::{Conv, Error, Graph, Op, Shape, TensorId, Window};
use bytemuck::{Pod, Zeroable};

/// The geometry of a convolution as the kernels read it; see `prelude.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConvGeometry {
    pub(crate) n: i32,
    pub(crate) h: i32,
    pub(crate) w: i32,
    pub(crate) cp: i32,
    pub(crate) oh: i32,
    pub(crate) ow: i32,
    pub(crate) op: i32,
    pub(crate) o: i32,
    pub(crate) kh: i32,
    pub(crate) kw: i32,
    pub(crate) mul: i32,
    pub(crate) off_y: i32,
    pub(crate) off_x: i32,
    pub(crate) div: i32,
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

/// What happens to the gradient of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// It is not needed: the input is the image.
    Nowhere,
    /// It is stored: the first contribution.
    Store,
    /// It is added to earlier contributions.
    Add,
    /// It is the gradient of the output itself, in the same buffer.
    Shared,
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
    /// The batch norm whose moments it computes: its only reader.
    pub(crate) norm: Option<usize>,
    /// Whether a batch norm is its only reader. Its bias then has no gradient.
    pub(crate) is_normed: bool,
}

/// What a step computes.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// The layer of this index.
    Layer(usize),
    /// The batch norm of this index, plus the second input if there is one, then ReLU if `relu`.
    Norm {
        norm: usize,
        relu: bool,
    },
    /// One input, or the sum of two; then ReLU if `relu`.
    Sum {
        relu: bool,
    },
    Pool {
        window: Window,
        largest: bool,
    },
    GlobalAverage,
    PadChannels {
        before: usize,
    },
    Subsample {
        stride: usize,
    },
    Concat,
    Dropout {
        probability: f64,
        node: usize,
    },
}

/// A batch norm.
#[derive(Clone, Debug)]
pub(crate) struct Normed {
    pub(crate) shape: Shape,
    pub(crate) weight: TensorId,
    pub(crate) bias: TensorId,
    pub(crate) mean: TensorId,
    pub(crate) variance: TensorId,
    /// Whether the layer before it computes its moments.
    pub(crate) by_layer: bool,
    /// Whether the sum before it computes its moments.
    pub(crate) by_sum: bool,
    pub(crate) record: u64,
    pub(crate) partial: u64,
    pub(crate) arrived: u64,
}

/// One step of a pass.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) kind: Kind,
    pub(crate) inputs: Vec<usize>,
    pub(crate) flows: Vec<Flow>,
    pub(crate) output: usize,
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

/// The least number of blocks whose sums one block adds; see `heap` in `prelude.cu`.
const GROUP: usize = 32;

/// Numbers in a chunk. Small vectors get small chunks, so that the whole GPU works on them. A thread has at most four numbers,
/// so that neighbouring blocks read neighbouring memory.
fn chunk(numbers: usize) -> usize {
    (numbers / 1024).next_power_of_two().clamp(256, 1024)
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

/// The first batch norm that reads a node.
pub(crate) fn moments_reader(steps: &[Step], node: usize) -> Option<usize> {
    steps.iter().find_map(|step| match step.kind {
        Kind::Norm { norm, .. } if step.inputs[0] == node => Some(norm),
        _ => None,
    })
}

/// A compiled network.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) graph: Graph,
    pub(crate) batch: usize,
    /// Bytes of a stored number.
    pub(crate) wide: usize,
    pub(crate) steps: Vec<Step>,
    pub(crate) layers: Vec<Layer>,
    pub(crate) norms: Vec<Normed>,
    /// The offset of each node's result; 0 inside a fused step.
    pub(crate) values: Vec<u64>,
    /// The index of the buffer of each node's gradient.
    pub(crate) slots: Vec<Option<usize>>,
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
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkspaceNeeds {
    /// Partial weight gradients to be summed afterwards; 0 if the gradient is one tensor of stored numbers.
    pub(crate) splits: usize,
    /// Whether the backward pass reads flipped weights.
    pub(crate) flipped: bool,
    /// Rows and columns of blocks that leave sums for the batch norm; 0 if there are none.
    pub(crate) blocks: (usize, usize),
    pub(crate) workspace: usize,
    pub(crate) side_workspace: usize,
}

impl Program {
    /// The fused steps of a network, before memory is allocated.
    pub(crate) fn new(graph: &Graph, batch: usize, wide: usize) -> Result<Self, Error> {
        if batch == 0 {
            return Err(Error::WrongLength { what: "the batch".into(), found: 0, expected: 1 });
        }
        let mut normed = graph.nodes().iter().filter(|node| matches!(node.op, Op::BatchNorm { .. }));
        if let Some(node) = normed.find(|node| node.shape.channels > 2048) {
            return Err(Error::DoesNotFit {
                operation: "batch norm on a GPU".into(),
                found: node.shape,
                expected: "at most 2048 channels".into(),
            });
        }
        let mut program = Program {
            graph: graph.clone(),
            batch,
            wide,
            steps: Vec::new(),
            layers: Vec::new(),
            norms: Vec::new(),
            values: vec![0; graph.nodes().len()],
            slots: Vec::new(),
            buffers: Vec::new(),
            spans: Vec::new(),
            chunks: Vec::new(),
            first_chunk: Vec::new(),
            offsets: Offsets::default(),
            slab: 0,
        };
        program.fuse();
        Ok(program)
    }

    /// Bytes of a node's result for the whole batch.
    pub(crate) fn bytes(&self, node: usize) -> usize {
        let shape = self.graph.nodes()[node].shape;
        self.batch * shape.area() * pitch(shape.channels) * self.wide
    }

    /// The node of the logits.
    pub(crate) fn last(&self) -> usize {
        self.steps.last().map_or(0, |step| step.output)
    }

    pub(crate) fn shape(&self, node: usize) -> Shape {
        self.graph.nodes()[node].shape
    }

    fn layer(
        &mut self,
        from: Shape,
        to: Shape,
        conv: Conv,
        sides: (usize, usize),
        tensors: (TensorId, Option<TensorId>),
    ) -> usize {
        let [n, h, w, oh, ow] = [self.batch, from.height, from.width, to.height, to.width].map(|x| x as i32);
        let [cp, op] = [from, to].map(|shape| pitch(shape.channels) as i32);
        let [kh, kw, stride, pad] = [sides.0, sides.1, conv.stride, conv.pad].map(|x| x as i32);
        let (o, mul, off_y, off_x, div) = (to.channels as i32, stride, pad, pad, 1);
        let forward = ConvGeometry { n, h, w, cp, oh, ow, op, o, kh, kw, mul, off_y, off_x, div };
        let (o, mul, off_y, off_x, div) = (from.channels as i32, 1, kh - 1 - pad, kw - 1 - pad, stride);
        let (h, w, cp, oh, ow, op) = (oh, ow, op, h, w, cp);
        let backward = ConvGeometry { n, h, w, cp, oh, ow, op, o, kh, kw, mul, off_y, off_x, div };
        let (weight, bias) = tensors;
        self.layers.push(Layer {
            forward,
            backward,
            stride: conv.stride,
            pad: conv.pad,
            channels: from.channels,
            weight,
            bias,
            norm: None,
            is_normed: false,
        });
        self.layers.len() - 1
    }

    /// Builds the steps. A batch norm takes the sum and the ReLU behind it into its step.
    fn fuse(&mut self) {
        let graph = self.graph.clone();
        let nodes = graph.nodes();
        let mut taken = vec![false; nodes.len()];
        let mut waiting: Vec<Option<Step>> = vec![None; nodes.len()];
        for (index, node) in nodes.iter().enumerate() {
            // A fused step runs at the position of its last node: everything it reads is computed by then.
            if let Some(step) = waiting[index].take() {
                self.steps.push(step);
            }
            if taken[index] {
                continue;
            }
            let mut inputs: Vec<usize> = node.inputs.iter().map(|input| input.0).collect();
            let mut output = index;
            let mut take = |last: &mut usize, wanted: fn(&Op) -> bool| {
                let user = graph.only_user(*last).filter(|&user| wanted(&nodes[user].op) && !taken[user])?;
                taken[user] = true;
                Some(std::mem::replace(last, user))
            };
            let kind = match &node.op {
                Op::Input => continue,
                Op::Conv { conv, weight, bias } => {
                    let sides = (conv.kernel, conv.kernel);
                    Kind::Layer(self.layer(
                        nodes[inputs[0]].shape,
                        node.shape,
                        *conv,
                        sides,
                        (*weight, *bias),
                    ))
                }
                Op::Linear { weight, bias } => {
                    let from = nodes[inputs[0]].shape;
                    let conv = Conv { out: node.shape.channels, kernel: 1, stride: 1, pad: 0, bias: true };
                    Kind::Layer(self.layer(
                        from,
                        node.shape,
                        conv,
                        (from.height, from.width),
                        (*weight, Some(*bias)),
                    ))
                }
                &Op::BatchNorm { weight, bias, mean, variance } => {
                    if let Some(before) = take(&mut output, |op| matches!(op, Op::Add)) {
                        let others = nodes[output].inputs.iter().map(|input| input.0);
                        inputs.extend(others.filter(|&input| input != before));
                    }
                    let relu = take(&mut output, |op| matches!(op, Op::Relu)).is_some();
                    self.norms.push(Normed {
                        shape: node.shape,
                        weight,
                        bias,
                        mean,
                        variance,
                        by_layer: false,
                        by_sum: false,
                        record: 0,
                        partial: 0,
                        arrived: 0,
                    });
                    Kind::Norm { norm: self.norms.len() - 1, relu }
                }
                Op::Relu => Kind::Sum { relu: true },
                Op::Add => Kind::Sum { relu: take(&mut output, |op| matches!(op, Op::Relu)).is_some() },
                Op::MaxPool(window) => Kind::Pool { window: *window, largest: true },
                Op::AveragePool(window) => Kind::Pool { window: *window, largest: false },
                Op::GlobalAverage => Kind::GlobalAverage,
                Op::PadChannels { before, .. } => Kind::PadChannels { before: *before },
                Op::Subsample { stride } => Kind::Subsample { stride: *stride },
                Op::Concat => Kind::Concat,
                Op::Dropout { probability } => Kind::Dropout { probability: *probability, node: index },
            };
            let step = Step { kind, inputs, flows: Vec::new(), output };
            if output == index {
                self.steps.push(step);
            } else {
                waiting[output] = Some(step);
            }
        }
        // A layer whose only reader is a batch norm computes the moments.
        for step in &self.steps {
            let Kind::Norm { norm, .. } = step.kind else { continue };
            let source = step.inputs[0];
            let maker = self.steps.iter().find(|other| other.output == source);
            if let (Some(Step { kind: Kind::Layer(layer), .. }), Some(_)) = (maker, graph.only_user(source)) {
                self.layers[*layer].norm = Some(norm);
                self.layers[*layer].is_normed = true;
            }
        }
        // A sum computes the moments for the first batch norm that reads it.
        for step in
            self.steps.iter().filter(|step| matches!(step.kind, Kind::Sum { .. }) && step.inputs.len() == 2)
        {
            if let Some(norm) = moments_reader(&self.steps, step.output) {
                self.norms[norm].by_sum = true;
            }
        }
    }

    /// Allocates the slab. `needs` holds what the kernels of each layer need, `blocks` the most blocks that sum the channels of a
    /// batch norm.
    pub(crate) fn allocate(&mut self, needs: &[WorkspaceNeeds], blocks: impl Fn(&Normed) -> (usize, usize)) {
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
            losses: reserve.bytes(4 * self.batch),
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
            let span = &mut self.spans[layer.weight.0];
            span.taps = layer.forward.kh * layer.forward.kw;
            span.channels = layer.channels as i32;
            span.pitch = layer.forward.cp;
            span.out_pitch = layer.forward.op;
            span.out = layer.forward.o;
            span.working = reserve.bytes(numbers * self.wide);
            if need.flipped {
                let flipped = layer.backward.o as usize * layer.backward.columns();
                span.flipped = reserve.bytes(flipped * self.wide);
            }
            span.splits = need.splits as i32;
            (span.source, span.partial) = match need.splits {
                0 => (2, reserve.bytes(numbers * self.wide)),
                splits => (1, reserve.bytes(splits * numbers * 4)),
            };
            if let (Some(bias), true) = (layer.bias, layer.is_normed) {
                self.spans[bias.0].source = 3;
            }
        }
        for index in 0..self.norms.len() {
            let layer = self.layers.iter().position(|layer| layer.norm == Some(index));
            let (rows, columns) = layer.map_or((0, 0), |layer| needs[layer].blocks);
            let norm = &mut self.norms[index];
            norm.by_layer = rows > 0;
            let wide = pitch(norm.shape.channels);
            norm.record = reserve.bytes(8 * wide * 4);
            // See `tally`: a row of two sums per channel for each block and for each group of blocks, a counter for each group,
            // and one for the groups. A column of blocks has at most 128 channels.
            let ((own, own_columns), of_layer) = (blocks(norm), rows + rows.div_ceil(GROUP));
            let numbers = (own + own.div_ceil(GROUP)) * own_columns * 2 * 128;
            norm.partial = reserve.bytes(4 * numbers.max(of_layer * columns * 2 * 128));
            norm.arrived = reserve.bytes(
                4 * (own_columns * (own.div_ceil(GROUP) + 1)).max(columns * (rows.div_ceil(GROUP) + 1)),
            );
        }
        for node in 0..self.values.len() {
            if node == 0 || self.steps.iter().any(|step| step.output == node) {
                self.values[node] = reserve.bytes(self.bytes(node));
            }
        }
        let sizes = self.flows();
        self.buffers = sizes.into_iter().map(|bytes| reserve.bytes(bytes)).collect();
        let largest = |of: fn(&WorkspaceNeeds) -> usize| needs.iter().map(of).max().unwrap_or(0);
        self.offsets.workspace = reserve.bytes(largest(|need| need.workspace));
        self.offsets.side_workspace = reserve.bytes(largest(|need| need.side_workspace));
        if needs.iter().any(|need| !need.flipped) {
            let widest = self.steps.iter().filter(|step| matches!(step.kind, Kind::Layer(_)));
            let bytes = widest.map(|step| self.bytes(step.inputs[0])).max().unwrap_or(0);
            self.offsets.arriving = reserve.bytes(bytes);
        }
        self.slab = reserve.0;
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

    /// Decides for each step what happens to the gradients of its inputs, and assigns buffers. Returns the sizes of the buffers.
    fn flows(&mut self) -> Vec<usize> {
        let sizes: Vec<usize> = (0..self.values.len()).map(|node| self.bytes(node)).collect();
        let mut slots: Vec<Option<usize>> = vec![None; sizes.len()];
        // The size of each buffer, and how many gradients it holds.
        let mut buffers: Vec<(usize, usize)> = Vec::new();
        let claim = |buffers: &mut Vec<(usize, usize)>, bytes: usize| {
            let free = buffers.iter().position(|&(size, holders)| size == bytes && holders == 0);
            let slot = free.unwrap_or_else(|| {
                buffers.push((bytes, 0));
                buffers.len() - 1
            });
            buffers[slot].1 += 1;
            Some(slot)
        };
        if let Some(last) = self.steps.last() {
            slots[last.output] = claim(&mut buffers, sizes[last.output]);
        }
        for index in (0..self.steps.len()).rev() {
            let step = &self.steps[index];
            let mut flows = Vec::with_capacity(step.inputs.len());
            for (place, &input) in step.inputs.iter().enumerate() {
                flows.push(match (input, slots[input]) {
                    // Node 0 is the image: it needs no gradient.
                    (0, _) => Flow::Nowhere,
                    (_, Some(_)) => Flow::Add,
                    (_, None) if self.may_share(index, place) => {
                        slots[input] = slots[step.output];
                        slots[input].into_iter().for_each(|slot| buffers[slot].1 += 1);
                        Flow::Shared
                    }
                    (_, None) => {
                        slots[input] = claim(&mut buffers, sizes[input]);
                        Flow::Store
                    }
                });
            }
            slots[step.output].into_iter().for_each(|slot| buffers[slot].1 -= 1);
            self.steps[index].flows = flows;
        }
        self.slots = slots;
        buffers.into_iter().map(|(size, _)| size).collect()
    }

    /// Whether the gradient of a step's input can share the buffer of its output's gradient. Both are equal for a plain sum.
    /// But a step that adds to the buffer must run after every step that reads it as the gradient of the other input.
    fn may_share(&self, index: usize, place: usize) -> bool {
        let step = &self.steps[index];
        let (Kind::Sum { relu: false }, &[a, b]) = (&step.kind, step.inputs.as_slice()) else {
            return false;
        };
        let users = |node: usize| (0..index).filter(move |&user| self.steps[user].inputs.contains(&node));
        let maker = |node: usize| self.steps.iter().position(|step| step.output == node);
        let (this, other) = if place == 0 { (a, b) } else { (b, a) };
        // The step that makes the other input reads the buffer; steps that add to this input's gradient must run after it.
        // Conversely, no step may write before the step that makes this input has read.
        let reads_first = |reader: usize, writers: usize| match (maker(reader), users(writers).max()) {
            (Some(reader), Some(writer)) => reader > writer,
            (_, writer) => writer.is_none(),
        };
        a != b && reads_first(other, this) && reads_first(this, other)
    }
}

//! A network compiled for a GPU: which steps run, what is fused, and where everything lies in a replica's slab.
//!
//! A slab holds all of one replica: vectors, statistics, activations, gradients, partial sums. The slabs of all replicas
//! are laid out alike, one behind the other, so that a kernel serves every replica at once. Memory of gradients is used
//! again once what lay in it has flowed on.

use crate::{Conv, Error, Graph, NodeId, Op, Shape, TensorId, Window};
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

    /// Numbers of a patch, padding of the channels included.
    pub(crate) fn columns(&self) -> usize {
        (self.kh * self.kw * self.cp) as usize
    }
}

/// Channels rounded up so that eight are read at a time.
pub(crate) fn pitch(channels: usize) -> usize {
    channels.next_multiple_of(8)
}

/// Where the gradient of an input goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Nowhere: the input is the image.
    Nowhere,
    /// It is the first to arrive.
    Store,
    /// It is added to what has arrived.
    Add,
    /// It is the gradient of the output itself, which lies in the same buffer.
    Shared,
}

/// A convolution or a linear layer, which is a convolution over the whole of its input.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) forward: ConvGeometry,
    pub(crate) backward: ConvGeometry,
    pub(crate) stride: usize,
    pub(crate) pad: usize,
    pub(crate) channels: usize,
    pub(crate) weight: TensorId,
    pub(crate) bias: Option<TensorId>,
    /// The batch norm that takes its statistics from it, if it is the only one to read it.
    pub(crate) norm: Option<usize>,
    /// Whether nothing but a batch norm reads it, so that its bias has no gradient.
    pub(crate) is_normed: bool,
}

/// What a step computes.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// Layer of that number.
    Layer(usize),
    /// Batch norm of that number, then the sum with the second input if there is one, then ReLU if `relu`.
    Norm {
        norm: usize,
        relu: bool,
    },
    /// The sum of two inputs, or one input; then ReLU.
    AllReduce {
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
    /// Whether its layer takes its moments.
    pub(crate) by_layer: bool,
    /// Whether the sum that makes its input takes its moments.
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

/// A tensor of the parameters as the kernels read it; see `vector.cu`.
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

/// A stretch of one span.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub(crate) struct Chunk {
    pub(crate) start: u32,
    pub(crate) length: u32,
    pub(crate) span: u32,
    pub(crate) spare: u32,
}

/// Blocks whose sums one of them adds, at least; see `heap` in `prelude.cu`.
const GROUP: usize = 32;

/// Numbers of a chunk: few where there are few, so that all of the GPU works on them, and four for each thread at most, so
/// that blocks that run side by side read side by side.
fn chunk(numbers: usize) -> usize {
    (numbers / 1024).next_power_of_two().clamp(256, 1024)
}

/// Places in a slab, in bytes.
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
    /// What cuDNN adds to a gradient that is already there.
    pub(crate) arriving: u64,
    /// Rooms of cuDNN's own: for the way of the activations, and for that of the kernels' gradients.
    pub(crate) workspace: u64,
    pub(crate) side_workspace: u64,
}

/// Steps whose losses are kept on the GPU.
pub(crate) const HISTORY: usize = 4096;

/// The first batch norm that reads a node.
pub(crate) fn reader(steps: &[Step], node: usize) -> Option<usize> {
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
    /// Where the result of each node lies; 0 for those inside a fused step.
    pub(crate) values: Vec<u64>,
    /// For each node the buffer of its gradient.
    pub(crate) slots: Vec<Option<usize>>,
    pub(crate) buffers: Vec<u64>,
    pub(crate) spans: Vec<Span>,
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) first_chunk: Vec<u32>,
    pub(crate) offsets: Offsets,
    /// Bytes of a slab.
    pub(crate) slab: u64,
}

/// Hands out stretches of a slab.
struct Room(u64);

impl Room {
    fn claim(&mut self, bytes: usize) -> u64 {
        let at = self.0;
        self.0 = (at + bytes as u64).next_multiple_of(256);
        at
    }
}

/// What is decided about a layer elsewhere: how its kernels' gradient is found, and whether turned kernels are needed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkspaceNeeds {
    /// Stretches of pixels whose sums are added afterwards; 0 if the gradient is one tensor of stored numbers.
    pub(crate) splits: usize,
    pub(crate) flipped: bool,
    /// Rows and columns of blocks that leave sums for the batch norm; 0 if the layer leaves none.
    pub(crate) blocks: (usize, usize),
    pub(crate) workspace: usize,
    pub(crate) side_workspace: usize,
}

impl Program {
    /// The steps of a network, before anything is placed.
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

    /// Bytes of the results of a node for the whole batch.
    pub(crate) fn bytes(&self, node: usize) -> usize {
        let shape = self.graph.nodes()[node].shape;
        self.batch * shape.area() * pitch(shape.channels) * self.wide
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
        let (kh, kw) = sides;
        let [n, h, w, oh, ow] = [self.batch, from.height, from.width, to.height, to.width].map(|x| x as i32);
        let (cp, op) = (pitch(from.channels) as i32, pitch(to.channels) as i32);
        let (kh, kw, stride, pad) = (kh as i32, kw as i32, conv.stride as i32, conv.pad as i32);
        let forward = ConvGeometry {
            n,
            h,
            w,
            cp,
            oh,
            ow,
            op,
            o: to.channels as i32,
            kh,
            kw,
            mul: stride,
            off_y: pad,
            off_x: pad,
            div: 1,
        };
        let backward = ConvGeometry {
            n,
            h: oh,
            w: ow,
            cp: op,
            oh: h,
            ow: w,
            op: cp,
            o: from.channels as i32,
            kh,
            kw,
            mul: 1,
            off_y: kh - 1 - pad,
            off_x: kw - 1 - pad,
            div: stride,
        };
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

    /// The steps of the graph, with what belongs to a batch norm taken into its step.
    fn fuse(&mut self) {
        let graph = self.graph.clone();
        let nodes = graph.nodes();
        let users = |id: usize| -> Vec<usize> {
            (0..nodes.len()).filter(|&user| nodes[user].inputs.contains(&NodeId(id))).collect()
        };
        let only_user = |id: usize| match users(id).as_slice() {
            &[user] if nodes[user].inputs.iter().filter(|input| input.0 == id).count() == 1 => Some(user),
            _ => None,
        };
        let mut taken = vec![false; nodes.len()];
        let mut waiting: Vec<Option<Step>> = vec![None; nodes.len()];
        for (index, node) in nodes.iter().enumerate() {
            // A fused step stands where its last node stood: all it reads has been computed there.
            if let Some(step) = waiting[index].take() {
                self.steps.push(step);
            }
            if taken[index] {
                continue;
            }
            let mut inputs: Vec<usize> = node.inputs.iter().map(|input| input.0).collect();
            let mut output = index;
            let mut take = |last: &mut usize, wanted: fn(&Op) -> bool| {
                let user = only_user(*last).filter(|&user| wanted(&nodes[user].op) && !taken[user])?;
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
                Op::Relu => Kind::AllReduce { relu: true },
                Op::Add => Kind::AllReduce { relu: take(&mut output, |op| matches!(op, Op::Relu)).is_some() },
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
        // A layer that one batch norm alone reads takes its moments.
        for step in &self.steps {
            let Kind::Norm { norm, .. } = step.kind else { continue };
            let source = step.inputs[0];
            let maker = self.steps.iter().find(|other| other.output == source);
            if let (Some(Step { kind: Kind::Layer(layer), .. }), Some(_)) = (maker, only_user(source)) {
                self.layers[*layer].norm = Some(norm);
                self.layers[*layer].is_normed = true;
            }
        }
        // So does a sum, for the first batch norm that reads it.
        for step in self
            .steps
            .iter()
            .filter(|step| matches!(step.kind, Kind::AllReduce { .. }) && step.inputs.len() == 2)
        {
            if let Some(norm) = reader(&self.steps, step.output) {
                self.norms[norm].by_sum = true;
            }
        }
    }

    /// Places everything in the slab. `demands` says for each layer what its kernels need, `blocks` how many blocks sum
    /// the channels of a batch norm at most.
    pub(crate) fn allocate(&mut self, needs: &[WorkspaceNeeds], blocks: impl Fn(&Normed) -> (usize, usize)) {
        // The controls lie first: see `simple.cu`.
        let mut room = Room(256);
        let (parameters, statistics) = (self.graph.parameters().len(), self.graph.statistics().len());
        let (images, classes) =
            (self.batch * self.graph.input().len(), self.graph.parameters().spans().len());
        self.offsets = Offsets {
            parameters: room.claim(4 * parameters),
            velocity: room.claim(4 * parameters),
            gradient: room.claim(4 * parameters),
            saved: room.claim(4 * parameters),
            statistics: room.claim(4 * statistics),
            labels: room.claim(4 * self.batch),
            losses: room.claim(4 * self.batch),
            history: room.claim(8 * HISTORY),
            norms: room.claim(8 * classes),
            intake: room.claim(4 * images),
            ..Offsets::default()
        };
        self.cut();
        self.offsets.squares = room.claim(8 * self.chunks.len());
        for (layer, need) in self.layers.iter().zip(needs) {
            let columns = layer.forward.columns();
            let numbers = layer.forward.o as usize * columns;
            let span = &mut self.spans[layer.weight.0];
            span.taps = layer.forward.kh * layer.forward.kw;
            span.channels = layer.channels as i32;
            span.pitch = layer.forward.cp;
            span.out_pitch = layer.forward.op;
            span.out = layer.forward.o;
            span.working = room.claim(numbers * self.wide);
            if need.flipped {
                let turned = layer.backward.o as usize * layer.backward.columns();
                span.flipped = room.claim(turned * self.wide);
            }
            span.splits = need.splits as i32;
            (span.source, span.partial) = match need.splits {
                0 => (2, room.claim(numbers * self.wide)),
                splits => (1, room.claim(splits * numbers * 4)),
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
            norm.record = room.claim(8 * wide * 4);
            // See `tally`: a row of two sums a channel from each block, and from each group of blocks; a counter for each
            // group, and one for the groups. A column of blocks has at most 128 channels.
            let ((own, own_columns), of_layer) = (blocks(norm), rows + rows.div_ceil(GROUP));
            let numbers = (own + own.div_ceil(GROUP)) * own_columns * 2 * 128;
            norm.partial = room.claim(4 * numbers.max(of_layer * columns * 2 * 128));
            norm.arrived = room.claim(
                4 * (own_columns * (own.div_ceil(GROUP) + 1)).max(columns * (rows.div_ceil(GROUP) + 1)),
            );
        }
        for node in 0..self.values.len() {
            if node == 0 || self.steps.iter().any(|step| step.output == node) {
                self.values[node] = room.claim(self.bytes(node));
            }
        }
        let sizes = self.flows();
        self.buffers = sizes.into_iter().map(|bytes| room.claim(bytes)).collect();
        let largest = |of: fn(&WorkspaceNeeds) -> usize| needs.iter().map(of).max().unwrap_or(0);
        self.offsets.workspace = room.claim(largest(|need| need.workspace));
        self.offsets.side_workspace = room.claim(largest(|need| need.side_workspace));
        if needs.iter().any(|need| !need.flipped) {
            let widest = self.steps.iter().filter(|step| matches!(step.kind, Kind::Layer(_)));
            let bytes = widest.map(|step| self.bytes(step.inputs[0])).max().unwrap_or(0);
            self.offsets.arriving = room.claim(bytes);
        }
        self.slab = room.0;
    }

    /// Spans and chunks of the parameters.
    fn cut(&mut self) {
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

    /// Says for each step how gradients arrive at its inputs, and gives every gradient a buffer; returns their sizes.
    fn flows(&mut self) -> Vec<usize> {
        let sizes: Vec<usize> = (0..self.values.len()).map(|node| self.bytes(node)).collect();
        let mut slots: Vec<Option<usize>> = vec![None; sizes.len()];
        // Of each buffer its size, and how many gradients lie in it.
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
                    // Node 0 is the image, to which nothing flows.
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

    /// Whether the gradient of a step's input can stay where that of its output lies. It is the same for a plain sum; but
    /// whoever adds to it must come after all who read it as the gradient of another input.
    fn may_share(&self, index: usize, place: usize) -> bool {
        let step = &self.steps[index];
        let (Kind::AllReduce { relu: false }, &[a, b]) = (&step.kind, step.inputs.as_slice()) else {
            return false;
        };
        let users = |node: usize| (0..index).filter(move |&user| self.steps[user].inputs.contains(&node));
        let maker = |node: usize| self.steps.iter().position(|step| step.output == node);
        let (this, other) = if place == 0 { (a, b) } else { (b, a) };
        // The other's maker reads the buffer; only then may those who add to this one write to it. The other way round
        // nobody may write at all before this one's maker has read.
        let reads_first = |reader: usize, writers: usize| match (maker(reader), users(writers).max()) {
            (Some(reader), Some(writer)) => reader > writer,
            (_, writer) => writer.is_none(),
        };
        a != b && reads_first(other, this) && reads_first(this, other)
    }
}

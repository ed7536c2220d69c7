//! A network as a static graph: operations in the order they run, and the layout of its parameters.
//!
//! A graph is built once, by a function of the zoo or by a user's own, with a [`Builder`] that infers every shape and
//! rejects what does not fit. Parameters are in one flat vector in the order in which they were added, which is
//! PyTorch's order, under PyTorch's names. So are the running statistics of batch norm.
//!
//! ```
//! use grawa_nn::{Builder, Conv, Shape};
//! let mut net = Builder::new("tiny", Shape::image(1, 8));
//! let x = net.input();
//! let x = net.conv(x, "conv", Conv::same(4))?;
//! let x = net.batch_norm(x, "bn")?;
//! let x = net.relu(x);
//! let x = net.global_average(x);
//! let graph = { let x = net.linear(x, "fc", 10)?; net.finish(x)? };
//! assert_eq!((graph.parameters().len(), graph.classes()), (4 * 9 + 8 + 50, 10));
//! # Ok::<(), grawa_nn::Error>(())
//! ```

use crate::init::Init;
use crate::op::batch_norm::EPSILON;
use crate::op::plain::Plain;
use crate::{Error, Shape};
use grawa_core::Layout;
use std::fmt;

/// The index of an operation in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub(crate) usize);

/// The index of a tensor among the parameters, or of a statistic among the statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorId(pub(crate) usize);

/// The parts of a vector for a tensor and for the one that follows it; empty if there is none.
pub(crate) fn pair<'v, T>(
    layout: &Layout,
    vector: &'v mut [T],
    first: TensorId,
    second: Option<TensorId>,
) -> [&'v mut [T]; 2] {
    let spans = layout.spans();
    let (front, back) = vector.split_at_mut(spans[first.0].range().end);
    [&mut front[spans[first.0].range().start..], &mut back[..second.map_or(0, |id| spans[id.0].len())]]
}

/// What a node computes.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// The batch of images.
    Input,
    /// A convolution.
    Conv {
        /// Its geometry.
        conv: Conv,
        /// The kernels: out × in × k × k.
        weight: TensorId,
        /// One number for each output channel.
        bias: Option<TensorId>,
    },
    /// Batch normalisation, with a scale and a shift for each channel.
    BatchNorm {
        /// The scale.
        weight: TensorId,
        /// The shift.
        bias: TensorId,
        /// The running mean, among the statistics.
        mean: TensorId,
        /// The running variance, among the statistics.
        variance: TensorId,
        /// What is added to a variance before its root is taken.
        epsilon: f64,
    },
    /// max(x, 0).
    Relu,
    /// The sum of two inputs of one shape.
    Add,
    /// The maximum of each window.
    MaxPool(Window),
    /// The mean of each window; padding does not count.
    AveragePool(Window),
    /// The mean of each channel.
    GlobalAverage,
    /// A matrix and a shift.
    Linear {
        /// The matrix: out × in.
        weight: TensorId,
        /// The shift.
        bias: TensorId,
    },
    /// Zero channels before and after those of the input.
    PadChannels {
        /// How many before.
        before: usize,
        /// How many after.
        after: usize,
    },
    /// Every `stride`-th pixel of every `stride`-th row.
    Subsample {
        /// The stride.
        stride: usize,
    },
    /// The channels of the first input, then those of the second.
    Concat,
    /// In training, each value is zero with this probability, and the others are scaled up.
    Dropout {
        /// The probability.
        probability: f64,
    },
    /// An operation without kernels.
    Plain {
        /// The operation.
        plain: Plain,
        /// The tensors it learns.
        tensors: Vec<TensorId>,
    },
}

/// The geometry of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv {
    /// Output channels.
    pub out: usize,
    /// The side of the kernel.
    pub kernel: usize,
    /// The stride.
    pub stride: usize,
    /// Rows and columns of zeros around the input.
    pub pad: usize,
    /// Whether there is a bias.
    pub bias: bool,
}

impl Conv {
    /// 3 × 3, stride 1, same size, no bias.
    pub const fn same(out: usize) -> Self {
        Conv { out, kernel: 3, stride: 1, pad: 1, bias: false }
    }

    /// 1 × 1, no bias.
    pub const fn point(out: usize) -> Self {
        Conv { out, kernel: 1, stride: 1, pad: 0, bias: false }
    }

    /// The same with a stride.
    pub const fn stride(self, stride: usize) -> Self {
        Conv { stride, ..self }
    }

    /// The same with a bias.
    pub const fn biased(self) -> Self {
        Conv { bias: true, ..self }
    }
}

/// The windows of a pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The side of a window.
    pub kernel: usize,
    /// The distance between windows.
    pub stride: usize,
    /// Rows and columns around the input that are ignored.
    pub pad: usize,
    /// Whether a last window that extends beyond the edge counts.
    pub ceil: bool,
}

impl Window {
    /// Windows that tile the input.
    pub const fn tiles(side: usize) -> Self {
        Window { kernel: side, stride: side, pad: 0, ceil: false }
    }

    /// One window over a whole input.
    pub(crate) fn whole(input: Shape) -> Self {
        Window::tiles(input.height.max(input.width))
    }

    /// How many windows fit along a side; none if they do not move.
    pub(crate) fn count(&self, side: usize) -> Option<usize> {
        let room = (side + 2 * self.pad).checked_sub(self.kernel)?;
        let whole = room.checked_div(self.stride)?;
        let count = if self.ceil { room.div_ceil(self.stride) } else { whole } + 1;
        // A window must begin inside the input or its left padding, as in PyTorch.
        Some(if self.ceil && (count - 1) * self.stride >= side + self.pad { count - 1 } else { count })
    }
}

/// An operation of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What it computes.
    pub op: Op,
    /// Its inputs.
    pub inputs: Vec<NodeId>,
    /// The shape of one example of the result.
    pub shape: Shape,
}

/// A network.
#[derive(Clone, Debug)]
pub struct Graph {
    name: String,
    nodes: Vec<Node>,
    parameters: Layout,
    statistics: Layout,
    pub(crate) inits: Vec<Init>,
}

impl Graph {
    /// The network's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The operations in the order they run; the last one gives the logits.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node of this index.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0]
    }

    /// The nodes that use a node's result, once for each use.
    pub(crate) fn users(&self, id: usize) -> impl Iterator<Item = usize> {
        let uses = move |node: &Node| node.inputs.iter().filter(|input| input.0 == id).count();
        self.nodes.iter().enumerate().flat_map(move |(user, node)| std::iter::repeat_n(user, uses(node)))
    }

    /// The node that uses a node's result, if there is only one and it uses it once.
    pub(crate) fn only_user(&self, id: usize) -> Option<usize> {
        let mut users = self.users(id);
        users.next().filter(|_| users.next().is_none())
    }

    /// The names of the operations that have only their plain form, each once.
    pub(crate) fn plain_operations(&self) -> Vec<&'static str> {
        let mut names = Vec::new();
        for node in &self.nodes {
            if let Op::Plain { plain, .. } = &node.op
                && !names.contains(&plain.name())
            {
                names.push(plain.name());
            }
        }
        names
    }

    /// The layout of the parameters.
    pub fn parameters(&self) -> &Layout {
        &self.parameters
    }

    /// The layout of the running statistics of batch norm.
    pub fn statistics(&self) -> &Layout {
        &self.statistics
    }

    /// The shape of an image.
    pub fn input(&self) -> Shape {
        self.nodes[0].shape
    }

    /// The number of classes.
    pub fn classes(&self) -> usize {
        self.nodes.last().map_or(0, |node| node.shape.channels)
    }

    /// Floating-point operations of a forward pass for one image: those of convolutions and linear layers, which are
    /// nearly all. A multiplication and an addition count as two.
    pub fn flops(&self) -> u64 {
        let of = |node: &Node| {
            let from = |index: usize| self.node(node.inputs[index]).shape;
            let pairs = match &node.op {
                Op::Conv { conv, .. } => node.shape.len() * from(0).channels * conv.kernel * conv.kernel,
                Op::Linear { .. } => node.shape.len() * from(0).len(),
                _ => 0,
            };
            2 * pairs as u64
        };
        self.nodes.iter().map(of).sum()
    }

    /// Scalars of all activations for one image: what a training step must keep or recompute.
    pub fn activations(&self) -> usize {
        self.nodes.iter().map(|node| node.shape.len()).sum()
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.parameters.len();
        writeln!(f, "{}: {total} parameters in {} tensors", self.name, self.parameters.spans().len())?;
        for (index, node) in self.nodes.iter().enumerate() {
            let inputs: Vec<String> = node.inputs.iter().map(|input| input.0.to_string()).collect();
            let (shape, op, inputs) = (node.shape, node.op.describe(self), inputs.join(", "));
            writeln!(f, "{index:5}  {shape:12} {op:40} ← {inputs}")?;
        }
        Ok(())
    }
}

impl Op {
    pub(crate) fn describe(&self, graph: &Graph) -> String {
        let tensor =
            |id: &TensorId| graph.parameters.spans()[id.0].name().trim_end_matches(".weight").to_owned();
        match self {
            Op::Input => "input".into(),
            Op::Conv { conv, weight, .. } => {
                format!("conv {0}×{0} /{1} {2}", conv.kernel, conv.stride, tensor(weight))
            }
            Op::BatchNorm { weight, .. } => format!("batch norm {}", tensor(weight)),
            Op::Relu => "relu".into(),
            Op::Add => "add".into(),
            Op::MaxPool(window) => format!("max pool {0}×{0} /{1}", window.kernel, window.stride),
            Op::AveragePool(window) => format!("average pool {0}×{0} /{1}", window.kernel, window.stride),
            Op::GlobalAverage => "global average".into(),
            Op::Linear { weight, .. } => format!("linear {}", tensor(weight)),
            Op::PadChannels { before, after } => format!("pad channels {before} | {after}"),
            Op::Subsample { stride } => format!("subsample /{stride}"),
            Op::Concat => "concat".into(),
            Op::Dropout { probability } => format!("dropout {probability}"),
            Op::Plain { plain, tensors } => {
                let first = tensors.first().map(|id| format!(" {}", tensor(id)));
                format!("{}{}", plain.name(), first.unwrap_or_default())
            }
        }
    }
}

/// A network under construction.
#[derive(Debug)]
pub struct Builder {
    name: String,
    nodes: Vec<Node>,
    parameters: Vec<(String, Vec<usize>, Init)>,
    statistics: Vec<(String, Vec<usize>)>,
}

impl Builder {
    /// A network that takes images of this shape.
    pub fn new(name: impl Into<String>, input: Shape) -> Self {
        let nodes = vec![Node { op: Op::Input, inputs: Vec::new(), shape: input }];
        Builder { name: name.into(), nodes, parameters: Vec::new(), statistics: Vec::new() }
    }

    /// The batch of images.
    pub fn input(&self) -> NodeId {
        NodeId(0)
    }

    /// The shape of one example of a node's result.
    pub fn shape(&self, node: NodeId) -> Shape {
        self.nodes[node.0].shape
    }

    fn push(&mut self, op: Op, inputs: &[NodeId], shape: Shape) -> NodeId {
        self.nodes.push(Node { op, inputs: inputs.into(), shape });
        NodeId(self.nodes.len() - 1)
    }

    fn learn(&mut self, name: String, shape: Vec<usize>, init: Init) -> TensorId {
        self.parameters.push((name, shape, init));
        TensorId(self.parameters.len() - 1)
    }

    /// A convolution, initialised as PyTorch does by default.
    pub fn conv(&mut self, x: NodeId, name: &str, conv: Conv) -> Result<NodeId, Error> {
        let fan_in = self.shape(x).channels * conv.kernel * conv.kernel;
        self.conv_from(x, name, conv, Init::fan_in(fan_in))
    }

    /// A convolution initialised N(0, √(2 / (k²·out))): Kaiming's normal by fan-out.
    pub fn conv_normal(&mut self, x: NodeId, name: &str, conv: Conv) -> Result<NodeId, Error> {
        self.conv_from(x, name, conv, Init::fan_out(conv.out * conv.kernel * conv.kernel))
    }

    fn conv_from(&mut self, x: NodeId, name: &str, conv: Conv, init: Init) -> Result<NodeId, Error> {
        let found = self.shape(x);
        let side = |length: usize| {
            let room = (length + 2 * conv.pad).checked_sub(conv.kernel)?;
            (conv.stride > 0 && conv.kernel > 0 && conv.out > 0).then(|| room / conv.stride + 1)
        };
        let (Some(height), Some(width)) = (side(found.height), side(found.width)) else {
            let expected = format!(
                "a kernel of {0}×{0} with padding {1} must fit, and stride and channels be positive",
                conv.kernel, conv.pad
            );
            return Err(Error::misfit(format!("convolution {name}"), found, expected));
        };
        let shape = vec![conv.out, found.channels, conv.kernel, conv.kernel];
        let weight = self.learn(format!("{name}.weight"), shape, init);
        let fan_in = found.channels * conv.kernel * conv.kernel;
        let bias =
            conv.bias.then(|| self.learn(format!("{name}.bias"), vec![conv.out], Init::fan_in(fan_in)));
        Ok(self.push(Op::Conv { conv, weight, bias }, &[x], Shape { channels: conv.out, height, width }))
    }

    /// Batch normalisation, scale 1 and shift 0, with PyTorch's ε of 10⁻⁵.
    pub fn batch_norm(&mut self, x: NodeId, name: &str) -> Result<NodeId, Error> {
        self.batch_norm_with(x, name, EPSILON)
    }

    /// The same with another ε.
    pub fn batch_norm_with(&mut self, x: NodeId, name: &str, epsilon: f64) -> Result<NodeId, Error> {
        let shape = self.shape(x);
        // The least ε that f32, in which evaluation normalises, keeps.
        if !(f64::from(f32::MIN_POSITIVE)..=1.0).contains(&epsilon) {
            let expected = format!("ε must be positive and at most 1, not {epsilon}");
            return Err(Error::misfit(format!("batch norm {name}"), shape, expected));
        }
        let channels = vec![shape.channels];
        let weight = self.learn(format!("{name}.weight"), channels.clone(), Init::Constant(1.0));
        let bias = self.learn(format!("{name}.bias"), channels.clone(), Init::Constant(0.0));
        self.statistics.push((format!("{name}.running_mean"), channels.clone()));
        self.statistics.push((format!("{name}.running_var"), channels));
        let count = self.statistics.len();
        let (mean, variance) = (TensorId(count - 2), TensorId(count - 1));
        Ok(self.push(Op::BatchNorm { weight, bias, mean, variance, epsilon }, &[x], shape))
    }

    /// Group normalisation, scale 1 and shift 0. The channels are divided into `groups` groups of one size.
    pub fn group_norm(&mut self, x: NodeId, name: &str, groups: usize) -> Result<NodeId, Error> {
        let shape = self.shape(x);
        if groups == 0 || shape.is_empty() || !shape.channels.is_multiple_of(groups) {
            let expected = format!("{groups} groups must divide the channels");
            return Err(Error::misfit(format!("group norm {name}"), shape, expected));
        }
        let channels = vec![shape.channels];
        let weight = self.learn(format!("{name}.weight"), channels.clone(), Init::Constant(1.0));
        let bias = self.learn(format!("{name}.bias"), channels, Init::Constant(0.0));
        let plain = Plain::GroupNorm { groups };
        Ok(self.push(Op::Plain { plain, tensors: vec![weight, bias] }, &[x], shape))
    }

    /// max(x, 0).
    pub fn relu(&mut self, x: NodeId) -> NodeId {
        self.push(Op::Relu, &[x], self.shape(x))
    }

    /// The sum of two results of one shape.
    pub fn add(&mut self, a: NodeId, b: NodeId) -> Result<NodeId, Error> {
        let (left, right) = (self.shape(a), self.shape(b));
        if left != right {
            return Err(Error::ShapesDiffer { operation: "add", but: "", left, right });
        }
        Ok(self.push(Op::Add, &[a, b], left))
    }

    /// The channels of one result after those of another.
    pub fn concat(&mut self, a: NodeId, b: NodeId) -> Result<NodeId, Error> {
        let (left, right) = (self.shape(a), self.shape(b));
        if (left.height, left.width) != (right.height, right.width) {
            return Err(Error::ShapesDiffer { operation: "concat", but: " but for channels", left, right });
        }
        Ok(self.push(Op::Concat, &[a, b], Shape { channels: left.channels + right.channels, ..left }))
    }

    /// The maximum of each window.
    pub fn max_pool(&mut self, x: NodeId, window: Window) -> Result<NodeId, Error> {
        let shape = self.pooled(x, window, "max pool")?;
        Ok(self.push(Op::MaxPool(window), &[x], shape))
    }

    /// The mean of each window.
    pub fn average_pool(&mut self, x: NodeId, window: Window) -> Result<NodeId, Error> {
        let shape = self.pooled(x, window, "average pool")?;
        Ok(self.push(Op::AveragePool(window), &[x], shape))
    }

    fn pooled(&self, x: NodeId, window: Window, operation: &str) -> Result<Shape, Error> {
        let found = self.shape(x);
        let fits = window.kernel > 0 && window.stride > 0 && 2 * window.pad <= window.kernel;
        match (fits, window.count(found.height), window.count(found.width)) {
            (true, Some(height), Some(width)) => Ok(Shape { height, width, ..found }),
            _ => {
                let side = window.kernel;
                let expected =
                    format!("a window of {side}×{side} must fit, with padding of at most half of it");
                Err(Error::misfit(operation, found, expected))
            }
        }
    }

    /// The mean of each channel.
    pub fn global_average(&mut self, x: NodeId) -> NodeId {
        let channels = self.shape(x).channels;
        self.push(Op::GlobalAverage, &[x], Shape::vector(channels))
    }

    /// A linear layer over its whole input, initialised as PyTorch does by default.
    pub fn linear(&mut self, x: NodeId, name: &str, out: usize) -> Result<NodeId, Error> {
        self.linear_from(x, name, out, None)
    }

    /// A linear layer with an initial bias of zero.
    pub fn linear_unbiased_start(&mut self, x: NodeId, name: &str, out: usize) -> Result<NodeId, Error> {
        self.linear_from(x, name, out, Some(Init::Constant(0.0)))
    }

    fn linear_from(
        &mut self,
        x: NodeId,
        name: &str,
        out: usize,
        bias: Option<Init>,
    ) -> Result<NodeId, Error> {
        let found = self.shape(x);
        if found.is_empty() || out == 0 {
            let expected = "both sides must have at least one number";
            return Err(Error::misfit(format!("linear {name}"), found, expected));
        }
        let default = Init::fan_in(found.len());
        let weight = self.learn(format!("{name}.weight"), vec![out, found.len()], default);
        let bias = self.learn(format!("{name}.bias"), vec![out], bias.unwrap_or(default));
        Ok(self.push(Op::Linear { weight, bias }, &[x], Shape::vector(out)))
    }

    /// Adds zero channels before and after.
    pub fn pad_channels(&mut self, x: NodeId, before: usize, after: usize) -> NodeId {
        let shape = self.shape(x);
        let padded = Shape { channels: shape.channels + before + after, ..shape };
        self.push(Op::PadChannels { before, after }, &[x], padded)
    }

    /// Every `stride`-th pixel.
    pub fn subsample(&mut self, x: NodeId, stride: usize) -> Result<NodeId, Error> {
        let found = self.shape(x);
        if stride == 0 {
            return Err(Error::misfit("subsample", found, "the stride must be positive"));
        }
        let shape =
            Shape { height: found.height.div_ceil(stride), width: found.width.div_ceil(stride), ..found };
        Ok(self.push(Op::Subsample { stride }, &[x], shape))
    }

    /// Dropout.
    pub fn dropout(&mut self, x: NodeId, probability: f64) -> Result<NodeId, Error> {
        let shape = self.shape(x);
        if !(0.0..1.0).contains(&probability) {
            let expected = format!("the probability must be from 0 to below 1, not {probability}");
            return Err(Error::misfit("dropout", shape, expected));
        }
        Ok(self.push(Op::Dropout { probability }, &[x], shape))
    }

    /// The network whose logits are `x`.
    pub fn finish(self, x: NodeId) -> Result<Graph, Error> {
        let found = self.shape(x);
        if x.0 + 1 != self.nodes.len() || found.area() != 1 {
            let expected = "the logits must be the last operation and a plain vector";
            return Err(Error::misfit("finish", found, expected));
        }
        let mut parameters =
            Layout::new(self.parameters.iter().map(|(name, shape, _)| (name.clone(), shape.clone())))?;
        for name in self.silent() {
            parameters = parameters.silence(name)?;
        }
        let statistics = Layout::new(self.statistics)?;
        let inits = self.parameters.into_iter().map(|(_, _, init)| init).collect();
        Ok(Graph { name: self.name, nodes: self.nodes, parameters, statistics, inits })
    }

    /// The biases that only a batch norm reads: a constant added to a channel has no effect on its result.
    fn silent(&self) -> impl Iterator<Item = &str> {
        let mut uses = vec![0; self.nodes.len()];
        self.nodes.iter().flat_map(|node| &node.inputs).for_each(|input| uses[input.0] += 1);
        let is_norm = |node: &&Node| matches!(node.op, Op::BatchNorm { .. });
        let before = self.nodes.iter().filter(is_norm).map(|norm| norm.inputs[0].0);
        before.filter(move |&node| uses[node] == 1).filter_map(|node| match self.nodes[node].op {
            Op::Conv { bias: Some(bias), .. } => Some(self.parameters[bias.0].0.as_str()),
            _ => None,
        })
    }
}

//! A network compiled for a batch size: the steps, what is fused, and the memory layout.
//!
//! A [`Program`] is compiled once and shared. Passes write to an [`Arena`](super::Arena): one for each core or group
//! of cores that runs passes, never one for each worker. Batch norm takes the sum with a shortcut and the following
//! ReLU into its own pass. The memory of gradients is planned ahead: a buffer is reused once its contents are
//! consumed.

use super::block::Blocked;
use super::conv_geometry::ConvGeometry;
use super::convolution::ConvAlgorithm;
use crate::{Error, Graph, NodeId, Op, TensorId, Window};

/// The layout of a node's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Blocked planes.
    Planes(Blocked),
    /// Plain vectors of this length, example by example.
    Vectors(usize),
}

/// What a step computes.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Conv {
        geometry: ConvGeometry,
        algorithm: Box<ConvAlgorithm>,
        weight: TensorId,
        bias: Option<TensorId>,
        moments: bool,
    },
    /// Batch norm, plus the second input if there is one, then ReLU if `relu`.
    Norm {
        weight: TensorId,
        bias: TensorId,
        mean: TensorId,
        variance: TensorId,
        relu: bool,
    },
    Relu,
    Add {
        relu: bool,
    },
    /// Moves or pools pixels; inputs and result are planes.
    Planes(PlaneOp),
    GlobalAverage,
    Linear {
        weight: TensorId,
        bias: TensorId,
    },
    Dropout {
        probability: f64,
    },
}

/// An operation on planes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PlaneOp {
    MaxPool(Window),
    AveragePool(Window),
    PadChannels { before: usize },
    Subsample { stride: usize },
    Concat,
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
}

/// Which gradients of results remain after a backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// Not all: a buffer is reused once its contents are consumed.
    WhatFlows,
    /// All of them.
    All,
}

/// One step of a pass.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) kind: Kind,
    /// The nodes it reads.
    pub(crate) inputs: Vec<usize>,
    /// What happens to the gradient of each.
    pub(crate) flows: Vec<Flow>,
    /// The node whose result it writes.
    pub(crate) output: usize,
}

/// A compiled network.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) graph: Graph,
    pub(crate) batch: usize,
    pub(crate) places: Vec<Place>,
    pub(crate) steps: Vec<Step>,
    /// For each node, the buffer of its gradient.
    pub(crate) slots: Vec<Option<usize>>,
    /// The layout of each buffer.
    pub(crate) buffers: Vec<Place>,
}

impl Program {
    /// Compiles a network for batches of this size.
    pub fn compile(graph: &Graph, batch: usize) -> Result<Self, Error> {
        Program::planned(graph, batch, Keep::WhatFlows)
    }

    /// Compiles with a choice of the gradients to keep.
    pub(crate) fn planned(graph: &Graph, batch: usize, keep: Keep) -> Result<Self, Error> {
        if batch == 0 {
            return Err(Error::WrongLength { what: "the batch".into(), found: 0, expected: 1 });
        }
        let places = places(graph);
        check(graph, &places)?;
        let mut steps = fuse(graph, &places);
        let (slots, buffers) = plan(&mut steps, &places, keep);
        Ok(Program { graph: graph.clone(), batch, places, steps, slots, buffers })
    }

    /// The network.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Images in a batch.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// The planes of a node. Steps on planes exist only for nodes that have them.
    pub(crate) fn planes(&self, node: usize) -> &Blocked {
        match &self.places[node] {
            Place::Planes(blocked) => blocked,
            Place::Vectors(_) => unreachable!("a step on planes reads a node of vectors"),
        }
    }
}

fn places(graph: &Graph) -> Vec<Place> {
    let mut borders = vec![0; graph.nodes().len()];
    for (index, node) in graph.nodes().iter().enumerate() {
        if let Op::Conv { conv, .. } = &node.op {
            let input = &mut borders[node.inputs[0].0];
            *input = conv.pad.max(*input);
            // The backward pass also reads beyond the edge of the output's gradient.
            let place = |id: NodeId| Blocked { shape: graph.node(id).shape, border: 0 };
            let (from, to) = (place(node.inputs[0]), place(NodeId(index)));
            let geometry = ConvGeometry { from, to, kernel: conv.kernel, stride: conv.stride, pad: conv.pad };
            borders[index] = geometry.border_backward().max(borders[index]);
        }
    }
    let mut places: Vec<Place> = Vec::with_capacity(borders.len());
    for (node, border) in graph.nodes().iter().zip(borders) {
        let is_vector = match node.op {
            Op::GlobalAverage | Op::Linear { .. } => true,
            Op::Relu | Op::Add | Op::Dropout { .. } => matches!(places[node.inputs[0].0], Place::Vectors(_)),
            Op::Input
            | Op::Conv { .. }
            | Op::BatchNorm { .. }
            | Op::MaxPool(_)
            | Op::AveragePool(_)
            | Op::PadChannels { .. }
            | Op::Subsample { .. }
            | Op::Concat => false,
        };
        let blocked = Blocked { shape: node.shape, border };
        places.push(if is_vector { Place::Vectors(node.shape.len()) } else { Place::Planes(blocked) });
    }
    places
}

/// Checks that every operation can read its inputs in their layout.
fn check(graph: &Graph, places: &[Place]) -> Result<(), Error> {
    let is_vector = |id: &NodeId| matches!(places[id.0], Place::Vectors(_));
    for node in graph.nodes() {
        let expected = match node.op {
            Op::Input | Op::Relu | Op::Linear { .. } | Op::Dropout { .. } => None,
            Op::Add => {
                let alike = node.inputs.iter().all(|input| is_vector(input) == is_vector(&node.inputs[0]));
                (!alike).then_some("two images, or two results of linear layers and global averages")
            }
            Op::Conv { .. }
            | Op::BatchNorm { .. }
            | Op::MaxPool(_)
            | Op::AveragePool(_)
            | Op::GlobalAverage
            | Op::PadChannels { .. }
            | Op::Subsample { .. }
            | Op::Concat => {
                let vectors = node.inputs.iter().any(is_vector);
                vectors.then_some("images, not results of linear layers or global averages")
            }
        };
        if let Some(expected) = expected {
            let operation = format!("{} on the CPU", node.op.describe(graph));
            return Err(Error::DoesNotFit { operation, found: node.shape, expected: expected.into() });
        }
    }
    Ok(())
}

/// The steps of a graph. A batch norm takes the sum and the ReLU behind it into its step.
fn fuse(graph: &Graph, places: &[Place]) -> Vec<Step> {
    let nodes = graph.nodes();
    let is_relu = |id: usize| matches!(nodes[id].op, Op::Relu);
    let mut taken = vec![false; nodes.len()];
    let mut steps = Vec::new();
    // A fused step runs at the position of its last node: everything it reads is computed by then.
    let mut waiting: Vec<Option<Step>> = vec![None; nodes.len()];
    for (index, node) in nodes.iter().enumerate() {
        if let Some(step) = waiting[index].take() {
            steps.push(step);
        }
        if taken[index] {
            continue;
        }
        let inputs: Vec<usize> = node.inputs.iter().map(|input| input.0).collect();
        let on_planes = matches!(places[index], Place::Planes(_));
        let mut step = Step { kind: Kind::Relu, inputs, flows: Vec::new(), output: index };
        step.kind = match &node.op {
            Op::Input => continue,
            Op::Conv { conv, weight, bias } => {
                let (Place::Planes(from), Place::Planes(to)) = (places[step.inputs[0]], places[index]) else {
                    unreachable!("convolutions read and write planes")
                };
                let geometry =
                    ConvGeometry { from, to, kernel: conv.kernel, stride: conv.stride, pad: conv.pad };
                let moments = graph.users(index).any(|user| matches!(nodes[user].op, Op::BatchNorm { .. }));
                Kind::Conv {
                    geometry,
                    algorithm: Box::new(ConvAlgorithm::of(&geometry)),
                    weight: *weight,
                    bias: *bias,
                    moments,
                }
            }
            &Op::BatchNorm { weight, bias, mean, variance } => {
                let mut last = index;
                let sum =
                    graph.only_user(last).filter(|&user| matches!(nodes[user].op, Op::Add) && !taken[user]);
                if let Some(sum) = sum {
                    let other = nodes[sum].inputs.iter().map(|input| input.0).find(|&input| input != last);
                    step.inputs.extend(other);
                    last = sum;
                    taken[sum] = true;
                }
                let relu = graph.only_user(last).filter(|&user| is_relu(user));
                if let Some(relu) = relu {
                    last = relu;
                    taken[relu] = true;
                }
                step.output = last;
                Kind::Norm { weight, bias, mean, variance, relu: relu.is_some() }
            }
            Op::Relu => Kind::Relu,
            Op::Add => {
                let relu = graph.only_user(index).filter(|&user| is_relu(user) && on_planes);
                if let Some(relu) = relu {
                    step.output = relu;
                    taken[relu] = true;
                }
                Kind::Add { relu: relu.is_some() }
            }
            Op::MaxPool(window) => Kind::Planes(PlaneOp::MaxPool(*window)),
            Op::AveragePool(window) => Kind::Planes(PlaneOp::AveragePool(*window)),
            Op::GlobalAverage => Kind::GlobalAverage,
            Op::Linear { weight, bias } => Kind::Linear { weight: *weight, bias: *bias },
            Op::PadChannels { before, .. } => Kind::Planes(PlaneOp::PadChannels { before: *before }),
            Op::Subsample { stride } => Kind::Planes(PlaneOp::Subsample { stride: *stride }),
            Op::Concat => Kind::Planes(PlaneOp::Concat),
            Op::Dropout { probability } => Kind::Dropout { probability: *probability },
        };
        if step.output == index {
            steps.push(step);
        } else {
            let at = step.output;
            waiting[at] = Some(step);
        }
    }
    steps
}

/// Decides for each step what happens to the gradients of its inputs, and assigns buffers. Buffers of the same layout
/// are reused in the order of the backward pass, unless all are kept.
fn plan(steps: &mut [Step], places: &[Place], keep: Keep) -> (Vec<Option<usize>>, Vec<Place>) {
    let mut slots: Vec<Option<usize>> = vec![None; places.len()];
    let (mut buffers, mut free): (Vec<Place>, Vec<usize>) = (Vec::new(), Vec::new());
    let mut claim =
        |place: Place, free: &mut Vec<usize>| match free.iter().position(|&slot| buffers[slot] == place) {
            Some(at) => free.swap_remove(at),
            None => {
                buffers.push(place);
                buffers.len() - 1
            }
        };
    if let Some(last) = steps.last() {
        slots[last.output] = Some(claim(places[last.output], &mut free));
    }
    for step in steps.iter_mut().rev() {
        for &input in &step.inputs {
            // Node 0 is the image: it needs no gradient.
            step.flows.push(match (input, slots[input]) {
                (0, _) => Flow::Nowhere,
                (_, Some(_)) => Flow::Add,
                (_, None) => {
                    slots[input] = Some(claim(places[input], &mut free));
                    Flow::Store
                }
            });
        }
        free.extend(slots[step.output].filter(|_| keep == Keep::WhatFlows));
    }
    (slots, buffers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Builder, Shape};

    /// Networks that mix vectors and planes are rejected at compile time.
    #[test]
    fn vectors_and_planes_do_not_mix() {
        let built = |make: fn(&mut Builder) -> Result<NodeId, Error>| {
            let mut net = Builder::new("mixed", Shape::image(3, 1));
            let last = make(&mut net).unwrap();
            Program::compile(&net.finish(last).unwrap(), 2).map(|_| ())
        };
        let fault = |made: Result<(), Error>| made.unwrap_err().to_string();
        // An image of one pixel has the shape of its average.
        let text = fault(built(|net| {
            let average = net.global_average(net.input());
            net.add(average, net.input())
        }));
        assert!(text.contains("add") && text.contains("two images"), "{text}");
        let text = fault(built(|net| {
            let average = net.global_average(net.input());
            net.concat(net.input(), average)
        }));
        assert!(text.contains("concat") && text.contains("on the CPU"), "{text}");
        let text = fault(built(|net| {
            let average = net.global_average(net.input());
            net.batch_norm(average, "bn")
        }));
        assert!(text.contains("batch norm"), "{text}");
        let sum = built(|net| {
            let average = net.global_average(net.input());
            let out = net.linear(average, "fc", 3)?;
            net.add(out, average)
        });
        assert!(sum.is_ok());
    }
}

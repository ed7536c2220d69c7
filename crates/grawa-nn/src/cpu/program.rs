//! A network compiled for a batch size: the steps, what is fused, and the memory layout.
//!
//! A [`Program`] is compiled once and shared. Passes write to an [`Arena`](super::Arena): one for each core or group
//! of cores that runs passes, never one for each worker. Batch norm takes the sum with a shortcut and the following
//! ReLU into its own step. The memory of gradients is planned ahead: a buffer is reused once its contents are
//! consumed.

use super::block::Blocked;
use super::conv_geometry::ConvGeometry;
use super::convolution::ConvAlgorithm;
use crate::plan::{Plan, Reuse, Step, fuse};
use crate::{Error, Graph, Node, NodeId, Op};
use std::collections::BTreeMap;

/// The layout of a node's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Blocked planes.
    Planes(Blocked),
    /// Plain vectors of this length, example by example.
    Vectors(usize),
}

/// A convolution of a program.
#[derive(Clone, Debug)]
pub(crate) struct ConvStep {
    pub(crate) geometry: ConvGeometry,
    pub(crate) algorithm: ConvAlgorithm,
    /// Whether a batch norm reads its result, so that it computes the moments.
    pub(crate) moments: bool,
}

/// A compiled network.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) graph: Graph,
    pub(crate) batch: usize,
    pub(crate) places: Vec<Place>,
    pub(crate) steps: Vec<Step>,
    /// The convolutions by node.
    pub(crate) convolutions: BTreeMap<usize, ConvStep>,
    /// For each node, the buffer of its gradient.
    pub(crate) slots: Vec<Option<usize>>,
    /// The layout of each buffer.
    pub(crate) buffers: Vec<Place>,
    /// Whether all gradients remain after a backward pass.
    pub(crate) keeps: bool,
}

impl Program {
    /// Compiles a network for batches of this size.
    pub fn compile(graph: &Graph, batch: usize) -> Result<Self, Error> {
        Program::planned(graph, batch, Reuse::Consumed)
    }

    /// Compiles with a choice of when the buffers of gradients are reused.
    pub(crate) fn planned(graph: &Graph, batch: usize, reuse: Reuse) -> Result<Self, Error> {
        let places = places(graph);
        check(graph, &places)?;
        let Plan { steps, slots, buffers } = Plan::new(fuse(graph), batch, &places, reuse)?;
        let convolutions = convolutions(graph, &places);
        let keeps = reuse == Reuse::Never;
        Ok(Program { graph: graph.clone(), batch, places, steps, convolutions, slots, buffers, keeps })
    }

    /// The network.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Images in a batch.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// The geometry and algorithm of every convolution.
    pub(super) fn conv_choices(&self) -> impl Iterator<Item = (&ConvGeometry, &ConvAlgorithm)> {
        self.convolutions.values().map(|conv| (&conv.geometry, &conv.algorithm))
    }

    /// The steps at these positions, if they are a batch norm and a convolution.
    pub(super) fn norm_and_conv(&self, norm: usize, conv: usize) -> Option<(&Step, &Step)> {
        let norm = self.steps.get(norm).filter(|step| matches!(step.op, Op::BatchNorm { .. }));
        norm.zip(self.steps.get(conv).filter(|step| matches!(step.op, Op::Conv { .. })))
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
            Op::Relu | Op::Add | Op::Dropout { .. } | Op::Plain { .. } => {
                matches!(places[node.inputs[0].0], Place::Vectors(_))
            }
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
            Op::Input | Op::Relu | Op::Linear { .. } | Op::Dropout { .. } | Op::Plain { .. } => None,
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
            return Err(Error::misfit(operation, node.shape, expected));
        }
    }
    Ok(())
}

/// The convolutions of a graph by node.
fn convolutions(graph: &Graph, places: &[Place]) -> BTreeMap<usize, ConvStep> {
    let nodes = graph.nodes().iter().enumerate();
    let of = |(index, node): (usize, &Node)| {
        let Op::Conv { conv, .. } = node.op else { return None };
        let (Place::Planes(from), Place::Planes(to)) = (places[node.inputs[0].0], places[index]) else {
            unreachable!("convolutions read and write planes")
        };
        let geometry = ConvGeometry { from, to, kernel: conv.kernel, stride: conv.stride, pad: conv.pad };
        let is_norm = |user: usize| matches!(graph.nodes()[user].op, Op::BatchNorm { .. });
        let (algorithm, moments) = (ConvAlgorithm::of(&geometry), graph.users(index).any(is_norm));
        Some((index, ConvStep { geometry, algorithm, moments }))
    };
    nodes.filter_map(of).collect()
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

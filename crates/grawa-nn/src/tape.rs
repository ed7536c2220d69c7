//! The plain path: a network run operation by operation, with all results kept and nothing fused.
//!
//! Every fused engine is tested against it; in `f64` it is the reference. It is a pure function of parameters,
//! statistics and images. Only [`Tape::track`] changes running statistics.
//!
//! ```
//! use grawa_nn::{Mode, Shape, Tape, zoo};
//! let net = zoo::digits("digits", Shape::image(1, 8), 4, 10)?;
//! let (parameters, statistics) = (net.initial(7), net.initial_statistics());
//! let images = vec![0.5f32; 2 * net.input().len()];
//! let tape = Tape::forward(&net, &parameters, &statistics, &images, Mode::Train { dropout: None })?;
//! let (loss, gradient) = tape.backward(&parameters, &[3, 9], 1.0)?;
//! assert!(loss > 0.0 && gradient.len() == net.parameters().len());
//! # Ok::<(), grawa_nn::Error>(())
//! ```

use crate::error::expect_len;
use crate::graph::pair;
use crate::op::plain::Operands;
use crate::op::{
    average_pool, batch_norm, channels, conv, cross_entropy, dropout, linear, max_pool, relu, subsample,
};
use crate::scalar::Scalar;
use crate::{Error, Graph, Node, NodeId, Op, Shape, TensorId, Window};
use grawa_core::{Key, Layout};

/// Which statistics batch norm uses, and whether dropout is applied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// The statistics of the batch. Dropout is applied only with a key.
    Train {
        /// The key of dropout's random draws.
        dropout: Option<Key>,
    },
    /// The running statistics, and no dropout.
    Evaluate,
}

/// A forward pass with everything that a backward pass needs.
#[derive(Debug)]
pub struct Tape<'g, T> {
    pub(crate) graph: &'g Graph,
    pub(crate) mode: Mode,
    pub(crate) batch: usize,
    /// The result of each node.
    pub(crate) values: Vec<Vec<T>>,
    /// The statistics that each batch norm used.
    pub(crate) used: Vec<batch_norm::Batch<T>>,
}

/// The values of one tensor.
fn tensor<'v, T>(layout: &Layout, vector: &'v [T], id: TensorId) -> &'v [T] {
    &vector[layout.spans()[id.0].range()]
}

/// Adds a vector to another.
fn add<T: Scalar>(to: &mut [T], vector: &[T]) {
    to.iter_mut().zip(vector).for_each(|(to, &x)| *to += x);
}

impl<'g, T: Scalar> Tape<'g, T> {
    /// Runs the network on a batch of images.
    pub fn forward(
        graph: &'g Graph,
        parameters: &[T],
        statistics: &[T],
        images: &[T],
        mode: Mode,
    ) -> Result<Self, Error> {
        expect_len("the parameters", parameters.len(), graph.parameters().len())?;
        expect_len("the statistics", statistics.len(), graph.statistics().len())?;
        let batch = images.len() / graph.input().len().max(1);
        expect_len("the batch of images", images.len(), batch.max(1) * graph.input().len())?;
        let mut tape =
            Tape { graph, mode, batch, values: Vec::with_capacity(graph.nodes().len()), used: Vec::new() };
        for (index, node) in graph.nodes().iter().enumerate() {
            let (value, used) = tape.run(index, node, parameters, statistics, images);
            tape.values.push(value);
            tape.used.push(used);
        }
        Ok(tape)
    }

    /// The result of a node whose inputs are computed, and the statistics that it used.
    pub(crate) fn run(
        &self,
        index: usize,
        node: &Node,
        parameters: &[T],
        statistics: &[T],
        images: &[T],
    ) -> (Vec<T>, batch_norm::Batch<T>) {
        let (to, mut y) = (node.shape, vec![T::zero(); self.batch * node.shape.len()]);
        let mut used = batch_norm::Batch::default();
        let x = |input: usize| self.values[node.inputs[input].0].as_slice();
        let from = |input: usize| self.graph.node(node.inputs[input]).shape;
        let learnt = |id: TensorId| tensor(self.graph.parameters(), parameters, id);
        match &node.op {
            Op::Input => y.copy_from_slice(images),
            Op::Conv { conv, weight, bias } => {
                conv::forward(conv, (from(0), to), x(0), learnt(*weight), bias.map(learnt), &mut y)
            }
            Op::BatchNorm { weight, bias, mean, variance, epsilon } => {
                let running = |id: TensorId| tensor(self.graph.statistics(), statistics, id);
                used = match self.mode {
                    Mode::Train { .. } => batch_norm::statistics(to, x(0)),
                    Mode::Evaluate => {
                        batch_norm::Batch { mean: running(*mean).into(), variance: running(*variance).into() }
                    }
                };
                let norm = self.norm(to, &used, *epsilon);
                batch_norm::forward(&norm, x(0), learnt(*weight), learnt(*bias), &mut y);
            }
            Op::Relu => relu::forward(x(0), &mut y),
            Op::Add => y.iter_mut().zip(x(0)).zip(x(1)).for_each(|((y, &a), &b)| *y = a + b),
            Op::MaxPool(window) => max_pool::forward(window, (from(0), to), x(0), &mut y),
            Op::AveragePool(window) => average_pool::forward(window, (from(0), to), x(0), &mut y),
            Op::GlobalAverage => average_pool::forward(&Window::whole(from(0)), (from(0), to), x(0), &mut y),
            Op::Linear { weight, bias } => {
                linear::forward(self.batch, x(0), learnt(*weight), learnt(*bias), &mut y)
            }
            Op::PadChannels { before, .. } => {
                channels::place(x(0), from(0).len(), &mut y, to.len(), before * to.area())
            }
            Op::Subsample { stride } => subsample::forward(*stride, (from(0), to), x(0), &mut y),
            Op::Concat => {
                channels::place(x(0), from(0).len(), &mut y, to.len(), 0);
                channels::place(x(1), from(1).len(), &mut y, to.len(), from(0).len());
            }
            Op::Dropout { probability } => match self.mode {
                Mode::Train { dropout: Some(key) } => {
                    dropout::forward(*probability, dropout::draws(key, index, 0), x(0), &mut y)
                }
                _ => y.copy_from_slice(x(0)),
            },
            Op::Plain { plain, tensors } => {
                y = plain.forward(&self.operands(node, tensors, parameters), y.len());
            }
        }
        (y, used)
    }

    fn norm<'a>(
        &self,
        shape: Shape,
        used: &'a batch_norm::Batch<T>,
        epsilon: f64,
    ) -> batch_norm::Norm<'a, T> {
        batch_norm::Norm { shape, used, epsilon, of_batch: self.mode != Mode::Evaluate }
    }

    /// The logits, example by example.
    pub fn logits(&self) -> &[T] {
        self.values.last().map_or(&[], Vec::as_slice)
    }

    /// The sum of the losses, and the gradient of that sum times `factor` (1 for the sum, 1/N for the mean).
    pub fn backward(&self, parameters: &[T], labels: &[u32], factor: f64) -> Result<(f64, Vec<T>), Error> {
        expect_len("the parameters", parameters.len(), self.graph.parameters().len())?;
        expect_len("the list of labels", labels.len(), self.batch)?;
        let mut flows: Vec<Vec<T>> = self.values.iter().map(|value| vec![T::zero(); value.len()]).collect();
        let mut gradient = vec![T::zero(); parameters.len()];
        let (last, classes, factor) = (flows.len() - 1, self.graph.classes(), T::of(factor));
        let loss = cross_entropy::loss(classes, self.logits(), labels, factor, &mut flows[last])?;
        for index in (1..flows.len()).rev() {
            let (before, after) = flows.split_at_mut(index);
            self.flow_back(index, &after[0], before, parameters, &mut gradient);
            // The gradient of this node is no longer needed.
            after[0] = Vec::new();
        }
        Ok((loss, gradient))
    }

    /// Adds the contribution of node `index` to the gradients of its inputs and tensors.
    pub(crate) fn flow_back(
        &self,
        index: usize,
        dy: &[T],
        flows: &mut [Vec<T>],
        parameters: &[T],
        gradient: &mut [T],
    ) {
        let node = &self.graph.nodes()[index];
        let to = node.shape;
        let place = |input: usize| node.inputs[input].0;
        let x = |input: usize| self.values[place(input)].as_slice();
        let from = |input: usize| self.graph.node(node.inputs[input]).shape;
        let layout = self.graph.parameters();
        let learnt = |id: TensorId| tensor(layout, parameters, id);
        match &node.op {
            Op::Input => {}
            Op::Conv { conv, weight, bias } => {
                let [weight_gradient, bias_gradient] = pair(layout, gradient, *weight, *bias);
                let is_image = matches!(self.graph.node(node.inputs[0]).op, Op::Input);
                let into = conv::Gradients {
                    x: (!is_image).then_some(flows[place(0)].as_mut_slice()),
                    weight: weight_gradient,
                    bias: bias.is_some().then_some(bias_gradient),
                };
                conv::backward(conv, (from(0), to), x(0), learnt(*weight), dy, into);
            }
            Op::BatchNorm { weight, bias, epsilon, .. } => {
                let [dscale, dshift] = pair(layout, gradient, *weight, Some(*bias));
                let norm = self.norm(to, &self.used[index], *epsilon);
                batch_norm::backward(&norm, x(0), learnt(*weight), dy, &mut flows[place(0)], dscale, dshift);
            }
            Op::Relu => relu::backward(x(0), dy, &mut flows[place(0)]),
            Op::Add => {
                for input in 0..2 {
                    add(&mut flows[place(input)], dy);
                }
            }
            Op::MaxPool(window) => max_pool::backward(window, (from(0), to), x(0), dy, &mut flows[place(0)]),
            Op::AveragePool(window) => {
                average_pool::backward(window, (from(0), to), dy, &mut flows[place(0)])
            }
            Op::GlobalAverage => {
                average_pool::backward(&Window::whole(from(0)), (from(0), to), dy, &mut flows[place(0)])
            }
            Op::Linear { weight, bias } => {
                let [dweight, dbias] = pair(layout, gradient, *weight, Some(*bias));
                linear::backward(self.batch, x(0), learnt(*weight), dy, &mut flows[place(0)], dweight, dbias);
            }
            Op::PadChannels { before, .. } => {
                channels::take(dy, to.len(), before * to.area(), &mut flows[place(0)], from(0).len())
            }
            Op::Subsample { stride } => subsample::backward(*stride, (from(0), to), dy, &mut flows[place(0)]),
            Op::Concat => {
                channels::take(dy, to.len(), 0, &mut flows[place(0)], from(0).len());
                channels::take(dy, to.len(), from(0).len(), &mut flows[place(1)], from(1).len());
            }
            Op::Dropout { probability } => match self.mode {
                Mode::Train { dropout: Some(key) } => {
                    dropout::backward(*probability, dropout::draws(key, index, 0), dy, &mut flows[place(0)])
                }
                _ => add(&mut flows[place(0)], dy),
            },
            Op::Plain { plain, tensors } => {
                let found = plain.backward(&self.operands(node, tensors, parameters), dy);
                for (input, (_, dx)) in found.inputs.iter().enumerate() {
                    add(&mut flows[place(input)], dx);
                }
                for (id, found) in tensors.iter().zip(&found.tensors) {
                    add(&mut gradient[layout.spans()[id.0].range()], found);
                }
            }
        }
    }

    /// What a plain operation reads.
    fn operands(&self, node: &Node, tensors: &[TensorId], parameters: &[T]) -> Operands<T> {
        let input = |input: &NodeId| (self.graph.node(*input).shape, self.values[input.0].clone());
        let tensor = |&id: &TensorId| tensor(self.graph.parameters(), parameters, id).to_vec();
        Operands {
            inputs: node.inputs.iter().map(input).collect(),
            tensors: tensors.iter().map(tensor).collect(),
        }
    }

    /// Updates the running statistics with those of this batch, as training does at each step.
    pub fn track(&self, statistics: &mut [T]) -> Result<(), Error> {
        expect_len("the statistics", statistics.len(), self.graph.statistics().len())?;
        if self.mode == Mode::Evaluate {
            return Ok(());
        }
        for (node, used) in self.graph.nodes().iter().zip(&self.used) {
            if let Op::BatchNorm { mean, variance, .. } = &node.op {
                let [mean, variance] = pair(self.graph.statistics(), statistics, *mean, Some(*variance));
                let used = (&used.mean[..], &used.variance[..]);
                batch_norm::track(self.batch * node.shape.area(), used, mean, variance);
            }
        }
        Ok(())
    }
}

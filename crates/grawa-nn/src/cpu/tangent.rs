//! The tangents of one step, forward and backward.
//!
//! Operations that are locally linear (sums, copies, averages, and ReLUs with a known sign) are their own tangents:
//! the training passes run them on tangents. Products in which both factors change, as in convolutions, linear layers
//! and batch norm, have one term for each factor.

use super::arena::{Arena, Buffer, Scratch};
use super::backward::{copy, copy_planes, mask, sum_channels};
use super::convolution::Convolution;
use super::curvature::{Curvature, Point};
use super::forward::{ON_PLANES, add_bias};
use super::images::Images;
use super::plain::duals;
use super::program::{ConvStep, Place};
use super::simd::F32x16;
use super::tangent_norm::{self as tangent, Back, Channel, Factors, total};
use super::{norm, pixels};
use crate::graph::pair;
use crate::op::linear;
use crate::plan::{NO_STEP, Step};
use crate::{Mode, Op, TensorId};
use rayon::prelude::*;

impl Curvature {
    fn tensor<'v>(&self, vector: &'v [f32], id: TensorId) -> &'v [f32] {
        self.flowing.parameter(vector, id)
    }

    /// Computes the tangent of a step's result.
    pub(super) fn tangent_forward(
        &self,
        index: usize,
        point: &Point,
        arena: &mut Arena,
        parameters: &[f32],
        vector: &[f32],
    ) {
        let program = &self.flowing;
        let step = &program.steps[index];
        let Some(mut output) = arena.values[step.output].take() else { return };
        // After a ReLU, the tangent is zero where the result is.
        let gate = || point.arena.values[step.output].as_ref();
        match (&step.op, &program.places[step.output]) {
            (Op::Conv { weight, bias, .. }, _) => {
                let ConvStep { geometry, algorithm, .. } = &program.convolutions[&step.node];
                let Arena { values, scratch, workspace, isa, .. } = arena;
                let (isa, Scratch { bias: lines, moments, .. }) = (*isa, &mut scratch[index]);
                if let Some(bias) = bias {
                    norm::fill(lines, self.tensor(vector, *bias).iter().copied());
                }
                let of =
                    |vector| Convolution { isa, geometry, algorithm, weights: self.tensor(vector, *weight) };
                let x = Images::Ready(planes(&point.arena.values, step.inputs[0]));
                of(vector).forward(workspace, x, (output.planes_mut(), false), moments, |y, _| {
                    if bias.is_some() {
                        add_bias(&geometry.to, lines, y);
                    }
                });
                // The images do not change.
                if step.inputs[0] != 0 {
                    let (dx, y) =
                        (Images::Ready(planes(values, step.inputs[0])), (output.planes_mut(), true));
                    of(parameters).forward(workspace, dx, y, moments, |_, _| ());
                }
            }
            (Op::BatchNorm { bias, .. }, Place::Planes(to)) => {
                let place = *program.planes(step.inputs[0]);
                let affine = &point.arena.scratch[index].affine;
                let (x, isa) = (planes(&point.arena.values, step.inputs[0]), arena.isa);
                let Some(mut input) = arena.values[step.inputs[0]].take() else { return };
                let moments = &mut arena.scratch[index].moments;
                let images = input.planes_mut().par_chunks_exact_mut(place.image());
                images.zip(x.par_chunks_exact(place.image())).zip(moments).for_each(|((dx, x), out)| {
                    norm::sums(isa, &place, x, &affine.middle, &place, None, dx, out);
                });
                let channels = self.channels(step, point, &arena.scratch[index], parameters, vector);
                let (shift, none) = (self.tensor(vector, *bias), vec![F32x16::ZERO; place.blocks()]);
                let of = |number: &dyn Fn(usize, &Channel) -> f64| {
                    tangent::lines(&channels, place.blocks(), number)
                };
                let factors = Factors {
                    middle: affine.middle.clone(),
                    middle_change: of(&|_, channel| channel.mean_change()),
                    centred: of(&|_, channel| channel.slope_change()),
                    centred_change: of(&|_, channel| channel.slope()),
                    flow: none.clone(),
                    flow_change: none,
                    constant: of(&|index, _| shift[index].into()),
                };
                let other = (step.inputs.len() > 1).then(|| *program.planes(step.inputs[1]));
                let others = step.inputs.get(1).map_or(&[][..], |&node| planes(&arena.values, node));
                let gate = gate().map_or(&[][..], Buffer::planes);
                let dx = input.planes();
                let images = output.planes_mut().par_chunks_exact_mut(to.image()).enumerate();
                images.for_each(|(image, y)| {
                    let part = |size: usize| image * size..(image + 1) * size;
                    let (x, dx) = (&x[part(place.image())], &dx[part(place.image())]);
                    let other = other.as_ref().map(|place| (place, &others[part(place.image())]));
                    let gate = step.relu.then(|| &gate[part(to.image())]);
                    tangent::forward(isa, &place, x, dx, &factors, other, gate, to, y);
                });
                arena.values[step.inputs[0]] = Some(input);
            }
            (Op::Linear { weight, bias }, _) => {
                let place = &program.places[step.inputs[0]];
                let y = output.vectors_mut();
                let moved = [self.tensor(vector, *weight), self.tensor(vector, *bias)];
                let x = plain(place, &point.arena, step.inputs[0]);
                linear::forward(program.batch, &x, moved[0], moved[1], y);
                let dx = plain(place, arena, step.inputs[0]);
                let mut other = vec![0.0; y.len()];
                let zeros = vec![0.0; moved[1].len()];
                linear::forward(program.batch, &dx, self.tensor(parameters, *weight), &zeros, &mut other);
                y.iter_mut().zip(other).for_each(|(y, other)| *y += other);
            }
            (Op::MaxPool(window), Place::Planes(to)) => {
                let place = *program.planes(step.inputs[0]);
                let (x, y) =
                    (planes(&point.arena.values, step.inputs[0]), planes(&point.arena.values, step.output));
                let dx = planes(&arena.values, step.inputs[0]);
                let images = output.planes_mut().par_chunks_exact_mut(to.image()).enumerate();
                images.for_each(|(image, dy)| {
                    let from = image * place.image()..(image + 1) * place.image();
                    let y = &y[image * to.image()..][..to.image()];
                    let inputs = (&place, &x[from.clone()], &dx[from]);
                    pixels::max_pool_tangent(window, inputs, (to, y), dy);
                });
            }
            (Op::Relu | Op::Add, place) => {
                for (input, &node) in step.inputs.iter().enumerate() {
                    if let Some(dx) = &arena.values[node] {
                        copy((arena.isa, &program.places[node], dx), (place, &mut output), input > 0);
                    }
                }
                if step.relu {
                    mask(arena.isa, place, gate(), &mut output);
                }
            }
            // Linear: the pass itself, on tangents.
            (Op::AveragePool(_) | Op::GlobalAverage | Op::PadChannels { .. }, _)
            | (Op::Subsample { .. } | Op::Concat | Op::Dropout { .. }, _) => {
                arena.values[step.output] = Some(output);
                return program.run(index, arena, (parameters, &[]), point.mode);
            }
            (Op::Plain { plain, tensors }, place) => {
                let changes = program.operands(step, tensors, &arena.values, vector);
                let operands = program.operands(step, tensors, &point.arena.values, parameters);
                let length = program.result_length(step);
                let found = plain.forward(&operands.with_tangents(changes), length);
                let found: Vec<f32> = found.iter().map(|y| y.tangent).collect();
                output.store(place, &found, false);
            }
            (Op::BatchNorm { .. } | Op::MaxPool(_), Place::Vectors(_)) => unreachable!("{ON_PLANES}"),
            (Op::Input, _) => unreachable!("{NO_STEP}"),
        }
        arena.values[step.output] = Some(output);
    }

    /// Adds the tangents of a step's contributions to the gradients of its inputs and tensors.
    pub(super) fn tangent_backward(
        &self,
        index: usize,
        point: &mut Point,
        arena: &mut Arena,
        parameters: &[f32],
        vector: &[f32],
        product: &mut [f32],
    ) {
        let program = &self.flowing;
        let step = &program.steps[index];
        let spans = self.graph().parameters().spans();
        match step.op {
            Op::Conv { .. } | Op::BatchNorm { .. } | Op::Linear { .. } | Op::Plain { .. } => {}
            // Linear in the gradient, given the results of the forward pass: the pass itself on tangents, with those
            // results.
            Op::Relu
            | Op::Add
            | Op::MaxPool(_)
            | Op::AveragePool(_)
            | Op::GlobalAverage
            | Op::PadChannels { .. }
            | Op::Subsample { .. }
            | Op::Concat
            | Op::Dropout { .. } => {
                std::mem::swap(&mut arena.values, &mut point.arena.values);
                program.flow_back(index, arena, parameters, point.mode, product);
                std::mem::swap(&mut arena.values, &mut point.arena.values);
                return;
            }
            Op::Input => unreachable!("{NO_STEP}"),
        }
        let Some(slot) = program.slots[step.output] else { return };
        let Some(mut ddy) = arena.gradients[slot].take() else { return };
        let Some(primal) = self.kept.slots[step.output] else { return };
        let Some(mut dy) = point.arena.gradients[primal].take() else { return };
        let isa = arena.isa;
        match (&step.op, &program.places[step.output]) {
            (Op::Conv { weight, bias, .. }, _) => {
                let ConvStep { geometry, algorithm, .. } = &program.convolutions[&step.node];
                let Arena { values, gradients, scratch, workspace, .. } = arena;
                let (dy, ddy) = (dy.planes(), ddy.planes());
                let of =
                    |vector| Convolution { isa, geometry, algorithm, weights: self.tensor(vector, *weight) };
                let gradient = &mut product[spans[weight.0].range()];
                let x = planes(&point.arena.values, step.inputs[0]);
                of(parameters).gradient(workspace, x, ddy, gradient);
                if step.inputs[0] != 0 {
                    of(parameters).gradient(workspace, planes(values, step.inputs[0]), dy, gradient);
                }
                if let Some(bias) = bias {
                    let gradient = &mut product[spans[bias.0].range()];
                    sum_channels(isa, &geometry.to, ddy, &mut scratch[index], gradient);
                }
                program.flow(gradients, step, 0, |out, _, add| {
                    of(parameters).backward(workspace, ddy, out.planes_mut(), add);
                    of(vector).backward(workspace, dy, out.planes_mut(), true);
                });
            }
            (Op::BatchNorm { weight, bias, .. }, Place::Planes(to)) => {
                let place = *program.planes(step.inputs[0]);
                // The forward pass left the sums of x′.
                let channels = self.channels(step, point, &arena.scratch[index], parameters, vector);
                let affine = &point.arena.scratch[index].affine;
                let (x, y) =
                    (planes(&point.arena.values, step.inputs[0]), planes(&point.arena.values, step.output));
                let dx = planes(&arena.values, step.inputs[0]);
                let of = |number: &dyn Fn(usize, &Channel) -> f64| {
                    tangent::lines(&channels, place.blocks(), number)
                };
                let middle_change = of(&|_, channel| channel.mean_change());
                let mut sums = |x: &[F32x16], middle: &[F32x16], cut: bool, dy: &mut [F32x16]| {
                    let moments = &mut arena.scratch[index].moments;
                    let images = dy
                        .par_chunks_exact_mut(to.image())
                        .zip(y.par_chunks_exact(to.image()))
                        .zip(x.par_chunks_exact(place.image()));
                    images.zip(&mut *moments).for_each(|(((dy, y), x), out)| {
                        norm::sums(isa, &place, x, middle, to, cut.then_some(y), dy, out);
                    });

                    (0..place.shape.channels).map(|channel| total(moments, channel)).collect::<Vec<_>>()
                };
                // Σ dy′ and Σ dy′·x̂, with dy′ masked first; then Σ dy·x̂′.
                let changes = sums(x, &affine.middle, step.relu, ddy.planes_mut());
                let along_changes = sums(dx, &middle_change, false, dy.planes_mut());
                let backs: Vec<Back> = (0..place.shape.channels)
                    .map(|channel| {
                        let Scratch { sum, along, .. } = &point.arena.scratch[index];
                        let (sum, along) = (sum[channel], along[channel]);
                        let (sum_change, along_change) = changes[channel];
                        Back { sum, along, sum_change, along_change: along_change + along_changes[channel].1 }
                    })
                    .collect();
                for (index, (channel, back)) in channels.iter().zip(&backs).enumerate() {
                    product[spans[weight.0].range()][index] += channel.scale_gradient_change(back) as f32;
                    product[spans[bias.0].range()][index] += back.sum_change as f32;
                }
                let Arena { values, gradients, .. } = arena;
                let dx = planes(values, step.inputs[0]);
                program.flow(gradients, step, 1, |other, _, add| {
                    let place = program.planes(step.inputs[1]);
                    copy_planes(isa, (to, ddy.planes()), (place, other.planes_mut()), add);
                });
                program.flow(gradients, step, 0, |out, _, add| {
                    let part = |which: usize| of(&|index, channel| channel.back(&backs[index])[which]);
                    let factors = Factors {
                        middle: affine.middle.clone(),
                        middle_change,
                        centred: part(0),
                        centred_change: part(1),
                        flow: of(&|_, channel| channel.slope_change()),
                        flow_change: of(&|_, channel| channel.slope()),
                        constant: part(2),
                    };
                    let (dy, ddy) = (dy.planes(), ddy.planes());
                    let images = out.planes_mut().par_chunks_exact_mut(place.image()).enumerate();
                    images.for_each(|(image, out)| {
                        let from = image * place.image()..(image + 1) * place.image();
                        let at = image * to.image()..(image + 1) * to.image();
                        let (x, dx, dy, ddy) = (&x[from.clone()], &dx[from], &dy[at.clone()], &ddy[at]);
                        tangent::backward(isa, &place, x, dx, &factors, to, dy, ddy, out, add);
                    });
                });
            }
            (Op::Linear { weight, bias }, _) => {
                let place = &program.places[step.inputs[0]];
                let x = plain(place, &point.arena, step.inputs[0]);
                let dx = plain(place, arena, step.inputs[0]);
                let mut out = vec![0.0; x.len()];
                let [dweight, dbias] = pair(self.graph().parameters(), product, *weight, Some(*bias));
                let (parameter, moved) = (self.tensor(parameters, *weight), self.tensor(vector, *weight));
                linear::backward(program.batch, &x, parameter, ddy.vectors(), &mut out, dweight, dbias);
                // The gradient of the bias does not depend on x.
                let mut unused = vec![0.0; dbias.len()];
                linear::backward(program.batch, &dx, moved, dy.vectors(), &mut out, dweight, &mut unused);
                program.flow(&mut arena.gradients, step, 0, |dx, place, add| dx.store(place, &out, add));
            }
            (Op::Plain { plain, tensors }, place) => {
                let changes = program.operands(step, tensors, &arena.values, vector);
                let operands = program.operands(step, tensors, &point.arena.values, parameters);
                let flow = duals(&dy.to_plain(place), &ddy.to_plain(place));
                let found = plain.backward(&operands.with_tangents(changes), &flow).tangents();
                program.store_plain(step, tensors, found, &mut arena.gradients, product);
            }
            (Op::BatchNorm { .. }, Place::Vectors(_)) => unreachable!("{ON_PLANES}"),
            (Op::Relu | Op::Add | Op::MaxPool(_) | Op::AveragePool(_) | Op::GlobalAverage, _)
            | (Op::PadChannels { .. } | Op::Subsample { .. } | Op::Concat, _)
            | (Op::Dropout { .. } | Op::Input, _) => unreachable!("the match above returned"),
        }
        arena.gradients[slot] = Some(ddy);
        point.arena.gradients[primal] = Some(dy);
    }

    /// The channels of a batch norm, from the sums of its input's tangents in `scratch`.
    fn channels(
        &self,
        step: &Step,
        point: &Point,
        scratch: &Scratch,
        parameters: &[f32],
        vector: &[f32],
    ) -> Vec<Channel> {
        let Op::BatchNorm { weight, epsilon, .. } = &step.op else { return Vec::new() };
        let shape = self.flowing.planes(step.inputs[0]).shape;
        let at = self.kept.steps.iter().position(|other| other.output == step.output);
        let variance = at.map_or(&[][..], |at| &point.arena.scratch[at].variance);
        let (scale, moved) = (self.tensor(parameters, *weight), self.tensor(vector, *weight));
        let count = (point.mode != Mode::Evaluate).then(|| (self.batch() * shape.area()) as f64);
        let channel = |index: usize| {
            let (sum_change, along_change) = total(&scratch.moments, index);
            Channel {
                count,
                scale: scale[index].into(),
                scale_change: moved[index].into(),
                variance: variance[index].into(),
                epsilon: *epsilon,
                sum_change,
                along_change,
            }
        };
        (0..shape.channels).map(channel).collect()
    }
}

fn planes(values: &[Option<Buffer>], node: usize) -> &[F32x16] {
    values[node].as_ref().map_or(&[][..], Buffer::planes)
}

/// A node's values in plain order.
fn plain(place: &Place, arena: &Arena, node: usize) -> Vec<f32> {
    arena.values[node].as_ref().map_or_else(Vec::new, |buffer| buffer.to_plain(place))
}

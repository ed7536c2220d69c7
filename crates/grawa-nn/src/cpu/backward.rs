//! The backward pass of one step.

use super::arena::{Arena, Buffer, Scratch};
use super::block::Blocked;
use super::convolution::Convolution;
use super::forward::{ON_PLANES, OTHER_ARM};
use super::norm;
use super::pixels;
use super::profile::Part;
use super::program::{Flow, Kind, Place, PlaneOp, Program, Step};
use super::simd::{F32x16, Isa, WIDTH};
use crate::Mode;
use crate::op::{batch_norm, dropout, linear};
use rayon::prelude::*;
use std::time::Instant;

impl Program {
    /// Takes the gradient buffer of an input out of its slot. Also returns whether to add to it.
    fn flow(
        &self,
        gradients: &mut [Option<Buffer>],
        step: &Step,
        input: usize,
    ) -> Option<(usize, Buffer, bool)> {
        let slot = self.slots[step.inputs[input]].filter(|_| step.flows[input] != Flow::Nowhere)?;
        Some((slot, gradients[slot].take()?, step.flows[input] == Flow::Add))
    }

    /// Adds a step's contribution to the gradients of its inputs and tensors.
    pub(super) fn flow_back(
        &self,
        index: usize,
        arena: &mut Arena,
        parameters: &[f32],
        mode: Mode,
        gradient: &mut [f32],
    ) {
        let step = &self.steps[index];
        let Arena { values, gradients, scratch, workspace, isa, profile, .. } = arena;
        let isa = *isa;
        let Some(mut dy) = self.slots[step.output].and_then(|slot| gradients[slot].take()) else { return };
        let value = |node: usize| values[node].as_ref();
        let planes = |node: usize| value(node).map_or(&[][..], Buffer::planes);
        let scratch = &mut scratch[index];
        let spans = self.graph.parameters().spans();
        match (&step.kind, &self.places[step.output]) {
            (Kind::Conv { geometry, algorithm, weight, bias, .. }, _) => {
                let (x, dy) = (planes(step.inputs[0]), dy.planes());
                let start = Instant::now();
                let convolution =
                    Convolution { isa, geometry, algorithm, weights: self.parameter(parameters, *weight) };
                convolution.gradient(workspace, x, dy, &mut gradient[spans[weight.0].range()]);
                if let Some(profile) = profile {
                    profile.note(index, Part::Weights, start.elapsed());
                }
                if let Some(bias) = bias {
                    sum_channels(isa, &geometry.to, dy, scratch, &mut gradient[spans[bias.0].range()]);
                }
                if let Some((slot, mut dx, add)) = self.flow(gradients, step, 0) {
                    convolution.backward(workspace, dy, dx.planes_mut(), add);
                    gradients[slot] = Some(dx);
                }
            }
            (Kind::Norm { weight, bias, relu, .. }, Place::Planes(to)) => {
                let place = *self.planes(step.inputs[0]);
                let (x, y) = (planes(step.inputs[0]), planes(step.output));
                let Scratch { affine, moments, sum, along, variance, .. } = scratch;
                let middle = &affine.middle;
                let images =
                    dy.planes_mut().par_chunks_exact_mut(to.image()).zip(y.par_chunks_exact(to.image()));
                images.zip(x.par_chunks_exact(place.image())).zip(&mut *moments).for_each(
                    |(((dy, y), x), out)| {
                        norm::sums(isa, &place, x, middle, to, relu.then_some(y), dy, out);
                    },
                );
                if step.inputs.len() > 1
                    && let Some((slot, mut other, add)) = self.flow(gradients, step, 1)
                {
                    let target = *self.planes(step.inputs[1]);
                    copy_planes(isa, (to, dy.planes()), (&target, other.planes_mut()), add);
                    gradients[slot] = Some(other);
                }
                // The sums over all images, and the gradients of scale and shift.
                total(moments.iter().map(|image| &image.mean[..]), sum);
                total(moments.iter().map(|image| &image.squares[..]), along);
                let inverse = |channel: usize| 1.0 / (f64::from(variance[channel]) + batch_norm::EPSILON);
                for channel in 0..place.shape.channels {
                    gradient[spans[weight.0].range()][channel] +=
                        (along[channel] * inverse(channel).sqrt()) as f32;
                    gradient[spans[bias.0].range()][channel] += sum[channel] as f32;
                }
                if let Some((slot, mut dx, add)) = self.flow(gradients, step, 0) {
                    // Running statistics are constants: they have no gradient.
                    let count = (self.batch * place.shape.area()) as f64;
                    let through = if mode == Mode::Evaluate { 0.0 } else { 1.0 / count };
                    norm::fill(&mut affine.shift, sum.iter().map(|sum| (sum * through) as f32));
                    let fall = along.iter().enumerate();
                    let fall = fall.map(|(channel, along)| (along * inverse(channel) * through) as f32);
                    norm::fill(&mut affine.along, fall);
                    let affine = &*affine;
                    let images = dx
                        .planes_mut()
                        .par_chunks_exact_mut(place.image())
                        .zip(x.par_chunks_exact(place.image()));
                    images.zip(dy.planes().par_chunks_exact(to.image())).for_each(|((dx, x), dy)| {
                        norm::backward(isa, &place, x, affine, to, dy, dx, add);
                    });
                    gradients[slot] = Some(dx);
                }
            }
            (Kind::Linear { weight, bias }, _) => {
                let Scratch { flat, flow, .. } = scratch;
                let place = &self.places[step.inputs[0]];
                let x = value(step.inputs[0]).map_or(&[][..], |value| value.plain(place, flat));
                flow.fill(0.0);
                let (front, back) = gradient.split_at_mut(spans[weight.0].range().end);
                let (dweight, dbias) =
                    (&mut front[spans[weight.0].range().start..], &mut back[..spans[bias.0].len()]);
                let weight = self.parameter(parameters, *weight);
                linear::backward(self.batch, x, weight, dy.vectors(), flow, dweight, dbias);
                if let Some((slot, mut buffer, add)) = self.flow(gradients, step, 0) {
                    buffer.store(&self.places[step.inputs[0]], flow, add);
                    gradients[slot] = Some(buffer);
                }
            }
            (Kind::GlobalAverage, _) => {
                if let Some((slot, mut dx, add)) = self.flow(gradients, step, 0) {
                    let place = *self.planes(step.inputs[0]);
                    let vectors = dy.vectors().par_chunks_exact(place.shape.channels);
                    let images = dx.planes_mut().par_chunks_exact_mut(place.image());
                    images.zip(vectors).for_each(|(dx, dy)| pixels::global_average_back(dy, &place, dx, add));
                    gradients[slot] = Some(dx);
                }
            }
            (Kind::Dropout { probability }, place) => {
                if let Some((slot, mut buffer, add)) = self.flow(gradients, step, 0) {
                    let Scratch { flat, flow, .. } = scratch;
                    let dy = dy.plain(place, flat);
                    match mode {
                        Mode::Train { dropout: Some(key) } => {
                            flow.fill(0.0);
                            dropout::backward(*probability, dropout::draws(key, step.output), dy, flow);
                        }
                        _ => flow.copy_from_slice(dy),
                    }
                    buffer.store(&self.places[step.inputs[0]], flow, add);
                    gradients[slot] = Some(buffer);
                }
            }
            (Kind::Relu, Place::Vectors(_)) => {
                if let Some((slot, mut buffer, add)) = self.flow(gradients, step, 0) {
                    let x = value(step.inputs[0]).map_or(&[][..], Buffer::vectors);
                    scratch.flow.fill(0.0);
                    crate::op::relu::backward(x, dy.vectors(), &mut scratch.flow);
                    buffer.store(&self.places[step.inputs[0]], &scratch.flow, add);
                    gradients[slot] = Some(buffer);
                }
            }
            (Kind::Add { relu }, place) => {
                if let (true, Place::Planes(to)) = (*relu, place) {
                    let y = planes(step.output);
                    let images =
                        dy.planes_mut().par_chunks_exact_mut(to.image()).zip(y.par_chunks_exact(to.image()));
                    images.for_each(|(dy, y)| norm::mask(isa, to, y, dy));
                }
                for input in 0..2 {
                    if let Some((slot, mut buffer, add)) = self.flow(gradients, step, input) {
                        match (place, &self.places[step.inputs[input]]) {
                            (Place::Planes(to), Place::Planes(target)) => {
                                copy_planes(isa, (to, dy.planes()), (target, buffer.planes_mut()), add)
                            }
                            (_, target) => buffer.store(target, dy.vectors(), add),
                        }
                        gradients[slot] = Some(buffer);
                    }
                }
            }
            (kind @ (Kind::Relu | Kind::Planes(_)), Place::Planes(to)) => {
                let mut offset = 0;
                for input in 0..step.inputs.len() {
                    let place = *self.planes(step.inputs[input]);
                    if let Some((slot, mut dx, add)) = self.flow(gradients, step, input) {
                        let (x, y) = (planes(step.inputs[input]), planes(step.output));
                        let images = dx
                            .planes_mut()
                            .par_chunks_exact_mut(place.image())
                            .zip(dy.planes().par_chunks_exact(to.image()));
                        images.enumerate().for_each(|(image, (dx, dy))| {
                            let x = &x[image * place.image()..][..place.image()];
                            let y = &y[image * to.image()..][..to.image()];
                            match kind {
                                Kind::Relu => {
                                    for (source, target) in pixels::pairs(to, &place) {
                                        for lane in 0..WIDTH {
                                            let value = if y[source].0[lane] > 0.0 {
                                                dy[source].0[lane]
                                            } else {
                                                0.0
                                            };
                                            dx[target].0[lane] =
                                                if add { dx[target].0[lane] + value } else { value };
                                        }
                                    }
                                }
                                Kind::Planes(PlaneOp::MaxPool(window)) => {
                                    pixels::max_pool_back(isa, window, &place, x, to, y, dy, dx, add)
                                }
                                Kind::Planes(PlaneOp::AveragePool(window)) => {
                                    pixels::average_pool_back(window, &place, to, dy, dx, add)
                                }
                                Kind::Planes(PlaneOp::PadChannels { before }) => {
                                    pixels::take_channels(to, dy, *before, &place, dx, add)
                                }
                                Kind::Planes(PlaneOp::Subsample { stride }) => {
                                    pixels::subsample_back(*stride, to, dy, &place, dx, add)
                                }
                                Kind::Planes(PlaneOp::Concat) => {
                                    pixels::take_channels(to, dy, offset, &place, dx, add)
                                }
                                Kind::Conv { .. } | Kind::Norm { .. } | Kind::Linear { .. } => {
                                    unreachable!("{OTHER_ARM}")
                                }
                                Kind::GlobalAverage | Kind::Dropout { .. } | Kind::Add { .. } => {
                                    unreachable!("{OTHER_ARM}")
                                }
                            }
                        });
                        gradients[slot] = Some(dx);
                    }
                    offset += place.shape.channels;
                }
            }
            (Kind::Norm { .. } | Kind::Planes(_), Place::Vectors(_)) => unreachable!("{ON_PLANES}"),
        }
        if let Some(slot) = self.slots[step.output] {
            gradients[slot] = Some(dy);
        }
    }
}

/// Sums every channel over all images, in order.
fn total<'a>(images: impl Iterator<Item = &'a [F32x16]>, out: &mut [f64]) {
    out.fill(0.0);
    for image in images {
        for (channel, sum) in out.iter_mut().enumerate() {
            *sum += f64::from(image[channel / WIDTH].0[channel % WIDTH]);
        }
    }
}

/// Adds the sum over all pixels of each channel.
pub(super) fn sum_channels(
    isa: Isa,
    place: &Blocked,
    batch: &[F32x16],
    scratch: &mut Scratch,
    out: &mut [f32],
) {
    let images = batch.par_chunks_exact(place.image()).zip(&mut scratch.moments);
    images.for_each(|(image, moments)| norm::moments(isa, place, image, moments));
    total(scratch.moments.iter().map(|image| &image.mean[..]), &mut scratch.sum);
    let area = place.shape.area() as f64;
    out.iter_mut().zip(&scratch.sum).for_each(|(out, mean)| *out += (mean * area) as f32);
}

/// Copies planes, or adds them to the target.
pub(super) fn copy_planes(
    isa: Isa,
    (from, x): (&Blocked, &[F32x16]),
    (to, y): (&Blocked, &mut [F32x16]),
    add: bool,
) {
    y.par_chunks_exact_mut(to.image()).zip(x.par_chunks_exact(from.image())).for_each(|(y, x)| {
        pixels::copy(isa, from, x, to, y, add);
    });
}

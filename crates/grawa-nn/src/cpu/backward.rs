//! The backward pass of one step.

use super::arena::{Arena, Buffer, Scratch};
use super::block::Blocked;
use super::convolution::Convolution;
use super::forward::ON_PLANES;
use super::norm;
use super::pixels;
use super::profile::Part;
use super::program::{ConvStep, Place, Program};
use super::simd::{F32x16, Isa, WIDTH};
use crate::op::{dropout, linear, relu};
use crate::plan::{Flow, NO_STEP, Step};
use crate::{Mode, Op};
use rayon::prelude::*;
use std::time::Instant;

impl Program {
    /// Takes the gradient buffer of an input out of its slot. Also returns whether to add to it.
    pub(super) fn flow(
        &self,
        gradients: &mut [Option<Buffer>],
        step: &Step,
        input: usize,
    ) -> Option<(usize, Buffer, bool)> {
        let slot = self.slots[step.inputs[input]].filter(|_| step.flows[input] != Flow::Nowhere)?;
        Some((slot, gradients[slot].take()?, step.flows[input] == Flow::Add))
    }

    /// Computes the gradient of an input on planes, image by image: `compute` gets the index of the image, the planes of
    /// the input, the gradient of the result, that of the input, and whether to add to it.
    fn each_image(
        &self,
        gradients: &mut [Option<Buffer>],
        step: &Step,
        input: usize,
        (to, dy): (&Blocked, &Buffer),
        compute: impl Fn(usize, &Blocked, &[F32x16], &mut [F32x16], bool) + Sync,
    ) {
        if let Some((slot, mut dx, add)) = self.flow(gradients, step, input) {
            let place = self.planes(step.inputs[input]);
            let targets = dx.planes_mut().par_chunks_exact_mut(place.image());
            let images = targets.zip(dy.planes().par_chunks_exact(to.image())).enumerate();
            images.for_each(|(image, (dx, dy))| compute(image, place, dy, dx, add));
            gradients[slot] = Some(dx);
        }
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
        match (&step.op, &self.places[step.output]) {
            (Op::Conv { weight, bias, .. }, _) => {
                let ConvStep { geometry, algorithm, .. } = &self.convolutions[&step.node];
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
            (Op::BatchNorm { weight, bias, epsilon, .. }, Place::Planes(to)) => {
                let place = *self.planes(step.inputs[0]);
                let (x, y) = (planes(step.inputs[0]), planes(step.output));
                let Scratch { affine, moments, sum, along, variance, .. } = scratch;
                let middle = &affine.middle;
                let images =
                    dy.planes_mut().par_chunks_exact_mut(to.image()).zip(y.par_chunks_exact(to.image()));
                images.zip(x.par_chunks_exact(place.image())).zip(&mut *moments).for_each(
                    |(((dy, y), x), out)| {
                        norm::sums(isa, &place, x, middle, to, step.relu.then_some(y), dy, out);
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
                let inverse = |channel: usize| 1.0 / (f64::from(variance[channel]) + epsilon);
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
            (Op::Linear { weight, bias }, _) => {
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
            (Op::GlobalAverage, _) => {
                if let Some((slot, mut dx, add)) = self.flow(gradients, step, 0) {
                    let place = *self.planes(step.inputs[0]);
                    let vectors = dy.vectors().par_chunks_exact(place.shape.channels);
                    let images = dx.planes_mut().par_chunks_exact_mut(place.image());
                    images.zip(vectors).for_each(|(dx, dy)| pixels::global_average_back(dy, &place, dx, add));
                    gradients[slot] = Some(dx);
                }
            }
            (Op::Dropout { probability }, place) => {
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
            (Op::Relu, Place::Vectors(_)) => {
                if let Some((slot, mut buffer, add)) = self.flow(gradients, step, 0) {
                    let x = value(step.inputs[0]).map_or(&[][..], Buffer::vectors);
                    scratch.flow.fill(0.0);
                    relu::backward(x, dy.vectors(), &mut scratch.flow);
                    buffer.store(&self.places[step.inputs[0]], &scratch.flow, add);
                    gradients[slot] = Some(buffer);
                }
            }
            (Op::Add, place) => {
                match place {
                    Place::Planes(to) if step.relu => {
                        let y = planes(step.output).par_chunks_exact(to.image());
                        let images = dy.planes_mut().par_chunks_exact_mut(to.image()).zip(y);
                        images.for_each(|(dy, y)| norm::mask(isa, to, y, dy));
                    }
                    Place::Vectors(_) if step.relu => mask(value(step.output), &mut dy),
                    Place::Planes(_) | Place::Vectors(_) => {}
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
            (Op::Relu, Place::Planes(to)) => {
                let y = planes(step.output);
                self.each_image(gradients, step, 0, (to, &dy), |image, place, dy, dx, add| {
                    let y = &y[image * to.image()..][..to.image()];
                    for (source, target) in pixels::pairs(to, place) {
                        for lane in 0..WIDTH {
                            let value = if y[source].0[lane] > 0.0 { dy[source].0[lane] } else { 0.0 };
                            dx[target].0[lane] = if add { dx[target].0[lane] + value } else { value };
                        }
                    }
                });
            }
            (Op::MaxPool(window), Place::Planes(to)) => {
                let (x, y) = (planes(step.inputs[0]), planes(step.output));
                self.each_image(gradients, step, 0, (to, &dy), |image, place, dy, dx, add| {
                    let x = &x[image * place.image()..][..place.image()];
                    let y = &y[image * to.image()..][..to.image()];
                    pixels::max_pool_back(isa, window, place, x, to, y, dy, dx, add);
                });
            }
            (Op::AveragePool(window), Place::Planes(to)) => {
                self.each_image(gradients, step, 0, (to, &dy), |_, place, dy, dx, add| {
                    pixels::average_pool_back(window, place, to, dy, dx, add);
                });
            }
            (Op::PadChannels { before, .. }, Place::Planes(to)) => {
                self.each_image(gradients, step, 0, (to, &dy), |_, place, dy, dx, add| {
                    pixels::take_channels(to, dy, *before, place, dx, add);
                });
            }
            (Op::Subsample { stride }, Place::Planes(to)) => {
                self.each_image(gradients, step, 0, (to, &dy), |_, place, dy, dx, add| {
                    pixels::subsample_back(*stride, to, dy, place, dx, add);
                });
            }
            (Op::Concat, Place::Planes(to)) => {
                let second = self.planes(step.inputs[0]).shape.channels;
                for (input, offset) in [(0, 0), (1, second)] {
                    self.each_image(gradients, step, input, (to, &dy), |_, place, dy, dx, add| {
                        pixels::take_channels(to, dy, offset, place, dx, add);
                    });
                }
            }
            (Op::Plain { plain, tensors }, place) => {
                let inputs = self.plain_inputs(step, tensors, values, parameters);
                let found = self.plain_backward(step, *plain, &inputs, &dy.to_plain(place));
                self.store_plain(step, tensors, found, gradients, gradient);
            }
            (Op::BatchNorm { .. } | Op::MaxPool(_) | Op::AveragePool(_), Place::Vectors(_))
            | (Op::PadChannels { .. } | Op::Subsample { .. } | Op::Concat, Place::Vectors(_)) => {
                unreachable!("{ON_PLANES}")
            }
            (Op::Input, _) => unreachable!("{NO_STEP}"),
        }
        if let Some(slot) = self.slots[step.output] {
            gradients[slot] = Some(dy);
        }
    }
}

/// Sets vectors to zero where the result of a ReLU is.
pub(super) fn mask(result: Option<&Buffer>, vectors: &mut Buffer) {
    let result = result.map_or(&[][..], Buffer::vectors);
    for (x, &y) in vectors.vectors_mut().iter_mut().zip(result) {
        *x = if y > 0.0 { *x } else { 0.0 };
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

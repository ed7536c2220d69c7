//! The backward pass of one step.

use super::arena::{Arena, Buffer, Scratch};
use super::block::Blocked;
use super::convolution::Convolution;
use super::forward::{DRAWS, ON_PLANES};
use super::images::Images;
use super::linear;
use super::norm::{self, Affine, Moments};
use super::pixels;
use super::program::{ConvStep, Place, Program};
use super::simd::{F32x16, Isa, WIDTH};
use crate::graph::pair;
use crate::op::{dropout, relu};
use crate::plan::{Flow, NO_STEP, Step};
use crate::{Mode, Op};
use rayon::prelude::*;

impl Program {
    /// Calls `write` with the buffer of the gradient of an input, if there is one: its layout, and whether to add to it.
    pub(super) fn flow(
        &self,
        gradients: &mut [Option<Buffer>],
        step: &Step,
        input: usize,
        write: impl FnOnce(&mut Buffer, &Place, bool),
    ) {
        let Some((&node, &flow)) = step.inputs.get(input).zip(step.flows.get(input)) else { return };
        let slot = self.slots[node].filter(|_| flow != Flow::Nowhere);
        if let Some(buffer) = slot.and_then(|slot| gradients[slot].as_mut()) {
            write(buffer, &self.places[node], flow == Flow::Add);
        }
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
        self.flow(gradients, step, input, |dx, _, add| {
            let place = self.planes(step.inputs[input]);
            let targets = dx.planes_mut().par_chunks_exact_mut(place.image());
            let images = targets.zip(dy.planes().par_chunks_exact(to.image())).enumerate();
            images.for_each(|(image, (dx, dy))| compute(image, place, dy, dx, add));
        });
    }

    /// Whether a step is a batch norm whose sums the next step computes: a convolution that completes the gradient of its result.
    fn gets_sums_from_convolution(&self, index: usize) -> bool {
        // Without a result that is used, the convolution has no backward pass.
        let is_used = |conv: &Step| self.slots[conv.output].is_some();
        self.is_left_to_convolution(index) && self.steps.get(index + 1).is_some_and(is_used)
    }

    /// Whether a step is a batch norm that leaves the gradient of its input to the step before: the convolution that computed that
    /// input, and that needs nothing but this gradient, image by image.
    fn leaves_input_gradient(&self, index: usize) -> bool {
        let steps = index.checked_sub(1).and_then(|conv| self.norm_and_conv(index, conv));
        steps.is_some_and(|(norm, conv)| {
            let is_twice = norm.inputs.get(1) == norm.inputs.first();
            norm.inputs[0] == conv.output && norm.flows.first() == Some(&Flow::Store) && !is_twice
        })
    }

    /// The sums of a batch norm over one image of its result's gradient, which is masked by the ReLU behind it.
    fn sums<'a>(
        &self,
        isa: Isa,
        index: usize,
        affine: &Affine,
        planes: impl Fn(usize) -> &'a [F32x16],
    ) -> impl Fn(usize, &mut [F32x16], &mut Moments) + Sync {
        let step = &self.steps[index];
        let (from, to) = (self.planes(step.inputs[0]), self.planes(step.output));
        let (x, y) = (planes(step.inputs[0]), planes(step.output));
        move |image, dy, out| {
            let x = &x[image * from.image()..][..from.image()];
            if step.relu && step.inputs.len() == 1 {
                return norm::sums_before_relu(isa, from, x, affine, to, dy, out);
            }
            let y = step.relu.then(|| &y[image * to.image()..][..to.image()]);
            norm::sums(isa, from, x, &affine.middle, to, y, dy, out);
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
        let Arena { values, gradients, scratch, workspace, isa, .. } = arena;
        let isa = *isa;
        let Some(mut dy) = self.slots[step.output].and_then(|slot| gradients[slot].take()) else { return };
        let value = |node: usize| values[node].as_ref();
        let planes = |node: usize| value(node).map_or(&[][..], Buffer::planes);
        let (before, rest) = scratch.split_at_mut(index);
        let Some((scratch, behind)) = rest.split_first_mut() else { return };
        let spans = self.graph.parameters().spans();
        match (&step.op, &self.places[step.output]) {
            (Op::Conv { weight, bias, .. }, _) => {
                let ConvStep { geometry, algorithm, .. } = &self.convolutions[&step.node];
                let (x, y) = (planes(step.inputs[0]), planes(step.output));
                let add = step.flows[0] == Flow::Add;
                let target = self.slots[step.inputs[0]].filter(|_| step.flows[0] != Flow::Nowhere);
                let mut dx = target.and_then(|slot| gradients[slot].take());
                // A batch norm behind has left the gradient of its input, this step's output: it is computed from that of its
                // result, image by image, as the convolution reads it. The gradient of its result may be in the buffer that dx
                // overwrites: `make` then reads it from there.
                let norm = self.steps.get(index + 1).filter(|_| self.leaves_input_gradient(index + 1));
                let norm_slot =
                    norm.and_then(|norm| self.slots[norm.output]).filter(|slot| Some(*slot) != target);
                let norm_gradient = norm_slot.and_then(|slot| gradients[slot].take());
                let make = |image: usize, dy: &mut [F32x16], dx: &[F32x16]| {
                    let Some((norm, Scratch { affine, .. })) = norm.zip(behind.first()) else { return };
                    let (from, to) = (&geometry.to, self.planes(norm.output));
                    let y = &y[image * from.image()..][..from.image()];
                    let part = image * to.image()..(image + 1) * to.image();
                    let flow = norm_gradient.as_ref().map_or(dx, |gradient| &gradient.planes()[part]);
                    norm::backward(isa, from, y, affine, to, flow, dy, false);
                };
                let dy = match norm {
                    Some(_) if bias.is_none() && !self.keeps => Images::Transient(dy.planes_mut(), &make),
                    Some(_) => Images::Lazy(dy.planes_mut(), &make),
                    None => Images::Ready(dy.planes()),
                };
                let into = dx.as_mut().map(|dx| (dx.planes_mut(), add));
                let convolution =
                    Convolution { isa, geometry, algorithm, weights: self.parameter(parameters, *weight) };
                let dweight = &mut gradient[spans[weight.0].range()];
                let dy = match index.checked_sub(1).filter(|&norm| self.gets_sums_from_convolution(norm)) {
                    Some(norm) => {
                        // The sums of the batch norm before, while each image is in cache.
                        let Scratch { affine, moments, .. } = &mut before[norm];
                        let sums = self.sums(isa, norm, affine, planes);
                        convolution.gradients(workspace, x, dy, into, moments, sums, dweight)
                    }
                    None => {
                        let moments = &mut scratch.moments;
                        convolution.gradients(workspace, x, dy, into, moments, |_, _, _| (), dweight)
                    }
                };
                if let Some(bias) = bias {
                    sum_channels(isa, &geometry.to, dy, scratch, &mut gradient[spans[bias.0].range()]);
                }
                for (slot, buffer) in [(target, dx), (norm_slot, norm_gradient)] {
                    if let Some(slot) = slot {
                        gradients[slot] = buffer;
                    }
                }
            }
            (Op::BatchNorm { weight, bias, epsilon, .. }, Place::Planes(to)) => {
                let place = *self.planes(step.inputs[0]);
                let x = planes(step.inputs[0]);
                let Scratch { affine, moments, sum, along, variance, .. } = scratch;
                if !self.gets_sums_from_convolution(index) {
                    let sums = self.sums(isa, index, affine, planes);
                    let images = dy.planes_mut().par_chunks_exact_mut(to.image()).zip(&mut *moments);
                    images.enumerate().for_each(|(image, (dy, out))| sums(image, dy, out));
                }
                // The sums over all images, and the gradients of scale and shift.
                total(moments, |image| &image.mean, sum);
                total(moments, |image| &image.squares, along);
                let inverse = |channel: usize| 1.0 / (f64::from(variance[channel]) + epsilon);
                for channel in 0..place.shape.channels {
                    gradient[spans[weight.0].range()][channel] +=
                        (along[channel] * inverse(channel).sqrt()) as f32;
                    gradient[spans[bias.0].range()][channel] += sum[channel] as f32;
                }
                // Running statistics are constants: they have no gradient.
                let count = (self.batch * place.shape.area()) as f64;
                let through = if mode == Mode::Evaluate { 0.0 } else { 1.0 / count };
                norm::fill(&mut affine.shift, sum.iter().map(|sum| (sum * through) as f32));
                let fall = along.iter().enumerate();
                let fall = fall.map(|(channel, along)| (along * inverse(channel) * through) as f32);
                norm::fill(&mut affine.along, fall);
                let affine = &*affine;
                if !self.leaves_input_gradient(index) {
                    self.each_image(gradients, step, 0, (to, &dy), |image, place, dy, dx, add| {
                        let x = &x[image * place.image()..][..place.image()];
                        norm::backward(isa, place, x, affine, to, dy, dx, add);
                    });
                }
                // Second: a batch norm may be added to its own input.
                self.flow(gradients, step, 1, |shortcut, place, add| {
                    copy((isa, &self.places[step.output], &dy), (place, shortcut), add);
                });
            }
            (Op::Linear { weight, bias }, _) => {
                let Scratch { flat, flow, .. } = scratch;
                let place = &self.places[step.inputs[0]];
                let x = value(step.inputs[0]).map_or(&[][..], |value| value.plain(place, flat));
                let [dweight, dbias] = pair(self.graph.parameters(), gradient, *weight, Some(*bias));
                let weight = self.parameter(parameters, *weight);
                linear::backward(self.batch, (x, weight), dy.vectors(), flow, (dweight, dbias));
                self.flow(gradients, step, 0, |dx, place, add| dx.store(place, flow, add));
            }
            (Op::GlobalAverage, _) => self.flow(gradients, step, 0, |dx, _, add| {
                let place = self.planes(step.inputs[0]);
                let vectors = dy.vectors().par_chunks_exact(place.shape.channels);
                let images = dx.planes_mut().par_chunks_exact_mut(place.image());
                images.zip(vectors).for_each(|(dx, dy)| pixels::global_average_back(dy, place, dx, add));
            }),
            (Op::Dropout { probability }, place) => {
                self.flow(gradients, step, 0, |dx, target, add| {
                    let Scratch { flat, flow, .. } = scratch;
                    let dy = dy.plain(place, flat);
                    match mode {
                        Mode::Train { dropout: Some(key) } => {
                            flow.fill(0.0);
                            let parts = flow.par_chunks_mut(DRAWS).zip(dy.par_chunks(DRAWS)).enumerate();
                            parts.for_each(|(part, (flow, dy))| {
                                let draws = dropout::draws(key, step.output, part * DRAWS);
                                dropout::backward(*probability, draws, dy, flow);
                            });
                        }
                        _ => flow.copy_from_slice(dy),
                    }
                    dx.store(target, flow, add);
                });
            }
            (Op::Relu, Place::Vectors(_)) => self.flow(gradients, step, 0, |dx, place, add| {
                let x = value(step.inputs[0]).map_or(&[][..], Buffer::vectors);
                scratch.flow.fill(0.0);
                relu::backward(x, dy.vectors(), &mut scratch.flow);
                dx.store(place, &scratch.flow, add);
            }),
            (Op::Add, place) => {
                if step.relu {
                    mask(isa, place, value(step.output), &mut dy);
                }
                for input in 0..2 {
                    self.flow(gradients, step, input, |dx, target, add| {
                        copy((isa, place, &dy), (target, dx), add);
                    });
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
                let operands = self.operands(step, tensors, values, parameters);
                let found = plain.backward(&operands, &dy.to_plain(place));
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

/// Sets gradients or tangents to zero where the result of a ReLU is.
pub(super) fn mask(isa: Isa, place: &Place, result: Option<&Buffer>, flow: &mut Buffer) {
    let Some(result) = result else { return };
    match place {
        Place::Planes(to) => {
            let images = flow.planes_mut().par_chunks_exact_mut(to.image());
            let images = images.zip(result.planes().par_chunks_exact(to.image()));
            images.for_each(|(dy, y)| norm::mask(isa, to, y, dy));
        }
        Place::Vectors(_) => {
            let pairs = flow.vectors_mut().iter_mut().zip(result.vectors());
            pairs.for_each(|(x, &y)| *x = if y > 0.0 { *x } else { 0.0 });
        }
    }
}

/// Copies results of one shape, or adds them to the target.
pub(super) fn copy((isa, from, x): (Isa, &Place, &Buffer), (to, y): (&Place, &mut Buffer), add: bool) {
    match (from, to) {
        (Place::Planes(from), Place::Planes(to)) => {
            copy_planes(isa, (from, x.planes()), (to, y.planes_mut()), add)
        }
        _ => y.store(to, x.vectors(), add),
    }
}

/// Sums every channel over all images, in order.
fn total(images: &[Moments], of: impl Fn(&Moments) -> &[F32x16] + Sync, out: &mut [f64]) {
    // A few blocks are summed sooner than other threads take a share.
    out.par_chunks_mut(WIDTH).enumerate().with_min_len(4).for_each(|(block, out)| {
        out.fill(0.0);
        for image in images {
            out.iter_mut().zip(of(image)[block].0).for_each(|(sum, x)| *sum += f64::from(x));
        }
    });
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
    total(&scratch.moments, |image| &image.mean, &mut scratch.sum);
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

//! The backward pass of one step.

use super::arena::{Arena, Buffer, Scratch};
use super::block::Blocked;
use super::lanes::{Line, Machine, WIDTH};
use super::norm::{self, Moments};
use super::pass::flattened;
use super::program::{Flow, Kind, Place, Program};
use super::route::Walk;
use super::{conv, pixels};
use crate::Mode;
use crate::op::{batch_norm, dropout, linear};
use rayon::prelude::*;

impl Program {
    /// Adds what flows from the result of a step to its inputs and its tensors.
    pub(super) fn flow_back(
        &self,
        index: usize,
        arena: &mut Arena,
        parameters: &[f32],
        mode: Mode,
        gradient: &mut [f32],
    ) {
        let step = &self.steps[index];
        let Arena { values, gradients, scratch, pool, machine, .. } = arena;
        let machine = *machine;
        let Some(mut dy) = self.slots[step.output].and_then(|slot| gradients[slot].take()) else { return };
        let value = |node: usize| values[node].as_ref();
        let planes = |node: usize| value(node).map_or(&[][..], Buffer::planes);
        let scratch = &mut scratch[index];
        let mut flow = |input: usize| -> Option<(usize, Buffer, bool)> {
            let slot = self.slots[step.inputs[input]].filter(|_| step.flows[input] != Flow::Nowhere)?;
            Some((slot, gradients[slot].take()?, step.flows[input] == Flow::Add))
        };
        let mut filled: Vec<(usize, Buffer)> = Vec::with_capacity(2);
        match (&step.kind, &self.places[step.output]) {
            (Kind::Conv { walk, back, weight, bias, .. }, _) => {
                let (x, dy) = (planes(step.inputs[0]), dy.planes());
                self.weight_gradient(walk, x, dy, scratch, pool, machine);
                let spans = self.graph.parameters().spans();
                let target = &mut gradient[spans[weight.0].range()];
                for group in &scratch.groups {
                    conv::unpack_add(walk, group, target);
                }
                if let Some(bias) = bias {
                    sum_channels(machine, &walk.to, dy, &mut gradient[spans[bias.0].range()]);
                }
                if let Some((slot, mut dx, add)) = flow(0) {
                    let turned = &scratch.turned;
                    pool.install(|| {
                        let images = dx.planes_mut().par_chunks_exact_mut(walk.from.image());
                        images.zip(dy.par_chunks_exact(walk.to.image())).for_each(|(dx, dy)| {
                            conv::run(machine, back, dy, turned, dx, add);
                        });
                    });
                    filled.push((slot, dx));
                }
            }
            (Kind::Norm { weight, bias, relu, .. }, Place::Planes(to)) => {
                let place = *self.planes(step.inputs[0]);
                let (x, y) = (planes(step.inputs[0]), planes(step.output));
                let Some(affine) = &mut scratch.affine else { return };
                let middle = &affine.middle;
                let moments = &mut scratch.moments;
                pool.install(|| {
                    let images =
                        dy.planes_mut().par_chunks_exact_mut(to.image()).zip(y.par_chunks_exact(to.image()));
                    images.zip(x.par_chunks_exact(place.image())).zip(moments).for_each(
                        |(((dy, y), x), out)| {
                            norm::sums(machine, &place, x, middle, to, relu.then_some(y), dy, out);
                        },
                    );
                });
                if step.inputs.len() > 1
                    && let Some((slot, mut other, add)) = flow(1)
                {
                    let target = *self.planes(step.inputs[1]);
                    copy_planes(pool, machine, (to, dy.planes()), (&target, other.planes_mut()), add);
                    filled.push((slot, other));
                }
                // The sums over all images, and with them the gradients of scale and shift.
                let count = (self.batch * place.shape.area()) as f64;
                let (mut sum, mut along) =
                    (vec![0.0f64; place.shape.channels], vec![0.0f64; place.shape.channels]);
                for image in &scratch.moments {
                    for channel in 0..place.shape.channels {
                        sum[channel] += f64::from(image.mean[channel / WIDTH].0[channel % WIDTH]);
                        along[channel] += f64::from(image.squares[channel / WIDTH].0[channel % WIDTH]);
                    }
                }
                let inverse: Vec<f64> =
                    scratch.variance.iter().map(|&v| 1.0 / (f64::from(v) + batch_norm::EPSILON)).collect();
                let spans = self.graph.parameters().spans();
                for channel in 0..place.shape.channels {
                    gradient[spans[weight.0].range()][channel] +=
                        (along[channel] * inverse[channel].sqrt()) as f32;
                    gradient[spans[bias.0].range()][channel] += sum[channel] as f32;
                }
                if let Some((slot, mut dx, add)) = flow(0) {
                    // Running statistics are constants: nothing flows through them.
                    let through = if mode == Mode::Evaluate { 0.0 } else { 1.0 / count };
                    affine.shift = norm::lines(sum.iter().map(|sum| (sum * through) as f32), place.blocks());
                    affine.along = norm::lines(
                        along.iter().zip(&inverse).map(|(along, inverse)| (along * inverse * through) as f32),
                        place.blocks(),
                    );
                    let affine = &*affine;
                    pool.install(|| {
                        let images = dx
                            .planes_mut()
                            .par_chunks_exact_mut(place.image())
                            .zip(x.par_chunks_exact(place.image()));
                        images.zip(dy.planes().par_chunks_exact(to.image())).for_each(|((dx, x), dy)| {
                            norm::backward(machine, &place, x, affine, to, dy, dx, add);
                        });
                    });
                    filled.push((slot, dx));
                }
            }
            (Kind::Linear { weight, bias }, _) => {
                let spans = self.graph.parameters().spans();
                let x = flattened(&self.places[step.inputs[0]], value(step.inputs[0]), &mut scratch.flat)
                    .to_vec();
                let mut dx = vec![0.0; x.len()];
                let (front, back) = gradient.split_at_mut(spans[weight.0].range().end);
                let (dweight, dbias) =
                    (&mut front[spans[weight.0].range().start..], &mut back[..spans[bias.0].len()]);
                linear::backward(
                    self.batch,
                    &x,
                    self.learnt(parameters, *weight),
                    dy.vectors(),
                    &mut dx,
                    dweight,
                    dbias,
                );
                if let Some((slot, mut buffer, add)) = flow(0) {
                    arrive(&self.places[step.inputs[0]], &dx, &mut buffer, add);
                    filled.push((slot, buffer));
                }
            }
            (Kind::GlobalAverage, _) => {
                if let Some((slot, mut dx, add)) = flow(0) {
                    let place = *self.planes(step.inputs[0]);
                    let vectors = dy.vectors().par_chunks_exact(place.shape.channels);
                    pool.install(|| {
                        let images = dx.planes_mut().par_chunks_exact_mut(place.image());
                        images
                            .zip(vectors)
                            .for_each(|(dx, dy)| pixels::global_average_back(dy, &place, dx, add));
                    });
                    filled.push((slot, dx));
                }
            }
            (Kind::Dropout { probability }, place) => {
                if let Some((slot, mut buffer, add)) = flow(0) {
                    let mut flat = Vec::new();
                    if let Place::Planes(blocked) = place {
                        flat.resize(self.batch * blocked.shape.len(), 0.0);
                    }
                    let dy = flattened(place, Some(&dy), &mut flat);
                    let mut dx = if let Mode::Train { dropout: Some(_) } = mode {
                        vec![0.0; dy.len()]
                    } else {
                        dy.to_vec()
                    };
                    if let Mode::Train { dropout: Some(key) } = mode {
                        dropout::backward(*probability, dropout::draws(key, step.output), dy, &mut dx);
                    }
                    arrive(&self.places[step.inputs[0]], &dx, &mut buffer, add);
                    filled.push((slot, buffer));
                }
            }
            (Kind::Relu, Place::Vectors(_)) => {
                if let Some((slot, mut buffer, add)) = flow(0) {
                    let mut dx = vec![0.0; dy.vectors().len()];
                    crate::op::relu::backward(
                        value(step.inputs[0]).map_or(&[][..], Buffer::vectors),
                        dy.vectors(),
                        &mut dx,
                    );
                    arrive(&self.places[step.inputs[0]], &dx, &mut buffer, add);
                    filled.push((slot, buffer));
                }
            }
            (Kind::Add { relu }, place) => {
                if let (true, Place::Planes(to)) = (*relu, place) {
                    let y = planes(step.output);
                    pool.install(|| {
                        let images = dy
                            .planes_mut()
                            .par_chunks_exact_mut(to.image())
                            .zip(y.par_chunks_exact(to.image()));
                        images.for_each(|(dy, y)| norm::mask(machine, to, y, dy));
                    });
                }
                for input in 0..2 {
                    if let Some((slot, mut buffer, add)) = flow(input) {
                        match (place, &self.places[step.inputs[input]]) {
                            (Place::Planes(to), Place::Planes(target)) => copy_planes(
                                pool,
                                machine,
                                (to, dy.planes()),
                                (target, buffer.planes_mut()),
                                add,
                            ),
                            (_, target) => arrive(target, dy.vectors(), &mut buffer, add),
                        }
                        filled.push((slot, buffer));
                    }
                }
            }
            (kind, Place::Planes(to)) => {
                let mut offset = 0;
                for input in 0..step.inputs.len() {
                    let place = *self.planes(step.inputs[input]);
                    if let Some((slot, mut dx, add)) = flow(input) {
                        let (x, y) = (planes(step.inputs[input]), planes(step.output));
                        pool.install(|| {
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
                                    Kind::MaxPool(window) => {
                                        pixels::max_pool_back(window, (&place, x), (to, y, dy), dx, add)
                                    }
                                    Kind::AveragePool(window) => {
                                        pixels::average_pool_back(window, &place, to, dy, dx, add)
                                    }
                                    Kind::PadChannels { before } => {
                                        pixels::take_channels(to, dy, *before, &place, dx, add)
                                    }
                                    Kind::Subsample { stride } => {
                                        pixels::subsample_back(*stride, to, dy, &place, dx, add)
                                    }
                                    Kind::Concat => pixels::take_channels(to, dy, offset, &place, dx, add),
                                    _ => {}
                                }
                            });
                        });
                        filled.push((slot, dx));
                    }
                    offset += place.shape.channels;
                }
            }
            _ => {}
        }
        for (slot, buffer) in filled {
            gradients[slot] = Some(buffer);
        }
        if let Some(slot) = self.slots[step.output] {
            gradients[slot] = Some(dy);
        }
    }

    /// The gradient of the weights, group by group of images and block by block of output channels.
    fn weight_gradient(
        &self,
        walk: &Walk,
        x: &[Line],
        dy: &[Line],
        scratch: &mut Scratch,
        pool: &rayon::ThreadPool,
        machine: Machine,
    ) {
        let size = walk.weights() / walk.to.blocks();
        let images = self.batch.div_ceil(scratch.groups.len());
        pool.install(|| {
            scratch.groups.par_iter_mut().enumerate().for_each(|(group, lines)| {
                lines.par_chunks_exact_mut(size).enumerate().for_each(|(out, lines)| {
                    lines.fill(Line::ZERO);
                    for image in group * images..((group + 1) * images).min(self.batch) {
                        let x = &x[image * walk.from.image()..][..walk.from.image()];
                        let dy = &dy[image * walk.to.image()..][..walk.to.image()];
                        conv::weight_gradient(machine, walk, out, x, dy, lines);
                    }
                });
            });
        });
    }
}

/// Adds the sums of all pixels of each channel.
fn sum_channels(machine: Machine, place: &Blocked, batch: &[Line], out: &mut [f32]) {
    let mut moments = Moments::new(place.blocks());
    let mut sums = vec![0.0f64; out.len()];
    for image in batch.chunks_exact(place.image()) {
        norm::moments(machine, place, image, &mut moments);
        for (channel, sum) in sums.iter_mut().enumerate() {
            *sum += f64::from(moments.mean[channel / WIDTH].0[channel % WIDTH]) * place.shape.area() as f64;
        }
    }
    out.iter_mut().zip(sums).for_each(|(out, sum)| *out += sum as f32);
}

/// Copies planes, or adds them to what is there.
fn copy_planes(
    pool: &rayon::ThreadPool,
    machine: Machine,
    (from, x): (&Blocked, &[Line]),
    (to, y): (&Blocked, &mut [Line]),
    add: bool,
) {
    pool.install(|| {
        y.par_chunks_exact_mut(to.image()).zip(x.par_chunks_exact(from.image())).for_each(|(y, x)| {
            pixels::copy(machine, from, x, to, y, add);
        });
    });
}

/// A plain gradient arrives at a node.
fn arrive(place: &Place, dx: &[f32], buffer: &mut Buffer, add: bool) {
    match place {
        Place::Vectors(_) => buffer
            .vectors_mut()
            .iter_mut()
            .zip(dx)
            .for_each(|(to, &dx)| *to = if add { *to + dx } else { dx }),
        Place::Planes(blocked) => {
            let mut own = vec![0.0; blocked.shape.len()];
            for (image, plain) in buffer
                .planes_mut()
                .chunks_exact_mut(blocked.image())
                .zip(dx.chunks_exact(blocked.shape.len()))
            {
                if add {
                    blocked.unpack(image, &mut own);
                    own.iter_mut().zip(plain).for_each(|(own, dx)| *own += dx);
                    blocked.pack(&own, image);
                } else {
                    blocked.pack(plain, image);
                }
            }
        }
    }
}

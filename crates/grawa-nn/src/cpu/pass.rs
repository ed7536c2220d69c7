//! Forward and backward passes of a program, and what is made of them.
//!
//! Images are independent in every step, so they are shared out among threads; what is summed over images (statistics,
//! weight gradients) is summed in an order that the shape alone decides. So one thread and all threads give the same
//! bits.

use super::arena::{Arena, Buffer, Scratch};
use super::block::Blocked;
use super::lanes::{Line, Machine, WIDTH};
use super::norm::{self, Moments};
use super::program::{Flow, Kind, Place, Program, Step};
use super::{conv, pixels};
use crate::op::{batch_norm, cross_entropy, dropout, linear};
use crate::{Error, Mode, TensorId};
use rayon::prelude::*;

fn expect(what: &str, found: usize, expected: usize) -> Result<(), Error> {
    if found == expected { Ok(()) } else { Err(Error::WrongLength { what: what.into(), found, expected }) }
}

impl Program {
    /// Runs a forward pass on a batch; the logits are in the arena then.
    pub fn forward<'a>(
        &self,
        arena: &'a mut Arena,
        parameters: &[f32],
        statistics: &[f32],
        images: &[f32],
        mode: Mode,
    ) -> Result<&'a [f32], Error> {
        expect("the parameters", parameters.len(), self.graph.parameters().len())?;
        expect("the statistics", statistics.len(), self.graph.statistics().len())?;
        expect("the batch of images", images.len(), self.batch * self.graph.input().len())?;
        let input = *self.planes(0);
        let packed = arena.values[0].as_mut().map_or(&mut [][..], Buffer::planes_mut);
        arena.pool.install(|| {
            let images = images.par_chunks_exact(self.graph.input().len());
            packed
                .par_chunks_exact_mut(input.image())
                .zip(images)
                .for_each(|(packed, image)| input.pack(image, packed));
        });
        for index in 0..self.steps.len() {
            self.run(index, arena, parameters, statistics, mode);
        }
        arena.trained = mode != Mode::Evaluate;
        let last = self.steps.last().map_or(0, |step| step.output);
        let result = arena.values[last].as_ref();
        match (&self.places[last], result) {
            (Place::Vectors(_), Some(buffer)) => arena.logits.copy_from_slice(buffer.vectors()),
            (Place::Planes(place), Some(buffer)) => {
                let images = buffer.planes().chunks_exact(place.image());
                arena
                    .logits
                    .chunks_exact_mut(place.shape.len())
                    .zip(images)
                    .for_each(|(plain, image)| place.unpack(image, plain));
            }
            _ => {}
        }
        Ok(&arena.logits)
    }

    /// A forward and a backward pass in training mode: returns the sum of the losses, and writes the gradient of that
    /// sum times `factor` (1 for the sum, 1/N for the mean). Changes nothing but the arena and `gradient`.
    pub fn gradient(
        &self,
        arena: &mut Arena,
        (parameters, statistics): (&[f32], &[f32]),
        (images, labels): (&[f32], &[u32]),
        mode: Mode,
        factor: f64,
        gradient: &mut [f32],
    ) -> Result<f64, Error> {
        expect("the list of labels", labels.len(), self.batch)?;
        expect("the gradient", gradient.len(), self.graph.parameters().len())?;
        self.forward(arena, parameters, statistics, images, mode)?;
        let last = self.steps.last().map_or(0, |step| step.output);
        let Some(slot) = self.slots[last] else { return Ok(0.0) };
        let mut flow = vec![0.0; arena.logits.len()];
        let loss =
            cross_entropy::loss(self.graph.classes(), &arena.logits, labels, factor as f32, &mut flow)?;
        match (&self.places[last], arena.gradients[slot].as_mut()) {
            (Place::Vectors(_), Some(buffer)) => buffer.vectors_mut().copy_from_slice(&flow),
            (Place::Planes(place), Some(buffer)) => {
                let images = buffer.planes_mut().chunks_exact_mut(place.image());
                images
                    .zip(flow.chunks_exact(place.shape.len()))
                    .for_each(|(image, plain)| place.pack(plain, image));
            }
            _ => {}
        }
        gradient.fill(0.0);
        for index in (0..self.steps.len()).rev() {
            self.flow_back(index, arena, parameters, mode, gradient);
        }
        Ok(loss)
    }

    /// Moves the running statistics toward those of the batch just passed; nothing if that pass was an evaluation.
    pub fn track(&self, arena: &Arena, statistics: &mut [f32]) -> Result<(), Error> {
        expect("the statistics", statistics.len(), self.graph.statistics().len())?;
        if !arena.trained {
            return Ok(());
        }
        for (step, scratch) in self.steps.iter().zip(&arena.scratch) {
            if let Kind::Norm { mean, variance, .. } = &step.kind {
                let spans = self.graph.statistics().spans();
                let (mean, variance) = (spans[mean.0].range(), spans[variance.0].range());
                let (front, back) = statistics.split_at_mut(mean.end);
                let used =
                    batch_norm::Batch { mean: scratch.mean.clone(), variance: scratch.variance.clone() };
                let count = self.batch * self.planes(step.inputs[0]).shape.area();
                batch_norm::track(count, &used, &mut front[mean.start..], &mut back[..variance.len()]);
            }
        }
        Ok(())
    }

    fn learnt<'v>(&self, parameters: &'v [f32], id: TensorId) -> &'v [f32] {
        &parameters[self.graph.parameters().spans()[id.0].range()]
    }

    fn run(&self, index: usize, arena: &mut Arena, parameters: &[f32], statistics: &[f32], mode: Mode) {
        let step = &self.steps[index];
        let Arena { values, scratch, pool, machine, .. } = arena;
        let machine = *machine;
        let Some(mut output) = values[step.output].take() else { return };
        let value = |input: usize| values[step.inputs[input]].as_ref();
        let planes = |input: usize| value(input).map_or(&[][..], Buffer::planes);
        let vectors = |input: usize| value(input).map_or(&[][..], Buffer::vectors);
        let from = |input: usize| *self.planes(step.inputs[input]);
        let (scratch, before) = {
            let (before, rest) = scratch.split_at_mut(index);
            (&mut rest[0], before)
        };
        match (&step.kind, &self.places[step.output]) {
            (Kind::Conv { walk, forth, weight, bias, moments, .. }, _) => {
                conv::pack(walk, self.learnt(parameters, *weight), &mut scratch.weights, &mut scratch.turned);
                let bias = bias
                    .map(|bias| norm::lines(self.learnt(parameters, bias).iter().copied(), walk.to.blocks()));
                let weights = &scratch.weights;
                pool.install(|| {
                    let images = output.planes_mut().par_chunks_exact_mut(walk.to.image());
                    images
                        .zip(planes(0).par_chunks_exact(walk.from.image()))
                        .zip(&mut scratch.moments)
                        .for_each(|((y, x), out)| {
                            conv::run(machine, forth, x, weights, y, false);
                            if let Some(bias) = &bias {
                                add_bias(&walk.to, bias, y);
                            }
                            if *moments {
                                norm::moments(machine, &walk.to, y, out);
                            }
                        });
                });
            }
            (Kind::Norm { weight, bias, mean, variance, relu }, Place::Planes(to)) => {
                let place = from(0);
                let trains = mode != Mode::Evaluate;
                if trains {
                    // A convolution right before has taken its moments already.
                    let made =
                        self.steps.iter().zip(&*before).find(|(maker, _)| maker.output == step.inputs[0]);
                    match made {
                        Some((Step { kind: Kind::Conv { moments: true, .. }, .. }, conv)) => {
                            norm::combine(&place, &conv.moments, &mut scratch.mean, &mut scratch.variance);
                        }
                        _ => {
                            let moments = &mut scratch.moments;
                            pool.install(|| {
                                let images = planes(0).par_chunks_exact(place.image());
                                images
                                    .zip(moments)
                                    .for_each(|(x, out)| norm::moments(machine, &place, x, out));
                            });
                            norm::combine(&place, &scratch.moments, &mut scratch.mean, &mut scratch.variance);
                        }
                    }
                } else {
                    let spans = self.graph.statistics().spans();
                    scratch.mean.copy_from_slice(&statistics[spans[mean.0].range()]);
                    scratch.variance.copy_from_slice(&statistics[spans[variance.0].range()]);
                }
                let Some(affine) = &mut scratch.affine else { return };
                let (scale, shift) = (self.learnt(parameters, *weight), self.learnt(parameters, *bias));
                let deviation = scratch
                    .variance
                    .iter()
                    .map(|&variance| (f64::from(variance) + batch_norm::EPSILON).sqrt());
                affine.slope = norm::lines(
                    scale
                        .iter()
                        .zip(deviation)
                        .map(|(&scale, deviation)| (f64::from(scale) / deviation) as f32),
                    place.blocks(),
                );
                affine.middle = norm::lines(scratch.mean.iter().copied(), place.blocks());
                affine.shift = norm::lines(shift.iter().copied(), place.blocks());
                let other = (step.inputs.len() > 1).then(|| from(1));
                pool.install(|| {
                    output.planes_mut().par_chunks_exact_mut(to.image()).enumerate().for_each(
                        |(image, y)| {
                            let x = &planes(0)[image * place.image()..][..place.image()];
                            let other = other
                                .as_ref()
                                .map(|place| (place, &planes(1)[image * place.image()..][..place.image()]));
                            norm::forward(machine, &place, x, affine, other, *relu, to, y);
                        },
                    );
                });
            }
            (Kind::Linear { weight, bias }, _) => {
                let x = flattened(&self.places[step.inputs[0]], value(0), &mut scratch.flat);
                linear::forward(
                    self.batch,
                    x,
                    self.learnt(parameters, *weight),
                    self.learnt(parameters, *bias),
                    output.vectors_mut(),
                );
            }
            (Kind::GlobalAverage, _) => {
                let place = from(0);
                let vectors = output.vectors_mut().par_chunks_exact_mut(place.shape.channels);
                pool.install(|| {
                    let images = planes(0).par_chunks_exact(place.image());
                    vectors.zip(images).for_each(|(y, x)| pixels::global_average(&place, x, y));
                });
            }
            (Kind::Dropout { probability }, to) => {
                let draws = |key| dropout::draws(key, step.output);
                let x = flattened(&self.places[step.inputs[0]], value(0), &mut scratch.flat);
                let mut y = x.to_vec();
                if let Mode::Train { dropout: Some(key) } = mode {
                    dropout::forward(*probability, draws(key), x, &mut y);
                }
                match to {
                    Place::Vectors(_) => output.vectors_mut().copy_from_slice(&y),
                    Place::Planes(to) => {
                        let images = output.planes_mut().chunks_exact_mut(to.image());
                        images
                            .zip(y.chunks_exact(to.shape.len()))
                            .for_each(|(image, plain)| to.pack(plain, image));
                    }
                }
            }
            (Kind::Relu, Place::Vectors(_)) => crate::op::relu::forward(vectors(0), output.vectors_mut()),
            (Kind::Add { .. }, Place::Vectors(_)) => {
                output
                    .vectors_mut()
                    .iter_mut()
                    .zip(vectors(0))
                    .zip(vectors(1))
                    .for_each(|((y, a), b)| *y = a + b);
            }
            (kind, Place::Planes(to)) => {
                pool.install(|| {
                    output.planes_mut().par_chunks_exact_mut(to.image()).enumerate().for_each(
                        |(image, y)| {
                            let x = |input: usize| {
                                let place = from(input);
                                &planes(input)[image * place.image()..][..place.image()]
                            };
                            let (place, cut) = (from(0), |y: &mut f32| *y = if *y < 0.0 { 0.0 } else { *y });
                            match kind {
                                Kind::Relu => pixels::map(&place, x(0), to, y, |y, x| {
                                    *y = if x < 0.0 { 0.0 } else { x }
                                }),
                                Kind::Add { relu } => {
                                    pixels::map(&place, x(0), to, y, |y, x| *y = x);
                                    pixels::map(&from(1), x(1), to, y, |y, x| {
                                        *y += x;
                                        if *relu {
                                            cut(y);
                                        }
                                    });
                                }
                                Kind::MaxPool(window) => pixels::max_pool(window, &place, x(0), to, y),
                                Kind::AveragePool(window) => {
                                    pixels::average_pool(window, &place, x(0), to, y)
                                }
                                Kind::PadChannels { before } => {
                                    pixels::place_channels(&place, x(0), to, y, *before)
                                }
                                Kind::Subsample { stride } => pixels::subsample(*stride, &place, x(0), to, y),
                                Kind::Concat => {
                                    pixels::place_channels(&place, x(0), to, y, 0);
                                    pixels::place_channels(&from(1), x(1), to, y, place.shape.channels);
                                }
                                _ => {}
                            }
                        },
                    );
                });
            }
            _ => {}
        }
        values[step.output] = Some(output);
    }

    fn flow_back(
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
        walk: &conv::Walk,
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

fn add_bias(place: &Blocked, bias: &[Line], image: &mut [Line]) {
    for (block, plane) in image.chunks_exact_mut(place.plane()).enumerate() {
        for row in 0..place.shape.height {
            for line in &mut plane[place.start(row)..][..place.shape.width] {
                line.0.iter_mut().zip(bias[block].0).for_each(|(y, bias)| *y += bias);
            }
        }
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

/// A node's results as plain vectors; unpacked into `flat` where they are blocked.
fn flattened<'a>(place: &Place, buffer: Option<&'a Buffer>, flat: &'a mut [f32]) -> &'a [f32] {
    match (place, buffer) {
        (Place::Vectors(_), Some(buffer)) => buffer.vectors(),
        (Place::Planes(blocked), Some(buffer)) => {
            let images = buffer.planes().chunks_exact(blocked.image());
            images
                .zip(flat.chunks_exact_mut(blocked.shape.len()))
                .for_each(|(image, plain)| blocked.unpack(image, plain));
            flat
        }
        (_, None) => &[],
    }
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

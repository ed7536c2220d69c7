//! The forward pass of one step.

use super::arena::{Arena, Buffer};
use super::block::Blocked;
use super::convolution::Convolution;
use super::images::Images;
use super::linear;
use super::norm::{self, Affine};
use super::pass::Model;
use super::pixels;
use super::program::{ConvStep, Place, Program};
use super::simd::{F32x16, Isa};
use crate::op::{dropout, relu};
use crate::plan::NO_STEP;
use crate::{Mode, Op};
use rayon::prelude::*;

/// Values whose dropout a thread draws at a time; a multiple of the words of a block.
pub(super) const DRAWS: usize = 4096;

pub(super) const ON_PLANES: &str = "its result is in planes";

impl Program {
    /// Whether a step is a batch norm whose result the next step, a convolution, computes image by image before it reads it.
    pub(super) fn is_left_to_convolution(&self, index: usize) -> bool {
        self.norm_and_conv(index, index + 1).is_some_and(|(norm, conv)| conv.inputs[0] == norm.output)
    }

    /// Computes an image of the result of a batch norm.
    fn normalise<'a>(
        &'a self,
        isa: Isa,
        index: usize,
        affine: &'a Affine,
        values: &'a [Option<Buffer>],
    ) -> impl Fn(usize, &mut [F32x16]) + Sync + 'a {
        let step = &self.steps[index];
        let input = |input: usize| {
            let node = *step.inputs.get(input)?;
            Some((self.planes(node), values[node].as_ref().map_or(&[][..], Buffer::planes)))
        };
        let (from, other, to) = (input(0), input(1), self.planes(step.output));
        move |image, y| {
            let part = |(place, planes): (&'a Blocked, &'a [F32x16])| {
                (place, &planes[image * place.image()..][..place.image()])
            };
            if let Some((from, x)) = from.map(part) {
                norm::forward(isa, from, x, affine, other.map(part), step.relu, to, y);
            }
        }
    }

    /// Computes the result of a step.
    pub(super) fn run(&self, index: usize, arena: &mut Arena, model: Model<'_>, mode: Mode) {
        let (parameters, statistics) = model;
        let step = &self.steps[index];
        let Arena { values, scratch, workspace, isa, .. } = arena;
        let isa = *isa;
        let Some(mut output) = values[step.output].take() else { return };
        // A batch norm directly before a convolution has left its result to it.
        let norm = index.checked_sub(1).filter(|&norm| self.is_left_to_convolution(norm));
        let mut normalised = norm.and_then(|_| values[step.inputs[0]].take());
        let value = |input: usize| values[step.inputs[input]].as_ref();
        let planes = |input: usize| value(input).map_or(&[][..], Buffer::planes);
        let vectors = |input: usize| value(input).map_or(&[][..], Buffer::vectors);
        let from = |input: usize| *self.planes(step.inputs[input]);
        let part = |image: usize, input: usize| {
            let size = from(input).image();
            &planes(input)[image * size..][..size]
        };
        let (scratch, before) = {
            let (before, rest) = scratch.split_at_mut(index);
            (&mut rest[0], before)
        };
        match (&step.op, &self.places[step.output]) {
            (Op::Conv { weight, bias, .. }, _) => {
                let ConvStep { geometry, algorithm, moments } = &self.convolutions[&step.node];
                if let Some(bias) = bias {
                    norm::fill(&mut scratch.bias, self.parameter(parameters, *bias).iter().copied());
                }
                let lines = &scratch.bias;
                let weights = self.parameter(parameters, *weight);
                let convolution = Convolution { isa, geometry, algorithm, weights };
                let make = norm.map(|norm| self.normalise(isa, norm, &before[norm].affine, values));
                let make = |image: usize, x: &mut [F32x16], _: &[F32x16]| {
                    make.iter().for_each(|make| make(image, x));
                };
                let x = match &mut normalised {
                    Some(x) => Images::Lazy(x.planes_mut(), &make),
                    None => Images::Ready(planes(0)),
                };
                let output = (output.planes_mut(), false);
                convolution.forward(workspace, x, output, &mut scratch.moments, |y, out| {
                    if bias.is_some() {
                        add_bias(&geometry.to, lines, y);
                    }
                    if *moments {
                        norm::moments(isa, &geometry.to, y, out);
                    }
                });
            }
            (Op::BatchNorm { weight, bias, mean, variance, epsilon }, Place::Planes(to)) => {
                let place = from(0);
                let trains = mode != Mode::Evaluate;
                if trains {
                    // A convolution directly before has already computed the moments.
                    let made =
                        self.steps.iter().zip(&*before).find(|(maker, _)| maker.output == step.inputs[0]);
                    let conv = made.filter(|(maker, _)| matches!(maker.op, Op::Conv { .. }));
                    let moments = match conv {
                        Some((_, conv)) => &conv.moments,
                        None => {
                            let moments = &mut scratch.moments;
                            let images = planes(0).par_chunks_exact(place.image());
                            images.zip(moments).for_each(|(x, out)| norm::moments(isa, &place, x, out));
                            &scratch.moments
                        }
                    };
                    norm::combine(&place, moments, &mut scratch.mean, &mut scratch.variance);
                } else {
                    let spans = self.graph.statistics().spans();
                    scratch.mean.copy_from_slice(&statistics[spans[mean.0].range()]);
                    scratch.variance.copy_from_slice(&statistics[spans[variance.0].range()]);
                }
                let affine = &mut scratch.affine;
                let (scale, shift) = (self.parameter(parameters, *weight), self.parameter(parameters, *bias));
                let slope = scale.iter().zip(&scratch.variance).map(|(&scale, &variance)| {
                    (f64::from(scale) / (f64::from(variance) + epsilon).sqrt()) as f32
                });
                norm::fill(&mut affine.slope, slope);
                norm::fill(&mut affine.middle, scratch.mean.iter().copied());
                norm::fill(&mut affine.shift, shift.iter().copied());
                if !self.is_left_to_convolution(index) {
                    let normalise = self.normalise(isa, index, affine, values);
                    each_image(&mut output, to, normalise);
                }
            }
            (Op::Linear { weight, bias }, _) => {
                let place = &self.places[step.inputs[0]];
                let x = value(0).map_or(&[][..], |value| value.plain(place, &mut scratch.flat));
                let [weight, bias] = [weight, bias].map(|id| self.parameter(parameters, *id));
                linear::forward(self.batch, x, weight, bias, output.vectors_mut());
            }
            (Op::GlobalAverage, _) => {
                let place = from(0);
                let vectors = output.vectors_mut().par_chunks_exact_mut(place.shape.channels);
                let images = planes(0).par_chunks_exact(place.image());
                vectors.zip(images).for_each(|(y, x)| pixels::global_average(&place, x, y));
            }
            (Op::Dropout { probability }, to) => {
                let place = &self.places[step.inputs[0]];
                let x = value(0).map_or(&[][..], |value| value.plain(place, &mut scratch.flat));
                let y = match to {
                    Place::Vectors(_) => output.vectors_mut(),
                    Place::Planes(_) => &mut scratch.flow,
                };
                match mode {
                    Mode::Train { dropout: Some(key) } => {
                        let parts = y.par_chunks_mut(DRAWS).zip(x.par_chunks(DRAWS)).enumerate();
                        parts.for_each(|(part, (y, x))| {
                            let draws = dropout::draws(key, step.output, part * DRAWS);
                            dropout::forward(*probability, draws, x, y);
                        });
                    }
                    _ => y.copy_from_slice(x),
                }
                if let Place::Planes(_) = to {
                    output.store(to, &scratch.flow, false);
                }
            }
            (Op::Relu, Place::Vectors(_)) => relu::forward(vectors(0), output.vectors_mut()),
            (Op::Add, Place::Vectors(_)) => {
                let pairs = vectors(0).iter().zip(vectors(1));
                let sums = output.vectors_mut().iter_mut().zip(pairs);
                sums.for_each(|(y, (a, b))| *y = cut(a + b, step.relu));
            }
            (Op::Relu, Place::Planes(to)) => each_image(&mut output, to, |image, y| {
                pixels::map(&from(0), part(image, 0), to, y, |y, x| *y = cut(x, true));
            }),
            (Op::Add, Place::Planes(to)) => each_image(&mut output, to, |image, y| {
                pixels::map(&from(0), part(image, 0), to, y, |y, x| *y = x);
                pixels::map(&from(1), part(image, 1), to, y, |y, x| *y = cut(*y + x, step.relu));
            }),
            (Op::MaxPool(window), Place::Planes(to)) => each_image(&mut output, to, |image, y| {
                pixels::max_pool(isa, window, &from(0), part(image, 0), to, y);
            }),
            (Op::AveragePool(window), Place::Planes(to)) => each_image(&mut output, to, |image, y| {
                pixels::average_pool(window, &from(0), part(image, 0), to, y);
            }),
            (Op::PadChannels { before, .. }, Place::Planes(to)) => {
                each_image(&mut output, to, |image, y| {
                    pixels::place_channels(&from(0), part(image, 0), to, y, *before);
                });
            }
            (Op::Subsample { stride }, Place::Planes(to)) => each_image(&mut output, to, |image, y| {
                pixels::subsample(*stride, &from(0), part(image, 0), to, y);
            }),
            (Op::Concat, Place::Planes(to)) => each_image(&mut output, to, |image, y| {
                pixels::place_channels(&from(0), part(image, 0), to, y, 0);
                pixels::place_channels(&from(1), part(image, 1), to, y, from(0).shape.channels);
            }),
            (Op::Plain { plain, tensors }, to) => {
                let operands = self.operands(step, tensors, values, parameters);
                output.store(to, &plain.forward(&operands, self.result_length(step)), false);
            }
            (Op::BatchNorm { .. } | Op::MaxPool(_) | Op::AveragePool(_), Place::Vectors(_))
            | (Op::PadChannels { .. } | Op::Subsample { .. } | Op::Concat, Place::Vectors(_)) => {
                unreachable!("{ON_PLANES}")
            }
            (Op::Input, _) => unreachable!("{NO_STEP}"),
        }
        values[step.output] = Some(output);
        if normalised.is_some() {
            values[step.inputs[0]] = normalised;
        }
    }
}

/// Computes every image of a result on planes.
fn each_image(output: &mut Buffer, to: &Blocked, compute: impl Fn(usize, &mut [F32x16]) + Sync) {
    let images = output.planes_mut().par_chunks_exact_mut(to.image()).enumerate();
    images.for_each(|(image, y)| compute(image, y));
}

/// The value, or zero for a negative value before a ReLU. NaN stays NaN.
fn cut(x: f32, relu: bool) -> f32 {
    if relu && x < 0.0 { 0.0 } else { x }
}

pub(super) fn add_bias(place: &Blocked, bias: &[F32x16], image: &mut [F32x16]) {
    for (block, plane) in image.chunks_exact_mut(place.plane()).enumerate() {
        for row in 0..place.shape.height {
            for line in &mut plane[place.start(row)..][..place.shape.width] {
                line.0.iter_mut().zip(bias[block].0).for_each(|(y, bias)| *y += bias);
            }
        }
    }
}

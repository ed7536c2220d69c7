//! The forward pass of one step.

use super::arena::{Arena, Buffer};
use super::block::Blocked;
use super::convolution::Convolution;
use super::norm;
use super::pixels;
use super::program::{Kind, Place, PlaneOp, Program, Step};
use super::simd::F32x16;
use crate::Mode;
use crate::op::{batch_norm, dropout, linear};
use rayon::prelude::*;

pub(super) const OTHER_ARM: &str = "another arm handles it";
pub(super) const ON_PLANES: &str = "its result is in planes";

impl Program {
    /// Computes the result of a step.
    pub(super) fn run(
        &self,
        index: usize,
        arena: &mut Arena,
        parameters: &[f32],
        statistics: &[f32],
        mode: Mode,
    ) {
        let step = &self.steps[index];
        let Arena { values, scratch, workspace, isa, .. } = arena;
        let isa = *isa;
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
            (Kind::Conv { geometry, algorithm, weight, bias, moments }, _) => {
                if let Some(bias) = bias {
                    norm::fill(&mut scratch.bias, self.parameter(parameters, *bias).iter().copied());
                }
                let lines = &scratch.bias;
                let weights = self.parameter(parameters, *weight);
                let convolution = Convolution { isa, geometry, algorithm, weights };
                let output = (output.planes_mut(), false);
                convolution.forward(workspace, planes(0), output, &mut scratch.moments, |y, out| {
                    if bias.is_some() {
                        add_bias(&geometry.to, lines, y);
                    }
                    if *moments {
                        norm::moments(isa, &geometry.to, y, out);
                    }
                });
            }
            (Kind::Norm { weight, bias, mean, variance, relu }, Place::Planes(to)) => {
                let place = from(0);
                let trains = mode != Mode::Evaluate;
                if trains {
                    // A convolution directly before has already computed the moments.
                    let made =
                        self.steps.iter().zip(&*before).find(|(maker, _)| maker.output == step.inputs[0]);
                    match made {
                        Some((Step { kind: Kind::Conv { moments: true, .. }, .. }, conv)) => {
                            norm::combine(&place, &conv.moments, &mut scratch.mean, &mut scratch.variance);
                        }
                        _ => {
                            let moments = &mut scratch.moments;
                            let images = planes(0).par_chunks_exact(place.image());
                            images.zip(moments).for_each(|(x, out)| norm::moments(isa, &place, x, out));
                            norm::combine(&place, &scratch.moments, &mut scratch.mean, &mut scratch.variance);
                        }
                    }
                } else {
                    let spans = self.graph.statistics().spans();
                    scratch.mean.copy_from_slice(&statistics[spans[mean.0].range()]);
                    scratch.variance.copy_from_slice(&statistics[spans[variance.0].range()]);
                }
                let affine = &mut scratch.affine;
                let (scale, shift) = (self.parameter(parameters, *weight), self.parameter(parameters, *bias));
                let slope = scale.iter().zip(&scratch.variance).map(|(&scale, &variance)| {
                    (f64::from(scale) / (f64::from(variance) + batch_norm::EPSILON).sqrt()) as f32
                });
                norm::fill(&mut affine.slope, slope);
                norm::fill(&mut affine.middle, scratch.mean.iter().copied());
                norm::fill(&mut affine.shift, shift.iter().copied());
                let other = (step.inputs.len() > 1).then(|| from(1));
                output.planes_mut().par_chunks_exact_mut(to.image()).enumerate().for_each(|(image, y)| {
                    let x = &planes(0)[image * place.image()..][..place.image()];
                    let other = other
                        .as_ref()
                        .map(|place| (place, &planes(1)[image * place.image()..][..place.image()]));
                    norm::forward(isa, &place, x, affine, other, *relu, to, y);
                });
            }
            (Kind::Linear { weight, bias }, _) => {
                let place = &self.places[step.inputs[0]];
                let x = value(0).map_or(&[][..], |value| value.plain(place, &mut scratch.flat));
                linear::forward(
                    self.batch,
                    x,
                    self.parameter(parameters, *weight),
                    self.parameter(parameters, *bias),
                    output.vectors_mut(),
                );
            }
            (Kind::GlobalAverage, _) => {
                let place = from(0);
                let vectors = output.vectors_mut().par_chunks_exact_mut(place.shape.channels);
                let images = planes(0).par_chunks_exact(place.image());
                vectors.zip(images).for_each(|(y, x)| pixels::global_average(&place, x, y));
            }
            (Kind::Dropout { probability }, to) => {
                let place = &self.places[step.inputs[0]];
                let x = value(0).map_or(&[][..], |value| value.plain(place, &mut scratch.flat));
                let y = match to {
                    Place::Vectors(_) => output.vectors_mut(),
                    Place::Planes(_) => &mut scratch.flow,
                };
                match mode {
                    Mode::Train { dropout: Some(key) } => {
                        dropout::forward(*probability, dropout::draws(key, step.output), x, y);
                    }
                    _ => y.copy_from_slice(x),
                }
                if let Place::Planes(_) = to {
                    output.store(to, &scratch.flow, false);
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
            (kind @ (Kind::Relu | Kind::Add { .. } | Kind::Planes(_)), Place::Planes(to)) => {
                output.planes_mut().par_chunks_exact_mut(to.image()).enumerate().for_each(|(image, y)| {
                    let x = |input: usize| {
                        let place = from(input);
                        &planes(input)[image * place.image()..][..place.image()]
                    };
                    let (place, cut) = (from(0), |y: &mut f32| *y = if *y < 0.0 { 0.0 } else { *y });
                    match kind {
                        Kind::Relu => {
                            pixels::map(&place, x(0), to, y, |y, x| *y = if x < 0.0 { 0.0 } else { x })
                        }
                        Kind::Add { relu } => {
                            pixels::map(&place, x(0), to, y, |y, x| *y = x);
                            pixels::map(&from(1), x(1), to, y, |y, x| {
                                *y += x;
                                if *relu {
                                    cut(y);
                                }
                            });
                        }
                        Kind::Planes(PlaneOp::MaxPool(window)) => {
                            pixels::max_pool(isa, window, &place, x(0), to, y)
                        }
                        Kind::Planes(PlaneOp::AveragePool(window)) => {
                            pixels::average_pool(window, &place, x(0), to, y)
                        }
                        Kind::Planes(PlaneOp::PadChannels { before }) => {
                            pixels::place_channels(&place, x(0), to, y, *before)
                        }
                        Kind::Planes(PlaneOp::Subsample { stride }) => {
                            pixels::subsample(*stride, &place, x(0), to, y)
                        }
                        Kind::Planes(PlaneOp::Concat) => {
                            pixels::place_channels(&place, x(0), to, y, 0);
                            pixels::place_channels(&from(1), x(1), to, y, place.shape.channels);
                        }
                        Kind::Conv { .. } | Kind::Norm { .. } | Kind::Linear { .. } => {
                            unreachable!("{OTHER_ARM}")
                        }
                        Kind::GlobalAverage | Kind::Dropout { .. } => unreachable!("{OTHER_ARM}"),
                    }
                });
            }
            (Kind::Norm { .. } | Kind::Planes(_), Place::Vectors(_)) => unreachable!("{ON_PLANES}"),
        }
        values[step.output] = Some(output);
    }
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

//! Group normalisation: in every example, each group of channels gets mean 0 and variance 1, then each channel a scale
//! and a shift. As in PyTorch the variance is biased and ε is 10⁻⁵. One group is layer norm over the whole example.

use super::batch_norm::EPSILON;
use super::plain::Operands;
use crate::scalar::Scalar;

/// The mean of a group, and one over its deviation.
fn moments<T: Scalar>(x: &[T]) -> (T, T) {
    let count = T::of(x.len() as f64);
    let mean = x.iter().copied().sum::<T>() / count;
    let variance = x.iter().map(|&x| (x - mean) * (x - mean)).sum::<T>() / count;
    (mean, T::one() / (variance + T::of(EPSILON)).sqrt())
}

/// y = scale · (x − mean) / √(variance + ε) + shift.
pub(crate) fn forward<T: Scalar>(groups: usize, operands: &Operands<T>, y: &mut [T]) {
    let ((shape, x), [scale, shift]) = (&operands.inputs[0], [0, 1].map(|which| &operands.tensors[which]));
    let size = shape.len() / groups;
    for (group, (x, y)) in x.chunks_exact(size).zip(y.chunks_exact_mut(size)).enumerate() {
        let (mean, inverse) = moments(x);
        for (at, (y, &x)) in y.iter_mut().zip(x).enumerate() {
            let channel = (group % groups * size + at) / shape.area();
            *y = scale[channel] * (x - mean) * inverse + shift[channel];
        }
    }
}

/// Adds the gradients of x, scale and shift.
pub(crate) fn backward<T: Scalar>(groups: usize, operands: &Operands<T>, dy: &[T], into: &mut Operands<T>) {
    let ((shape, x), scale) = (&operands.inputs[0], &operands.tensors[0]);
    let size = shape.len() / groups;
    let (count, dx) = (T::of(size as f64), into.inputs[0].1.chunks_exact_mut(size));
    for (group, ((x, dy), dx)) in x.chunks_exact(size).zip(dy.chunks_exact(size)).zip(dx).enumerate() {
        let (mean, inverse) = moments(x);
        let channel = |at: usize| (group % groups * size + at) / shape.area();
        let (mut sum, mut along) = (T::zero(), T::zero());
        for (at, (&x, &dy)) in x.iter().zip(dy).enumerate() {
            let normal = (x - mean) * inverse;
            into.tensors[0][channel(at)] += dy * normal;
            into.tensors[1][channel(at)] += dy;
            sum += dy * scale[channel(at)];
            along += dy * scale[channel(at)] * normal;
        }
        for (at, ((dx, &x), &dy)) in dx.iter_mut().zip(x).zip(dy).enumerate() {
            let normal = (x - mean) * inverse;
            *dx += inverse * (dy * scale[channel(at)] - (sum + normal * along) / count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;
    use crate::op::plain::Plain;
    use proptest::prelude::*;

    const SHAPE: Shape = Shape { channels: 6, height: 2, width: 3 };

    fn operands(x: &[f64], tensors: &[f64]) -> Operands<f64> {
        let tensors = tensors.chunks_exact(SHAPE.channels).map(<[f64]>::to_vec).collect();
        Operands { inputs: vec![(SHAPE, x.to_vec())], tensors }
    }

    fn result(groups: usize, x: &[f64], tensors: &[f64]) -> Vec<f64> {
        Plain::GroupNorm { groups }.forward(&operands(x, tensors), x.len())
    }

    /// PyTorch's definition, written with indices: view as N × G × (C/G·H·W), normalise, scale and shift by channel.
    fn expected(groups: usize, x: &[f64], tensors: &[f64]) -> Vec<f64> {
        let (each, area) = (SHAPE.channels / groups, SHAPE.area());
        let at = |example: usize, channel: usize, pixel: usize| {
            x[(example * SHAPE.channels + channel) * area + pixel]
        };
        let value = |index: usize| {
            let (example, channel, pixel) =
                (index / SHAPE.len(), index / area % SHAPE.channels, index % area);
            let first = channel / each * each;
            let members: Vec<f64> =
                (0..each * area).map(|i| at(example, first + i / area, i % area)).collect();
            let mean = members.iter().sum::<f64>() / members.len() as f64;
            let variance = members.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / members.len() as f64;
            let normal = (at(example, channel, pixel) - mean) / (variance + 1e-5).sqrt();
            normal * tensors[channel] + tensors[SHAPE.channels + channel]
        };
        (0..x.len()).map(value).collect()
    }

    fn numbers(count: usize) -> impl Strategy<Value = Vec<f64>> {
        prop::collection::vec(-2.0f64..2.0, count)
    }

    proptest! {
        #[test]
        fn values_are_those_of_the_formula(
            groups in prop::sample::select(vec![1usize, 2, 3, 6]),
            x in numbers(2 * SHAPE.len()),
            tensors in numbers(2 * SHAPE.channels),
        ) {
            for (found, expected) in result(groups, &x, &tensors).iter().zip(expected(groups, &x, &tensors)) {
                prop_assert!((found - expected).abs() < 1e-12 * (1.0 + expected.abs()), "{found}, not {expected}");
            }
        }

        /// Another mean and another scale of an example change nothing (up to ε).
        #[test]
        fn shifting_and_scaling_an_example_changes_nothing(
            groups in prop::sample::select(vec![1usize, 2, 3, 6]),
            x in numbers(SHAPE.len()),
            tensors in numbers(2 * SHAPE.channels),
            shift in -5.0f64..5.0,
        ) {
            // Groups of nearly equal values are dominated by ε.
            let spread = |part: &[f64]| part.iter().fold(0.0f64, |most, x| most.max((x - part[0]).abs()));
            prop_assume!(x.chunks(SHAPE.len() / groups).all(|group| spread(group) > 0.5));
            let moved: Vec<f64> = x.iter().map(|x| 3.0 * x + shift).collect();
            for (a, b) in result(groups, &x, &tensors).iter().zip(result(groups, &moved, &tensors)) {
                prop_assert!((a - b).abs() < 1e-2, "{a}, then {b}");
            }
        }

        /// The gradient of Σ w·y along any direction is the difference quotient.
        #[test]
        fn gradients_are_those_of_differences(
            groups in prop::sample::select(vec![1usize, 2, 3, 6]),
            x in numbers(2 * SHAPE.len()),
            tensors in numbers(2 * SHAPE.channels),
            weights in numbers(2 * SHAPE.len()),
            along in numbers(2 * SHAPE.len() + 2 * SHAPE.channels),
        ) {
            let spread = |part: &[f64]| part.iter().fold(0.0f64, |most, x| most.max((x - part[0]).abs()));
            prop_assume!(x.chunks(SHAPE.len() / groups).all(|group| spread(group) > 0.5));
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            let (dx, dtensors) = along.split_at(x.len());
            let at = |h: f64| {
                let moved = |from: &[f64], by: &[f64]| -> Vec<f64> {
                    from.iter().zip(by).map(|(from, by)| from + h * by).collect()
                };
                dot(&weights, &result(groups, &moved(&x, dx), &moved(&tensors, dtensors)))
            };
            let expected = (at(1e-5) - at(-1e-5)) / 2e-5;
            let found = Plain::GroupNorm { groups }.backward(&operands(&x, &tensors), &weights);
            let found = dot(&found.inputs[0].1, dx) + dot(&found.tensors.concat(), dtensors);
            prop_assert!((found - expected).abs() < 1e-5 * (1.0 + expected.abs()), "{found}, not {expected}");
        }
    }
}

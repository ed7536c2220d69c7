//! Batch normalisation: every channel gets mean 0 and variance 1 over the batch, then a scale and a shift.
//!
//! As in PyTorch, the batch is normalised with its biased variance; the running variance uses the unbiased one, with
//! momentum 0.1; ε is 10⁻⁵ unless a network sets another. Sums take two passes to avoid cancellation.

use crate::Shape;
use crate::scalar::Scalar;

/// The usual ε.
pub(crate) const EPSILON: f64 = 1e-5;
/// The share of the running statistics that a batch replaces.
pub(crate) const MOMENTUM: f64 = 0.1;

/// What a training-mode forward pass keeps for the backward pass: one number for each channel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batch<T> {
    pub(crate) mean: Vec<T>,
    /// Biased.
    pub(crate) variance: Vec<T>,
}

/// Calls `each` with every contiguous part of a channel: the channel and its range in the batch.
fn stretches(shape: Shape, len: usize, mut each: impl FnMut(usize, std::ops::Range<usize>)) {
    for start in (0..len).step_by(shape.area().max(1)) {
        each(start / shape.area() % shape.channels, start..start + shape.area());
    }
}

/// Mean and biased variance of every channel over the batch.
pub(crate) fn statistics<T: Scalar>(shape: Shape, x: &[T]) -> Batch<T> {
    let count = T::of((x.len() / shape.channels.max(1)) as f64);
    let mut mean = vec![T::zero(); shape.channels];
    stretches(shape, x.len(), |channel, at| mean[channel] += x[at].iter().copied().sum());
    mean.iter_mut().for_each(|mean| *mean = *mean / count);
    let mut variance = vec![T::zero(); shape.channels];
    stretches(shape, x.len(), |channel, at| {
        variance[channel] += x[at].iter().map(|&x| (x - mean[channel]) * (x - mean[channel])).sum();
    });
    variance.iter_mut().for_each(|variance| *variance = *variance / count);
    Batch { mean, variance }
}

/// Updates running statistics with those of a batch of `count` values for each channel.
pub(crate) fn track<T: Scalar>(count: usize, batch: (&[T], &[T]), mean: &mut [T], variance: &mut [T]) {
    let (keep, take) = (T::of(1.0 - MOMENTUM), T::of(MOMENTUM));
    // A single value has no unbiased variance. PyTorch rejects it; we keep the biased one.
    let unbiased = T::of(count as f64 / (count.max(2) - 1) as f64);
    for (running, &new) in mean.iter_mut().zip(batch.0) {
        *running = keep * *running + take * new;
    }
    for (running, &new) in variance.iter_mut().zip(batch.1) {
        *running = keep * *running + take * unbiased * new;
    }
}

/// The statistics that a batch norm uses.
pub(crate) struct Norm<'a, T> {
    pub(crate) shape: Shape,
    pub(crate) used: &'a Batch<T>,
    pub(crate) epsilon: f64,
    /// Whether mean and variance are those of the batch, and so depend on x; otherwise they are constants.
    pub(crate) of_batch: bool,
}

/// y = scale · (x − mean) / √(variance + ε) + shift.
pub(crate) fn forward<T: Scalar>(norm: &Norm<'_, T>, x: &[T], scale: &[T], shift: &[T], y: &mut [T]) {
    let &Norm { shape, used: Batch { mean, variance }, epsilon, .. } = norm;
    stretches(shape, x.len(), |channel, at| {
        let slope = scale[channel] / (variance[channel] + T::of(epsilon)).sqrt();
        for (y, &x) in y[at.clone()].iter_mut().zip(&x[at]) {
            *y = (x - mean[channel]) * slope + shift[channel];
        }
    });
}

/// Adds the gradients of x, scale and shift.
pub(crate) fn backward<T: Scalar>(
    norm: &Norm<'_, T>,
    x: &[T],
    scale: &[T],
    dy: &[T],
    dx: &mut [T],
    dscale: &mut [T],
    dshift: &mut [T],
) {
    let &Norm { shape, used: Batch { mean, variance }, epsilon, of_batch } = norm;
    let deviation = |channel: usize| (variance[channel] + T::of(epsilon)).sqrt();
    let (mut sum, mut along) = (vec![T::zero(); shape.channels], vec![T::zero(); shape.channels]);
    stretches(shape, x.len(), |channel, at| {
        let pairs = || x[at.clone()].iter().zip(&dy[at.clone()]);
        sum[channel] += pairs().map(|(_, &dy)| dy).sum();
        along[channel] += pairs().map(|(&x, &dy)| dy * (x - mean[channel])).sum::<T>() / deviation(channel);
    });
    for channel in 0..shape.channels {
        dshift[channel] += sum[channel];
        dscale[channel] += along[channel];
    }
    let count = T::of((x.len() / shape.channels.max(1)) as f64);
    stretches(shape, x.len(), |channel, at| {
        let (deviation, slope) = (deviation(channel), scale[channel] / deviation(channel));
        for ((dx, &x), &dy) in dx[at.clone()].iter_mut().zip(&x[at.clone()]).zip(&dy[at]) {
            let through_batch = match of_batch {
                true => (sum[channel] + (x - mean[channel]) / deviation * along[channel]) / count,
                false => T::zero(),
            };
            *dx += slope * (dy - through_batch);
        }
    });
}

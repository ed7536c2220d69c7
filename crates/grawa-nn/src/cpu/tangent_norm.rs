//! The tangents of batch norm on blocked activations, and of what follows it.
//!
//! With x̂ = x − mean, s = 1/√(variance + ε), S = Σ dy and T = Σ dy·x̂, the forward pass is y = scale·s·x̂ + shift,
//! and the backward pass dx = scale·s·(dy − S/n − x̂·s²T/n). Tangents are sums of the same planes with one factor for
//! each channel: two planes forward, four backward. The factors are computed in f64.

use super::block::Blocked;
use super::norm::{self, Moments};
use super::simd::{F32x16, for_each_isa};

/// The factors of a tangent of batch norm, for every channel.
#[derive(Clone, Debug)]
pub(crate) struct Factors {
    /// The mean and its tangent.
    pub(crate) middle: Vec<F32x16>,
    pub(crate) middle_change: Vec<F32x16>,
    /// The factors of x̂ and of x̂′.
    pub(crate) centred: Vec<F32x16>,
    pub(crate) centred_change: Vec<F32x16>,
    /// The factors of dy and of dy′; zero in the forward pass.
    pub(crate) flow: Vec<F32x16>,
    pub(crate) flow_change: Vec<F32x16>,
    /// The constant term.
    pub(crate) constant: Vec<F32x16>,
}

/// One channel of a batch norm and of its tangent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Channel {
    /// Values in the channel; none if the statistics are constants.
    pub(crate) count: Option<f64>,
    pub(crate) scale: f64,
    pub(crate) scale_change: f64,
    pub(crate) variance: f64,
    pub(crate) epsilon: f64,
    /// Σ x′ and Σ x̂·x′.
    pub(crate) sum_change: f64,
    pub(crate) along_change: f64,
}

/// The sums of the backward pass of a channel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Back {
    /// S and T.
    pub(crate) sum: f64,
    pub(crate) along: f64,
    /// S′ and T′.
    pub(crate) sum_change: f64,
    pub(crate) along_change: f64,
}

impl Channel {
    /// s.
    fn inverse(&self) -> f64 {
        1.0 / (self.variance + self.epsilon).sqrt()
    }

    /// The tangent of the mean.
    pub(crate) fn mean_change(&self) -> f64 {
        self.count.map_or(0.0, |count| self.sum_change / count)
    }

    /// s′ = −s³·(Σ x̂·x′)/n.
    fn inverse_change(&self) -> f64 {
        self.count.map_or(0.0, |count| -self.inverse().powi(3) * self.along_change / count)
    }

    /// scale·s.
    pub(crate) fn slope(&self) -> f64 {
        self.scale * self.inverse()
    }

    /// The tangent of scale·s.
    pub(crate) fn slope_change(&self) -> f64 {
        self.scale_change * self.inverse() + self.scale * self.inverse_change()
    }

    /// The tangent of the scale's gradient, (s·T)′.
    pub(crate) fn scale_gradient_change(&self, back: &Back) -> f64 {
        self.inverse_change() * back.along + self.inverse() * back.along_change
    }

    /// Factors of x̂ and x̂′, and the constant, in the tangent of dx.
    pub(crate) fn back(&self, back: &Back) -> [f64; 3] {
        let Some(count) = self.count else { return [0.0; 3] };
        let (s, s_change) = (self.inverse(), self.inverse_change());
        let pull = s * s * back.along / count;
        let pull_change = (2.0 * s * s_change * back.along + s * s * back.along_change) / count;
        let (slope, slope_change) = (self.slope(), self.slope_change());
        [
            -(slope_change * pull + slope * pull_change),
            -slope * pull,
            -(slope_change * back.sum + slope * back.sum_change) / count,
        ]
    }
}

/// The sums of [`norm::sums`] over all images, for one channel.
pub(crate) fn total(images: &[Moments], channel: usize) -> (f64, f64) {
    let (block, lane) = (channel / super::simd::WIDTH, channel % super::simd::WIDTH);
    let part = |of: &[F32x16]| f64::from(of[block].0[lane]);
    images
        .iter()
        .fold((0.0, 0.0), |(sum, along), image| (sum + part(&image.mean), along + part(&image.squares)))
}

/// One number for each channel, as vectors.
pub(crate) fn lines<'a>(
    channels: &'a [Channel],
    blocks: usize,
    number: impl Fn(usize, &Channel) -> f64 + 'a,
) -> Vec<F32x16> {
    let mut lines = vec![F32x16::ZERO; blocks];
    let numbers = channels.iter().enumerate().map(|(index, channel)| number(index, channel) as f32);
    norm::fill(&mut lines, numbers);
    lines
}

for_each_isa! {
    /// One image: y′ = centred·x̂ + centred_change·x̂′ + constant, plus `other`, zero where y is not positive.
    pub(crate) fn forward(
        simd, from: &Blocked, x: &[F32x16], dx: &[F32x16], factors: &Factors,
        other: Option<(&Blocked, &[F32x16])>, gate: Option<&[F32x16]>, to: &Blocked, y: &mut [F32x16],
    ) {
        let width = from.shape.width;
        for block in 0..from.blocks() {
            let (middle, change) = (simd.load(&factors.middle[block]), simd.load(&factors.middle_change[block]));
            let centred = simd.load(&factors.centred[block]);
            let centred_change = simd.load(&factors.centred_change[block]);
            let constant = simd.load(&factors.constant[block]);
            for row in 0..from.shape.height {
                let at = block * from.plane() + from.start(row);
                let target = block * to.plane() + to.start(row);
                for pixel in 0..width {
                    let mut value = (simd.load(&x[at + pixel]) - middle) * centred + constant;
                    value = value + (simd.load(&dx[at + pixel]) - change) * centred_change;
                    if let Some((place, other)) = other {
                        value = value + simd.load(&other[block * place.plane() + place.start(row) + pixel]);
                    }
                    if let Some(gate) = gate {
                        value = value.where_positive(simd.load(&gate[target + pixel]));
                    }
                    value.store(&mut y[target + pixel]);
                }
            }
        }
    }
}

for_each_isa! {
    /// One image: flow·dy + flow_change·dy′ + centred·x̂ + centred_change·x̂′ + constant, added to `out` if `add`.
    pub(crate) fn backward(
        simd, from: &Blocked, x: &[F32x16], dx: &[F32x16], factors: &Factors, to: &Blocked, dy: &[F32x16],
        ddy: &[F32x16], out: &mut [F32x16], add: bool,
    ) {
        let width = from.shape.width;
        for block in 0..from.blocks() {
            let (middle, change) = (simd.load(&factors.middle[block]), simd.load(&factors.middle_change[block]));
            let centred = simd.load(&factors.centred[block]);
            let centred_change = simd.load(&factors.centred_change[block]);
            let (flow, flow_change) = (simd.load(&factors.flow[block]), simd.load(&factors.flow_change[block]));
            let constant = simd.load(&factors.constant[block]);
            for row in 0..from.shape.height {
                let at = block * from.plane() + from.start(row);
                let (x, dx, out) = (&x[at..][..width], &dx[at..][..width], &mut out[at..][..width]);
                let at = block * to.plane() + to.start(row);
                let (dy, ddy) = (&dy[at..][..width], &ddy[at..][..width]);
                for pixel in 0..width {
                    let mut value = constant + simd.load(&dy[pixel]) * flow + simd.load(&ddy[pixel]) * flow_change;
                    value = value + (simd.load(&x[pixel]) - middle) * centred;
                    value = value + (simd.load(&dx[pixel]) - change) * centred_change;
                    if add {
                        value = value + simd.load(&out[pixel]);
                    }
                    value.store(&mut out[pixel]);
                }
            }
        }
    }
}

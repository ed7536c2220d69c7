//! Batch norm on blocked activations, with what follows it: the sum with a shortcut and the ReLU.
//!
//! Statistics are computed for each image in two passes while it is in cache, and combined in f64 by Chan's formula.
//! So nothing cancels, and the result does not depend on the number of threads.

use super::block::Blocked;
use super::simd::{F32x16, WIDTH, for_each_isa};
use rayon::prelude::*;

/// Mean and sum of squared deviations of every channel of one image.
#[derive(Clone, Debug)]
pub(crate) struct Moments {
    pub(crate) mean: Vec<F32x16>,
    pub(crate) squares: Vec<F32x16>,
}

impl Moments {
    pub(crate) fn new(blocks: usize) -> Self {
        Moments { mean: vec![F32x16::ZERO; blocks], squares: vec![F32x16::ZERO; blocks] }
    }
}

/// The rows of a plane, as ranges of vectors.
fn rows(place: &Blocked) -> impl Iterator<Item = std::ops::Range<usize>> {
    let (place, width) = (*place, place.shape.width);
    (0..place.shape.height).map(move |y| place.start(y)..place.start(y) + width)
}

for_each_isa! {
    /// The moments of one image.
    pub(crate) fn moments(simd, place: &Blocked, image: &[F32x16], out: &mut Moments) {
        let share = 1.0 / place.shape.area() as f32;
        for (block, plane) in image.chunks_exact(place.plane()).enumerate() {
            let mut sum = simd.zero();
            for row in rows(place) {
                // Row by row: short sums lose little precision.
                let mut part = simd.zero();
                for line in &plane[row] {
                    part = part + simd.load(line);
                }
                sum = sum + part;
            }
            let mean = sum * share;
            let mut squares = simd.zero();
            for row in rows(place) {
                let mut part = simd.zero();
                for line in &plane[row] {
                    let x = simd.load(line) - mean;
                    part = part + x * x;
                }
                squares = squares + part;
            }
            mean.store(&mut out.mean[block]);
            squares.store(&mut out.squares[block]);
        }
    }
}

/// Mean and biased variance of every channel over all images.
pub(crate) fn combine(place: &Blocked, images: &[Moments], mean: &mut [f32], variance: &mut [f32]) {
    let (area, count) = (place.shape.area() as f64, images.len() as f64);
    let blocks = mean.par_chunks_mut(WIDTH).zip(variance.par_chunks_mut(WIDTH)).enumerate();
    // A few blocks are combined sooner than other threads take a share.
    blocks.with_min_len(4).for_each(|(block, (mean, variance))| {
        // Image by image: the channels of a block are next to each other.
        let (mut middle, mut squares) = ([0.0; WIDTH], [0.0; WIDTH]);
        for image in images {
            middle.iter_mut().zip(image.mean[block].0).for_each(|(sum, x)| *sum += f64::from(x));
        }
        middle.iter_mut().for_each(|middle| *middle /= count);
        for Moments { mean, squares: own } in images {
            for lane in 0..WIDTH {
                let gap = f64::from(mean[block].0[lane]) - middle[lane];
                squares[lane] += f64::from(own[block].0[lane]) + area * gap * gap;
            }
        }
        mean.iter_mut().zip(middle).for_each(|(mean, middle)| *mean = middle as f32);
        variance.iter_mut().zip(squares).for_each(|(to, sum)| *to = (sum / (area * count)) as f32);
    });
}

/// Writes one number for each channel into vectors.
pub(crate) fn fill(lines: &mut [F32x16], numbers: impl Iterator<Item = f32>) {
    for (channel, x) in numbers.enumerate() {
        lines[channel / WIDTH].0[channel % WIDTH] = x;
    }
}

/// (x − middle)·slope + shift for every channel; `along` is the factor of x in the backward pass.
#[derive(Clone, Debug, Default)]
pub(crate) struct Affine {
    pub(crate) middle: Vec<F32x16>,
    pub(crate) slope: Vec<F32x16>,
    pub(crate) shift: Vec<F32x16>,
    pub(crate) along: Vec<F32x16>,
}

impl Affine {
    pub(crate) fn new(blocks: usize) -> Self {
        let blank = || vec![F32x16::ZERO; blocks];
        Affine { middle: blank(), slope: blank(), shift: blank(), along: blank() }
    }
}

for_each_isa! {
    /// One image: y = (x − middle)·slope + shift, plus `other`, then ReLU if `relu`.
    pub(crate) fn forward(
        simd, from: &Blocked, x: &[F32x16], affine: &Affine, other: Option<(&Blocked, &[F32x16])>, relu: bool,
        to: &Blocked, y: &mut [F32x16],
    ) {
        let width = from.shape.width;
        for block in 0..from.blocks() {
            let (middle, slope) = (simd.load(&affine.middle[block]), simd.load(&affine.slope[block]));
            let shift = simd.load(&affine.shift[block]);
            let floor = simd.splat(if relu { 0.0 } else { f32::NEG_INFINITY });
            for row in 0..from.shape.height {
                let x = &x[block * from.plane() + from.start(row)..][..width];
                let y = &mut y[block * to.plane() + to.start(row)..][..width];
                let other = other.map(|(place, other)| &other[block * place.plane() + place.start(row)..][..width]);
                for pixel in 0..width {
                    let mut value = (simd.load(&x[pixel]) - middle) * slope + shift;
                    if let Some(other) = other {
                        value = value + simd.load(&other[pixel]);
                    }
                    value.at_least(floor).store(&mut y[pixel]);
                }
            }
        }
    }
}

for_each_isa! {
    /// One image: sets the gradient to zero where the result of the ReLU is, in place.
    pub(crate) fn mask(simd, place: &Blocked, y: &[F32x16], dy: &mut [F32x16]) {
        for block in 0..place.blocks() {
            for row in rows(place) {
                let row = block * place.plane() + row.start..block * place.plane() + row.end;
                for (dy, y) in dy[row.clone()].iter_mut().zip(&y[row]) {
                    simd.load(dy).where_positive(simd.load(y)).store(dy);
                }
            }
        }
    }
}

for_each_isa! {
    /// One image: the sums of dy and of dy·(x − middle) of every channel, into `mean` and `squares`. With the result
    /// `y` of a ReLU, dy is masked first, in place.
    pub(crate) fn sums(
        simd, from: &Blocked, x: &[F32x16], middle: &[F32x16], to: &Blocked, y: Option<&[F32x16]>,
        dy: &mut [F32x16], out: &mut Moments,
    ) {
        let width = from.shape.width;
        for block in 0..from.blocks() {
            let (mut sum, mut along, middle) = (simd.zero(), simd.zero(), simd.load(&middle[block]));
            for row in 0..from.shape.height {
                let (mut part, mut part_along) = (simd.zero(), simd.zero());
                let x = &x[block * from.plane() + from.start(row)..][..width];
                let at = block * to.plane() + to.start(row);
                let dy = &mut dy[at..][..width];
                let y = y.map(|y| &y[at..][..width]);
                for pixel in 0..width {
                    let mut flow = simd.load(&dy[pixel]);
                    if let Some(y) = y {
                        flow = flow.where_positive(simd.load(&y[pixel]));
                        flow.store(&mut dy[pixel]);
                    }
                    part = part + flow;
                    part_along = part_along + flow * (simd.load(&x[pixel]) - middle);
                }
                sum = sum + part;
                along = along + part_along;
            }
            sum.store(&mut out.mean[block]);
            along.store(&mut out.squares[block]);
        }
    }
}

for_each_isa! {
    /// The same for a ReLU directly behind the batch norm: its sign is computed again from x, since reading y costs more.
    pub(crate) fn sums_before_relu(
        simd, from: &Blocked, x: &[F32x16], affine: &Affine, to: &Blocked, dy: &mut [F32x16], out: &mut Moments,
    ) {
        let width = from.shape.width;
        for block in 0..from.blocks() {
            let (middle, slope) = (simd.load(&affine.middle[block]), simd.load(&affine.slope[block]));
            let (mut sum, mut along, shift) = (simd.zero(), simd.zero(), simd.load(&affine.shift[block]));
            for row in 0..from.shape.height {
                let (mut part, mut part_along) = (simd.zero(), simd.zero());
                let x = &x[block * from.plane() + from.start(row)..][..width];
                let dy = &mut dy[block * to.plane() + to.start(row)..][..width];
                for pixel in 0..width {
                    let centred = simd.load(&x[pixel]) - middle;
                    let flow = simd.load(&dy[pixel]).where_positive(centred * slope + shift);
                    flow.store(&mut dy[pixel]);
                    part = part + flow;
                    part_along = part_along + flow * centred;
                }
                sum = sum + part;
                along = along + part_along;
            }
            sum.store(&mut out.mean[block]);
            along.store(&mut out.squares[block]);
        }
    }
}

for_each_isa! {
    /// One image: dx = slope·(dy − sum − (x − middle)·along), with the sum in the affine's shift; added to dx if
    /// `add`.
    pub(crate) fn backward(
        simd, from: &Blocked, x: &[F32x16], affine: &Affine, to: &Blocked, dy: &[F32x16], dx: &mut [F32x16],
        add: bool,
    ) {
        let width = from.shape.width;
        for block in 0..from.blocks() {
            let (middle, slope) = (simd.load(&affine.middle[block]), simd.load(&affine.slope[block]));
            let (sum, along) = (simd.load(&affine.shift[block]), simd.load(&affine.along[block]));
            for row in 0..from.shape.height {
                let at = block * from.plane() + from.start(row);
                let (x, dx) = (&x[at..][..width], &mut dx[at..][..width]);
                let dy = &dy[block * to.plane() + to.start(row)..][..width];
                for pixel in 0..width {
                    let centred = simd.load(&x[pixel]) - middle;
                    let mut value = (simd.load(&dy[pixel]) - sum - centred * along) * slope;
                    if add {
                        value = value + simd.load(&dx[pixel]);
                    }
                    value.store(&mut dx[pixel]);
                }
            }
        }
    }
}

//! Batch norm on blocked activations, with what follows it: the sum with a shortcut and the ReLU.
//!
//! Statistics are computed for each image in two passes while it is in cache, and combined in f64 by Chan's formula.
//! So nothing cancels, and the result does not depend on the number of threads.

#![allow(unsafe_code)]

use super::block::Blocked;
use super::simd::{F32x16, WIDTH, for_each_isa};

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
    pub(crate) fn moments<V>(place: &Blocked, image: &[F32x16], out: &mut Moments) {
        let share = 1.0 / place.shape.area() as f32;
        for (block, plane) in image.chunks_exact(place.plane()).enumerate() {
            // SAFETY: the caller has these instructions (see `Simd`), and every pointer is that of a vector in a slice.
            unsafe {
                let mut sum = V::zero();
                for row in rows(place) {
                    // Row by row: short sums lose little precision.
                    sum = sum.add(plane[row].iter().fold(V::zero(), |part, line| part.add(V::load(line.at()))));
                }
                let mean = sum.mul(V::splat(share));
                let mut squares = V::zero();
                for row in rows(place) {
                    squares = squares.add(plane[row].iter().fold(V::zero(), |part, line| {
                        let x = V::load(line.at()).sub(mean);
                        part.add(x.mul(x))
                    }));
                }
                mean.store(out.mean[block].at_mut());
                squares.store(out.squares[block].at_mut());
            }
        }
    }
}

/// Mean and biased variance of every channel over all images.
pub(crate) fn combine(place: &Blocked, images: &[Moments], mean: &mut [f32], variance: &mut [f32]) {
    let area = place.shape.area() as f64;
    for channel in 0..place.shape.channels {
        let (block, lane) = (channel / WIDTH, channel % WIDTH);
        let part = |of: &[F32x16]| f64::from(of[block].0[lane]);
        let middle = images.iter().map(|image| part(&image.mean)).sum::<f64>() / images.len() as f64;
        let squares: f64 = (images.iter())
            .map(|image| {
                part(&image.squares) + area * (part(&image.mean) - middle) * (part(&image.mean) - middle)
            })
            .sum();
        mean[channel] = middle as f32;
        variance[channel] = (squares / (area * images.len() as f64)) as f32;
    }
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
    pub(crate) fn forward<V>(
        from: &Blocked, x: &[F32x16], affine: &Affine, other: Option<(&Blocked, &[F32x16])>, relu: bool,
        to: &Blocked, y: &mut [F32x16],
    ) {
        let width = from.shape.width;
        for block in 0..from.blocks() {
            // SAFETY: the caller has these instructions (see `Simd`), and every pointer is that of a vector in a slice.
            unsafe {
                let [middle, slope, shift] =
                    [&affine.middle, &affine.slope, &affine.shift].map(|lines| V::load(lines[block].at()));
                let floor = V::splat(if relu { 0.0 } else { f32::NEG_INFINITY });
                for row in 0..from.shape.height {
                    let x = &x[block * from.plane() + from.start(row)..][..width];
                    let y = &mut y[block * to.plane() + to.start(row)..][..width];
                    let value = |x: &F32x16| V::load(x.at()).sub(middle).mul(slope).add(shift);
                    match other {
                        None => y.iter_mut().zip(x).for_each(|(y, x)| value(x).at_least(floor).store(y.at_mut())),
                        Some((place, other)) => {
                            let other = &other[block * place.plane() + place.start(row)..][..width];
                            for ((y, x), other) in y.iter_mut().zip(x).zip(other) {
                                value(x).add(V::load(other.at())).at_least(floor).store(y.at_mut());
                            }
                        }
                    }
                }
            }
        }
    }
}

for_each_isa! {
    /// One image: sets the gradient to zero where the result of the ReLU is, in place.
    pub(crate) fn mask<V>(place: &Blocked, y: &[F32x16], dy: &mut [F32x16]) {
        for block in 0..place.blocks() {
            for row in rows(place) {
                let row = block * place.plane() + row.start..block * place.plane() + row.end;
                for (dy, y) in dy[row.clone()].iter_mut().zip(&y[row]) {
                    // SAFETY: the caller has these instructions (see `Simd`), and every pointer is that of a vector in a slice.
                    unsafe { V::load(dy.at()).where_positive(V::load(y.at())).store(dy.at_mut()) };
                }
            }
        }
    }
}

for_each_isa! {
    /// One image: the sums of dy and of dy·(x − middle) of every channel, into `mean` and `squares`. With the result
    /// `y` of a ReLU, dy is masked first, in place.
    pub(crate) fn sums<V>(
        from: &Blocked, x: &[F32x16], middle: &[F32x16], to: &Blocked, y: Option<&[F32x16]>,
        dy: &mut [F32x16], out: &mut Moments,
    ) {
        let width = from.shape.width;
        for block in 0..from.blocks() {
            // SAFETY: the caller has these instructions (see `Simd`), and every pointer is that of a vector in a slice.
            unsafe {
                let (mut sum, mut along, middle) = (V::zero(), V::zero(), V::load(middle[block].at()));
                for row in 0..from.shape.height {
                    let (mut part, mut part_along) = (V::zero(), V::zero());
                    let x = &x[block * from.plane() + from.start(row)..][..width];
                    let at = block * to.plane() + to.start(row);
                    let dy = &mut dy[at..][..width];
                    let mut note = |x: &F32x16, dy: V| {
                        part = part.add(dy);
                        part_along = part_along.add(dy.mul(V::load(x.at()).sub(middle)));
                    };
                    match y {
                        None => x.iter().zip(dy).for_each(|(x, dy)| note(x, V::load(dy.at()))),
                        Some(y) => {
                            for ((x, dy), y) in x.iter().zip(dy).zip(&y[at..][..width]) {
                                let cut = V::load(dy.at()).where_positive(V::load(y.at()));
                                cut.store(dy.at_mut());
                                note(x, cut);
                            }
                        }
                    }
                    sum = sum.add(part);
                    along = along.add(part_along);
                }
                sum.store(out.mean[block].at_mut());
                along.store(out.squares[block].at_mut());
            }
        }
    }
}

for_each_isa! {
    /// One image: dx = slope·(dy − sum − (x − middle)·along), with the sum in the affine's shift; added to dx if
    /// `add`.
    pub(crate) fn backward<V>(
        from: &Blocked, x: &[F32x16], affine: &Affine, to: &Blocked, dy: &[F32x16], dx: &mut [F32x16],
        add: bool,
    ) {
        let width = from.shape.width;
        for block in 0..from.blocks() {
            // SAFETY: the caller has these instructions (see `Simd`), and every pointer is that of a vector in a slice.
            unsafe {
                let [middle, slope, sum] =
                    [&affine.middle, &affine.slope, &affine.shift].map(|lines| V::load(lines[block].at()));
                let along = V::load(affine.along[block].at());
                for row in 0..from.shape.height {
                    let at = block * from.plane() + from.start(row);
                    let (x, dx) = (&x[at..][..width], &mut dx[at..][..width]);
                    let dy = &dy[block * to.plane() + to.start(row)..][..width];
                    for ((dx, x), dy) in dx.iter_mut().zip(x).zip(dy) {
                        let centred = V::load(x.at()).sub(middle);
                        let value = V::load(dy.at()).sub(sum).sub(centred.mul(along)).mul(slope);
                        let value = if add { value.add(V::load(dx.at())) } else { value };
                        value.store(dx.at_mut());
                    }
                }
            }
        }
    }
}

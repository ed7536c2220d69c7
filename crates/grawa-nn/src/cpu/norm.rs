//! Batch norm on blocked activations, with what follows it: the sum with a shortcut and the ReLU.
//!
//! Statistics are taken image by image in two passes while an image is in cache, and put together in f64 (Chan's
//! formula), so that nothing cancels and the result does not depend on the number of threads.

use super::block::Blocked;
use super::lanes::{Line, WIDTH, for_machines};

/// Mean and summed squared distance from it, of every channel of one image.
#[derive(Clone, Debug)]
pub(crate) struct Moments {
    pub(crate) mean: Vec<Line>,
    pub(crate) squares: Vec<Line>,
}

impl Moments {
    pub(crate) fn new(blocks: usize) -> Self {
        Moments { mean: vec![Line::ZERO; blocks], squares: vec![Line::ZERO; blocks] }
    }
}

/// The rows of a plane: ranges of lines.
fn rows(place: &Blocked) -> impl Iterator<Item = std::ops::Range<usize>> {
    let (place, width) = (*place, place.shape.width);
    (0..place.shape.height).map(move |y| place.start(y)..place.start(y) + width)
}

for_machines! {
/// The moments of one image.
pub(crate) fn moments(place: &Blocked, image: &[Line], out: &mut Moments) {
    let count = place.shape.area() as f32;
    for (block, plane) in image.chunks_exact(place.plane()).enumerate() {
        let mut mean = Line::ZERO;
        for row in rows(place) {
            // Row by row: short sums lose little.
            let mut part = Line::ZERO;
            for line in &plane[row] {
                part.0.iter_mut().zip(line.0).for_each(|(sum, x)| *sum += x);
            }
            mean.0.iter_mut().zip(part.0).for_each(|(sum, x)| *sum += x);
        }
        mean.0.iter_mut().for_each(|mean| *mean /= count);
        let mut squares = Line::ZERO;
        for row in rows(place) {
            let mut part = Line::ZERO;
            for line in &plane[row] {
                for lane in 0..WIDTH {
                    let x = line.0[lane] - mean.0[lane];
                    part.0[lane] += x * x;
                }
            }
            squares.0.iter_mut().zip(part.0).for_each(|(sum, x)| *sum += x);
        }
        (out.mean[block], out.squares[block]) = (mean, squares);
    }
}
}

/// Mean and biased variance of every channel over all images.
pub(crate) fn combine(place: &Blocked, images: &[Moments], mean: &mut [f32], variance: &mut [f32]) {
    let area = place.shape.area() as f64;
    for channel in 0..place.shape.channels {
        let (block, lane) = (channel / WIDTH, channel % WIDTH);
        let part = |of: &[Line]| f64::from(of[block].0[lane]);
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

/// Numbers of every channel as lines.
pub(crate) fn lines(numbers: impl Iterator<Item = f32>, blocks: usize) -> Vec<Line> {
    let mut out = vec![Line::ZERO; blocks];
    for (channel, x) in numbers.enumerate() {
        out[channel / WIDTH].0[channel % WIDTH] = x;
    }
    out
}

/// (x − middle)·slope + shift for every channel.
#[derive(Clone, Debug)]
pub(crate) struct Affine {
    pub(crate) middle: Vec<Line>,
    pub(crate) slope: Vec<Line>,
    pub(crate) shift: Vec<Line>,
}

for_machines! {
/// One image: y = (x − middle)·slope + shift, plus `other`, cut at zero if `relu`.
pub(crate) fn forward(
    from: &Blocked,
    x: &[Line],
    affine: &Affine,
    other: Option<(&Blocked, &[Line])>,
    relu: bool,
    to: &Blocked,
    y: &mut [Line],
) {
    let floor = if relu { 0.0 } else { f32::NEG_INFINITY };
    for block in 0..from.blocks() {
        let (Line(middle), Line(slope), Line(shift)) =
            (affine.middle[block], affine.slope[block], affine.shift[block]);
        for row in 0..from.shape.height {
            let width = from.shape.width;
            let x = &x[block * from.plane() + from.start(row)..][..width];
            let y = &mut y[block * to.plane() + to.start(row)..][..width];
            match other {
                None => {
                    for (y, x) in y.iter_mut().zip(x) {
                        for lane in 0..WIDTH {
                            let value = (x.0[lane] - middle[lane]) * slope[lane] + shift[lane];
                            y.0[lane] = if value < floor { floor } else { value };
                        }
                    }
                }
                Some((place, other)) => {
                    let other = &other[block * place.plane() + place.start(row)..][..width];
                    for ((y, x), other) in y.iter_mut().zip(x).zip(other) {
                        for lane in 0..WIDTH {
                            let value =
                                (x.0[lane] - middle[lane]) * slope[lane] + shift[lane] + other.0[lane];
                            y.0[lane] = if value < floor { floor } else { value };
                        }
                    }
                }
            }
        }
    }
}
}

/// `value` where `gate` is positive, else zero: without a branch, so that it is done sixteen at a time.
#[inline(always)]
fn gated(gate: f32, value: f32) -> f32 {
    f32::from_bits(value.to_bits() & u32::from(gate > 0.0).wrapping_neg())
}

for_machines! {
/// One image: cuts the gradient where the ReLU cut, in place.
pub(crate) fn mask(place: &Blocked, y: &[Line], dy: &mut [Line]) {
    for block in 0..place.blocks() {
        for row in 0..place.shape.height {
            let at = block * place.plane() + place.start(row);
            let (y, dy) = (&y[at..][..place.shape.width], &mut dy[at..][..place.shape.width]);
            for (dy, y) in dy.iter_mut().zip(y) {
                for lane in 0..WIDTH {
                    dy.0[lane] = gated(y.0[lane], dy.0[lane]);
                }
            }
        }
    }
}
}

for_machines! {
/// One image: the sums of dy and of dy·(x − middle), of every channel, into `mean` and `squares`. With a result `y` of
/// a ReLU, dy is cut first, in place.
pub(crate) fn sums(from: &Blocked, x: &[Line], middle: &[Line], to: &Blocked, y: Option<&[Line]>, dy: &mut [Line], out: &mut Moments) {
    for block in 0..from.blocks() {
        let (mut sum, mut along) = (Line::ZERO, Line::ZERO);
        let Line(middle) = middle[block];
        for row in 0..from.shape.height {
            let (mut part, mut part_along) = (Line::ZERO, Line::ZERO);
            let x = &x[block * from.plane() + from.start(row)..][..from.shape.width];
            let at = block * to.plane() + to.start(row);
            let dy = &mut dy[at..][..from.shape.width];
            if let Some(y) = y {
                for (dy, y) in dy.iter_mut().zip(&y[at..][..from.shape.width]) {
                    for lane in 0..WIDTH {
                        dy.0[lane] = gated(y.0[lane], dy.0[lane]);
                    }
                }
            }
            for (x, dy) in x.iter().zip(dy) {
                for lane in 0..WIDTH {
                    part.0[lane] += dy.0[lane];
                    part_along.0[lane] += dy.0[lane] * (x.0[lane] - middle[lane]);
                }
            }
            for lane in 0..WIDTH {
                sum.0[lane] += part.0[lane];
                along.0[lane] += part_along.0[lane];
            }
        }
        (out.mean[block], out.squares[block]) = (sum, along);
    }
}
}

for_machines! {
/// One image: dx = slope·(dy − sum − (x − middle)·along), added to what is there if `add`.
pub(crate) fn backward(
    from: &Blocked,
    x: &[Line],
    affine: &Affine,
    along: &[Line],
    to: &Blocked,
    dy: &[Line],
    dx_place: &Blocked,
    dx: &mut [Line],
    add: bool,
) {
    for block in 0..from.blocks() {
        let (Line(middle), Line(slope), Line(sum), Line(along)) =
            (affine.middle[block], affine.slope[block], affine.shift[block], along[block]);
        for row in 0..from.shape.height {
            let x = &x[block * from.plane() + from.start(row)..][..from.shape.width];
            let dy = &dy[block * to.plane() + to.start(row)..][..from.shape.width];
            let dx = &mut dx[block * dx_place.plane() + dx_place.start(row)..][..from.shape.width];
            for ((dx, x), dy) in dx.iter_mut().zip(x).zip(dy) {
                for lane in 0..WIDTH {
                    let value =
                        slope[lane] * (dy.0[lane] - sum[lane] - (x.0[lane] - middle[lane]) * along[lane]);
                    dx.0[lane] = if add { dx.0[lane] + value } else { value };
                }
            }
        }
    }
}
}

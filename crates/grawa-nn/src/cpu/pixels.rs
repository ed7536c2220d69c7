//! Operations that move or pool pixels and channels of blocked activations, one image at a time.

use super::block::Blocked;
use super::simd::{F32x16, WIDTH, for_each_isa};
use crate::Window;

/// Stores a value, or adds it.
fn put(to: &mut f32, value: f32, add: bool) {
    *to = if add { *to + value } else { value };
}

/// The index of a pixel in an image.
fn line(place: &Blocked, block: usize, pixel: usize) -> usize {
    block * place.plane() + place.start(pixel / place.shape.width) + pixel % place.shape.width
}

/// The index of every pixel in two layouts that differ only in their borders.
pub(crate) fn pairs(a: &Blocked, b: &Blocked) -> impl Iterator<Item = (usize, usize)> {
    let (a, b) = (*a, *b);
    (0..a.blocks()).flat_map(move |block| {
        (0..a.shape.area()).map(move |pixel| (line(&a, block, pixel), line(&b, block, pixel)))
    })
}

/// y ← f(x) for every value.
pub(crate) fn map(
    from: &Blocked,
    x: &[F32x16],
    to: &Blocked,
    y: &mut [F32x16],
    mut f: impl FnMut(&mut f32, f32),
) {
    for (source, target) in pairs(from, to) {
        for lane in 0..WIDTH {
            f(&mut y[target].0[lane], x[source].0[lane]);
        }
    }
}

for_each_isa! {
    /// Copies planes between layouts of one shape, or adds them.
    pub(crate) fn copy(simd, from: &Blocked, x: &[F32x16], to: &Blocked, y: &mut [F32x16], add: bool) {
        for block in 0..from.blocks() {
            for row in 0..from.shape.height {
                let x = &x[block * from.plane() + from.start(row)..][..from.shape.width];
                let y = &mut y[block * to.plane() + to.start(row)..][..from.shape.width];
                for (y, x) in y.iter_mut().zip(x) {
                    let value = simd.load(x);
                    let value = if add { value + simd.load(y) } else { value };
                    value.store(y);
                }
            }
        }
    }
}

/// The mean of each channel, as a plain vector.
pub(crate) fn global_average(from: &Blocked, x: &[F32x16], y: &mut [f32]) {
    let count = from.shape.area() as f32;
    for (block, y) in y.chunks_mut(WIDTH).enumerate() {
        let mut sum = [0.0; WIDTH];
        for pixel in 0..from.shape.area() {
            sum.iter_mut().zip(x[line(from, block, pixel)].0).for_each(|(sum, x)| *sum += x);
        }
        y.iter_mut().zip(sum).for_each(|(y, sum)| *y = sum / count);
    }
}

/// The gradient of `global_average`.
pub(crate) fn global_average_back(dy: &[f32], from: &Blocked, dx: &mut [F32x16], add: bool) {
    let count = from.shape.area() as f32;
    for (block, dy) in dy.chunks(WIDTH).enumerate() {
        for pixel in 0..from.shape.area() {
            let dx = &mut dx[line(from, block, pixel)].0;
            dx.iter_mut().zip(dy).for_each(|(dx, &dy)| put(dx, dy / count, add));
        }
    }
}

/// Divides channels that move by `offset` into runs that lie in one block on both sides: the first channel before and after, and
/// how many.
fn runs(channels: usize, offset: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let mut next = 0;
    std::iter::from_fn(move || {
        let (first, moved) = (next, next + offset);
        let length = (channels - first).min(WIDTH - first % WIDTH).min(WIDTH - moved % WIDTH);
        next += length;
        (length > 0).then_some((first, moved, length))
    })
}

/// Copies the channels of `x` to those of `y` from `offset` on.
pub(crate) fn place_channels(from: &Blocked, x: &[F32x16], to: &Blocked, y: &mut [F32x16], offset: usize) {
    for (source, target, length) in runs(from.shape.channels, offset) {
        for pixel in 0..from.shape.area() {
            let values = &x[line(from, source / WIDTH, pixel)].0[source % WIDTH..][..length];
            y[line(to, target / WIDTH, pixel)].0[target % WIDTH..][..length].copy_from_slice(values);
        }
    }
}

/// The gradient of `place_channels`.
pub(crate) fn take_channels(
    to: &Blocked,
    dy: &[F32x16],
    offset: usize,
    from: &Blocked,
    dx: &mut [F32x16],
    add: bool,
) {
    for (target, source, length) in runs(from.shape.channels, offset) {
        for pixel in 0..from.shape.area() {
            let values = &dy[line(to, source / WIDTH, pixel)].0[source % WIDTH..][..length];
            let slopes = &mut dx[line(from, target / WIDTH, pixel)].0[target % WIDTH..][..length];
            slopes.iter_mut().zip(values).for_each(|(slope, &value)| put(slope, value, add));
        }
    }
}

/// Every `stride`-th pixel.
pub(crate) fn subsample(stride: usize, from: &Blocked, x: &[F32x16], to: &Blocked, y: &mut [F32x16]) {
    for block in 0..to.blocks() {
        for pixel in 0..to.shape.area() {
            let (row, column) = (pixel / to.shape.width * stride, pixel % to.shape.width * stride);
            y[line(to, block, pixel)] = x[line(from, block, row * from.shape.width + column)];
        }
    }
}

/// The gradient of `subsample`.
pub(crate) fn subsample_back(
    stride: usize,
    to: &Blocked,
    dy: &[F32x16],
    from: &Blocked,
    dx: &mut [F32x16],
    add: bool,
) {
    if !add {
        clear(from, dx);
    }
    for block in 0..to.blocks() {
        for pixel in 0..to.shape.area() {
            let (row, column) = (pixel / to.shape.width * stride, pixel % to.shape.width * stride);
            let target = &mut dx[line(from, block, row * from.shape.width + column)];
            target.0.iter_mut().zip(dy[line(to, block, pixel)].0).for_each(|(dx, dy)| *dx += dy);
        }
    }
}

/// Sets all pixels to zero; the border is always zero.
fn clear(place: &Blocked, image: &mut [F32x16]) {
    for (pixel, _) in pairs(place, place) {
        image[pixel] = F32x16::ZERO;
    }
}

for_each_isa! {
    /// The maximum of each window. The loops treat all lanes alike, so the compiler vectorises them.
    pub(crate) fn max_pool(_simd, window: &Window, from: &Blocked, x: &[F32x16], to: &Blocked, y: &mut [F32x16]) {
        for (block, pixel) in outputs(to) {
            let (members, target) = (window.members(from.shape, to.shape, pixel), line(to, block, pixel));
            let mut best = F32x16([f32::NEG_INFINITY; WIDTH]);
            for pixel in members {
                let x = x[line(from, block, pixel)];
                for lane in 0..WIDTH {
                    // NaN wins over every number, so that it is noticed.
                    let wins = (x.0[lane] > best.0[lane]) | x.0[lane].is_nan();
                    best.0[lane] = if wins { x.0[lane] } else { best.0[lane] };
                }
            }
            y[target] = best;
        }
    }
}

for_each_isa! {
    /// The gradient of `max_pool`: it goes to the first of equal values.
    pub(crate) fn max_pool_back(
        _simd, window: &Window, from: &Blocked, x: &[F32x16], to: &Blocked, y: &[F32x16], dy: &[F32x16],
        dx: &mut [F32x16], add: bool,
    ) {
        if !add {
            clear(from, dx);
        }
        for (block, pixel) in outputs(to) {
            let (members, target) = (window.members(from.shape, to.shape, pixel), line(to, block, pixel));
            let (best, mut left) = (y[target], dy[target]);
            for pixel in members {
                let at = line(from, block, pixel);
                let (x, mut sum) = (x[at], dx[at]);
                for lane in 0..WIDTH {
                    let (value, best) = (x.0[lane], best.0[lane]);
                    let is_best = (value == best) | (value.is_nan() & best.is_nan());
                    sum.0[lane] += if is_best { left.0[lane] } else { 0.0 };
                    left.0[lane] = if is_best { 0.0 } else { left.0[lane] };
                }
                dx[at] = sum;
            }
        }
    }
}

/// The tangent of `max_pool`: that of the first of equal values.
pub(crate) fn max_pool_tangent(
    window: &Window,
    (from, x, dx): (&Blocked, &[F32x16], &[F32x16]),
    (to, y): (&Blocked, &[F32x16]),
    dy: &mut [F32x16],
) {
    for (block, pixel) in outputs(to) {
        let (members, target) = (window.members(from.shape, to.shape, pixel), line(to, block, pixel));
        let mut taken = [false; WIDTH];
        for pixel in members {
            let at = line(from, block, pixel);
            for lane in 0..WIDTH {
                let (value, best) = (x[at].0[lane], y[target].0[lane]);
                if !taken[lane] && (value == best || (value.is_nan() && best.is_nan())) {
                    taken[lane] = true;
                    dy[target].0[lane] = dx[at].0[lane];
                }
            }
        }
    }
}

/// The mean of each window.
pub(crate) fn average_pool(window: &Window, from: &Blocked, x: &[F32x16], to: &Blocked, y: &mut [F32x16]) {
    for (block, pixel) in outputs(to) {
        let (members, target) = (window.members(from.shape, to.shape, pixel), line(to, block, pixel));
        let (mut sum, mut count) = ([0.0; WIDTH], 0.0);
        for pixel in members {
            sum.iter_mut().zip(x[line(from, block, pixel)].0).for_each(|(sum, x)| *sum += x);
            count += 1.0;
        }
        y[target] = F32x16(sum.map(|sum| sum / count));
    }
}

/// The gradient of `average_pool`.
pub(crate) fn average_pool_back(
    window: &Window,
    from: &Blocked,
    to: &Blocked,
    dy: &[F32x16],
    dx: &mut [F32x16],
    add: bool,
) {
    if !add {
        clear(from, dx);
    }
    for (block, pixel) in outputs(to) {
        let (members, target) = (window.members(from.shape, to.shape, pixel), line(to, block, pixel));
        let count = members.clone().count() as f32;
        for pixel in members {
            let dx = &mut dx[line(from, block, pixel)].0;
            dx.iter_mut().zip(dy[target].0).for_each(|(dx, dy)| *dx += dy / count);
        }
    }
}

/// Every block and pixel of a layout.
fn outputs(place: &Blocked) -> impl Iterator<Item = (usize, usize)> + use<> {
    let (blocks, area) = (place.blocks(), place.shape.area());
    (0..blocks).flat_map(move |block| (0..area).map(move |pixel| (block, pixel)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_cover_every_channel_once_and_stay_inside_a_block() {
        for (channels, offset) in [(1, 0), (16, 8), (40, 0), (40, 16), (33, 13), (7, 31), (0, 5)] {
            let mut covered = Vec::new();
            for (first, moved, length) in runs(channels, offset) {
                assert_eq!(moved, first + offset);
                for start in [first, moved] {
                    assert_eq!(start / WIDTH, (start + length - 1) / WIDTH, "{channels} from {offset} on");
                }
                covered.extend(first..first + length);
            }
            assert_eq!(covered, (0..channels).collect::<Vec<_>>());
        }
    }
}

//! Convolutions on blocked activations, without patches in memory: each kernel holds a tile of outputs in registers
//! and reads every input straight from where it lies.
//!
//! Forward, a tile is some pixels of an output block; one weight line is loaded and multiplied by the pixels' numbers
//! of one input channel. The gradient of the input is a forward pass over the gradient of the output with turned
//! weights (spread out first where the stride is above 1). The gradient of the weights holds sixteen lines of a 16 × 16
//! block of one kernel place in registers while it walks over an image.

#![allow(unsafe_code)]

use super::block::Blocked;
use super::lanes::{Lanes, Line, Machine, WIDTH, for_machines};
use crate::Shape;

/// A convolution between two blocked places.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walk {
    pub(crate) from: Blocked,
    pub(crate) to: Blocked,
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    pub(crate) pad: usize,
}

impl Walk {
    /// Lines of the blocked weights: output block by input block by kernel place by input channel.
    pub(crate) fn weights(&self) -> usize {
        self.to.blocks() * self.from.blocks() * self.kernel * self.kernel * WIDTH
    }

    fn check(&self, x: &[Line], y: &[Line], weights: &[Line]) {
        let reach = |side: usize| (side - 1) * self.stride + self.kernel;
        let room = |side: usize, border: usize| side + border + self.pad.min(border);
        assert!(self.from.border >= self.pad, "the border holds the padding");
        assert!(reach(self.to.shape.height) <= room(self.from.shape.height, self.from.border), "rows fit");
        assert!(reach(self.to.shape.width) <= room(self.from.shape.width, self.from.border), "columns fit");
        assert_eq!((x.len(), y.len(), weights.len()), (self.from.image(), self.to.image(), self.weights()));
    }

    /// The line of the input that the first kernel place of output pixel (y, x) sees.
    fn origin(&self, y: usize, x: usize) -> usize {
        let corner = self.from.border - self.pad;
        (y * self.stride + corner) * self.from.row() + x * self.stride + corner
    }
}

/// Blocked weights from plain ones (out × in × k × k).
pub(crate) fn pack(walk: &Walk, plain: &[f32], blocked: &mut [Line]) {
    let (outs, ins, places) = (walk.to.shape.channels, walk.from.shape.channels, walk.kernel * walk.kernel);
    for out in 0..outs {
        for input in 0..ins {
            for place in 0..places {
                let line = ((out / WIDTH * walk.from.blocks() + input / WIDTH) * places + place) * WIDTH
                    + input % WIDTH;
                blocked[line].0[out % WIDTH] = plain[(out * ins + input) * places + place];
            }
        }
    }
}

/// Turned weights, for the walk back from `to` to `from`: output and input exchanged, kernel places reversed.
pub(crate) fn pack_turned(walk: &Walk, plain: &[f32], blocked: &mut [Line]) {
    let (outs, ins, places) = (walk.to.shape.channels, walk.from.shape.channels, walk.kernel * walk.kernel);
    for out in 0..outs {
        for input in 0..ins {
            for place in 0..places {
                let line = ((input / WIDTH * walk.to.blocks() + out / WIDTH) * places + places - 1 - place)
                    * WIDTH
                    + out % WIDTH;
                blocked[line].0[input % WIDTH] = plain[(out * ins + input) * places + place];
            }
        }
    }
}

/// Adds blocked weight gradients to plain ones.
pub(crate) fn unpack_add(walk: &Walk, blocked: &[Line], plain: &mut [f32]) {
    let (outs, ins, places) = (walk.to.shape.channels, walk.from.shape.channels, walk.kernel * walk.kernel);
    for out in 0..outs {
        for input in 0..ins {
            for place in 0..places {
                let line = ((out / WIDTH * walk.from.blocks() + input / WIDTH) * places + place) * WIDTH
                    + input % WIDTH;
                plain[(out * ins + input) * places + place] += blocked[line].0[out % WIDTH];
            }
        }
    }
}

/// One image: y = weights ∗ x, added to what is there if `add`.
pub(crate) fn forward(
    machine: Machine,
    walk: &Walk,
    x: &[Line],
    weights: &[Line],
    y: &mut [Line],
    add: bool,
) {
    // Every place the walk visits lies in its slice then.
    walk.check(x, y, weights);
    match walk.stride {
        1 => forward_by_1(machine, walk, x, weights, y, add),
        2 => forward_by_2(machine, walk, x, weights, y, add),
        _ => forward_by_any(machine, walk, x, weights, y, add),
    }
}

for_machines! { fn forward_by_1 = forward_with_1(walk: &Walk, x: &[Line], weights: &[Line], y: &mut [Line], add: bool) }
for_machines! { fn forward_by_2 = forward_with_2(walk: &Walk, x: &[Line], weights: &[Line], y: &mut [Line], add: bool) }
for_machines! { fn forward_by_any = forward_with_any(walk: &Walk, x: &[Line], weights: &[Line], y: &mut [Line], add: bool) }

#[inline(always)]
unsafe fn forward_with_1<V: Lanes>(walk: &Walk, x: &[Line], weights: &[Line], y: &mut [Line], add: bool) {
    unsafe { forward_with::<V, 1>(walk, x, weights, y, add) }
}

#[inline(always)]
unsafe fn forward_with_2<V: Lanes>(walk: &Walk, x: &[Line], weights: &[Line], y: &mut [Line], add: bool) {
    unsafe { forward_with::<V, 2>(walk, x, weights, y, add) }
}

#[inline(always)]
unsafe fn forward_with_any<V: Lanes>(walk: &Walk, x: &[Line], weights: &[Line], y: &mut [Line], add: bool) {
    unsafe { forward_with::<V, 0>(walk, x, weights, y, add) }
}

/// `S` is the stride, so that the distances between pixels are part of the instructions; 0 reads it from the walk.
#[inline(always)]
unsafe fn forward_with<V: Lanes, const S: usize>(
    walk: &Walk,
    x: &[Line],
    weights: &[Line],
    y: &mut [Line],
    add: bool,
) {
    let (height, width) = (walk.to.shape.height, walk.to.shape.width);
    for block in 0..walk.to.blocks() {
        let weights = &weights[block * walk.weights() / walk.to.blocks()..];
        let mut row = 0;
        while row < height {
            // Narrow planes fill the registers with several rows.
            let rows = match width {
                7 if V::TILE >= 28 && height - row >= 4 => 4,
                8 if V::TILE >= 24 && height - row >= 3 => 3,
                14 if V::TILE >= 28 && height - row >= 2 => 2,
                4 if V::TILE >= 16 && height - row >= 4 => 4,
                _ => 1,
            };
            let mut column = 0;
            while column < width {
                let left = width - column;
                let from = unsafe { x.as_ptr().add(walk.origin(row, column)) };
                let to = unsafe { y.as_mut_ptr().add(block * walk.to.plane() + walk.to.start(row) + column) };
                macro_rules! tile {
                    ($rows:literal, $columns:literal) => {{
                        unsafe { tile::<V, S, $rows, $columns>(walk, from, weights.as_ptr(), to, add) };
                        $columns
                    }};
                }
                column += match (rows, left) {
                    (4, 7) => tile!(4, 7),
                    (3, 8) => tile!(3, 8),
                    (2, 14) => tile!(2, 14),
                    (4, 4) => tile!(4, 4),
                    (_, 28..) if V::TILE >= 28 => tile!(1, 28),
                    (_, 16..) if V::TILE >= 16 => tile!(1, 16),
                    (_, 14..) if V::TILE >= 14 => tile!(1, 14),
                    (_, 7..) if V::TILE >= 7 => tile!(1, 7),
                    (_, 6..) if V::TILE >= 6 => tile!(1, 6),
                    (_, 4..) if V::TILE >= 4 => tile!(1, 4),
                    (_, 2..) => tile!(1, 2),
                    _ => tile!(1, 1),
                };
            }
            row += rows;
        }
    }
}

/// `R` × `C` pixels of one output block.
#[inline(always)]
unsafe fn tile<V: Lanes, const S: usize, const R: usize, const C: usize>(
    walk: &Walk,
    x: *const Line,
    weights: *const Line,
    y: *mut Line,
    add: bool,
) {
    let (row, plane) = (walk.from.row(), walk.from.plane());
    let stride = if S == 0 { walk.stride } else { S };
    unsafe {
        let mut sums = [[V::zero(); C]; R];
        if add {
            for (r, sums) in sums.iter_mut().enumerate() {
                for (c, sum) in sums.iter_mut().enumerate() {
                    *sum = V::load(y.add(r * walk.to.row() + c).cast());
                }
            }
        }
        let mut weight = weights.cast::<f32>();
        for block in 0..walk.from.blocks() {
            let lanes = walk.from.lanes(block);
            for dy in 0..walk.kernel {
                for dx in 0..walk.kernel {
                    let place = x.add(block * plane + dy * row + dx).cast::<f32>();
                    let rows: [*const f32; R] = std::array::from_fn(|r| place.add(r * stride * row * WIDTH));
                    for lane in 0..lanes {
                        let line = V::load(weight.add(lane * WIDTH));
                        for r in 0..R {
                            let at = rows[r].add(lane);
                            for c in 0..C {
                                sums[r][c] = sums[r][c].add_product(at.add(c * stride * WIDTH), line);
                            }
                        }
                    }
                    weight = weight.add(WIDTH * WIDTH);
                }
            }
        }
        for (r, sums) in sums.into_iter().enumerate() {
            for (c, sum) in sums.into_iter().enumerate() {
                sum.store(y.add(r * walk.to.row() + c).cast());
            }
        }
    }
}

/// One image: adds to the gradient of the weights of one output block.
pub(crate) fn weight_gradient(
    machine: Machine,
    walk: &Walk,
    out: usize,
    x: &[Line],
    dy: &[Line],
    gradient: &mut [Line],
) {
    let block = Walk { to: Blocked { shape: Shape { channels: 1, ..walk.to.shape }, ..walk.to }, ..*walk };
    let dy = &dy[out * walk.to.plane()..][..walk.to.plane()];
    block.check(x, dy, gradient);
    let walk = &block;
    weight_gradient_block(machine, walk, x, dy, gradient);
}

for_machines! { fn weight_gradient_block = weight_gradient_with(walk: &Walk, x: &[Line], dy: &[Line], gradient: &mut [Line]) }

#[inline(always)]
unsafe fn weight_gradient_with<V: Lanes>(walk: &Walk, x: &[Line], dy: &[Line], gradient: &mut [Line]) {
    // As many input channels at a time as there are registers for.
    unsafe {
        match V::TILE {
            16.. => weight_gradient_by::<V, 16>(walk, x, dy, gradient),
            4.. => weight_gradient_by::<V, 4>(walk, x, dy, gradient),
            _ => weight_gradient_by::<V, 2>(walk, x, dy, gradient),
        }
    }
}

/// `N` input channels at a time; N divides sixteen.
#[inline(always)]
unsafe fn weight_gradient_by<V: Lanes, const N: usize>(
    walk: &Walk,
    x: &[Line],
    dy: &[Line],
    gradient: &mut [Line],
) {
    let (height, width) = (walk.to.shape.height, walk.to.shape.width);
    let mut target = gradient.as_mut_ptr();
    {
        for block in 0..walk.from.blocks() {
            let lanes = walk.from.lanes(block);
            for place in 0..walk.kernel * walk.kernel {
                let (ky, kx) = (place / walk.kernel, place % walk.kernel);
                for first in (0..lanes).step_by(N) {
                    unsafe {
                        let mut sums: [V; N] =
                            std::array::from_fn(|lane| V::load(target.add(first + lane).cast()));
                        for row in 0..height {
                            let mut from = x
                                .as_ptr()
                                .add(
                                    block * walk.from.plane()
                                        + walk.origin(row, 0)
                                        + ky * walk.from.row()
                                        + kx,
                                )
                                .cast::<f32>();
                            from = from.add(first);
                            let mut d = dy.as_ptr().add(walk.to.start(row)).cast::<f32>();
                            for _ in 0..width {
                                let line = V::load(d);
                                for (lane, sum) in sums.iter_mut().enumerate() {
                                    *sum = sum.add_product(from.add(lane), line);
                                }
                                from = from.add(walk.stride * WIDTH);
                                d = d.add(WIDTH);
                            }
                        }
                        for (lane, sum) in sums.into_iter().enumerate() {
                            sum.store(target.add(first + lane).cast());
                        }
                    }
                }
                target = unsafe { target.add(WIDTH) };
            }
        }
    }
}

/// The walk back: from the (spread-out) gradient of the output to that of the input, with turned weights.
pub(crate) fn back(walk: &Walk) -> Walk {
    let (input, output) = (walk.from.shape, walk.to.shape);
    // Padded such that the convolution over the spread-out plane gives the input's size exactly.
    let pad = walk.kernel - 1 - walk.pad;
    let spread = Shape {
        channels: output.channels,
        height: input.height + 2 * walk.pad + 1 - walk.kernel,
        width: input.width + 2 * walk.pad + 1 - walk.kernel,
    };
    let from = Blocked { shape: spread, border: pad.max(if walk.stride == 1 { walk.to.border } else { 0 }) };
    Walk { from, to: walk.from, kernel: walk.kernel, stride: 1, pad }
}

/// Spreads an image out: pixel (y, x) goes to (y·stride, x·stride), zeros in between.
pub(crate) fn spread(from: &Blocked, stride: usize, x: &[Line], to: &Blocked, y: &mut [Line]) {
    for block in 0..from.blocks() {
        for row in 0..from.shape.height {
            let source = block * from.plane() + from.start(row);
            let target = block * to.plane() + to.start(row * stride);
            for column in 0..from.shape.width {
                y[target + column * stride] = x[source + column];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Conv, op};
    use grawa_core::{Key, Purpose};

    /// Every kernel this machine can run, against the plain path in f64.
    #[test]
    fn kernels_agree_with_the_plain_path() {
        for (case, &(ins, outs, side, kernel, stride, pad)) in [
            (3, 16, 28, 3, 1, 1),
            (16, 32, 28, 3, 2, 1),
            (32, 16, 14, 3, 1, 1),
            (20, 37, 7, 3, 1, 1),
            (16, 16, 32, 3, 1, 1),
            (24, 8, 8, 3, 2, 1),
            (5, 40, 9, 1, 1, 0),
            (17, 18, 11, 1, 2, 0),
            (16, 16, 4, 3, 1, 1),
            (3, 17, 13, 5, 1, 2),
            (3, 8, 15, 7, 2, 3),
            (2, 3, 1, 3, 1, 1),
        ]
        .iter()
        .enumerate()
        {
            let side_out = (side + 2 * pad - kernel) / stride + 1;
            let (from, to) = (Shape::image(ins, side), Shape::image(outs, side_out));
            let mut draws = Key::new(case as u64, Purpose::Problem).stream();
            let mut some = |len: usize| (0..len).map(|_| draws.normal() as f32).collect::<Vec<f32>>();
            let (x, w, dy) = (some(from.len()), some(outs * ins * kernel * kernel), some(to.len()));
            let wide = |v: &[f32]| v.iter().map(|&v| f64::from(v)).collect::<Vec<f64>>();
            let conv = Conv { out: outs, kernel, stride, pad, bias: false };
            let (mut y, mut dx, mut dw) = (vec![0.0; to.len()], vec![0.0; from.len()], vec![0.0; w.len()]);
            op::conv::forward(&conv, (from, to), &wide(&x), &wide(&w), None, &mut y);
            let into = op::conv::Gradients { x: Some(&mut dx), weight: &mut dw, bias: None };
            op::conv::backward(&conv, (from, to), &wide(&x), &wide(&w), &wide(&dy), into);

            for machine in Machine::all() {
                let border = pad.max(kernel - 1);
                let walk = Walk {
                    from: Blocked { shape: from, border },
                    to: Blocked { shape: to, border },
                    kernel,
                    stride,
                    pad,
                };
                let blank = |place: &Blocked| vec![Line::ZERO; place.image()];
                let (mut bx, mut by, mut bdy) = (blank(&walk.from), blank(&walk.to), blank(&walk.to));
                walk.from.pack(&x, &mut bx);
                walk.to.pack(&dy, &mut bdy);
                let mut weights = vec![Line::ZERO; walk.weights()];
                pack(&walk, &w, &mut weights);
                forward(machine, &walk, &bx, &weights, &mut by, false);
                let mut found = vec![0.0; to.len()];
                walk.to.unpack(&by, &mut found);
                close(&found, &y, &format!("{machine:?} forward {case}"));

                let mut gradient = vec![Line::ZERO; walk.weights()];
                let size = walk.weights() / walk.to.blocks();
                for (out, gradient) in gradient.chunks_exact_mut(size).enumerate() {
                    weight_gradient(machine, &walk, out, &bx, &bdy, gradient);
                }
                let mut found = vec![0.0; w.len()];
                unpack_add(&walk, &gradient, &mut found);
                close(&found, &dw, &format!("{machine:?} weights {case}"));

                let back = back(&walk);
                let spread_place = back.from;
                let mut source = blank(&spread_place);
                spread(&walk.to, stride, &bdy, &spread_place, &mut source);
                let mut turned = vec![Line::ZERO; back.weights()];
                pack_turned(&walk, &w, &mut turned);
                let mut bdx = blank(&back.to);
                forward(machine, &back, &source, &turned, &mut bdx, true);
                let mut found = vec![0.0; from.len()];
                back.to.unpack(&bdx, &mut found);
                close(&found, &dx, &format!("{machine:?} input {case}"));
            }
        }
    }

    fn close(found: &[f32], expected: &[f64], what: &str) {
        let size = expected.iter().map(|x| x * x).sum::<f64>().sqrt();
        let gap = found.iter().zip(expected).map(|(&a, b)| (f64::from(a) - b).powi(2)).sum::<f64>().sqrt();
        assert!(gap <= 1e-6 * size, "{what}: off by {:.2e}", gap / size);
    }
}

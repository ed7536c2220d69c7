//! Convolutions on blocked activations, without patches in memory: each kernel holds a tile of outputs in registers
//! and reads every input straight from where it lies.
//!
//! Forward, a tile is some pixels of an output block; one weight line is loaded and multiplied by the pixels' numbers
//! of one input channel. The gradient of the input goes the same way back, over the gradient of the output; with a stride
//! of s, pixels fall into s × s phases that each see a part of the kernel. The gradient of the weights holds sixteen lines
//! of a 16 × 16 block of one kernel place in registers while it walks over an image.

#![allow(unsafe_code)]

use super::lanes::{Lanes, Line, Machine, WIDTH, for_machines};
use super::route::{Route, Tap, Walk};

/// The blocked weights of one block of outputs from plain ones (out × in × k × k).
pub(crate) fn pack(walk: &Walk, plain: &[f32], block: usize, blocked: &mut [Line]) {
    let (ins, places) = (walk.from.shape.channels, walk.places());
    blank_lanes(walk.to.lanes(block), blocked);
    for lane in 0..walk.to.lanes(block) {
        let plain = &plain[(block * WIDTH + lane) * ins * places..][..ins * places];
        for (input, plain) in plain.chunks_exact(places).enumerate() {
            let line = input / WIDTH * places * WIDTH + input % WIDTH;
            for (place, &weight) in plain.iter().enumerate() {
                blocked[line + place * WIDTH].0[lane] = weight;
            }
        }
    }
}

/// The blocked weights of the way back, of one block of inputs.
pub(crate) fn pack_back(walk: &Walk, plain: &[f32], block: usize, blocked: &mut [Line]) {
    let (ins, outs, places) = (walk.from.shape.channels, walk.to.shape.channels, walk.places());
    blank_lanes(walk.from.lanes(block), blocked);
    for out in 0..outs {
        let line = out / WIDTH * places * WIDTH + out % WIDTH;
        let plain = &plain[(out * ins + block * WIDTH) * places..][..walk.from.lanes(block) * places];
        for (lane, plain) in plain.chunks_exact(places).enumerate() {
            for (place, &weight) in plain.iter().enumerate() {
                blocked[line + place * WIDTH].0[lane] = weight;
            }
        }
    }
}

/// The memory was another convolution's: lanes of channels that do not exist must hold zeros.
fn blank_lanes(lanes: usize, blocked: &mut [Line]) {
    if lanes < WIDTH {
        blocked.fill(Line::ZERO);
    }
}

/// Adds the blocked weight gradients of all groups of images to the plain ones of one block of outputs.
pub(crate) fn unpack_add(walk: &Walk, groups: &[Line], block: usize, plain: &mut [f32]) {
    let (ins, places) = (walk.from.shape.channels, walk.places());
    let start = block * (walk.weights() / walk.to.blocks());
    for (lane, plain) in plain.chunks_exact_mut(ins * places).enumerate() {
        for (input, plain) in plain.chunks_exact_mut(places).enumerate() {
            let line = start + input / WIDTH * places * WIDTH + input % WIDTH;
            for group in groups.chunks_exact(walk.weights()) {
                for (place, weight) in plain.iter_mut().enumerate() {
                    *weight += group[line + place * WIDTH].0[lane];
                }
            }
        }
    }
}

/// One image along a route: y = weights ∗ x, added to what is there if `add`.
pub(crate) fn run(machine: Machine, route: &Route, x: &[Line], weights: &[Line], y: &mut [Line], add: bool) {
    // With what the route checked of itself, every place it visits lies in its slice.
    assert_eq!((x.len(), y.len(), weights.len()), (route.from.image(), route.to.image(), route.weights()));
    match route.step {
        1 => run_by_1(machine, route, x, weights, y, add),
        2 => run_by_2(machine, route, x, weights, y, add),
        _ => run_by_any(machine, route, x, weights, y, add),
    }
}

for_machines! { fn run_by_1 = run_with_1(route: &Route, x: &[Line], weights: &[Line], y: &mut [Line], add: bool) }
for_machines! { fn run_by_2 = run_with_2(route: &Route, x: &[Line], weights: &[Line], y: &mut [Line], add: bool) }
for_machines! { fn run_by_any = run_with_any(route: &Route, x: &[Line], weights: &[Line], y: &mut [Line], add: bool) }

#[inline(always)]
unsafe fn run_with_1<V: Lanes>(route: &Route, x: &[Line], weights: &[Line], y: &mut [Line], add: bool) {
    // SAFETY: as the caller promises.
    unsafe { run_with::<V, 1>(route, x, weights, y, add) }
}

#[inline(always)]
unsafe fn run_with_2<V: Lanes>(route: &Route, x: &[Line], weights: &[Line], y: &mut [Line], add: bool) {
    // SAFETY: as the caller promises.
    unsafe { run_with::<V, 2>(route, x, weights, y, add) }
}

#[inline(always)]
unsafe fn run_with_any<V: Lanes>(route: &Route, x: &[Line], weights: &[Line], y: &mut [Line], add: bool) {
    // SAFETY: as the caller promises.
    unsafe { run_with::<V, 0>(route, x, weights, y, add) }
}

/// `S` is the step, so that the distances between pixels are part of the instructions; 0 reads it from the route.
#[inline(always)]
unsafe fn run_with<V: Lanes, const S: usize>(
    route: &Route,
    x: &[Line],
    weights: &[Line],
    y: &mut [Line],
    add: bool,
) {
    let (from, to) = (&route.from, &route.to);
    for block in 0..to.blocks() {
        let weights = &weights[block * (weights.len() / to.blocks())..];
        for phase in &route.phases {
            let mut row = 0;
            while row < phase.rows {
                // Narrow planes fill the registers with several rows.
                let rows = match (phase.columns, phase.rows - row) {
                    (7, 4..) if V::TILE >= 28 => 4,
                    (7, 3) if V::TILE >= 28 => 3,
                    (8, 3..) if V::TILE >= 24 => 3,
                    (14, 2..) if V::TILE >= 28 => 2,
                    (4, 4..) if V::TILE >= 16 => 4,
                    _ => 1,
                };
                let mut column = 0;
                while column < phase.columns {
                    let read = phase.origin + (row * from.row() + column) * route.step;
                    let write = block * to.plane()
                        + to.start(phase.row + row * route.spread)
                        + phase.column
                        + column * route.spread;
                    macro_rules! tile {
                        ($rows:literal, $columns:literal) => {{
                            // SAFETY: the route was checked when it was made, and `run` that the slices are as long as it
                            // says: the tile lies in them.
                            let (x, y) = unsafe { (x.as_ptr().add(read), y.as_mut_ptr().add(write)) };
                            // SAFETY: the route was checked when it was made, and `run` that the slices are as long as it
                            // says: the tile lies in them.
                            unsafe {
                                tile::<V, S, $rows, $columns>(route, &phase.taps, x, weights.as_ptr(), y, add)
                            };
                            $columns
                        }};
                    }
                    column += match (rows, phase.columns - column) {
                        (4, 7) => tile!(4, 7),
                        (3, 7) => tile!(3, 7),
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
}

/// `R` × `C` pixels of one output block.
#[inline(always)]
unsafe fn tile<V: Lanes, const S: usize, const R: usize, const C: usize>(
    route: &Route,
    taps: &[Tap],
    x: *const Line,
    weights: *const Line,
    y: *mut Line,
    add: bool,
) {
    let (row, plane) = (route.from.row(), route.from.plane());
    let step = if S == 0 { route.step } else { S };
    let (down, along) = (route.spread * route.to.row(), route.spread);
    // SAFETY: the caller's promise: see `Lanes`; the tile, and all that its taps read, lies in the slices.
    unsafe {
        let mut sums = [[V::zero(); C]; R];
        if add {
            for r in 0..R {
                for c in 0..C {
                    sums[r][c] = V::load(y.add(r * down + c * along).cast());
                }
            }
        }
        for block in 0..route.from.blocks() {
            let lanes = route.from.lanes(block);
            for tap in taps {
                let weight = weights.add((block * route.places + tap.place) * WIDTH).cast::<f32>();
                let place = x.add(block * plane + tap.offset).cast::<f32>();
                let rows: [*const f32; R] = std::array::from_fn(|r| place.add(r * step * row * WIDTH));
                for lane in 0..lanes {
                    let line = V::load(weight.add(lane * WIDTH));
                    for r in 0..R {
                        let at = rows[r].add(lane);
                        for c in 0..C {
                            sums[r][c] = sums[r][c].add_product(at.add(c * step * WIDTH), line);
                        }
                    }
                }
            }
        }
        for r in 0..R {
            for c in 0..C {
                sums[r][c].store(y.add(r * down + c * along).cast());
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
    let dy = &dy[out * walk.to.plane()..][..walk.to.plane()];
    let reach = |side: usize| (side - 1) * walk.stride + walk.kernel - walk.pad;
    let (input, output) = (walk.from.shape, walk.to.shape);
    assert!(walk.from.border >= walk.pad, "the border holds the padding");
    assert!(
        reach(output.height) <= input.height + walk.from.border
            && reach(output.width) <= input.width + walk.from.border,
        "it fits"
    );
    assert_eq!((x.len(), gradient.len()), (walk.from.image(), walk.weights() / walk.to.blocks()));
    weight_gradient_block(machine, walk, x, dy, gradient);
}

for_machines! { fn weight_gradient_block = weight_gradient_with(walk: &Walk, x: &[Line], dy: &[Line], gradient: &mut [Line]) }

#[inline(always)]
unsafe fn weight_gradient_with<V: Lanes>(walk: &Walk, x: &[Line], dy: &[Line], gradient: &mut [Line]) {
    // As many input channels at a time as there are registers for; of an image's three, no sixteen.
    // SAFETY: as the caller promises.
    unsafe {
        match V::TILE {
            16.. if walk.from.shape.channels > 4 => weight_gradient_by::<V, 16>(walk, x, dy, gradient),
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
                    // SAFETY: `weight_gradient` checked that the walk stays inside the image with its border, and how long
                    // all slices are.
                    unsafe {
                        let mut sums: [V; N] =
                            std::array::from_fn(|lane| V::load(target.add(first + lane).cast()));
                        for row in 0..height {
                            let mut from = x
                                .as_ptr()
                                .add(
                                    block * walk.from.plane()
                                        + walk.origin()
                                        + row * walk.stride * walk.from.row()
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
                // SAFETY: `weight_gradient` checked that the walk stays inside the image with its border, and how long all
                // slices are.
                target = unsafe { target.add(WIDTH) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::block::Blocked;
    use crate::{Conv, Shape, op};
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
            (4, 20, 12, 3, 3, 1),
            (4, 4, 10, 2, 3, 0),
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
                let place = |shape, border| Blocked { shape, border };
                let plain = Walk { from: place(from, pad), to: place(to, 0), kernel, stride, pad };
                let walk = Walk { to: place(to, plain.border_back()), ..plain };
                let blank = |place: &Blocked| vec![Line::ZERO; place.image()];
                let (mut bx, mut by, mut bdy, mut bdx) =
                    (blank(&walk.from), blank(&walk.to), blank(&walk.to), blank(&walk.from));
                walk.from.pack(&x, &mut bx);
                walk.to.pack(&dy, &mut bdy);
                let (mut forth, mut back) =
                    (vec![Line::ZERO; walk.weights()], vec![Line::ZERO; walk.weights()]);
                let (outs, ins) = (walk.weights() / walk.to.blocks(), walk.weights() / walk.from.blocks());
                forth.chunks_exact_mut(outs).enumerate().for_each(|(block, out)| pack(&walk, &w, block, out));
                back.chunks_exact_mut(ins)
                    .enumerate()
                    .for_each(|(block, out)| pack_back(&walk, &w, block, out));
                run(machine, &walk.forth(), &bx, &forth, &mut by, false);
                let mut found = vec![0.0; to.len()];
                walk.to.unpack(&by, &mut found);
                close(&found, &y, &format!("{machine:?} forward {case}"));

                let mut gradient = vec![Line::ZERO; walk.weights()];
                let size = walk.weights() / walk.to.blocks();
                for (out, gradient) in gradient.chunks_exact_mut(size).enumerate() {
                    weight_gradient(machine, &walk, out, &bx, &bdy, gradient);
                }
                let mut found = vec![0.0; w.len()];
                for (block, found) in found.chunks_mut(WIDTH * ins_of_a_channel(&walk)).enumerate() {
                    unpack_add(&walk, &gradient, block, found);
                }
                close(&found, &dw, &format!("{machine:?} weights {case}"));

                // Twice: stored, then added to what is there.
                run(machine, &walk.back(), &bdy, &back, &mut bdx, false);
                run(machine, &walk.back(), &bdy, &back, &mut bdx, true);
                let mut found = vec![0.0; from.len()];
                walk.from.unpack(&bdx, &mut found);
                close(
                    &found,
                    &dx.iter().map(|dx| 2.0 * dx).collect::<Vec<_>>(),
                    &format!("{machine:?} input {case}"),
                );
            }
        }
    }

    fn ins_of_a_channel(walk: &Walk) -> usize {
        walk.from.shape.channels * walk.places()
    }

    fn close(found: &[f32], expected: &[f64], what: &str) {
        let size = expected.iter().map(|x| x * x).sum::<f64>().sqrt();
        let gap = found.iter().zip(expected).map(|(&a, b)| (f64::from(a) - b).powi(2)).sum::<f64>().sqrt();
        assert!(gap <= 1e-6 * size, "{what}: off by {:.2e}", gap / size);
    }
}

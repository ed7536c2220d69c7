//! Direct convolutions on blocked activations, without im2col: each kernel keeps a tile of outputs in registers and reads its
//! inputs in place.
//!
//! Forward, a tile is some pixels of an output block. One vector of weights is loaded and multiplied by the pixels' values of
//! one input channel. The gradient of the input runs the same loop over the gradient of the output. With a stride of s, pixels
//! fall into s × s phases, each of which uses a part of the kernel. The gradient of the weights keeps sixteen vectors of a
//! 16 × 16 block of one kernel position in registers while it runs over an image.

use super::conv_geometry::{ConvGeometry, ConvPath, Tap};
use super::simd::{F32x16, Simd, Vectors, WIDTH, for_each_isa};

/// Packs the plain weights (out × in × k × k) of one block of outputs.
pub(crate) fn pack(geometry: &ConvGeometry, plain: &[f32], block: usize, blocked: &mut [F32x16]) {
    let (ins, places) = (geometry.from.shape.channels, geometry.places());
    blank_lanes(geometry.to.lanes(block), blocked);
    for lane in 0..geometry.to.lanes(block) {
        let plain = &plain[(block * WIDTH + lane) * ins * places..][..ins * places];
        for (input, plain) in plain.chunks_exact(places).enumerate() {
            let line = input / WIDTH * places * WIDTH + input % WIDTH;
            for (place, &weight) in plain.iter().enumerate() {
                blocked[line + place * WIDTH].0[lane] = weight;
            }
        }
    }
}

/// Packs the weights for the backward pass, for one block of inputs.
pub(crate) fn pack_backward(geometry: &ConvGeometry, plain: &[f32], block: usize, blocked: &mut [F32x16]) {
    let (ins, outs, places) = (geometry.from.shape.channels, geometry.to.shape.channels, geometry.places());
    blank_lanes(geometry.from.lanes(block), blocked);
    for out in 0..outs {
        let line = out / WIDTH * places * WIDTH + out % WIDTH;
        let plain = &plain[(out * ins + block * WIDTH) * places..][..geometry.from.lanes(block) * places];
        for (lane, plain) in plain.chunks_exact(places).enumerate() {
            for (place, &weight) in plain.iter().enumerate() {
                blocked[line + place * WIDTH].0[lane] = weight;
            }
        }
    }
}

/// Convolutions share this memory: lanes of channels that do not exist must be zero.
fn blank_lanes(lanes: usize, blocked: &mut [F32x16]) {
    if lanes < WIDTH {
        blocked.fill(F32x16::ZERO);
    }
}

/// Adds the packed weight gradients to the plain gradient of one block of outputs.
pub(crate) fn unpack_add(geometry: &ConvGeometry, sums: &[F32x16], block: usize, plain: &mut [f32]) {
    let (ins, places) = (geometry.from.shape.channels, geometry.places());
    let start = block * (geometry.weights() / geometry.to.blocks());
    for (lane, plain) in plain.chunks_exact_mut(ins * places).enumerate() {
        for (input, plain) in plain.chunks_exact_mut(places).enumerate() {
            let line = start + input / WIDTH * places * WIDTH + input % WIDTH;
            for (place, weight) in plain.iter_mut().enumerate() {
                *weight += sums[line + place * WIDTH].0[lane];
            }
        }
    }
}

for_each_isa! {
    /// Convolves one image along a path: y = weights ∗ x, added to y if `add`.
    pub(crate) fn run(simd, path: &ConvPath, x: &[F32x16], weights: &[F32x16], y: &mut [F32x16], add: bool) {
        assert_eq!((x.len(), y.len(), weights.len()), (path.from.image(), path.to.image(), path.weights()));
        match path.step {
            1 => run_by::<_, _, 1>(simd, path, x, weights, y, add),
            2 => run_by::<_, _, 2>(simd, path, x, weights, y, add),
            _ => run_by::<_, _, 0>(simd, path, x, weights, y, add),
        }
    }
}

/// `STEP` is the stride of the input, a constant so that pixel distances are part of the instructions; 0 reads it from the path.
#[inline(always)]
fn run_by<S: Simd, const N: usize, const STEP: usize>(
    simd: Vectors<S, N>,
    path: &ConvPath,
    x: &[F32x16],
    weights: &[F32x16],
    y: &mut [F32x16],
    add: bool,
) {
    let (from, to, most) = (&path.from, &path.to, Vectors::<S, N>::TILE);
    for block in 0..to.blocks() {
        let weights = &weights[block * (weights.len() / to.blocks())..];
        for phase in &path.phases {
            let mut row = 0;
            while row < phase.rows {
                // In narrow planes several rows fill the registers.
                let rows = match (phase.columns, phase.rows - row) {
                    (7, 4..) if most >= 28 => 4,
                    (7, 3) if most >= 28 => 3,
                    (8, 3..) if most >= 24 => 3,
                    (14, 2..) if most >= 28 => 2,
                    (4, 4..) if most >= 16 => 4,
                    _ => 1,
                };
                let mut column = 0;
                while column < phase.columns {
                    let read = phase.origin + (row * from.row() + column) * path.step;
                    let write = block * to.plane()
                        + to.start(phase.row + row * path.spread)
                        + phase.column
                        + column * path.spread;
                    let (x, y) = (&x[read..], &mut y[write..]);
                    macro_rules! tile {
                        ($rows:literal, $columns:literal) => {{
                            tile::<_, _, STEP, $rows, $columns>(simd, path, &phase.taps, x, weights, y, add);
                            $columns
                        }};
                    }
                    column += match (rows, phase.columns - column) {
                        (4, 7) => tile!(4, 7),
                        (3, 7) => tile!(3, 7),
                        (3, 8) => tile!(3, 8),
                        (2, 14) => tile!(2, 14),
                        (4, 4) => tile!(4, 4),
                        (_, 28..) if most >= 28 => tile!(1, 28),
                        (_, 16..) if most >= 16 => tile!(1, 16),
                        (_, 14..) if most >= 14 => tile!(1, 14),
                        (_, 7..) if most >= 7 => tile!(1, 7),
                        (_, 6..) if most >= 6 => tile!(1, 6),
                        (_, 4..) if most >= 4 => tile!(1, 4),
                        (_, 2..) => tile!(1, 2),
                        _ => tile!(1, 1),
                    };
                }
                row += rows;
            }
        }
    }
}

/// `R` × `C` pixels of one output block. `x` and `y` begin at the first of them.
#[inline(always)]
fn tile<S: Simd, const N: usize, const STEP: usize, const R: usize, const C: usize>(
    simd: Vectors<S, N>,
    path: &ConvPath,
    taps: &[Tap],
    x: &[F32x16],
    weights: &[F32x16],
    y: &mut [F32x16],
    add: bool,
) {
    let (row, plane) = (path.from.row(), path.from.plane());
    let step = if STEP == 0 { path.step } else { STEP };
    let (down, along) = (path.spread * path.to.row(), path.spread);
    let mut sums = [[simd.zero(); C]; R];
    if add {
        for r in 0..R {
            for c in 0..C {
                sums[r][c] = simd.load(&y[r * down + c * along]);
            }
        }
    }
    for block in 0..path.from.blocks() {
        let lanes = path.from.lanes(block);
        for tap in taps {
            let lines = &weights[(block * path.places + tap.place) * WIDTH..][..lanes];
            let place = &x[block * plane + tap.offset..];
            // Slices of constant length: accesses inside the loop need no checks.
            let mut rows = [place; R];
            for r in 0..R {
                rows[r] = &place[r * step * row..][..(C - 1) * step + 1];
            }
            for lane in 0..lanes.min(WIDTH) {
                let line = simd.load(&lines[lane]);
                for r in 0..R {
                    for c in 0..C {
                        sums[r][c] = sums[r][c].plus(rows[r][c * step].0[lane], line);
                    }
                }
            }
        }
    }
    for r in 0..R {
        for c in 0..C {
            sums[r][c].store(&mut y[r * down + c * along]);
        }
    }
}

for_each_isa! {
    /// Adds one image's contribution to the gradient of the weights of one output block.
    pub(crate) fn weight_gradient(
        simd, geometry: &ConvGeometry, out: usize, x: &[F32x16], dy: &[F32x16], gradient: &mut [F32x16],
    ) {
        let dy = &dy[out * geometry.to.plane()..][..geometry.to.plane()];
        let reach = |side: usize| (side - 1) * geometry.stride + geometry.kernel - geometry.pad;
        let (input, output, border) = (geometry.from.shape, geometry.to.shape, geometry.from.border);
        assert!(border >= geometry.pad, "the border holds the padding");
        let fits = |out: usize, side: usize| reach(out) <= side + border;
        assert!(fits(output.height, input.height) && fits(output.width, input.width), "the kernel stays inside");
        assert_eq!((x.len(), gradient.len()), (geometry.from.image(), geometry.weights() / geometry.to.blocks()));
        // As many input channels at a time as registers allow; sixteen are too many for an image's three.
        match Vectors::<S, N>::TILE {
            16.. if geometry.from.shape.channels > 4 => weight_gradient_by::<_, _, 16>(simd, geometry, x, dy, gradient),
            4.. => weight_gradient_by::<_, _, 4>(simd, geometry, x, dy, gradient),
            _ => weight_gradient_by::<_, _, 2>(simd, geometry, x, dy, gradient),
        }
    }
}

/// `L` input channels at a time; L divides sixteen.
#[inline(always)]
fn weight_gradient_by<S: Simd, const N: usize, const L: usize>(
    simd: Vectors<S, N>,
    geometry: &ConvGeometry,
    x: &[F32x16],
    dy: &[F32x16],
    gradient: &mut [F32x16],
) {
    let (height, width, stride) = (geometry.to.shape.height, geometry.to.shape.width, geometry.stride);
    for (part, gradient) in gradient.chunks_exact_mut(WIDTH).enumerate() {
        let (block, place) = (part / geometry.places(), part % geometry.places());
        let (ky, kx) = (place / geometry.kernel, place % geometry.kernel);
        let x = &x[block * geometry.from.plane() + geometry.origin() + ky * geometry.from.row() + kx..];
        let groups = geometry.from.lanes(block).div_ceil(L);
        for (group, gradient) in gradient.as_chunks_mut::<L>().0.iter_mut().enumerate().take(groups) {
            let mut sums = [simd.zero(); L];
            for lane in 0..L {
                sums[lane] = simd.load(&gradient[lane]);
            }
            for row in 0..height {
                let x = &x[row * stride * geometry.from.row()..][..(width - 1) * stride + 1];
                let dy = &dy[geometry.to.start(row)..][..width];
                for column in 0..width {
                    let line = simd.load(&dy[column]);
                    let pixel = &x[column * stride].0.as_chunks::<L>().0[group];
                    for lane in 0..L {
                        sums[lane] = sums[lane].plus(pixel[lane], line);
                    }
                }
            }
            for lane in 0..L {
                sums[lane].store(&mut gradient[lane]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::block::Blocked;
    use crate::cpu::simd::every_isa;
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

            for isa in every_isa() {
                let place = |shape, border| Blocked { shape, border };
                let plain = ConvGeometry { from: place(from, pad), to: place(to, 0), kernel, stride, pad };
                let geometry = ConvGeometry { to: place(to, plain.border_backward()), ..plain };
                let blank = |place: &Blocked| vec![F32x16::ZERO; place.image()];
                let (mut bx, mut by, mut bdy, mut bdx) =
                    (blank(&geometry.from), blank(&geometry.to), blank(&geometry.to), blank(&geometry.from));
                geometry.from.pack(&x, &mut bx);
                geometry.to.pack(&dy, &mut bdy);
                let (mut forward, mut back) =
                    (vec![F32x16::ZERO; geometry.weights()], vec![F32x16::ZERO; geometry.weights()]);
                let (outs, ins) =
                    (geometry.weights() / geometry.to.blocks(), geometry.weights() / geometry.from.blocks());
                forward
                    .chunks_exact_mut(outs)
                    .enumerate()
                    .for_each(|(block, out)| pack(&geometry, &w, block, out));
                back.chunks_exact_mut(ins)
                    .enumerate()
                    .for_each(|(block, out)| pack_backward(&geometry, &w, block, out));
                run(isa, &geometry.forward(), &bx, &forward, &mut by, false);
                let mut found = vec![0.0; to.len()];
                geometry.to.unpack(&by, &mut found);
                close(&found, &y, &format!("{isa:?} forward {case}"));

                let mut gradient = vec![F32x16::ZERO; geometry.weights()];
                let size = geometry.weights() / geometry.to.blocks();
                for (out, gradient) in gradient.chunks_exact_mut(size).enumerate() {
                    weight_gradient(isa, &geometry, out, &bx, &bdy, gradient);
                }
                let mut found = vec![0.0; w.len()];
                for (block, found) in found.chunks_mut(WIDTH * ins_of_a_channel(&geometry)).enumerate() {
                    unpack_add(&geometry, &gradient, block, found);
                }
                close(&found, &dw, &format!("{isa:?} weights {case}"));

                // Twice: stored, then added to what is there.
                run(isa, &geometry.backward(), &bdy, &back, &mut bdx, false);
                run(isa, &geometry.backward(), &bdy, &back, &mut bdx, true);
                let mut found = vec![0.0; from.len()];
                geometry.from.unpack(&bdx, &mut found);
                close(
                    &found,
                    &dx.iter().map(|dx| 2.0 * dx).collect::<Vec<_>>(),
                    &format!("{isa:?} input {case}"),
                );
            }
        }
    }

    fn ins_of_a_channel(geometry: &ConvGeometry) -> usize {
        geometry.from.shape.channels * geometry.places()
    }

    fn close(found: &[f32], expected: &[f64], what: &str) {
        let size = expected.iter().map(|x| x * x).sum::<f64>().sqrt();
        let gap = found.iter().zip(expected).map(|(&a, b)| (f64::from(a) - b).powi(2)).sum::<f64>().sqrt();
        assert!(gap <= 1e-6 * size, "{what}: off by {:.2e}", gap / size);
    }
}

//! 3 × 3 convolutions by Winograd's algorithm. Tiles of pixels and the kernel are transformed to a few points; at each point
//! the convolution is a matrix product over channels, with a quarter of the direct method's multiplications.
//!
//! A panel of tiles, of one image or of several, is transformed and multiplied before the next: its points stay in the nearest
//! caches. More tiles are processed together where the kernel is too large to be read again for every panel. The result of a
//! tile does not depend on which tiles are processed with it. Gradients of the kernel are summed over tiles in image order.

use super::block::Blocked;
use super::simd::{F32x16, Simd, Vector, Vectors, WIDTH, for_each_isa};
use super::winograd_tiling::{GRADIENT_PANEL, PANEL, Tiling, apart, panel};
use super::winograd_transforms::{F2x2, F4x4, Matrix, Read, Transform};
use std::ops::Range;

for_each_isa! {
    /// Transforms the kernel of one block of outputs. `flipped`: for the backward tiling.
    pub(crate) fn transform_kernel(
        simd, tiling: &Tiling, plain: &[f32], flipped: bool, block: usize, out: &mut [F32x16],
    ) {
        assert_eq!(plain.len(), 9 * tiling.from.shape.channels * tiling.to.shape.channels);
        assert_eq!(out.len(), tiling.kernel_len() / tiling.to.blocks());
        let (ins, outs) = (tiling.from.shape.channels, tiling.to.shape.channels);
        let mut w = [F32x16::ZERO; 9];
        for input in 0..ins {
            for lane in 0..tiling.to.lanes(block) {
                let output = block * WIDTH + lane;
                // The kernel is stored as output × input of the forward pass. The backward pass rotates it by half a turn.
                let at = if flipped { input * outs + output } else { output * ins + input };
                let plain = &plain[9 * at..][..9];
                for place in 0..9 {
                    w[place].0[lane] = if flipped { plain[8 - place] } else { plain[place] };
                }
            }
            let (w, out) = (Matrix::kernel(w.as_slice()), &mut out[input..]);
            match tiling.side {
                4 => F4x4::kernel(simd, w, F4x4::points(out, ins), false),
                _ => F2x2::kernel(simd, w, F2x2::points(out, ins), false),
            }
        }
    }
}

/// Checks what the kernels rely on: a tile that is not cut off stays inside its plane.
fn check(tiling: &Tiling) {
    assert!(tiling.from.border >= 1, "the border holds the padding");
    let area = |place: &Blocked| (place.shape.height, place.shape.width);
    assert_eq!(area(&tiling.from), area(&tiling.to), "no stride");
}

for_each_isa! {
    /// Convolves some images: y = kernel ∗ x, added to y if `add`.
    pub(crate) fn run(
        simd, tiling: &Tiling, x: &[F32x16], kernel: &[F32x16], y: &mut [F32x16], add: bool, buffer: &mut [F32x16],
    ) {
        check(tiling);
        let images = y.len() / tiling.to.image();
        assert_eq!((x.len(), y.len()), (images * tiling.from.image(), images * tiling.to.image()));
        assert_eq!(kernel.len(), tiling.kernel_len());
        assert!(buffer.len() >= tiling.buffer_len(images), "the workspace is large enough");
        match tiling.side {
            4 => run_by::<_, _, F4x4>(simd, tiling, x, kernel, y, add, buffer),
            _ => run_by::<_, _, F2x2>(simd, tiling, x, kernel, y, add, buffer),
        }
    }
}

#[inline(always)]
fn run_by<S: Simd, const N: usize, T: Transform>(
    simd: Vectors<S, N>,
    tiling: &Tiling,
    x: &[F32x16],
    kernel: &[F32x16],
    y: &mut [F32x16],
    add: bool,
    buffer: &mut [F32x16],
) {
    let (points, ins) = (tiling.points(), tiling.from.shape.channels);
    let images = y.len() / tiling.to.image();
    let (tiles, at_once) = (images * tiling.tiles(), tiling.transformed(images));
    let lines = points * apart(at_once);
    let (inputs, products) = buffer.split_at_mut(lines * tiling.from.blocks());
    for start in (0..tiles).step_by(at_once) {
        let range = start..tiles.min(start + at_once);
        for (block, inputs) in inputs.chunks_exact_mut(lines).enumerate() {
            transform_input_tiles::<_, _, T>(simd, tiling, x, block, range.clone(), inputs, apart(at_once));
        }
        for block in 0..tiling.to.blocks() {
            let kernel = &kernel[block * points * ins..][..points * ins];
            for first in range.clone().step_by(panel(tiles)) {
                let count = panel(tiles).min(range.end - first);
                for (point, kernel) in kernel.chunks_exact(ins).enumerate() {
                    let from = &inputs[point * apart(at_once) + first - start..];
                    multiply(simd, from, lines, kernel, &mut products[point * apart(PANEL)..][..count]);
                }
                for tile in first..first + count {
                    let points = T::points(&products[tile - first..], apart(PANEL));
                    transform_output::<_, _, T>(simd, tiling, points, y, block, tile, add);
                }
            }
        }
    }
}

/// Transforms one block of channels of some tiles of some images: point by point, `apart` vectors each.
#[inline(always)]
fn transform_input_tiles<S: Simd, const N: usize, T: Transform>(
    simd: Vectors<S, N>,
    tiling: &Tiling,
    x: &[F32x16],
    block: usize,
    tiles: Range<usize>,
    out: &mut [F32x16],
    apart: usize,
) {
    let place = &tiling.from;
    let (row, height) = (place.row(), place.shape.height + 2 * place.border);
    for (index, tile) in tiles.enumerate() {
        let image = &x[tile / tiling.tiles() * place.image()..];
        let plane = &image[block * place.plane()..][..place.plane()];
        let (top, left) = tiling.corner(tile % tiling.tiles());
        // The first input of a tile is one up and one left of its first output.
        let (top, left) = (top + place.border - 1, left + place.border - 1);
        let x = &plane[top * row + left..];
        let points = T::points(&mut out[index..], apart);
        // Whole tiles have their own code without tests for edges.
        if top + T::POINTS <= height && left + T::POINTS <= row {
            T::input(simd, Matrix::new(x, [row, 1], [T::POINTS; 2]), points, false);
        } else {
            let there = [T::POINTS.min(height - top), T::POINTS.min(row - left)];
            T::input(simd, Matrix::new(x, [row, 1], there), points, false);
        }
    }
}

/// Transforms one block of channels of the gradients of some tiles of some images.
#[inline(always)]
fn transform_gradient_tiles<S: Simd, const N: usize, T: Transform>(
    simd: Vectors<S, N>,
    tiling: &Tiling,
    dy: &[F32x16],
    block: usize,
    tiles: Range<usize>,
    out: &mut [F32x16],
    apart: usize,
) {
    let place = &tiling.to;
    for (index, tile) in tiles.enumerate() {
        let image = &dy[tile / tiling.tiles() * place.image()..];
        let plane = &image[block * place.plane()..][..place.plane()];
        let (top, left) = tiling.corner(tile % tiling.tiles());
        let dy = &plane[place.start(top) + left..];
        let points = T::points(&mut out[index..], apart);
        let there = [T::SIDE.min(place.shape.height - top), T::SIDE.min(place.shape.width - left)];
        if there == [T::SIDE; 2] {
            T::gradient(simd, Matrix::new(dy, [place.row(), 1], [T::SIDE; 2]), points, false);
        } else {
            T::gradient(simd, Matrix::new(dy, [place.row(), 1], there), points, false);
        }
    }
}

/// Transforms the points of one tile to its outputs.
#[inline(always)]
fn transform_output<S: Simd, const N: usize, T: Transform>(
    simd: Vectors<S, N>,
    tiling: &Tiling,
    points: Read<'_>,
    y: &mut [F32x16],
    block: usize,
    tile: usize,
    add: bool,
) {
    let place = &tiling.to;
    let (image, (top, left)) = (tile / tiling.tiles(), tiling.corner(tile % tiling.tiles()));
    let start = image * place.image() + block * place.plane() + place.start(top) + left;
    let there = [T::SIDE.min(place.shape.height - top), T::SIDE.min(place.shape.width - left)];
    let y = &mut y[start..];
    if there == [T::SIDE; 2] {
        T::output(simd, points, Matrix::new(y, [place.row(), 1], [T::SIDE; 2]), add);
    } else {
        T::output(simd, points, Matrix::new(y, [place.row(), 1], there), add);
    }
}

/// One point of up to sixteen tiles: the sum over input channels of input times kernel. Blocks of input channels are `apart`
/// vectors from each other.
#[inline(always)]
fn multiply<S: Simd, const N: usize>(
    simd: Vectors<S, N>,
    mut inputs: &[F32x16],
    apart: usize,
    kernel: &[F32x16],
    mut out: &mut [F32x16],
) {
    while !out.is_empty() {
        macro_rules! of {
            ($($count:literal)+) => {
                match out.len().min(Vectors::<S, N>::TILE) {
                    $($count => multiply_by::<_, _, $count>(simd, inputs, apart, kernel, out),)+
                    _ => multiply_by::<_, _, PANEL>(simd, inputs, apart, kernel, out),
                }
            };
        }
        let done = of!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
        (inputs, out) = (&inputs[done..], &mut out[done..]);
    }
}

/// `T` tiles.
#[inline(always)]
fn multiply_by<S: Simd, const N: usize, const T: usize>(
    simd: Vectors<S, N>,
    inputs: &[F32x16],
    apart: usize,
    kernel: &[F32x16],
    out: &mut [F32x16],
) -> usize {
    let mut sums = [simd.zero(); T];
    for (block, kernel) in kernel.chunks(WIDTH).enumerate() {
        let inputs = &inputs[block * apart..][..T];
        for lane in 0..WIDTH.min(kernel.len()) {
            let weights = simd.load(&kernel[lane]);
            for tile in 0..T {
                sums[tile] = sums[tile].plus(inputs[tile].0[lane], weights);
            }
        }
    }
    let out = &mut out[..T];
    for tile in 0..T {
        sums[tile].store(&mut out[tile]);
    }
    T
}

for_each_isa! {
    /// Transforms one block of channels of the inputs of some images: point by point, tile by tile.
    pub(crate) fn transform_inputs(simd, tiling: &Tiling, x: &[F32x16], block: usize, out: &mut [F32x16]) {
        check(tiling);
        let tiles = x.len() / tiling.from.image() * tiling.tiles();
        assert_eq!(out.len(), apart(tiles) * tiling.points());
        match tiling.side {
            4 => transform_input_tiles::<_, _, F4x4>(simd, tiling, x, block, 0..tiles, out, apart(tiles)),
            _ => transform_input_tiles::<_, _, F2x2>(simd, tiling, x, block, 0..tiles, out, apart(tiles)),
        }
    }
}

for_each_isa! {
    /// Transforms one block of channels of the output gradients of some images.
    pub(crate) fn transform_gradients(simd, tiling: &Tiling, dy: &[F32x16], block: usize, out: &mut [F32x16]) {
        check(tiling);
        let tiles = dy.len() / tiling.to.image() * tiling.tiles();
        assert_eq!(out.len(), apart(tiles) * tiling.points());
        match tiling.side {
            4 => transform_gradient_tiles::<_, _, F4x4>(simd, tiling, dy, block, 0..tiles, out, apart(tiles)),
            _ => transform_gradient_tiles::<_, _, F2x2>(simd, tiling, dy, block, 0..tiles, out, apart(tiles)),
        }
    }
}

for_each_isa! {
    /// One block of outputs at all points of all tiles of some images: `inputs` times the transformed `kernel` of that block.
    pub(crate) fn multiply_points(
        simd, tiling: &Tiling, images: usize, inputs: &[F32x16], kernel: &[F32x16], products: &mut [F32x16],
    ) {
        let (points, ins) = (tiling.points(), tiling.from.shape.channels);
        let (tiles, apart) = (images * tiling.tiles(), tiling.apart(images));
        assert_eq!((products.len(), inputs.len()), (points * apart, points * apart * tiling.from.blocks()));
        assert_eq!(kernel.len(), points * ins);
        // Point by point: the kernel of a point stays in the nearest cache.
        for (point, (kernel, products)) in kernel.chunks_exact(ins).zip(products.chunks_exact_mut(apart)).enumerate() {
            for (index, products) in products[..tiles].chunks_mut(panel(tiles)).enumerate() {
                let from = &inputs[point * apart + index * panel(tiles)..];
                multiply(simd, from, points * apart, kernel, products);
            }
        }
    }
}

for_each_isa! {
    /// The outputs of one image from the products of all blocks, added to y if `add`.
    pub(crate) fn outputs(
        simd, tiling: &Tiling, products: &[F32x16], image: usize, y: &mut [F32x16], add: bool,
    ) {
        check(tiling);
        assert_eq!(y.len(), tiling.to.image());
        match tiling.side {
            4 => outputs_by::<_, _, F4x4>(simd, tiling, products, image, y, add),
            _ => outputs_by::<_, _, F2x2>(simd, tiling, products, image, y, add),
        }
    }
}

#[inline(always)]
fn outputs_by<S: Simd, const N: usize, T: Transform>(
    simd: Vectors<S, N>,
    tiling: &Tiling,
    products: &[F32x16],
    image: usize,
    y: &mut [F32x16],
    add: bool,
) {
    let lines = products.len() / tiling.to.blocks();
    for block in 0..tiling.to.blocks() {
        let points = &products[block * lines..][..lines];
        for tile in 0..tiling.tiles() {
            let points = T::points(&points[image * tiling.tiles() + tile..], lines / tiling.points());
            transform_output::<_, _, T>(simd, tiling, points, y, block, tile, add);
        }
    }
}

for_each_isa! {
    /// Adds the contribution of transformed images to the gradient of the transformed kernel, at one point and for one block of
    /// outputs; stores it if `first`. The images lie as in [`Tiling::gradient_len`].
    pub(crate) fn accumulate(
        simd, tiling: &Tiling, transformed: &[F32x16], images: usize, at: [usize; 2], first: bool, sums: &mut [F32x16],
    ) {
        assert_eq!(transformed.len(), tiling.gradient_len(images));
        assert_eq!(sums.len(), tiling.from.blocks() * WIDTH);
        match Vectors::<S, N>::TILE {
            16.. => accumulate_by::<_, _, 16>(simd, tiling, transformed, images, at, first, sums),
            4.. => accumulate_by::<_, _, 4>(simd, tiling, transformed, images, at, first, sums),
            _ => accumulate_by::<_, _, 2>(simd, tiling, transformed, images, at, first, sums),
        }
    }
}

/// `L` input channels at a time; L divides sixteen.
#[inline(always)]
fn accumulate_by<S: Simd, const N: usize, const L: usize>(
    simd: Vectors<S, N>,
    tiling: &Tiling,
    transformed: &[F32x16],
    images: usize,
    [point, out]: [usize; 2],
    first: bool,
    sums: &mut [F32x16],
) {
    let (points, ins, together) = (tiling.points(), tiling.from.blocks(), tiling.together());
    for (block, sums) in sums.chunks_exact_mut(WIDTH).enumerate() {
        for (group, sums) in sums.as_chunks_mut::<L>().0.iter_mut().enumerate() {
            let mut held = load(simd, sums, first);
            for (part, transformed) in transformed.chunks(tiling.points_len(together)).enumerate() {
                let images = together.min(images - part * together);
                let (tiles, apart) = (images * tiling.tiles(), tiling.apart(images));
                let inputs = &transformed[(block * points + point) * apart..][..tiles];
                let gradients = &transformed[((ins + out) * points + point) * apart..][..tiles];
                add_products(simd, inputs, group, gradients, &mut held);
            }
            for lane in 0..L {
                held[lane].store(&mut sums[lane]);
            }
        }
    }
}

/// Sums in registers: zero if `first`.
#[inline(always)]
fn load<S: Simd, const N: usize, const L: usize>(
    simd: Vectors<S, N>,
    sums: &[F32x16; L],
    first: bool,
) -> [Vector<S, N>; L] {
    let mut held = [simd.zero(); L];
    if !first {
        // From the last: the compiler reverses these loads, and memory is faster forwards.
        for lane in (0..L).rev() {
            held[lane] = simd.load(&sums[lane]);
        }
    }
    held
}

/// Adds the products of some tiles at one point: `L` input channels of a block by a block of gradients.
#[inline(always)]
fn add_products<S: Simd, const N: usize, const L: usize>(
    simd: Vectors<S, N>,
    inputs: &[F32x16],
    group: usize,
    gradients: &[F32x16],
    held: &mut [Vector<S, N>; L],
) {
    for (input, gradient) in inputs.iter().zip(gradients) {
        let (input, gradient) = (&input.0.as_chunks::<L>().0[group], simd.load(gradient));
        for lane in 0..L {
            held[lane] = held[lane].plus(input[lane], gradient);
        }
    }
}

for_each_isa! {
    /// Adds the contribution of some images to the gradient of the transformed kernel, on this thread; stores it if `first`.
    pub(crate) fn gradient(
        simd, tiling: &Tiling, x: &[F32x16], dy: &[F32x16], first: bool, buffer: &mut [F32x16], sums: &mut [F32x16],
    ) {
        check(tiling);
        let images = dy.len() / tiling.to.image();
        assert_eq!((x.len(), dy.len()), (images * tiling.from.image(), images * tiling.to.image()));
        assert_eq!((buffer.len(), sums.len()), (tiling.gradient_buffer_len(), tiling.sums_len()));
        match (tiling.side, Vectors::<S, N>::TILE) {
            (4, 16..) => gradient_by::<_, _, F4x4, 16>(simd, tiling, x, dy, first, buffer, sums),
            (4, 4..) => gradient_by::<_, _, F4x4, 4>(simd, tiling, x, dy, first, buffer, sums),
            (4, _) => gradient_by::<_, _, F4x4, 2>(simd, tiling, x, dy, first, buffer, sums),
            (_, 16..) => gradient_by::<_, _, F2x2, 16>(simd, tiling, x, dy, first, buffer, sums),
            (_, 4..) => gradient_by::<_, _, F2x2, 4>(simd, tiling, x, dy, first, buffer, sums),
            (_, _) => gradient_by::<_, _, F2x2, 2>(simd, tiling, x, dy, first, buffer, sums),
        }
    }
}

/// `L` input channels at a time; L divides sixteen.
#[inline(always)]
fn gradient_by<S: Simd, const N: usize, T: Transform, const L: usize>(
    simd: Vectors<S, N>,
    tiling: &Tiling,
    x: &[F32x16],
    dy: &[F32x16],
    first: bool,
    buffer: &mut [F32x16],
    sums: &mut [F32x16],
) {
    let (points, ins, outs) = (tiling.points(), tiling.from.blocks(), tiling.to.blocks());
    let tiles = dy.len() / tiling.to.image() * tiling.tiles();
    let apart = apart(GRADIENT_PANEL);
    let (inputs, gradients) = buffer.split_at_mut(ins * points * apart);
    for start in (0..tiles).step_by(GRADIENT_PANEL) {
        let range = start..tiles.min(start + GRADIENT_PANEL);
        for (block, inputs) in inputs.chunks_exact_mut(points * apart).enumerate() {
            transform_input_tiles::<_, _, T>(simd, tiling, x, block, range.clone(), inputs, apart);
        }
        for (block, gradients) in gradients.chunks_exact_mut(points * apart).enumerate() {
            transform_gradient_tiles::<_, _, T>(simd, tiling, dy, block, range.clone(), gradients, apart);
        }
        for (part, sums) in sums.chunks_exact_mut(ins * WIDTH).enumerate() {
            let (point, out) = (part / outs, part % outs);
            let gradients = &gradients[(out * points + point) * apart..][..range.len()];
            for (block, sums) in sums.chunks_exact_mut(WIDTH).enumerate() {
                let inputs = &inputs[(block * points + point) * apart..][..range.len()];
                for (group, sums) in sums.as_chunks_mut::<L>().0.iter_mut().enumerate() {
                    let mut held = load(simd, sums, first && start == 0);
                    add_products(simd, inputs, group, gradients, &mut held);
                    for lane in 0..L {
                        held[lane].store(&mut sums[lane]);
                    }
                }
            }
        }
    }
}

for_each_isa! {
    /// Adds vectors.
    pub(crate) fn add(simd, from: &[F32x16], to: &mut [F32x16]) {
        for (to, from) in to.iter_mut().zip(from) {
            (simd.load(to) + simd.load(from)).store(to);
        }
    }
}

for_each_isa! {
    /// Transforms the gradient of the transformed kernel back, and adds it to the plain gradient of one block of outputs.
    pub(crate) fn fold(simd, tiling: &Tiling, sums: &[F32x16], block: usize, plain: &mut [f32]) {
        assert_eq!(sums.len(), tiling.sums_len());
        assert_eq!(plain.len(), 9 * tiling.from.shape.channels * tiling.to.lanes(block));
        let (ins, apart) = (tiling.from.shape.channels, tiling.sums_len() / tiling.points());
        let mut w = [F32x16::ZERO; 9];
        for input in 0..ins {
            let sums = &sums[block * tiling.from.blocks() * WIDTH + input..];
            let folded = Matrix::kernel(w.as_mut_slice());
            match tiling.side {
                4 => F4x4::fold(simd, F4x4::points(sums, apart), folded, false),
                _ => F2x2::fold(simd, F2x2::points(sums, apart), folded, false),
            }
            for lane in 0..tiling.to.lanes(block) {
                for (to, w) in plain[9 * (lane * ins + input)..][..9].iter_mut().zip(&w) {
                    *to += w.0[lane];
                }
            }
        }
    }
}

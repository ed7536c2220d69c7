//! 3 × 3 convolutions by Winograd's algorithm. Tiles of pixels and the kernel are transformed to a few points; at each point
//! the convolution is a matrix product over channels, with a quarter of the direct method's multiplications.
//!
//! Tiles of several images are processed together, so that the products are large enough, and stay in cache between the
//! transforms and the products. The result of a tile does not depend on which tiles are processed with it. Gradients of the
//! kernel are summed over tiles in image order.

use super::block::Blocked;
use super::conv_geometry::ConvGeometry;
use super::simd::{F32x16, Simd, Vectors, WIDTH, for_each_isa};
use super::winograd_transforms::{F2x2, F4x4, Matrix, Transform};

/// Tiles multiplied at once: as many vectors as the registers hold.
const PANEL: usize = 16;

/// Tiles processed together, where one image has fewer.
const TOGETHER: usize = 64;

/// A 3 × 3 convolution with padding one and stride one, divided into tiles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiling {
    pub(crate) from: Blocked,
    pub(crate) to: Blocked,
    /// Outputs along a side of a tile: 2 or 4.
    side: usize,
}

impl Tiling {
    /// The tiles of a convolution, if the algorithm applies and pays off.
    pub(crate) fn of(geometry: &ConvGeometry) -> Option<Self> {
        let ConvGeometry { from, to, kernel: 3, stride: 1, pad: 1 } = *geometry else { return None };
        let short = to.shape.height.min(to.shape.width);
        // With few channels the transforms cost more than they save. A single pixel has nothing to share.
        let worth = from.shape.channels >= 8 && to.shape.channels >= 8 && short > 1;
        worth.then_some(Tiling { from, to, side: if short > 2 { 4 } else { 2 } })
    }

    /// The tiling of the backward pass: from the gradient of the output to that of the input.
    pub(crate) fn backward(self) -> Self {
        Tiling { from: self.to, to: self.from, ..self }
    }

    pub(crate) fn points(&self) -> usize {
        (self.side + 2) * (self.side + 2)
    }

    fn along(&self) -> usize {
        self.to.shape.width.div_ceil(self.side)
    }

    /// Tiles in one image.
    pub(crate) fn tiles(&self) -> usize {
        self.to.shape.height.div_ceil(self.side) * self.along()
    }

    /// Row and column of the first output of a tile.
    fn corner(&self, tile: usize) -> (usize, usize) {
        (tile / self.along() * self.side, tile % self.along() * self.side)
    }

    /// Images whose tiles are processed together.
    pub(crate) fn together(&self) -> usize {
        (TOGETHER / self.tiles()).max(1)
    }

    /// Vectors of the transformed kernel: output block by point by input channel.
    pub(crate) fn kernel_len(&self) -> usize {
        self.to.blocks() * self.points() * self.from.shape.channels
    }

    /// Vectors of the transformed kernel's gradient: output block by input block by point by input channel.
    pub(crate) fn sums_len(&self) -> usize {
        self.to.blocks() * self.from.blocks() * self.points() * WIDTH
    }

    /// Vectors of workspace for a forward pass over some images.
    pub(crate) fn buffer_len(&self, images: usize) -> usize {
        self.points() * (images * self.tiles() * self.from.blocks() + PANEL)
    }

    /// Vectors of the transformed inputs and output gradients of some images.
    pub(crate) fn gradient_buffer_len(&self, images: usize) -> usize {
        self.points() * images * self.tiles() * (self.from.blocks() + self.to.blocks())
    }
}

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
    let points = tiling.points();
    let tiles = y.len() / tiling.to.image() * tiling.tiles();
    let (inputs, products) = buffer.split_at_mut(points * tiles * tiling.from.blocks());
    for block in 0..tiling.from.blocks() {
        let inputs = &mut inputs[block * points * tiles..];
        transform_input_tiles::<_, _, T>(simd, tiling, x, block, inputs, tiles);
    }
    let ins = tiling.from.shape.channels;
    for block in 0..tiling.to.blocks() {
        let kernel = &kernel[block * points * ins..][..points * ins];
        for first in (0..tiles).step_by(PANEL) {
            let count = PANEL.min(tiles - first);
            for (point, kernel) in kernel.chunks_exact(ins).enumerate() {
                let from = &inputs[point * tiles + first..];
                multiply(simd, from, points * tiles, kernel, &mut products[point * PANEL..][..count]);
            }
            for tile in first..first + count {
                transform_output::<_, _, T>(simd, tiling, &products[tile - first..], y, block, tile, add);
            }
        }
    }
}

/// Transforms one block of channels of all tiles of some images: point by point, `apart` vectors each.
#[inline(always)]
fn transform_input_tiles<S: Simd, const N: usize, T: Transform>(
    simd: Vectors<S, N>,
    tiling: &Tiling,
    x: &[F32x16],
    block: usize,
    out: &mut [F32x16],
    apart: usize,
) {
    let place = &tiling.from;
    let (row, height) = (place.row(), place.shape.height + 2 * place.border);
    for (image, x) in x.chunks_exact(place.image()).enumerate() {
        let plane = &x[block * place.plane()..][..place.plane()];
        for tile in 0..tiling.tiles() {
            let (top, left) = tiling.corner(tile);
            // The first input of a tile is one up and one left of its first output.
            let (top, left) = (top + place.border - 1, left + place.border - 1);
            let x = &plane[top * row + left..];
            let points = T::points(&mut out[image * tiling.tiles() + tile..], apart);
            // Whole tiles have their own code without tests for edges.
            if top + T::POINTS <= height && left + T::POINTS <= row {
                T::input(simd, Matrix::new(x, [row, 1], [T::POINTS; 2]), points, false);
            } else {
                let there = [T::POINTS.min(height - top), T::POINTS.min(row - left)];
                T::input(simd, Matrix::new(x, [row, 1], there), points, false);
            }
        }
    }
}

/// Transforms one block of channels of the gradients of all tiles of some images.
#[inline(always)]
fn transform_gradient_tiles<S: Simd, const N: usize, T: Transform>(
    simd: Vectors<S, N>,
    tiling: &Tiling,
    dy: &[F32x16],
    block: usize,
    out: &mut [F32x16],
    apart: usize,
) {
    let place = &tiling.to;
    for (image, dy) in dy.chunks_exact(place.image()).enumerate() {
        let plane = &dy[block * place.plane()..][..place.plane()];
        for tile in 0..tiling.tiles() {
            let (top, left) = tiling.corner(tile);
            let dy = &plane[place.start(top) + left..];
            let points = T::points(&mut out[image * tiling.tiles() + tile..], apart);
            let there = [T::SIDE.min(place.shape.height - top), T::SIDE.min(place.shape.width - left)];
            if there == [T::SIDE; 2] {
                T::gradient(simd, Matrix::new(dy, [place.row(), 1], [T::SIDE; 2]), points, false);
            } else {
                T::gradient(simd, Matrix::new(dy, [place.row(), 1], there), points, false);
            }
        }
    }
}

/// Transforms the points of one tile to its outputs.
#[inline(always)]
fn transform_output<S: Simd, const N: usize, T: Transform>(
    simd: Vectors<S, N>,
    tiling: &Tiling,
    points: &[F32x16],
    y: &mut [F32x16],
    block: usize,
    tile: usize,
    add: bool,
) {
    let place = &tiling.to;
    let (image, (top, left)) = (tile / tiling.tiles(), tiling.corner(tile % tiling.tiles()));
    let start = image * place.image() + block * place.plane() + place.start(top) + left;
    let there = [T::SIDE.min(place.shape.height - top), T::SIDE.min(place.shape.width - left)];
    let (points, y) = (T::points(points, PANEL), &mut y[start..]);
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
    let most = Vectors::<S, N>::TILE;
    while !out.is_empty() {
        let done = match out.len() {
            16.. if most >= 16 => multiply_by::<_, _, 16>(simd, inputs, apart, kernel, out),
            8.. if most >= 8 => multiply_by::<_, _, 8>(simd, inputs, apart, kernel, out),
            4.. if most >= 4 => multiply_by::<_, _, 4>(simd, inputs, apart, kernel, out),
            2.. => multiply_by::<_, _, 2>(simd, inputs, apart, kernel, out),
            _ => multiply_by::<_, _, 1>(simd, inputs, apart, kernel, out),
        };
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
    /// Transforms one block of channels of the inputs of some images, for the gradient of the kernel.
    pub(crate) fn transform_inputs(simd, tiling: &Tiling, x: &[F32x16], block: usize, out: &mut [F32x16]) {
        check(tiling);
        assert_eq!(out.len(), x.len() / tiling.from.image() * tiling.tiles() * tiling.points());
        let apart = out.len() / tiling.points();
        match tiling.side {
            4 => transform_input_tiles::<_, _, F4x4>(simd, tiling, x, block, out, apart),
            _ => transform_input_tiles::<_, _, F2x2>(simd, tiling, x, block, out, apart),
        }
    }
}

for_each_isa! {
    /// Transforms one block of channels of the output gradients of some images.
    pub(crate) fn transform_gradients(simd, tiling: &Tiling, dy: &[F32x16], block: usize, out: &mut [F32x16]) {
        check(tiling);
        assert_eq!(out.len(), dy.len() / tiling.to.image() * tiling.tiles() * tiling.points());
        let apart = out.len() / tiling.points();
        match tiling.side {
            4 => transform_gradient_tiles::<_, _, F4x4>(simd, tiling, dy, block, out, apart),
            _ => transform_gradient_tiles::<_, _, F2x2>(simd, tiling, dy, block, out, apart),
        }
    }
}

for_each_isa! {
    /// Adds the contribution of some transformed tiles to the gradient of the transformed kernel, for one block of outputs.
    pub(crate) fn accumulate(
        simd, tiling: &Tiling, tiles: usize, inputs: &[F32x16], gradients: &[F32x16], sums: &mut [F32x16],
    ) {
        let points = tiling.points();
        let lines = tiles * points;
        assert_eq!((inputs.len(), gradients.len()), (lines * tiling.from.blocks(), lines));
        assert_eq!(sums.len(), tiling.sums_len() / tiling.to.blocks());
        match Vectors::<S, N>::TILE {
            16.. => accumulate_by::<_, _, 16>(simd, points, tiles, inputs, gradients, sums),
            4.. => accumulate_by::<_, _, 4>(simd, points, tiles, inputs, gradients, sums),
            _ => accumulate_by::<_, _, 2>(simd, points, tiles, inputs, gradients, sums),
        }
    }
}

/// `L` input channels at a time; L divides sixteen.
#[inline(always)]
fn accumulate_by<S: Simd, const N: usize, const L: usize>(
    simd: Vectors<S, N>,
    points: usize,
    tiles: usize,
    inputs: &[F32x16],
    gradients: &[F32x16],
    sums: &mut [F32x16],
) {
    for (part, (inputs, sums)) in inputs.chunks_exact(tiles).zip(sums.chunks_exact_mut(WIDTH)).enumerate() {
        let gradients = &gradients[part % points * tiles..][..tiles];
        for (group, sums) in sums.as_chunks_mut::<L>().0.iter_mut().enumerate() {
            let mut held = [simd.zero(); L];
            // From the last: the compiler reverses these loads, and memory is faster forwards.
            for lane in (0..L).rev() {
                held[lane] = simd.load(&sums[lane]);
            }
            for tile in 0..tiles {
                let (input, gradient) =
                    (&inputs[tile].0.as_chunks::<L>().0[group], simd.load(&gradients[tile]));
                for lane in 0..L {
                    held[lane] = held[lane].plus(input[lane], gradient);
                }
            }
            for lane in 0..L {
                held[lane].store(&mut sums[lane]);
            }
        }
    }
}

for_each_isa! {
    /// Sums the transformed kernel gradients of all groups of images, transforms them back, and adds them to the plain gradient
    /// of one block of outputs.
    pub(crate) fn fold(simd, tiling: &Tiling, groups: &[F32x16], block: usize, plain: &mut [f32]) {
        assert!(groups.len().is_multiple_of(tiling.sums_len()));
        assert_eq!(plain.len(), 9 * tiling.from.shape.channels * tiling.to.lanes(block));
        let (ins, points) = (tiling.from.shape.channels, tiling.points());
        let start = block * (tiling.sums_len() / tiling.to.blocks());
        // With space for the 36 points of the largest tile.
        let (mut w, mut sum) = ([F32x16::ZERO; 9], [F32x16::ZERO; 36]);
        for input in 0..ins {
            for point in 0..points {
                let at = start + (input / WIDTH * points + point) * WIDTH + input % WIDTH;
                let mut all = simd.zero();
                for group in groups.chunks_exact(tiling.sums_len()) {
                    all = all + simd.load(&group[at]);
                }
                all.store(&mut sum[point]);
            }
            let folded = Matrix::kernel(w.as_mut_slice());
            match tiling.side {
                4 => F4x4::fold(simd, F4x4::points(sum.as_slice(), 1), folded, false),
                _ => F2x2::fold(simd, F2x2::points(sum.as_slice(), 1), folded, false),
            }
            for lane in 0..tiling.to.lanes(block) {
                for (to, w) in plain[9 * (lane * ins + input)..][..9].iter_mut().zip(&w) {
                    *to += w.0[lane];
                }
            }
        }
    }
}

//! 3 × 3 convolutions by Winograd's algorithm. Tiles of pixels and the kernel are transformed to a few points; at each point
//! the convolution is a matrix product over channels, with a quarter of the direct method's multiplications.
//!
//! Tiles of several images are processed together, so that the products are large enough, and stay in cache between the
//! transforms and the products. The result of a tile does not depend on which tiles are processed with it. Gradients of the
//! kernel are summed over tiles in image order.

#![allow(unsafe_code)]

use super::block::Blocked;
use super::conv_geometry::ConvGeometry;
use super::simd::{F32x16, Simd, WIDTH, for_each_isa};
use super::winograd_transforms::{F2x2, F4x4, Transform};

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
    pub(crate) fn transform_kernel<V>(tiling: &Tiling, plain: &[f32], flipped: bool, block: usize, out: &mut [F32x16]) {
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
            // SAFETY: by the assertion on `out` there is a vector for every point of every input, `ins` apart.
            unsafe {
                let points = out.as_mut_ptr().add(input);
                match tiling.side {
                    4 => F4x4::kernel::<V>(&w, points, ins),
                    _ => F2x2::kernel::<V>(&w, points, ins),
                }
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
    pub(crate) fn run<V>(
        tiling: &Tiling, x: &[F32x16], kernel: &[F32x16], y: &mut [F32x16], add: bool, buffer: &mut [F32x16],
    ) {
        check(tiling);
        let images = y.len() / tiling.to.image();
        assert_eq!((x.len(), y.len()), (images * tiling.from.image(), images * tiling.to.image()));
        assert_eq!(kernel.len(), tiling.kernel_len());
        assert!(buffer.len() >= tiling.buffer_len(images), "the workspace is large enough");
        // SAFETY: the caller has these instructions, and the lengths of all slices were just checked.
        unsafe {
            match tiling.side {
                4 => run_by::<V, F4x4>(tiling, x, kernel, y, add, buffer),
                _ => run_by::<V, F2x2>(tiling, x, kernel, y, add, buffer),
            }
        }
    }
}

#[inline(always)]
unsafe fn run_by<V: Simd, T: Transform>(
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
        // SAFETY: `run` checked the lengths of all slices: there is space for every point of every tile, and for a panel of
        // products.
        unsafe {
            transform_input_tiles::<V, T>(tiling, x, block, &mut inputs[block * points * tiles..], tiles)
        };
    }
    let ins = tiling.from.shape.channels;
    for block in 0..tiling.to.blocks() {
        let kernel = &kernel[block * points * ins..][..points * ins];
        for first in (0..tiles).step_by(PANEL) {
            let count = PANEL.min(tiles - first);
            for point in 0..points {
                let from = &inputs[point * tiles + first..];
                let to = &mut products[point * PANEL..][..PANEL];
                // SAFETY: as above.
                unsafe {
                    let kernel = kernel[point * ins..][..ins].as_ptr();
                    multiply::<V>(count, from.as_ptr(), points * tiles, kernel, ins, to.as_mut_ptr());
                }
            }
            for tile in first..first + count {
                // SAFETY: as above.
                unsafe {
                    transform_output::<V, T>(tiling, products.as_ptr().add(tile - first), y, block, tile, add)
                };
            }
        }
    }
}

/// Transforms one block of channels of all tiles of some images: point by point, `apart` vectors each.
#[inline(always)]
unsafe fn transform_input_tiles<V: Simd, T: Transform>(
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
            let out = out[image * tiling.tiles() + tile..].as_mut_ptr();
            // SAFETY: the tile begins inside its plane, and pixels beyond the plane are declared missing. `out` has space for
            // all points of all tiles, `apart` vectors each.
            unsafe {
                let x = plane.as_ptr().add(top * row + left);
                // Whole tiles have their own code without tests for edges.
                if top + T::POINTS <= height && left + T::POINTS <= row {
                    T::input::<V>(x, row, [T::POINTS; 2], out, apart);
                } else {
                    T::input::<V>(x, row, [height - top, row - left], out, apart);
                }
            }
        }
    }
}

/// Transforms one block of channels of the gradients of all tiles of some images.
#[inline(always)]
unsafe fn transform_gradient_tiles<V: Simd, T: Transform>(
    tiling: &Tiling,
    dy: &[F32x16],
    block: usize,
    out: &mut [F32x16],
    apart: usize,
) {
    let place = &tiling.to;
    let (bottom, right) = (place.border + place.shape.height, place.border + place.shape.width);
    for (image, dy) in dy.chunks_exact(place.image()).enumerate() {
        let plane = &dy[block * place.plane()..][..place.plane()];
        for tile in 0..tiling.tiles() {
            let (top, left) = tiling.corner(tile);
            let (top, left) = (top + place.border, left + place.border);
            let out = out[image * tiling.tiles() + tile..].as_mut_ptr();
            // SAFETY: as in `transform_input_tiles`.
            unsafe {
                let dy = plane.as_ptr().add(top * place.row() + left);
                if top + T::SIDE <= bottom && left + T::SIDE <= right {
                    T::gradient::<V>(dy, place.row(), [T::SIDE; 2], out, apart);
                } else {
                    T::gradient::<V>(dy, place.row(), [bottom - top, right - left], out, apart);
                }
            }
        }
    }
}

/// Transforms the points of one tile to its outputs.
#[inline(always)]
unsafe fn transform_output<V: Simd, T: Transform>(
    tiling: &Tiling,
    points: *const F32x16,
    y: &mut [F32x16],
    block: usize,
    tile: usize,
    add: bool,
) {
    let place = &tiling.to;
    let (image, (top, left)) = (tile / tiling.tiles(), tiling.corner(tile % tiling.tiles()));
    let start = image * place.image() + block * place.plane() + place.start(top) + left;
    let (rows, columns) = (place.shape.height - top, place.shape.width - left);
    // SAFETY: the tile begins inside its plane, and pixels beyond the plane are declared missing. The panel holds all points.
    unsafe {
        let y = y.as_mut_ptr().add(start);
        if rows >= T::SIDE && columns >= T::SIDE {
            T::output::<V>(points, PANEL, y, place.row(), [T::SIDE; 2], add);
        } else {
            T::output::<V>(points, PANEL, y, place.row(), [rows, columns], add);
        }
    }
}

/// One point of up to sixteen tiles: the sum over input channels of input times kernel. Blocks of input channels are `apart`
/// vectors from each other.
#[inline(always)]
unsafe fn multiply<V: Simd>(
    tiles: usize,
    inputs: *const F32x16,
    apart: usize,
    kernel: *const F32x16,
    ins: usize,
    out: *mut F32x16,
) {
    let mut done = 0;
    while done < tiles {
        // SAFETY: the caller promises inputs of `tiles` tiles and space for as many products.
        unsafe {
            let (inputs, out) = (inputs.add(done), out.add(done));
            done += match tiles - done {
                16.. if V::TILE >= 16 => multiply_by::<V, 16>(inputs, apart, kernel, ins, out),
                8.. if V::TILE >= 8 => multiply_by::<V, 8>(inputs, apart, kernel, ins, out),
                4.. if V::TILE >= 4 => multiply_by::<V, 4>(inputs, apart, kernel, ins, out),
                2.. => multiply_by::<V, 2>(inputs, apart, kernel, ins, out),
                _ => multiply_by::<V, 1>(inputs, apart, kernel, ins, out),
            }
        }
    }
}

/// `N` tiles.
#[inline(always)]
unsafe fn multiply_by<V: Simd, const N: usize>(
    inputs: *const F32x16,
    apart: usize,
    kernel: *const F32x16,
    ins: usize,
    out: *mut F32x16,
) -> usize {
    // SAFETY: as the caller promises, for `N` tiles. The kernel has a vector for each of `ins` channels.
    unsafe {
        let mut sums = [V::zero(); N];
        for (block, start) in (0..ins).step_by(WIDTH).enumerate() {
            let inputs = inputs.add(block * apart).cast::<f32>();
            for lane in 0..WIDTH.min(ins - start) {
                let weights = V::load(kernel.add(start + lane).cast());
                for (tile, sum) in sums.iter_mut().enumerate() {
                    *sum = sum.add_product(inputs.add(tile * WIDTH + lane), weights);
                }
            }
        }
        for (tile, sum) in sums.into_iter().enumerate() {
            sum.store(out.add(tile).cast());
        }
    }
    N
}

for_each_isa! {
    /// Transforms one block of channels of the inputs of some images, for the gradient of the kernel.
    pub(crate) fn transform_inputs<V>(tiling: &Tiling, x: &[F32x16], block: usize, out: &mut [F32x16]) {
        check(tiling);
        assert_eq!(out.len(), x.len() / tiling.from.image() * tiling.tiles() * tiling.points());
        let apart = out.len() / tiling.points();
        // SAFETY: the caller has these instructions, and the lengths were just checked.
        unsafe {
            match tiling.side {
                4 => transform_input_tiles::<V, F4x4>(tiling, x, block, out, apart),
                _ => transform_input_tiles::<V, F2x2>(tiling, x, block, out, apart),
            }
        }
    }
}

for_each_isa! {
    /// Transforms one block of channels of the output gradients of some images.
    pub(crate) fn transform_gradients<V>(tiling: &Tiling, dy: &[F32x16], block: usize, out: &mut [F32x16]) {
        check(tiling);
        assert_eq!(out.len(), dy.len() / tiling.to.image() * tiling.tiles() * tiling.points());
        let apart = out.len() / tiling.points();
        // SAFETY: the caller has these instructions, and the lengths were just checked.
        unsafe {
            match tiling.side {
                4 => transform_gradient_tiles::<V, F4x4>(tiling, dy, block, out, apart),
                _ => transform_gradient_tiles::<V, F2x2>(tiling, dy, block, out, apart),
            }
        }
    }
}

for_each_isa! {
    /// Adds the contribution of some transformed tiles to the gradient of the transformed kernel, for one block of outputs.
    pub(crate) fn accumulate<V>(
        tiling: &Tiling, tiles: usize, inputs: &[F32x16], gradients: &[F32x16], sums: &mut [F32x16],
    ) {
        let points = tiling.points();
        let lines = tiles * points;
        assert_eq!((inputs.len(), gradients.len()), (lines * tiling.from.blocks(), lines));
        assert_eq!(sums.len(), tiling.sums_len() / tiling.to.blocks());
        // SAFETY: the caller has these instructions.
        unsafe {
            match V::TILE {
                16.. => accumulate_by::<V, 16>(points, tiles, inputs, gradients, sums),
                4.. => accumulate_by::<V, 4>(points, tiles, inputs, gradients, sums),
                _ => accumulate_by::<V, 2>(points, tiles, inputs, gradients, sums),
            }
        }
    }
}

/// `N` input channels at a time; N divides sixteen.
#[inline(always)]
unsafe fn accumulate_by<V: Simd, const N: usize>(
    points: usize,
    tiles: usize,
    inputs: &[F32x16],
    gradients: &[F32x16],
    sums: &mut [F32x16],
) {
    for (part, (inputs, sums)) in inputs.chunks_exact(tiles).zip(sums.chunks_exact_mut(WIDTH)).enumerate() {
        let gradients = &gradients[part % points * tiles..][..tiles];
        for first in (0..WIDTH).step_by(N) {
            // SAFETY: the caller has these instructions (see `Simd`), and every pointer is that of a vector in a slice.
            unsafe {
                let mut held: [V; N] = std::array::from_fn(|lane| V::load(sums[first + lane].at()));
                for (input, gradient) in inputs.iter().zip(gradients) {
                    let gradient = V::load(gradient.at());
                    for (lane, held) in held.iter_mut().enumerate() {
                        *held = held.add_product(input.at().add(first + lane), gradient);
                    }
                }
                for (lane, held) in held.into_iter().enumerate() {
                    held.store(sums[first + lane].at_mut());
                }
            }
        }
    }
}

for_each_isa! {
    /// Sums the transformed kernel gradients of all groups of images, transforms them back, and adds them to the plain gradient
    /// of one block of outputs.
    pub(crate) fn fold<V>(tiling: &Tiling, groups: &[F32x16], block: usize, plain: &mut [f32]) {
        assert!(groups.len().is_multiple_of(tiling.sums_len()));
        assert_eq!(plain.len(), 9 * tiling.from.shape.channels * tiling.to.lanes(block));
        let (ins, points) = (tiling.from.shape.channels, tiling.points());
        let start = block * (tiling.sums_len() / tiling.to.blocks());
        let (mut w, mut sum) = ([F32x16::ZERO; 9], [F32x16::ZERO; 36]);
        for input in 0..ins {
            // SAFETY: the caller has these instructions. Every vector is looked up in its slice; `sum` has space for the 36
            // points of the largest tile.
            unsafe {
                for point in 0..points {
                    let at = start + (input / WIDTH * points + point) * WIDTH + input % WIDTH;
                    let groups = groups.chunks_exact(tiling.sums_len());
                    let all = groups.fold(V::zero(), |all, group| all.add(V::load(group[at].at())));
                    all.store(sum[point].at_mut());
                }
                match tiling.side {
                    4 => F4x4::fold::<V>(sum.as_ptr(), 1, &mut w),
                    _ => F2x2::fold::<V>(sum.as_ptr(), 1, &mut w),
                }
            }
            for lane in 0..tiling.to.lanes(block) {
                for (to, w) in plain[9 * (lane * ins + input)..][..9].iter_mut().zip(&w) {
                    *to += w.0[lane];
                }
            }
        }
    }
}

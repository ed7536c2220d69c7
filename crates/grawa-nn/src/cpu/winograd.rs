//! Convolutions of 3 × 3 by Winograd's way: tiles of pixels and the kernel are seen at a few points, where the convolution
//! is a product of matrices, channels by channels, for each point; a quarter of the multiplications of the direct way.
//!
//! Tiles of a few images are taken together, so that the products have enough of them, and stay in cache between the
//! transforms and the products. What a tile gives does not depend on which tiles go along with it; gradients of the kernel
//! are summed over tiles in the order of the images.

#![allow(unsafe_code)]

use super::block::Blocked;
use super::lanes::{Lanes, Line, Machine, WIDTH, for_machines};
use super::route::Walk;
use super::tile::{By2, By4, Tile};

/// Tiles that are multiplied at once: as many lines as registers hold.
const PANEL: usize = 16;

/// Tiles that are taken together where an image has fewer.
const TOGETHER: usize = 64;

/// A convolution of 3 × 3 with a border of one and no stride, cut into tiles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiling {
    pub(crate) from: Blocked,
    pub(crate) to: Blocked,
    /// Outputs along a side of a tile: 2 or 4.
    side: usize,
}

impl Tiling {
    /// The tiles of a convolution, if it is of the kind and worth it.
    pub(crate) fn of(walk: &Walk) -> Option<Self> {
        let Walk { from, to, kernel: 3, stride: 1, pad: 1 } = *walk else { return None };
        let short = to.shape.height.min(to.shape.width);
        // With few channels the transforms cost more than they save; a single pixel has nothing to share.
        let worth = from.shape.channels >= 8 && to.shape.channels >= 8 && short > 1;
        worth.then_some(Tiling { from, to, side: if short > 2 { 4 } else { 2 } })
    }

    /// The same the other way round: from the gradient of the output to that of the input.
    pub(crate) fn back(self) -> Self {
        Tiling { from: self.to, to: self.from, ..self }
    }

    pub(crate) fn points(&self) -> usize {
        (self.side + 2) * (self.side + 2)
    }

    fn down(&self) -> usize {
        self.to.shape.height.div_ceil(self.side)
    }

    fn along(&self) -> usize {
        self.to.shape.width.div_ceil(self.side)
    }

    /// Tiles of one image.
    pub(crate) fn tiles(&self) -> usize {
        self.down() * self.along()
    }

    /// Images whose tiles are taken together.
    pub(crate) fn together(&self) -> usize {
        (TOGETHER / self.tiles()).max(1)
    }

    /// Lines of the kernel at all points: output block by point by input channel.
    pub(crate) fn kernel(&self) -> usize {
        self.to.blocks() * self.points() * self.from.shape.channels
    }

    /// Lines of the kernel's gradient at all points: output block by input block by point by input channel.
    pub(crate) fn sums(&self) -> usize {
        self.to.blocks() * self.from.blocks() * self.points() * WIDTH
    }

    /// Lines that a pass over some images needs besides.
    pub(crate) fn room(&self, images: usize) -> usize {
        self.points() * (images * self.tiles() * self.from.blocks() + PANEL)
    }

    /// Lines of some images' inputs and of their outputs' gradients, seen at the points.
    pub(crate) fn seen(&self, images: usize) -> usize {
        self.points() * images * self.tiles() * (self.from.blocks() + self.to.blocks())
    }
}

/// The kernel at all points, for one block of outputs. `turned`: for the way back, of the tiling that goes back.
pub(crate) fn kernel(
    machine: Machine,
    tiling: &Tiling,
    plain: &[f32],
    turned: bool,
    block: usize,
    out: &mut [Line],
) {
    assert_eq!(plain.len(), 9 * tiling.from.shape.channels * tiling.to.shape.channels);
    assert_eq!(out.len(), tiling.kernel() / tiling.to.blocks());
    kernel_block(machine, tiling, plain, turned, block, out);
}

for_machines! { fn kernel_block = kernel_with(tiling: &Tiling, plain: &[f32], turned: bool, block: usize, out: &mut [Line]) }

#[inline(always)]
unsafe fn kernel_with<V: Lanes>(
    tiling: &Tiling,
    plain: &[f32],
    turned: bool,
    block: usize,
    out: &mut [Line],
) {
    let (ins, outs) = (tiling.from.shape.channels, tiling.to.shape.channels);
    let mut w = [Line::ZERO; 9];
    for input in 0..ins {
        for lane in 0..tiling.to.lanes(block) {
            let output = block * WIDTH + lane;
            // The kernel lies output by input of the way forth; back, it is turned by half a turn.
            let at = if turned { input * outs + output } else { output * ins + input };
            let plain = &plain[9 * at..][..9];
            for place in 0..9 {
                w[place].0[lane] = if turned { plain[8 - place] } else { plain[place] };
            }
        }
        // SAFETY: `kernel` checked that there is a line for every point of every input, `ins` apart.
        unsafe {
            let points = out.as_mut_ptr().add(input);
            match tiling.side {
                4 => By4::kernel::<V>(&w, points, ins),
                _ => By2::kernel::<V>(&w, points, ins),
            }
        }
    }
}

/// Some images: y = kernel ∗ x, added to what is there if `add`.
pub(crate) fn run(
    machine: Machine,
    tiling: &Tiling,
    x: &[Line],
    kernel: &[Line],
    y: &mut [Line],
    add: bool,
    room: &mut [Line],
) {
    check(tiling);
    let images = y.len() / tiling.to.image();
    assert_eq!((x.len(), y.len()), (images * tiling.from.image(), images * tiling.to.image()));
    assert_eq!(kernel.len(), tiling.kernel());
    assert!(room.len() >= tiling.room(images), "there is room");
    run_tiles(machine, tiling, x, kernel, y, add, room);
}

/// What the kernels rely on: a tile that is not cut off reads and writes lines of its own plane.
fn check(tiling: &Tiling) {
    assert!(tiling.from.border >= 1, "the border holds the padding");
    let area = |place: &Blocked| (place.shape.height, place.shape.width);
    assert_eq!(area(&tiling.from), area(&tiling.to), "no stride");
}

for_machines! { fn run_tiles = run_with(tiling: &Tiling, x: &[Line], kernel: &[Line], y: &mut [Line], add: bool, room: &mut [Line]) }

#[inline(always)]
unsafe fn run_with<V: Lanes>(
    tiling: &Tiling,
    x: &[Line],
    kernel: &[Line],
    y: &mut [Line],
    add: bool,
    room: &mut [Line],
) {
    // SAFETY: as the caller promises.
    unsafe {
        match tiling.side {
            4 => run_by::<V, By4>(tiling, x, kernel, y, add, room),
            _ => run_by::<V, By2>(tiling, x, kernel, y, add, room),
        }
    }
}

#[inline(always)]
unsafe fn run_by<V: Lanes, T: Tile>(
    tiling: &Tiling,
    x: &[Line],
    kernel: &[Line],
    y: &mut [Line],
    add: bool,
    room: &mut [Line],
) {
    let points = tiling.points();
    let tiles = y.len() / tiling.to.image() * tiling.tiles();
    let (seen, products) = room.split_at_mut(points * tiles * tiling.from.blocks());
    for block in 0..tiling.from.blocks() {
        // SAFETY: `run` checked the lengths of all slices: there is room for every point of every tile, and for a panel of
        // products.
        unsafe { see_inputs::<V, T>(tiling, x, block, &mut seen[block * points * tiles..], tiles) };
    }
    let ins = tiling.from.shape.channels;
    for block in 0..tiling.to.blocks() {
        let kernel = &kernel[block * points * ins..][..points * ins];
        for first in (0..tiles).step_by(PANEL) {
            let count = PANEL.min(tiles - first);
            for point in 0..points {
                let from = &seen[point * tiles + first..];
                let to = &mut products[point * PANEL..][..PANEL];
                // SAFETY: `run` checked the lengths of all slices: there is room for every point of every tile, and for a
                // panel of products.
                unsafe {
                    let kernel = kernel[point * ins..][..ins].as_ptr();
                    multiply::<V>(count, from.as_ptr(), points * tiles, kernel, ins, to.as_mut_ptr());
                }
            }
            for tile in first..first + count {
                // SAFETY: `run` checked the lengths of all slices: there is room for every point of every tile, and for a
                // panel of products.
                unsafe { show::<V, T>(tiling, products.as_ptr().add(tile - first), y, block, tile, add) };
            }
        }
    }
}

/// One block of channels of all tiles of some images, seen at the points: point by point, `apart` lines each.
#[inline(always)]
unsafe fn see_inputs<V: Lanes, T: Tile>(
    tiling: &Tiling,
    x: &[Line],
    block: usize,
    out: &mut [Line],
    apart: usize,
) {
    let place = &tiling.from;
    let (row, height) = (place.row(), place.shape.height + 2 * place.border);
    for (image, x) in x.chunks_exact(place.image()).enumerate() {
        let plane = &x[block * place.plane()..][..place.plane()];
        for tile in 0..tiling.tiles() {
            let (top, left) = tiling.corner(tile);
            // The first line of the tile's inputs lies one up and one left of its first output.
            let (top, left) = (top + place.border - 1, left + place.border - 1);
            let out = out[image * tiling.tiles() + tile..].as_mut_ptr();
            // SAFETY: the tile begins inside its plane, and what is beyond the plane is not there; `out` has room for all
            // points of all tiles, `apart` lines each.
            unsafe {
                let x = plane.as_ptr().add(top * row + left);
                // Whole tiles have their own code, which tests for no edge.
                if top + T::POINTS <= height && left + T::POINTS <= row {
                    T::input::<V>(x, row, [T::POINTS; 2], out, apart);
                } else {
                    T::input::<V>(x, row, [height - top, row - left], out, apart);
                }
            }
        }
    }
}

/// One block of channels of the gradients of all tiles of some images, seen at the points.
#[inline(always)]
unsafe fn see_flows<V: Lanes, T: Tile>(
    tiling: &Tiling,
    dy: &[Line],
    block: usize,
    out: &mut [Line],
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
            // SAFETY: as in `see_inputs`.
            unsafe {
                let dy = plane.as_ptr().add(top * place.row() + left);
                if top + T::SIDE <= bottom && left + T::SIDE <= right {
                    T::flow::<V>(dy, place.row(), [T::SIDE; 2], out, apart);
                } else {
                    T::flow::<V>(dy, place.row(), [bottom - top, right - left], out, apart);
                }
            }
        }
    }
}

impl Tiling {
    /// Row and column of the first output of a tile.
    fn corner(&self, tile: usize) -> (usize, usize) {
        (tile / self.along() * self.side, tile % self.along() * self.side)
    }
}

/// The outputs of one tile from their points.
#[inline(always)]
unsafe fn show<V: Lanes, T: Tile>(
    tiling: &Tiling,
    points: *const Line,
    y: &mut [Line],
    block: usize,
    tile: usize,
    add: bool,
) {
    let place = &tiling.to;
    let (image, (top, left)) = (tile / tiling.tiles(), tiling.corner(tile % tiling.tiles()));
    let start = image * place.image() + block * place.plane() + place.start(top) + left;
    let (rows, columns) = (place.shape.height - top, place.shape.width - left);
    // SAFETY: the tile begins inside its plane, and what is beyond the plane is not there; the panel holds all its points.
    unsafe {
        let y = y.as_mut_ptr().add(start);
        if rows >= T::SIDE && columns >= T::SIDE {
            T::output::<V>(points, PANEL, y, place.row(), [T::SIDE; 2], add);
        } else {
            T::output::<V>(points, PANEL, y, place.row(), [rows, columns], add);
        }
    }
}

/// One point of up to sixteen tiles: the products of their input channels with the kernel, summed. Blocks of input channels
/// lie `apart` lines from each other.
#[inline(always)]
unsafe fn multiply<V: Lanes>(
    tiles: usize,
    seen: *const Line,
    apart: usize,
    kernel: *const Line,
    ins: usize,
    out: *mut Line,
) {
    let mut done = 0;
    while done < tiles {
        // SAFETY: as the caller promises: so many tiles are seen, and there is room for as many products.
        unsafe {
            let (seen, out) = (seen.add(done), out.add(done));
            done += match tiles - done {
                16.. if V::TILE >= 16 => multiply_by::<V, 16>(seen, apart, kernel, ins, out),
                8.. if V::TILE >= 8 => multiply_by::<V, 8>(seen, apart, kernel, ins, out),
                4.. if V::TILE >= 4 => multiply_by::<V, 4>(seen, apart, kernel, ins, out),
                2.. => multiply_by::<V, 2>(seen, apart, kernel, ins, out),
                _ => multiply_by::<V, 1>(seen, apart, kernel, ins, out),
            }
        }
    }
}

/// `N` tiles.
#[inline(always)]
unsafe fn multiply_by<V: Lanes, const N: usize>(
    seen: *const Line,
    apart: usize,
    kernel: *const Line,
    ins: usize,
    out: *mut Line,
) -> usize {
    // SAFETY: as the caller promises, for `N` tiles; the kernel has a line for each of `ins` channels.
    unsafe {
        let mut sums = [V::zero(); N];
        for (block, start) in (0..ins).step_by(WIDTH).enumerate() {
            let seen = seen.add(block * apart).cast::<f32>();
            for lane in 0..WIDTH.min(ins - start) {
                let line = V::load(kernel.add(start + lane).cast());
                for (tile, sum) in sums.iter_mut().enumerate() {
                    *sum = sum.add_product(seen.add(tile * WIDTH + lane), line);
                }
            }
        }
        for (tile, sum) in sums.into_iter().enumerate() {
            sum.store(out.add(tile).cast());
        }
    }
    N
}

/// One block of channels of the inputs of some images, seen at the points, for the gradient of the kernel.
pub(crate) fn see(machine: Machine, tiling: &Tiling, x: &[Line], block: usize, out: &mut [Line]) {
    check(tiling);
    assert_eq!(out.len(), x.len() / tiling.from.image() * tiling.tiles() * tiling.points());
    see_tiles(machine, tiling, x, block, out);
}

for_machines! { fn see_tiles = see_with(tiling: &Tiling, x: &[Line], block: usize, out: &mut [Line]) }

#[inline(always)]
unsafe fn see_with<V: Lanes>(tiling: &Tiling, x: &[Line], block: usize, out: &mut [Line]) {
    let apart = out.len() / tiling.points();
    // SAFETY: as the caller promises.
    unsafe {
        match tiling.side {
            4 => see_inputs::<V, By4>(tiling, x, block, out, apart),
            _ => see_inputs::<V, By2>(tiling, x, block, out, apart),
        }
    }
}

/// One block of channels of the gradients of some images' outputs, seen at the points.
pub(crate) fn see_flow(machine: Machine, tiling: &Tiling, dy: &[Line], block: usize, out: &mut [Line]) {
    check(tiling);
    assert_eq!(out.len(), dy.len() / tiling.to.image() * tiling.tiles() * tiling.points());
    see_flow_tiles(machine, tiling, dy, block, out);
}

for_machines! { fn see_flow_tiles = see_flow_with(tiling: &Tiling, dy: &[Line], block: usize, out: &mut [Line]) }

#[inline(always)]
unsafe fn see_flow_with<V: Lanes>(tiling: &Tiling, dy: &[Line], block: usize, out: &mut [Line]) {
    let apart = out.len() / tiling.points();
    // SAFETY: as the caller promises.
    unsafe {
        match tiling.side {
            4 => see_flows::<V, By4>(tiling, dy, block, out, apart),
            _ => see_flows::<V, By2>(tiling, dy, block, out, apart),
        }
    }
}

/// Adds what some tiles, seen, give to the gradient of the kernel at all points, for one block of outputs.
pub(crate) fn sum(
    machine: Machine,
    tiling: &Tiling,
    tiles: usize,
    seen: &[Line],
    flows: &[Line],
    sums: &mut [Line],
) {
    let lines = tiles * tiling.points();
    assert_eq!((seen.len(), flows.len()), (lines * tiling.from.blocks(), lines));
    assert_eq!(sums.len(), tiling.sums() / tiling.to.blocks());
    sum_block(machine, tiling.points(), tiles, seen, flows, sums);
}

for_machines! { fn sum_block = sum_with(points: usize, tiles: usize, seen: &[Line], flows: &[Line], sums: &mut [Line]) }

#[inline(always)]
unsafe fn sum_with<V: Lanes>(points: usize, tiles: usize, seen: &[Line], flows: &[Line], sums: &mut [Line]) {
    // SAFETY: as the caller promises.
    unsafe {
        match V::TILE {
            16.. => sum_by::<V, 16>(points, tiles, seen, flows, sums),
            4.. => sum_by::<V, 4>(points, tiles, seen, flows, sums),
            _ => sum_by::<V, 2>(points, tiles, seen, flows, sums),
        }
    }
}

/// `N` input channels at a time; N divides sixteen.
#[inline(always)]
unsafe fn sum_by<V: Lanes, const N: usize>(
    points: usize,
    tiles: usize,
    seen: &[Line],
    flows: &[Line],
    sums: &mut [Line],
) {
    for (part, (seen, sums)) in seen.chunks_exact(tiles).zip(sums.chunks_exact_mut(WIDTH)).enumerate() {
        let flows = &flows[part % points * tiles..][..tiles];
        for first in (0..WIDTH).step_by(N) {
            // SAFETY: the caller has these instructions (see `Lanes`), and every pointer is that of a line in a slice.
            unsafe {
                let mut held: [V; N] = std::array::from_fn(|lane| V::load(sums[first + lane].at()));
                for (seen, flow) in seen.iter().zip(flows) {
                    let flow = V::load(flow.at());
                    for (lane, held) in held.iter_mut().enumerate() {
                        *held = held.add_product(seen.at().add(first + lane), flow);
                    }
                }
                for (lane, held) in held.into_iter().enumerate() {
                    held.store(sums[first + lane].at_mut());
                }
            }
        }
    }
}

/// Adds the gradient of the kernel at all points, of all groups of images together, to the plain one of a block of outputs.
pub(crate) fn fold(machine: Machine, tiling: &Tiling, groups: &[Line], block: usize, plain: &mut [f32]) {
    assert!(groups.len().is_multiple_of(tiling.sums()));
    assert_eq!(plain.len(), 9 * tiling.from.shape.channels * tiling.to.lanes(block));
    fold_block(machine, tiling, groups, block, plain);
}

for_machines! { fn fold_block = fold_with(tiling: &Tiling, groups: &[Line], block: usize, plain: &mut [f32]) }

#[inline(always)]
unsafe fn fold_with<V: Lanes>(tiling: &Tiling, groups: &[Line], block: usize, plain: &mut [f32]) {
    let (ins, points) = (tiling.from.shape.channels, tiling.points());
    let start = block * (tiling.sums() / tiling.to.blocks());
    let (mut w, mut sum) = ([Line::ZERO; 9], [Line::ZERO; 36]);
    for input in 0..ins {
        // SAFETY: a group has `sums` lines, among which `at` is looked up; there is room for the 36 points of the largest
        // tile.
        unsafe {
            for point in 0..points {
                let at = start + (input / WIDTH * points + point) * WIDTH + input % WIDTH;
                let groups = groups.chunks_exact(tiling.sums());
                let all = groups.fold(V::zero(), |all, group| all.add(V::load(group[at].at())));
                all.store(sum[point].at_mut());
            }
            match tiling.side {
                4 => By4::fold::<V>(sum.as_ptr(), 1, &mut w),
                _ => By2::fold::<V>(sum.as_ptr(), 1, &mut w),
            }
        }
        for lane in 0..tiling.to.lanes(block) {
            for (to, w) in plain[9 * (lane * ins + input)..][..9].iter_mut().zip(&w) {
                *to += w.0[lane];
            }
        }
    }
}

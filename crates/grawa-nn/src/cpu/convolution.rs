//! A convolution of a whole batch on all threads: its algorithm and its workspace.
//!
//! Images are divided among threads in items with separate results. Weight gradients are summed over groups of images, and
//! then over the groups in order. The shape alone determines the groups.
//!
//! A batch norm whose result a convolution reads, in either direction, need not pass over the batch on its own: each image is
//! made shortly before the convolution reads it ([`Images::Lazy`]). Where a kernel is small, the gradients of input and weights are
//! computed together, while the image is in cache.

use super::conv_geometry::{ConvGeometry, ConvPath};
use super::direct;
use super::images::Images;
use super::memory::zeros;
use super::simd::{F32x16, Isa, WIDTH};
use super::winograd;
use super::winograd_tiling::Tiling;
use rayon::prelude::*;
use std::sync::{Mutex, PoisonError};

/// How a convolution is computed.
#[derive(Clone, Debug)]
pub(crate) enum ConvAlgorithm {
    /// One kernel position after the other.
    Direct { forward: ConvPath, backward: ConvPath },
    /// Winograd's algorithm, in tiles.
    Winograd(Tiling),
}

impl ConvAlgorithm {
    /// The cheaper algorithm.
    pub(crate) fn of(geometry: &ConvGeometry) -> Self {
        match Tiling::of(geometry) {
            Some(tiling) => ConvAlgorithm::Winograd(tiling),
            None => ConvAlgorithm::Direct { forward: geometry.forward(), backward: geometry.backward() },
        }
    }

    /// Vectors of the packed weights, in either direction.
    fn weights(&self, geometry: &ConvGeometry, batch: usize) -> usize {
        let of = |tiling: &Tiling| if tiling.is_deep(batch) { 0 } else { tiling.kernel_len() };
        match self {
            ConvAlgorithm::Direct { .. } => geometry.weights(),
            ConvAlgorithm::Winograd(tiling) => of(tiling).max(of(&tiling.backward())),
        }
    }

    /// Vectors of the weights' gradient, for one group of images.
    fn sums(&self, geometry: &ConvGeometry) -> usize {
        match self {
            ConvAlgorithm::Direct { .. } => geometry.weights(),
            ConvAlgorithm::Winograd(tiling) => tiling.sums_len(),
        }
    }
}

/// The number of image groups for weight gradients, at most: many where there are few weights, so that groups are the work of
/// all threads; one where there are many. It depends on the shape alone, so the bits do not depend on the number of threads.
fn most_groups(sums: usize) -> usize {
    ((5 << 19) / (sums * size_of::<F32x16>())).clamp(1, 32)
}

/// Images in each group but the last.
fn group(sums: usize, batch: usize) -> usize {
    batch.div_ceil(most_groups(sums).min(batch))
}

/// Whether the threads share the work of a group, because a large machine has more threads than there are groups.
fn shares(sums: usize) -> bool {
    most_groups(sums) < 16
}

/// Whether this many groups of equal size, one thread each, keep at least three quarters of the threads busy.
fn keeps_busy(groups: usize, threads: usize) -> bool {
    4 * groups >= 3 * groups.div_ceil(threads) * threads
}

/// Images of a group transformed before their products are summed. A single group takes more: all of its sums pass through
/// the cache each time.
fn transformed_images(tiling: &Tiling, batch: usize) -> usize {
    let sums = tiling.sums_len();
    let images = if most_groups(sums) == 1 { 4 * tiling.together() } else { tiling.together() };
    images.min(group(sums, batch))
}

/// Memory that the convolutions of a network use in turn.
#[derive(Debug)]
pub(crate) struct ConvWorkspace {
    weights: Vec<F32x16>,
    sums: Vec<F32x16>,
    /// Points that threads share: of inputs and gradients for the weight gradient, of inputs and results for deep layers.
    transformed: Vec<F32x16>,
    /// One for each thread.
    tile_buffers: Vec<Mutex<Vec<F32x16>>>,
}

impl ConvWorkspace {
    /// The vectors that each field needs for these convolutions; the last are those of one thread.
    fn lengths<'a>(
        convolutions: impl Iterator<Item = (&'a ConvGeometry, &'a ConvAlgorithm)>,
        batch: usize,
    ) -> [usize; 4] {
        let (mut weights, mut sums, mut transformed, mut buffer) = (0, 0, 0, 0);
        for (geometry, algorithm) in convolutions {
            let size = algorithm.sums(geometry);
            let groups = batch.div_ceil(group(size, batch));
            weights = weights.max(algorithm.weights(geometry, batch));
            sums = sums.max(groups * size);
            let ConvAlgorithm::Winograd(tiling) = algorithm else { continue };
            for tiling in [*tiling, tiling.backward()] {
                if tiling.is_deep(batch) {
                    transformed = transformed.max(tiling.points_len(batch));
                    buffer = buffer.max(tiling.kernel_len() / tiling.to.blocks());
                } else {
                    buffer = buffer.max(tiling.buffer_len(tiling.together().min(batch)));
                }
            }
            if shares(size) {
                let lines = tiling.gradient_len(transformed_images(tiling, batch));
                transformed = transformed.max(groups * lines);
            } else {
                buffer = buffer.max(tiling.gradient_buffer_len());
            }
        }
        [weights, sums, transformed, buffer]
    }

    /// The bytes that [`ConvWorkspace::new`] would allocate.
    pub(crate) fn bytes_for<'a>(
        convolutions: impl Iterator<Item = (&'a ConvGeometry, &'a ConvAlgorithm)>,
        batch: usize,
        threads: usize,
    ) -> usize {
        let [weights, sums, transformed, buffer] = ConvWorkspace::lengths(convolutions, batch);
        size_of::<F32x16>() * (weights + sums + transformed + threads * buffer)
    }

    /// Large enough for each of these convolutions.
    pub(crate) fn new<'a>(
        convolutions: impl Iterator<Item = (&'a ConvGeometry, &'a ConvAlgorithm)>,
        batch: usize,
        threads: usize,
    ) -> Self {
        let [weights, sums, transformed, buffer] = ConvWorkspace::lengths(convolutions, batch);
        ConvWorkspace {
            weights: zeros(weights),
            sums: zeros(sums),
            transformed: zeros(transformed),
            tile_buffers: (0..threads).map(|_| Mutex::new(zeros(buffer))).collect(),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        let len = |buffer: &Mutex<Vec<F32x16>>| buffer.lock().unwrap_or_else(PoisonError::into_inner).len();
        let buffers: usize = self.tile_buffers.iter().map(len).sum();
        size_of::<F32x16>() * (self.weights.len() + self.sums.len() + self.transformed.len() + buffers)
    }
}

/// A convolution with its weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Convolution<'a> {
    pub(crate) isa: Isa,
    pub(crate) geometry: &'a ConvGeometry,
    pub(crate) algorithm: &'a ConvAlgorithm,
    pub(crate) weights: &'a [f32],
}

impl Convolution<'_> {
    /// y = weights ∗ x, added to y if `add`. Then calls `after` with each image of y and its element of `parts`.
    pub(crate) fn forward<P: Send>(
        self,
        workspace: &mut ConvWorkspace,
        x: Images<'_>,
        y: (&mut [F32x16], bool),
        parts: &mut [P],
        after: impl Fn(&mut [F32x16], &mut P) + Sync,
    ) {
        self.run(workspace, false, x, y, parts, |_, y, part| after(y, part));
    }

    /// The gradient of the input from that of the output, added to dx if `add`.
    pub(crate) fn backward(self, workspace: &mut ConvWorkspace, dy: &[F32x16], dx: &mut [F32x16], add: bool) {
        let batch = dy.len() / self.geometry.to.image();
        self.run(workspace, true, Images::Ready(dy), (dx, add), &mut vec![(); batch], |_, _, ()| ());
    }

    /// The weights as a pass in one of the directions reads them.
    fn pack(self, is_backward: bool, packed: &mut [F32x16]) -> &[F32x16] {
        let Convolution { isa, geometry, algorithm, weights } = self;
        match algorithm {
            ConvAlgorithm::Direct { .. } => {
                let packed = &mut packed[..geometry.weights()];
                let to = if is_backward { &geometry.from } else { &geometry.to };
                let pack = if is_backward { direct::pack_backward } else { direct::pack };
                by_block(packed, packed.len() / to.blocks(), |block, out| {
                    pack(geometry, weights, block, out)
                });
                packed
            }
            ConvAlgorithm::Winograd(tiling) => {
                let tiling = if is_backward { tiling.backward() } else { *tiling };
                let packed = &mut packed[..tiling.kernel_len()];
                by_block(packed, packed.len() / tiling.to.blocks(), |block, out| {
                    winograd::transform_kernel(isa, &tiling, weights, is_backward, block, out)
                });
                packed
            }
        }
    }

    /// Either direction: y from x, or the gradient of the input from that of the output. Then calls `after` with the number of
    /// each image, its y, and its element of `parts`.
    fn run<P: Send>(
        self,
        workspace: &mut ConvWorkspace,
        is_backward: bool,
        x: Images<'_>,
        (y, add): (&mut [F32x16], bool),
        parts: &mut [P],
        after: impl Fn(usize, &mut [F32x16], &mut P) + Sync,
    ) {
        let Convolution { isa, algorithm, weights, .. } = self;
        let ConvWorkspace { weights: packed, tile_buffers, transformed, .. } = workspace;
        let tiling = &match algorithm {
            ConvAlgorithm::Direct { forward, backward } => {
                let path = if is_backward { backward } else { forward };
                let (packed, sizes) = (self.pack(is_backward, packed), [path.from.image(), path.to.image()]);
                return by_images(sizes, 1, (x, y), parts, after, |x, y| {
                    direct::run(isa, path, x, packed, y, add);
                });
            }
            ConvAlgorithm::Winograd(tiling) if is_backward => tiling.backward(),
            ConvAlgorithm::Winograd(tiling) => *tiling,
        };
        let sizes = [tiling.from.image(), tiling.to.image()];
        let batch = y.len() / tiling.to.image();
        if tiling.is_deep(batch) {
            let (x, size) = (x.all(sizes, y), tiling.kernel_len() / tiling.to.blocks());
            let lines = tiling.apart(batch) * tiling.points();
            let (inputs, products) = transformed.split_at_mut(lines * tiling.from.blocks());
            by_block(inputs, lines, |block, inputs| {
                winograd::transform_inputs(isa, tiling, x, block, inputs)
            });
            let (inputs, products) = (&*inputs, &mut products[..lines * tiling.to.blocks()]);
            by_block(products, lines, |block, products| {
                with_tile_buffer(tile_buffers, |buffer| {
                    let kernel = &mut buffer[..size];
                    winograd::transform_kernel(isa, tiling, weights, is_backward, block, kernel);
                    winograd::multiply_points(isa, tiling, batch, inputs, kernel, products);
                });
            });
            let products = &*products;
            let images = y.par_chunks_exact_mut(tiling.to.image()).zip(parts).enumerate();
            images.for_each(|(image, (y, part))| {
                winograd::outputs(isa, tiling, products, image, y, add);
                after(image, y, part);
            });
            return;
        }
        let packed = self.pack(is_backward, packed);
        let together = tiling.images_at_once(batch, rayon::current_num_threads());
        by_images(sizes, together, (x, y), parts, after, |x, y| {
            with_tile_buffer(tile_buffers, |buffer| winograd::run(isa, tiling, x, packed, y, add, buffer));
        });
    }

    /// Adds the gradient of the weights, and computes that of the input, added to dx if the flag says so. Then calls `after` as
    /// [`Convolution::run`] does. Returns the gradient of the output, which is complete unless it is transient.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn gradients<'a, P: Send>(
        self,
        workspace: &mut ConvWorkspace,
        x: &[F32x16],
        mut dy: Images<'a>,
        dx: Option<(&mut [F32x16], bool)>,
        parts: &mut [P],
        after: impl Fn(usize, &mut [F32x16], &mut P) + Sync,
        gradient: &mut [f32],
    ) -> &'a [F32x16] {
        let Convolution { isa, geometry, algorithm, .. } = self;
        let sizes @ [to, from] = [geometry.to.image(), geometry.from.image()];
        let size = algorithm.sums(geometry);
        let Some((dx, add)) = dx else {
            let dy = dy.all(sizes, &[]);
            self.gradient(workspace, x, dy, gradient);
            return dy;
        };
        let batch = x.len() / from;
        let images = group(size, batch);
        let count = batch.div_ceil(images);
        if shares(size) || !keeps_busy(count, rayon::current_num_threads()) {
            self.run(workspace, true, dy.reborrow(), (dx, add), parts, after);
            let dy = dy.memory();
            self.gradient(workspace, x, dy, gradient);
            return dy;
        }
        // A kernel whose threads do not share a group is small: its layer is not deep.
        let at_once = match algorithm {
            ConvAlgorithm::Direct { .. } => 1,
            ConvAlgorithm::Winograd(tiling) => tiling.backward().images_at_once(batch, 1).min(images),
        };
        let ConvWorkspace { weights: packed, sums, tile_buffers, .. } = workspace;
        let packed = self.pack(true, packed);
        let sums = &mut sums[..count * size];
        let groups = sums.par_chunks_exact_mut(size).enumerate();
        let groups = groups.zip(x.par_chunks(images * from).zip(dy.reborrow().par_chunks(images * to)));
        let results = dx.par_chunks_mut(images * from).zip(parts.par_chunks_mut(images));
        groups.zip(results).for_each(|(((group, sums), (x, mut dy)), (dx, parts))| {
            let items = x.chunks(at_once * from).zip(dx.chunks_mut(at_once * from));
            for (item, ((x, dx), parts)) in items.zip(parts.chunks_mut(at_once)).enumerate() {
                let number = group * images + item * at_once;
                let dy = dy.part(item * at_once * to, parts.len() * to).here(number, sizes, dx);
                match algorithm {
                    ConvAlgorithm::Direct { backward, .. } => {
                        direct::run(isa, backward, dy, packed, dx, add);
                        direct_gradient(isa, geometry, x, dy, item == 0, false, sums);
                    }
                    ConvAlgorithm::Winograd(tiling) => with_tile_buffer(tile_buffers, |buffer| {
                        winograd::run(isa, &tiling.backward(), dy, packed, dx, add, buffer);
                        let buffer = &mut buffer[..tiling.gradient_buffer_len()];
                        winograd::gradient(isa, tiling, x, dy, item == 0, buffer, sums);
                    }),
                }
                let results = dx.chunks_exact_mut(from).zip(parts).enumerate();
                results.for_each(|(image, (dx, part))| after(number + image, dx, part));
            }
        });
        self.add_sums(sums, gradient);
        dy.memory()
    }

    /// Adds the gradient of the weights.
    pub(crate) fn gradient(
        self,
        workspace: &mut ConvWorkspace,
        x: &[F32x16],
        dy: &[F32x16],
        gradient: &mut [f32],
    ) {
        let Convolution { isa, geometry, algorithm, .. } = self;
        let batch = dy.len() / geometry.to.image();
        let size = algorithm.sums(geometry);
        let images = group(size, batch);
        let count = batch.div_ceil(images);
        let ConvWorkspace { sums, transformed, tile_buffers, .. } = workspace;
        let sums = &mut sums[..count * size];
        let (from, to) = (geometry.from.image(), geometry.to.image());
        let parts = x.par_chunks(images * from).zip(dy.par_chunks(images * to));
        let parts = sums.par_chunks_exact_mut(size).zip(parts);
        match algorithm {
            ConvAlgorithm::Direct { .. } => {
                parts.for_each(|(sums, (x, dy))| direct_gradient(isa, geometry, x, dy, true, true, sums));
            }
            ConvAlgorithm::Winograd(tiling) if shares(size) => {
                let at_once = transformed_images(tiling, batch);
                let lines = tiling.gradient_len(at_once);
                assert!(transformed.len() >= count * lines, "every group has its memory");
                parts.zip(transformed.par_chunks_exact_mut(lines)).for_each(|((sums, (x, dy)), buffer)| {
                    shared_gradient(isa, tiling, x, dy, at_once, buffer, sums);
                });
            }
            ConvAlgorithm::Winograd(tiling) => parts.for_each(|(sums, (x, dy))| {
                with_tile_buffer(tile_buffers, |buffer| {
                    let buffer = &mut buffer[..tiling.gradient_buffer_len()];
                    winograd::gradient(isa, tiling, x, dy, true, buffer, sums);
                });
            }),
        }
        self.add_sums(sums, gradient);
    }

    /// Adds the sums of all groups to the gradient of the weights.
    fn add_sums(self, sums: &mut [F32x16], gradient: &mut [f32]) {
        let Convolution { isa, geometry, algorithm, .. } = self;
        let size = algorithm.sums(geometry);
        // The groups are added in order.
        let (sums, others) = sums.split_at_mut(size);
        if !others.is_empty() {
            by_block(sums, 64, |chunk, sums| {
                for other in others.chunks_exact(size) {
                    winograd::add(isa, &other[chunk * 64..][..sums.len()], sums);
                }
            });
        }
        let a_block = WIDTH * geometry.from.shape.channels * geometry.places();
        let sums = &*sums;
        gradient.par_chunks_mut(a_block).enumerate().for_each(|(block, gradient)| match algorithm {
            ConvAlgorithm::Direct { .. } => direct::unpack_add(geometry, sums, block, gradient),
            ConvAlgorithm::Winograd(tiling) => winograd::fold(isa, tiling, sums, block, gradient),
        });
    }
}

/// Adds the contribution of some images to the sums of a group, one kernel position after the other; stores it if `first`. All
/// threads share the work if `shared`.
fn direct_gradient(
    isa: Isa,
    geometry: &ConvGeometry,
    x: &[F32x16],
    dy: &[F32x16],
    first: bool,
    shared: bool,
    sums: &mut [F32x16],
) {
    let (from, to) = (geometry.from.image(), geometry.to.image());
    by_each(sums, geometry.weights() / geometry.to.blocks(), shared, |(out, sums)| {
        if first {
            sums.fill(F32x16::ZERO);
        }
        let images = x.chunks_exact(from).zip(dy.chunks_exact(to));
        images.for_each(|(x, dy)| direct::weight_gradient(isa, geometry, out, x, dy, sums));
    });
}

/// The gradient of the transformed kernel over a group of images, `at_once` images at a time. All threads share the work.
fn shared_gradient(
    isa: Isa,
    tiling: &Tiling,
    x: &[F32x16],
    dy: &[F32x16],
    at_once: usize,
    buffer: &mut [F32x16],
    sums: &mut [F32x16],
) {
    let ([from, to], together) = ([tiling.from.image(), tiling.to.image()], tiling.together());
    let pairs = x.chunks(at_once * from).zip(dy.chunks(at_once * to));
    for (index, (x, dy)) in pairs.enumerate() {
        let images = x.len() / from;
        let buffer = &mut buffer[..tiling.gradient_len(images)];
        by_block(buffer, tiling.points_len(together), |part, out| {
            // The last images may be fewer.
            let count = together.min(images - part * together);
            let (x, dy) =
                (&x[part * together * from..][..count * from], &dy[part * together * to..][..count * to]);
            by_block(out, tiling.apart(count) * tiling.points(), |block, out| {
                match block.checked_sub(tiling.from.blocks()) {
                    None => winograd::transform_inputs(isa, tiling, x, block, out),
                    Some(block) => winograd::transform_gradients(isa, tiling, dy, block, out),
                }
            });
        });
        let buffer = &*buffer;
        by_block(sums, tiling.from.blocks() * WIDTH, |part, sums| {
            let at = [part / tiling.to.blocks(), part % tiling.to.blocks()];
            winograd::accumulate(isa, tiling, buffer, images, at, index == 0, sums);
        });
    }
}

/// Calls `work` with items of images: `together` images of x and y at a time. Then `after` with every image of y.
fn by_images<P: Send>(
    [from, to]: [usize; 2],
    together: usize,
    (x, y): (Images<'_>, &mut [F32x16]),
    parts: &mut [P],
    after: impl Fn(usize, &mut [F32x16], &mut P) + Sync,
    work: impl Fn(&[F32x16], &mut [F32x16]) + Sync,
) {
    let items = y.par_chunks_mut(together * to).zip(x.par_chunks(together * from));
    items.zip(parts.par_chunks_mut(together)).enumerate().for_each(|(item, ((y, x), parts))| {
        work(x.here(item * together, [from, to], y), y);
        let images = y.chunks_exact_mut(to).zip(parts).enumerate();
        images.for_each(|(image, (y, part))| after(item * together + image, y, part));
    });
}

fn by_block(lines: &mut [F32x16], size: usize, each: impl Fn(usize, &mut [F32x16]) + Sync + Send) {
    by_each(lines, size, true, |(block, lines)| each(block, lines));
}

/// Calls `each` with parts of this size, and what remains, on all threads if `shared`.
fn by_each(
    lines: &mut [F32x16],
    size: usize,
    shared: bool,
    each: impl Fn((usize, &mut [F32x16])) + Sync + Send,
) {
    if shared {
        lines.par_chunks_mut(size).enumerate().for_each(each);
    } else {
        lines.chunks_mut(size).enumerate().for_each(each);
    }
}

/// Calls `work` with the buffer of this thread. The lock is never contended: a thread computes one item at a time.
fn with_tile_buffer(buffers: &[Mutex<Vec<F32x16>>], work: impl FnOnce(&mut [F32x16])) {
    let buffer = &buffers[rayon::current_thread_index().unwrap_or(0) % buffers.len()];
    work(&mut buffer.lock().unwrap_or_else(PoisonError::into_inner));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::block::Blocked;
    use crate::cpu::simd::every_isa;
    use crate::{Conv, Shape, op};
    use grawa_core::{Key, Purpose};

    /// Whole batches with every instruction set, against the plain path in f64: tiles that fit, tiles cut off at the edge,
    /// channels that do not fill a block, batches that do not fill a panel, and both algorithms in one workspace.
    #[test]
    fn both_algorithms_agree_with_the_plain_path() {
        let cases = [
            (16, 16, 32, 32, 3, 1),
            (64, 48, 8, 8, 3, 9),
            (16, 32, 4, 4, 3, 21),
            (40, 24, 2, 2, 3, 37),
            (9, 21, 7, 7, 3, 5),
            (20, 18, 5, 14, 3, 3),
            (8, 8, 3, 2, 3, 6),
            (8, 9, 28, 6, 3, 2),
            (256, 272, 4, 4, 3, 3),
            (272, 256, 2, 2, 3, 3),
            (64, 48, 16, 16, 3, 37),
            (5, 24, 9, 9, 3, 5),
            (17, 18, 6, 6, 1, 5),
            (32, 32, 14, 14, 3, 20),
            // Groups of three images, and one of one.
            (16, 16, 9, 9, 3, 70),
            (17, 18, 6, 6, 1, 70),
        ];
        let conv = |outs, kernel| Conv { out: outs, kernel, stride: 1, pad: kernel / 2, bias: false };
        for isa in every_isa() {
            let geometry =
                |&(ins, outs, height, width, kernel, _): &(usize, usize, usize, usize, usize, usize)| {
                    let place =
                        |channels| Blocked { shape: Shape { channels, height, width }, border: kernel / 2 };
                    ConvGeometry { from: place(ins), to: place(outs), kernel, stride: 1, pad: kernel / 2 }
                };
            let geometries: Vec<(ConvGeometry, ConvAlgorithm)> =
                cases.iter().map(geometry).map(|geometry| (geometry, ConvAlgorithm::of(&geometry))).collect();
            let mut workspace = ConvWorkspace::new(
                geometries.iter().map(|(geometry, algorithm)| (geometry, algorithm)),
                70,
                2,
            );
            for (case, ((geometry, algorithm), &(ins, outs, _, _, kernel, batch))) in
                geometries.iter().zip(&cases).enumerate()
            {
                assert_eq!(matches!(algorithm, ConvAlgorithm::Winograd(_)), kernel == 3 && ins >= 8);
                let (from, to) = (geometry.from.shape, geometry.to.shape);
                let mut draws = Key::new(case as u64, Purpose::Problem).stream();
                let mut some = |len: usize| (0..len).map(|_| draws.normal() as f32).collect::<Vec<f32>>();
                let (x, w) = (some(batch * from.len()), some(outs * ins * kernel * kernel));
                let dy = some(batch * to.len());
                let wide = |v: &[f32]| v.iter().map(|&v| f64::from(v)).collect::<Vec<f64>>();
                let (mut y, mut dx, mut dw) = (vec![0.0; dy.len()], vec![0.0; x.len()], vec![0.0; w.len()]);
                for image in 0..batch {
                    let part = |v: &[f32], len: usize| wide(&v[image * len..][..len]);
                    let (x, dy, w) = (part(&x, from.len()), part(&dy, to.len()), wide(&w));
                    let y = &mut y[image * to.len()..][..to.len()];
                    op::conv::forward(&conv(outs, kernel), (from, to), &x, &w, None, y);
                    let dx = &mut dx[image * from.len()..][..from.len()];
                    let into = op::conv::Gradients { x: Some(dx), weight: &mut dw, bias: None };
                    op::conv::backward(&conv(outs, kernel), (from, to), &x, &w, &dy, into);
                }

                let pack = |place: &Blocked, plain: &[f32]| {
                    let mut lines = vec![F32x16::ZERO; batch * place.image()];
                    let images = lines.chunks_exact_mut(place.image());
                    images
                        .zip(plain.chunks_exact(place.shape.len()))
                        .for_each(|(to, from)| place.pack(from, to));
                    lines
                };
                let unpack = |place: &Blocked, lines: &[F32x16]| {
                    let mut plain = vec![0.0; batch * place.shape.len()];
                    let images = lines.chunks_exact(place.image());
                    images
                        .zip(plain.chunks_exact_mut(place.shape.len()))
                        .for_each(|(from, to)| place.unpack(from, to));
                    let zeros = lines.iter().flat_map(|line| line.0).filter(|&x| x == 0.0).count();
                    assert_eq!(
                        zeros,
                        lines.len() * WIDTH - plain.len(),
                        "{isa:?} {case}: border and lanes stay zero"
                    );
                    plain
                };
                let (bx, bdy) = (pack(&geometry.from, &x), pack(&geometry.to, &dy));
                let mut by = vec![F32x16::ZERO; batch * geometry.to.image()];
                let mut seen = vec![0; batch];
                let convolution = Convolution { isa, geometry, algorithm, weights: &w };
                let ready = Images::Ready(&bx);
                convolution.forward(&mut workspace, ready, (&mut by, false), &mut seen, |_, seen| *seen += 1);
                assert_eq!(seen, vec![1; batch]);
                close(&unpack(&geometry.to, &by), &y, &format!("{isa:?} forward {case}"));

                // Twice: stored, then added to what is there.
                let mut bdx = vec![F32x16::ZERO; batch * geometry.from.image()];
                convolution.backward(&mut workspace, &bdy, &mut bdx, false);
                let mut seen = vec![0; batch];
                let after = |image: usize, _: &mut [F32x16], seen: &mut usize| *seen += image + 1;
                let mut dy = vec![F32x16::ZERO; bdy.len()];
                let make = |image: usize, dy: &mut [F32x16], _: &[F32x16]| {
                    dy.copy_from_slice(&bdy[image * geometry.to.image()..][..geometry.to.image()]);
                };
                let mut found = vec![0.0; w.len()];
                let (lazy, into) = (Images::Lazy(&mut dy, &make), Some((&mut bdx[..], true)));
                convolution.gradients(&mut workspace, &bx, lazy, into, &mut seen, after, &mut found);
                assert_eq!(dy, bdy);
                close(&found, &dw, &format!("{isa:?} weights with the input's {case}"));
                assert_eq!(seen, (1..=batch).collect::<Vec<_>>());
                let (mut again, mut other) = (vec![0.0; w.len()], vec![F32x16::ZERO; bdx.len()]);
                let (lazy, into) = (Images::Transient(&mut dy, &make), Some((&mut other[..], false)));
                convolution.gradients(&mut workspace, &bx, lazy, into, &mut seen, after, &mut again);
                assert_eq!(found, again, "{isa:?} {case}: transient images give other bits");
                let double: Vec<f64> = dx.iter().map(|dx| 2.0 * dx).collect();
                close(&unpack(&geometry.from, &bdx), &double, &format!("{isa:?} input {case}"));

                let mut found = vec![0.0; w.len()];
                convolution.gradient(&mut workspace, &bx, &bdy, &mut found);
                close(&found, &dw, &format!("{isa:?} weights {case}"));
            }
        }
    }

    fn close(found: &[f32], expected: &[f64], what: &str) {
        let size = expected.iter().map(|x| x * x).sum::<f64>().sqrt();
        let gap = found.iter().zip(expected).map(|(&a, b)| (f64::from(a) - b).powi(2)).sum::<f64>().sqrt();
        assert!(gap <= 2e-6 * size, "{what}: off by {:.2e}", gap / size);
    }
}

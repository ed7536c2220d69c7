//! A convolution of a whole batch on all threads: its algorithm and its workspace.
//!
//! Images are divided among threads in items with separate results. Weight gradients are summed over groups of images, and
//! then over the groups in order. The shape alone determines the groups.

use super::conv_geometry::{ConvGeometry, ConvPath};
use super::direct;
use super::memory::zeros;
use super::simd::{F32x16, Isa, WIDTH};
use super::winograd::{self, Tiling};
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
    fn weights(&self, geometry: &ConvGeometry) -> usize {
        match self {
            ConvAlgorithm::Direct { .. } => geometry.weights(),
            ConvAlgorithm::Winograd(tiling) => tiling.kernel_len().max(tiling.backward().kernel_len()),
        }
    }

    /// Vectors of the weights' gradient, for one group of images.
    fn sums(&self, geometry: &ConvGeometry) -> usize {
        match self {
            ConvAlgorithm::Direct { .. } => geometry.weights(),
            ConvAlgorithm::Winograd(tiling) => tiling.sums_len(),
        }
    }

    /// Images that a thread processes at a time: enough for the algorithm, with work for every thread.
    fn together(&self, batch: usize, threads: usize) -> usize {
        match self {
            ConvAlgorithm::Direct { .. } => 1,
            ConvAlgorithm::Winograd(tiling) => tiling.together().min(batch.div_ceil(threads)),
        }
    }
}

/// The number of image groups for weight gradients: enough for all threads, and one where there are many weights. It depends
/// on the shape alone, so the bits do not depend on the number of threads.
fn groups(sums: usize, batch: usize) -> usize {
    if sums * size_of::<F32x16>() <= 1 << 20 { batch.min(4) } else { 1 }
}

/// Images of a group transformed together for the weight gradient. A single group takes more: all of its sums pass through
/// the cache each time.
fn transformed_together(tiling: &Tiling, groups: usize) -> usize {
    if groups == 1 { 4 * tiling.together() } else { tiling.together() }
}

/// Memory that the convolutions of a network use in turn.
#[derive(Debug)]
pub(crate) struct ConvWorkspace {
    weights: Vec<F32x16>,
    sums: Vec<F32x16>,
    /// Inputs and gradients transformed for the weight gradient.
    transformed: Vec<F32x16>,
    /// One for each thread.
    tile_buffers: Vec<Mutex<Vec<F32x16>>>,
}

impl ConvWorkspace {
    /// Large enough for each of these convolutions.
    pub(crate) fn new<'a>(
        convolutions: impl Iterator<Item = (&'a ConvGeometry, &'a ConvAlgorithm)>,
        batch: usize,
        threads: usize,
    ) -> Self {
        let (mut weights, mut sums, mut transformed, mut buffer) = (0, 0, 0, 0);
        for (geometry, algorithm) in convolutions {
            let groups = groups(algorithm.sums(geometry), batch);
            weights = weights.max(algorithm.weights(geometry));
            sums = sums.max(groups * algorithm.sums(geometry));
            if let ConvAlgorithm::Winograd(tiling) = algorithm {
                let images = tiling.together().min(batch);
                buffer = buffer.max(tiling.buffer_len(images)).max(tiling.backward().buffer_len(images));
                let images = transformed_together(tiling, groups).min(batch.div_ceil(groups));
                transformed = transformed.max(groups * tiling.gradient_buffer_len(images));
            }
        }
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
        x: &[F32x16],
        (y, add): (&mut [F32x16], bool),
        parts: &mut [P],
        after: impl Fn(&mut [F32x16], &mut P) + Sync,
    ) {
        let Convolution { isa, geometry, algorithm, weights } = self;
        let batch = y.len() / geometry.to.image();
        let together = algorithm.together(batch, rayon::current_num_threads());
        let ConvWorkspace { weights: packed, tile_buffers, .. } = workspace;
        let packed = match algorithm {
            ConvAlgorithm::Direct { .. } => {
                let packed = &mut packed[..geometry.weights()];
                let size = geometry.weights() / geometry.to.blocks();
                by_block(packed, size, |block, out| direct::pack(geometry, weights, block, out));
                packed
            }
            ConvAlgorithm::Winograd(tiling) => pack_winograd(isa, tiling, weights, false, packed),
        };
        let items = y
            .par_chunks_mut(together * geometry.to.image())
            .zip(x.par_chunks(together * geometry.from.image()));
        items.zip(parts.par_chunks_mut(together)).for_each(|((y, x), parts)| {
            match algorithm {
                ConvAlgorithm::Direct { forward, .. } => direct::run(isa, forward, x, packed, y, add),
                ConvAlgorithm::Winograd(tiling) => with_tile_buffer(tile_buffers, |buffer| {
                    winograd::run(isa, tiling, x, packed, y, add, buffer)
                }),
            }
            y.chunks_exact_mut(geometry.to.image()).zip(parts).for_each(|(y, part)| after(y, part));
        });
    }

    /// The gradient of the input from that of the output, added to dx if `add`.
    pub(crate) fn backward(self, workspace: &mut ConvWorkspace, dy: &[F32x16], dx: &mut [F32x16], add: bool) {
        let Convolution { isa, geometry, algorithm, weights } = self;
        let batch = dy.len() / geometry.to.image();
        let together = algorithm.together(batch, rayon::current_num_threads());
        let ConvWorkspace { weights: packed, tile_buffers, .. } = workspace;
        let items = dx
            .par_chunks_mut(together * geometry.from.image())
            .zip(dy.par_chunks(together * geometry.to.image()));
        match algorithm {
            ConvAlgorithm::Direct { backward, .. } => {
                let packed = &mut packed[..geometry.weights()];
                let size = geometry.weights() / geometry.from.blocks();
                by_block(packed, size, |block, out| direct::pack_backward(geometry, weights, block, out));
                let packed = &*packed;
                items.for_each(|(dx, dy)| direct::run(isa, backward, dy, packed, dx, add));
            }
            ConvAlgorithm::Winograd(tiling) => {
                let tiling = tiling.backward();
                let packed = &*pack_winograd(isa, &tiling, weights, true, packed);
                items.for_each(|(dx, dy)| {
                    with_tile_buffer(tile_buffers, |buffer| {
                        winograd::run(isa, &tiling, dy, packed, dx, add, buffer)
                    })
                });
            }
        }
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
        let images = batch.div_ceil(groups(size, batch));
        let count = batch.div_ceil(images);
        let sums = &mut workspace.sums[..count * size];
        let (from, to) = (geometry.from.image(), geometry.to.image());
        let parts = x.par_chunks(images * from).zip(dy.par_chunks(images * to));
        let block = size / geometry.to.blocks();
        match algorithm {
            ConvAlgorithm::Direct { .. } => {
                sums.par_chunks_exact_mut(size).zip(parts).for_each(|(sums, (x, dy))| {
                    by_block(sums, block, |out, sums| {
                        sums.fill(F32x16::ZERO);
                        let images = x.chunks_exact(from).zip(dy.chunks_exact(to));
                        images.for_each(|(x, dy)| direct::weight_gradient(isa, geometry, out, x, dy, sums));
                    });
                })
            }
            ConvAlgorithm::Winograd(tiling) => {
                let together = transformed_together(tiling, count).min(images);
                let buffers =
                    workspace.transformed.par_chunks_exact_mut(tiling.gradient_buffer_len(together));
                sums.par_chunks_exact_mut(size).zip(parts).zip(buffers).for_each(
                    |((sums, (x, dy)), buffer)| {
                        sums.fill(F32x16::ZERO);
                        for (x, dy) in x.chunks(together * from).zip(dy.chunks(together * to)) {
                            let tiles = x.len() / from * tiling.tiles();
                            let lines = tiles * tiling.points();
                            let (inputs, rest) = buffer.split_at_mut(lines * geometry.from.blocks());
                            let flows = &mut rest[..lines * geometry.to.blocks()];
                            by_block(inputs, lines, |block, inputs| {
                                winograd::transform_inputs(isa, tiling, x, block, inputs)
                            });
                            by_block(flows, lines, |block, flows| {
                                winograd::transform_gradients(isa, tiling, dy, block, flows)
                            });
                            let (inputs, flows) = (&*inputs, &*flows);
                            by_block(sums, block, |out, sums| {
                                let flows = &flows[out * lines..][..lines];
                                winograd::accumulate(isa, tiling, tiles, inputs, flows, sums)
                            });
                        }
                    },
                );
            }
        }
        let a_block = WIDTH * geometry.from.shape.channels * geometry.places();
        let sums = &*sums;
        gradient.par_chunks_mut(a_block).enumerate().for_each(|(block, gradient)| match algorithm {
            ConvAlgorithm::Direct { .. } => direct::unpack_add(geometry, sums, block, gradient),
            ConvAlgorithm::Winograd(tiling) => winograd::fold(isa, tiling, sums, block, gradient),
        });
    }
}

fn by_block(lines: &mut [F32x16], size: usize, each: impl Fn(usize, &mut [F32x16]) + Sync + Send) {
    lines.par_chunks_exact_mut(size).enumerate().for_each(|(block, lines)| each(block, lines));
}

fn pack_winograd<'a>(
    isa: Isa,
    tiling: &Tiling,
    weights: &[f32],
    flipped: bool,
    packed: &'a mut [F32x16],
) -> &'a mut [F32x16] {
    let packed = &mut packed[..tiling.kernel_len()];
    by_block(packed, tiling.kernel_len() / tiling.to.blocks(), |block, out| {
        winograd::transform_kernel(isa, tiling, weights, flipped, block, out)
    });
    packed
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
            (5, 24, 9, 9, 3, 5),
            (17, 18, 6, 6, 1, 5),
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
                37,
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
                convolution.forward(&mut workspace, &bx, (&mut by, false), &mut seen, |_, seen| *seen += 1);
                assert_eq!(seen, vec![1; batch]);
                close(&unpack(&geometry.to, &by), &y, &format!("{isa:?} forward {case}"));

                // Twice: stored, then added to what is there.
                let mut bdx = vec![F32x16::ZERO; batch * geometry.from.image()];
                convolution.backward(&mut workspace, &bdy, &mut bdx, false);
                convolution.backward(&mut workspace, &bdy, &mut bdx, true);
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

//! A convolution of a whole batch, on all threads: which way it goes, and the memory it works in.
//!
//! Images are shared out among threads in items that do not touch each other's results. Gradients of weights are summed in
//! groups of images that the shape alone decides, and the groups in their order.

use super::conv;
use super::lanes::{Line, Machine, WIDTH};
use super::memory::zeros;
use super::route::{Route, Walk};
use super::winograd::{self, Tiling};
use rayon::prelude::*;
use std::sync::{Mutex, PoisonError};

/// How a convolution is computed.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    /// Kernel place by kernel place, there and back.
    Direct { forth: Route, back: Route },
    /// In tiles seen at a few points.
    Tiles(Tiling),
}

impl Way {
    /// The cheaper one.
    pub(crate) fn of(walk: &Walk) -> Self {
        match Tiling::of(walk) {
            Some(tiling) => Way::Tiles(tiling),
            None => Way::Direct { forth: walk.forth(), back: walk.back() },
        }
    }

    /// Lines of the weights as the way needs them, there or back.
    fn weights(&self, walk: &Walk) -> usize {
        match self {
            Way::Direct { .. } => walk.weights(),
            Way::Tiles(tiling) => tiling.kernel().max(tiling.back().kernel()),
        }
    }

    /// Lines of the weights' gradient, for one group of images.
    fn sums(&self, walk: &Walk) -> usize {
        match self {
            Way::Direct { .. } => walk.weights(),
            Way::Tiles(tiling) => tiling.sums(),
        }
    }

    /// Images that one thread takes at a time: enough for the way, and something for every thread.
    fn together(&self, batch: usize, threads: usize) -> usize {
        match self {
            Way::Direct { .. } => 1,
            Way::Tiles(tiling) => tiling.together().min(batch.div_ceil(threads)),
        }
    }
}

/// Weight gradients are summed in as many groups of images: enough for all threads, fixed by the shape alone so that the
/// bits do not depend on their number, and few where the weights are many.
fn groups(sums: usize, batch: usize) -> usize {
    if sums * size_of::<Line>() <= 1 << 20 { batch.min(4) } else { 1 }
}

/// Images of a group that are seen together for the gradient of the weights. A group that has all the sums to itself takes
/// many: each time, all of the sums go through the cache.
fn seen_together(tiling: &Tiling, groups: usize) -> usize {
    if groups == 1 { 4 * tiling.together() } else { tiling.together() }
}

/// Memory that all convolutions of a network use in turn.
#[derive(Debug)]
pub(crate) struct Bench {
    weights: Vec<Line>,
    sums: Vec<Line>,
    /// What is seen for the gradient of the weights.
    seen: Vec<Line>,
    /// One for each thread.
    rooms: Vec<Mutex<Vec<Line>>>,
}

impl Bench {
    /// Enough for each of these convolutions.
    pub(crate) fn new<'a>(
        convolutions: impl Iterator<Item = (&'a Walk, &'a Way)>,
        batch: usize,
        threads: usize,
    ) -> Self {
        let (mut weights, mut sums, mut seen, mut room) = (0, 0, 0, 0);
        for (walk, way) in convolutions {
            let groups = groups(way.sums(walk), batch);
            weights = weights.max(way.weights(walk));
            sums = sums.max(groups * way.sums(walk));
            if let Way::Tiles(tiling) = way {
                let images = tiling.together().min(batch);
                room = room.max(tiling.room(images)).max(tiling.back().room(images));
                let images = seen_together(tiling, groups).min(batch.div_ceil(groups));
                seen = seen.max(groups * tiling.seen(images));
            }
        }
        Bench {
            weights: zeros(weights),
            sums: zeros(sums),
            seen: zeros(seen),
            rooms: (0..threads).map(|_| Mutex::new(zeros(room))).collect(),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        let room = |room: &Mutex<Vec<Line>>| room.lock().unwrap_or_else(PoisonError::into_inner).len();
        let rooms: usize = self.rooms.iter().map(room).sum();
        size_of::<Line>() * (self.weights.len() + self.sums.len() + self.seen.len() + rooms)
    }
}

/// A convolution with its weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Convolution<'a> {
    pub(crate) machine: Machine,
    pub(crate) walk: &'a Walk,
    pub(crate) way: &'a Way,
    pub(crate) weights: &'a [f32],
}

impl Convolution<'_> {
    /// y = weights ∗ x, added to what is there if `add`, and then `after` with each image of y and what belongs to it.
    pub(crate) fn forth<P: Send>(
        self,
        bench: &mut Bench,
        x: &[Line],
        (y, add): (&mut [Line], bool),
        parts: &mut [P],
        after: impl Fn(&mut [Line], &mut P) + Sync,
    ) {
        let Convolution { machine, walk, way, weights } = self;
        let batch = y.len() / walk.to.image();
        let together = way.together(batch, rayon::current_num_threads());
        let Bench { weights: blocked, rooms, .. } = bench;
        let blocked = match way {
            Way::Direct { .. } => {
                let blocked = &mut blocked[..walk.weights()];
                let size = walk.weights() / walk.to.blocks();
                by_block(blocked, size, |block, out| conv::pack(walk, weights, block, out));
                blocked
            }
            Way::Tiles(tiling) => {
                let blocked = &mut blocked[..tiling.kernel()];
                by_block(blocked, tiling.kernel() / tiling.to.blocks(), |block, out| {
                    winograd::kernel(machine, tiling, weights, false, block, out)
                });
                blocked
            }
        };
        let items =
            y.par_chunks_mut(together * walk.to.image()).zip(x.par_chunks(together * walk.from.image()));
        items.zip(parts.par_chunks_mut(together)).for_each(|((y, x), parts)| {
            match way {
                Way::Direct { forth, .. } => conv::run(machine, forth, x, blocked, y, add),
                Way::Tiles(tiling) => {
                    with_room(rooms, |room| winograd::run(machine, tiling, x, blocked, y, add, room))
                }
            }
            y.chunks_exact_mut(walk.to.image()).zip(parts).for_each(|(y, part)| after(y, part));
        });
    }

    /// The gradient of the input from that of the output; added to what is there if `add`.
    pub(crate) fn back(self, bench: &mut Bench, dy: &[Line], dx: &mut [Line], add: bool) {
        let Convolution { machine, walk, way, weights } = self;
        let batch = dy.len() / walk.to.image();
        let together = way.together(batch, rayon::current_num_threads());
        let Bench { weights: blocked, rooms, .. } = bench;
        let items =
            dx.par_chunks_mut(together * walk.from.image()).zip(dy.par_chunks(together * walk.to.image()));
        match way {
            Way::Direct { back, .. } => {
                let blocked = &mut blocked[..walk.weights()];
                let size = walk.weights() / walk.from.blocks();
                by_block(blocked, size, |block, out| conv::pack_back(walk, weights, block, out));
                let blocked = &*blocked;
                items.for_each(|(dx, dy)| conv::run(machine, back, dy, blocked, dx, add));
            }
            Way::Tiles(tiling) => {
                let tiling = tiling.back();
                let blocked = &mut blocked[..tiling.kernel()];
                by_block(blocked, tiling.kernel() / tiling.to.blocks(), |block, out| {
                    winograd::kernel(machine, &tiling, weights, true, block, out)
                });
                let blocked = &*blocked;
                items.for_each(|(dx, dy)| {
                    with_room(rooms, |room| winograd::run(machine, &tiling, dy, blocked, dx, add, room))
                });
            }
        }
    }

    /// Adds the gradient of the weights.
    pub(crate) fn gradient(self, bench: &mut Bench, x: &[Line], dy: &[Line], gradient: &mut [f32]) {
        let Convolution { machine, walk, way, .. } = self;
        let batch = dy.len() / walk.to.image();
        let size = way.sums(walk);
        let images = batch.div_ceil(groups(size, batch));
        let count = batch.div_ceil(images);
        let sums = &mut bench.sums[..count * size];
        let parts = x.par_chunks(images * walk.from.image()).zip(dy.par_chunks(images * walk.to.image()));
        let block = size / walk.to.blocks();
        match way {
            Way::Direct { .. } => sums.par_chunks_exact_mut(size).zip(parts).for_each(|(sums, (x, dy))| {
                by_block(sums, block, |out, sums| {
                    sums.fill(Line::ZERO);
                    let images = x.chunks_exact(walk.from.image()).zip(dy.chunks_exact(walk.to.image()));
                    images.for_each(|(x, dy)| conv::weight_gradient(machine, walk, out, x, dy, sums));
                });
            }),
            Way::Tiles(tiling) => {
                let together = seen_together(tiling, count).min(images);
                let rooms = bench.seen.par_chunks_exact_mut(tiling.seen(together));
                sums.par_chunks_exact_mut(size).zip(parts).zip(rooms).for_each(|((sums, (x, dy)), room)| {
                    sums.fill(Line::ZERO);
                    let items =
                        x.chunks(together * walk.from.image()).zip(dy.chunks(together * walk.to.image()));
                    for (x, dy) in items {
                        let tiles = x.len() / walk.from.image() * tiling.tiles();
                        let lines = tiles * tiling.points();
                        let (seen, rest) = room.split_at_mut(lines * walk.from.blocks());
                        let flows = &mut rest[..lines * walk.to.blocks()];
                        by_block(seen, lines, |block, seen| winograd::see(machine, tiling, x, block, seen));
                        by_block(flows, lines, |block, flows| {
                            winograd::see_flow(machine, tiling, dy, block, flows)
                        });
                        let (seen, flows) = (&*seen, &*flows);
                        by_block(sums, block, |out, sums| {
                            winograd::sum(machine, tiling, tiles, seen, &flows[out * lines..][..lines], sums)
                        });
                    }
                });
            }
        }
        let a_block = WIDTH * walk.from.shape.channels * walk.kernel * walk.kernel;
        let sums = &*sums;
        gradient.par_chunks_mut(a_block).enumerate().for_each(|(block, gradient)| match way {
            Way::Direct { .. } => conv::unpack_add(walk, sums, block, gradient),
            Way::Tiles(tiling) => winograd::fold(machine, tiling, sums, block, gradient),
        });
    }
}

fn by_block(lines: &mut [Line], size: usize, each: impl Fn(usize, &mut [Line]) + Sync + Send) {
    lines.par_chunks_exact_mut(size).enumerate().for_each(|(block, lines)| each(block, lines));
}

/// A room of the thread's own: nobody waits for it, since a thread computes one item at a time.
fn with_room(rooms: &[Mutex<Vec<Line>>], work: impl FnOnce(&mut [Line])) {
    let room = &rooms[rayon::current_thread_index().unwrap_or(0) % rooms.len()];
    work(&mut room.lock().unwrap_or_else(PoisonError::into_inner));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::block::Blocked;
    use crate::{Conv, Shape, op};
    use grawa_core::{Key, Purpose};

    /// Whole batches on every kind of machine, against the plain path in f64: tiles that fit, tiles that the edge cuts off,
    /// channels that fill no block, batches that fill no panel, and both ways in one workplace.
    #[test]
    fn both_ways_agree_with_the_plain_path() {
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
        for machine in Machine::all() {
            let walk =
                |&(ins, outs, height, width, kernel, _): &(usize, usize, usize, usize, usize, usize)| {
                    let place =
                        |channels| Blocked { shape: Shape { channels, height, width }, border: kernel / 2 };
                    Walk { from: place(ins), to: place(outs), kernel, stride: 1, pad: kernel / 2 }
                };
            let walks: Vec<(Walk, Way)> = cases.iter().map(walk).map(|walk| (walk, Way::of(&walk))).collect();
            let mut bench = Bench::new(walks.iter().map(|(walk, way)| (walk, way)), 37, 2);
            for (case, ((walk, way), &(ins, outs, _, _, kernel, batch))) in
                walks.iter().zip(&cases).enumerate()
            {
                assert_eq!(matches!(way, Way::Tiles(_)), kernel == 3 && ins >= 8);
                let (from, to) = (walk.from.shape, walk.to.shape);
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
                    let mut lines = vec![Line::ZERO; batch * place.image()];
                    let images = lines.chunks_exact_mut(place.image());
                    images
                        .zip(plain.chunks_exact(place.shape.len()))
                        .for_each(|(to, from)| place.pack(from, to));
                    lines
                };
                let unpack = |place: &Blocked, lines: &[Line]| {
                    let mut plain = vec![0.0; batch * place.shape.len()];
                    let images = lines.chunks_exact(place.image());
                    images
                        .zip(plain.chunks_exact_mut(place.shape.len()))
                        .for_each(|(from, to)| place.unpack(from, to));
                    let zeros = lines.iter().flat_map(|line| line.0).filter(|&x| x == 0.0).count();
                    assert_eq!(
                        zeros,
                        lines.len() * WIDTH - plain.len(),
                        "{machine:?} {case}: border and lanes stay zero"
                    );
                    plain
                };
                let (bx, bdy) = (pack(&walk.from, &x), pack(&walk.to, &dy));
                let mut by = vec![Line::ZERO; batch * walk.to.image()];
                let mut seen = vec![0; batch];
                let convolution = Convolution { machine, walk, way, weights: &w };
                convolution.forth(&mut bench, &bx, (&mut by, false), &mut seen, |_, seen| *seen += 1);
                assert_eq!(seen, vec![1; batch]);
                close(&unpack(&walk.to, &by), &y, &format!("{machine:?} forward {case}"));

                // Twice: stored, then added to what is there.
                let mut bdx = vec![Line::ZERO; batch * walk.from.image()];
                convolution.back(&mut bench, &bdy, &mut bdx, false);
                convolution.back(&mut bench, &bdy, &mut bdx, true);
                let double: Vec<f64> = dx.iter().map(|dx| 2.0 * dx).collect();
                close(&unpack(&walk.from, &bdx), &double, &format!("{machine:?} input {case}"));

                let mut found = vec![0.0; w.len()];
                convolution.gradient(&mut bench, &bx, &bdy, &mut found);
                close(&found, &dw, &format!("{machine:?} weights {case}"));
            }
        }
    }

    fn close(found: &[f32], expected: &[f64], what: &str) {
        let size = expected.iter().map(|x| x * x).sum::<f64>().sqrt();
        let gap = found.iter().zip(expected).map(|(&a, b)| (f64::from(a) - b).powi(2)).sum::<f64>().sqrt();
        assert!(gap <= 2e-6 * size, "{what}: off by {:.2e}", gap / size);
    }
}

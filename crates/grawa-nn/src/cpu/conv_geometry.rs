//! The geometry of a convolution: which input pixels each output pixel reads, forward and backward.
//!
//! Forward, every output pixel uses all positions of the kernel. Backward with a stride of s, the input pixels fall
//! into s × s phases, each of which uses a part of the kernel. A path is checked once, when it is built: every index
//! is inside its plane. The kernels rely on that.

use super::block::Blocked;
use super::simd::WIDTH;

/// A convolution between two blocked layouts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConvGeometry {
    pub(crate) from: Blocked,
    pub(crate) to: Blocked,
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    pub(crate) pad: usize,
}

impl ConvGeometry {
    /// Vectors of the packed weights: output block by input block by kernel position by input channel.
    pub(crate) fn weights(&self) -> usize {
        self.to.blocks() * self.from.blocks() * self.places() * WIDTH
    }

    pub(super) fn places(&self) -> usize {
        self.kernel * self.kernel
    }

    /// The input index of the first kernel position at the first output pixel.
    pub(super) fn origin(&self) -> usize {
        (self.from.border - self.pad) * (self.from.row() + 1)
    }

    /// The forward path: one phase with all kernel positions.
    pub(crate) fn forward(&self) -> ConvPath {
        let taps = (0..self.places()).map(|place| {
            let offset = place / self.kernel * self.from.row() + place % self.kernel;
            Tap { offset, place }
        });
        let (rows, columns) = (self.to.shape.height, self.to.shape.width);
        let phase = Phase { row: 0, column: 0, rows, columns, origin: self.origin(), taps: taps.collect() };
        ConvPath {
            from: self.from,
            to: self.to,
            step: self.stride,
            spread: 1,
            places: self.places(),
            phases: vec![phase],
        }
        .checked()
    }

    /// The path from the gradient of the output to that of the input.
    pub(crate) fn backward(&self) -> ConvPath {
        let mut phases = Vec::with_capacity(self.stride * self.stride);
        for down in self.phases(self.from.shape.height) {
            for along in self.phases(self.from.shape.width) {
                let border = self.to.border as isize;
                let line = |y: isize, x: isize| ((border + y) * self.to.row() as isize + border + x) as usize;
                let least = |side: &Side| side.seen.iter().map(|seen| seen.1).min().unwrap_or(0);
                let origin = line(least(&down), least(&along));
                let mut taps = Vec::with_capacity(down.seen.len() * along.seen.len());
                for &(ky, y) in &down.seen {
                    for &(kx, x) in &along.seen {
                        taps.push(Tap { offset: line(y, x) - origin, place: ky * self.kernel + kx });
                    }
                }
                let (row, column, rows, columns) = (down.first, along.first, down.count, along.count);
                phases.push(Phase { row, column, rows, columns, origin, taps });
            }
        }
        ConvPath { from: self.to, to: self.from, step: 1, spread: self.stride, places: self.places(), phases }
            .checked()
    }

    /// The phases along one side of the input.
    fn phases(&self, side: usize) -> Vec<Side> {
        let (stride, pad) = (self.stride as isize, self.pad as isize);
        let phase = |first: usize| {
            let shift = |place: usize| first as isize + pad - place as isize;
            let seen = (0..self.kernel).filter(|&place| shift(place).rem_euclid(stride) == 0);
            let seen = seen.map(|place| (place, shift(place).div_euclid(stride))).collect();
            Side { first, count: (side - first).div_ceil(self.stride), seen }
        };
        (0..self.stride.min(side)).map(phase).collect()
    }

    /// The width of the border that the output needs for the backward pass.
    pub(crate) fn border_backward(&self) -> usize {
        let sides =
            [(self.from.shape.height, self.to.shape.height), (self.from.shape.width, self.to.shape.width)];
        let mut need = 0;
        for (side, out) in sides {
            for phase in self.phases(side) {
                for (_, shift) in phase.seen {
                    need = need.max(-shift).max(phase.count as isize + shift - out as isize);
                }
            }
        }
        need as usize
    }
}

/// A phase along one side: the first pixel, the number of pixels, and the kernel positions with their shifts in the
/// output.
struct Side {
    first: usize,
    count: usize,
    seen: Vec<(usize, isize)>,
}

/// The loops of a convolution over a plane, in phases.
#[derive(Clone, Debug)]
pub(crate) struct ConvPath {
    pub(crate) from: Blocked,
    pub(crate) to: Blocked,
    /// Distances between neighbouring pixels of the input, and of the output.
    pub(super) step: usize,
    pub(super) spread: usize,
    pub(super) places: usize,
    pub(super) phases: Vec<Phase>,
}

/// Pixels that use the same kernel positions.
#[derive(Clone, Debug)]
pub(super) struct Phase {
    /// The first pixel, and how many there are.
    pub(super) row: usize,
    pub(super) column: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// The input index of the first pixel, and the offsets of the kernel positions from there.
    pub(super) origin: usize,
    pub(super) taps: Vec<Tap>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Tap {
    pub(super) offset: usize,
    pub(super) place: usize,
}

impl ConvPath {
    /// Asserts that every index the path reads or writes is inside its plane.
    fn checked(self) -> Self {
        for phase in self.phases.iter().filter(|phase| phase.rows > 0 && phase.columns > 0) {
            let last = phase.origin
                + (phase.rows - 1) * self.step * self.from.row()
                + (phase.columns - 1) * self.step;
            let reach = phase.taps.iter().map(|tap| tap.offset).max().unwrap_or(0);
            assert!(last + reach < self.from.plane(), "a convolution stays in its input");
            let (bottom, right) = (
                phase.row + (phase.rows - 1) * self.spread,
                phase.column + (phase.columns - 1) * self.spread,
            );
            assert!(
                bottom < self.to.shape.height && right < self.to.shape.width,
                "a convolution stays in its output"
            );
            assert!(
                phase.taps.iter().all(|tap| tap.place < self.places),
                "a convolution stays in its kernel"
            );
        }
        self
    }

    /// Vectors of the packed weights.
    pub(super) fn weights(&self) -> usize {
        self.to.blocks() * self.from.blocks() * self.places * WIDTH
    }
}

//! How a 3 × 3 convolution is divided into tiles for Winograd's algorithm: which tiles are processed together, and the memory they
//! need.

use super::block::Blocked;
use super::conv_geometry::ConvGeometry;
use super::simd::{F32x16, WIDTH};

/// Tiles multiplied at once, at most: as many vectors as the registers hold.
pub(super) const PANEL: usize = 16;

/// The size of equal panels: a last panel of one or two tiles would wait for each addition before the next.
pub(super) fn panel(tiles: usize) -> usize {
    tiles.div_ceil(tiles.div_ceil(PANEL))
}

/// Tiles whose products are added to the gradient of a kernel at once, if one thread does it: a few, so that their points stay in the
/// nearest cache.
pub(super) const GRADIENT_PANEL: usize = 8;

/// Tiles processed together where the kernel does not stay in the cache of a core, or where threads share its gradient; one image
/// may have fewer.
const TOGETHER: usize = 64;

/// Vectors from one point of some tiles to the next. An odd number: with a power of two, all points of a tile would compete
/// for the same few lines of the cache.
pub(super) fn apart(tiles: usize) -> usize {
    tiles | 1
}

/// A 3 × 3 convolution with padding one and stride one, divided into tiles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiling {
    pub(crate) from: Blocked,
    pub(crate) to: Blocked,
    /// Outputs along a side of a tile: 2 or 4.
    pub(super) side: usize,
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
    pub(super) fn corner(&self, tile: usize) -> (usize, usize) {
        (tile / self.along() * self.side, tile % self.along() * self.side)
    }

    /// Images whose tiles are processed together; see `TOGETHER`.
    pub(crate) fn together(&self) -> usize {
        (TOGETHER / self.tiles()).max(1)
    }

    /// Whether the transformed kernel stays in the cache of a core.
    fn is_small(&self) -> bool {
        self.kernel_len() * size_of::<F32x16>() < 1 << 20
    }

    /// Images that a thread processes at a time: those of a panel, or more with a large kernel if every thread has work.
    pub(crate) fn images_at_once(&self, batch: usize, threads: usize) -> usize {
        let most = if self.is_small() { (PANEL / self.tiles()).max(1) } else { self.together() };
        most.min(batch.div_ceil(threads))
    }

    /// Tiles of some images that are transformed before they are multiplied.
    pub(super) fn transformed(&self, images: usize) -> usize {
        let tiles = images * self.tiles();
        if self.is_small() { panel(tiles) } else { tiles }
    }

    /// Vectors of the transformed kernel: output block by point by input channel.
    pub(crate) fn kernel_len(&self) -> usize {
        self.to.blocks() * self.points() * self.from.shape.channels
    }

    /// Vectors of the transformed kernel's gradient: point by output block by input channel.
    pub(crate) fn sums_len(&self) -> usize {
        self.to.blocks() * self.from.blocks() * self.points() * WIDTH
    }

    /// Vectors from one point of some images to the next.
    pub(crate) fn apart(&self, images: usize) -> usize {
        apart(images * self.tiles())
    }

    /// Vectors of workspace for a forward pass over some images.
    pub(crate) fn buffer_len(&self, images: usize) -> usize {
        let tiles = if self.is_small() { PANEL } else { images * self.tiles() };
        self.points() * (apart(tiles) * self.from.blocks() + apart(PANEL))
    }

    /// Vectors of workspace for [`gradient`](super::winograd::gradient).
    pub(crate) fn gradient_buffer_len(&self) -> usize {
        self.points() * apart(GRADIENT_PANEL) * (self.from.blocks() + self.to.blocks())
    }

    /// Vectors of the points of some images, with those of the results or of their gradients.
    pub(crate) fn points_len(&self, images: usize) -> usize {
        self.points() * self.apart(images) * (self.from.blocks() + self.to.blocks())
    }

    /// Vectors of the points of some images for the gradient of the kernel: as many images as are processed together after
    /// the other, each with the points of their inputs, and then of their gradients, block by block.
    pub(crate) fn gradient_len(&self, images: usize) -> usize {
        let (whole, rest) = (images / self.together(), images % self.together());
        whole * self.points_len(self.together()) + if rest > 0 { self.points_len(rest) } else { 0 }
    }

    /// Whether a batch has less data than the kernel. Then threads divide the blocks of outputs, not the images: each part of
    /// the kernel is transformed and read by one thread only, and never leaves its cache.
    pub(crate) fn is_deep(&self, batch: usize) -> bool {
        let large = self.kernel_len() * size_of::<F32x16>() >= 1 << 21;
        large && self.to.shape.channels > batch * self.tiles()
    }
}

//! How a layer is computed on a GPU: the kernel, its grid, and the memory it needs.
//!
//! f32 uses plain kernels for all layers. bf16 uses our tensor-core kernels for narrow layers, and the faster of ours and
//! cuDNN's for wide ones. tf32 uses cuDNN alone.

use super::compile::{ConvGeometry, Layer, WorkspaceNeeds};
use super::cudnn;
use super::device::Grid;

/// A kernel for a layer.
#[derive(Clone, Debug)]
pub(crate) enum KernelChoice {
    /// One of our kernels, with its grid.
    Own { name: &'static str, grid: Grid },
    /// A cuDNN plan.
    Cudnn(cudnn::Plan),
}

/// The kernels of a layer.
#[derive(Debug)]
pub(crate) struct LayerKernels {
    pub(crate) forward: KernelChoice,
    pub(crate) backward_data: KernelChoice,
    pub(crate) backward_weights: KernelChoice,
    /// Pixels that one block sums for the weight gradient.
    pub(crate) stretch: usize,
    pub(crate) splits: usize,
}

impl LayerKernels {
    pub(crate) fn needs(&self) -> WorkspaceNeeds {
        let room = |kernel: &KernelChoice| match kernel {
            KernelChoice::Own { .. } => 0,
            KernelChoice::Cudnn(plan) => plan.workspace,
        };
        WorkspaceNeeds {
            splits: if matches!(self.backward_weights, KernelChoice::Own { .. }) { self.splits } else { 0 },
            flipped: matches!(self.backward_data, KernelChoice::Own { .. }),
            blocks: match &self.forward {
                KernelChoice::Own { name: "conv_plain", .. } | KernelChoice::Cudnn(_) => (0, 0),
                KernelChoice::Own { grid, .. } => (grid.blocks.0 as usize, grid.blocks.1 as usize),
            },
            workspace: room(&self.forward).max(room(&self.backward_data)),
            side_workspace: room(&self.backward_weights),
        }
    }
}

/// Our kernel for the forward pass, or for the gradient of the input.
pub(crate) fn own(geometry: &ConvGeometry, narrow: bool) -> KernelChoice {
    let (pixels, wide) = (geometry.pixels(), geometry.op as usize);
    // Name, pixels and channels of a block, depth of a stage, threads, stages.
    let (name, rows, columns, depth, threads, stages) = match wide {
        _ if !narrow => ("conv_plain", 64, 64, 0, 256, 0),
        ..=16 => ("conv_16", 256, 16, 32, 256, 3),
        17..=32 => ("conv_32", 128, 32, 32, 256, 3),
        // Small products are divided among more blocks.
        65.. if pixels * wide >= 1 << 20 => ("conv_128", 128, 128, 32, 256, 4),
        _ => ("conv_64", 64, 64, 64, 256, 3),
    };
    let blocks = (pixels.div_ceil(rows) as u32, wide.div_ceil(columns) as u32);
    let shared = (stages * (rows + columns) * (depth + 8) * 2) as u32;
    KernelChoice::Own { name, grid: Grid { blocks, threads, shared } }
}

/// Our kernel for the weight gradient, the pixels of a block, and the number of partial sums.
pub(crate) fn own_sums(
    layer: &Layer,
    narrow: bool,
    processors: usize,
    replicas: usize,
) -> (KernelChoice, usize, usize) {
    let geometry = &layer.forward;
    let (pixels, columns, out) = (geometry.pixels(), geometry.columns(), geometry.o as usize);
    let (name, rows, wide, threads) = match out {
        _ if !narrow => ("wgrad_plain", 64, 64, 256),
        ..=16 => ("wgrad_16", 16, 144, 128),
        17..=32 => ("wgrad_32", 32, 144, 128),
        _ => ("wgrad_64", 64, 144, 128),
    };
    let tiles = out.div_ceil(rows) * columns.div_ceil(wide);
    // Two blocks for each multiprocessor, but enough pixels to be worth a block.
    let wanted = (2 * processors).div_ceil(tiles * replicas).max(1);
    let stretch = pixels.div_ceil(wanted).next_multiple_of(64).max(128);
    let splits = pixels.div_ceil(stretch);
    let shared = if narrow { (3 * 64 * (rows + 8 + wide + 8) * 2) as u32 } else { 0 };
    let grid = Grid { blocks: (splits as u32, tiles as u32), threads, shared };
    (KernelChoice::Own { name, grid }, stretch, splits)
}

//! How a layer is computed on a GPU: which kernel, how it is spread out, what memory it asks for.
//!
//! In f32 all layers run on plain kernels. In bf16 narrow layers run on tensor-core kernels of our own, and wide ones
//! on whichever is faster, ours or cuDNN's; tf32 is cuDNN's alone.

use super::compile::{ConvGeometry, Layer, WorkspaceNeeds};
use super::cudnn;
use super::device::Grid;

/// A kernel for a layer.
#[derive(Clone, Debug)]
pub(crate) enum KernelChoice {
    /// One of ours, spread out so.
    Own { name: &'static str, grid: Grid },
    /// One of cuDNN's.
    Cudnn(cudnn::Plan),
}

/// The kernels of a layer.
#[derive(Debug)]
pub(crate) struct LayerKernels {
    pub(crate) forward: KernelChoice,
    pub(crate) backward_data: KernelChoice,
    pub(crate) backward_weights: KernelChoice,
    /// Pixels whose products one block sums.
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

/// Our kernel for one direction of a layer.
pub(crate) fn own(geometry: &ConvGeometry, narrow: bool) -> KernelChoice {
    let (pixels, wide) = (geometry.pixels(), geometry.op as usize);
    // Name, pixels and channels of a block, numbers of a patch at a time, warps, stages.
    let (name, rows, columns, depth, threads, stages) = match wide {
        _ if !narrow => ("conv_plain", 64, 64, 0, 256, 0),
        ..=16 => ("conv_16", 256, 16, 32, 256, 3),
        17..=32 => ("conv_32", 128, 32, 32, 256, 3),
        // Small products are shared out among more blocks.
        65.. if pixels * wide >= 1 << 20 => ("conv_128", 128, 128, 32, 256, 4),
        _ => ("conv_64", 64, 64, 64, 256, 3),
    };
    let blocks = (pixels.div_ceil(rows) as u32, wide.div_ceil(columns) as u32);
    let shared = (stages * (rows + columns) * (depth + 8) * 2) as u32;
    KernelChoice::Own { name, grid: Grid { blocks, threads, shared } }
}

/// Our kernel for the gradient of a layer's kernels, and the stretches of pixels it works on.
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
    // Two blocks a processor, but stretches worth their start.
    let wanted = (2 * processors).div_ceil(tiles * replicas).max(1);
    let stretch = pixels.div_ceil(wanted).next_multiple_of(64).max(128);
    let splits = pixels.div_ceil(stretch);
    let shared = if narrow { (3 * 64 * (rows + 8 + wide + 8) * 2) as u32 } else { 0 };
    let grid = Grid { blocks: (splits as u32, tiles as u32), threads, shared };
    (KernelChoice::Own { name, grid }, stretch, splits)
}

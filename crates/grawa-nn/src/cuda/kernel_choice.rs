//! How a layer is computed on a GPU: the kernel, its grid, and the memory it needs.
//!
//! f32 uses kernels of its own for all layers. bf16 uses our tensor-core kernels for narrow layers, and the faster of ours and
//! cuDNN's for wide ones. tf32 uses cuDNN alone.

use super::compile::{ConvGeometry, Layer, WorkspaceNeeds};
use super::cudnn;
use super::device::Grid;
use super::wide::Wide;

/// A kernel for a layer.
#[derive(Clone, Debug)]
pub(crate) enum KernelChoice {
    /// One of our kernels, with its grid, and the rows of an image that a tile has, if it divides images into rows.
    Own { name: &'static str, grid: Grid, rows: i32 },
    /// One of our kernels for wide layers.
    Wide(Box<Wide>),
    /// A cuDNN plan.
    Cudnn(cudnn::Plan),
}

impl KernelChoice {
    /// The parts in which one of our kernels divides the pixels: each leaves sums of its own.
    pub(crate) fn splits(&self) -> Option<usize> {
        match self {
            KernelChoice::Own { grid, .. } => Some(grid.blocks.0 as usize),
            KernelChoice::Wide(wide) => Some(wide.grid.blocks.0 as usize),
            KernelChoice::Cudnn(_) => None,
        }
    }

    /// The rows of sums that it can leave for a batch norm. Kernels for wide layers sum forward only.
    pub(crate) fn rows(&self) -> Option<usize> {
        let is_f32 = matches!(self, KernelChoice::Own { name, .. } if name.starts_with("conv_f32"));
        self.splits().filter(|_| !is_f32)
    }
}

/// The kernels of a layer.
#[derive(Debug)]
pub(crate) struct LayerKernels {
    pub(crate) forward: KernelChoice,
    pub(crate) backward_data: KernelChoice,
    pub(crate) backward_weights: KernelChoice,
    /// Pixels that one block sums for the weight gradient.
    pub(crate) stretch: usize,
}

impl LayerKernels {
    pub(crate) fn needs(&self) -> WorkspaceNeeds {
        let room = |kernel: &KernelChoice| match kernel {
            KernelChoice::Own { .. } | KernelChoice::Wide(_) => 0,
            KernelChoice::Cudnn(plan) => plan.workspace,
        };
        WorkspaceNeeds {
            splits: self.backward_weights.splits().unwrap_or(0),
            flipped: matches!(self.backward_data, KernelChoice::Own { .. }),
            rows: self.forward.rows(),
            backward_rows: (self.backward_data.rows())
                .filter(|_| matches!(self.backward_data, KernelChoice::Own { .. })),
            masks: self.backward_data.rows().is_some(),
            workspace: room(&self.forward).max(room(&self.backward_data)),
            side_workspace: room(&self.backward_weights),
        }
    }
}

/// What a GPU has: processors, replicas that share them, and bytes of shared memory for a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    pub(crate) processors: usize,
    pub(crate) replicas: usize,
    pub(crate) shared: usize,
}

/// The most bytes of shared memory for a tile of rows: several blocks fit into a processor.
const TILE: usize = 16 << 10;

/// The rows of an image that a tile of `conv_rows_*` and `wgrad_rows_*` has, and the number of tiles; none if the layer is not a
/// convolution of 3 × 3 with stride 1 between 16 or between 32 channels.
fn tile_rows(geometry: &ConvGeometry, machine: Machine) -> Option<(usize, usize)> {
    let ConvGeometry { n, h, w, cp, oh, ow, op, o, kh, kw, mul, off_y, off_x, div } = *geometry;
    let kind = (kh, kw, mul, off_y, off_x, div) == (3, 3, 1, 1, 1, 1) && (h, w) == (oh, ow);
    if !kind || cp != op || o != op || !matches!(o, 16 | 32) {
        return None;
    }
    let most = (TILE / ((w + 2) * cp * 2) as usize).checked_sub(2).filter(|&rows| rows > 0)?;
    let [n, h] = [n, oh].map(|x| x as usize);
    // About two tiles for each processor, all of about the same height.
    let wanted = (n * h * machine.replicas).div_ceil(2 * machine.processors).clamp(1, most.min(h));
    let rows = h.div_ceil(h.div_ceil(wanted));
    Some((rows, n * h.div_ceil(rows)))
}

/// The kernels in f32 for the forward pass or the gradient of the input: of a layer, of its tangent, and the grid of both. Large
/// products are divided among fewer, larger tiles.
pub(super) fn conv_f32(geometry: &ConvGeometry, machine: Machine) -> (&'static str, &'static str, Grid) {
    let (pixels, wide) = (geometry.pixels(), geometry.op as usize);
    let tiles = |rows: usize, columns: usize| (pixels.div_ceil(rows) as u32, wide.div_ceil(columns) as u32);
    let tall = tiles(128, 64);
    let fills_the_gpu = (tall.0 * tall.1) as usize * machine.replicas >= machine.processors;
    let (own, pair, blocks) = match wide {
        ..=16 => ("conv_f32_16", "conv_pair_16", tiles(256, 16)),
        17..=32 => ("conv_f32_32", "conv_pair_32", tiles(128, 32)),
        _ if fills_the_gpu => ("conv_f32_64_tall", "conv_pair_64_tall", tall),
        _ => ("conv_f32_64", "conv_pair_64", tiles(64, 64)),
    };
    (own, pair, Grid { blocks, threads: 256, shared: 0 })
}

/// The same for the weight gradient: the kernels, rows and columns of a tile, and threads.
pub(super) fn wgrad_f32(geometry: &ConvGeometry) -> (&'static str, &'static str, (usize, usize), u32) {
    match geometry.o {
        ..=16 => ("wgrad_f32_16", "wgrad_pair_16", (16, 144), 288),
        17..=32 => ("wgrad_f32_32", "wgrad_pair_32", (32, 144), 288),
        _ => ("wgrad_f32_64", "wgrad_pair_64", (64, 128), 256),
    }
}

/// Our kernel for the forward pass, or for the gradient of the input.
pub(crate) fn own(geometry: &ConvGeometry, narrow: bool, biased: bool, machine: Machine) -> KernelChoice {
    if !narrow {
        let (name, _, grid) = conv_f32(geometry, machine);
        return KernelChoice::Own { name, grid, rows: 0 };
    }
    let (pixels, wide) = (geometry.pixels(), geometry.op as usize);
    if let (false, Some((rows, tiles))) = (biased, tile_rows(geometry, machine)) {
        let (name, resident) = if wide == 16 { ("conv_rows_16", 2) } else { ("conv_rows_32", 1) };
        let blocks = tiles.min((resident * machine.processors).div_ceil(machine.replicas));
        // The sums of the channels need 1 KB at the end.
        let shared = (2 * (rows + 2) * (geometry.w as usize + 2) * wide * 2).max(1 << 10) as u32;
        let grid = Grid { blocks: (blocks as u32, 1), threads: 256, shared };
        return KernelChoice::Own { name, grid, rows: rows as i32 };
    }
    // Name, pixels and channels of a block, depth of a stage, threads, stages.
    let (name, rows, columns, depth, threads, stages) = match wide {
        ..=16 => ("conv_16", 256, 16, 32, 256, 3),
        17..=32 => ("conv_32", 128, 32, 32, 256, 3),
        // Small products are divided among more blocks.
        65.. if pixels * wide >= 1 << 20 => ("conv_128", 128, 128, 32, 256, 4),
        33..=64 if pixels >= 1 << 18 => ("conv_64_tall", 256, 64, 32, 256, 3),
        _ => ("conv_64", 64, 64, 64, 256, 3),
    };
    let blocks = (pixels.div_ceil(rows) as u32, wide.div_ceil(columns) as u32);
    let shared = (stages * (rows + columns) * (depth + 8) * 2) as u32;
    KernelChoice::Own { name, grid: Grid { blocks, threads, shared }, rows: 0 }
}

/// Our kernel for the weight gradient, and the pixels of a block or the rows of a tile.
pub(crate) fn own_sums(layer: &Layer, narrow: bool, machine: Machine) -> (KernelChoice, usize) {
    let geometry = &layer.forward;
    let (pixels, columns, out) = (geometry.pixels(), geometry.columns(), geometry.o as usize);
    let of = |name, blocks, threads, shared| KernelChoice::Own {
        name,
        grid: Grid { blocks, threads, shared },
        rows: 0,
    };
    if let (true, Some((rows, tiles))) = (narrow, tile_rows(geometry, machine)) {
        let name = if out == 16 { "wgrad_rows_16" } else { "wgrad_rows_32" };
        // Few blocks leave few partial sums.
        let blocks = tiles.min(machine.processors.div_ceil(machine.replicas));
        let w = geometry.w as usize;
        let tile = ((rows + 2) * (w + 2) + (rows * w).next_multiple_of(16)) * out * 2;
        let threads = if out == 16 { 256 } else { 512 };
        // At the end the sums of all warps are there, 72 numbers of each thread. Some GPUs have no room for that.
        let shared = (2 * tile).max(72 * 4 * threads as usize);
        if shared <= machine.shared {
            return (of(name, (blocks as u32, 1), threads, shared as u32), rows);
        }
    }
    let (name, rows, wide, threads) = match out {
        _ if !narrow => {
            let (name, _, (rows, wide), threads) = wgrad_f32(geometry);
            (name, rows, wide, threads)
        }
        ..=16 => ("wgrad_16", 16, 144, 128),
        17..=32 => ("wgrad_32", 32, 144, 128),
        _ => ("wgrad_64", 64, 144, 128),
    };
    let tiles = out.div_ceil(rows) * columns.div_ceil(wide);
    // Two blocks for each multiprocessor, in f32 four, but enough pixels to be worth a block.
    let resident = if narrow { 2 } else { 4 };
    let wanted = (resident * machine.processors).div_ceil(tiles * machine.replicas).max(1);
    let stretch = pixels.div_ceil(wanted).next_multiple_of(64).max(128);
    let splits = pixels.div_ceil(stretch);
    let shared = if narrow { (3 * 64 * (rows + 8 + wide + 8) * 2) as u32 } else { 0 };
    (of(name, (splits as u32, tiles as u32), threads, shared), stretch)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ResNet-20's first stage: 28 rows of 28 pixels with 16 channels.
    const STAGE: ConvGeometry = ConvGeometry {
        n: 128,
        h: 28,
        w: 28,
        cp: 16,
        oh: 28,
        ow: 28,
        op: 16,
        o: 16,
        kh: 3,
        kw: 3,
        mul: 1,
        off_y: 1,
        off_x: 1,
        div: 1,
    };

    #[test]
    fn tiles_of_rows_cover_every_image_and_fit_into_shared_memory() {
        for (replicas, h, w, channels) in
            [(1, 28, 28, 16), (4, 28, 28, 16), (16, 14, 14, 32), (1, 1, 1, 16), (64, 90, 13, 32)]
        {
            let machine = Machine { processors: 132, replicas, shared: 232_448 };
            let geometry =
                ConvGeometry { h, w, cp: channels, oh: h, ow: w, op: channels, o: channels, ..STAGE };
            let (rows, tiles) = tile_rows(&geometry, machine).unwrap();
            assert_eq!(tiles, 128 * (h as usize).div_ceil(rows));
            assert!((rows + 2) * (w as usize + 2) * channels as usize * 2 <= TILE);
        }
    }

    /// The numbers behind a kernel's name in `f32.cu` or `tangent.cu`.
    fn defined(name: &str) -> Vec<usize> {
        let source = super::super::kernels::source();
        let line = source.lines().find(|line| line.contains(&format!("({name}, "))).unwrap();
        line.trim_end_matches(')').split(", ").skip(1).map(|number| number.parse().unwrap()).collect()
    }

    /// Grids and tiles are those that the kernels were written for, and cover every layer of the zoo.
    #[test]
    fn tiles_in_f32_are_those_of_the_kernels() {
        for entry in crate::zoo::ZOO {
            let graph = entry.build(entry.input, entry.classes).unwrap();
            for (batch, replicas) in [(1, 1), (32, 10)] {
                let machine = Machine { processors: 132, replicas, shared: 232_448 };
                for layer in super::super::compile::Program::new(&graph, batch, 4).unwrap().layers {
                    for geometry in [layer.forward, layer.backward] {
                        let (own, pair, grid) = conv_f32(&geometry, machine);
                        let tile = defined(own);
                        assert_eq!(tile, defined(pair), "{own}");
                        let [pixels, channels] = [grid.blocks.0, grid.blocks.1].map(|blocks| blocks as usize);
                        let covers = pixels * tile[0] >= geometry.pixels()
                            && channels * tile[1] >= geometry.op as usize;
                        assert!(covers, "{own}");
                        assert_eq!(
                            grid.threads as usize,
                            32 * tile[0] * tile[1] / (tile[2] * tile[3]),
                            "{own}"
                        );
                    }
                    let (own, pair, (rows, columns), threads) = wgrad_f32(&layer.forward);
                    let tile = defined(own);
                    assert_eq!(tile, defined(pair), "{own}");
                    assert_eq!(tile[..3], [threads as usize, columns, rows], "{own}");
                    assert_eq!(tile[0], 32 * columns * rows / (tile[3] * tile[4]), "{own}");
                    let (sums, stretch) = own_sums(&layer, false, machine);
                    let (splits, pixels) = (sums.splits().unwrap(), layer.forward.pixels());
                    assert!(stretch * splits >= pixels && stretch * (splits - 1) < pixels, "{own}");
                }
            }
        }
    }

    #[test]
    fn other_layers_are_not_divided_into_rows() {
        let machine = Machine { processors: 132, replicas: 1, shared: 232_448 };
        let others = [
            ConvGeometry { mul: 2, oh: 14, ow: 14, ..STAGE },
            ConvGeometry { o: 15, ..STAGE },
            ConvGeometry { cp: 32, ..STAGE },
            ConvGeometry { w: 1000, ow: 1000, ..STAGE },
        ];
        assert!(others.iter().all(|geometry| tile_rows(geometry, machine).is_none()));
        assert!(tile_rows(&STAGE, machine).is_some());
    }

    /// GPUs of compute capability 8.6 and 8.9 have 99 KB for a block.
    #[test]
    fn no_kernel_asks_for_more_shared_memory_than_the_gpu_has() {
        let small = Machine { processors: 84, replicas: 1, shared: 101_376 };
        for entry in crate::zoo::ZOO {
            let graph = entry.build(entry.input, entry.classes).unwrap();
            for layer in super::super::compile::Program::new(&graph, 32, 2).unwrap().layers {
                let (weights, _) = own_sums(&layer, true, small);
                let [forward, data] =
                    [layer.forward, layer.backward].map(|geometry| own(&geometry, true, false, small));
                for kernel in [weights, forward, data] {
                    let KernelChoice::Own { name, grid, .. } = kernel else { panic!() };
                    assert!(grid.shared as usize <= small.shared, "{}: {name}", entry.name);
                }
            }
        }
    }
}

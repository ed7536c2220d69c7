//! Convolutions between many channels on Hopper GPUs: tiles, grids and tensor maps of the kernels in `wide.cu`.
//!
//! The kernels exist for compute capability 9.0 alone and store bf16. They take convolutions
//! with stride 1, and forward and for the weights also with stride 2.

use super::compile::ConvGeometry;
use super::device::{Grid, failed, integers};
use super::kernel_choice::Machine;
use crate::Error;
use cudarc::driver::sys;

integers! {
    /// The tiles of the target; see `wide.cu`.
    struct WideTiles {
        tiles, pixels, images, height, width, per_image, image_pixels, all, pitch, channels, source_pitch, kh, kw, mul, off_y, off_x,
        chunks,
    }
}

/// A tensor of bf16 in every replica, and the box of it that is copied at a time: four dimensions, the contiguous one first. A
/// row of a box has 64 or 128 bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Boxed {
    sides: [usize; 4],
    /// Elements from one to the next in the other dimensions.
    strides: [usize; 3],
    part: [usize; 4],
    /// Only every so many pixels of an image are copied, in both directions.
    step: usize,
}

/// A tensor map: how the GPU finds the boxes of a tensor.
pub(crate) type TensorMap = sys::CUtensorMap;

impl Boxed {
    /// The map of the tensor at `address`, which has one for each of `replicas` replicas, `slab` bytes apart.
    #[allow(unsafe_code, reason = "the driver writes a tensor map")]
    pub(crate) fn map(&self, address: u64, slab: u64, replicas: usize) -> Result<TensorMap, Error> {
        let [c, x, y, z] = self.sides.map(|side| side as u64);
        let sides = [c, x, y, z, replicas as u64];
        let [x, y, z] = self.strides.map(|stride| 2 * stride as u64);
        let strides = [x, y, z, slab];
        let [c, x, y, z] = self.part.map(|side| side as u32);
        let step = self.step as u32;
        // The sides of a box count what is left out too.
        let (part, steps) = ([c, x * step, y * step, z, 1], [1, step, step, 1, 1]);
        let swizzle = match c {
            32 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B,
            _ => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
        };
        let mut map = TensorMap { opaque: [0; 16] };
        // SAFETY: the driver reads five sides, box sides and steps and four strides, checks them, and writes one map. It does not
        // access the tensor.
        unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                5,
                address as *mut _,
                sides.as_ptr(),
                strides.as_ptr(),
                part.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        }
        .result()
        .map_err(failed("divide a tensor into boxes"))?;
        Ok(map)
    }
}

/// A convolution, forward or backward (data), or its weight gradient, by a kernel of `wide.cu`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wide {
    pub(crate) name: &'static str,
    pub(crate) grid: Grid,
    pub(crate) tiles: WideTiles,
    /// The kernel's two tensors.
    pub(crate) tensors: [Boxed; 2],
}

impl Wide {
    /// The maps of both tensors at these addresses.
    pub(crate) fn maps(
        &self,
        addresses: [u64; 2],
        slab: u64,
        replicas: usize,
    ) -> Result<[TensorMap; 2], Error> {
        let [left, right] = [0, 1].map(|i| self.tensors[i].map(addresses[i], slab, replicas));
        Ok([left?, right?])
    }
}

/// A quotient, rounded up; none if nothing is there to divide by.
fn ceil(a: i32, b: i32) -> Option<i32> {
    (b > 0).then(|| (a + b - 1) / b)
}

/// The pixels of a target in tiles of at most `most` pixels, chunks of `depth` channels of the source, and the source's box of both;
/// none if the kernels cannot compute this.
fn divide(geometry: &ConvGeometry, most: i32, depth: i32) -> Option<(WideTiles, Boxed)> {
    let ConvGeometry { mut n, mut h, mut w, cp, mut oh, mut ow, op, o, kh, kw, mul, off_y, off_x, div } =
        *geometry;
    if !matches!(mul, 1 | 2) || div != 1 {
        return None;
    }
    let all = n * oh * ow;
    // Without neighbours, images do not matter: rows of 64 pixels fill every tile.
    if (kh, kw, mul, off_y, off_x) == (1, 1, 1, 0, 0) && all % 64 == 0 {
        (n, h, w, oh, ow) = (all / 64, 1, 64, 1, 64);
    }
    let image_pixels = oh * ow;
    let (images, height, per_image) = if image_pixels <= most {
        ((most / image_pixels).min(n), oh, 1)
    } else {
        // Equal parts, so that the last is not nearly empty.
        let parts = ceil(oh, most / ow)?;
        (1, ceil(oh, parts)?, parts)
    };
    let tiles = WideTiles {
        tiles: if images > 1 { ceil(n, images)? } else { n * per_image },
        pixels: images * height * ow,
        images,
        height,
        width: ow,
        per_image,
        image_pixels,
        all,
        pitch: op,
        channels: o,
        source_pitch: cp,
        kh,
        kw,
        mul,
        off_y,
        off_x,
        chunks: ceil(cp, depth)?,
    };
    let [n, h, w, cp, ow, images, height, step] =
        [n, h, w, cp, ow, images, height, mul].map(|side| side as usize);
    let (strides, part) = ([cp, w * cp, h * w * cp], [depth as usize, ow, height, images]);
    // No side of a box is longer.
    let fits = part.iter().all(|&side| side * step <= 256);
    fits.then_some((tiles, Boxed { sides: [cp, w, h, n], strides, part, step }))
}

/// Channels of a tile: those for which all waves of blocks together cost least, if each column of tiles has `tiles` tiles.
fn columns_of_tile(channels: i32, tiles: usize, machine: Machine) -> i32 {
    // Relative cost of a tile, measured on an H200. Wide tiles do more products for each byte.
    let cost = |&(wide, cost): &(i32, usize)| {
        let columns = (channels as usize).div_ceil(wide as usize);
        (tiles * columns * machine.replicas).div_ceil(machine.processors) * cost
    };
    [(160, 160), (128, 135), (64, 100)].into_iter().min_by_key(cost).map_or(64, |(wide, _)| wide)
}

/// Whether three taps of a column can share the rows of pixels that they read: windows of 3 × 3, and every block of 64 pixels
/// inside an image, where the tensor cores find eight pixels in a row.
fn shares_rows(geometry: &ConvGeometry, tiles: &WideTiles) -> bool {
    (geometry.kh, geometry.kw, geometry.mul) == (3, 3, 1)
        && tiles.width % 8 == 0
        && (tiles.images == 1 || tiles.height * tiles.width % 64 == 0)
        && tiles.images * (tiles.height + 2) * tiles.width <= 320
}

/// A convolution forward, or the gradient of its input (`data`), with the geometry of that pass.
pub(crate) fn convolution(geometry: &ConvGeometry, data: bool, machine: Machine) -> Option<Wide> {
    let (tiles, _) = divide(geometry, 256, 32)?;
    let (wide, rows) =
        (columns_of_tile(geometry.op, tiles.tiles as usize, machine), shares_rows(geometry, &tiles));
    // Channels of the target in a block of weights, channels of a chunk, and stages.
    let (name, block, depth, stages) = match (wide, data, rows) {
        (160, false, false) => ("conv_wide_160", 32, 32, 7),
        (160, true, false) => ("conv_wide_data_160", 32, 32, 7),
        (128, false, false) => ("conv_wide_128", 64, 64, 4),
        (128, true, false) => ("conv_wide_data_128", 64, 64, 4),
        (_, false, false) => ("conv_wide_64", 64, 64, 5),
        (_, true, false) => ("conv_wide_data_64", 64, 64, 5),
        (160, false, true) => ("conv_wide_160_rows", 32, 32, 3),
        (160, true, true) => ("conv_wide_data_160_rows", 32, 32, 3),
        (128, false, true) => ("conv_wide_128_rows", 64, 32, 4),
        (128, true, true) => ("conv_wide_data_128_rows", 64, 32, 4),
        (_, false, true) => ("conv_wide_64_rows", 64, 32, 6),
        (_, true, true) => ("conv_wide_data_64_rows", 64, 32, 6),
    };
    let (tiles, mut source) = divide(geometry, 256, depth)?;
    // Pixels and taps of a stage.
    let (pixels, together) = if rows { (320, 3) } else { (256, 1) };
    source.part[2] += together - 1;
    let [cp, op, o, taps, count, depth, wide] =
        [geometry.cp, geometry.op, geometry.o, geometry.kh * geometry.kw, tiles.tiles, depth, wide]
            .map(|x| x as usize);
    let weights = match data {
        // Stored for the forward pass: its filters are the channels of the source.
        true => Boxed {
            sides: [block, cp, taps, op.div_ceil(block)],
            strides: [taps * op, op, block],
            part: [block, depth, 1, wide / block],
            step: 1,
        },
        false => Boxed {
            sides: [cp, taps, o, 1],
            strides: [cp, taps * cp, taps * cp * o],
            part: [depth, 1, wide, 1],
            step: 1,
        },
    };
    // As many blocks as run at once, all with about as many tiles.
    let columns = op.div_ceil(wide);
    let most = (machine.processors / (columns * machine.replicas)).clamp(1, count);
    let blocks = count.div_ceil(count.div_ceil(most));
    // Stages and their barriers, slices of the results of eight warps, the bias; see `wide.cu`.
    let slice = 16 * if wide == 160 { 56 } else { 40 } + if data { 64 } else { 0 };
    let stages = stages * ((pixels + together * wide) * depth * 2 + 16);
    let shared = 1024 + stages + 8 * slice * 2 + wide * 4;
    let grid = Grid { blocks: (blocks as u32, columns as u32), threads: 384, shared: shared as u32 };
    Some(Wide { name, grid, tiles, tensors: [source, weights] }).filter(|_| shared <= machine.shared)
}

/// The weight gradient of a layer with this geometry of the forward pass.
pub(crate) fn weight_gradient(geometry: &ConvGeometry, machine: Machine) -> Option<Wide> {
    // There are always enough blocks: the pixels are divided among them.
    let wide = columns_of_tile(geometry.op, machine.processors, machine);
    // Channels of a block of rows, and of a block of the gradient; stages.
    let (name, rows, block, stages) = match (wide, geometry.cp % 64) {
        (160, 0) => ("wgrad_wide_160", 64, 32, 4),
        (160, _) => ("wgrad_wide_160_32", 32, 32, 4),
        (128, 0) => ("wgrad_wide_128", 64, 64, 4),
        (128, _) => ("wgrad_wide_128_32", 32, 64, 4),
        (_, 0) => ("wgrad_wide_64", 64, 64, 5),
        (_, _) => ("wgrad_wide_64_32", 32, 64, 5),
    };
    let (tiles, source) = divide(geometry, 64, rows)?;
    let [op, taps, count, wide] =
        [geometry.op, geometry.kh * geometry.kw, tiles.tiles, wide].map(|x| x as usize);
    // A stage always has 64 pixels, one after the other in memory.
    if count * 64 != geometry.pixels() || tiles.pixels != 64 {
        return None;
    }
    let gradient = Boxed {
        sides: [block, geometry.pixels(), op.div_ceil(block), 1],
        strides: [op, block, op],
        part: [block, 64, wide / block, 1],
        step: 1,
    };
    let products = (taps * tiles.chunks as usize * rows as usize).div_ceil(256) * op.div_ceil(wide);
    // One wave of blocks leaves the fewest partial sums.
    let splits = (machine.processors / (products * machine.replicas)).clamp(1, count);
    let shared = 1024 + stages * ((256 + wide) * 64 * 2 + 16);
    let grid = Grid { blocks: (splits as u32, products as u32), threads: 384, shared: shared as u32 };
    Some(Wide { name, grid, tiles, tensors: [source, gradient] }).filter(|_| shared <= machine.shared)
}

/// The instructions that multiply 64 rows with 64, 128 or 160 columns, as functions. Their registers must be listed one by one.
pub(crate) fn products() -> String {
    let list = |count: usize, each: fn(usize) -> String| (0..count).map(each).collect::<Vec<_>>().join(", ");
    let function = |columns: usize| {
        let sums = columns / 2;
        let (names, operands) = (list(sums, |i| format!("%{i}")), list(sums, |i| format!("\"+f\"(d[{i}])")));
        let [a, b, add, left, right] = [0, 1, 2, 3, 4].map(|i| sums + i);
        format!(
            "template <int LEFT, int RIGHT>\n\
             __device__ __forceinline__ void product(float (&d)[{sums}], u64 a, u64 b, int add) {{\n\
             asm volatile(\"{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{add}, 0;\\n\"\n\
             \"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16 {{{names}}}, %{a}, %{b}, p, 1, 1, %{left}, %{right};\\n}}\"\n\
             : {operands} : \"l\"(a), \"l\"(b), \"r\"(add), \"n\"(LEFT), \"n\"(RIGHT));\n}}\n"
        )
    };
    let functions = [64, 128, 160].map(function).concat();
    format!("#if BF16 && defined(__CUDA_ARCH_FEAT_SM90_ALL)\n{functions}#endif\n")
}

#[cfg(test)]
mod tests {
    use super::super::compile::Program;
    use super::*;
    use crate::zoo::ZOO;

    const MACHINE: Machine = Machine { processors: 132, replicas: 2, shared: 232_448 };

    /// What the kernels compute: for each layer of the zoo forward, the gradients of the input and of the weights.
    fn each(mut see: impl FnMut(&ConvGeometry, &Wide, bool)) {
        for entry in ZOO {
            let graph = entry.build(entry.input, entry.classes).unwrap();
            for layer in Program::new(&graph, 64, 2).unwrap().layers {
                for (geometry, data) in [(layer.forward, false), (layer.backward, true)] {
                    if let Some(wide) = convolution(&geometry, data, MACHINE) {
                        see(&geometry, &wide, false);
                    }
                }
                if let Some(wide) = weight_gradient(&layer.forward, MACHINE) {
                    see(&layer.forward, &wide, true);
                }
            }
        }
    }

    /// The pixels of a tile as `wide.cu` computes them.
    fn pixels(g: &WideTiles, tile: i32) -> std::ops::Range<i32> {
        if g.images > 1 {
            return tile * g.pixels..g.all.min((tile + 1) * g.pixels);
        }
        let image = tile / g.per_image;
        let first = image * g.image_pixels + (tile - image * g.per_image) * g.pixels;
        first..(first + g.pixels).min(g.all).min((image + 1) * g.image_pixels)
    }

    #[test]
    fn every_pixel_is_in_one_tile() {
        let mut seen = 0;
        each(|geometry, wide, _| {
            seen += 1;
            let mut next = 0;
            for tile in 0..wide.tiles.tiles {
                let pixels = pixels(&wide.tiles, tile);
                assert!(pixels.start == next && pixels.end > next, "{geometry:?}: {tile}");
                next = pixels.end;
            }
            assert_eq!(next as usize, geometry.pixels());
        });
        assert!(seen > 300, "{seen}");
    }

    /// A box has at most 256 of anything, and its rows are as long as the swizzle; strides are multiples of 16 bytes. Both boxes
    /// of a stage and all sums fit into shared memory.
    #[test]
    fn boxes_are_such_as_the_gpu_copies() {
        each(|geometry, wide, weights| {
            for tensor in &wide.tensors {
                assert!(
                    tensor.part.iter().all(|side| (1..=256).contains(&(side * tensor.step))),
                    "{tensor:?}"
                );
                assert!(
                    matches!(tensor.part[0], 32 | 64) && tensor.strides.iter().all(|stride| stride % 8 == 0)
                );
            }
            let pixels: usize = wide.tensors[0].part[1..].iter().product();
            let (tile, most) =
                (wide.tiles.pixels as usize, if wide.name.ends_with("rows") { 320 } else { 256 });
            assert!(pixels == 64 || !weights && pixels <= most && pixels >= tile, "{geometry:?}");
            assert!(tile <= 256 && (most == 320 || pixels == tile));
            assert!(wide.grid.shared as usize <= MACHINE.shared);
        });
    }

    /// With stride 2 a row of 200 results reads 400 pixels: no box is as long. No network of the zoo is so wide.
    #[test]
    fn rows_longer_than_a_box_are_left_to_other_kernels() {
        let of = |stride: i32| {
            let (side, [cp, op, o], [n, kh, kw]) = (200, [64; 3], [2, 3, 3]);
            let [h, w] = [side * stride; 2];
            let geometry = ConvGeometry {
                n,
                h,
                w,
                cp,
                oh: side,
                ow: side,
                op,
                o,
                kh,
                kw,
                mul: stride,
                off_y: 1,
                off_x: 1,
                div: 1,
            };
            convolution(&geometry, false, MACHINE)
        };
        assert!(of(1).is_some() && of(2).is_none());
    }

    /// Tiles of WRN-28-10 waste nothing; odd widths take what covers them best; few pixels are divided among more blocks.
    #[test]
    fn tiles_are_as_wide_as_the_layer() {
        let of =
            |replicas, channels, tiles| columns_of_tile(channels, tiles, Machine { replicas, ..MACHINE });
        assert_eq!([of(1, 160, 512), of(1, 320, 128), of(1, 640, 32)], [160; 3]);
        assert_eq!([64, 72, 128, 256].map(|channels| of(4, channels, 500)), [64, 128, 128, 128]);
        assert_eq!([of(4, 512, 8), of(4, 512, 2), of(4, 256, 8)], [128, 64, 64]);
    }
}

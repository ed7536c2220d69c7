//! Blocked activations: sixteen channels next to each other, and a border of zeros around each plane.
//!
//! A batch is stored image by image, block of sixteen channels by block, row by row, pixel by pixel. The sixteen
//! channels of a pixel fill one cache line. The border of a plane is as wide as the widest convolution of the network
//! needs, so that no kernel tests for edges. Nothing writes to the border, nor to the lanes of channels that do not
//! exist.

use super::simd::{F32x16, WIDTH};
use crate::Shape;

/// The layout of a node's activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blocked {
    pub(crate) shape: Shape,
    pub(crate) border: usize,
}

impl Blocked {
    /// Blocks of channels.
    pub(crate) fn blocks(&self) -> usize {
        self.shape.channels.div_ceil(WIDTH)
    }

    /// Vectors in a row, border included.
    pub(crate) fn row(&self) -> usize {
        self.shape.width + 2 * self.border
    }

    /// Vectors in a plane, border included.
    pub(crate) fn plane(&self) -> usize {
        self.row() * (self.shape.height + 2 * self.border)
    }

    /// Vectors in an image.
    pub(crate) fn image(&self) -> usize {
        self.plane() * self.blocks()
    }

    /// The index of the first pixel of row `y` in a plane.
    pub(crate) fn start(&self, y: usize) -> usize {
        (y + self.border) * self.row() + self.border
    }

    /// Channels that exist in a block.
    pub(crate) fn lanes(&self, block: usize) -> usize {
        (self.shape.channels - block * WIDTH).min(WIDTH)
    }

    /// Stores an image given in plain order: channel by channel, row by row.
    pub(crate) fn pack(&self, plain: &[f32], image: &mut [F32x16]) {
        self.put(plain, image, |to, value| *to = value);
    }

    /// Adds an image given in plain order.
    pub(crate) fn pack_add(&self, plain: &[f32], image: &mut [F32x16]) {
        self.put(plain, image, |to, value| *to += value);
    }

    #[inline(always)]
    fn put(&self, plain: &[f32], image: &mut [F32x16], each: impl Fn(&mut f32, f32)) {
        let Shape { height, width, .. } = self.shape;
        for (channel, plane) in plain.chunks_exact(self.shape.area()).enumerate() {
            let (block, lane) = (channel / WIDTH, channel % WIDTH);
            for y in 0..height {
                let start = block * self.plane() + self.start(y);
                for (line, &value) in image[start..start + width].iter_mut().zip(&plane[y * width..][..width])
                {
                    each(&mut line.0[lane], value);
                }
            }
        }
    }

    /// Writes an image in plain order.
    pub(crate) fn unpack(&self, image: &[F32x16], plain: &mut [f32]) {
        let Shape { height, width, .. } = self.shape;
        for (channel, plane) in plain.chunks_exact_mut(self.shape.area()).enumerate() {
            let (block, lane) = (channel / WIDTH, channel % WIDTH);
            for y in 0..height {
                let start = block * self.plane() + self.start(y);
                for (line, value) in image[start..start + width].iter().zip(&mut plane[y * width..][..width])
                {
                    *value = line.0[lane];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_goes_both_ways_and_leaves_the_border_alone() {
        for (channels, height, width, border) in [(1, 3, 2, 1), (16, 2, 5, 0), (37, 4, 3, 2)] {
            let blocked = Blocked { shape: Shape { channels, height, width }, border };
            let plain: Vec<f32> = (1..=blocked.shape.len()).map(|x| x as f32).collect();
            let mut image = vec![F32x16::ZERO; blocked.image()];
            blocked.pack(&plain, &mut image);
            let mut back = vec![0.0; plain.len()];
            blocked.unpack(&image, &mut back);
            assert_eq!(back, plain);
            let zeros = image.iter().flat_map(|line| line.0).filter(|&x| x == 0.0).count();
            assert_eq!(zeros, image.len() * WIDTH - plain.len());
        }
    }
}

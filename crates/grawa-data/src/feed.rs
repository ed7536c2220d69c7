//! Fills batches: bytes in, normalised floats out.
//!
//! A [`Feed`] is a split of a data set together with how it is shown. Filling copies rows through a table of
//! 256 floats for each channel and allocates nothing; pictures are decoded, cut and resized on all cores.

use crate::augment::Window;
use crate::error::{Error, Result};
use crate::picture::{self, Picture};
use crate::{Augment, Crop, Images, Normalise, Shape, Split, folder};
use fast_image_resize::Resizer;
use grawa_core::Key;
use rayon::prelude::*;
use std::path::Path;

/// A split of a data set and how it is shown to a network.
///
/// ```
/// use grawa_core::{Key, Purpose};
/// use grawa_data::{Augment, Feed, Sampler, digits};
///
/// let set = digits()?;
/// let feed = Feed::new(&set.train, &set.normalise, Augment::NONE)?;
/// let order = Sampler::new(36, feed.len(), 4, 32)?;
/// let (worker, step) = (2, 100);
/// let mut images = vec![0.0; 32 * feed.output().len()];
/// let mut labels = vec![0; 32];
/// let key = Key::new(36, Purpose::Augment).worker(worker).step(step);
/// feed.augmented(key, &order.batch(worker, step)?, &mut images, &mut labels)?;
/// # Ok::<(), grawa_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Feed {
    part: Split,
    augment: Augment,
    output: Shape,
    table: Vec<[f32; 256]>,
}

impl Feed {
    /// `part` shown with `augment` for training and with its counterpart for evaluation.
    pub fn new(part: &Split, normalise: &Normalise, augment: Augment) -> Result<Self> {
        let shape = part.shape();
        normalise.check(shape)?;
        augment.check_for(shape, !matches!(part.images(), Images::Bytes(_)))?;
        let output = augment.output(shape);
        Ok(Feed { part: part.clone(), augment, output, table: normalise.table() })
    }

    /// The shape of its images.
    pub fn output(&self) -> Shape {
        self.output
    }

    /// How many examples there are.
    pub fn len(&self) -> usize {
        self.part.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.part.is_empty()
    }

    /// The split it shows.
    pub fn split(&self) -> &Split {
        &self.part
    }

    /// How training images are changed.
    pub fn augment(&self) -> Augment {
        self.augment
    }

    /// The float of each byte, one table for each channel.
    pub fn table(&self) -> &[[f32; 256]] {
        &self.table
    }

    /// Writes the examples `indices`, augmented by the draws at `key`'s worker and step, and their labels.
    pub fn augmented(&self, key: Key, indices: &[u32], images: &mut [f32], labels: &mut [u32]) -> Result<()> {
        self.fill(Some(key), indices, images, labels)
    }

    /// Writes the examples `indices` as evaluation shows them, and their labels.
    pub fn plain(&self, indices: &[u32], images: &mut [f32], labels: &mut [u32]) -> Result<()> {
        self.fill(None, indices, images, labels)
    }

    /// Writes the `number`-th batch of all examples in their order, as large as `labels`, as evaluation shows
    /// them. Returns how many are real: in the last batch the rest is zero and must not be counted; past the
    /// end none is.
    pub fn evaluation(&self, number: usize, images: &mut [f32], labels: &mut [u32]) -> Result<usize> {
        self.room(labels.len(), images.len(), labels.len())?;
        let start = number.saturating_mul(labels.len()).min(self.len());
        let real = labels.len().min(self.len() - start);
        let (shown, rest) = images.split_at_mut(real * self.output.len());
        rest.fill(0.0);
        labels[real..].fill(0);
        labels[..real].copy_from_slice(&self.part.labels()[start..start + real]);
        self.show(None, real, |at| start + at, shown)?;
        Ok(real)
    }

    fn room(&self, examples: usize, images: usize, labels: usize) -> Result<()> {
        let expected = examples.saturating_mul(self.output.len());
        if images != expected {
            return Err(Error::WrongRoom("the batch's images", images, expected));
        }
        if labels != examples {
            return Err(Error::WrongRoom("the batch's labels", labels, examples));
        }
        Ok(())
    }

    fn fill(&self, key: Option<Key>, indices: &[u32], images: &mut [f32], labels: &mut [u32]) -> Result<()> {
        self.room(indices.len(), images.len(), labels.len())?;
        for (label, &index) in labels.iter_mut().zip(indices) {
            let limit = self.len() as u64;
            let known = self.part.labels().get(index as usize);
            *label = *known.ok_or(Error::OutOfRange("example", index.into(), limit))?;
        }
        self.show(key, indices.len(), |at| indices[at] as usize, images)
    }

    /// Writes `count` images, the `at`-th being example `index(at)`, which exists.
    fn show(
        &self,
        key: Option<Key>,
        count: usize,
        index: impl Fn(usize) -> usize + Sync,
        images: &mut [f32],
    ) -> Result<()> {
        let n = self.output.len().max(1);
        match self.part.images() {
            Images::Bytes(bytes) => {
                let size = self.part.shape().len();
                for (at, out) in images.chunks_exact_mut(n).enumerate().take(count) {
                    let image = &bytes[index(at) * size..][..size];
                    self.cut::<1>(image, self.part.shape(), self.window(key, at as u32), out);
                }
                Ok(())
            }
            Images::Files(files) => images.par_chunks_exact_mut(n).enumerate().try_for_each_init(
                Resizer::new,
                |resizer, (at, out)| {
                    let path = &files[index(at)];
                    let picture = picture::decode(&folder::read(path)?, path)?;
                    self.picture(key, at as u32, &picture, path, out, resizer)
                },
            ),
            Images::Pictures(pictures) => images.par_chunks_exact_mut(n).enumerate().try_for_each_init(
                Resizer::new,
                |resizer, (at, out)| {
                    let (path, picture) = &pictures[index(at)];
                    self.picture(key, at as u32, picture, path, out, resizer)
                },
            ),
        }
    }

    /// Where the crop of example `at` of a batch lies, with the padding around the image: drawn, or in the middle.
    fn window(&self, key: Option<Key>, at: u32) -> (u32, Window) {
        let (shape, to) = (self.part.shape(), self.output);
        match (key, self.augment.crop) {
            (Some(key), Crop::Random { pad, .. }) => (pad, self.augment.window(key, at, shape)),
            (Some(key), _) => (0, self.augment.window(key, at, shape)),
            (None, _) => {
                let middle = |side: u32, size: u32| side.saturating_sub(size) / 2;
                let (row, column) = (middle(shape.height, to.height), middle(shape.width, to.width));
                (0, Window { flip: false, row, column })
            }
        }
    }

    /// Copies one crop of an image through the table. Its pixels have `STEP` bytes: 1 if it is one plane after the other, 3 if red,
    /// green and blue alternate.
    fn cut<const STEP: usize>(
        &self,
        image: &[u8],
        shape: Shape,
        (pad, window): (u32, Window),
        out: &mut [f32],
    ) {
        let to = self.output;
        let (height, width, pad) = (shape.height as usize, shape.width as usize, pad as usize);
        let (row, column) = (window.row as usize, window.column as usize);
        // Columns of the output that lie inside the image, and where the first of them lies in it.
        let first = pad.saturating_sub(column).min(to.width as usize);
        let last = (pad + width).saturating_sub(column).min(to.width as usize);
        // A crop may lie entirely in the padding.
        let (first, last) = if first < last { (first, last) } else { (0, 0) };
        let source = match (first < last, window.flip) {
            (false, _) => 0,
            (true, false) => column + first - pad,
            (true, true) => pad + width - column - last,
        };
        for (channel, (out, table)) in out.chunks_exact_mut(to.plane()).zip(&self.table).enumerate() {
            // `%` shows the compiler that the byte is inside its pixel.
            let (start, byte) = (if STEP == 1 { channel * shape.plane() } else { 0 }, channel % STEP);
            let plane = &image[start..];
            for (y, line) in out.chunks_exact_mut(to.width as usize).enumerate() {
                let Some(y) = (y + row).checked_sub(pad).filter(|&y| y < height) else {
                    line.fill(table[0]);
                    continue;
                };
                line[..first].fill(table[0]);
                line[last..].fill(table[0]);
                let from = plane[STEP * (y * width + source)..][..STEP * (last - first)].chunks_exact(STEP);
                let copy = |(to, pixel): (&mut f32, &[u8])| *to = table[usize::from(pixel[byte])];
                let line = line[first..last].iter_mut();
                if window.flip {
                    line.zip(from.rev()).for_each(copy);
                } else {
                    line.zip(from).for_each(copy);
                }
            }
        }
    }

    /// Writes a picture, which is that of a file, as example `at` of a batch.
    fn picture(
        &self,
        key: Option<Key>,
        at: u32,
        picture: &Picture,
        path: &Path,
        out: &mut [f32],
        resizer: &mut Resizer,
    ) -> Result<()> {
        let resized;
        let (picture, window) = match (key, self.augment.crop) {
            (Some(key), Crop::Resized { size, .. }) => {
                let (flip, part) = self.augment.resized(key, at, picture.height, picture.width);
                resized = picture.resized(part, size, size, resizer)?;
                (&resized, (0, Window { flip, row: 0, column: 0 }))
            }
            (None, Crop::Resized { size, .. }) => {
                let (whole, row, column) = picture.shortened(size, resizer)?;
                resized = whole;
                (&resized, (0, Window { flip: false, row, column }))
            }
            _ if picture.shape() == self.part.shape() => (picture, self.window(key, at)),
            _ => {
                let (found, expected) = (picture.shape(), self.part.shape());
                let remedy = "use 'resizedN' for pictures of any size";
                return Err(Error::File(format!(
                    "{path:?} is {found}, but this set's pictures are {expected}; {remedy}"
                )));
            }
        };
        self.cut::<3>(&picture.pixels, picture.shape(), window, out);
        Ok(())
    }
}

#[cfg(test)]
mod tests;

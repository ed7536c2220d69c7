//! A data set on the GPU, as bytes, and how batches are shown from it.
//!
//! The host deals: it says which examples each worker sees in each of the next steps. The GPU mirrors, crops and
//! normalises by the same draws as the CPU, so that both see the same batches, bit by bit.

use super::compile::pitch;
use super::device::{Grid, Memory, at};
use super::limits;
use super::pass::Pass;
use super::replica_set::ReplicaSet;
use crate::{Error, Shape};

/// How an image is shown; see `simple.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ViewArgument {
    n: i32,
    channels: i32,
    h: i32,
    w: i32,
    oh: i32,
    ow: i32,
    pitch: i32,
    pad: i32,
    flip: i32,
    random: i32,
    row: i32,
    column: i32,
}

/// The images and labels of a set, and what bytes become.
#[derive(Clone, Copy, Debug)]
pub struct DatasetBytes<'a> {
    /// The shape of a stored image.
    pub shape: Shape,
    /// Image after image, plane after plane.
    pub images: &'a [u8],
    /// A label for each.
    pub labels: &'a [u32],
    /// What each byte becomes, a table for each channel.
    pub table: &'a [[f32; 256]],
}

/// Which part of an image is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Mirror with probability ½.
    pub flip: bool,
    /// A random crop, after this many rows and columns of zero bytes on each side; else the middle.
    pub crop: Option<u32>,
}

/// Which set of examples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Those that are learnt.
    Train,
    /// Those that models are measured on.
    Test,
}

/// Where the batches of a pass come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// What was shown last.
    Loaded,
    /// What was dealt of the training set, by its view.
    Augmented,
    /// What was dealt of a set, the middle of each image.
    CentreCrop(Split),
}

impl Source {
    /// The set that it deals from.
    pub(crate) fn split(self) -> Option<Split> {
        match self {
            Source::Loaded => None,
            Source::Augmented => Some(Split::Train),
            Source::CentreCrop(split) => Some(split),
        }
    }
}

/// A set on the GPU.
#[derive(Debug)]
pub(crate) struct DeviceDataset {
    bytes: Memory,
    labels: Memory,
    table: Memory,
    order: Memory,
    order_stride: u64,
    /// Whole batches that each worker was dealt.
    assigned: Vec<usize>,
    examples: usize,
    view_argument: ViewArgument,
    centre_crop: Option<ViewArgument>,
}

impl DeviceDataset {
    /// Batches that every worker was dealt.
    pub(crate) fn assigned_to_all(&self) -> usize {
        self.assigned.iter().copied().min().unwrap_or(0)
    }
}

impl ReplicaSet {
    /// Puts a data set on the GPU; if it is the training set, steps read from it from now on. `steps` is how many can be
    /// dealt at a time.
    pub fn load_dataset(
        &mut self,
        split: Split,
        data: DatasetBytes<'_>,
        view: View,
        steps: usize,
    ) -> Result<(), Error> {
        let (from, to) = (data.shape, self.program.graph.input());
        let examples = data.labels.len();
        if examples == 0 {
            return Err(Error::WrongLength { what: "the data set".into(), found: 0, expected: 1 });
        }
        let expect = |what: &str, found: usize, expected: usize| match found == expected {
            true => Ok(()),
            false => Err(Error::WrongLength { what: what.into(), found, expected }),
        };
        expect("the images", data.images.len(), examples * from.len())?;
        expect("the channels of an image", from.channels, to.channels)?;
        expect("the tables of bytes", data.table.len(), from.channels)?;
        let pad = view.crop.unwrap_or(0) as usize;
        if to.height > from.height + 2 * pad || to.width > from.width + 2 * pad {
            return Err(Error::DoesNotFit {
                operation: "the crop".into(),
                found: from,
                expected: format!("at least {to} after padding"),
            });
        }
        let classes = self.program.graph.classes();
        if let Some((example, &label)) =
            data.labels.iter().enumerate().find(|&(_, &label)| label as usize >= classes)
        {
            return Err(Error::LabelOutOfRange { example, found: label.into(), classes });
        }
        let memory = |bytes: usize| Memory::new(&self.context, bytes);
        let bytes = memory(data.images.len())?;
        bytes.write(0, data.images)?;
        let labels = memory(4 * examples)?;
        labels.write(0, data.labels)?;
        let table = memory(data.table.len() * 1024)?;
        table.write(0, data.table)?;
        let order_stride = (steps.max(1) * self.program.batch) as u64;
        let order = memory(self.workers * 4 * order_stride as usize)?;
        let centre_crop = ViewArgument {
            n: self.program.batch as i32,
            channels: from.channels as i32,
            h: from.height as i32,
            w: from.width as i32,
            oh: to.height as i32,
            ow: to.width as i32,
            pitch: pitch(to.channels) as i32,
            pad: 0,
            flip: 0,
            random: 0,
            row: (from.height.saturating_sub(to.height) / 2) as i32,
            column: (from.width.saturating_sub(to.width) / 2) as i32,
        };
        let flip = i32::from(view.flip);
        let view_argument = match view.crop {
            Some(pad) => ViewArgument { pad: pad as i32, flip, random: 1, row: 0, column: 0, ..centre_crop },
            None => ViewArgument { flip, ..centre_crop },
        };
        // What is larger than the images has no middle of theirs.
        let centre_crop = Some(centre_crop).filter(|_| to.height <= from.height && to.width <= from.width);
        self.forget_jobs();
        let assigned = vec![0; self.workers];
        let dataset = DeviceDataset {
            bytes,
            labels,
            table,
            order,
            order_stride,
            assigned,
            examples,
            view_argument,
            centre_crop,
        };
        self.dataset[split as usize] = Some(dataset);
        Ok(())
    }

    /// Deals a worker examples of a set, batch after batch; [`ReplicaSet::place`] says at which step they begin.
    pub fn assign(&mut self, split: Split, worker: usize, examples: &[u32]) -> Result<(), Error> {
        limits::index("worker", worker, self.workers)?;
        let batch = self.program.batch;
        let Some(dataset) = &mut self.dataset[split as usize] else {
            return Err(Error::Device {
                action: "assign examples".into(),
                why: "no data set is on the GPU".into(),
            });
        };
        if let Some(&found) = examples.iter().find(|&&example| example as usize >= dataset.examples) {
            return Err(Error::WrongLength {
                what: "an example's number".into(),
                found: found as usize,
                expected: dataset.examples,
            });
        }
        if examples.len() as u64 > dataset.order_stride {
            return Err(Error::WrongLength {
                what: "the list of examples".into(),
                found: examples.len(),
                expected: dataset.order_stride as usize,
            });
        }
        dataset.order.write(worker * 4 * dataset.order_stride as usize, examples)?;
        dataset.assigned[worker] = examples.len() / batch;
        Ok(())
    }

    /// The batch that a worker was shown last: images of planes, and labels.
    pub fn batch(&self, worker: usize) -> Result<(Vec<f32>, Vec<u32>), Error> {
        let images = self.planes(worker, self.program.values[0], self.program.graph.input())?;
        let mut labels = vec![0u32; self.program.batch];
        self.memory.read(self.offset(worker, self.program.offsets.labels), &mut labels)?;
        Ok((images, labels))
    }

    /// What is stored there for a batch, image after image, plane after plane.
    pub(crate) fn planes(&self, worker: usize, offset: u64, shape: Shape) -> Result<Vec<f32>, Error> {
        let (wide, batch) = (pitch(shape.channels), self.program.batch);
        let numbers = batch * shape.area() * wide;
        let place = self.offset(worker, offset);
        let stored: Vec<f32> = if self.program.wide == 2 {
            let mut bits = vec![0u16; numbers];
            self.memory.read(place, &mut bits)?;
            bits.into_iter().map(|bits| f32::from_bits(u32::from(bits) << 16)).collect()
        } else {
            let mut stored = vec![0.0f32; numbers];
            self.memory.read(place, &mut stored)?;
            stored
        };
        let mut images = Vec::with_capacity(batch * shape.len());
        for image in stored.chunks_exact(shape.area() * wide) {
            for channel in 0..shape.channels {
                images.extend(image.chunks_exact(wide).map(|pixel| pixel[channel]));
            }
        }
        Ok(images)
    }

    /// Fills the batches of all workers.
    pub(crate) fn fill(&self, pass: &Pass<'_>, from: Source) -> Result<(), Error> {
        let (split, is_centre_crop) = match from {
            Source::Loaded => return Ok(()),
            Source::Augmented => (Split::Train, false),
            Source::CentreCrop(split) => (split, true),
        };
        let missing =
            |why: &str| Error::Device { action: "fill a batch from data on the GPU".into(), why: why.into() };
        let dataset = self.dataset[split as usize].as_ref().ok_or_else(|| missing("there are none"))?;
        let view_argument = match is_centre_crop {
            true => dataset
                .centre_crop
                .ok_or_else(|| missing("the images are smaller than what the network takes"))?,
            false => dataset.view_argument,
        };
        let (x, labels) = (pass.base + self.program.values[0], pass.base + self.program.offsets.labels);
        let mut arguments = [
            at(&view_argument),
            at(&pass.base),
            at(&dataset.bytes.start),
            at(&dataset.labels.start),
            at(&dataset.order.start),
            at(&dataset.table.start),
            at(&x),
            at(&labels),
            at(&self.program.slab),
            at(&dataset.order_stride),
        ];
        let pixels = self.program.batch * self.program.graph.input().area();
        pass.start(&self.main, "augment", Grid::row(pixels.div_ceil(256)), &mut arguments)
    }
}

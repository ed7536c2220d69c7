//! A data set on the GPU as bytes, and the batches made from it.
//!
//! The host assigns examples: it says which of them each worker sees in each of the next steps. The GPU mirrors, crops and
//! normalises with the same random draws as the CPU, so both make the same batches, bit for bit.

use super::compile::{bytes, pitch};
use super::device::{Grid, Memory, arguments, integers};
use super::host_step::unpack;
use super::limits;
use super::pass::Pass;
use super::replica_set::ReplicaSet;
use crate::error::expect_len;
use crate::{Error, Shape};

integers! {
    /// How a batch is made from stored images; see `simple.cu`.
    struct ViewArgument { n, channels, h, w, oh, ow, pitch, pad, flip, random, row, column }
}

/// The images and labels of a data set, and the values of bytes.
#[derive(Clone, Copy, Debug)]
pub struct DatasetBytes<'a> {
    /// The shape of a stored image.
    pub shape: Shape,
    /// Image by image, plane by plane.
    pub images: &'a [u8],
    /// A label for each.
    pub labels: &'a [u32],
    /// The value of each byte, one table for each channel.
    pub table: &'a [[f32; 256]],
}

/// The random augmentation of training images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Mirror with probability ½.
    pub flip: bool,
    /// A random crop after padding each side with this many zero bytes; without it, the centre.
    pub crop: Option<u32>,
}

/// A split of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// The training set.
    Train,
    /// The test set.
    Test,
}

/// The source of the batches of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The batches loaded last.
    Loaded,
    /// Assigned examples of the training set, augmented.
    Augmented,
    /// Assigned examples of a split, the centre of each image.
    CentreCrop(Split),
}

impl Source {
    /// The split of the assigned examples.
    pub(crate) fn split(self) -> Option<Split> {
        match self {
            Source::Loaded => None,
            Source::Augmented => Some(Split::Train),
            Source::CentreCrop(split) => Some(split),
        }
    }
}

/// A data set on the GPU.
#[derive(Debug)]
pub(crate) struct DeviceDataset {
    bytes: Memory,
    labels: Memory,
    /// The labels of the training set as each worker sees them in its steps, where they differ.
    own_labels: Option<Memory>,
    table: Memory,
    order: Memory,
    order_stride: u64,
    /// Whole batches assigned to each worker.
    assigned: Vec<usize>,
    examples: usize,
    augmented: ViewArgument,
    centre_crop: Option<ViewArgument>,
}

impl DeviceDataset {
    /// Batches assigned to every worker.
    pub(crate) fn assigned_to_all(&self) -> usize {
        self.assigned.iter().copied().min().unwrap_or(0)
    }
}

impl ReplicaSet {
    /// Copies a data set to the GPU. Steps read from the training set from now on. At most `steps` batches can be assigned at a
    /// time.
    pub fn load_dataset(
        &mut self,
        split: Split,
        data: DatasetBytes<'_>,
        view: View,
        steps: usize,
    ) -> Result<(), Error> {
        let (from, to) = (data.shape, self.program.graph.input());
        let examples = data.labels.len();
        expect_len("the data set", examples.min(1), 1)?;
        expect_len("the images", data.images.len(), examples * from.len())?;
        expect_len("the channels of an image", from.channels, to.channels)?;
        expect_len("the tables of bytes", data.table.len(), from.channels)?;
        let pad = view.crop.unwrap_or(0) as usize;
        if to.height > from.height + 2 * pad || to.width > from.width + 2 * pad {
            return Err(Error::misfit("the crop", from, format!("at least {to} after padding")));
        }
        self.check_labels(data.labels)?;
        let bytes = Memory::holding(&self.context, data.images)?;
        let labels = Memory::holding(&self.context, data.labels)?;
        let table = Memory::holding(&self.context, data.table)?;
        let order_stride = (steps.max(1) * self.program.batch) as u64;
        let order = Memory::new(&self.context, self.workers * 4 * order_stride as usize)?;
        let [n, channels, h, w, oh, ow, pitch] = [
            self.program.batch,
            from.channels,
            from.height,
            from.width,
            to.height,
            to.width,
            pitch(to.channels),
        ]
        .map(|x| x as i32);
        let (pad, flip, random, row, column) = (0, 0, 0, (h - oh).max(0) / 2, (w - ow).max(0) / 2);
        let centre_crop = ViewArgument { n, channels, h, w, oh, ow, pitch, pad, flip, random, row, column };
        let flip = i32::from(view.flip);
        let augmented = match view.crop {
            Some(pad) => ViewArgument { pad: pad as i32, flip, random: 1, row: 0, column: 0, ..centre_crop },
            None => ViewArgument { flip, ..centre_crop },
        };
        // A network that takes larger images than these has no centre crop.
        let centre_crop = Some(centre_crop).filter(|_| to.height <= from.height && to.width <= from.width);
        self.forget_jobs();
        let assigned = vec![0; self.workers];
        let dataset = DeviceDataset {
            bytes,
            labels,
            own_labels: None,
            table,
            order,
            order_stride,
            assigned,
            examples,
            augmented,
            centre_crop,
        };
        self.datasets[split as usize] = Some(dataset);
        Ok(())
    }

    /// Gives each worker its own labels of all training examples, for augmented batches only.
    pub fn load_labels(&mut self, labels: &[&[u32]]) -> Result<(), Error> {
        expect_len("the list of labels", labels.len(), self.workers)?;
        let examples = self.datasets[Split::Train as usize].as_ref().map_or(0, |dataset| dataset.examples);
        for labels in labels {
            expect_len("the labels of a worker", labels.len(), examples)?;
            self.check_labels(labels)?;
        }
        let memory = Memory::holding(&self.context, &labels.concat())?;
        self.forget_jobs();
        if let Some(dataset) = &mut self.datasets[Split::Train as usize] {
            dataset.own_labels = Some(memory);
        }
        Ok(())
    }

    /// Assigns examples of a split to a worker, batch by batch; [`ReplicaSet::set_position`] sets the first step.
    pub fn assign(&mut self, split: Split, worker: usize, examples: &[u32]) -> Result<(), Error> {
        limits::index("worker", worker, self.workers)?;
        let batch = self.program.batch;
        let Some(dataset) = &mut self.datasets[split as usize] else {
            return Err(Error::device("assign examples", "no data set is on the GPU"));
        };
        if let Some(&found) = examples.iter().find(|&&example| example as usize >= dataset.examples) {
            let (what, found) = ("an example's number".into(), found as usize);
            return Err(Error::WrongLength { what, found, expected: dataset.examples });
        }
        let (found, expected) = (examples.len(), dataset.order_stride as usize);
        if found > expected {
            return Err(Error::WrongLength { what: "the list of examples".into(), found, expected });
        }
        dataset.order.write(worker * 4 * dataset.order_stride as usize, examples)?;
        dataset.assigned[worker] = examples.len() / batch;
        Ok(())
    }

    /// The last batch of a worker: images plane by plane, and labels.
    pub fn batch(&self, worker: usize) -> Result<(Vec<f32>, Vec<u32>), Error> {
        let images = self.planes(worker, self.program.values[0], self.program.graph.input())?;
        let mut labels = vec![0u32; self.program.batch];
        self.memory.read(self.offset(worker, self.program.offsets.labels), &mut labels)?;
        Ok((images, labels))
    }

    /// The stored values of a batch, image by image, plane by plane.
    pub(crate) fn planes(&self, worker: usize, offset: u64, shape: Shape) -> Result<Vec<f32>, Error> {
        let (batch, wide) = (self.program.batch, self.program.wide);
        let mut stored = vec![0u8; bytes(shape, batch, wide)];
        self.memory.read(self.offset(worker, offset), &mut stored)?;
        Ok(unpack(shape, batch, wide, &stored))
    }

    /// Enqueues the batches of all workers.
    pub(crate) fn fill(&self, pass: &Pass<'_>, from: Source) -> Result<(), Error> {
        let Some(split) = from.split() else { return Ok(()) };
        let is_centre_crop = from != Source::Augmented;
        let missing = |why: &str| Error::device("make a batch from data on the GPU", why);
        let dataset =
            self.datasets[split as usize].as_ref().ok_or_else(|| missing("no data set is there"))?;
        let view = match is_centre_crop {
            true => dataset
                .centre_crop
                .ok_or_else(|| missing("the images are smaller than the network's input"))?,
            false => dataset.augmented,
        };
        let [x, labels] = [self.program.values[0], self.program.offsets.labels].map(|o| pass.base + o);
        let (all_labels, label_stride) = match dataset.own_labels.as_ref().filter(|_| !is_centre_crop) {
            Some(own) => (own.start, dataset.examples as u64),
            None => (dataset.labels.start, 0),
        };
        let [bytes, order, table] =
            [&dataset.bytes, &dataset.order, &dataset.table].map(|memory| memory.start);
        let (base, slab, stride) = (pass.base, self.program.slab, dataset.order_stride);
        let pixels = self.program.batch * self.program.graph.input().area();
        let arguments =
            arguments![view, base, bytes, all_labels, order, table, x, labels, slab, stride, label_stride];
        pass.start(&self.main, "augment", Grid::row(pixels.div_ceil(256)), arguments)
    }
}

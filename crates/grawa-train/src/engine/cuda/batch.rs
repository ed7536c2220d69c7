//! The batches of a GPU's workers: indices of examples on the GPU, or images from the host if the data set is too large or
//! in files.

use crate::Error;
use grawa_core::Key;
use grawa_data::{Feed, Loader, PrefetchLoader, Sampler, WorkerSampler};
use grawa_nn::cuda::ReplicaSet;
use std::time::Instant;

/// Batches prepared ahead on the host, if the data are not on the GPU.
const AHEAD: usize = 2;

/// A batch of one worker.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Batch {
    /// Examples on the GPU.
    Examples(Vec<u32>),
    /// Images and labels.
    Images(Vec<f32>, Vec<u32>),
}

/// The data of a run.
#[derive(Clone, Debug)]
pub(super) struct Data {
    pub(super) order: Sampler,
    pub(super) train: Feed,
    pub(super) test: Feed,
    /// Whether the data are on the GPU.
    pub(super) on_device: bool,
}

impl Data {
    /// A batch of training examples, augmented with the draws at `key` if there is one.
    pub(super) fn train_batch(&self, key: Option<Key>, examples: Vec<u32>) -> Result<Batch, Error> {
        if self.on_device {
            return Ok(Batch::Examples(examples));
        }
        host_batch(&self.train, examples.len(), |images, labels| match key {
            Some(key) => self.train.augmented(key, &examples, images, labels),
            None => self.train.plain(&examples, images, labels),
        })
    }

    /// A batch of the test set, padded with its last example.
    pub(super) fn test_batch(&self, number: usize) -> Result<Batch, Error> {
        let size = self.order.batch_size() as usize;
        if self.on_device {
            let last = self.test.len().saturating_sub(1);
            let examples = number * size..(number + 1) * size;
            return Ok(Batch::Examples(examples.map(|example| example.min(last) as u32).collect()));
        }
        host_batch(&self.test, size, |images, labels| {
            self.test.evaluation(number, images, labels).map(|_| ())
        })
    }
}

/// A batch of `size` examples that `fill` writes on the host.
fn host_batch(
    feed: &Feed,
    size: usize,
    fill: impl FnOnce(&mut [f32], &mut [u32]) -> Result<(), grawa_data::Error>,
) -> Result<Batch, Error> {
    let (mut images, mut labels) = (vec![0.0; size * feed.output().len()], vec![0; size]);
    fill(&mut images, &mut labels)?;
    Ok(Batch::Images(images, labels))
}

/// A worker's stream of training batches.
#[derive(Debug)]
pub(super) struct Stream {
    cursor: WorkerSampler,
    reader: Loader,
    /// Batches from the host and the step of the next one, if the data are not on the GPU.
    host_batches: Option<(Option<PrefetchLoader>, u64)>,
    /// Seconds waited for data.
    pub(super) waited: f64,
}

impl Stream {
    /// The stream of a shard, from this step on.
    pub(super) fn new(data: &Data, order: &Sampler, shard: u32, step: u64) -> Result<Self, Error> {
        Ok(Stream {
            cursor: order.for_worker(shard)?,
            reader: Loader::new(data.train.clone(), order, shard)?,
            host_batches: (!data.on_device).then_some((None, step)),
            waited: 0.0,
        })
    }

    /// The labels as its worker sees them, where some are wrong.
    pub(super) fn labels(&self) -> Option<&[u32]> {
        self.reader.labels()
    }

    /// The batches of `count` steps.
    pub(super) fn batches(&mut self, first: u64, count: usize) -> Result<Vec<Batch>, Error> {
        (first..first + count as u64).map(|step| self.batch(step)).collect()
    }

    fn batch(&mut self, step: u64) -> Result<Batch, Error> {
        let Some((prefetch, next)) = &mut self.host_batches else {
            return Ok(Batch::Examples(self.cursor.batch(step)?.to_vec()));
        };
        if prefetch.is_none() || *next != step {
            *prefetch = Some(PrefetchLoader::training(self.reader.clone(), step, AHEAD)?);
        }
        *next = step + 1;
        let start = Instant::now();
        let Some(prefetch) = prefetch else {
            return Err(grawa_data::Error::NoMoreBatches { panicked: false }.into());
        };
        prefetch.fetch()?;
        self.waited += start.elapsed().as_secs_f64();
        let batch = prefetch.current().ok_or(grawa_data::Error::NoMoreBatches { panicked: false })?;
        Ok(Batch::Images(batch.images.clone(), batch.labels.clone()))
    }
}

/// Loads batches that come from the host. Otherwise returns the examples to assign.
pub(super) fn load_host_batches(
    set: &mut ReplicaSet,
    batches: Vec<Batch>,
) -> Result<Option<Vec<Vec<u32>>>, Error> {
    let mut examples = Vec::with_capacity(batches.len());
    let mut shown = Vec::with_capacity(batches.len());
    for batch in batches {
        match batch {
            Batch::Examples(numbers) => examples.push(numbers),
            Batch::Images(images, labels) => shown.push((images, labels)),
        }
    }
    if shown.is_empty() {
        return Ok(Some(examples));
    }
    let shown: Vec<(&[f32], &[u32])> =
        shown.iter().map(|(images, labels)| (images.as_slice(), labels.as_slice())).collect();
    set.load_batches(&shown)?;
    Ok(None)
}

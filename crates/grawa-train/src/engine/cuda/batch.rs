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

    /// Calls `show` with the logits and the label of every example of a test batch.
    pub(super) fn each_example(
        &self,
        classes: usize,
        (number, logits): &(usize, Vec<f32>),
        show: &mut dyn FnMut(&[f32], usize),
    ) {
        // The last batch is padded: there are no labels for the rest of it.
        let labels = self.test.split().labels().iter().skip(number * self.order.batch_size() as usize);
        for (logits, &label) in logits.chunks_exact(classes).zip(labels) {
            show(logits, label as usize);
        }
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
    /// Examples that were found ahead: the first step and the number of steps.
    ahead: Option<(u64, u64, Vec<u32>)>,
    /// Batches from the host and the step of the next one, once the first was asked for.
    prefetch: Option<(PrefetchLoader, u64)>,
    /// Seconds waited for data.
    pub(super) waited: f64,
}

impl Stream {
    /// The stream of a shard.
    pub(super) fn new(data: &Data, order: &Sampler, shard: u32) -> Result<Self, Error> {
        Ok(Stream {
            cursor: order.for_worker(shard)?,
            reader: Loader::new(data.train.clone(), order, shard)?,
            ahead: None,
            prefetch: None,
            waited: 0.0,
        })
    }

    /// The labels as its worker sees them, where some are wrong.
    pub(super) fn labels(&self) -> Option<&[u32]> {
        self.reader.labels()
    }

    /// The examples of `count` steps, one batch after the other.
    pub(super) fn examples(&mut self, first: u64, count: u64) -> Result<Vec<u32>, Error> {
        if let Some((step, steps, examples)) = self.ahead.take()
            && (step, steps) == (first, count)
        {
            return Ok(examples);
        }
        let mut examples = Vec::new();
        for step in first..first + count {
            examples.extend_from_slice(self.cursor.batch(step)?);
        }
        Ok(examples)
    }

    /// Finds the examples of `count` steps that are likely next. Where an epoch begins, that is a permutation of all examples, for
    /// which the GPU would wait.
    pub(super) fn look_ahead(&mut self, first: u64, count: u64) {
        // An error is reported when they are asked for.
        self.ahead = self.examples(first, count).ok().map(|examples| (first, count, examples));
    }

    /// The images and labels of a step, prepared ahead on the host.
    pub(super) fn host_batch(&mut self, step: u64) -> Result<(&[f32], &[u32]), Error> {
        let (prefetch, next) = match self.prefetch.take() {
            Some((prefetch, next)) if next == step => self.prefetch.insert((prefetch, next)),
            _ => {
                let prefetch = PrefetchLoader::training(self.reader.clone(), step, AHEAD)?;
                self.prefetch.insert((prefetch, step))
            }
        };
        let start = Instant::now();
        let batch = prefetch.fetch()?;
        self.waited += start.elapsed().as_secs_f64();
        *next += 1;
        Ok((&batch.images, &batch.labels))
    }

    /// Begins anew with the batch that is asked for next.
    pub(super) fn forget_host_batches(&mut self) {
        self.prefetch = None;
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

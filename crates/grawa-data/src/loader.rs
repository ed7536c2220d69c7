//! Loads training batches, also in the background while the network computes.
//!
//! One thread fills batches in order and sends them through a bounded channel; used batches go back to it, so nothing is
//! allocated in the steady state. The order of the batches does not depend on the thread.

use crate::error::{Error, Result};
use crate::{Feed, Sampler, WorkerSampler};
use grawa_core::{Key, Purpose};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

/// Images and labels ready for a network.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Normalised images, planes one after the other (NCHW).
    pub images: Vec<f32>,
    /// Their labels.
    pub labels: Vec<u32>,
}

impl Batch {
    /// A batch of `size` images as `feed` gives them, all zero.
    pub fn new(feed: &Feed, size: usize) -> Self {
        Batch { images: vec![0.0; size * feed.output().len()], labels: vec![0; size] }
    }
}

/// A worker's endless stream of training batches: its shard in its order, augmented.
///
/// ```
/// use grawa_data::{Augment, Batch, Feed, Sampler, PrefetchLoader, Loader, digits};
/// let set = digits()?;
/// let feed = Feed::new(&set.train, &set.normalise, Augment::NONE)?;
/// let order = Sampler::new(36, feed.len(), 4, 32)?;
/// let mut loader = Loader::new(feed.clone(), &order, 2)?;
/// let mut batch = Batch::new(&feed, 32);
/// loader.fill(0, &mut batch)?;
///
/// // The same batches, prepared in the background, from step 0 on.
/// let mut ahead = PrefetchLoader::training(loader, 0, 2)?;
/// assert_eq!(ahead.fetch()?, &batch);
/// # Ok::<(), grawa_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Loader {
    feed: Feed,
    sampler: WorkerSampler,
    key: Key,
    /// The labels as this worker sees them, where some are wrong.
    labels: Option<Arc<Vec<u32>>>,
}

impl Loader {
    /// The stream of `worker`; augmentation uses the seed of `sampler`.
    pub fn new(feed: Feed, sampler: &Sampler, worker: u32) -> Result<Self> {
        if sampler.examples() as usize != feed.len() {
            let (found, expected) = (sampler.examples() as usize, feed.len());
            return Err(Error::WrongRoom("the sampler", found, expected));
        }
        let key = Key::new(sampler.seed(), Purpose::Augment).worker(worker);
        let labels = sampler.labels(worker).map(Arc::new);
        let sampler = sampler.for_worker(worker)?;
        Ok(Loader { feed, sampler, key, labels })
    }

    /// Writes the batch of `step`.
    pub fn fill(&mut self, step: u64, batch: &mut Batch) -> Result<()> {
        let indices = self.sampler.batch(step)?;
        self.feed.augmented(self.key.step(step), indices, &mut batch.images, &mut batch.labels)?;
        if let Some(labels) = &self.labels {
            batch.labels.iter_mut().zip(indices).for_each(|(label, &index)| *label = labels[index as usize]);
        }
        Ok(())
    }

    /// The labels as this worker sees them, where some are wrong.
    pub fn labels(&self) -> Option<&[u32]> {
        self.labels.as_ref().map(|labels| labels.as_slice())
    }
}

/// A thread that prepares batches ahead. Dropping it ends the thread.
#[derive(Debug)]
pub struct PrefetchLoader {
    /// Filled batches, and used ones on their way back. Dropped before the thread is joined.
    channels: Option<(Receiver<Result<Batch>>, Sender<Batch>)>,
    current: Option<Batch>,
    thread: Option<JoinHandle<()>>,
    failed: bool,
}

impl PrefetchLoader {
    /// The training batches of `loader` from step `first` on, at most `depth` ahead.
    pub fn training(mut loader: Loader, first: u64, depth: usize) -> Result<Self> {
        let size = loader.sampler.sampler.batch_size() as usize;
        let empty = Batch::new(&loader.feed, size);
        Self::new(empty, first, depth, move |step, batch| loader.fill(step, batch))
    }

    /// Batches `first`, `first` + 1, … made by `make`, at most `depth` ahead; all are clones of `empty` at first.
    ///
    /// [`PrefetchLoader::fetch`] returns an error of `make` in its turn; the thread then ends.
    pub fn new(
        empty: Batch,
        first: u64,
        depth: usize,
        mut make: impl FnMut(u64, &mut Batch) -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        let depth = depth.max(1);
        let (to_user, ready): (SyncSender<Result<Batch>>, _) = sync_channel(depth);
        let (used, from_user) = channel::<Batch>();
        // One more than the channel holds: the one in use.
        for _ in 0..depth {
            // The receiver is in scope: sending cannot fail.
            let _ = used.send(empty.clone());
        }
        let _ = used.send(empty);
        let work = move || {
            for (step, mut batch) in (first..).zip(from_user.iter()) {
                let made = make(step, &mut batch);
                let failed = made.is_err();
                // The receiver is gone, or an error ended the stream: the thread is done.
                if to_user.send(made.map(|()| batch)).is_err() || failed {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("grawa-data".to_owned())
            .spawn(work)
            .map_err(crate::error::io("start a thread in", "this process".as_ref()))?;
        let (channels, thread) = (Some((ready, used)), Some(thread));
        Ok(PrefetchLoader { channels, current: None, thread, failed: false })
    }

    /// The batch that was fetched last.
    pub fn current(&self) -> Option<&Batch> {
        self.current.as_ref()
    }

    /// The next batch; the one before goes back to be filled again.
    pub fn fetch(&mut self) -> Result<&Batch> {
        let received = self.channels.as_ref().and_then(|(ready, used)| {
            if let Some(batch) = self.current.take() {
                // The thread may have ended after an error that is still to be fetched.
                let _ = used.send(batch);
            }
            ready.recv().ok()
        });
        match received {
            Some(Ok(batch)) => Ok(self.current.insert(batch)),
            Some(Err(error)) => {
                self.failed = true;
                Err(error)
            }
            None => Err(Error::NoMoreBatches { panicked: !self.failed }),
        }
    }
}

impl Drop for PrefetchLoader {
    fn drop(&mut self) {
        // Without channels the thread finishes its current batch and ends.
        self.channels = None;
        if let Some(thread) = self.thread.take() {
            // A panic there was reported as NoMoreBatches; a destructor must not panic again.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Shape, Split};
    use std::sync::atomic::{AtomicU64, Ordering};

    fn loader(worker: u32) -> Loader {
        let shape = Shape::new(1, 6, 6);
        let part =
            Split::from_bytes(shape, (0..36 * 10).map(|i| i as u8).collect(), (0..10).collect(), 10).unwrap();
        let normalise = crate::Normalise::new(255.0, &[0.5], &[0.5]);
        let feed = Feed::new(&part, &normalise, "flip+pad1crop5".parse().unwrap()).unwrap();
        Loader::new(feed, &Sampler::new(5, 10, 3, 4).unwrap(), worker).unwrap()
    }

    #[test]
    fn gives_the_reader_s_batches_in_order() {
        let mut plain = loader(1);
        let mut batch = Batch::new(&plain.feed, 4);
        for (first, depth) in [(0, 1), (7, 3), (1 << 40, 2), (0, 0)] {
            let mut ahead = PrefetchLoader::training(loader(1), first, depth).unwrap();
            for step in first..first + 20 {
                plain.fill(step, &mut batch).unwrap();
                assert_eq!(ahead.fetch().unwrap(), &batch);
            }
        }
    }

    #[test]
    fn buffers_go_round() {
        let mut ahead = PrefetchLoader::training(loader(0), 0, 2).unwrap();
        let mut places = std::collections::BTreeSet::new();
        for _ in 0..50 {
            places.insert(ahead.fetch().unwrap().images.as_ptr() as usize);
        }
        assert!(places.len() <= 3, "{}", places.len());
    }

    #[test]
    fn an_error_comes_in_its_turn() {
        let make = |step, _: &mut Batch| match step {
            3 => Err(Error::OutOfRange("test", 3, 3)),
            _ => Ok(()),
        };
        let mut ahead = PrefetchLoader::new(Batch::default(), 0, 8, make).unwrap();
        for _ in 0..3 {
            ahead.fetch().unwrap();
        }
        assert!(ahead.fetch().unwrap_err().to_string().contains("no test 3"));
        assert!(ahead.fetch().unwrap_err().to_string().contains("after an earlier error"));
    }

    #[test]
    fn a_panic_is_an_error_for_the_reader() {
        let mut ahead = PrefetchLoader::new(Batch::default(), 0, 1, |_, _| panic!("on purpose")).unwrap();
        assert!(matches!(ahead.fetch(), Err(Error::NoMoreBatches { panicked: true })));
    }

    #[test]
    fn dropping_ends_the_thread_and_it_never_runs_far_ahead() {
        let made = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&made);
        let make = move |_, _: &mut Batch| {
            count.fetch_add(1, Ordering::SeqCst);
            Ok(())
        };
        let mut ahead = PrefetchLoader::new(Batch::default(), 0, 3, make).unwrap();
        for _ in 0..10 {
            ahead.fetch().unwrap();
        }
        drop(ahead);
        // The thread has been joined: nobody else holds the counter.
        assert_eq!(Arc::strong_count(&made), 1);
        assert!(made.load(Ordering::SeqCst) <= 14);
    }

    #[test]
    fn an_order_of_another_set_is_refused() {
        let feed = loader(0).feed;
        assert!(Loader::new(feed, &Sampler::new(5, 11, 3, 4).unwrap(), 0).is_err());
    }
}

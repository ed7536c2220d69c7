//! Fixed examples for a loss, in batches of one size.
//!
//! With training-mode batch norm an example's loss depends on the others of its batch, so batches,
//! their size and their order are part of the measurement.

use crate::Error;
use grawa_data::{Feed, Sampler};

/// Examples in batches.
#[derive(Clone, Debug, PartialEq)]
pub struct Examples {
    images: Vec<f32>,
    labels: Vec<u32>,
    batch: usize,
}

impl Examples {
    /// These images and labels, in batches of this size. There must be whole batches of them.
    pub fn new(images: Vec<f32>, labels: Vec<u32>, batch: usize) -> Result<Self, Error> {
        if labels.is_empty() || batch == 0 || !labels.len().is_multiple_of(batch) {
            return Err(Error::NotWholeBatches(labels.len(), batch));
        }
        if !images.len().is_multiple_of(labels.len()) {
            let (found, expected) = (images.len(), images.len() / labels.len() * labels.len());
            return Err(grawa_nn::Error::WrongLength { what: "the images".into(), found, expected }.into());
        }
        Ok(Examples { images, labels, batch })
    }

    /// The numbers of `count` different examples out of `len`, chosen by the seed.
    ///
    /// ```
    /// use grawa_data::{Augment, Feed, digits};
    /// use grawa_flat::Examples;
    /// let set = digits()?;
    /// let feed = Feed::new(&set.train, &set.normalise, Augment::NONE)?;
    /// let chosen = Examples::choose(feed.len(), 31, 320)?;
    /// let examples = Examples::of(&feed, &chosen, 32)?;
    /// assert_eq!((examples.len(), examples.batches().count()), (320, 10));
    /// # Ok::<(), grawa_flat::Error>(())
    /// ```
    pub fn choose(len: usize, seed: u64, count: usize) -> Result<Vec<u32>, Error> {
        // The draw of a worker that no run has: these examples were never a run's score batch.
        Ok(Sampler::new(seed, len, 1, 1)?.score_batch(count, u32::MAX, 0)?)
    }

    /// The examples of a feed with these numbers, as evaluation shows them.
    pub fn of(feed: &Feed, chosen: &[u32], batch: usize) -> Result<Self, Error> {
        let (mut images, mut labels) = (vec![0.0; chosen.len() * feed.output().len()], vec![0; chosen.len()]);
        feed.plain(chosen, &mut images, &mut labels)?;
        Examples::new(images, labels, batch)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Never true: there is at least one batch.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Examples in a batch.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Numbers in an image.
    pub fn image(&self) -> usize {
        self.images.len() / self.labels.len()
    }

    /// The batches: images and labels.
    pub fn batches(&self) -> impl Iterator<Item = (&[f32], &[u32])> {
        self.images.chunks_exact(self.batch * self.image()).zip(self.labels.chunks_exact(self.batch))
    }

    /// Checks that a network takes such images.
    pub(crate) fn fit(&self, graph: &grawa_nn::Graph) -> Result<(), Error> {
        let (found, expected) = (self.image(), graph.input().len());
        if found == expected {
            return Ok(());
        }
        let wrong = format!("the images hold {found} numbers each, but {} takes {expected}", graph.name());
        Err(Error::Setting(format!("{wrong}; is it the network of another data set?")))
    }
}

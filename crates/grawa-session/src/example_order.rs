//! The order in which all workers read the examples of a training set.

use crate::DataShard;
use grawa_core::{Key, Purpose};

/// Draws the examples of a [`DataShard`]: every epoch is a permutation of all examples, and workers take them in turn, so that none is
/// read twice in an epoch. `grawa_data::Sampler` has the same order.
///
/// ```
/// use grawa_session::{DataShard, ExampleOrder};
/// let mut order = ExampleOrder::new(7, 6);
/// let mut of = |shard| order.batch(DataShard { shard, of: 2, step: 0 }, 3);
/// let mut all = [of(0), of(1)].concat();
/// all.sort();
/// assert_eq!(all, [0, 1, 2, 3, 4, 5]);
/// ```
#[derive(Clone, Debug)]
pub struct ExampleOrder {
    seed: u64,
    examples: u32,
    /// The permutation of an epoch.
    epoch: Option<(u64, Vec<u32>)>,
}

impl ExampleOrder {
    /// The order of so many examples, at least one.
    pub fn new(seed: u64, examples: u32) -> Self {
        ExampleOrder { seed, examples: examples.max(1), epoch: None }
    }

    /// The examples of a batch.
    pub fn batch(&mut self, at: DataShard, size: u32) -> Vec<u32> {
        let first = u128::from(at.step) * u128::from(size);
        let place = |n: u32| (first + u128::from(n)) * u128::from(at.of) + u128::from(at.shard);
        (0..size).map(|n| self.at(place(n))).collect()
    }

    /// The example at a place of all epochs, one after the other.
    fn at(&mut self, place: u128) -> u32 {
        let examples = u128::from(self.examples);
        let (epoch, rest) = ((place / examples) as u64 & Key::MAX_STEP, (place % examples) as usize);
        if self.epoch.as_ref().is_none_or(|(kept, _)| *kept != epoch) {
            let order = Key::new(self.seed, Purpose::Shuffle).step(epoch).permutation(self.examples);
            self.epoch = Some((epoch, order));
        }
        self.epoch.as_ref().map_or(0, |(_, order)| order[rest])
    }
}

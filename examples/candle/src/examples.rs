//! Made-up examples: points of a plane in two classes, inside a circle and outside.

use grawa_core::{Key, Purpose};

/// Examples to train on.
pub const EXAMPLES: usize = 4096;
/// Examples of a batch.
pub const BATCH: u32 = 16;

/// The example of this number, and its class.
pub(crate) fn example(number: u64) -> ([f32; 2], u32) {
    let mut draws = Key::new(1, Purpose::Problem).step(number).stream();
    let point = [0; 2].map(|_| draws.normal() as f32);
    (point, u32::from(point[0].hypot(point[1]) > 1.2))
}

/// The numbers of the examples that a worker reads in a step: of all examples, it has every `of`-th.
pub fn train_batch(shard: u32, of: u32, step: u64) -> Vec<u64> {
    let first = step * u64::from(BATCH);
    let number = |at| (at * u64::from(of) + u64::from(shard)) % EXAMPLES as u64;
    (first..first + u64::from(BATCH)).map(number).collect()
}

/// The numbers of the examples that a worker is scored on.
pub fn score_batch(key: Key) -> Vec<u64> {
    let mut draws = key.stream();
    (0..BATCH).map(|_| draws.below(EXAMPLES as u64)).collect()
}

/// The numbers of examples that nobody trains on.
pub fn test_set() -> Vec<u64> {
    (EXAMPLES as u64..).take(1000).collect()
}

//! Sessions read the examples in the order of grawa's own workers.

#![allow(clippy::unwrap_used)]

use grawa_data::Sampler;
use grawa_session::{DataShard, ExampleOrder};

#[test]
fn sessions_have_the_order_of_the_sampler() {
    for (examples, of, batch) in [(97, 4, 8), (5, 3, 16), (1000, 1, 33)] {
        let sampler = Sampler::new(7, examples as usize, of, batch).unwrap();
        let mut order = ExampleOrder::new(7, examples);
        for (shard, step) in (0..of).flat_map(|shard| (0..40).map(move |step| (shard, step))) {
            let found = order.batch(DataShard { shard, of, step }, batch);
            assert_eq!(
                found,
                sampler.batch(shard, step).unwrap(),
                "{examples} examples, shard {shard}, step {step}"
            );
        }
    }
}

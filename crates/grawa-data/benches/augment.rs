//! How many images a second one core prepares: `cargo bench -p grawa-data`.

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use grawa_core::{Key, Purpose};
use grawa_data::{DatasetKind, Feed, Sampler, Shape, Split};

const BATCH: usize = 128;
const EXAMPLES: usize = 50_000;

fn main() {
    divan::main();
}

/// A set of CIFAR's size, so that reading it misses the caches as the real one does.
fn cifar(augment: &str) -> Feed {
    let shape = Shape::new(3, 32, 32);
    let bytes = (0..EXAMPLES * shape.len()).map(|i| ((i * 31) >> 3) as u8).collect();
    let part = Split::from_bytes(shape, bytes, vec![0; EXAMPLES], 10).expect("a well-formed set");
    let augment = augment.parse().expect("a known augmentation");
    Feed::new(&part, &DatasetKind::Cifar10.normalise(), augment).expect("it fits")
}

/// Order, draws, copies: all that a training step needs, in images a second.
#[divan::bench(args = ["flip+crop28", "flip+pad4crop32", "none"])]
fn training(bencher: Bencher<'_, '_>, augment: &str) {
    let feed = cifar(augment);
    let mut cursor =
        Sampler::new(36, EXAMPLES, 4, BATCH as u32).and_then(|order| order.for_worker(1)).expect("an order");
    let (mut images, mut labels) = (vec![0.0; BATCH * feed.output().len()], vec![0; BATCH]);
    let mut step = 0;
    bencher.counter(ItemsCount::new(BATCH)).bench_local(|| {
        step += 1;
        let key = Key::new(36, Purpose::Augment).worker(1).step(step);
        let indices = cursor.batch(step).expect("a batch");
        feed.augmented(key, indices, black_box(&mut images), &mut labels).expect("a full batch");
    });
}

/// A permutation of CIFAR and one of ImageNet's size.
#[divan::bench(args = [50_000, 1_281_167])]
fn permutation(bencher: Bencher<'_, '_>, examples: usize) {
    let order = Sampler::new(36, examples, 4, BATCH as u32).expect("an order");
    bencher.counter(ItemsCount::new(examples)).bench_local(|| order.permutation(black_box(3)));
}

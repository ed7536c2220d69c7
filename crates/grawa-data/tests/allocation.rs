//! Filling a batch of images in memory allocates nothing: it is done in every training step.
#![allow(unsafe_code)]

use grawa_core::{Key, Purpose};
use grawa_data::{DatasetKind, Feed, Sampler, Shape, Split};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts the allocations of each thread, so that other tests do not disturb.
struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: everything is handed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn filling_a_batch_allocates_nothing() {
    let part = Split::from_bytes(Shape::new(3, 32, 32), vec![7; 3072 * 500], vec![1; 500], 10).unwrap();
    for network in ["resnet20", "vgg16", "resnet18"] {
        let feed = Feed::new(&part, &DatasetKind::Cifar10.normalise(), DatasetKind::Cifar10.augment(network))
            .unwrap();
        let mut cursor = Sampler::new(1, 500, 2, 50).unwrap().for_worker(0).unwrap();
        let (mut images, mut labels) = (vec![0.0; 50 * feed.output().len()], vec![0; 50]);
        cursor.batch(0).unwrap();
        let before = COUNT.with(Cell::get);
        // Five batches are one epoch of this worker: the permutation is at hand.
        for step in 0..5 {
            let key = Key::new(1, Purpose::Augment).step(step);
            feed.augmented(key, cursor.batch(step).unwrap(), &mut images, &mut labels).unwrap();
        }
        feed.evaluation(3, &mut images, &mut labels).unwrap();
        assert_eq!(COUNT.with(Cell::get), before, "{network}");
    }
}

//! A training step allocates nothing itself: its memory is planned when the program is compiled. What remains is the packing
//! buffer that the `gemm` crate allocates for each product of a linear layer, and the queue of the thread pool, which grows by a
//! block every 63 steps.
#![allow(unsafe_code)]

use grawa_core::{Key, Purpose, Sgd, step::descend};
use grawa_nn::{Arena, Mode, Op, Program, zoo};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts the allocations of all threads, because steps run on pool threads.
struct Counting;

static COUNT: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is forwarded to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
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
fn a_step_allocates_nothing_of_its_own() {
    for (network, threads) in [("digits", 1), ("resnet20", 1), ("resnet20", 2), ("vgg16", 1)] {
        let entry = zoo::find(network).unwrap();
        let graph = entry.build(entry.input, entry.classes).unwrap();
        let program = Program::compile(&graph, 2).unwrap();
        let mut arena = Arena::new(&program, threads).unwrap();
        let mut parameters = graph.initial(1);
        let mut statistics = graph.initial_statistics();
        let (mut velocity, mut gradient) = (vec![0.0; parameters.len()], vec![0.0; parameters.len()]);
        let (images, labels) = (vec![0.1; 2 * graph.input().len()], [0, 1]);
        let mut step = |number| {
            let mode = Mode::Train { dropout: Some(Key::new(1, Purpose::Dropout).step(number)) };
            let batch = (&images[..], &labels[..]);
            program
                .gradient(&mut arena, (&parameters, &statistics), batch, mode, 0.5, &mut gradient)
                .unwrap();
            program.track(&arena, &mut statistics).unwrap();
            descend(&Sgd::default(), 1e-3, &mut parameters, &mut velocity, &gradient, &[]).unwrap();
        };
        // The first steps of a thread allocate what it keeps.
        (0..3).for_each(&mut step);
        let before = COUNT.load(Ordering::Relaxed);
        let steps = 40;
        (3..3 + steps).for_each(step);
        let found = COUNT.load(Ordering::Relaxed) - before;
        let linear = graph.nodes().iter().filter(|node| matches!(node.op, Op::Linear { .. }));
        // One product forward, one backward, and one for every 64 rows of the weights' gradient.
        let products: usize = linear.map(|node| 2 + node.shape.len().div_ceil(64)).sum();
        let allowed = products * steps as usize + 1;
        assert!(found <= allowed, "{network} on {threads} threads: {found} allocations, {allowed} allowed");
    }
}

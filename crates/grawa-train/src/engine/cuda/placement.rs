//! The placement of workers on GPUs.

use std::ops::Range;

/// Places workers on GPUs: consecutive blocks of nearly equal size, larger ones first. Every GPU in use has a worker,
/// so there are as many blocks as GPUs in use.
pub(super) fn place_workers(workers: u32, devices: usize) -> Vec<Range<u32>> {
    let devices = u32::try_from(devices).unwrap_or(u32::MAX).clamp(1, workers.max(1));
    let (size, larger) = (workers / devices, workers % devices);
    let start = |device: u32| device * size + device.min(larger);
    (0..devices).map(|device| start(device)..start(device + 1)).collect()
}

/// Whether the workers of every GPU have taken equally many steps of their cycle. Missing workers were lost; they
/// return at the position of the first.
pub(super) fn in_step(blocks: &[Range<u32>], steps: &[(u32, u64)]) -> bool {
    let first = steps.first().map_or(0, |(_, steps)| *steps);
    let of = |worker: u32| steps.iter().find(|(who, _)| *who == worker).map_or(first, |(_, steps)| *steps);
    blocks.iter().all(|block| block.clone().all(|worker| of(worker) == of(block.start)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn workers_are_dealt_in_blocks() {
        assert_eq!(place_workers(4, 2), [0..2, 2..4]);
        assert_eq!(place_workers(5, 3), [0..2, 2..4, 4..5]);
        assert_eq!(place_workers(2, 8), [0..1, 1..2]);
        assert_eq!(place_workers(4, 1).first(), Some(&(0..4)));
    }

    #[test]
    fn workers_of_a_card_must_be_in_step() {
        let steps = [(0, 3), (1, 3), (2, 0), (3, 0)];
        assert!(in_step(&place_workers(4, 2), &steps) && in_step(&place_workers(4, 4), &steps));
        assert!(
            !in_step(&place_workers(4, 1), &steps)
                && !in_step(&place_workers(4, 3), &[(0, 3), (1, 2), (2, 2), (3, 2)])
        );
        // Worker 3 was lost and returns at the position of worker 0.
        assert!(
            !in_step(&place_workers(4, 2), &steps[..3])
                && in_step(&place_workers(4, 2), &[(0, 3), (1, 3), (2, 3)])
        );
    }

    proptest! {
        #[test]
        fn everyone_has_a_card_and_none_has_two_more_than_another(workers in 1u32..300, devices in 1usize..20) {
            let blocks = place_workers(workers, devices);
            prop_assert_eq!(blocks.len(), devices.min(workers as usize));
            prop_assert_eq!(blocks.iter().cloned().flatten().collect::<Vec<_>>(), (0..workers).collect::<Vec<_>>());
            let sizes: Vec<usize> = blocks.iter().map(ExactSizeIterator::len).collect();
            prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
            prop_assert!(sizes.iter().all(|&size| size > 0));
        }
    }
}

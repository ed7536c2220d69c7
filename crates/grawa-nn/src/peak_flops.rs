//! The peak arithmetic speed of this machine, to compare the speed of a step with.

use crate::matmul::{As, matmul};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Floating-point operations per second of matrix products that fit in cache, on `threads` threads at once, each with
/// its own matrices. The best of several measurements.
pub fn peak_flops(threads: usize) -> f64 {
    const SIDE: usize = 384;
    let barrier = Barrier::new(threads.max(1));
    let measure = || {
        let (a, b) = (vec![1.0f32; SIDE * SIDE], vec![1.0f32; SIDE * SIDE]);
        let mut c = vec![0.0f32; SIDE * SIDE];
        let mut best = 0.0f64;
        for _ in 0..5 {
            barrier.wait();
            let (start, mut products) = (Instant::now(), 0);
            while start.elapsed() < Duration::from_millis(60) {
                matmul([SIDE, SIDE, SIDE], (&a, As::Rows), (&b, As::Rows), &mut c, false);
                products += 1;
            }
            best =
                best.max(f64::from(products) * 2.0 * (SIDE as f64).powi(3) / start.elapsed().as_secs_f64());
        }
        best
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(measure)).collect();
        all.into_iter().map(|one| one.join().unwrap_or(0.0)).sum()
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_machine_multiplies() {
        assert!(super::peak_flops(1) > 1e8);
    }
}

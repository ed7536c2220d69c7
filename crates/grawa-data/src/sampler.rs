//! The examples of each worker in each step.
//!
//! Each epoch is one permutation of the training set. The concatenated epochs are one endless
//! sequence; its element `k` belongs to worker `k mod M`. So every epoch contains each example exactly once, the workers'
//! shards differ by at most one example, no worker is ahead of another, and every batch of a worker is full, also across
//! the ends of epochs. All of it is a pure function of (seed, examples, workers, batch size, worker, step).
//!
//! The permutation of epoch `e` is [`Key::permutation`] under [`Purpose::Shuffle`] at step `e`.
//!
//! With a [`Skew`] each worker holds its own examples. It reads them in permutations of its own: that of its pass `e` is under
//! [`Purpose::Shard`] at the worker and step `e` + 2.

use crate::error::{Error, Result, check_below};
use crate::skew::{Skew, noisy};
use grawa_core::{Key, Purpose};
use std::collections::HashMap;
use std::sync::Arc;

/// Selects the examples of each worker in each step.
///
/// ```
/// let order = grawa_data::Sampler::new(36, 50_000, 4, 128)?;
/// let batch = order.batch(2, 1_000)?;
/// assert_eq!(batch.len(), 128);
/// assert_eq!(batch, order.for_worker(2)?.batch(1_000)?);
/// # Ok::<(), grawa_data::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Sampler {
    seed: u64,
    examples: u32,
    workers: u32,
    batch: u32,
    skewed: Option<Arc<Skewed>>,
}

/// A skew, and what it makes of the labels.
#[derive(Debug, PartialEq)]
struct Skewed {
    skew: Skew,
    labels: Vec<u32>,
    classes: u32,
    /// The examples of each worker, where not all have all.
    shards: Option<Vec<Vec<u32>>>,
}

impl Sampler {
    /// A sampler of `examples` training examples for `workers` workers in batches of `batch`.
    pub fn new(seed: u64, examples: usize, workers: u32, batch: u32) -> Result<Self> {
        check_below("example", examples as u64, 1 << 32)?;
        let count = examples as u32;
        if workers == 0 || batch == 0 {
            let of = if workers == 0 { "workers" } else { "examples in a batch" };
            return Err(Error::TooFew { asked: 0, of, have: examples, hint: "at least one is needed" });
        }
        if workers > count {
            let hint = "every worker needs at least one: use fewer workers or a larger set";
            return Err(Error::TooFew { asked: workers.into(), of: "workers", have: examples, hint });
        }
        Ok(Sampler { seed, examples: count, workers, batch, skewed: None })
    }

    /// The same for workers whose examples are not alike; `labels` are those of all examples.
    pub fn skewed(self, skew: &Skew, labels: &[u32], classes: u32) -> Result<Self> {
        if *skew == Skew::default() {
            return Ok(self);
        }
        if labels.len() != self.examples as usize {
            return Err(Error::WrongRoom("the list of labels", labels.len(), self.examples as usize));
        }
        let Sampler { seed, workers, batch, .. } = self;
        let shards = skew.sharding.shards(seed, labels, classes, workers, batch)?;
        let skewed = Skewed { skew: skew.clone(), labels: labels.to_vec(), classes, shards };
        Ok(Sampler { skewed: Some(Arc::new(skewed)), ..self })
    }

    /// The same for another number of workers. A skew is drawn anew for them.
    pub fn for_workers(&self, workers: u32) -> Result<Self> {
        let plain = Sampler::new(self.seed, self.examples as usize, workers, self.batch)?;
        match &self.skewed {
            Some(skewed) => plain.skewed(&skewed.skew, &skewed.labels, skewed.classes),
            None => Ok(plain),
        }
    }

    /// Whether the workers' examples are alike.
    pub fn is_alike(&self) -> bool {
        self.skewed.is_none()
    }

    /// The examples that a worker holds, where not all have all.
    pub fn shard(&self, worker: u32) -> Option<&[u32]> {
        self.skewed.as_ref()?.shards.as_ref()?.get(worker as usize).map(Vec::as_slice)
    }

    /// The labels of all examples as a worker sees them in its steps, where some are wrong.
    pub fn labels(&self, worker: u32) -> Option<Vec<u32>> {
        let Skewed { skew, labels, classes, .. } = self.skewed.as_deref()?;
        let (_, share) = *skew.noise.iter().find(|(noisy, share)| *noisy == worker && *share > 0.0)?;
        let key = Key::new(self.seed, Purpose::LabelNoise).worker(worker);
        Some(noisy(key, labels, *classes, self.shard(worker), share))
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// How many examples there are.
    pub fn examples(&self) -> u32 {
        self.examples
    }

    /// How many workers there are.
    pub fn workers(&self) -> u32 {
        self.workers
    }

    /// Examples in a batch.
    pub fn batch_size(&self) -> u32 {
        self.batch
    }

    /// The order of all examples in `epoch`.
    pub fn permutation(&self, epoch: u64) -> Result<Vec<u32>> {
        check_below("epoch", epoch, Key::MAX_STEP + 1)?;
        Ok(Key::new(self.seed, Purpose::Shuffle).step(epoch).permutation(self.examples))
    }

    /// The examples of `worker`'s batch at `step`.
    ///
    /// This computes a whole permutation; for many batches keep a [`WorkerSampler`].
    pub fn batch(&self, worker: u32, step: u64) -> Result<Vec<u32>> {
        Ok(self.for_worker(worker)?.batch(step)?.to_vec())
    }

    /// The same batches, remembering the permutation of the current epoch.
    pub fn for_worker(&self, worker: u32) -> Result<WorkerSampler> {
        self.check(worker)?;
        let batch = Vec::with_capacity(self.batch as usize);
        Ok(WorkerSampler { sampler: self.clone(), worker, epoch: None, permutation: Vec::new(), batch })
    }

    /// `n` different examples of the whole training set to compute scores on in `round`.
    ///
    /// All workers that pass the same `worker` see the same ones: pass 0 everywhere for a common batch, each
    /// worker's own number for independent ones. The draw is the beginning of a Fisher–Yates shuffle with the
    /// stream of [`Purpose::ScoreBatch`] at that worker and step = round.
    pub fn score_batch(&self, n: usize, worker: u32, round: u64) -> Result<Vec<u32>> {
        if n > self.examples as usize {
            let (asked, have) = (n as u64, self.examples as usize);
            let hint = "a score batch holds each example at most once";
            return Err(Error::TooFew { asked, of: "examples in a score batch", have, hint });
        }
        check_below("round", round, Key::MAX_STEP + 1)?;
        let mut draws = Key::new(self.seed, Purpose::ScoreBatch).worker(worker).step(round).stream();
        // Only moved elements are stored, so the cost grows with n, not with the whole set.
        let mut moved = HashMap::new();
        let mut chosen = Vec::with_capacity(n);
        for at in 0..n as u32 {
            let other = at + draws.below(u64::from(self.examples - at)) as u32;
            let here = moved.get(&at).copied().unwrap_or(at);
            chosen.push(moved.insert(other, here).unwrap_or(other));
        }
        Ok(chosen)
    }

    fn check(&self, worker: u32) -> Result<()> {
        check_below("worker", worker.into(), self.workers.into())
    }

    /// Epoch and position in it of the first example of a batch; the others follow at a distance of `stride`.
    fn place(&self, worker: u32, step: u64) -> Result<(u64, usize)> {
        self.check(worker)?;
        let (examples, stride) = self.pass(worker);
        let first = if stride == 1 { 0 } else { worker };
        let before = u128::from(step) * u128::from(self.batch);
        let index = before * stride as u128 + u128::from(first);
        let epoch = index / examples as u128;
        if step > Key::MAX_STEP || epoch > u128::from(Key::MAX_STEP) {
            return Err(Error::OutOfRange("step", step, Key::MAX_STEP + 1));
        }
        Ok((epoch as u64, (index % examples as u128) as usize))
    }

    /// The examples of a pass that a worker takes part in, and every which of them is its own.
    fn pass(&self, worker: u32) -> (usize, usize) {
        self.shard(worker).map_or((self.examples as usize, self.workers as usize), |shard| (shard.len(), 1))
    }

    /// The order of a worker's pass.
    fn order(&self, worker: u32, epoch: u64) -> Result<Vec<u32>> {
        let Some(shard) = self.shard(worker) else { return self.permutation(epoch) };
        check_below("epoch", epoch, Key::MAX_STEP - 1)?;
        let order = Key::new(self.seed, Purpose::Shard).worker(worker).step(epoch + 2);
        Ok(order.permutation(shard.len() as u32).into_iter().map(|at| shard[at as usize]).collect())
    }
}

/// A worker's batches, with the cached permutation of the current epoch. Equal to [`Sampler::batch`] in any order of calls;
/// fast when steps increase.
#[derive(Clone, Debug)]
pub struct WorkerSampler {
    pub(crate) sampler: Sampler,
    worker: u32,
    epoch: Option<u64>,
    permutation: Vec<u32>,
    batch: Vec<u32>,
}

impl WorkerSampler {
    /// The examples of the batch at `step`.
    pub fn batch(&mut self, step: u64) -> Result<&[u32]> {
        let (mut epoch, mut place) = self.sampler.place(self.worker, step)?;
        let (examples, stride) = self.sampler.pass(self.worker);
        self.batch.clear();
        for _ in 0..self.sampler.batch {
            while place >= examples {
                place -= examples;
                epoch += 1;
            }
            if self.epoch != Some(epoch) {
                self.permutation = self.sampler.order(self.worker, epoch)?;
                self.epoch = Some(epoch);
            }
            self.batch.push(self.permutation[place]);
            place += stride;
        }
        Ok(&self.batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The examples of `worker` in `epoch`, in order: element k of the endless sequence belongs to worker k mod M.
    fn shard(order: &Sampler, worker: u32, epoch: u64) -> Vec<u32> {
        let m = u128::from(order.workers);
        let begins = (u128::from(epoch) * u128::from(order.examples)) % m;
        let first = (u128::from(worker) + m - begins) % m;
        let all = order.permutation(epoch).unwrap().into_iter();
        all.skip(first as usize).step_by(order.workers as usize).collect()
    }

    fn sorted(mut numbers: Vec<u32>) -> Vec<u32> {
        numbers.sort_unstable();
        numbers
    }

    proptest! {
        #[test]
        fn shards_cover_each_epoch_once(seed: u64, n in 1u32..300, m in 1u32..20, epoch in 0u64..1 << 40) {
            prop_assume!(m <= n);
            let order = Sampler::new(seed, n as usize, m, 8).unwrap();
            let shards: Vec<_> = (0..m).map(|w| shard(&order, w, epoch)).collect();
            let sizes = shards.iter().map(Vec::len);
            prop_assert!(sizes.clone().max().unwrap() - sizes.min().unwrap() <= 1);
            // Together they hold everything, and no more: so they are disjoint.
            prop_assert!(sorted(shards.concat()).into_iter().eq(0..n));
        }

        #[test]
        fn streams_are_the_shards_end_to_end(seed: u64, n in 1u32..200, m in 1u32..9, batch in 1u32..70) {
            prop_assume!(m <= n);
            let order = Sampler::new(seed, n as usize, m, batch).unwrap();
            for worker in 0..m {
                let shards: Vec<u32> = (0..4).flat_map(|epoch| shard(&order, worker, epoch)).collect();
                let mut cursor = order.for_worker(worker).unwrap();
                let steps = shards.len() as u64 / u64::from(batch);
                let mut stream = Vec::new();
                for step in 0..steps {
                    stream.extend_from_slice(cursor.batch(step).unwrap());
                }
                prop_assert_eq!(&stream[..], &shards[..stream.len()]);
            }
        }

        #[test]
        fn a_batch_does_not_depend_on_when_it_is_asked_for(seed: u64, steps in prop::collection::vec(0u64..1 << 44, 1..8)) {
            let order = Sampler::new(seed, 97, 5, 33).unwrap();
            let mut cursor = order.for_worker(3).unwrap();
            for step in steps {
                prop_assert_eq!(cursor.batch(step).unwrap(), order.batch(3, step).unwrap());
            }
        }

        #[test]
        fn score_batches_hold_different_examples(seed: u64, n in 1usize..400, share in 0.0..=1.0, round in 0u64..1000) {
            let order = Sampler::new(seed, n, 1, 1).unwrap();
            let asked = (n as f64 * share) as usize;
            let batch = order.score_batch(asked, 0, round).unwrap();
            prop_assert_eq!(&batch, &order.score_batch(asked, 0, round).unwrap());
            let mut unique = sorted(batch);
            prop_assert!(unique.iter().all(|&i| (i as usize) < n));
            unique.dedup();
            prop_assert_eq!(unique.len(), asked);
        }

        #[test]
        fn no_number_panics(seed: u64, n in 1usize..40, m: u32, batch in 0u32..50, worker: u32, step: u64, round: u64) {
            if let Ok(order) = Sampler::new(seed, n, m % 50, batch) {
                let _ = (order.batch(worker % 64, step), order.permutation(step));
                let _ = order.score_batch(n + 1 - batch as usize % (n + 1), worker, round);
            }
        }
    }

    /// Each pass of a worker has each of its examples once, in another order; other numbers of workers divide anew.
    #[test]
    fn a_skewed_worker_reads_its_own_examples() {
        let labels: Vec<u32> = (0..200).map(|at| at % 10).collect();
        let skew = Skew { sharding: "classes:3".parse().unwrap(), noise: vec![(1, 0.5)] };
        let order = Sampler::new(36, 200, 4, 5).unwrap();
        assert_eq!(order.clone().skewed(&Skew::default(), &labels, 10).unwrap(), order);
        let order = order.skewed(&skew, &labels, 10).unwrap();
        for worker in 0..4 {
            let held = order.shard(worker).unwrap().to_vec();
            let mut cursor = order.for_worker(worker).unwrap();
            let stream: Vec<u32> =
                (0..3 * held.len() as u64).flat_map(|step| cursor.batch(step).unwrap().to_vec()).collect();
            let mut passes = stream.chunks_exact(held.len());
            assert_ne!(passes.next(), passes.next());
            assert!(stream.chunks_exact(held.len()).all(|pass| sorted(pass.to_vec()) == held));
            assert_eq!(order.batch(worker, 7).unwrap(), stream[35..40]);
            assert_eq!(order.labels(worker).is_some(), worker == 1);
        }
        let five = order.for_workers(5).unwrap();
        assert!((0..5).all(|worker| five.shard(worker).is_some()) && five.shard(5).is_none());
        assert_eq!(order.for_workers(4).unwrap(), order);
        assert!(order.for_workers(2).unwrap_err().to_string().contains("from 5 to 10"));
    }

    #[test]
    fn a_score_batch_is_a_uniform_choice() {
        let order = Sampler::new(3, 6, 1, 1).unwrap();
        let mut seen = HashMap::new();
        for round in 0..30_000 {
            *seen.entry(order.score_batch(2, 0, round).unwrap()).or_insert(0u32) += 1;
        }
        assert_eq!(seen.len(), 30);
        // Chi-squared with 29 degrees of freedom: 58.3 is the 0.999 quantile, and the seed is fixed.
        let chi: f64 = seen.values().map(|&n| (f64::from(n) - 1000.0).powi(2) / 1000.0).sum();
        assert!(chi < 58.3, "chi² = {chi}");
    }

    #[test]
    fn workers_and_seeds_see_different_things() {
        let order = Sampler::new(36, 50_000, 4, 128).unwrap();
        assert_ne!(order.batch(0, 5).unwrap(), order.batch(1, 5).unwrap());
        assert_ne!(
            order.batch(0, 5).unwrap(),
            Sampler::new(37, 50_000, 4, 128).unwrap().batch(0, 5).unwrap()
        );
        assert_ne!(shard(&order, 0, 0), shard(&order, 0, 1));
        assert_ne!(order.score_batch(64, 0, 0).unwrap(), order.score_batch(64, 1, 0).unwrap());
        assert_ne!(order.score_batch(64, 0, 0).unwrap(), order.score_batch(64, 0, 1).unwrap());
    }

    /// The order is a promise to other machines and later versions: these values were computed once and stay.
    #[test]
    fn the_order_stays_what_it_was() {
        let order = Sampler::new(36, 10, 3, 4).unwrap();
        let batches: Vec<_> = (0..3).map(|worker| order.batch(worker, 1).unwrap()).collect();
        assert_eq!(batches, PINNED);
        assert_eq!(order.score_batch(4, 0, 7).unwrap(), PINNED_SCORE);
    }

    const PINNED: [[u32; 4]; 3] = [[0, 9, 1, 7], [6, 2, 8, 5], [4, 5, 9, 2]];
    const PINNED_SCORE: [u32; 4] = [9, 4, 5, 2];

    #[test]
    fn impossible_numbers_are_refused_in_words() {
        let text = Sampler::new(1, 3, 4, 8).unwrap_err().to_string();
        assert!(text.contains("4 workers asked for, but there are 3 training examples"), "{text}");
        assert!(Sampler::new(1, 3, 0, 8).is_err() && Sampler::new(1, 3, 1, 0).is_err());
        let order = Sampler::new(1, 30, 4, 8).unwrap();
        let text = order.batch(4, 0).unwrap_err().to_string();
        assert!(text.contains("no worker 4; it must be below 4"), "{text}");
        assert!(order.batch(0, u64::MAX).is_err());
        let text = order.score_batch(31, 0, 0).unwrap_err().to_string();
        assert!(text.contains("31 examples in a score batch"), "{text}");
    }

    #[test]
    fn an_epoch_ends_after_a_pass_of_all_workers() {
        let order = Sampler::new(36, 50_000, 4, 125).unwrap();
        assert_eq!(order.place(0, 99).unwrap().0, 0);
        assert_eq!(order.place(0, 100).unwrap().0, 1);
    }
}

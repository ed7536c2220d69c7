//! Random numbers as a pure function of where they are used.
//!
//! A [`Key`] names a place in a run: the seed, what the draw is for, which worker, which step. From it
//! [`Key::block`] computes the n-th group of four 32-bit words directly (Philox4x32-10), so there is no
//! generator state to save, share between threads or lose at a resume, and a GPU kernel computes the same
//! words from the same key. Everything here is integer arithmetic or the portable `libm`, so that draws are
//! the same bits on every machine.
//!
//! ```
//! use grawa_core::{Key, Purpose};
//! let key = Key::new(7, Purpose::Shuffle).worker(2).step(1_000);
//! let mut draws = key.stream();
//! let (first, second) = (draws.unit(), draws.below(10));
//! assert!((0.0..1.0).contains(&first) && second < 10);
//! // The same place gives the same numbers, whatever was drawn elsewhere.
//! assert_eq!(key.stream().unit(), first);
//! ```

/// What a random draw is for. Draws of different purposes never share numbers.
///
/// The numbers are part of what makes a run reproducible: never change or reuse one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Purpose {
    /// Initial parameters.
    Init = 1,
    /// The permutation of the training set in an epoch.
    Shuffle = 2,
    /// Crops and flips.
    Augment = 3,
    /// Which examples a round's score is computed on.
    ScoreBatch = 4,
    /// Dropout masks.
    Dropout = 5,
    /// The batch of a training step, and the gradient noise of a toy problem.
    Step = 6,
    /// Random directions of flatness measurements.
    Direction = 7,
    /// Random problems of numerical experiments.
    Problem = 8,
    /// Which examples a worker holds, and their order, where workers hold different ones.
    Shard = 9,
    /// Wrong labels.
    LabelNoise = 10,
}

/// The place of a draw: seed, purpose, worker and step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    seed: u64,
    purpose: Purpose,
    worker: u32,
    step: u64,
}

impl Key {
    /// Steps are counted in 56 bits; the other 8 of the counter hold the purpose.
    pub const MAX_STEP: u64 = (1 << 56) - 1;

    /// The key of a seed and a purpose, at worker 0 and step 0.
    pub const fn new(seed: u64, purpose: Purpose) -> Self {
        Key { seed, purpose, worker: 0, step: 0 }
    }

    /// The same key for another worker.
    pub const fn worker(self, worker: u32) -> Self {
        Key { worker, ..self }
    }

    /// The same key at another step (or round, or epoch: whatever the purpose counts).
    ///
    /// # Panics
    /// If `step` exceeds [`Key::MAX_STEP`], which no run can reach.
    pub const fn step(self, step: u64) -> Self {
        assert!(step <= Self::MAX_STEP, "a step must fit in 56 bits");
        Key { step, ..self }
    }

    /// The same key for another purpose.
    pub const fn purpose(self, purpose: Purpose) -> Self {
        Key { purpose, ..self }
    }

    /// The seed.
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// The worker and the step of this place.
    pub const fn place(&self) -> (u32, u64) {
        (self.worker, self.step)
    }

    /// The `index`-th block of four words at this place.
    pub const fn block(&self, index: u32) -> [u32; 4] {
        let counter =
            [index, self.step as u32, (self.step >> 32) as u32 | ((self.purpose as u32) << 24), self.worker];
        philox4x32(counter, [self.seed as u32, (self.seed >> 32) as u32])
    }

    /// The words at this place in order.
    pub const fn stream(&self) -> Stream {
        self.stream_from(0)
    }

    /// The words from a block on: several users of one place begin at different blocks.
    pub const fn stream_from(&self, block: u32) -> Stream {
        Stream { key: *self, next: block, block: [0; 4], left: 0 }
    }

    /// A uniformly random order of `0..n` (Fisher–Yates).
    pub fn permutation(&self, n: u32) -> Vec<u32> {
        let mut order: Vec<u32> = (0..n).collect();
        let mut draws = self.stream();
        for last in (1..order.len()).rev() {
            let other = draws.below(last as u64 + 1) as usize;
            order.swap(last, other);
        }
        order
    }
}

/// Successive draws of one [`Key`].
#[derive(Clone, Debug)]
pub struct Stream {
    key: Key,
    next: u32,
    block: [u32; 4],
    left: u8,
}

impl Stream {
    /// The next 32 random bits.
    ///
    /// # Panics
    /// After 2^34 words: no place in a run needs as many, and repeating them would go unnoticed.
    pub fn word(&mut self) -> u32 {
        if self.left == 0 {
            self.block = self.key.block(self.next);
            self.next = self.next.checked_add(1).expect("a key holds at most 2^34 words");
            self.left = 4;
        }
        self.left -= 1;
        self.block[3 - self.left as usize]
    }

    /// The next 64 random bits.
    pub fn long(&mut self) -> u64 {
        let low = u64::from(self.word());
        low | u64::from(self.word()) << 32
    }

    /// Uniform in [0, 1), a multiple of 2⁻²⁴, so that it is exact in `f32`.
    pub fn unit(&mut self) -> f32 {
        (self.word() >> 8) as f32 * (1.0 / 16_777_216.0)
    }

    /// Uniform in `0..n`; the bias is below n·2⁻⁶⁴.
    ///
    /// # Panics
    /// If `n` is zero.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "there is no number below zero");
        ((u128::from(self.long()) * u128::from(n)) >> 64) as u64
    }

    /// A standard normal number (Box–Muller; two words for each number).
    pub fn normal(&mut self) -> f64 {
        // Shifted by half a unit, so that the logarithm never sees zero.
        let radius = (f64::from(self.word()) + 0.5) * (1.0 / 4_294_967_296.0);
        let angle = f64::from(self.word()) * (std::f64::consts::TAU / 4_294_967_296.0);
        libm::sqrt(-2.0 * libm::log(radius)) * libm::cos(angle)
    }
}

/// Philox4x32 with 10 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
const fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    let mut round = 0;
    while round < 10 {
        let a = 0xD251_1F53_u64 * counter[0] as u64;
        let b = 0xCD9E_8D57_u64 * counter[2] as u64;
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
        round += 1;
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The known-answer vectors of Random123, the authors' own library.
    #[test]
    fn philox_gives_the_published_values() {
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox4x32([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn unit_and_normal_have_their_moments() {
        let mut draws = Key::new(3, Purpose::Step).stream();
        let n = 200_000;
        let units: Vec<f64> = (0..n).map(|_| f64::from(draws.unit())).collect();
        let normals: Vec<f64> = (0..n).map(|_| draws.normal()).collect();
        let moment = |xs: &[f64], p| xs.iter().map(|x| x.powi(p)).sum::<f64>() / xs.len() as f64;
        // Five standard errors of each mean.
        let slack = 5.0 / (n as f64).sqrt();
        assert!((moment(&units, 1) - 0.5).abs() < slack * 0.289);
        assert!((moment(&units, 2) - 1.0 / 3.0).abs() < slack * 0.298);
        assert!(moment(&normals, 1).abs() < slack);
        assert!((moment(&normals, 2) - 1.0).abs() < slack * 1.42);
        assert!((moment(&normals, 4) - 3.0).abs() < slack * 9.8);
    }

    proptest! {
        #[test]
        fn a_permutation_holds_each_number_once(seed: u64, n in 0u32..2000) {
            let mut order = Key::new(seed, Purpose::Shuffle).permutation(n);
            order.sort_unstable();
            prop_assert!(order.into_iter().eq(0..n));
        }

        #[test]
        fn places_do_not_share_numbers(seed: u64, worker: u32, step in 0..Key::MAX_STEP) {
            let key = Key::new(seed, Purpose::Augment).worker(worker).step(step);
            let here = key.block(0);
            prop_assert_ne!(here, key.block(1));
            prop_assert_ne!(here, key.step(step + 1).block(0));
            prop_assert_ne!(here, key.worker(worker.wrapping_add(1)).block(0));
            prop_assert_ne!(here, key.purpose(Purpose::Dropout).block(0));
            prop_assert_ne!(here, Key::new(seed.wrapping_add(1), Purpose::Augment).worker(worker).step(step).block(0));
        }

        #[test]
        fn a_stream_can_begin_at_any_block(seed: u64, block in 0u32..1000) {
            let key = Key::new(seed, Purpose::Dropout);
            let mut stream = key.stream_from(block);
            prop_assert_eq!([(); 4].map(|()| stream.word()), key.block(block));
            prop_assert_eq!(stream.word(), key.block(block + 1)[0]);
        }

        #[test]
        fn below_stays_below(seed: u64, n in 1u64..) {
            prop_assert!(Key::new(seed, Purpose::ScoreBatch).stream().below(n) < n);
        }
    }

    #[test]
    fn permutations_are_uniform() {
        let mut seen = std::collections::BTreeMap::new();
        let trials = 24_000;
        for step in 0..trials {
            *seen.entry(Key::new(1, Purpose::Shuffle).step(step).permutation(4)).or_insert(0u32) += 1;
        }
        assert_eq!(seen.len(), 24);
        // Chi-squared with 23 degrees of freedom: 49.7 is the 0.999 quantile, and the seed is fixed.
        let chi: f64 = seen.values().map(|&n| (f64::from(n) - 1000.0).powi(2) / 1000.0).sum();
        assert!(chi < 49.7, "chi² = {chi}");
    }
}

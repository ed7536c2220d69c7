//! Workers whose examples are not alike: which examples each worker holds, and wrong labels.
//!
//! Both are pure functions of the seed. Without skew every epoch is divided anew, see [`Sampler`](crate::Sampler).

use crate::error::{Error, Result};
use grawa_core::{Key, Purpose, Stream};
use std::fmt;
use std::str::FromStr;

/// Which examples each worker holds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Sharding {
    /// Every worker draws from all examples.
    #[default]
    Iid,
    /// The examples of each class are divided in shares drawn from a symmetric Dirichlet distribution of this α.
    Dirichlet(f64),
    /// Each worker holds examples of this many classes.
    Classes(u32),
}

impl FromStr for Sharding {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let read = match text.split_once(':') {
            None if text == "iid" => Some(Sharding::Iid),
            Some(("dirichlet", alpha)) => alpha
                .parse()
                .ok()
                .filter(|alpha: &f64| alpha.is_finite() && *alpha > 0.0)
                .map(Sharding::Dirichlet),
            Some(("classes", classes)) => {
                classes.parse().ok().filter(|&classes| classes > 0).map(Sharding::Classes)
            }
            _ => None,
        };
        let expected = "expected 'iid', 'dirichlet:ALPHA' with a positive number, or 'classes:N' with a whole one, 1 or more";
        read.ok_or_else(|| Error::Setting(format!("cannot read the split '{text}': {expected}")))
    }
}

impl fmt::Display for Sharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sharding::Iid => f.write_str("iid"),
            Sharding::Dirichlet(alpha) => write!(f, "dirichlet:{alpha}"),
            Sharding::Classes(classes) => write!(f, "classes:{classes}"),
        }
    }
}

/// How the examples of workers differ.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Skew {
    /// Which examples each holds.
    pub sharding: Sharding,
    /// Workers, and which share of their labels is wrong.
    pub noise: Vec<(u32, f64)>,
}

/// How often a Dirichlet division is drawn until every worker has a batch.
const DRAWS: u32 = 1000;

impl Sharding {
    /// The examples of each worker, at least `batch` each, in ascending order; none where all draw from all.
    pub(crate) fn shards(
        self,
        seed: u64,
        labels: &[u32],
        classes: u32,
        workers: u32,
        batch: u32,
    ) -> Result<Option<Vec<Vec<u32>>>> {
        let key = Key::new(seed, Purpose::Shard);
        let too_few = |why: String| {
            let what = "use fewer workers, a smaller train.batch, or a split that is more alike";
            Err(Error::Setting(format!("data.split = '{self}' among {workers} workers: {why}; {what}")))
        };
        if self != Sharding::Iid && u64::from(workers) * u64::from(batch) > labels.len() as u64 {
            return too_few(format!("{} examples are not a batch of {batch} for each", labels.len()));
        }
        let mut by_class = vec![Vec::new(); classes as usize];
        for index in key.permutation(labels.len() as u32) {
            by_class[labels[index as usize] as usize].push(index);
        }
        let (shards, drawn) = match self {
            Sharding::Iid => return Ok(None),
            Sharding::Classes(each) if each > classes || workers.saturating_mul(each) < classes => {
                let (least, most) = (classes.div_ceil(workers), classes);
                let why = format!(
                    "{classes} classes need from {least} to {most} for each worker, so that every example has one"
                );
                return Err(Error::Setting(format!("data.split = '{self}' among {workers} workers: {why}")));
            }
            Sharding::Classes(each) => (by_few_classes(key, &by_class, workers, each), 1),
            Sharding::Dirichlet(alpha) => {
                let draw =
                    |number: u32| divide(&mut key.worker(number + 1).stream(), &by_class, workers, alpha);
                let is_right =
                    |shards: &Vec<Vec<u32>>| shards.iter().all(|shard| shard.len() >= batch as usize);
                let found = (0..DRAWS).map(draw).find(is_right);
                (found.unwrap_or_else(|| draw(0)), DRAWS)
            }
        };
        match shards.iter().map(Vec::len).min() {
            Some(least) if least < batch as usize => {
                let after = if drawn > 1 { format!(" (after {drawn} draws)") } else { String::new() };
                too_few(format!("a worker has {least} examples, fewer than a batch of {batch}{after}"))
            }
            _ => Ok(Some(shards)),
        }
    }
}

/// Worker w holds `each` classes from place w·`each` on of a random circle of classes. Workers that hold a class divide it.
fn by_few_classes(key: Key, by_class: &[Vec<u32>], workers: u32, each: u32) -> Vec<Vec<u32>> {
    let classes = by_class.len();
    let circle = key.step(1).permutation(classes as u32);
    let mut holders = vec![Vec::new(); classes];
    for place in 0..workers as usize * each as usize {
        holders[circle[place % classes] as usize].push(place / each as usize);
    }
    let mut shards = vec![Vec::new(); workers as usize];
    for (examples, holders) in by_class.iter().zip(&holders) {
        for (at, &example) in examples.iter().enumerate() {
            shards[holders[at % holders.len()]].push(example);
        }
    }
    shards.iter_mut().for_each(|shard| shard.sort_unstable());
    shards
}

/// Divides each class in shares drawn from Dir(α).
fn divide(draws: &mut Stream, by_class: &[Vec<u32>], workers: u32, alpha: f64) -> Vec<Vec<u32>> {
    let mut shards = vec![Vec::new(); workers as usize];
    for examples in by_class {
        let logs: Vec<f64> = (0..workers).map(|_| log_gamma_draw(draws, alpha)).collect();
        let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let shares: Vec<f64> = logs.iter().map(|log| libm::exp(log - most)).collect();
        let (all, mut sum, mut start) = (shares.iter().sum::<f64>(), 0.0, 0);
        for (worker, (shard, share)) in shards.iter_mut().zip(&shares).enumerate() {
            sum += share;
            let is_last = worker + 1 == workers as usize;
            let end = if is_last { examples.len() } else { (sum / all * examples.len() as f64) as usize };
            let end = end.clamp(start, examples.len());
            shard.extend_from_slice(&examples[start..end]);
            start = end;
        }
    }
    shards.iter_mut().for_each(|shard| shard.sort_unstable());
    shards
}

/// The logarithm of a draw from the gamma distribution of shape α: Marsaglia and Tsang (2000), and U^(1/α) times the draw of
/// α + 1 for α below 1. In logarithms, because draws of a small α underflow.
fn log_gamma_draw(draws: &mut Stream, alpha: f64) -> f64 {
    let boost = if alpha < 1.0 { libm::log(1.0 - f64::from(draws.unit())) / alpha } else { 0.0 };
    let d = if alpha < 1.0 { alpha + 1.0 } else { alpha } - 1.0 / 3.0;
    let c = 1.0 / libm::sqrt(9.0 * d);
    loop {
        let x = draws.normal();
        let v = (1.0 + c * x) * (1.0 + c * x) * (1.0 + c * x);
        let u = 1.0 - f64::from(draws.unit());
        if v > 0.0 && libm::log(u) < 0.5 * x * x + d - d * v + d * libm::log(v) {
            return libm::log(d * v) + boost;
        }
    }
}

/// The labels as a worker sees them: a share of those of its examples is wrong, each uniformly one of the other classes.
pub(crate) fn noisy(key: Key, labels: &[u32], classes: u32, held: Option<&[u32]>, share: f64) -> Vec<u32> {
    let mut seen = labels.to_vec();
    let count = held.map_or(labels.len(), <[u32]>::len);
    let wrong = (share * count as f64).round() as usize;
    let mut draws = key.step(1).stream();
    for &place in key.permutation(count as u32).iter().take(wrong).filter(|_| classes > 1) {
        let label = &mut seen[held.map_or(place, |held| held[place as usize]) as usize];
        let other = draws.below(u64::from(classes) - 1) as u32;
        *label = if other < *label { other } else { other + 1 };
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key() -> Key {
        Key::new(36, Purpose::LabelNoise).worker(3)
    }

    /// How many classes a shard has.
    fn classes_of(shard: &[u32], labels: &[u32]) -> usize {
        let mut found: Vec<u32> = shard.iter().map(|&example| labels[example as usize]).collect();
        found.sort_unstable();
        found.dedup();
        found.len()
    }

    proptest! {
        /// Every example is in exactly one shard, every shard has a batch, and by classes no shard has more than asked for and
        /// the workers of a class have the same number of its examples, give or take one.
        #[test]
        fn shards_cover_the_examples_once(
            seed: u64, n in 200usize..600, classes in 2u32..11, workers in 1u32..9, each in 1u32..11, alpha in 0.05f64..10.0,
        ) {
            let labels: Vec<u32> = (0..n as u32).map(|at| at * at % classes).collect();
            for sharding in [Sharding::Dirichlet(alpha), Sharding::Classes(each)] {
                let Ok(shards) = sharding.shards(seed, &labels, classes, workers, 4) else {
                    let covers = (classes.div_ceil(workers)..=classes).contains(&each);
                    prop_assert!(sharding != Sharding::Classes(each) || !covers || classes > 2, "{sharding}");
                    continue;
                };
                let shards = shards.unwrap();
                prop_assert_eq!(shards.len(), workers as usize);
                prop_assert!(shards.iter().all(|shard| shard.len() >= 4));
                let mut all = shards.concat();
                all.sort_unstable();
                prop_assert!(all.into_iter().eq(0..n as u32));
                if sharding == Sharding::Classes(each) {
                    prop_assert!(shards.iter().all(|shard| classes_of(shard, &labels) <= each as usize));
                    for class in 0..classes {
                        let held = |shard: &Vec<u32>| {
                            shard.iter().filter(|&&example| labels[example as usize] == class).count()
                        };
                        let counts: Vec<usize> = shards.iter().map(held).filter(|&count| count > 0).collect();
                        let spread = counts.iter().max().unwrap_or(&0) - counts.iter().min().unwrap_or(&0);
                        prop_assert!(spread <= 1, "class {class}: {counts:?}");
                    }
                }
                prop_assert_eq!(sharding.shards(seed, &labels, classes, workers, 4).unwrap(), Some(shards));
            }
        }

        /// The share of wrong labels is exact, among the worker's own examples only.
        #[test]
        fn as_many_labels_are_wrong_as_said(seed: u64, n in 1u32..300, classes in 2u32..11, share in 0.0..=1.0, own: bool) {
            let labels: Vec<u32> = (0..n).map(|at| at % classes).collect();
            let held: Vec<u32> = (0..n).step_by(2).collect();
            let held = own.then_some(&held[..]);
            let key = Key::new(seed, Purpose::LabelNoise);
            let seen = noisy(key, &labels, classes, held, share);
            let wrong: Vec<u32> = (0..n).filter(|&at| seen[at as usize] != labels[at as usize]).collect();
            let count = held.map_or(n as usize, <[u32]>::len);
            prop_assert_eq!(wrong.len(), (share * count as f64).round() as usize);
            prop_assert!(!own || wrong.iter().all(|at| at % 2 == 0));
            prop_assert!(seen.iter().all(|&label| label < classes));
        }
    }

    /// E of the largest of two shares: 1/2 + 1/4 for α = 1, which is uniform; near 1 for a small α, near ½ for a large one.
    #[test]
    fn shares_are_dirichlet() {
        let labels = vec![0; 1000];
        let largest = |alpha: f64| {
            let share = |seed| {
                let shards = Sharding::Dirichlet(alpha).shards(seed, &labels, 1, 2, 0).unwrap().unwrap();
                shards.iter().map(Vec::len).max().unwrap() as f64 / 1000.0
            };
            (0..2000).map(share).sum::<f64>() / 2000.0
        };
        let (small, one, large) = (largest(0.05), largest(1.0), largest(500.0));
        assert!(small > 0.95 && (one - 0.75).abs() < 0.01 && large < 0.53, "{small} {one} {large}");
    }

    /// Wrong labels are uniform among the other classes.
    #[test]
    fn wrong_labels_are_uniform() {
        let seen = noisy(key(), &vec![2; 30_000], 4, None, 1.0);
        let count = |class| seen.iter().filter(|&&label| label == class).count() as f64;
        assert!([0, 1, 3].iter().all(|&class| (count(class) / 10_000.0 - 1.0).abs() < 0.04));
        assert_eq!(count(2), 0.0);
    }

    #[test]
    fn text_goes_both_ways_and_what_cannot_be_is_refused_in_words() {
        for text in ["iid", "dirichlet:0.3", "classes:2"] {
            assert_eq!(text.parse::<Sharding>().unwrap().to_string(), text);
        }
        for text in ["", "even", "dirichlet", "dirichlet:0", "dirichlet:nan", "classes:0", "classes:1.5"] {
            assert!(text.parse::<Sharding>().unwrap_err().to_string().contains("expected 'iid'"), "{text}");
        }
        let labels: Vec<u32> = (0..100).map(|at| at % 10).collect();
        let refused = |text: &str, workers, batch| {
            let sharding: Sharding = text.parse().unwrap();
            sharding.shards(7, &labels, 10, workers, batch).unwrap_err().to_string()
        };
        let words = refused("classes:2", 4, 8);
        assert!(words.contains("10 classes need from 3 to 10 for each worker"), "{words}");
        let words = refused("dirichlet:0.3", 4, 26);
        assert!(words.contains("100 examples are not a batch of 26 for each"), "{words}");
        let words = refused("dirichlet:0.01", 10, 10);
        assert!(words.contains("(after 1000 draws); use fewer workers"), "{words}");
    }
}

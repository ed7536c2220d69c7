//! Statistics of numbers measured with several seeds, and correlations.
//!
//! Deviations are those of a sample (divided by n − 1). Intervals are Student's, at the given confidence. Differences are
//! paired by seed: two methods get the same start and the same data. That helps where the seed decides much that they share,
//! as the split of the classes does. Where the errors of one seed are not alike ([`pearson`] near 0), it gains nothing and costs
//! degrees of freedom: with five seeds the interval is a fifth wider. What does not exist (a deviation of one number, a
//! correlation with a constant) is `None`.

use grawa_flat::student_quantile;
use std::f64::consts::FRAC_1_SQRT_2;

/// The default confidence of intervals.
pub const CONFIDENCE: f64 = 0.95;

/// The mean; of nothing it is NaN.
pub fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len() as f64
}

/// The mean; none of nothing.
#[cfg(feature = "plots")]
pub(crate) fn mean_of(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = numbers.fold((0.0, 0.0), |(sum, count), x| (sum + x, count + 1.0));
    (count > 0.0).then(|| sum / count)
}

/// The standard deviation of a sample.
///
/// ```
/// let found = grawa_lab::statistics::deviation(&[8.0, 9.0, 10.0]);
/// assert_eq!((found, grawa_lab::statistics::deviation(&[8.0])), (Some(1.0), None));
/// ```
pub fn deviation(numbers: &[f64]) -> Option<f64> {
    let mean = mean(numbers);
    let squares: f64 = numbers.iter().map(|x| (x - mean) * (x - mean)).sum();
    (numbers.len() > 1).then(|| (squares / (numbers.len() - 1) as f64).sqrt())
}

/// Mean ± deviation as text; a single number alone, and nothing for no numbers.
pub fn summary(numbers: &[f64], places: usize) -> String {
    let spread = deviation(numbers).map_or(String::new(), |spread| format!(" ± {spread:.places$}"));
    if numbers.is_empty() { spread } else { format!("{:.places$}{spread}", mean(numbers)) }
}

/// A mean and half the width of the interval that covers the true one with some confidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The mean.
    pub mean: f64,
    /// Half the width.
    pub half: f64,
}

impl Interval {
    /// Whether zero lies outside.
    pub fn excludes_zero(&self) -> bool {
        self.mean.abs() > self.half
    }
}

/// The interval of the mean of independent measurements. None where all are equal: errors of few examples come in large
/// steps, and three seeds may agree by chance.
pub fn interval(numbers: &[f64], confidence: f64) -> Option<Interval> {
    let freedom = numbers.len().checked_sub(1)?;
    let size = numbers.iter().fold(0.0, |size: f64, x| size.max(x.abs()));
    let spread = deviation(numbers).filter(|spread| *spread > 1e-9 * size)?;
    let error = spread / (numbers.len() as f64).sqrt();
    let half = student_quantile(freedom, 0.5 + 0.5 * confidence)? * error;
    Some(Interval { mean: mean(numbers), half })
}

/// The interval of the mean of a − b, pair by pair.
pub fn paired(a: &[f64], b: &[f64], confidence: f64) -> Option<Interval> {
    let differences: Vec<f64> = a.iter().zip(b).map(|(a, b)| a - b).collect();
    if a.len() != b.len() { None } else { interval(&differences, confidence) }
}

/// Whether a differs from b, as one of several comparisons: the interval of a − b, corrected for their number (Bonferroni),
/// excludes zero.
pub fn surely_differs(a: &[f64], b: &[f64], comparisons: usize) -> bool {
    let confidence = 1.0 - (1.0 - CONFIDENCE) / comparisons.max(1) as f64;
    paired(a, b, confidence).is_some_and(|found| found.excludes_zero())
}

/// The one row that is lower than all others with family-wise confidence: the differences to each of the others, paired
/// and corrected for their number (Bonferroni), all exclude zero. Rows hold the same seeds in the same order.
pub fn surely_lowest(rows: &[&[f64]]) -> Option<usize> {
    let lowest = (0..rows.len()).min_by(|&a, &b| mean(rows[a]).total_cmp(&mean(rows[b])))?;
    let others = rows.len().checked_sub(1).filter(|&others| others > 0)?;
    let beats = |other: usize| surely_differs(rows[lowest], rows[other], others);
    (0..rows.len()).filter(|&other| other != lowest).all(beats).then_some(lowest)
}

/// Pearson's correlation.
pub fn pearson(x: &[f64], y: &[f64]) -> Option<f64> {
    let (at, to) = (mean(x), mean(y));
    let product = |a: &[f64], from: f64, b: &[f64], by: f64| -> f64 {
        a.iter().zip(b).map(|(a, b)| (a - from) * (b - by)).sum()
    };
    let found = product(x, at, y, to) / (product(x, at, x, at) * product(y, to, y, to)).sqrt();
    (x.len() == y.len() && found.is_finite()).then_some(found)
}

/// Kendall's τ_b: how much more often two measurements agree about which of two is larger than they disagree, from −1 to
/// 1; ties are corrected for. With it the p-value under independence (normal approximation, good for ten pairs and more).
pub fn kendall(x: &[f64], y: &[f64]) -> Option<(f64, f64)> {
    if x.len() != y.len() || x.iter().chain(y).any(|x| x.is_nan()) {
        return None;
    }
    let mut agree = 0.0;
    for i in 0..x.len() {
        for j in 0..i {
            agree += f64::from(x[i].partial_cmp(&x[j])? as i8 * y[i].partial_cmp(&y[j])? as i8);
        }
    }
    let (n, [a, b]) = (x.len() as f64, [ties(x), ties(y)]);
    let pairs = n * (n - 1.0);
    let tau = 2.0 * agree / ((pairs - a[0]) * (pairs - b[0])).sqrt();
    let variance = (pairs * (2.0 * n + 5.0) - a[2] - b[2]) / 18.0
        + a[0] * b[0] / (2.0 * pairs)
        + a[1] * b[1] / (9.0 * pairs * (n - 2.0));
    let chance = libm::erfc((agree / variance.sqrt()).abs() * FRAC_1_SQRT_2);
    (tau.is_finite() && chance.is_finite()).then_some((tau, chance))
}

/// Over all groups of c equal numbers: the sums of c(c − 1), of c(c − 1)(c − 2), and of c(c − 1)(2c + 5).
fn ties(numbers: &[f64]) -> [f64; 3] {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mut sums = [0.0; 3];
    for group in sorted.chunk_by(|a, b| a == b) {
        let c = group.len() as f64;
        let pairs = c * (c - 1.0);
        sums[0] += pairs;
        sums[1] += pairs * (c - 2.0);
        sums[2] += pairs * (2.0 * c + 5.0);
    }
    sums
}

/// The correlation of x and y that is left when what a straight line in z explains is taken out of both.
pub fn partial(x: &[f64], y: &[f64], z: &[f64]) -> Option<f64> {
    let (xy, xz, yz) = (pearson(x, y)?, pearson(x, z)?, pearson(y, z)?);
    let found = (xy - xz * yz) / ((1.0 - xz * xz) * (1.0 - yz * yz)).sqrt();
    found.is_finite().then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() <= 1e-9 * expected.abs().max(1.0), "{found}, expected {expected}");
    }

    /// `ttest_rel(a, b).confidence_interval(…)` of scipy.
    #[test]
    fn paired_intervals_are_scipys() {
        let (a, b) = ([9.22, 9.05, 9.41, 8.99], [8.93, 9.01, 9.12, 8.70]);
        let at = |confidence, low: f64, high: f64| {
            let found = paired(&a, &b, confidence).unwrap();
            near(found.mean - found.half, low);
            near(found.mean + found.half, high);
            found.excludes_zero()
        };
        assert!(at(0.95, 0.02859710591976919, 0.4264028940802327));
        assert!(!at(0.99, -0.13755683185833378, 0.5925568318583356));
        assert_eq!((paired(&a, &b[1..], 0.95), interval(&[1.0], 0.95)), (None, None));
        assert_eq!(paired(&[1.1, 2.2, 3.3], &[1.0, 2.1, 3.2], 0.95), None);
    }

    /// `kendalltau`, `pearsonr`, and the correlation of residuals, in scipy.
    #[test]
    fn correlations_are_scipys() {
        let x = [1.0, 2.0, 2.0, 3.5, 4.0, 4.0, 5.0, 7.5, 0.5, 6.0];
        let y = [0.2, 0.1, 0.4, 0.4, 0.3, 0.9, 0.8, 0.8, 0.05, 0.4];
        let z = [1.1, 1.9, 2.5, 3.0, 4.4, 3.6, 5.5, 7.0, 0.9, 6.1];
        let (tau, chance) = kendall(&x, &y).unwrap();
        near(tau, 0.5954068852869262);
        near(chance, 0.02164911397531998);
        near(pearson(&x, &y).unwrap(), 0.7235584681057339);
        near(partial(&x, &y, &z).unwrap(), 0.29559999162325773);
        // Pairs that all agree: far out in the tail.
        let far: Vec<f64> = (0..60).map(f64::from).collect();
        let (tau, chance) = kendall(&far, &far).unwrap();
        assert_eq!(tau, 1.0);
        assert!((chance / 1.488330417793829e-29 - 1.0).abs() < 1e-10, "{chance:e}");
        assert_eq!((kendall(&x, &[1.0; 10]), pearson(&x, &[1.0; 10]), kendall(&[], &[])), (None, None, None));
        assert_eq!(partial(&x, &y, &x), None);
        assert_eq!(kendall(&[1.0, f64::NAN], &[1.0, 2.0]), None);
    }

    #[test]
    fn only_what_is_surely_lowest_is() {
        let (low, high) = ([1.0, 2.0, 3.0], [2.0, 3.01, 3.99]);
        assert_eq!(surely_lowest(&[&high, &low]), Some(1));
        // Lower in the mean, and not with any certainty.
        assert_eq!(surely_lowest(&[&high, &[1.0, 3.2, 3.9]]), None);
        // One other that is as low takes it away.
        assert_eq!(surely_lowest(&[&high, &low, &[1.0, 2.0, 3.001]]), None);
        // One seed says nothing, nor does a row by itself.
        assert_eq!(
            (surely_lowest(&[&[1.0], &[9.0]]), surely_lowest(&[&low]), surely_lowest(&[])),
            (None, None, None)
        );
    }

    /// What excludes zero at 95 % by itself need not as one of several.
    #[test]
    fn one_of_many_comparisons_needs_more() {
        let (a, b) = ([9.22, 9.05, 9.41, 8.99], [8.93, 9.01, 9.12, 8.70]);
        assert!(surely_differs(&a, &b, 1));
        // 99 % each, where scipy's interval begins at −0.138.
        assert!(!surely_differs(&a, &b, 5));
        assert!(!surely_differs(&a[..1], &b[..1], 1));
    }

    proptest! {
        /// Kendall's τ asks about order alone; all lie between −1 and 1; none depends on who is named first.
        #[test]
        fn correlations_are_bounded_and_symmetric(pairs in proptest::collection::vec((-5i32..5, -5i32..5, -5i32..5), 3..20)) {
            let column = |pick: fn(&(i32, i32, i32)) -> i32| pairs.iter().map(|it| f64::from(pick(it))).collect::<Vec<f64>>();
            let (x, y, z) = (column(|it| it.0), column(|it| it.1), column(|it| it.2));
            let cubes: Vec<f64> = x.iter().map(|x| x.powi(3)).collect();
            prop_assert_eq!(kendall(&x, &y), kendall(&cubes, &y));
            prop_assert_eq!(kendall(&x, &y), kendall(&y, &x));
            for found in [kendall(&x, &y).map(|it| it.0), pearson(&x, &y), partial(&x, &y, &z)].into_iter().flatten() {
                prop_assert!(found.abs() <= 1.0 + 1e-9, "{}", found);
            }
        }

        /// The interval is scaled with the numbers, and wider at a higher confidence.
        #[test]
        fn intervals_scale(numbers in proptest::collection::vec(-1e3f64..1e3, 2..9), scale in 0.1f64..10.0) {
            let scaled: Vec<f64> = numbers.iter().map(|x| x * scale).collect();
            let (Some(one), Some(other)) = (interval(&numbers, 0.95), interval(&scaled, 0.95)) else { return Ok(()) };
            prop_assert!((one.half * scale - other.half).abs() <= 1e-6 * (1.0 + other.half));
            prop_assert!(interval(&numbers, 0.99).unwrap().half >= one.half);
        }
    }
}

//! Estimates from measured numbers: a mean with its standard error, a share with its interval, the exponent of a power
//! law.

/// A mean with its standard error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Estimate {
    /// The mean.
    pub(super) value: f64,
    /// Its standard error.
    pub(super) error: f64,
}

impl Estimate {
    /// The mean of independent measurements; of fewer than two the error is NaN.
    pub(super) fn of(measured: impl IntoIterator<Item = f64>) -> Self {
        let measured: Vec<f64> = measured.into_iter().collect();
        let count = measured.len() as f64;
        let value = measured.iter().sum::<f64>() / count;
        let spread: f64 = measured.iter().map(|x| (x - value) * (x - value)).sum();
        Estimate { value, error: (spread / (count - 1.0) / count).sqrt() }
    }
}

/// How often something held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Frequency {
    /// In how many trials it held.
    pub(super) hits: u64,
    /// How many trials there were.
    pub(super) trials: u64,
}

impl Frequency {
    /// One more trial.
    pub(super) fn count(&mut self, held: bool) {
        self.hits += u64::from(held);
        self.trials += 1;
    }

    /// The share.
    pub(super) fn value(self) -> f64 {
        self.hits as f64 / self.trials as f64
    }

    /// Wilson's 95 % interval, which stays sensible at shares of 0 and 1.
    pub(super) fn interval(self) -> (f64, f64) {
        const Z: f64 = 1.959_963_984_540_054;
        let (n, p) = (self.trials as f64, self.value());
        let scale = 1.0 / (1.0 + Z * Z / n);
        let middle = scale * (p + Z * Z / (2.0 * n));
        let half = scale * Z * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
        ((middle - half).max(0.0), (middle + half).min(1.0))
    }
}

/// The exponent a of y ∝ xᵃ: the least-squares slope of log y over log x.
pub(super) fn exponent(points: &[(f64, f64)]) -> f64 {
    let logs: Vec<(f64, f64)> = points.iter().map(|&(x, y)| (libm::log(x), libm::log(y))).collect();
    let count = logs.len() as f64;
    let (x, y) = logs.iter().fold((0.0, 0.0), |(sx, sy), (x, y)| (sx + x / count, sy + y / count));
    let along: f64 = logs.iter().map(|p| (p.0 - x) * (p.1 - y)).sum();
    along / logs.iter().map(|p| (p.0 - x) * (p.0 - x)).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Newcombe (1998), table I, method 3: 81 of 263, 15 of 148, 0 of 20, 1 of 29.
    #[test]
    fn wilson_gives_the_published_intervals() {
        let known = [
            (81, 263, 0.2553, 0.3662),
            (15, 148, 0.0624, 0.1605),
            (0, 20, 0.0000, 0.1611),
            (1, 29, 0.0061, 0.1718),
        ];
        for (hits, trials, low, high) in known {
            let found = Frequency { hits, trials }.interval();
            assert!((found.0 - low).abs() < 5e-5 && (found.1 - high).abs() < 5e-5, "{found:?}");
        }
        assert_eq!(Frequency { hits: 9, trials: 9 }.interval().1, 1.0);
    }

    #[test]
    fn a_power_law_gives_its_exponent() {
        let points: Vec<(f64, f64)> = (1..9).map(|t| (f64::from(t), 3.0 / f64::from(t * t))).collect();
        assert!((exponent(&points) + 2.0).abs() < 1e-12);
    }

    #[test]
    fn the_error_is_that_of_the_mean() {
        let found = Estimate::of([1.0, 2.0, 3.0, 4.0]);
        assert!((found.value - 2.5).abs() < 1e-15 && (found.error - (5.0f64 / 12.0).sqrt()).abs() < 1e-15);
    }
}

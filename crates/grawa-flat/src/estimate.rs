//! A mean of independent draws, with its confidence interval.

use crate::student_quantile;

/// A mean with the half-width of its 95 % confidence interval (Student's t).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The mean.
    pub value: f64,
    /// Half the width of the interval; infinite for a single draw.
    pub error: f64,
}

impl Estimate {
    /// The mean of draws.
    ///
    /// ```
    /// let found = grawa_flat::Estimate::of(&[1.0, 2.0, 3.0]);
    /// // The standard error is 1/√3, and t with two degrees of freedom 4.303.
    /// assert!((found.value - 2.0).abs() < 1e-12 && (found.error - 2.484).abs() < 1e-3);
    /// ```
    pub fn of(draws: &[f64]) -> Self {
        let count = draws.len() as f64;
        let value = draws.iter().sum::<f64>() / count;
        let spread: f64 = draws.iter().map(|x| (x - value) * (x - value)).sum();
        let student = student_quantile(draws.len().saturating_sub(1), 0.975);
        let error = student.map_or(f64::INFINITY, |t| t * (spread / (count - 1.0) / count).sqrt());
        Estimate { value, error }
    }

    /// The square root, with the interval from the ends of this one.
    pub fn sqrt(self) -> Self {
        let end = |x: f64| x.max(0.0).sqrt();
        let value = end(self.value);
        // The wider side: an interval around the root that covers both.
        Estimate {
            value,
            error: (end(self.value + self.error) - value).max(value - end(self.value - self.error)),
        }
    }

    /// As text: 12.3 ± 0.4.
    pub fn text(self) -> String {
        let error =
            if self.error.is_finite() { format!(" ± {}", four_digits(self.error)) } else { String::new() };
        (four_digits(self.value) + &error).replace('-', "−")
    }
}

/// A number with four significant digits.
pub fn four_digits(x: f64) -> String {
    match x.abs() {
        size if size == 0.0 || !size.is_finite() => format!("{x}"),
        size if !(1e-3..1e6).contains(&size) => format!("{x:.3e}"),
        size => format!("{x:.*}", (3.0 - libm::floor(libm::log10(size))).clamp(0.0, 6.0) as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_of_roots_cover_the_root_of_the_interval() {
        let root = Estimate { value: 4.0, error: 1.0 }.sqrt();
        assert!(root.value - root.error <= 3.0f64.sqrt() && root.value + root.error >= 5.0f64.sqrt());
        assert_eq!(Estimate { value: 1.0, error: 2.0 }.sqrt().error, 1.0);
        assert!(Estimate::of(&[1.0]).error.is_infinite());
    }

    #[test]
    fn numbers_have_four_figures() {
        let texts = [0.0, 1234.5678, 0.012345678, 12.0, 1e-9, -3.5e7, f64::INFINITY].map(four_digits);
        assert_eq!(texts, ["0", "1235", "0.01235", "12.00", "1.000e-9", "-3.500e7", "inf"]);
        assert_eq!(Estimate { value: -3.5e7, error: 1e-9 }.text(), "−3.500e7 ± 1.000e−9");
        assert_eq!(Estimate::of(&[12.0]).text(), "12.00");
    }
}

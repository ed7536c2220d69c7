//! The axis of a sweep: a cell for every value that was tried, wide as the scale has it, and readable labels.
//!
//! Any set of numbers makes an axis, also one number or none.

/// The values along an axis and where their cells begin and end, from 0 to 1.
#[derive(Debug)]
pub(super) struct Axis {
    pub(super) values: Vec<f64>,
    pub(super) edges: Vec<f64>,
}

impl Axis {
    /// The axis through all the values; those that are not finite have no place on it.
    pub(super) fn of(values: impl Iterator<Item = f64>, always_logarithmic: bool) -> Self {
        let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        let positive = values.first().is_some_and(|&least| least > 0.0);
        let logarithmic = positive && (always_logarithmic || geometric(&values));
        let scaled: Vec<f64> =
            values.iter().map(|&value| if logarithmic { libm::log(value) } else { value }).collect();
        Self { edges: edges(&scaled), values }
    }

    /// Where the cell of a value begins and ends.
    pub(super) fn cell(&self, value: f64) -> Option<[f64; 2]> {
        let index = self.values.iter().position(|&other| other == value)?;
        Some([self.edges[index], self.edges[index + 1]])
    }

    /// Labels with the middle of their cells: every one, or every second, … so that each has the room `wide`
    /// says it takes.
    pub(super) fn labels(&self, wide: impl Fn(&str) -> f64) -> Vec<(f64, String)> {
        let every = |stride: usize| -> Vec<(f64, String)> {
            let middles = self.edges.windows(2).map(|edges| 0.5 * (edges[0] + edges[1]));
            middles.zip(self.values.iter().map(|&value| plain(value))).step_by(stride).collect()
        };
        let fit = |labels: &[(f64, String)]| {
            labels.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 0.5 * (wide(&pair[0].1) + wide(&pair[1].1)))
        };
        (1..=self.values.len()).map(every).find(|labels| fit(labels)).unwrap_or_default()
    }
}

/// Whether the values grow by a factor rather than by a step.
fn geometric(values: &[f64]) -> bool {
    let unevenness = |scale: fn(f64) -> f64| {
        let steps: Vec<f64> = values.windows(2).map(|pair| scale(pair[1]) - scale(pair[0])).collect();
        let greatest = steps.iter().copied().fold(0.0, f64::max);
        greatest / steps.iter().copied().fold(f64::INFINITY, f64::min)
    };
    values.len() > 2 && unevenness(libm::log) < unevenness(|value| value)
}

/// The borders of cells around sorted values: half-way between neighbours, scaled to go from 0 to 1.
fn edges(values: &[f64]) -> Vec<f64> {
    let (Some(&first), Some(&last)) = (values.first(), values.last()) else { return Vec::new() };
    if values.len() < 2 {
        return vec![0.0, 1.0];
    }
    let before = first - 0.5 * (values[1] - first);
    let after = last + 0.5 * (last - values[values.len() - 2]);
    let inner = values.windows(2).map(|pair| 0.5 * (pair[0] + pair[1]));
    let part = |at: f64| (at - before) / (after - before);
    [before].into_iter().chain(inner).chain([after]).map(part).collect()
}

/// A number to four figures, as short as it can be said: 0.05, 1e−5.
fn plain(value: f64) -> String {
    // A value made by arithmetic may have a long tail of digits: writing and reading it back cuts them off.
    let value: f64 = format!("{value:.3e}").parse().unwrap_or(value);
    let usual = value == 0.0 || (1e-3..1e6).contains(&value.abs());
    let text = if usual { format!("{value}") } else { format!("{value:e}") };
    text.replace('-', "−")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_steps_stay_linear_and_even_factors_become_logarithmic() {
        let linear = Axis::of([0.3, 0.1, 0.2, 0.2].into_iter(), false);
        assert_eq!(linear.values, [0.1, 0.2, 0.3]);
        let logarithmic = Axis::of([0.001, 0.01, 0.1].into_iter(), false);
        for axis in [linear, logarithmic] {
            for (edge, third) in axis.edges.iter().zip([0.0, 1.0 / 3.0, 2.0 / 3.0, 1.0]) {
                assert!((edge - third).abs() < 1e-9, "{axis:?}");
            }
        }
        assert_eq!(Axis::of([0.5].into_iter(), true).cell(0.5), Some([0.0, 1.0]));
        assert_eq!(Axis::of([f64::NAN].into_iter(), true).cell(0.5), None);
    }

    #[test]
    fn labels_never_overlap() {
        let axis = Axis::of((1..=40).map(|step| f64::from(step) / 40.0), false);
        let labels = axis.labels(|_| 0.1);
        assert!(labels.len() > 5);
        assert!(labels.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 0.1 - 1e-9));
        assert_eq!(
            (plain(0.05), plain(1e-5), plain(0.1 + 0.2)),
            ("0.05".into(), "1e−5".into(), "0.3".into())
        );
    }
}

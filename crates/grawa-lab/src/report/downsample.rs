//! Fewer points of a curve, which keeps a page small. No peak moves, and none is made up.

/// A point of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Place {
    /// Steps of each worker.
    pub steps: f64,
    /// Epochs of all workers together.
    pub epochs: f64,
    /// Seconds of training.
    pub seconds: f64,
}

/// Every n-th value, with the first and the last.
///
/// ```
/// use grawa_lab::report::downsample::{Place, pick};
/// let at: Vec<Place> = (0..100).map(|n| Place { steps: f64::from(n), ..Place::default() }).collect();
/// let values: Vec<Option<f64>> = (0..100).map(|n| Some(f64::from(n))).collect();
/// let (_, few) = pick(&at, &values, 12);
/// assert_eq!((few.len(), few[0], few[11]), (12, Some(0.0), Some(99.0)));
/// ```
pub fn pick(at: &[Place], values: &[Option<f64>], most: usize) -> (Vec<Place>, Vec<Option<f64>>) {
    let count = at.len().min(values.len());
    let kept = count.min(most.max(2));
    let number =
        |index: usize| if kept < 2 { 0 } else { (index * (count - 1) + (kept - 1) / 2) / (kept - 1) };
    (0..kept).map(number).map(|index| (at[index], values[index])).unzip()
}

/// Means of neighbours, each at the point of the last; values that are not finite are left out.
///
/// ```
/// use grawa_lab::report::downsample::{Place, average};
/// let at: Vec<Place> = (0..6).map(|n| Place { steps: f64::from(n), ..Place::default() }).collect();
/// let values = [Some(1.0), Some(3.0), None, Some(5.0), None, None];
/// let (places, means) = average(&at, &values, 3);
/// assert_eq!(means, [Some(2.0), Some(5.0), None]);
/// assert_eq!(places[0].steps, 1.0);
/// ```
pub fn average(at: &[Place], values: &[Option<f64>], most: usize) -> (Vec<Place>, Vec<Option<f64>>) {
    let count = at.len().min(values.len());
    let bins = count.min(most.max(1));
    let ends = |bin: usize| bin * count / bins.max(1)..(bin + 1) * count / bins.max(1);
    let mean = |numbers: &[Option<f64>]| {
        let finite: Vec<f64> = numbers.iter().flatten().copied().collect();
        (!finite.is_empty()).then(|| finite.iter().sum::<f64>() / finite.len() as f64)
    };
    (0..bins).map(ends).map(|range| (at[range.end - 1], mean(&values[range]))).unzip()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn thinned_curves_keep_their_ends_order_and_bounds(values in proptest::collection::vec(-1e3f64..1e3, 0..400), most in 1usize..50) {
            let at: Vec<Place> = (0..values.len()).map(|n| Place { steps: n as f64, ..Place::default() }).collect();
            let some: Vec<Option<f64>> = values.iter().copied().map(Some).collect();
            let (low, high) = values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), &x| (low.min(x), high.max(x)));
            for (places, thin) in [pick(&at, &some, most), average(&at, &some, most)] {
                prop_assert!(thin.len() == places.len() && thin.len() <= most.max(2).min(values.len()));
                prop_assert!(places.windows(2).all(|pair| pair[0].steps < pair[1].steps));
                prop_assert!(thin.iter().flatten().all(|&x| (low - 1e-9..=high + 1e-9).contains(&x)));
                if !values.is_empty() {
                    prop_assert_eq!(places.last().copied(), at.last().copied());
                }
            }
            // Few enough are left as they are.
            prop_assert_eq!(pick(&at, &some, values.len().max(2)).1, some.clone());
            prop_assert_eq!(average(&at, &some, values.len().max(1)).1, some);
        }
    }
}

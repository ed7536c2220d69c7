//! Fewer points of a curve, which keeps a page small. No peak moves, and none is made up.

use crate::statistics::mean_of;

/// A point of a curve: where in the run, and the value; none where it was not finite.
pub type Point = (Place, Option<f64>);

/// Where in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Place {
    /// Steps of each worker.
    pub steps: f64,
    /// Epochs of all workers together.
    pub epochs: f64,
    /// Seconds of training.
    pub seconds: f64,
}

/// Every n-th point, with the first and the last.
///
/// ```
/// use grawa_lab::report::downsample::{Place, pick};
/// let curve: Vec<_> = (0..100).map(|n| (Place { steps: f64::from(n), ..Place::default() }, Some(f64::from(n)))).collect();
/// let few = pick(&curve, 12);
/// assert_eq!((few.len(), few[0].1, few[11].1), (12, Some(0.0), Some(99.0)));
/// ```
pub fn pick(points: &[Point], most: usize) -> Vec<Point> {
    let kept = points.len().min(most.max(2));
    let number =
        |index: usize| if kept < 2 { 0 } else { (index * (points.len() - 1) + (kept - 1) / 2) / (kept - 1) };
    (0..kept).map(|index| points[number(index)]).collect()
}

/// Means of neighbours, each at the place of the last; values that are not finite are left out.
///
/// ```
/// use grawa_lab::report::downsample::{Place, average};
/// let values = [Some(1.0), Some(3.0), None, Some(5.0), None, None].into_iter().enumerate();
/// let curve: Vec<_> = values.map(|(n, value)| (Place { steps: n as f64, ..Place::default() }, value)).collect();
/// let means = average(&curve, 3);
/// assert_eq!(means.iter().map(|it| it.1).collect::<Vec<_>>(), [Some(2.0), Some(5.0), None]);
/// assert_eq!(means[0].0.steps, 1.0);
/// ```
pub fn average(points: &[Point], most: usize) -> Vec<Point> {
    let bins = points.len().min(most.max(1));
    let bin = |bin: usize| &points[bin * points.len() / bins..(bin + 1) * points.len() / bins];
    let mean = |bin: &[Point]| (bin[bin.len() - 1].0, mean_of(bin.iter().filter_map(|it| it.1)));
    (0..bins).map(|index| mean(bin(index))).collect()
}

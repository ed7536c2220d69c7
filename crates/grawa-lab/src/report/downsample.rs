//! Fewer points of a curve, which keeps a page small. No peak moves, and none is made up.

use crate::statistics::mean_of;
use grawa_train::Place;

/// A point of a curve: where in the run, and the value; none where it was not finite.
pub type Point = (Place, Option<f64>);

/// Every n-th point, with the first and the last.
///
/// ```
/// use grawa_lab::report::downsample::pick;
/// use grawa_train::Place;
/// let curve: Vec<_> = (0..100).map(|steps| (Place { steps, ..Place::default() }, Some(steps as f64))).collect();
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
/// use grawa_lab::report::downsample::average;
/// use grawa_train::Place;
/// let values = [Some(1.0), Some(3.0), None, Some(5.0), None, None].into_iter().enumerate();
/// let curve: Vec<_> = values.map(|(n, value)| (Place { steps: n as u64, ..Place::default() }, value)).collect();
/// let means = average(&curve, 3);
/// assert_eq!(means.iter().map(|it| it.1).collect::<Vec<_>>(), [Some(2.0), Some(5.0), None]);
/// assert_eq!(means[0].0.steps, 1);
/// ```
pub fn average(points: &[Point], most: usize) -> Vec<Point> {
    let bins = points.len().min(most.max(1));
    let bin = |bin: usize| &points[bin * points.len() / bins..(bin + 1) * points.len() / bins];
    let mean = |bin: &[Point]| (bin[bin.len() - 1].0, mean_of(bin.iter().filter_map(|it| it.1)));
    (0..bins).map(|index| mean(bin(index))).collect()
}

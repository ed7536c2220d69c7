//! Rectangles, and lines reduced to the points that can be seen.

use crate::picture::pen::Point;

/// A rectangle, from its lowest to its highest corner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bounds {
    pub(super) low: Point,
    pub(super) high: Point,
}

impl Bounds {
    /// Whether the point lies inside; never true of NaN.
    pub(super) fn contains(&self, (x, y): Point) -> bool {
        x >= self.low.0 && x <= self.high.0 && y >= self.low.1 && y <= self.high.1
    }

    /// The rectangle without a margin of this width.
    pub(super) fn inset(self, margin: f64) -> Self {
        let (low, high) = (self.low, self.high);
        Self { low: (low.0 + margin, low.1 + margin), high: (high.0 - margin, high.1 - margin) }
    }
}

/// Drops points nearer than `least` to the point before them; the ends stay.
pub(super) fn thinned(line: &[Point], least: f64) -> Vec<Point> {
    let mut kept: Vec<Point> = Vec::new();
    for &point in line {
        if kept.last().is_none_or(|last| libm::hypot(point.0 - last.0, point.1 - last.1) >= least) {
            kept.push(point);
        }
    }
    kept.extend(line.last().filter(|&end| kept.last() != Some(end)));
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_contains_what_is_no_number() {
        let square = Bounds { low: (0.0, 0.0), high: (10.0, 10.0) };
        assert!(square.contains((10.0, 0.0)) && !square.contains((f64::NAN, 1.0)));
        assert!(!square.inset(1.0).contains((10.0, 5.0)));
    }

    proptest! {
        #[test]
        fn thinning_keeps_the_ends_and_the_shape(
            line in prop::collection::vec((-20.0..20.0, -20.0..20.0), 2..60),
            least in 0.0..3.0,
        ) {
            let thin = thinned(&line, least);
            prop_assert_eq!(thin.first(), line.first());
            prop_assert_eq!(thin.last(), line.last());
            for point in &line {
                let off = thin.iter().map(|kept| libm::hypot(point.0 - kept.0, point.1 - kept.1)).fold(f64::MAX, f64::min);
                prop_assert!(off <= least);
            }
        }
    }
}

//! A curve of any length in few points: when there are too many, every other one goes.

/// The most points of a curve.
const MOST: usize = 240;

/// A curve whose last point is always there.
#[derive(Clone, Debug, Default)]
pub(super) struct Series {
    points: Vec<(f64, f64)>,
    last: Option<(f64, f64)>,
    count: u64,
    /// How often the points were halved: every 2ⁿ-th is kept.
    halved: u32,
}

impl Series {
    pub(super) fn push(&mut self, x: f64, y: f64) {
        self.last = Some((x, y));
        if self.count.is_multiple_of(1 << self.halved) {
            self.points.push((x, y));
        }
        if self.points.len() > MOST {
            self.points = self.points.iter().copied().step_by(2).collect();
            self.halved += 1;
        }
        self.count += 1;
    }

    pub(super) fn points(&self) -> Vec<(f64, f64)> {
        let mut points = self.points.clone();
        points.extend(self.last.filter(|last| points.last() != Some(last)));
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_curve_is_short_even_and_ends_where_it_ends(count in 1u32..5000) {
            let mut series = Series::default();
            (0..count).for_each(|n| series.push(f64::from(n), -f64::from(n)));
            let points = series.points();
            prop_assert!(points.len() <= MOST + 1 && points.len() >= (MOST / 2).min(count as usize));
            prop_assert_eq!(points[0], (0.0, 0.0));
            prop_assert_eq!(points[points.len() - 1].0, f64::from(count - 1));
            let gaps: Vec<f64> = points[..points.len() - 1].windows(2).map(|two| two[1].0 - two[0].0).collect();
            prop_assert!(gaps.iter().all(|gap| *gap == gaps[0]));
        }
    }
}

//! Lines made fit for a picture: cut to a rectangle, and thinned to the points that can be seen.
//!
//! Both work on plain pairs in whatever unit the caller uses, and accept any finite input.

use crate::picture::pen::Point;

/// Farther than this is as good as infinite.
const FAR: f64 = 1e9;

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

    /// The pieces of a line that lie inside. A point at infinity, or nearly so, interrupts the line.
    pub(super) fn cut(&self, line: &[Point]) -> Vec<Vec<Point>> {
        let mut pieces: Vec<Vec<Point>> = Vec::new();
        let mut open: Vec<Point> = Vec::new();
        for pair in line.windows(2) {
            let Some((from, to)) = self.segment(pair[0], pair[1]) else {
                pieces.extend(Some(std::mem::take(&mut open)).filter(|piece| piece.len() > 1));
                continue;
            };
            if open.last() != Some(&from) {
                pieces.extend(Some(std::mem::take(&mut open)).filter(|piece| piece.len() > 1));
                open.push(from);
            }
            open.push(to);
        }
        pieces.extend(Some(open).filter(|piece| piece.len() > 1));
        pieces
    }

    /// The part of a segment that lies inside (Liang and Barsky).
    fn segment(&self, from: Point, to: Point) -> Option<(Point, Point)> {
        // Not a number, or so far away that the arithmetic below would lose the near end.
        if ![from.0, from.1, to.0, to.1].iter().all(|part| part.abs() < FAR) {
            return None;
        }
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let (mut enter, mut leave) = (0.0_f64, 1.0_f64);
        for (step, room) in [
            (-dx, from.0 - self.low.0),
            (dx, self.high.0 - from.0),
            (-dy, from.1 - self.low.1),
            (dy, self.high.1 - from.1),
        ] {
            if step == 0.0 {
                if room < 0.0 {
                    return None;
                }
            } else if step < 0.0 {
                enter = enter.max(room / step);
            } else {
                leave = leave.min(room / step);
            }
        }
        let at = |share: f64| (from.0 + share * dx, from.1 + share * dy);
        // The untouched ends are handed on as they are, so that the pieces of a line join up.
        (enter <= leave)
            .then(|| (if enter == 0.0 { from } else { at(enter) }, if leave == 1.0 { to } else { at(leave) }))
    }
}

/// Drops points that lie within `tolerance` of the line through those that stay (Ramer, Douglas and Peucker).
pub(super) fn thinned(line: &[Point], tolerance: f64) -> Vec<Point> {
    let mut line = line.to_vec();
    line.dedup();
    if line.len() < 3 {
        return line;
    }
    let mut stays = vec![false; line.len()];
    stays[0] = true;
    stays[line.len() - 1] = true;
    let mut open = vec![(0, line.len() - 1)];
    while let Some((first, last)) = open.pop() {
        let farthest = (first + 1..last)
            .map(|index| (index, distance(line[index], line[first], line[last])))
            .max_by(|a, b| a.1.total_cmp(&b.1));
        if let Some((index, off)) = farthest
            && off > tolerance
        {
            stays[index] = true;
            open.extend([(first, index), (index, last)]);
        }
    }
    line.into_iter().zip(stays).filter_map(|(point, stays)| stays.then_some(point)).collect()
}

/// How far a point lies from a segment.
fn distance(point: Point, from: Point, to: Point) -> f64 {
    let (dx, dy) = (to.0 - from.0, to.1 - from.1);
    let (px, py) = (point.0 - from.0, point.1 - from.1);
    let length = dx * dx + dy * dy;
    let along = if length > 0.0 { ((px * dx + py * dy) / length).clamp(0.0, 1.0) } else { 0.0 };
    libm::hypot(px - along * dx, py - along * dy)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SQUARE: Bounds = Bounds { low: (0.0, 0.0), high: (10.0, 10.0) };

    #[test]
    fn a_line_that_leaves_and_returns_becomes_two() {
        let line = [(5.0, 5.0), (15.0, 5.0), (15.0, 8.0), (5.0, 8.0), (5.0, 9.0)];
        let expected = vec![vec![(5.0, 5.0), (10.0, 5.0)], vec![(10.0, 8.0), (5.0, 8.0), (5.0, 9.0)]];
        assert_eq!(SQUARE.cut(&line), expected);
        assert_eq!(SQUARE.cut(&[(-5.0, 5.0), (15.0, 5.0)]), [[(0.0, 5.0), (10.0, 5.0)]]);
        assert!(SQUARE.cut(&[(20.0, 20.0), (30.0, 1.0)]).is_empty());
    }

    #[test]
    fn a_point_that_is_no_number_interrupts_the_line() {
        let line = [(1.0, 1.0), (2.0, 1.0), (f64::NAN, 1.0), (3.0, 1.0), (4.0, 1.0)];
        assert_eq!(SQUARE.cut(&line), [[(1.0, 1.0), (2.0, 1.0)], [(3.0, 1.0), (4.0, 1.0)]]);
        assert!(!SQUARE.contains((f64::NAN, 1.0)));
        assert!(SQUARE.cut(&[(-f64::MAX, 5.0), (f64::MAX, 5.0), (f64::INFINITY, 5.0)]).is_empty());
    }

    proptest! {
        #[test]
        fn thinning_keeps_the_ends_and_the_shape(
            line in prop::collection::vec((-20.0..20.0, -20.0..20.0), 2..60),
            tolerance in 0.0..3.0,
        ) {
            let thin = thinned(&line, tolerance);
            prop_assert_eq!(thin.first(), line.first());
            prop_assert_eq!(thin.last(), line.last());
            for &point in &line {
                let off = thin.windows(2).map(|pair| distance(point, pair[0], pair[1])).fold(f64::MAX, f64::min);
                prop_assert!(off <= tolerance + 1e-9);
            }
        }

        #[test]
        fn a_cut_line_stays_inside(line in prop::collection::vec((-30.0..30.0, -30.0..30.0), 2..40)) {
            let slack = Bounds { low: (-1e-9, -1e-9), high: (10.0 + 1e-9, 10.0 + 1e-9) };
            prop_assert!(SQUARE.cut(&line).iter().flatten().all(|&point| slack.contains(point)));
        }
    }
}

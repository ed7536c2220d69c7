//! Separates markers of (nearly) the same point: they are set on a ring around it.
//!
//! Any two markers end at least a given gap apart; a marker with room around it stays where it is.

use std::f64::consts::{FRAC_PI_2, PI, TAU};

use crate::picture::pen::{Bounds, Point};

/// Markers that share a ring.
struct Ring {
    members: Vec<usize>,
    centre: Point,
    radius: f64,
}

impl Ring {
    fn around(members: Vec<usize>, places: &[Point], gap: f64, bounds: Bounds) -> Self {
        let count = members.len() as f64;
        let sum = members.iter().fold((0.0, 0.0), |sum, &m| (sum.0 + places[m].0, sum.1 + places[m].1));
        let centre = (sum.0 / count, sum.1 / count);
        if members.len() < 2 {
            return Self { members, centre, radius: 0.0 };
        }
        // Neighbours on a ring of this radius lie one gap apart; the factor makes up for rounding.
        let radius = 1.02 * gap * (0.5 / libm::sin(PI / count)).max(1.0);
        let held = |at: f64, low: f64, high: f64| {
            if high - low > 2.0 * radius { at.clamp(low + radius, high - radius) } else { 0.5 * (low + high) }
        };
        let centre =
            (held(centre.0, bounds.low.0, bounds.high.0), held(centre.1, bounds.low.1, bounds.high.1));
        Self { members, centre, radius }
    }

    fn crowds(&self, other: &Self, gap: f64) -> bool {
        let off = libm::hypot(self.centre.0 - other.centre.0, self.centre.1 - other.centre.1);
        off < self.radius + other.radius + gap
    }

    /// A slot for each marker, in the order of their points around the ring.
    fn slots(&self, places: &[Point]) -> Vec<(usize, Point)> {
        let direction = |&member: &usize| {
            let (x, y) = places[member];
            libm::atan2(y - self.centre.1, x - self.centre.0)
        };
        let mut members = self.members.clone();
        members.sort_by(|a, b| direction(a).total_cmp(&direction(b)));
        let slot = |(slot, &member): (usize, &usize)| {
            let angle = TAU * slot as f64 / members.len() as f64 - FRAC_PI_2;
            let (dx, dy) = (self.radius * libm::cos(angle), self.radius * libm::sin(angle));
            (member, (self.centre.0 + dx, self.centre.1 + dy))
        };
        members.iter().enumerate().map(slot).collect()
    }
}

/// Where to draw a marker for each of `places` so that any two lie at least `gap` apart.
///
/// Rings are kept inside `bounds` as long as they fit.
pub(super) fn spread(places: &[Point], gap: f64, bounds: Bounds) -> Vec<Point> {
    let mut rings: Vec<Ring> =
        (0..places.len()).map(|index| Ring::around(vec![index], places, gap, bounds)).collect();
    // Merging rings makes a larger one, which may crowd the next. Every pass has one ring less, so this ends.
    while let Some((first, second)) = (0..rings.len())
        .flat_map(|second| (0..second).map(move |first| (first, second)))
        .find(|&(first, second)| rings[first].crowds(&rings[second], gap))
    {
        let taken = rings.remove(second);
        let mut members = std::mem::take(&mut rings[first].members);
        members.extend(taken.members);
        members.sort_unstable();
        rings[first] = Ring::around(members, places, gap, bounds);
    }
    let mut slots = places.to_vec();
    for (member, slot) in rings.iter().flat_map(|ring| ring.slots(places)) {
        slots[member] = slot;
    }
    slots
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOUNDS: Bounds = Bounds { low: (0.0, 0.0), high: (640.0, 640.0) };

    #[test]
    fn a_lone_marker_stays_and_eight_at_one_point_surround_it() {
        let mut places = vec![(300.0, 300.0); 8];
        places.push((30.0, 30.0));
        let slots = spread(&places, 20.0, BOUNDS);
        assert_eq!(slots[8], (30.0, 30.0));
        for slot in &slots[..8] {
            let off = libm::hypot(slot.0 - 300.0, slot.1 - 300.0);
            assert!((20.0..40.0).contains(&off));
        }
    }

    #[test]
    fn neighbours_on_a_ring_keep_their_order() {
        let slots = spread(&[(300.0, 310.0), (300.0, 290.0)], 30.0, BOUNDS);
        assert!(slots[0].1 > 310.0 && slots[1].1 < 290.0, "{slots:?}");
        let same = spread(&[(300.0, 300.0); 3], 30.0, BOUNDS);
        assert!(same[0].1 < same[1].1 && same[1].0 > same[2].0, "{same:?}");
    }

    #[test]
    fn a_ring_at_the_corner_moves_inside() {
        let slots = spread(&[(0.0, 640.0); 6], 20.0, BOUNDS);
        let slack = Bounds { low: (-1e-9, -1e-9), high: (640.0 + 1e-9, 640.0 + 1e-9) };
        assert!(slots.iter().all(|&slot| slack.contains(slot)));
    }

    proptest! {
        #[test]
        fn no_two_markers_touch(
            mut places in prop::collection::vec((0.0..640.0, 0.0..640.0), 1..10),
            twins in 0usize..6,
            gap in 5.0..30.0,
        ) {
            places.extend(vec![places[0]; twins]);
            let slots = spread(&places, gap, BOUNDS);
            prop_assert_eq!(slots.len(), places.len());
            for (index, a) in slots.iter().enumerate() {
                for b in &slots[..index] {
                    prop_assert!(libm::hypot(a.0 - b.0, a.1 - b.1) >= gap);
                }
            }
        }
    }
}

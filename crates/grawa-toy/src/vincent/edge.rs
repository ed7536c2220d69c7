//! The rule for steps that leave the square [0.25, 10]².

use super::landscape::DOMAIN;
use std::fmt;

/// What happens to a step that leaves the square.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Edge {
    /// Nothing: f is defined for all positive x and y. The paper mentions no edge.
    #[default]
    None,
    /// The step ends on the edge.
    Clip,
    /// The step is mirrored at the edge.
    Reflect,
}

impl Edge {
    /// All rules.
    pub const ALL: [Edge; 3] = [Edge::None, Edge::Clip, Edge::Reflect];

    /// The rule's name.
    pub const fn as_str(self) -> &'static str {
        ["none", "clip", "reflect"][self as usize]
    }

    /// The function that is applied to the point after a step.
    pub(super) fn bound(self) -> fn(&mut [f32]) {
        match self {
            Edge::None => |_| (),
            Edge::Clip => |at| at.iter_mut().for_each(|x| *x = clip(*x)),
            Edge::Reflect => |at| at.iter_mut().for_each(|x| *x = reflect(*x)),
        }
    }
}

fn clip(x: f32) -> f32 {
    x.clamp(DOMAIN[0] as f32, DOMAIN[1] as f32)
}

/// Mirrored at the edge it passed, repeatedly if necessary.
fn reflect(x: f32) -> f32 {
    let (low, width) = (DOMAIN[0], DOMAIN[1] - DOMAIN[0]);
    let turn = (f64::from(x) - low).rem_euclid(2.0 * width);
    clip((low + turn.min(2.0 * width - turn)) as f32)
}

impl fmt::Display for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reflection_mirrors_at_both_edges() {
        assert_eq!(reflect(0.2), 0.3);
        assert_eq!(reflect(10.5), 9.5);
        assert_eq!(reflect(5.0), 5.0);
    }

    proptest! {
        #[test]
        fn bounded_points_lie_in_the_square(x in -1e6f32..1e6) {
            for edge in [Edge::Clip, Edge::Reflect] {
                let mut at = [x, x];
                edge.bound()(&mut at);
                prop_assert!((0.25..=10.0).contains(&at[0]));
            }
        }
    }
}

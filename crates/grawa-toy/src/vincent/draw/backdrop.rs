//! The landscape as a map: the range of the axes and the coloured bands of f, computed once for many pictures.
//!
//! Level lines are computed on a grid of equal steps in ln x and ln y, where f is periodic, and mapped back: the sharp
//! valleys near 0.25 are as round as the flat ones. The bands are stacked islands without holes: hollows around every
//! minimum, hills around every maximum.

use std::f64::consts::TAU;

use contour::ContourBuilder;

use super::bounds::{Bounds, thinned};
use crate::Error;
use crate::picture::pen::Point;
use crate::vincent::landscape::{self, DOMAIN};
use crate::vincent::run::Path;

/// The levels between the bands, on either side of zero.
pub(super) const LEVELS: [f64; 4] = [0.25, 0.75, 1.25, 1.75];

/// The limits to which the axes stretch to show points outside the domain.
const BOUND: [f64; 2] = [-2.0, 20.0];

/// Valleys to the left of this are narrower than a few pixels and are not painted.
const PAINTED_FROM: f64 = 0.125;

/// Grid steps in one period of f.
const STEPS: f64 = 28.0;

/// The least distance of points on a level line, as a share of the axes' length: about two pixels.
const SPACING: f64 = 3.0e-3;

/// One island: its level (negative: a hollow below it; positive: a hill above it) and its outline.
#[derive(Clone, Debug)]
pub(super) struct Island {
    pub(super) level: f64,
    pub(super) outline: Vec<Point>,
}

/// The map below the paths, shared by all pictures with the same axes.
#[derive(Clone, Debug)]
pub(in crate::vincent) struct Backdrop {
    /// The axes' range, the same along x and y.
    pub(super) axes: Bounds,
    /// The part of it that is painted.
    pub(super) painted: [f64; 2],
    /// The islands, lower ones of a stack first.
    pub(super) islands: Vec<Island>,
}

impl Backdrop {
    /// The map of the domain, stretched as far as the paths leave it, within bounds.
    pub(in crate::vincent) fn of(paths: &[Path]) -> Result<Self, Error> {
        let points = paths.iter().flat_map(|path| {
            let ways = path.workers.iter().chain([&path.centre]).flatten();
            ways.chain([&path.end.at]).flatten()
        });
        let [mut low, mut high] = DOMAIN;
        // Points beyond the limits do not stretch the axes.
        for &part in points.filter(|part| (BOUND[0]..=BOUND[1]).contains(part)) {
            (low, high) = (low.min(part), high.max(part));
        }
        Self::over([low, high])
    }

    fn over([low, high]: [f64; 2]) -> Result<Self, Error> {
        let margin = 0.025 * (high - low);
        // The domain's own margin reaches zero.
        let axes = [(low - margin).min(0.0), high + margin];
        let painted = [if low < DOMAIN[0] { PAINTED_FROM } else { DOMAIN[0] }, high];
        let islands = islands(painted, SPACING * (axes[1] - axes[0]))?;
        let axes = Bounds { low: (axes[0], axes[0]), high: (axes[1], axes[1]) };
        Ok(Self { axes, painted, islands })
    }
}

fn islands([low, high]: [f64; 2], spacing: f64) -> Result<Vec<Island>, Error> {
    let (start, length) = (libm::log(low), libm::log(high / low));
    let count = (length * 10.0 / TAU * STEPS).ceil() as usize + 1;
    let step = length / (count - 1) as f64;
    let wave: Vec<f64> = (0..count)
        .map(|index| {
            let x = libm::exp(start + step * index as f64);
            // Half of f: the function is a sum over the axes.
            0.5 * landscape::value([x, x])
        })
        .collect();
    let builder = ContourBuilder::new(count, count, true);
    // The builder puts samples in the middle of unit cells, and closes outlines half a cell outside.
    let back = |at: f64| libm::exp(start + step * (at - 0.5)).clamp(low, high);
    let mut islands = Vec::new();
    for sign in [-1.0, 1.0] {
        let values: Vec<f64> = wave.iter().flat_map(|v| wave.iter().map(move |u| sign * (u + v))).collect();
        for contour in builder.contours(&values, &LEVELS)? {
            for polygon in &contour.geometry().0 {
                let outline: Vec<Point> =
                    polygon.exterior().0.iter().map(|point| (back(point.x), back(point.y))).collect();
                let outline = thinned(&outline, spacing);
                if outline.len() > 3 {
                    islands.push(Island { level: sign * contour.threshold(), outline });
                }
            }
        }
    }
    Ok(islands)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vincent::run::{End, Outcome};

    #[test]
    fn outlines_lie_on_their_level() {
        let map = Backdrop::over(DOMAIN).unwrap();
        let inner: Vec<_> = map.islands.iter().filter(|island| island.level.abs() < 1.0).collect();
        assert!(inner.len() > 2 * 2 * 36);
        let edge = |x: f64| (x - DOMAIN[0]).abs() < 1e-9 || (x - DOMAIN[1]).abs() < 1e-9;
        for island in inner {
            for &(x, y) in island.outline.iter().filter(|(x, y)| !edge(*x) && !edge(*y)) {
                assert!((landscape::value([x, y]) - island.level).abs() < 0.02, "{x} {y}");
            }
        }
    }

    #[test]
    fn every_minimum_has_a_hollow_for_each_level() {
        let map = Backdrop::over(DOMAIN).unwrap();
        for level in LEVELS {
            let hollows = map.islands.iter().filter(|island| island.level == -level);
            let tips = hollows.filter(|island| {
                let count = island.outline.len() as f64;
                let mean =
                    island.outline.iter().fold((0.0, 0.0), |m, p| (m.0 + p.0 / count, m.1 + p.1 / count));
                landscape::value([mean.0, mean.1]) < -level
            });
            assert!(tips.count() >= 36, "level {level}");
        }
    }

    #[test]
    fn axes_reach_far_points_but_not_any_point() {
        let path = |at: [f64; 2]| Path {
            method: "mean",
            workers: vec![vec![[0.25, 0.25], at]],
            centre: vec![],
            replaced: 0,
            end: End { at, spread: 0.0, outcome: Outcome::Split },
        };
        let axes = |at| Backdrop::of(&[path(at)]).unwrap().axes;
        assert_eq!(axes([5.0, 5.0]).low, (0.0, 0.0));
        assert!(axes([14.0, -0.5]).contains((14.0, -0.5)));
        assert_eq!(axes([1e9, f64::NAN]), axes([5.0, 5.0]));
        assert_eq!(axes([f64::NEG_INFINITY, -1e300]), axes([5.0, 5.0]));
    }
}

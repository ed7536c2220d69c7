//! The pictures of the Vincent experiment: where methods end, how they get there, and sweeps.
//!
//! All maps share one [`Backdrop`], computed once, so that they have the same axes and can be compared.

mod ends;
mod ring;
mod sweep;
mod trajectory;

pub(super) use ends::ends;
pub(super) use sweep::sweep;
pub(super) use trajectory::trajectory;

use super::landscape::{self, DOMAIN};
use super::run::{End, Path};
use crate::Error;
use crate::picture::palette::{self, Rgb, WHITE};
use crate::picture::sheet::Sheet;
use crate::picture::{Canvas, pen};
use std::f64::consts::TAU;

/// The levels between the bands of f.
const LEVELS: [f64; 8] = [-1.75, -1.25, -0.75, -0.25, 0.25, 0.75, 1.25, 1.75];

/// The limits to which the axes stretch to show points outside the domain.
const BOUND: [f64; 2] = [-2.0, 20.0];

/// Valleys to the left of this are narrower than a few pixels and are not painted.
const PAINTED_FROM: f64 = 0.125;

/// Grid steps in one period of f.
const STEPS: f64 = 28.0;

/// The landscape below the paths: heights on a grid of equal steps in ln x and ln y, where f is periodic, so that the sharp
/// valleys near 0.25 are as round as the flat ones.
pub(super) struct Backdrop {
    /// The axes' range, the same along x and y.
    axes: [f64; 2],
    places: Vec<f64>,
    heights: Vec<f64>,
}

impl Backdrop {
    /// The map of the domain, stretched as far as the paths leave it, within bounds.
    pub(super) fn of(paths: &[Path]) -> Self {
        let points = paths.iter().flat_map(|path| {
            let ways = path.workers.iter().chain([&path.centre]).flatten();
            ways.chain([&path.end.at]).flatten()
        });
        let [mut low, mut high] = DOMAIN;
        // Points beyond the limits do not stretch the axes.
        for &part in points.filter(|part| (BOUND[0]..=BOUND[1]).contains(part)) {
            (low, high) = (low.min(part), high.max(part));
        }
        let margin = 0.025 * (high - low);
        let first = if low < DOMAIN[0] { PAINTED_FROM } else { DOMAIN[0] };
        let length = libm::log(high / first);
        let count = (length * 10.0 / TAU * STEPS).ceil();
        let place = |index: usize| first * libm::exp(length * index as f64 / count);
        let places: Vec<f64> = (0..=count as usize).map(place).collect();
        let heights = places.iter().flat_map(|&y| places.iter().map(move |&x| landscape::value([x, y])));
        // The domain's own margin reaches zero.
        Self { axes: [(low - margin).min(0.0), high + margin], heights: heights.collect(), places }
    }

    /// A sheet with the map, its colours faded towards white by `fade`.
    fn sheet<'a>(&self, root: &'a Canvas, fade: f64) -> Result<Sheet<'a>, Error> {
        let sheet = Sheet::new(root, [&self.axes; 2]);
        let bands = (&*self.heights, &LEVELS[..]);
        sheet.bands([&self.places; 2], bands, |band| colour(band, fade), false)?;
        if let [Some(low), Some(high)] = DOMAIN.map(|end| sheet.shown([end; 2])) {
            pen::frame(root, low, high);
        }
        Ok(sheet)
    }
}

/// The colour of a band, which is that of the height in its middle.
fn colour(band: usize, fade: f64) -> Rgb {
    palette::mix(palette::height(-2.0 + 0.5 * band as f64), WHITE, fade)
}

/// Adds the colours of f to the legend, and a note below the plot.
fn finish(sheet: &mut Sheet<'_>, fade: f64, note: &str) {
    let colours: Vec<Rgb> = (0..=LEVELS.len()).rev().map(|band| colour(band, fade)).collect();
    let labels = [2, 1, 0, -1, -2].map(|f: i32| (4.5 - 2.0 * f64::from(f), f.to_string().replace('-', "−")));
    sheet.gap();
    sheet.colours("f(x, y)", &colours, &labels);
    sheet.note(note);
}

/// Where a run ended, with a remark if it is not a valley.
fn ending(end: &End) -> String {
    let (at, remark) = (coordinates(end.at), end.outcome.remark());
    if remark.is_empty() { at } else { format!("{at}, {remark}") }
}

/// A point as `(7.71, −0.30)`; long numbers are written with an exponent.
fn coordinates(at: [f64; 2]) -> String {
    let [x, y] = at.map(|value| {
        let text = match value.abs() {
            size if size.is_nan() => "?".to_string(),
            f64::INFINITY => "∞".to_string(),
            size if size >= 1e4 => format!("{size:.1e}"),
            size => format!("{size:.2}"),
        };
        if value < 0.0 && text != "0.00" { format!("−{text}") } else { text }
    });
    format!("({x}, {y})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vincent::run::Outcome;

    #[test]
    fn any_number_is_short() {
        assert_eq!(coordinates([7.706, -0.3]), "(7.71, −0.30)");
        assert_eq!(coordinates([-0.001, f64::NAN]), "(0.00, ?)");
        assert_eq!(coordinates([-1e300, f64::NEG_INFINITY]), "(−1.0e300, −∞)");
    }

    /// The grid is fine enough for every valley: its bottom is nearly reached.
    #[test]
    fn every_valley_is_on_the_grid() {
        let map = Backdrop::of(&[]);
        assert_eq!(map.heights.len(), map.places.len() * map.places.len());
        for index in landscape::VALLEYS {
            let bottom = landscape::bottom(index);
            let near = map.places.iter().map(|&x| landscape::value([x, bottom])).fold(f64::MAX, f64::min);
            assert!(near < -1.98, "{index}: {near}");
        }
    }

    #[test]
    fn axes_reach_far_points_but_not_any_point() {
        let path = |at: [f64; 2]| Path {
            method: "mean",
            label: "Mean".into(),
            workers: vec![vec![[0.25, 0.25], at]],
            centre: vec![],
            replaced: 0,
            end: End { at, spread: 0.0, outcome: Outcome::Split },
        };
        let axes = |at| Backdrop::of(&[path(at)]).axes;
        assert_eq!(axes([5.0, 5.0])[0], 0.0);
        let [low, high] = axes([14.0, -0.5]);
        assert!(low < -0.5 && high > 14.0);
        assert_eq!(axes([1e9, f64::NAN]), axes([5.0, 5.0]));
        assert_eq!(axes([f64::NEG_INFINITY, -1e300]), axes([5.0, 5.0]));
    }
}

//! A map of heights over a plane: coloured bands with level lines between them, and named points.
//!
//! Heights are given on a grid and interpolated between its points. Bands are logarithmic where all heights are positive, so
//! that a valley has level lines however high the hills around it are.

use super::digits::{distinct, same};
use super::marker::Marker;
use super::pen::Point;
use super::sheet::{SIZE, Sheet};
use super::{Picture, palette};
use crate::{Error, Figure};

/// What a map shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Map {
    /// The title.
    pub title: String,
    /// The names of the horizontal axis, the vertical axis and the heights.
    pub axes: [String; 3],
    /// The grid along both axes, ascending.
    pub places: [Vec<f64>; 2],
    /// The heights, row by row from the bottom up.
    pub heights: Vec<f64>,
    /// Named points. The first is the middle and is marked by a star.
    pub marks: Vec<(String, Point)>,
}

/// Bands of colour.
const BANDS: usize = 12;
/// Heights within this share of the highest are nearly equal.
const NARROW: f64 = 0.02;

impl Map {
    /// The map as a figure, with its title as the caption.
    pub fn figure(&self, name: &str) -> Result<Figure, Error> {
        Ok(Figure { name: name.into(), caption: self.title.clone(), picture: self.draw()? })
    }

    /// Draws the map.
    pub fn draw(&self) -> Result<Picture, Error> {
        let bands = Bands::of(&self.heights);
        let heights: Vec<f64> = self.heights.iter().map(|&height| bands.scaled(height)).collect();
        let places = [&*self.places[0], &*self.places[1]];
        Picture::draw(SIZE.0, SIZE.1, |root| {
            let mut sheet = Sheet::new(root, places);
            sheet.bands(places, (&heights, &bands.levels), colour, true)?;
            let narrow =
                bands.narrow.map(|spread| format!("nearly flat: within {:.1} %", (100.0 * spread).max(0.1)));
            sheet.frame(&self.title, &narrow.unwrap_or_default(), [&self.axes[0], &self.axes[1]]);
            let colours: Vec<_> = (0..=bands.levels.len()).rev().map(colour).collect();
            sheet.colours(&self.axes[2], &colours, &bands.labels());
            for (index, (name, at)) in self.marks.iter().enumerate() {
                let (marker, colour, size) = match index {
                    0 => (Marker::STAR, palette::INK, 9.0),
                    _ => (palette::series_marker(index - 1), palette::series(index - 1), 6.0),
                };
                for at in [sheet.shown(*at), Some(sheet.entry(name, ""))].into_iter().flatten() {
                    marker.fill(root, at, size, colour);
                }
            }
            Ok(())
        })
    }
}

fn colour(band: usize) -> palette::Rgb {
    palette::height(-2.0 + 4.0 * band as f64 / (BANDS - 1) as f64)
}

/// The levels between the bands.
struct Bands {
    levels: Vec<f64>,
    logarithmic: bool,
    /// The height, where all are equal.
    flat: Option<f64>,
    /// The range as a share of the highest, where it is so small that colours alone would not show it.
    narrow: Option<f64>,
}

impl Bands {
    fn of(heights: &[f64]) -> Self {
        let finite = || heights.iter().copied().filter(|height| height.is_finite());
        let logarithmic = finite().all(|height| height > 0.0);
        let mut bands = Bands { levels: Vec::new(), logarithmic, flat: None, narrow: None };
        let (low, high) =
            finite().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
        // Bands of rounding errors mean nothing.
        if low <= high && same(low, high) {
            bands.flat = Some(0.5 * (low + high));
        } else if low <= high {
            let [from, to] = [low, high].map(|end| bands.scaled(end));
            bands.narrow = Some((high - low) / low.abs().max(high.abs())).filter(|spread| *spread < NARROW);
            bands.levels = (1..BANDS).map(|level| from + (to - from) * level as f64 / BANDS as f64).collect();
        }
        bands
    }

    fn scaled(&self, height: f64) -> f64 {
        if self.logarithmic { libm::log10(height) } else { height }
    }

    /// The heights between the bands, counted from the highest band; the height itself where all are equal.
    fn labels(&self) -> Vec<(f64, String)> {
        if let Some(height) = self.flat {
            return vec![(0.5, format!("flat: {} everywhere", distinct(&[height]).concat()))];
        }
        let height = |&level: &f64| if self.logarithmic { libm::pow(10.0, level) } else { level };
        let texts = distinct(&self.levels.iter().map(height).collect::<Vec<_>>());
        (1..=texts.len()).rev().map(|at| at as f64).zip(texts).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bowl(side: usize, bottom: f64) -> Map {
        let places: Vec<f64> = (0..side).map(|i| -1.0 + 2.0 * i as f64 / (side - 1) as f64).collect();
        let heights =
            places.iter().flat_map(|y| places.iter().map(move |x| bottom + x * x + 2.0 * y * y)).collect();
        Map { places: [places.clone(), places], heights, ..Map::default() }
    }

    #[test]
    fn bands_cover_all_heights_and_nothing_else() {
        let bands = Bands::of(&[0.01, 100.0, f64::NAN, f64::INFINITY]);
        assert!(bands.logarithmic && bands.levels.len() == BANDS - 1);
        let [first, last] = [bands.levels[0], bands.levels[BANDS - 2]];
        assert!(-2.0 < first && first < last && last < 2.0);
        assert!(!Bands::of(&[-1.0, 1.0]).logarithmic);
        let flat = Bands::of(&[2.0, 2.0]);
        assert_eq!((flat.levels.len(), flat.flat), (0, Some(2.0)));
    }

    /// However narrow the range, no two entries of a legend read the same; where it is nothing, the map says so.
    #[test]
    fn legends_tell_their_levels_apart() {
        for (low, high) in [(0.00199, 0.002), (0.0019999, 0.002), (1.0, 1.001), (-0.5, 30.0), (1e-9, 1e9)] {
            let labels = Bands::of(&[low, 0.5 * (low + high), high]).labels();
            let mut texts: Vec<String> = labels.into_iter().map(|label| label.1).collect();
            assert_eq!(texts.len(), BANDS - 1);
            texts.dedup();
            assert_eq!(texts.len(), BANDS - 1, "{texts:?}");
        }
        let flat = |height: f64| Map { heights: vec![height, 0.002], ..bowl(2, 0.0) }.draw().unwrap();
        assert!(flat(0.002 * (1.0 + 1e-8)).svg().contains("flat: 0.00200 everywhere"));
        assert!(flat(0.00199).svg().contains("nearly flat: within 0.5 %"));
        assert!(!flat(0.0019).svg().contains("flat"));
    }

    #[test]
    fn any_numbers_make_a_map() {
        let mut lost = bowl(5, 0.0);
        lost.heights[3] = f64::NAN;
        lost.heights[7] = f64::INFINITY;
        lost.marks = vec![("middle".into(), (0.0, 0.0)), ("far".into(), (1e9, f64::NAN))];
        let empty = Map::default();
        let flat = Map { heights: vec![1.0; 25], ..bowl(5, 0.0) };
        for map in [bowl(9, 0.01), lost, empty, flat] {
            map.draw().unwrap().png().unwrap();
        }
    }
}

//! A map of heights over a plane: coloured bands with level lines between them, and named points.
//!
//! Heights are given on a grid and interpolated between its points. Bands are logarithmic where all heights are positive, so
//! that a valley has level lines however high the hills around it are.

use contour::ContourBuilder;
use plotters::style::WHITE;
use plotters::style::text_anchor::HPos;

use super::digits::{distinct, same};
use super::marker::Marker;
use super::pen::{Point, fill, line, title};
use super::scale::{Axes, SMALL, Scale};
use super::{Canvas, Picture, palette};
use crate::Error;

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

const SIZE: (u32, u32) = (900, 700);
/// The corners of the plot.
const LOW: Point = (92.0, 56.0);
const HIGH: Point = (662.0, 626.0);
/// Bands of colour.
const BANDS: usize = 12;
/// Heights within this share of the highest are nearly equal.
const NARROW: f64 = 0.02;
/// Cells to a side in which the bands are painted.
const CELLS: usize = 190;

impl Map {
    /// Draws the map.
    pub fn draw(&self) -> Result<Picture, Error> {
        let scales = [0, 1].map(|axis| Scale::exactly(&self.places[axis]));
        let axes = Axes { low: LOW, high: HIGH, scales };
        let bands = Bands::of(&self.heights);
        Picture::draw(SIZE.0, SIZE.1, |root| {
            root.fill(&WHITE)?;
            title(root, &self.title, (LOW.0, 28.0), f64::from(SIZE.0) - LOW.0 - 12.0)?;
            self.paint(root, &bands)?;
            self.level_lines(root, &bands)?;
            axes.draw(root, [&self.axes[0], &self.axes[1]], false)?;
            let mut y = self.legend(root, &bands)?;
            for (index, (name, at)) in self.marks.iter().enumerate() {
                let (marker, colour, size) = match index {
                    0 => (Marker::Star, palette::INK, 9.0),
                    _ => (palette::series_marker(index - 1), palette::series(index - 1), 6.0),
                };
                let is_inside =
                    |at: &Point| (LOW.0..=HIGH.0).contains(&at.0) && (LOW.1..=HIGH.1).contains(&at.1);
                for at in axes.at(*at).filter(is_inside).into_iter().chain([(HIGH.0 + 34.0, y)]) {
                    marker.fill(root, at, size, colour)?;
                }
                SMALL.write(root, name, (HIGH.0 + 52.0, y), HPos::Left)?;
                y += 24.0;
            }
            Ok(())
        })
    }

    /// The interpolated height at shares of the two axes, on the scale of the bands.
    fn height(&self, bands: &Bands, along: f64, up: f64) -> f64 {
        let [columns, rows] = [self.places[0].len(), self.places[1].len()];
        let part = |share: f64, count: usize| {
            let at = share * (count.max(2) - 1) as f64;
            let first = (at as usize).min(count.saturating_sub(2));
            (first, (first + 1).min(count.saturating_sub(1)), at - first as f64)
        };
        let ((left, right, x), (low, high, y)) = (part(along, columns), part(up, rows));
        let at = |row: usize, column: usize| {
            let height = self.heights.get(row * columns + column);
            height.and_then(|&height| bands.scaled(height)).unwrap_or(f64::NAN)
        };
        let row = |row: usize| at(row, left) * (1.0 - x) + at(row, right) * x;
        row(low) * (1.0 - y) + row(high) * y
    }

    /// Paints the bands in rows of cells; neighbours of one colour are one rectangle.
    fn paint(&self, root: &Canvas<'_>, bands: &Bands) -> Result<(), Error> {
        let share = |cell: usize| cell as f64 / CELLS as f64;
        for row in 0..CELLS {
            let band = |column: usize| {
                let half = 0.5 / CELLS as f64;
                bands.band(self.height(bands, share(column) + half, share(row) + half))
            };
            let mut start = 0;
            while start < CELLS {
                let own = band(start);
                let end = (start + 1..CELLS).find(|&column| band(column) != own).unwrap_or(CELLS);
                let (from, to) = (inside(share(start), share(row + 1)), inside(share(end), share(row)));
                let colour = own.map_or(palette::SPLIT, colour);
                fill(root, from, to, colour)?;
                start = end;
            }
        }
        Ok(())
    }

    fn level_lines(&self, root: &Canvas<'_>, bands: &Bands) -> Result<(), Error> {
        let [columns, rows] = [self.places[0].len(), self.places[1].len()];
        if columns < 2 || rows < 2 || self.heights.len() != columns * rows {
            return Ok(());
        }
        // Values that are not finite are above all lines.
        let heights: Vec<f64> =
            self.heights.iter().map(|&height| bands.scaled(height).unwrap_or(f64::MAX)).collect();
        let builder = ContourBuilder::new(columns, rows, true);
        for contour in builder.lines(&heights, &bands.levels)? {
            for path in &contour.geometry().0 {
                // The builder sets samples in the middle of unit cells, and closes outlines half a cell outside.
                let share = |at: f64, count: usize| (at - 0.5) / (count - 1) as f64;
                let points: Vec<Option<Point>> = (path.0.iter())
                    .map(|at| (share(at.x, columns), share(at.y, rows)))
                    .map(|(x, y)| {
                        let is_edge = |share: f64| !(1e-9..=1.0 - 1e-9).contains(&share);
                        (!is_edge(x) && !is_edge(y)).then(|| inside(x, y))
                    })
                    .collect();
                for piece in points.split(Option::is_none) {
                    let piece: Vec<Point> = piece.iter().flatten().copied().collect();
                    line(root, &piece, palette::mix(palette::INK, WHITE, 0.45), 0.7)?;
                }
            }
        }
        Ok(())
    }

    /// The bands with the heights between them; returns where the next entry goes.
    fn legend(&self, root: &Canvas<'_>, bands: &Bands) -> Result<f64, Error> {
        let (x, top, step) = (HIGH.0 + 24.0, LOW.1 + 34.0, 22.0);
        SMALL.bold().write(root, &self.axes[2], (x, LOW.1 + 10.0), HPos::Left)?;
        let texts = bands.texts();
        for band in 0..=bands.levels.len() {
            let y = top + step * (bands.levels.len() - band) as f64;
            fill(root, (x, y), (x + 22.0, y + step), colour(band))?;
            if let Some(text) = texts.get(band) {
                SMALL.write(root, text, (x + 32.0, y), HPos::Left)?;
            }
        }
        if let Some(height) = bands.flat {
            let text = format!("flat: {} everywhere", distinct(&[height]).concat());
            SMALL.write(root, &text, (x + 32.0, top + 0.5 * step), HPos::Left)?;
        }
        let end = top + step * (bands.levels.len() + 1) as f64 + 26.0;
        let Some(spread) = bands.narrow else { return Ok(end) };
        let text = format!("nearly flat: within {:.1} %", (100.0 * spread).max(0.1));
        SMALL.write(root, &text, (x, end), HPos::Left)?;
        Ok(end + 28.0)
    }
}

/// The position of shares of the two axes, in pixels.
fn inside(along: f64, up: f64) -> Point {
    (LOW.0 + along * (HIGH.0 - LOW.0), HIGH.1 - up * (HIGH.1 - LOW.1))
}

fn colour(band: usize) -> plotters::style::RGBColor {
    palette::height(-2.0 + 4.0 * band as f64 / (BANDS - 1) as f64)
}

/// The levels between the bands.
#[derive(Debug)]
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
        } else if let [Some(from), Some(to)] = [low, high].map(|end| bands.scaled(end)) {
            bands.narrow = Some((high - low) / low.abs().max(high.abs())).filter(|spread| *spread < NARROW);
            bands.levels = (1..BANDS).map(|level| from + (to - from) * level as f64 / BANDS as f64).collect();
        }
        bands
    }

    fn scaled(&self, height: f64) -> Option<f64> {
        let scaled = if self.logarithmic { libm::log10(height) } else { height };
        scaled.is_finite().then_some(scaled)
    }

    fn band(&self, scaled: f64) -> Option<usize> {
        scaled.is_finite().then(|| self.levels.iter().filter(|level| **level <= scaled).count())
    }

    /// The heights between the bands, from the lowest up.
    fn texts(&self) -> Vec<String> {
        let height = |&level: &f64| if self.logarithmic { libm::pow(10.0, level) } else { level };
        distinct(&self.levels.iter().map(height).collect::<Vec<_>>())
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
    fn heights_between_the_places_are_interpolated() {
        let map = bowl(3, -1.0);
        let bands = Bands::of(&map.heights);
        let at = |along, up| map.height(&bands, along, up);
        assert_eq!([at(0.5, 0.5), at(1.0, 0.5), at(1.0, 1.0), at(0.75, 0.5)], [-1.0, 0.0, 2.0, -0.5]);
    }

    #[test]
    fn bands_cover_all_heights_and_nothing_else() {
        let bands = Bands::of(&[0.01, 100.0, f64::NAN, f64::INFINITY]);
        assert!(bands.logarithmic && bands.levels.len() == BANDS - 1);
        assert_eq!(
            (bands.band(-2.0), bands.band(2.0), bands.band(f64::NAN)),
            (Some(0), Some(BANDS - 1), None)
        );
        assert!(!Bands::of(&[-1.0, 1.0]).logarithmic);
        let flat = Bands::of(&[2.0, 2.0]);
        assert_eq!((flat.levels.len(), flat.flat), (0, Some(2.0)));
    }

    /// However narrow the range, no two entries of a legend read the same; where it is nothing, the map says so.
    #[test]
    fn legends_tell_their_levels_apart() {
        for (low, high) in [(0.00199, 0.002), (0.0019999, 0.002), (1.0, 1.001), (-0.5, 30.0), (1e-9, 1e9)] {
            let mut texts = Bands::of(&[low, 0.5 * (low + high), high]).texts();
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

//! The sheet of every map: title, a square plot with axes and coloured bands of heights, and a legend beside it, which
//! never covers the plot.

use contour::ContourBuilder;

use super::palette::{self, Rgb, WHITE};
use super::pen::{self, Bounds, Point, Text, fine, thinned};
use super::scale::{Axes, SMALL, Scale};
use super::{Canvas, Shape, Side};
use crate::Error;

/// The size of a sheet in pixels.
pub(crate) const SIZE: (u32, u32) = (900, 720);
/// The rectangle of the plot.
pub(crate) const PLOT: Bounds = Bounds { low: (92.0, 56.0), high: (692.0, 656.0) };

/// Where the legend begins, and the height of its lines and of a band.
const COLUMN: f64 = 714.0;
const LINE: f64 = 22.0;
const BAND: f64 = 18.0;
/// Coordinates farther than this from the sheet are clamped: the canvas counts in `i32`.
const FAR: f64 = 1e5;

const NOTE: Text = Text::of(11.0).colour(palette::FAINT);

/// A sheet that is being drawn: bands and paths first, then [`Sheet::frame`], then markers and legend.
pub(crate) struct Sheet<'a> {
    pub(crate) root: &'a Canvas,
    axes: Axes,
    /// Where the next line of the legend stands.
    next: f64,
}

impl<'a> Sheet<'a> {
    /// An empty sheet with axes from the first to the last of these numbers.
    pub(crate) fn new(root: &'a Canvas, ranges: [&[f64]; 2]) -> Self {
        let axes = Axes { low: PLOT.low, high: PLOT.high, scales: ranges.map(Scale::exactly) };
        Sheet { root, axes, next: PLOT.low.1 + 8.0 }
    }

    /// The position of a point, if it lies within the axes.
    pub(crate) fn shown(&self, point: impl Into<Point>) -> Option<Point> {
        self.axes.at(point.into()).filter(|&at| PLOT.contains(at))
    }

    /// Paints bands of colour between levels, and lines between them where asked for. Heights are given on a grid of places,
    /// row by row from the bottom up, and interpolated; a cell of the grid with a height that is not finite is grey.
    pub(crate) fn bands(
        &self,
        places: [&[f64]; 2],
        (heights, levels): (&[f64], &[f64]),
        colour: impl Fn(usize) -> Rgb,
        lines: bool,
    ) -> Result<(), Error> {
        let [columns, rows] = places.map(<[f64]>::len);
        if columns < 2 || rows < 2 || heights.len() != columns * rows {
            return Ok(());
        }
        // The builder puts samples in the middle of unit cells, and closes outlines half a cell outside.
        let place = |axis: usize, at: f64| {
            let (places, at) = (places[axis], (at - 0.5).clamp(0.0, (places[axis].len() - 1) as f64));
            let below = (at as usize).min(places.len() - 2);
            places[below] + (places[below + 1] - places[below]) * (at - below as f64)
        };
        let position = |x: f64, y: f64| self.axes.at((place(0, x), place(1, y))).unwrap_or_default();
        let corner = |column: usize, row: usize| position(column as f64 + 0.5, row as f64 + 0.5);
        pen::fill(self.root, corner(0, rows - 1), corner(columns - 1, 0), colour(0));
        let finite: Vec<f64> = heights.iter().map(|&h| if h.is_finite() { h } else { f64::MAX }).collect();
        let contours = ContourBuilder::new(columns, rows, true).contours(&finite, levels);
        let failed = |error| Error::Picture(format!("the level lines could not be computed: {error}"));
        for (band, contour) in contours.map_err(failed)?.iter().enumerate() {
            for polygon in &contour.geometry().0 {
                let rings: Vec<Vec<Point>> = ([polygon.exterior()].into_iter().chain(polygon.interiors()))
                    .map(|ring| ring.0.iter().map(|at| position(at.x, at.y)).collect::<Vec<_>>())
                    .map(|ring| thinned(&ring, 1.5))
                    .collect();
                // A polygon has one outline: holes, which run the other way round, are joined to it by lines there and back.
                let joined = rings.iter().flat_map(|ring| ring.iter().chain(&rings[0][..1])).copied();
                self.root.draw(Shape::Polygon(joined.map(fine).collect()), colour(band + 1));
                for ring in rings.iter().filter(|_| lines) {
                    pen::line(self.root, ring, palette::mix(palette::INK, WHITE, 0.45), 0.7);
                }
            }
        }
        let cells = (0..rows - 1).flat_map(|row| (0..columns - 1).map(move |column| (column, row)));
        for (column, row) in cells {
            let corners = [0, 1, columns, columns + 1].map(|next| heights[row * columns + column + next]);
            if corners.iter().any(|height| !height.is_finite()) {
                pen::fill(self.root, corner(column, row + 1), corner(column + 1, row), palette::SPLIT);
            }
        }
        Ok(())
    }

    /// Draws a path; returns whether all of it lies within the axes. A point that is not finite interrupts the line.
    pub(crate) fn way(&self, points: &[[f64; 2]], colour: Rgb, width: f64) -> bool {
        let positions: Vec<Option<Point>> = points.iter().map(|&at| self.axes.at(at.into())).collect();
        for piece in positions.split(Option::is_none).filter(|piece| piece.len() > 1) {
            let near = |(x, y): &Point| (x.clamp(-FAR, FAR), y.clamp(-FAR, FAR));
            let line: Vec<Point> = piece.iter().flatten().map(near).collect();
            pen::line(self.root, &thinned(&line, 1.0), colour, width);
        }
        positions.iter().all(|at| at.is_some_and(|at| PLOT.contains(at)))
    }

    /// Covers what lies outside the plot, and draws title and axes.
    pub(crate) fn frame(&self, title: &str, subtitle: &str, names: [&str; 2]) {
        let (root, Bounds { low, high }, end) = (self.root, PLOT, (f64::from(SIZE.0), f64::from(SIZE.1)));
        for (from, to) in [
            ((0.0, 0.0), (end.0, low.1)),
            ((0.0, high.1), end),
            ((0.0, low.1), (low.0, high.1)),
            ((high.0, low.1), (end.0, high.1)),
        ] {
            pen::fill(root, from, to, WHITE);
        }
        let after = pen::title(root, title, (low.0, 28.0), end.0 - low.0 - 12.0) + 14.0;
        SMALL.colour(palette::FAINT).write(root, subtitle, (after, 30.0), Side::Left);
        self.axes.draw(root, names, false);
    }

    /// Begins a part of the legend.
    pub(crate) fn heading(&mut self, text: &str) {
        self.next += LINE + 2.0;
        SMALL.bold().write(self.root, text, (COLUMN, self.next - LINE - 2.0), Side::Left);
    }

    /// Adds a line to the legend, and a fainter remark below it unless that is empty. Returns the position of the entry's
    /// marker.
    pub(crate) fn entry(&mut self, text: &str, remark: &str) -> Point {
        let marker = (COLUMN + 10.0, self.next);
        SMALL.write(self.root, text, (COLUMN + 28.0, self.next), Side::Left);
        if !remark.is_empty() {
            self.next += 15.0;
            NOTE.write(self.root, remark, (COLUMN + 28.0, self.next), Side::Left);
        }
        self.next += LINE;
        marker
    }

    /// Leaves some space in the legend.
    pub(crate) fn gap(&mut self) {
        self.next += 10.0;
    }

    /// Adds the colours of the bands, from the top, with labels at heights that are counted in bands.
    pub(crate) fn colours(&mut self, title: &str, colours: &[Rgb], labels: &[(f64, String)]) {
        self.heading(title);
        let top = self.next - 6.0;
        for (index, &colour) in colours.iter().enumerate() {
            let y = top + BAND * index as f64;
            pen::fill(self.root, (COLUMN, y), (COLUMN + 24.0, y + BAND), colour);
        }
        for (at, text) in labels {
            SMALL.write(self.root, text, (COLUMN + 32.0, top + BAND * at), Side::Left);
        }
        self.next = top + BAND * colours.len() as f64 + 26.0;
    }

    /// Adds a note below the plot.
    pub(crate) fn note(&self, text: &str) {
        NOTE.write(self.root, text, (PLOT.high.0, f64::from(SIZE.1) - 10.0), Side::Right);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::Picture;
    use tiny_skia::Pixmap;

    /// Every pixel has the colour of its height, also in a hole, on an uneven grid, and where a height is missing.
    #[test]
    fn bands_have_the_colours_of_their_heights() {
        let places: Vec<f64> = (0..80).map(|i| 1.05f64.powi(i)).collect();
        let f = |x: f64, y: f64| (x - 10.0).hypot(y - 20.0);
        let mut heights: Vec<f64> =
            places.iter().flat_map(|&y| places.iter().map(move |&x| f(x, y))).collect();
        heights[80 * 79 + 79] = f64::NAN;
        let (levels, colour) = ([4.0, 8.0, 16.0], |band: usize| palette::series(band));
        let picture = Picture::draw(SIZE.0, SIZE.1, |root| {
            let sheet = Sheet::new(root, [&places; 2]);
            sheet.bands([&places; 2], (&heights, &levels), colour, false)
        });
        let image = Pixmap::decode_png(&picture.unwrap().png().unwrap()).unwrap();
        let axes = Axes { low: PLOT.low, high: PLOT.high, scales: [0, 1].map(|_| Scale::exactly(&places)) };
        let seen = |x: f64, y: f64| {
            let (x, y) = axes.at((x, y)).unwrap();
            let pixel = image.pixel(x as u32, y as u32).unwrap();
            Rgb(pixel.red(), pixel.green(), pixel.blue())
        };
        for x in (2..45).map(f64::from) {
            for y in (2..45).map(f64::from) {
                let height = f(x, y);
                if levels.iter().all(|level| (level - height).abs() > 0.3) {
                    let band = levels.iter().filter(|level| **level < height).count();
                    assert_eq!(seen(x, y), colour(band), "({x}, {y})");
                }
            }
        }
        assert_eq!(seen(47.0, 47.0), palette::SPLIT);
    }
}

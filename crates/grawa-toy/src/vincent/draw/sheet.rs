//! The sheet of every map: title, a square plot with axes, and a legend beside it.
//!
//! The plot is 640 pixels wide and has the backdrop's axes; the legend never covers data.

use plotters::element::Polygon;
use plotters::style::text_anchor::HPos;
use plotters::style::{Color, RGBColor, WHITE};

use super::backdrop::{Backdrop, LEVELS};
use super::bounds::{Bounds, thinned};
use crate::Error;
use crate::picture::pen::{self, Point, Text, fine};
use crate::picture::{Canvas, palette};
use crate::vincent::landscape::DOMAIN;

/// The size of a sheet in pixels.
pub(super) const SIZE: (u32, u32) = (900, 760);
/// The rectangle of the plot.
pub(super) const PLOT: Bounds = Bounds { low: (66.0, 56.0), high: (706.0, 696.0) };

const COLUMN: f64 = 728.0;
const LINE: f64 = 22.0;
/// Coordinates farther than this from the sheet are clamped: the drawing library counts in `i32`.
const FAR: f64 = 1e5;

const TEXT: Text = Text::of(13.0);
const TITLE: Text = Text::of(18.0).bold();
const NAME: Text = Text::of(15.0);
const NOTE: Text = Text::of(11.0).colour(palette::FAINT);

/// A sheet that is being drawn. Positions are in pixels.
pub(super) struct Sheet<'a, 'c> {
    pub(super) root: &'a Canvas<'c>,
    map: &'a Backdrop,
    fade: f64,
    next: f64,
}

impl<'a, 'c> Sheet<'a, 'c> {
    /// Paints the map, its colours faded towards white by `fade`. Paths follow, then [`Sheet::frame`], then markers and legend.
    pub(super) fn new(root: &'a Canvas<'c>, map: &'a Backdrop, fade: f64) -> Result<Self, Error> {
        root.fill(&WHITE)?;
        let sheet = Self { root, map, fade, next: PLOT.low.1 + 8.0 };
        let [low, high] = map.painted;
        pen::fill(root, sheet.at([low, high]), sheet.at([high, low]), sheet.colour(0.0))?;
        for island in &map.islands {
            let outline: Vec<_> = island.outline.iter().map(|&(x, y)| fine(sheet.at([x, y]))).collect();
            // A band has the colour of its middle, a quarter beyond its level.
            let style = sheet.colour(island.level + island.level.signum() * 0.25).filled();
            root.draw(&Polygon::new(outline, style))?;
        }
        if map.painted != DOMAIN {
            pen::frame(root, sheet.at([DOMAIN[0]; 2]), sheet.at([DOMAIN[1]; 2]))?;
        }
        Ok(sheet)
    }

    fn colour(&self, f: f64) -> RGBColor {
        palette::mix(palette::height(f), WHITE, self.fade)
    }

    /// Whether a point of the landscape lies within the axes.
    pub(super) fn shows(&self, [x, y]: [f64; 2]) -> bool {
        self.map.axes.contains((x, y))
    }

    /// The position of a point of the landscape.
    pub(super) fn at(&self, [x, y]: [f64; 2]) -> Point {
        let Bounds { low, high } = self.map.axes;
        let (right, up) = ((x - low.0) / (high.0 - low.0), (y - low.1) / (high.1 - low.1));
        (PLOT.low.0 + right * (PLOT.high.0 - PLOT.low.0), PLOT.high.1 - up * (PLOT.high.1 - PLOT.low.1))
    }

    /// Draws a path through the landscape; returns whether all of it lies within the axes. A point that is not finite
    /// interrupts the line.
    pub(super) fn way(&self, points: &[[f64; 2]], colour: RGBColor, width: f64) -> Result<bool, Error> {
        for piece in points.split(|at| !at.iter().all(|x| x.is_finite())).filter(|piece| piece.len() > 1) {
            let clamped = |&at: &[f64; 2]| {
                let (x, y) = self.at(at);
                (x.clamp(-FAR, FAR), y.clamp(-FAR, FAR))
            };
            let line: Vec<Point> = piece.iter().map(clamped).collect();
            pen::line(self.root, &thinned(&line, 1.0), colour, width)?;
        }
        Ok(points.iter().all(|&at| self.shows(at)))
    }

    /// Covers what lies outside the plot, and draws title and axes.
    pub(super) fn frame(&self, title: &str, subtitle: &str) -> Result<(), Error> {
        let (root, Bounds { low, high }, end) = (self.root, PLOT, (f64::from(SIZE.0), f64::from(SIZE.1)));
        for (from, to) in [
            ((0.0, 0.0), (end.0, low.1)),
            ((0.0, high.1), end),
            ((0.0, low.1), (low.0, high.1)),
            ((high.0, low.1), (end.0, high.1)),
        ] {
            pen::fill(root, from, to, WHITE)?;
        }
        TITLE.write(root, title, (low.0, 27.0), HPos::Left)?;
        let after = (low.0 + TITLE.width(title) + 14.0, 29.0);
        TEXT.colour(palette::FAINT).write(root, subtitle, after, HPos::Left)?;
        pen::frame(root, low, high)?;
        let (from, to) = (self.map.axes.low.0, self.map.axes.high.0);
        let step = if to - from < 13.0 { 1.0 } else { 2.0 };
        let mut tick = (from / step).ceil() * step;
        while tick <= to {
            let (across, down) = self.at([tick; 2]);
            // Rounding up to zero from below gives −0.
            let text = format!("{}", tick + 0.0).replace('-', "−");
            pen::line(root, &[(across, high.1), (across, high.1 + 5.0)], palette::INK, 1.0)?;
            TEXT.write(root, &text, (across, high.1 + 15.0), HPos::Center)?;
            pen::line(root, &[(low.0 - 5.0, down), (low.0, down)], palette::INK, 1.0)?;
            TEXT.write(root, &text, (low.0 - 9.0, down), HPos::Right)?;
            tick += step;
        }
        NAME.write(root, "x", (0.5 * (low.0 + high.0), high.1 + 38.0), HPos::Center)?;
        NAME.upward().write(root, "y", (low.0 - 44.0, 0.5 * (low.1 + high.1)), HPos::Center)
    }

    /// Starts the legend.
    pub(super) fn heading(&mut self, text: &str) -> Result<(), Error> {
        self.next += LINE + 2.0;
        TEXT.bold().write(self.root, text, (COLUMN, self.next - LINE - 2.0), HPos::Left)
    }

    /// Adds a line to the legend, and a fainter remark below it unless that is empty. Returns the position of the entry's
    /// marker.
    pub(super) fn entry(&mut self, text: &str, remark: &str) -> Result<Point, Error> {
        let marker = (COLUMN + 10.0, self.next);
        TEXT.write(self.root, text, (COLUMN + 28.0, self.next), HPos::Left)?;
        if !remark.is_empty() {
            self.next += 15.0;
            NOTE.write(self.root, remark, (COLUMN + 28.0, self.next), HPos::Left)?;
        }
        self.next += LINE;
        Ok(marker)
    }

    /// Leaves some space in the legend.
    pub(super) fn gap(&mut self) {
        self.next += 10.0;
    }

    /// Adds the colour scale of f below the legend, and a note below the plot.
    pub(super) fn finish(&self, note: &str) -> Result<(), Error> {
        let (root, count, height, right) = (self.root, 2 * LEVELS.len() + 1, 18.0, COLUMN + 24.0);
        let top = PLOT.high.1 - height * count as f64;
        TEXT.bold().write(root, "f(x, y)", (COLUMN, top - 16.0), HPos::Left)?;
        for band in 0..count {
            let f = 2.0 - 0.5 * band as f64;
            let y = top + height * band as f64;
            pen::fill(root, (COLUMN, y), (right, y + height), self.colour(f))?;
            if band % 2 == 0 {
                let text = format!("{f}").replace('-', "−");
                TEXT.write(root, &text, (right + 22.0, y + 0.5 * height), HPos::Right)?;
            }
        }
        let foot = PLOT.high.1;
        let ring = [(COLUMN, top), (right, top), (right, foot), (COLUMN, foot), (COLUMN, top)];
        pen::line(root, &ring, palette::HAIR, 1.0)?;
        NOTE.write(root, note, (PLOT.high.0, f64::from(SIZE.1) - 10.0), HPos::Right)
    }
}

/// A point as `(7.71, −0.30)`; long numbers are written with an exponent.
pub(super) fn coordinates(at: [f64; 2]) -> String {
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

    #[test]
    fn any_number_is_short() {
        assert_eq!(coordinates([7.706, -0.3]), "(7.71, −0.30)");
        assert_eq!(coordinates([-0.001, f64::NAN]), "(0.00, ?)");
        assert_eq!(coordinates([-1e300, f64::NEG_INFINITY]), "(−1.0e300, −∞)");
    }
}

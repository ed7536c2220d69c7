//! The sheet that every map is drawn on: title, a square plot with axes, and a column for the legend beside it.
//!
//! The plot is 640 pixels wide and has the backdrop's axes; the legend never covers data.

use plotters::element::{Polygon, Rectangle};
use plotters::style::text_anchor::HPos;
use plotters::style::{Color, RGBColor, WHITE};

use super::backdrop::{Backdrop, LEVELS};
use super::line::{Bounds, thinned};
use crate::picture::pen::{self, Point, Text, fine};
use crate::picture::{Canvas, Error, palette};
use crate::vincent::landscape::DOMAIN;

/// The size of a sheet in pixels.
pub(super) const SIZE: (u32, u32) = (900, 760);

const PLOT: Bounds = Bounds { low: (66.0, 56.0), high: (706.0, 696.0) };
const COLUMN: f64 = 728.0;
const LINE: f64 = 22.0;

/// The texts of a sheet.
const TEXT: Text = Text::of(13.0);
const TITLE: Text = Text::of(18.0).bold();
const NAME: Text = Text::of(15.0);
const NOTE: Text = Text::of(11.0).colour(palette::FAINT);

/// A sheet under way. Positions are in pixels.
pub(super) struct Sheet<'a, 'c> {
    root: &'a Canvas<'c>,
    map: &'a Backdrop,
    next: f64,
}

impl<'a, 'c> Sheet<'a, 'c> {
    /// Lays out a sheet: background, title, and the map, its colours faded towards white by `fade`.
    pub(super) fn new(
        root: &'a Canvas<'c>,
        map: &'a Backdrop,
        (title, subtitle): (&str, &str),
        fade: f64,
    ) -> Result<Self, Error> {
        root.fill(&WHITE)?;
        let sheet = Self { root, map, next: PLOT.low.1 + 8.0 };
        sheet.paint(fade)?;
        let baseline = (PLOT.low.0, 27.0);
        TITLE.write(root, title, baseline, HPos::Left)?;
        let after = (baseline.0 + TITLE.width(title) + 14.0, baseline.1 + 2.0);
        TEXT.colour(palette::FAINT).write(root, subtitle, after, HPos::Left)?;
        sheet.axes()?;
        Ok(sheet)
    }

    /// The canvas below.
    pub(super) fn root(&self) -> &'a Canvas<'c> {
        self.root
    }

    /// The plot's rectangle.
    pub(super) fn plot(&self) -> Bounds {
        PLOT
    }

    /// Whether a point of the landscape lies within the axes.
    pub(super) fn shows(&self, [x, y]: [f64; 2]) -> bool {
        self.map.axes.contains((x, y))
    }

    /// Where a point of the landscape lies on the sheet.
    pub(super) fn at(&self, [x, y]: [f64; 2]) -> Point {
        let Bounds { low, high } = self.map.axes;
        let (right, up) = ((x - low.0) / (high.0 - low.0), (y - low.1) / (high.1 - low.1));
        (PLOT.low.0 + right * (PLOT.high.0 - PLOT.low.0), PLOT.high.1 - up * (PLOT.high.1 - PLOT.low.1))
    }

    fn paint(&self, fade: f64) -> Result<(), Error> {
        let colour = |level: f64| palette::mix(palette::height(level), WHITE, fade);
        let [low, high] = self.map.painted;
        let corners = [self.at([low, high]), self.at([high, low])].map(fine);
        self.root.draw(&Rectangle::new(corners, colour(0.0).filled()))?;
        for island in &self.map.islands {
            let outline: Vec<_> = island.outline.iter().map(|&(x, y)| fine(self.at([x, y]))).collect();
            // A band has the colour of its middle, a quarter beyond its level.
            let style = colour(island.level + island.level.signum() * 0.25).filled();
            self.root.draw(&Polygon::new(outline, style))?;
        }
        if self.map.painted != DOMAIN {
            let [low, high] = DOMAIN;
            let ring = [[low, low], [high, low], [high, high], [low, high], [low, low]].map(|at| self.at(at));
            self.line(&ring, palette::INK, 1.0)?;
        }
        Ok(())
    }

    fn axes(&self) -> Result<(), Error> {
        let Bounds { low, high } = PLOT;
        let frame = [low, (high.0, low.1), high, (low.0, high.1), low];
        self.line(&frame, palette::INK, 1.0)?;
        let (from, to) = (self.map.axes.low.0, self.map.axes.high.0);
        let step = if to - from < 13.0 { 1.0 } else { 2.0 };
        let mut tick = (from / step).ceil() * step;
        while tick <= to {
            let (across, _) = self.at([tick, from]);
            let (_, down) = self.at([from, tick]);
            // Rounding up to zero from below gives −0.
            let text = format!("{}", tick + 0.0).replace('-', "−");
            self.line(&[(across, high.1), (across, high.1 + 5.0)], palette::INK, 1.0)?;
            TEXT.write(self.root, &text, (across, high.1 + 15.0), HPos::Center)?;
            self.line(&[(low.0 - 5.0, down), (low.0, down)], palette::INK, 1.0)?;
            TEXT.write(self.root, &text, (low.0 - 9.0, down), HPos::Right)?;
            tick += step;
        }
        let middle = (0.5 * (low.0 + high.0), 0.5 * (low.1 + high.1));
        NAME.write(self.root, "x", (middle.0, high.1 + 38.0), HPos::Center)?;
        NAME.upward().write(self.root, "y", (low.0 - 44.0, middle.1), HPos::Center)
    }

    /// Draws a line through points of the sheet.
    pub(super) fn line(&self, points: &[Point], colour: RGBColor, width: f64) -> Result<(), Error> {
        pen::line(self.root, points, colour, width)
    }

    /// Draws a way through the landscape, as far as the axes reach; says whether all of it could be shown.
    pub(super) fn way(&self, points: &[[f64; 2]], colour: RGBColor, width: f64) -> Result<bool, Error> {
        let line: Vec<Point> = points.iter().map(|&at| self.at(at)).collect();
        for piece in PLOT.cut(&line) {
            self.line(&thinned(&piece, 0.25), colour, width)?;
        }
        Ok(points.iter().all(|&at| self.shows(at)))
    }

    /// Starts a part of the legend under a heading.
    pub(super) fn heading(&mut self, text: &str) -> Result<(), Error> {
        TEXT.bold().write(self.root, text, (COLUMN, self.next), HPos::Left)?;
        self.next += LINE + 2.0;
        Ok(())
    }

    /// Adds a line to the legend, and a fainter one below it if there is something to add. Gives back where
    /// the entry's sign goes.
    pub(super) fn entry(&mut self, text: &str, remark: &str) -> Result<Point, Error> {
        let sign = (COLUMN + 10.0, self.next);
        TEXT.write(self.root, text, (COLUMN + 28.0, self.next), HPos::Left)?;
        if !remark.is_empty() {
            self.next += 15.0;
            NOTE.write(self.root, remark, (COLUMN + 28.0, self.next), HPos::Left)?;
        }
        self.next += LINE;
        Ok(sign)
    }

    /// Leaves some room in the legend.
    pub(super) fn gap(&mut self) {
        self.next += 10.0;
    }

    /// Adds the colour scale of f at the foot of the legend.
    pub(super) fn scale(&self, fade: f64) -> Result<(), Error> {
        let count = 2 * LEVELS.len() + 1;
        let (height, width) = (18.0, 24.0);
        let top = PLOT.high.1 - height * count as f64;
        TEXT.bold().write(self.root, "f(x, y)", (COLUMN, top - 16.0), HPos::Left)?;
        for band in 0..count {
            let f = 2.0 - 0.5 * band as f64;
            let y = top + height * band as f64;
            let corners = [(COLUMN, y), (COLUMN + width, y + height)].map(fine);
            let colour = palette::mix(palette::height(f), WHITE, fade);
            self.root.draw(&Rectangle::new(corners, colour.filled()))?;
            if band % 2 == 0 {
                let text = format!("{f}").replace('-', "−");
                let at = (COLUMN + width + 22.0, y + 0.5 * height);
                TEXT.write(self.root, &text, at, HPos::Right)?;
            }
        }
        let (left, right, foot) = (COLUMN, COLUMN + width, PLOT.high.1);
        let ring = [(left, top), (right, top), (right, foot), (left, foot), (left, top)];
        self.line(&ring, palette::HAIR, 1.0)
    }

    /// Says something below the plot, such as what could not be shown.
    pub(super) fn note(&self, text: &str) -> Result<(), Error> {
        let at = (PLOT.high.0, f64::from(SIZE.1) - 10.0);
        NOTE.write(self.root, text, at, HPos::Right)
    }
}

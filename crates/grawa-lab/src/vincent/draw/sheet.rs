//! The sheet that every map is drawn on: title, a square plot with axes, and a column for the legend beside it.
//!
//! The plot is 640 pixels wide and has the backdrop's axes; the legend never covers data.

use plotters::element::{PathElement, Polygon, Rectangle};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontTransform, RGBColor, WHITE};

use super::backdrop::{Backdrop, LEVELS};
use super::line::{Bounds, Point, thinned};
use crate::picture::{Canvas, Error, FINE, font, palette, px};
use crate::vincent::landscape::DOMAIN;

/// The size of a sheet in pixels.
pub(super) const SIZE: (u32, u32) = (900, 760);

const PLOT: Bounds = Bounds { low: (66.0, 56.0), high: (706.0, 696.0) };
const COLUMN: f64 = 728.0;
const LINE: f64 = 22.0;

/// Text sizes in pixels.
pub(super) const TEXT: f64 = 13.0;
const TITLE: f64 = 18.0;
const NOTE: f64 = 11.0;

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
        sheet.write(title, baseline, HPos::Left, TITLE, palette::INK, true)?;
        let (wide, _) = font::bold(TITLE * FINE).box_size(title).unwrap_or_default();
        let after = (baseline.0 + f64::from(wide) / FINE + 14.0, baseline.1 + 2.0);
        sheet.write(subtitle, after, HPos::Left, TEXT, palette::FAINT, false)?;
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
            self.write(&text, (across, high.1 + 15.0), HPos::Center, TEXT, palette::INK, false)?;
            self.line(&[(low.0 - 5.0, down), (low.0, down)], palette::INK, 1.0)?;
            self.write(&text, (low.0 - 9.0, down), HPos::Right, TEXT, palette::INK, false)?;
            tick += step;
        }
        let middle = (0.5 * (low.0 + high.0), 0.5 * (low.1 + high.1));
        self.write("x", (middle.0, high.1 + 38.0), HPos::Center, TEXT + 2.0, palette::INK, false)?;
        let style = font::regular((TEXT + 2.0) * FINE).transform(FontTransform::Rotate270);
        let style = style.color(&palette::INK).pos(Pos::new(HPos::Center, VPos::Center));
        self.root.draw_text("y", &style, fine((low.0 - 44.0, middle.1)))?;
        Ok(())
    }

    /// Draws a line through points of the sheet.
    pub(super) fn line(&self, points: &[Point], colour: RGBColor, width: f64) -> Result<(), Error> {
        let style = colour.stroke_width(px(width).unsigned_abs());
        self.root.draw(&PathElement::new(points.iter().copied().map(fine).collect::<Vec<_>>(), style))?;
        Ok(())
    }

    /// Draws a way through the landscape, as far as the axes reach; says whether all of it could be shown.
    pub(super) fn way(&self, points: &[[f64; 2]], colour: RGBColor, width: f64) -> Result<bool, Error> {
        let line: Vec<Point> = points.iter().map(|&at| self.at(at)).collect();
        for piece in PLOT.cut(&line) {
            self.line(&thinned(&piece, 0.25), colour, width)?;
        }
        Ok(points.iter().all(|&at| self.shows(at)))
    }

    /// Writes one line of text, centred vertically.
    pub(super) fn write(
        &self,
        text: &str,
        at: Point,
        side: HPos,
        size: f64,
        colour: RGBColor,
        bold: bool,
    ) -> Result<(), Error> {
        if text.is_empty() {
            return Ok(());
        }
        let font = if bold { font::bold(size * FINE) } else { font::regular(size * FINE) };
        self.root.draw_text(text, &font.color(&colour).pos(Pos::new(side, VPos::Center)), fine(at))?;
        Ok(())
    }

    /// Starts a part of the legend under a heading.
    pub(super) fn heading(&mut self, text: &str) -> Result<(), Error> {
        self.write(text, (COLUMN, self.next), HPos::Left, TEXT, palette::INK, true)?;
        self.next += LINE + 2.0;
        Ok(())
    }

    /// Adds a line to the legend, and a fainter one below it if there is something to add. Gives back where
    /// the entry's sign goes.
    pub(super) fn entry(&mut self, text: &str, remark: &str) -> Result<Point, Error> {
        let sign = (COLUMN + 10.0, self.next);
        self.write(text, (COLUMN + 28.0, self.next), HPos::Left, TEXT, palette::INK, false)?;
        if !remark.is_empty() {
            self.next += 15.0;
            self.write(remark, (COLUMN + 28.0, self.next), HPos::Left, NOTE, palette::FAINT, false)?;
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
        self.write("f(x, y)", (COLUMN, top - 16.0), HPos::Left, TEXT, palette::INK, true)?;
        for band in 0..count {
            let f = 2.0 - 0.5 * band as f64;
            let y = top + height * band as f64;
            let corners = [(COLUMN, y), (COLUMN + width, y + height)].map(fine);
            let colour = palette::mix(palette::height(f), WHITE, fade);
            self.root.draw(&Rectangle::new(corners, colour.filled()))?;
            if band % 2 == 0 {
                let text = format!("{f}").replace('-', "−");
                let at = (COLUMN + width + 22.0, y + 0.5 * height);
                self.write(&text, at, HPos::Right, TEXT, palette::INK, false)?;
            }
        }
        let (left, right, foot) = (COLUMN, COLUMN + width, PLOT.high.1);
        let ring = [(left, top), (right, top), (right, foot), (left, foot), (left, top)];
        self.line(&ring, palette::HAIR, 1.0)
    }

    /// Says something below the plot, such as what could not be shown.
    pub(super) fn note(&self, text: &str) -> Result<(), Error> {
        let at = (PLOT.high.0, f64::from(SIZE.1) - 10.0);
        self.write(text, at, HPos::Right, NOTE, palette::FAINT, false)
    }
}

/// A position on the sheet in canvas units.
pub(super) fn fine((x, y): Point) -> (i32, i32) {
    (px(x), px(y))
}

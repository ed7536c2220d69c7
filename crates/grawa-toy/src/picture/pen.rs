//! Lines and texts on a canvas, placed in pixels.

use plotters::element::{PathElement, Rectangle};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontTransform, RGBColor};

use super::{Canvas, FINE, font, palette, px};
use crate::Error;

/// A position on a picture, in pixels.
pub type Point = (f64, f64);

/// A position in canvas units.
pub fn fine((x, y): Point) -> (i32, i32) {
    (px(x), px(y))
}

/// Draws a line through points.
pub fn line(root: &Canvas<'_>, points: &[Point], colour: RGBColor, width: f64) -> Result<(), Error> {
    let style = colour.stroke_width(px(width).unsigned_abs());
    Ok(root.draw(&PathElement::new(points.iter().copied().map(fine).collect::<Vec<_>>(), style))?)
}

/// Draws a rectangle without filling it.
pub fn frame(root: &Canvas<'_>, low: Point, high: Point) -> Result<(), Error> {
    line(root, &[low, (high.0, low.1), high, (low.0, high.1), low], palette::INK, 1.0)
}

/// Fills a rectangle.
pub fn fill(root: &Canvas<'_>, low: Point, high: Point, colour: RGBColor) -> Result<(), Error> {
    Ok(root.draw(&Rectangle::new([fine(low), fine(high)], colour.filled()))?)
}

/// Writes a title, in a smaller size where the room is narrow.
pub fn title(root: &Canvas<'_>, text: &str, at: Point, room: f64) -> Result<(), Error> {
    let size = 18.0 * (room / Text::of(18.0).bold().width(text).max(room));
    Text::of(size).bold().write(root, text, at, HPos::Left)
}

/// The size of a text in pixels, and its style. Ink-coloured and upright by default.
#[derive(Clone, Copy, Debug)]
pub struct Text {
    size: f64,
    colour: RGBColor,
    bold: bool,
    upward: bool,
}

impl Text {
    /// Text of a size.
    pub const fn of(size: f64) -> Self {
        Text { size, colour: palette::INK, bold: false, upward: false }
    }

    /// The same in a colour.
    pub const fn colour(self, colour: RGBColor) -> Self {
        Text { colour, ..self }
    }

    /// The same in bold.
    pub const fn bold(self) -> Self {
        Text { bold: true, ..self }
    }

    /// The same, written upward.
    pub const fn upward(self) -> Self {
        Text { upward: true, ..self }
    }

    /// Writes a line of text, centred vertically, with `side` of it at the position.
    pub fn write(self, root: &Canvas<'_>, text: &str, at: Point, side: HPos) -> Result<(), Error> {
        if text.is_empty() {
            return Ok(());
        }
        let turn = if self.upward { FontTransform::Rotate270 } else { FontTransform::None };
        let style = self.font().transform(turn).color(&self.colour).pos(Pos::new(side, VPos::Center));
        Ok(root.draw_text(text, &style, fine(at))?)
    }

    /// How wide a text is, in pixels.
    pub fn width(self, text: &str) -> f64 {
        let (wide, _) = self.font().box_size(text).unwrap_or_default();
        f64::from(wide) / FINE
    }

    fn font(self) -> plotters::style::FontDesc<'static> {
        if self.bold { font::bold(self.size * FINE) } else { font::regular(self.size * FINE) }
    }
}

//! Lines and texts on a fine canvas, placed in pixels.

use plotters::element::PathElement;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontTransform, RGBColor};

use super::{Canvas, Error, FINE, font, palette, px};

/// A place on a picture, in pixels.
pub type Point = (f64, f64);

/// A place in the units of [`Picture::draw_fine`](super::Picture::draw_fine).
pub fn fine((x, y): Point) -> (i32, i32) {
    (px(x), px(y))
}

/// Draws a line through points.
pub fn line(root: &Canvas<'_>, points: &[Point], colour: RGBColor, width: f64) -> Result<(), Error> {
    let style = colour.stroke_width(px(width).unsigned_abs());
    root.draw(&PathElement::new(points.iter().copied().map(fine).collect::<Vec<_>>(), style))?;
    Ok(())
}

/// How a text is written: its size in pixels and its manner. Ink-coloured and upright unless said otherwise.
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

    /// The same, written from below to above.
    pub const fn upward(self) -> Self {
        Text { upward: true, ..self }
    }

    /// Writes a line of text, centred vertically, with `side` of it at the place.
    pub fn write(self, root: &Canvas<'_>, text: &str, at: Point, side: HPos) -> Result<(), Error> {
        if text.is_empty() {
            return Ok(());
        }
        let turn = if self.upward { FontTransform::Rotate270 } else { FontTransform::None };
        let style = self.font().transform(turn).color(&self.colour).pos(Pos::new(side, VPos::Center));
        root.draw_text(text, &style, fine(at))?;
        Ok(())
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

//! Lines, rectangles and texts on a canvas, placed in pixels.

use super::font::Font;
use super::palette::{self, Rgb};
use super::{Canvas, FINE, Shape, Side, px};

/// A position on a picture, in pixels.
pub type Point = (f64, f64);

/// A rectangle, from its lowest to its highest corner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bounds {
    pub(crate) low: Point,
    pub(crate) high: Point,
}

impl Bounds {
    /// Whether the point lies inside; never true of NaN.
    pub(crate) fn contains(&self, (x, y): Point) -> bool {
        x >= self.low.0 && x <= self.high.0 && y >= self.low.1 && y <= self.high.1
    }

    /// The rectangle without a margin of this width.
    pub(crate) fn inset(self, margin: f64) -> Self {
        let (low, high) = (self.low, self.high);
        Self { low: (low.0 + margin, low.1 + margin), high: (high.0 - margin, high.1 - margin) }
    }
}

/// Drops points nearer than `least` to the point before them; the ends stay.
pub(crate) fn thinned(line: &[Point], least: f64) -> Vec<Point> {
    let mut kept: Vec<Point> = Vec::new();
    for &point in line {
        if kept.last().is_none_or(|last| libm::hypot(point.0 - last.0, point.1 - last.1) >= least) {
            kept.push(point);
        }
    }
    kept.extend(line.last().filter(|&end| kept.last() != Some(end)));
    kept
}

/// A position in canvas units.
pub fn fine((x, y): Point) -> (i32, i32) {
    (px(x), px(y))
}

/// Draws a line through points.
pub fn line(root: &Canvas, points: &[Point], colour: Rgb, width: f64) {
    let points = points.iter().copied().map(fine).collect();
    root.draw(Shape::Line(points, px(width).unsigned_abs()), colour);
}

/// Draws a rectangle without filling it.
pub fn frame(root: &Canvas, low: Point, high: Point) {
    line(root, &[low, (high.0, low.1), high, (low.0, high.1), low], palette::INK, 1.0);
}

/// Fills a rectangle.
pub fn fill(root: &Canvas, low: Point, high: Point, colour: Rgb) {
    let corners = [low, (high.0, low.1), high, (low.0, high.1)];
    root.draw(Shape::Polygon(corners.map(fine).into()), colour);
}

/// Writes a title, in a smaller size where the room is narrow; returns where it ends.
pub fn title(root: &Canvas, text: &str, at: Point, room: f64) -> f64 {
    let title = Text::of(18.0 * (room / Text::of(18.0).bold().width(text).max(room))).bold();
    title.write(root, text, at, Side::Left);
    at.0 + title.width(text)
}

/// The size of a text in pixels, and its style. Ink-coloured and upright by default.
#[derive(Clone, Copy, Debug)]
pub struct Text {
    size: f64,
    colour: Rgb,
    bold: bool,
    upward: bool,
}

impl Text {
    /// Text of a size.
    pub const fn of(size: f64) -> Self {
        Text { size, colour: palette::INK, bold: false, upward: false }
    }

    /// The same in a colour.
    pub const fn colour(self, colour: Rgb) -> Self {
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
    pub fn write(self, root: &Canvas, text: &str, at: Point, side: Side) {
        if !text.is_empty() {
            let (text, at, font, upward) = (text.into(), fine(at), self.font(), self.upward);
            root.draw(Shape::Text { text, at, font, side, upward }, self.colour);
        }
    }

    /// How much room a text needs, in pixels: a little more than its width, for browsers that show it in another font.
    pub fn width(self, text: &str) -> f64 {
        1.065 * self.font().width(text) / FINE
    }

    fn font(self) -> Font {
        Font { em: self.size * FINE, bold: self.bold }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_contains_what_is_no_number() {
        let square = Bounds { low: (0.0, 0.0), high: (10.0, 10.0) };
        assert!(square.contains((10.0, 0.0)) && !square.contains((f64::NAN, 1.0)));
        assert!(!square.inset(1.0).contains((10.0, 5.0)));
    }

    proptest! {
        #[test]
        fn thinning_keeps_the_ends_and_the_shape(
            line in prop::collection::vec((-20.0..20.0, -20.0..20.0), 2..60),
            least in 0.0..3.0,
        ) {
            let thin = thinned(&line, least);
            prop_assert_eq!(thin.first(), line.first());
            prop_assert_eq!(thin.last(), line.last());
            for point in &line {
                let off = thin.iter().map(|kept| libm::hypot(point.0 - kept.0, point.1 - kept.1)).fold(f64::MAX, f64::min);
                prop_assert!(off <= least);
            }
        }
    }
}

//! What a picture is drawn on: shapes in their order, written as SVG or painted as pixels.

use super::FINE;
use super::font::{FAMILY, Font};
use super::palette::{Rgb, css};
use crate::page::escaped;
use std::cell::RefCell;
use tiny_skia::{FillRule, LineCap, LineJoin, Paint, Path, PathBuilder, Pixmap, Stroke, Transform};

/// A position in canvas units.
type Place = (i32, i32);

/// A shape, in canvas units.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Shape {
    /// Filled.
    Polygon(Vec<Place>),
    /// With a width.
    Line(Vec<Place>, u32),
    /// A line of text, centred vertically.
    Text { text: String, at: Place, font: Font, side: Side, upward: bool },
}

/// The side of a text that is at its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The beginning.
    Left,
    /// The middle.
    Centre,
    /// The end.
    Right,
}

/// The drawing area of a picture.
#[derive(Debug, Default)]
pub struct Canvas {
    pub(super) shapes: RefCell<Vec<(Shape, Rgb)>>,
}

impl Canvas {
    /// Adds a shape, above the others.
    pub(crate) fn draw(&self, shape: Shape, colour: Rgb) {
        self.shapes.borrow_mut().push((shape, colour));
    }
}

impl Shape {
    /// The element of SVG.
    pub(super) fn svg(&self, colour: Rgb) -> String {
        let colour = css(colour);
        let joined = |points: &[Place]| points.iter().map(|(x, y)| format!("{x},{y} ")).collect::<String>();
        match self {
            Shape::Polygon(corners) => format!(r#"<polygon fill="{colour}" points="{}"/>"#, joined(corners)),
            Shape::Line(points, width) => {
                let points = joined(points);
                format!(
                    r#"<polyline fill="none" stroke="{colour}" stroke-width="{width}" points="{points}"/>"#
                )
            }
            Shape::Text { text, at: (x, y), font, side, upward } => {
                let anchor = ["start", "middle", "end"][*side as usize];
                let weight = if font.bold { r#" font-weight="bold""# } else { "" };
                let turn =
                    upward.then(|| format!(r#" transform="rotate(270, {x}, {y})""#)).unwrap_or_default();
                format!(
                    "<text x=\"{x}\" y=\"{y}\" dy=\"0.5ex\" text-anchor=\"{anchor}\" font-family=\"{FAMILY}\" font-size=\"{}\" \
                     fill=\"{colour}\"{weight}{turn}>\n{}\n</text>",
                    font.em,
                    escaped(text)
                )
            }
        }
    }

    /// Paints the shape.
    pub(super) fn paint(&self, pixels: &mut Pixmap, Rgb(red, green, blue): Rgb) {
        let mut paint = Paint::default();
        paint.set_color_rgba8(red, green, blue, 255);
        let to_pixels = Transform::from_scale((1.0 / FINE) as f32, (1.0 / FINE) as f32);
        match self {
            Shape::Polygon(corners) => {
                let Some(path) = through(corners) else { return };
                pixels.fill_path(&path, &paint, FillRule::Winding, to_pixels, None);
            }
            Shape::Line(points, width) => {
                let Some(path) = through(points) else { return };
                let (line_cap, line_join) = (LineCap::Round, LineJoin::Round);
                let stroke = Stroke { width: *width as f32, line_cap, line_join, ..Stroke::default() };
                pixels.stroke_path(&path, &paint, &stroke, to_pixels, None);
            }
            Shape::Text { text, at, font, side, upward } => {
                let Some(path) = font.outline(text) else { return };
                let before = [0.0, 0.5, 1.0][*side as usize] * font.width(text);
                let to_pixels = to_pixels
                    .pre_translate(at.0 as f32, at.1 as f32)
                    .pre_concat(Transform::from_rotate(if *upward { 270.0 } else { 0.0 }))
                    // Down by half the height of an x, which is half an em.
                    .pre_translate(-before as f32, (0.25 * font.em) as f32);
                pixels.fill_path(&path, &paint, FillRule::Winding, to_pixels, None);
            }
        }
    }
}

/// A line through points; none through fewer than two.
fn through(points: &[Place]) -> Option<Path> {
    let mut path = PathBuilder::new();
    for (index, &(x, y)) in points.iter().enumerate() {
        match index {
            0 => path.move_to(x as f32, y as f32),
            _ => path.line_to(x as f32, y as f32),
        }
    }
    path.finish()
}

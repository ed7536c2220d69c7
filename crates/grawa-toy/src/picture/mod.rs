//! Pictures: shapes on a canvas, which become SVG or PNG.
//!
//! Text is measured and painted with an embedded font only, so a picture is the same on every machine. A picture has no
//! element ids: several can stand inline in one HTML page.

mod canvas;
pub mod chart;
pub mod digits;
pub mod font;
pub mod map;
pub mod marker;
pub mod palette;
pub mod pen;
pub mod rows;
mod scale;
pub(crate) mod sheet;

pub(crate) use canvas::Shape;
pub use canvas::{Canvas, Side};

use crate::Error;
use palette::Rgb;

/// Canvas units in a pixel. Coordinates are whole numbers, which keeps files small; finer units keep curves smooth and allow
/// line widths between whole pixels.
pub const FINE: f64 = 10.0;

/// Pixels in canvas units.
pub fn px(pixels: f64) -> i32 {
    (pixels * FINE).round() as i32
}

/// A picture: shapes and a size in pixels.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    shapes: Vec<(Shape, Rgb)>,
    width: u32,
    height: u32,
}

impl Picture {
    /// Draws a picture of `width` by `height` pixels on a white canvas with [`FINE`] units to the pixel.
    pub fn draw(
        width: u32,
        height: u32,
        draw: impl FnOnce(&Canvas) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let units = |pixels: u32| i32::try_from(pixels).ok()?.checked_mul(FINE as i32).filter(|it| *it > 0);
        units(width).zip(units(height)).ok_or_else(|| impossible(width, height))?;
        let canvas = Canvas::default();
        pen::fill(&canvas, (0.0, 0.0), (width.into(), height.into()), palette::WHITE);
        draw(&canvas)?;
        Ok(Self { shapes: canvas.shapes.into_inner(), width, height })
    }

    /// The picture as an SVG document: one `<svg>` element, without an XML declaration.
    pub fn svg(&self) -> String {
        let Picture { width, height, .. } = self;
        // Round joins keep a path that doubles back from growing spikes.
        let mut svg = format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {} {}" stroke-linejoin="round" stroke-linecap="round">"#,
            px(f64::from(*width)),
            px(f64::from(*height))
        );
        for (shape, colour) in &self.shapes {
            svg.push('\n');
            svg += &shape.svg(*colour);
        }
        svg + "\n</svg>\n"
    }

    /// The picture as a PNG file of the same size in pixels.
    pub fn png(&self) -> Result<Vec<u8>, Error> {
        let pixels = tiny_skia::Pixmap::new(self.width, self.height);
        let mut pixels = pixels.ok_or_else(|| impossible(self.width, self.height))?;
        for (shape, colour) in &self.shapes {
            shape.paint(&mut pixels, *colour);
        }
        pixels.encode_png().map_err(|error| Error::Picture(format!("the PNG could not be encoded: {error}")))
    }
}

fn impossible(width: u32, height: u32) -> Error {
    Error::Picture(format!("a picture of {width}×{height} pixels cannot be rasterised"))
}

#[cfg(test)]
mod tests {
    use super::pen::Text;
    use super::*;

    fn labelled(text: &str) -> Picture {
        Picture::draw(120, 40, |root| {
            Text::of(16.0).bold().write(root, text, (10.0, 20.0), Side::Left);
            Ok(())
        })
        .unwrap()
    }

    fn decoded(picture: &Picture) -> tiny_skia::Pixmap {
        tiny_skia::Pixmap::decode_png(&picture.png().unwrap()).unwrap()
    }

    #[test]
    fn a_png_has_the_promised_size_and_shows_the_text() {
        let (with, without) = (decoded(&labelled("λ ≤ 0.5")), decoded(&labelled("")));
        assert_eq!((with.width(), with.height()), (120, 40));
        let changed = with.pixels().iter().zip(without.pixels()).filter(|(a, b)| a != b).count();
        assert!(changed > 150, "only {changed} pixels show the text");
    }

    #[test]
    fn text_is_painted_on_its_side_of_the_position() {
        // The columns and rows from the first to the last pixel that is not white.
        let painted = |side: Side, upward: bool| {
            let picture = Picture::draw(200, 200, |root| {
                let text = Text::of(20.0);
                (if upward { text.upward() } else { text }).write(root, "HHHH", (100.0, 100.0), side);
                Ok(())
            });
            let image = decoded(&picture.unwrap());
            let is_dark = |&(x, y): &(u32, u32)| image.pixel(x, y).unwrap().red() < 200;
            let dark: Vec<_> = (0..200).flat_map(|x| (0..200).map(move |y| (x, y))).filter(is_dark).collect();
            let range = |of: fn(&(u32, u32)) -> u32| {
                (dark.iter().map(of).min().unwrap(), dark.iter().map(of).max().unwrap())
            };
            (range(|at| at.0), range(|at| at.1))
        };
        let ((left, right), (top, bottom)) = painted(Side::Left, false);
        assert!((100..104).contains(&left) && (150..166).contains(&right), "{left} to {right}");
        assert!((85..97).contains(&top) && (103..108).contains(&bottom), "{top} to {bottom}");
        let ((left, right), _) = painted(Side::Centre, false);
        assert!((left + right).abs_diff(199) <= 2, "{left} to {right}");
        let ((left, right), _) = painted(Side::Right, false);
        assert!(left < 50 && (96..100).contains(&right), "{left} to {right}");
        // From below upward.
        let ((left, right), (top, bottom)) = painted(Side::Left, true);
        assert!((85..97).contains(&left) && (103..108).contains(&right), "{left} to {right}");
        assert!(top < 50 && (96..100).contains(&bottom), "{top} to {bottom}");
    }

    #[test]
    fn fine_units_are_tenths_of_a_pixel() {
        let picture = Picture::draw(50, 30, |root| {
            pen::fill(root, (10.0, 10.0), (20.0, 20.0), Rgb(200, 0, 0));
            Ok(())
        })
        .unwrap();
        let image = decoded(&picture);
        assert_eq!((image.width(), image.height()), (50, 30));
        assert_eq!(image.pixel(15, 15).unwrap().red(), 200);
        assert_eq!((image.pixel(15, 15).unwrap().green(), image.pixel(25, 15).unwrap().green()), (0, 255));
    }

    #[test]
    fn hostile_text_stays_text() {
        let picture = labelled("</text> opacity=\"1\" & <b>");
        assert!(picture.svg().contains("&lt;/text&gt; opacity=&quot;1&quot; &amp; &lt;b&gt;"));
    }

    #[test]
    fn impossible_sizes_are_refused() {
        for (width, height) in [(0, 10), (10, 0), (u32::MAX, 10)] {
            let made = Picture::draw(width, height, |_| Ok(()));
            assert!(made.unwrap_err().to_string().contains("cannot be rasterised"));
        }
    }
}

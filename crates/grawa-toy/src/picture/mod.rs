//! Pictures: drawn as SVG through plotters, and rasterised from that SVG for PNG.
//!
//! Text is measured and rendered with an embedded font only, so a picture is the same on every machine. A picture has no
//! element ids: several can stand inline in one HTML page.

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

use crate::Error;
use plotters::coord::Shift;
use plotters::prelude::{DrawingArea, IntoDrawingArea, SVGBackend};
use resvg::{tiny_skia, usvg};

/// The drawing area of a picture.
pub type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Canvas units in a pixel. The SVG backend knows whole numbers only; finer units keep curves smooth and allow line widths
/// between whole pixels.
pub const FINE: f64 = 10.0;

/// Pixels in canvas units.
pub fn px(pixels: f64) -> i32 {
    (pixels * FINE).round() as i32
}

/// A picture: an SVG document and its size in pixels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    svg: String,
    width: u32,
    height: u32,
}

impl Picture {
    /// Draws a picture of `width` by `height` pixels on a canvas with [`FINE`] units to the pixel.
    pub fn draw(
        width: u32,
        height: u32,
        draw: impl FnOnce(&Canvas<'_>) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        font::ready()?;
        let units = |pixels: u32| pixels.checked_mul(FINE as u32).filter(|&it| it > 0 && it < 1 << 31);
        let (Some(right), Some(bottom)) = (units(width), units(height)) else {
            return Err(impossible(width, height));
        };
        let mut raw = String::new();
        {
            let root = SVGBackend::with_string(&mut raw, (right, bottom)).into_drawing_area();
            draw(&root)?;
            root.present()?;
        }
        // Our own opening tag: round joins keep a path that doubles back from growing spikes. Attributes of no effect go;
        // a raw quote occurs in attributes only, because text is escaped, so this never changes a label.
        let body = raw.split_once('>').map_or("", |(_, body)| body).replace(" opacity=\"1\"", "");
        let svg = format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {right} {bottom}" stroke-linejoin="round" stroke-linecap="round">{body}"#
        );
        Ok(Self { svg, width, height })
    }

    /// The SVG document: one `<svg>` element, without an XML declaration.
    pub fn svg(&self) -> &str {
        &self.svg
    }

    /// The picture as a PNG file of the same size in pixels.
    pub fn png(&self) -> Result<Vec<u8>, Error> {
        let tree = usvg::Tree::from_str(&self.svg, &font::options())
            .map_err(|error| Error::Picture(format!("the SVG could not be read back: {error}")))?;
        let pixels = tiny_skia::Pixmap::new(self.width, self.height);
        let mut pixels = pixels.ok_or_else(|| impossible(self.width, self.height))?;
        resvg::render(&tree, tiny_skia::Transform::identity(), &mut pixels.as_mut());
        pixels.encode_png().map_err(|error| Error::Picture(format!("the PNG could not be encoded: {error}")))
    }
}

fn impossible(width: u32, height: u32) -> Error {
    Error::Picture(format!("a picture of {width}×{height} pixels cannot be rasterised"))
}

#[cfg(test)]
mod tests {
    use plotters::prelude::{RGBColor, WHITE};

    use super::*;

    fn labelled(text: &str) -> Picture {
        Picture::draw(120, 40, |root| {
            root.fill(&WHITE)?;
            root.draw_text(text, &font::sized(160.0, true).color(&RGBColor(0, 0, 0)), (100, 100))?;
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
    fn fine_units_are_tenths_of_a_pixel() {
        let picture = Picture::draw(50, 30, |root| {
            root.fill(&WHITE)?;
            pen::fill(root, (10.0, 10.0), (20.0, 20.0), RGBColor(200, 0, 0))
        })
        .unwrap();
        let image = decoded(&picture);
        assert_eq!((image.width(), image.height()), (50, 30));
        assert_eq!(image.pixel(15, 15).unwrap().red(), 200);
        assert_eq!((image.pixel(15, 15).unwrap().green(), image.pixel(25, 15).unwrap().green()), (0, 255));
    }

    #[test]
    fn labels_survive_the_clean_up_and_hostile_text_stays_text() {
        let picture = labelled("</text> opacity=\"1\" & <b>");
        assert!(picture.svg().contains("&lt;/text&gt; opacity=&quot;1&quot; &amp; &lt;b&gt;"));
        assert!(!picture.svg().contains(" opacity=\"1\""));
        usvg::Tree::from_str(picture.svg(), &font::options()).unwrap();
    }

    #[test]
    fn impossible_sizes_are_refused() {
        for (width, height) in [(0, 10), (10, 0), (u32::MAX, 10)] {
            let made = Picture::draw(width, height, |_| Ok(()));
            assert!(made.unwrap_err().to_string().contains("cannot be rasterised"));
        }
    }
}

//! Pictures: drawn once as SVG through plotters, and rasterised from that same SVG when a PNG is wanted.
//!
//! Text is measured and rendered with an embedded font only, so a picture is the same on every machine. A
//! picture carries no element ids: any number of them can stand inline in one HTML page.

pub mod apart;
pub mod bars;
pub mod chart;
pub mod dots;
pub mod font;
pub mod map;
pub mod marker;
pub mod palette;
pub mod pen;
pub mod scatter;

use std::fmt::Write as _;
use std::io;

use plotters::coord::Shift;
use plotters::prelude::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea, SVGBackend};
use resvg::{tiny_skia, usvg};

/// The area a picture is drawn on.
pub type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Why a picture could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A drawing command failed.
    #[error("the picture could not be drawn: {0}")]
    Draw(#[from] DrawingAreaErrorKind<io::Error>),
    /// The embedded font is not usable.
    #[error("the embedded font {0} could not be read")]
    Font(&'static str),
    /// The level lines of a landscape could not be found.
    #[error("the level lines could not be computed: {0}")]
    Contour(#[from] contour::Error),
    /// The SVG is not well-formed.
    #[error("the SVG could not be read back: {0}")]
    Parse(#[from] usvg::Error),
    /// No raster of that size can be made.
    #[error("a picture of {width}×{height} pixels cannot be rasterised")]
    Size {
        /// The width in pixels.
        width: u32,
        /// The height in pixels.
        height: u32,
    },
    /// The PNG encoder failed.
    #[error("the PNG could not be encoded: {0}")]
    Encode(String),
}

/// How many drawing units make a pixel on the canvas of [`Picture::draw_fine`].
pub const FINE: f64 = 10.0;

/// Pixels in the units of [`Picture::draw_fine`].
pub fn px(pixels: f64) -> i32 {
    (pixels * FINE).round() as i32
}

/// One picture: an SVG document and its size in pixels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    svg: String,
    width: u32,
    height: u32,
}

impl Picture {
    /// Draws a picture of `width` by `height` pixels on a canvas whose unit is the pixel.
    pub fn draw(
        width: u32,
        height: u32,
        draw: impl FnOnce(&Canvas<'_>) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        Self::scaled(width, height, 1, draw)
    }

    /// Draws on a canvas with [`FINE`] units to the pixel.
    ///
    /// The SVG backend knows whole numbers only; finer units keep curves smooth and allow for line widths
    /// between whole pixels. [`px`] converts.
    pub fn draw_fine(
        width: u32,
        height: u32,
        draw: impl FnOnce(&Canvas<'_>) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        Self::scaled(width, height, FINE as u32, draw)
    }

    fn scaled(
        width: u32,
        height: u32,
        units: u32,
        draw: impl FnOnce(&Canvas<'_>) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        font::ready()?;
        let size = match (width.checked_mul(units), height.checked_mul(units)) {
            (Some(w), Some(h)) if w > 0 && h > 0 && i32::try_from(w.max(h)).is_ok() => (w, h),
            _ => return Err(Error::Size { width, height }),
        };
        let mut raw = String::new();
        {
            let root = SVGBackend::with_string(&mut raw, size).into_drawing_area();
            draw(&root)?;
            root.present()?;
        }
        Ok(Self { svg: finished(&raw, (width, height), size), width, height })
    }

    /// The SVG document: one `<svg>` element, without an XML declaration.
    pub fn svg(&self) -> &str {
        &self.svg
    }

    /// Width and height in pixels.
    pub fn size(&self) -> (u32, u32) {
        (self.width, self.height)
    }

    /// The same picture as a PNG file, one image pixel to the pixel.
    pub fn png(&self) -> Result<Vec<u8>, Error> {
        let tree = usvg::Tree::from_str(&self.svg, &font::options())?;
        let mut pixels = tiny_skia::Pixmap::new(self.width, self.height)
            .ok_or(Error::Size { width: self.width, height: self.height })?;
        resvg::render(&tree, tiny_skia::Transform::identity(), &mut pixels.as_mut());
        pixels.encode_png().map_err(|error| Error::Encode(error.to_string()))
    }
}

/// Gives the backend's document our own opening tag, and drops the attributes that say nothing.
fn finished(raw: &str, (width, height): (u32, u32), (right, bottom): (u32, u32)) -> String {
    let body = raw.split_once('>').map_or("", |(_, body)| body);
    let mut svg = String::with_capacity(raw.len() + 200);
    // Writing to a string cannot fail. Round joins keep a path that doubles back from growing spikes.
    let _ = write!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {right} {bottom}" stroke-linejoin="round" stroke-linecap="round">"#
    );
    // A raw quote stands in attributes only, text has it escaped: what is cut here is never part of a label.
    let mut rest = body;
    while let Some(at) = rest.find(" opacity=\"1\"") {
        svg.push_str(&rest[..at]);
        rest = &rest[at + " opacity=\"1\"".len()..];
    }
    svg.push_str(rest);
    svg
}

#[cfg(test)]
mod tests {
    use plotters::prelude::{Color, RGBColor, Rectangle, WHITE};

    use super::*;

    fn labelled(text: &str) -> Picture {
        Picture::draw(120, 40, |root| {
            root.fill(&WHITE)?;
            root.draw_text(text, &font::bold(16.0).color(&RGBColor(0, 0, 0)), (10, 10))?;
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
        let picture = Picture::draw_fine(50, 30, |root| {
            root.fill(&WHITE)?;
            root.draw(&Rectangle::new(
                [(px(10.0), px(10.0)), (px(20.0), px(20.0))],
                RGBColor(200, 0, 0).filled(),
            ))?;
            Ok(())
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
            let made = Picture::draw_fine(width, height, |_| Ok(()));
            assert!(matches!(made, Err(Error::Size { .. })));
        }
    }
}

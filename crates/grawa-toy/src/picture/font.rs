//! The embedded font of all pictures: a subset of DejaVu Sans with Latin-1, Greek and mathematical signs.
//!
//! Text is measured and painted with it; the fonts of the machine are not used. A browser without it falls back along the
//! list in [`FAMILY`].

use std::sync::LazyLock;
use tiny_skia::{Path, PathBuilder, Transform};
use ttf_parser::{Face, GlyphId, OutlineBuilder};

/// The family as written into the SVG: ours first, then similar ones.
pub const FAMILY: &str = "Grawa Sans, DejaVu Sans, Verdana, sans-serif";

static FACES: LazyLock<[Face<'static>; 2]> = LazyLock::new(|| {
    let regular: &[u8] = include_bytes!("../../assets/GrawaSans-Regular.ttf");
    let bold = include_bytes!("../../assets/GrawaSans-Bold.ttf");
    [regular, bold].map(|data| Face::parse(data, 0).expect("the embedded fonts are fonts"))
});

/// The font in a size and weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Font {
    /// The size in canvas units.
    pub(super) em: f64,
    pub(super) bold: bool,
}

impl Font {
    fn face(self) -> &'static Face<'static> {
        &FACES[usize::from(self.bold)]
    }

    /// How wide a text is, in canvas units.
    pub(super) fn width(self, text: &str) -> f64 {
        let advance = |(_, advance): (GlyphId, u16)| f64::from(advance);
        self.glyphs(text).map(advance).sum::<f64>() * self.unit()
    }

    /// The outlines of a text that begins at the origin, in canvas units.
    pub(super) fn outline(self, text: &str) -> Option<Path> {
        let mut outline = Outline { path: PathBuilder::new(), left: 0.0 };
        for (glyph, advance) in self.glyphs(text) {
            // A space has no outline.
            let _ = self.face().outline_glyph(glyph, &mut outline);
            outline.left += f32::from(advance);
        }
        // Picture rows grow downwards, fonts upwards.
        outline.path.finish()?.transform(Transform::from_scale(self.unit() as f32, -self.unit() as f32))
    }

    /// A unit of the font in canvas units.
    fn unit(self) -> f64 {
        self.em / f64::from(self.face().units_per_em())
    }

    /// The glyphs and how far each reaches. A sign that the font lacks is shown as a box.
    fn glyphs(self, text: &str) -> impl Iterator<Item = (GlyphId, u16)> {
        let face = self.face();
        text.chars().map(|sign| {
            let glyph = face.glyph_index(sign).unwrap_or_default();
            (glyph, face.glyph_hor_advance(glyph).unwrap_or_default())
        })
    }
}

/// A path of several glyphs, side by side.
struct Outline {
    path: PathBuilder,
    left: f32,
}

impl OutlineBuilder for Outline {
    fn move_to(&mut self, x: f32, y: f32) {
        self.path.move_to(self.left + x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        self.path.line_to(self.left + x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        self.path.quad_to(self.left + x1, y1, self.left + x, y);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        self.path.cubic_to(self.left + x1, y1, self.left + x2, y2, self.left + x, y);
    }

    fn close(&mut self) {
        self.path.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_weights_carry_the_signs_we_write() {
        for bold in [false, true] {
            let font = Font { em: 180.0, bold };
            let missing = font.outline("\u{e000}");
            assert!(missing.is_some());
            for sign in "λτβμγηρσΣ√≤≥×·−±²³₁₂→∞∥‖∂∇≈…–—éß".chars()
            {
                let outline = font.outline(&sign.to_string());
                assert!(outline.is_some() && outline != missing, "no {sign}");
            }
        }
    }

    #[test]
    fn bold_is_wider_and_measured_with_its_own_metrics() {
        let width = |em: f64, bold: bool| Font { em, bold }.width("Local-MGRAWA");
        assert!(width(100.0, true) > width(100.0, false));
        assert!((width(200.0, false) - 2.0 * width(100.0, false)).abs() < 1e-9);
    }

    /// The outline of a text stands on the line and fills its width.
    #[test]
    fn outlines_lie_side_by_side() {
        let font = Font { em: 100.0, bold: false };
        let bounds = font.outline("HHHH").unwrap().bounds();
        assert!(bounds.bottom() == 0.0 && bounds.top() < -60.0 && bounds.top() > -80.0, "{bounds:?}");
        assert!(f64::from(bounds.right()) > 0.8 * font.width("HHHH") && bounds.left() > 0.0);
        assert_eq!(font.outline(" "), None);
    }
}

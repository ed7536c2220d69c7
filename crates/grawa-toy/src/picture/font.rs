//! The embedded font of all pictures: a subset of DejaVu Sans with Latin-1, Greek and mathematical signs.
//!
//! plotters measures text with it and the rasteriser draws text with it; neither uses the fonts of the machine. A browser
//! without it falls back along the list in [`FAMILY`].

use std::sync::{Arc, LazyLock};

use plotters::style::{FontDesc, FontFamily, FontStyle, register_font};
use resvg::usvg::{self, fontdb};

use crate::Error;

/// The family as written into the SVG: ours first, then similar ones.
pub const FAMILY: &str = "Grawa Sans, DejaVu Sans, Verdana, sans-serif";

const REGULAR: &[u8] = include_bytes!("../../assets/GrawaSans-Regular.ttf");
const BOLD: &[u8] = include_bytes!("../../assets/GrawaSans-Bold.ttf");

/// plotters divides its font sizes by this before it writes them into the SVG.
const SIZE_PER_EM: f64 = 1.24;

static REGISTERED: LazyLock<Result<(), &'static str>> = LazyLock::new(|| {
    register_font(FAMILY, FontStyle::Normal, REGULAR).map_err(|_| "GrawaSans-Regular")?;
    register_font(FAMILY, FontStyle::Bold, BOLD).map_err(|_| "GrawaSans-Bold")
});

static DATABASE: LazyLock<Arc<fontdb::Database>> = LazyLock::new(|| {
    let mut database = fontdb::Database::new();
    for data in [REGULAR, BOLD] {
        database.load_font_source(fontdb::Source::Binary(Arc::new(data)));
    }
    Arc::new(database)
});

/// Makes the font known to plotters.
pub(super) fn ready() -> Result<(), Error> {
    (*REGISTERED).map_err(|font| Error::Picture(format!("the embedded font {font} could not be read")))
}

/// The rasteriser's options, with our font and no other.
pub(super) fn options() -> usvg::Options<'static> {
    usvg::Options {
        fontdb: Arc::clone(&DATABASE),
        font_family: "Grawa Sans".into(),
        ..usvg::Options::default()
    }
}

/// The font; `em` is its size in canvas units.
pub(super) fn sized(em: f64, bold: bool) -> FontDesc<'static> {
    // A font that failed to register shows up as an error where text is measured, and in `ready`.
    let _ = &*REGISTERED;
    let style = if bold { FontStyle::Bold } else { FontStyle::Normal };
    FontDesc::new(FontFamily::Name(FAMILY), em * SIZE_PER_EM, style)
}

#[cfg(test)]
mod tests {
    use plotters::style::BLACK;

    use super::super::Picture;
    use super::*;

    #[test]
    fn both_weights_carry_the_signs_we_write() {
        let shown = |text: &str, font: FontDesc<'_>| {
            let picture =
                Picture::draw(30, 30, |root| Ok(root.draw_text(text, &font.color(&BLACK), (50, 50))?));
            picture.unwrap().png().unwrap()
        };
        for font in [sized(180.0, false), sized(180.0, true)] {
            let missing = shown("\u{e000}", font.clone());
            for sign in "λτβμγηρσΣ√≤≥×·−±²³₁₂→∞∥‖∂∇≈…–—éß".chars()
            {
                assert_ne!(shown(&sign.to_string(), font.clone()), missing, "no {sign}");
            }
        }
    }

    #[test]
    fn no_other_font_is_consulted() {
        assert_eq!(DATABASE.len(), 2);
        assert!(DATABASE.faces().all(|face| face.families[0].0 == "Grawa Sans"));
    }

    #[test]
    fn bold_is_wider_and_measured_with_its_own_metrics() {
        let width = |font: FontDesc<'_>| font.layout_box("Local-MGRAWA").unwrap().1.0;
        assert!(width(sized(100.0, true)) > width(sized(100.0, false)));
        assert!((width(sized(200.0, false)) - 2 * width(sized(100.0, false))).abs() <= 2);
    }
}

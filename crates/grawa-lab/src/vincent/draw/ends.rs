//! The picture of where every method ends, on the map of the landscape.
//!
//! Methods that end at one point stand around it, each with a line to its own place: none hides another.
//! What cannot be shown is named below the plot.

use plotters::element::Circle;
use plotters::style::Color;

use super::backdrop::Backdrop;
use super::fan::spread;
use super::place::place;
use super::sheet::{SIZE, Sheet};
use crate::picture::marker::Marker;
use crate::picture::pen::fine;
use crate::picture::{Error, Picture, palette, px};
use crate::vincent::record::{Outcome, Path};

const FADE: f64 = 0.45;
const RADIUS: f64 = 9.5;
const START: f64 = 5.0;

/// The legend has room for this many methods with a remark each.
const REMARKED: usize = 9;

/// Draws the final points of all methods.
pub fn ends(map: &Backdrop, paths: &[Path]) -> Result<Picture, Error> {
    let mut paths: Vec<&Path> = paths.iter().collect();
    paths.sort_by_key(|path| palette::rank(&path.method));
    Picture::draw_fine(SIZE.0, SIZE.1, |root| {
        let title = ("Where each method ends", "");
        let mut sheet = Sheet::new(root, map, title, FADE)?;

        let mut starts: Vec<[f64; 2]> = paths
            .iter()
            .flat_map(|path| path.workers.iter().filter_map(|way| way.first().copied()))
            .collect();
        starts.sort_by(|a, b| a[0].total_cmp(&b[0]).then(a[1].total_cmp(&b[1])));
        starts.dedup();
        for &at in starts.iter().filter(|&&at| sheet.shows(at)) {
            Marker::Circle.hollow(root, fine(sheet.at(at)), px(START).into(), palette::INK)?;
        }

        let shown: Vec<&&Path> = paths.iter().filter(|path| sheet.shows(path.end.at)).collect();
        let targets: Vec<_> = shown.iter().map(|path| sheet.at(path.end.at)).collect();
        let seats = spread(&targets, 2.0 * RADIUS + 4.0, sheet.plot().inset(RADIUS + 2.0));
        for (&target, &seat) in targets.iter().zip(&seats).filter(|(target, seat)| target != seat) {
            sheet.line(&[target, seat], palette::INK, 1.0)?;
            root.draw(&Circle::new(fine(target), px(2.5), palette::INK.filled()))?;
        }
        for (path, &seat) in shown.iter().zip(&seats) {
            mark(&sheet, path, seat)?;
        }

        sheet.heading("Methods")?;
        for path in &paths {
            let remark = match path.end.outcome {
                _ if paths.len() > REMARKED => String::new(),
                Outcome::Valley(..) => place(path.end.at),
                Outcome::Split => format!("{}, split", place(path.end.at)),
                Outcome::Unsettled => format!("{}, on a slope", place(path.end.at)),
                Outcome::Lost => "lost".to_string(),
            };
            let at = sheet.entry(palette::look(&path.method).label, &remark)?;
            mark(&sheet, path, at)?;
        }
        sheet.gap();
        let at = sheet.entry("start of a worker", "")?;
        Marker::Circle.hollow(root, fine(at), px(START).into(), palette::INK)?;
        sheet.scale(FADE)?;

        let hidden: Vec<&str> = paths
            .iter()
            .filter(|path| !sheet.shows(path.end.at))
            .map(|path| palette::look(&path.method).label)
            .collect();
        if !hidden.is_empty() {
            sheet.note(&format!("outside the picture: {}", hidden.join(", ")))?;
        }
        Ok(())
    })
}

fn mark(sheet: &Sheet<'_, '_>, path: &Path, at: (f64, f64)) -> Result<(), Error> {
    let look = palette::look(&path.method);
    let radius = px(RADIUS).into();
    match path.end.outcome {
        Outcome::Split => look.marker.hollow(sheet.root(), fine(at), radius, look.colour),
        _ => look.marker.fill(sheet.root(), fine(at), radius, look.colour),
    }
}

#[cfg(test)]
mod tests {
    use resvg::tiny_skia::Pixmap;

    use super::*;
    use crate::vincent::record::End;

    fn path(method: &str, at: [f64; 2], outcome: Outcome) -> Path {
        let end = End { at, spread: 0.0, outcome };
        Path {
            method: method.into(),
            workers: vec![vec![[0.25, 0.25], at]],
            centre: vec![at],
            replaced: 0,
            end,
        }
    }

    #[test]
    fn eight_methods_at_one_point_are_all_seen() {
        let names = ["easgd", "lsgd", "grawa", "mgrawa", "lgrawa", "local-mgrawa", "local-lgrawa", "mean"];
        let paths: Vec<Path> =
            names.iter().map(|name| path(name, [7.706, 7.706], Outcome::Valley(5, 5))).collect();
        let map = Backdrop::of(&paths).unwrap();
        let image = Pixmap::decode_png(&ends(&map, &paths).unwrap().png().unwrap()).unwrap();
        assert_eq!((image.width(), image.height()), SIZE);
        for name in names {
            let colour = palette::look(name).colour;
            let seen = (0..706).flat_map(|x| (0..SIZE.1).map(move |y| (x, y))).filter(|&(x, y)| {
                let pixel = image.pixel(x, y).unwrap();
                (pixel.red(), pixel.green(), pixel.blue()) == (colour.0, colour.1, colour.2)
            });
            assert!(seen.count() > 40, "{name} is hidden");
        }
    }

    #[test]
    fn what_cannot_be_shown_is_named() {
        let paths = [
            path("easgd", [400.0, 3.0], Outcome::Split),
            path("lsgd", [f64::NAN, -f64::MAX], Outcome::Lost),
            path("mean", [12.0, 3.0], Outcome::Split),
        ];
        let picture = ends(&Backdrop::of(&paths).unwrap(), &paths).unwrap();
        assert!(picture.svg().contains("outside the picture: EASGD, LSGD\n"));
        assert!(!picture.svg().contains(" id="));
        picture.png().unwrap();
        ends(&Backdrop::of(&[]).unwrap(), &[]).unwrap().png().unwrap();
    }
}

//! The picture of where every method ends, on the map of the landscape.
//!
//! Methods that end at one point stand around it, each with a line to it. A note below the plot names what lies outside.

use super::ring::spread;
use super::{Backdrop, ending, finish};
use crate::Error;
use crate::picture::marker::Marker;
use crate::picture::pen;
use crate::picture::sheet::{PLOT, SIZE};
use crate::picture::{Canvas, Picture, Shape, palette};
use crate::vincent::run::{Outcome, Path};

const FADE: f64 = 0.45;
const RADIUS: f64 = 9.5;
const START: f64 = 5.0;

/// The legend has room for this many methods with a remark each.
const REMARKED: usize = 9;

/// Draws the final points of all methods.
pub(in crate::vincent) fn ends(map: &Backdrop, paths: &[Path]) -> Result<Picture, Error> {
    let mut paths: Vec<&Path> = paths.iter().collect();
    paths.sort_by_key(|path| palette::rank(path.method));
    Picture::draw(SIZE.0, SIZE.1, |root| {
        let mut sheet = map.sheet(root, FADE)?;
        sheet.frame("Where each method ends", "", ["x", "y"]);
        let ways = paths.iter().flat_map(|path| &path.workers);
        let mut starts: Vec<[f64; 2]> = ways.filter_map(|way| way.first().copied()).collect();
        starts.sort_by(|a, b| a[0].total_cmp(&b[0]).then(a[1].total_cmp(&b[1])));
        starts.dedup();
        for at in starts.iter().filter_map(|&at| sheet.shown(at)) {
            Marker::CIRCLE.hollow(root, at, START, palette::INK);
        }

        let (shown, hidden): (Vec<&Path>, Vec<&Path>) =
            paths.iter().partition(|path| sheet.shown(path.end.at).is_some());
        let targets: Vec<_> = shown.iter().filter_map(|path| sheet.shown(path.end.at)).collect();
        let slots = spread(&targets, 2.0 * RADIUS + 4.0, PLOT.inset(RADIUS + 2.0));
        for (&target, &slot) in targets.iter().zip(&slots).filter(|(target, slot)| target != slot) {
            pen::line(root, &[target, slot], palette::INK, 1.0);
            root.draw(Shape::Polygon(Marker::CIRCLE.outline(target, 3.0)), palette::INK);
        }
        for (path, &slot) in shown.iter().zip(&slots) {
            mark(root, path, slot);
        }

        sheet.heading("Methods");
        for path in &paths {
            let remark = if paths.len() > REMARKED { String::new() } else { ending(&path.end) };
            let at = sheet.entry(&path.label, &remark);
            mark(root, path, at);
        }
        sheet.gap();
        let at = sheet.entry("start of a worker", "");
        Marker::CIRCLE.hollow(root, at, START, palette::INK);
        let hidden: Vec<&str> = hidden.iter().map(|path| path.label.as_str()).collect();
        let outside = format!("outside the picture: {}", hidden.join(", "));
        finish(&mut sheet, FADE, if hidden.is_empty() { "" } else { &outside });
        Ok(())
    })
}

fn mark(root: &Canvas, path: &Path, at: (f64, f64)) {
    let look = palette::look(path.method);
    match path.end.outcome {
        Outcome::Split => look.marker.hollow(root, at, RADIUS, look.colour),
        _ => look.marker.fill(root, at, RADIUS, look.colour),
    }
}

#[cfg(test)]
mod tests {
    use tiny_skia::Pixmap;

    use super::*;
    use crate::vincent::run::End;

    fn path(method: &'static str, at: [f64; 2], outcome: Outcome) -> Path {
        let end = End { at, spread: 0.0, outcome };
        Path {
            method,
            label: palette::look(method).label.into(),
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
        let map = Backdrop::of(&paths);
        let image = Pixmap::decode_png(&ends(&map, &paths).unwrap().png().unwrap()).unwrap();
        assert_eq!((image.width(), image.height()), SIZE);
        for name in names {
            let colour = palette::look(name).colour;
            let seen =
                (0..PLOT.high.0 as u32).flat_map(|x| (0..SIZE.1).map(move |y| (x, y))).filter(|&(x, y)| {
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
        let picture = ends(&Backdrop::of(&paths), &paths).unwrap();
        assert!(picture.svg().contains("outside the picture: EASGD, LSGD\n"));
        assert!(!picture.svg().contains(" id="));
        picture.png().unwrap();
        ends(&Backdrop::of(&[]), &[]).unwrap().png().unwrap();
    }
}

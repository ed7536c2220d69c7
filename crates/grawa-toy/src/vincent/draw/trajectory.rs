//! The picture of one method's run on the landscape: the paths of all workers and of the centre.
//!
//! A path begins at a hollow marker and ends at a filled one; workers that end together stand around the point, so that
//! each can be seen.

use super::ring::spread;
use super::{Backdrop, ending, finish};
use crate::Error;
use crate::picture::marker::Marker;
use crate::picture::palette::{self, Rgb};
use crate::picture::pen::{self, Point};
use crate::picture::sheet::{PLOT, SIZE};
use crate::picture::{Canvas, Picture};
use crate::vincent::run::Path;

const FADE: f64 = 0.68;
const RADIUS: f64 = 5.5;
const THIN: f64 = 1.3;
const THICK: f64 = 2.4;

/// More workers than this are drawn, but not listed in the legend.
const NAMED: usize = 12;

/// Draws the run of one method.
pub(in crate::vincent) fn trajectory(map: &Backdrop, path: &Path) -> Result<Picture, Error> {
    Picture::draw(SIZE.0, SIZE.1, |root| {
        let mut sheet = map.sheet(root, FADE)?;
        let mut complete = true;
        for (index, way) in path.workers.iter().enumerate() {
            complete &= sheet.way(way, palette::series(index), THIN);
        }
        complete &= sheet.way(&path.centre, palette::INK, THICK);
        sheet.frame(&path.label, &format!("ends at {}", ending(&path.end)), ["x", "y"]);

        let shown = |at: Option<&[f64; 2]>| at.and_then(|&at| sheet.shown(at));
        for (index, way) in path.workers.iter().enumerate() {
            if let Some(at) = shown(way.first()) {
                mark(root, at, palette::series(index), true);
            }
        }
        let ends =
            path.workers.iter().enumerate().filter_map(|(index, way)| Some((index, shown(way.last())?)));
        let (ends, mut targets): (Vec<usize>, Vec<Point>) = ends.unzip();
        targets.extend(shown(Some(&path.end.at)));
        let slots = spread(&targets, 2.0 * RADIUS + 4.0, PLOT.inset(RADIUS + 2.0));
        for (&target, &slot) in targets.iter().zip(&slots).filter(|(target, slot)| target != slot) {
            pen::line(root, &[target, slot], palette::INK, 1.0);
        }
        for (&slot, &index) in slots.iter().zip(&ends) {
            mark(root, slot, palette::series(index), false);
        }
        if let Some(&model) = slots.get(ends.len()) {
            Marker::DIAMOND.fill(root, model, RADIUS, palette::INK);
        }

        sheet.heading("Paths");
        let sample = |(x, y): Point, colour: Rgb, width: f64| {
            pen::line(root, &[(x - 10.0, y), (x + 10.0, y)], colour, width)
        };
        for index in 0..path.workers.len().min(NAMED) {
            sample(sheet.entry(&format!("worker {index}"), ""), palette::series(index), 2.0);
        }
        if path.workers.len() > NAMED {
            sheet.entry(&format!("… {} workers in all", path.workers.len()), "");
        }
        sample(sheet.entry("centre", ""), palette::INK, THICK);
        sheet.gap();
        for (text, hollow) in [("start of a worker", true), ("end of a worker", false)] {
            let at = sheet.entry(text, "");
            mark(root, at, palette::FAINT, hollow);
        }
        let at = sheet.entry("evaluated model", "");
        Marker::DIAMOND.fill(root, at, RADIUS, palette::INK);
        let replaced = format!("workers that left for good, replaced by the centre: {}", path.replaced);
        let notes = (path.replaced > 0).then_some(replaced);
        let outside = (!complete).then(|| "parts of the paths lie outside the picture".to_owned());
        finish(&mut sheet, FADE, &notes.into_iter().chain(outside).collect::<Vec<_>>().join("; "));
        Ok(())
    })
}

fn mark(root: &Canvas, at: Point, colour: Rgb, hollow: bool) {
    match hollow {
        true => Marker::CIRCLE.hollow(root, at, RADIUS, colour),
        false => Marker::CIRCLE.fill(root, at, RADIUS, colour),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vincent::run::{End, Outcome};

    fn path(workers: Vec<Vec<[f64; 2]>>) -> Path {
        let end = End { at: [4.111, 4.111], spread: 0.0, outcome: Outcome::Valley(4, 4) };
        Path {
            method: "local-lgrawa",
            label: "Local-LGRAWA".into(),
            workers,
            centre: vec![[5.0, 5.0], [4.111, 4.111]],
            replaced: 0,
            end,
        }
    }

    #[test]
    fn a_long_way_makes_a_small_picture() {
        let spiral = |turn: f64| {
            (0..5000)
                .map(move |step| f64::from(step) / 250.0 + turn)
                .map(|a| [5.0 + 0.2 * a * a.cos(), 5.0 + 0.2 * a * a.sin()])
        };
        let path = path((0..4).map(|turn| spiral(f64::from(turn)).collect()).collect());
        let picture = trajectory(&Backdrop::of(std::slice::from_ref(&path)), &path).unwrap();
        assert!(picture.svg().contains("Local-LGRAWA") && picture.svg().contains("ends at (4.11, 4.11)"));
        assert!(picture.svg().len() < 250_000, "{}", picture.svg().len());
        picture.png().unwrap();
    }

    #[test]
    fn ways_that_leave_the_picture_are_cut_and_mentioned() {
        let map = Backdrop::of(&[]);
        let away = path(vec![vec![[5.0, 5.0], [50.0, 5.0], [f64::NAN, 5.0]], vec![], vec![[-f64::MAX, 1.0]]]);
        assert!(trajectory(&map, &away).unwrap().svg().contains("outside the picture"));
        let home = path(vec![vec![[5.0, 5.0], [4.111, 4.111]]]);
        assert!(!trajectory(&map, &home).unwrap().svg().contains("outside the picture"));
    }
}

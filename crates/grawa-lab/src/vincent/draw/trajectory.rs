//! The picture of one method's way over the landscape: every worker's path and the centre's.
//!
//! A path begins at a hollow marker and ends at a filled one; workers that end together stand around the
//! place, so that each can be seen.

use plotters::style::RGBColor;

use super::backdrop::Backdrop;
use super::fan::spread;
use super::place::place;
use super::sheet::{SIZE, Sheet};
use crate::picture::marker::Marker;
use crate::picture::pen::Point;
use crate::picture::pen::fine;
use crate::picture::{Error, Picture, palette, px};
use crate::vincent::record::{Outcome, Path};

const FADE: f64 = 0.68;
const RADIUS: f64 = 5.5;
const THIN: f64 = 1.3;
const THICK: f64 = 2.4;

/// More workers than this are drawn, but not named one by one.
const NAMED: usize = 12;

/// Draws the way of one method.
pub fn trajectory(map: &Backdrop, path: &Path) -> Result<Picture, Error> {
    Picture::draw_fine(SIZE.0, SIZE.1, |root| {
        let look = palette::look(&path.method);
        let mut sheet = Sheet::new(root, map, (look.label, &ending(path)), FADE)?;

        let mut complete = true;
        for (index, way) in path.workers.iter().enumerate() {
            complete &= sheet.way(way, palette::series(index), THIN)?;
        }
        complete &= sheet.way(&path.centre, palette::INK, THICK)?;

        let starts = path.workers.iter().enumerate().filter_map(|(index, way)| Some((index, *way.first()?)));
        for (index, at) in starts.filter(|&(_, at)| sheet.shows(at)) {
            mark(&sheet, sheet.at(at), palette::series(index), true)?;
        }
        let ends = path.workers.iter().enumerate().filter_map(|(index, way)| Some((index, *way.last()?)));
        let ends: Vec<_> = ends.filter(|&(_, at)| sheet.shows(at)).collect();
        let mut targets: Vec<_> = ends.iter().map(|&(_, at)| sheet.at(at)).collect();
        let (gap, bounds) = (2.0 * RADIUS + 4.0, sheet.plot().inset(RADIUS + 2.0));
        let mut seats = spread(&targets, gap, bounds);
        let model = sheet.at(path.end.at);
        let mut model_seat = model;
        if sheet.shows(path.end.at) {
            // The evaluated model keeps its place in the middle of a ring, but must not cover a lone worker.
            let covers = |seat: &Point| libm::hypot(seat.0 - model.0, seat.1 - model.1) < gap;
            if seats.iter().any(covers) {
                targets.push(model);
                seats = spread(&targets, gap, bounds);
                model_seat = seats.last().copied().unwrap_or(model);
            }
        }
        for (&target, &seat) in targets.iter().zip(&seats).filter(|(target, seat)| target != seat) {
            sheet.line(&[target, seat], palette::INK, 1.0)?;
        }
        for (&seat, &(index, _)) in seats.iter().zip(&ends) {
            mark(&sheet, seat, palette::series(index), false)?;
        }
        if sheet.shows(path.end.at) {
            Marker::Diamond.fill(root, fine(model_seat), px(RADIUS).into(), palette::INK)?;
        }

        sheet.heading("Paths")?;
        for index in 0..path.workers.len().min(NAMED) {
            let (x, y) = sheet.entry(&format!("worker {}", index + 1), "")?;
            sheet.line(&[(x - 10.0, y), (x + 10.0, y)], palette::series(index), 2.0)?;
        }
        if path.workers.len() > NAMED {
            sheet.entry(&format!("… {} workers in all", path.workers.len()), "")?;
        }
        let (x, y) = sheet.entry("centre", "")?;
        sheet.line(&[(x - 10.0, y), (x + 10.0, y)], palette::INK, THICK)?;
        sheet.gap();
        let at = sheet.entry("start of a worker", "")?;
        mark(&sheet, at, palette::FAINT, true)?;
        let at = sheet.entry("end of a worker", "")?;
        mark(&sheet, at, palette::FAINT, false)?;
        let at = sheet.entry("evaluated model", "")?;
        Marker::Diamond.fill(root, fine(at), px(RADIUS).into(), palette::INK)?;
        sheet.scale(FADE)?;

        let mut notes = Vec::new();
        if path.replaced > 0 {
            notes.push(format!("workers that left for good, replaced by the centre: {}", path.replaced));
        }
        if !complete {
            notes.push("parts of the paths lie outside the picture".to_string());
        }
        sheet.note(&notes.join("; "))?;
        Ok(())
    })
}

fn mark(sheet: &Sheet<'_, '_>, at: (f64, f64), colour: RGBColor, hollow: bool) -> Result<(), Error> {
    let (at, radius) = (fine(at), px(RADIUS).into());
    if hollow {
        Marker::Circle.hollow(sheet.root(), at, radius, colour)
    } else {
        Marker::Circle.fill(sheet.root(), at, radius, colour)
    }
}

fn ending(path: &Path) -> String {
    let at = place(path.end.at);
    match path.end.outcome {
        Outcome::Valley(..) => format!("ends at {at}"),
        Outcome::Split => format!("ends at {at}, its workers apart"),
        Outcome::Unsettled => format!("ends at {at}, not at the bottom of a valley"),
        Outcome::Lost => "is lost".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vincent::record::End;

    fn path(workers: Vec<Vec<[f64; 2]>>) -> Path {
        let end = End { at: [4.111, 4.111], spread: 0.0, outcome: Outcome::Valley(4, 4) };
        Path {
            method: "local-lgrawa".into(),
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
        let picture = trajectory(&Backdrop::of(std::slice::from_ref(&path)).unwrap(), &path).unwrap();
        assert!(picture.svg().contains("Local-LGRAWA") && picture.svg().contains("ends at (4.11, 4.11)"));
        assert!(picture.svg().len() < 250_000, "{}", picture.svg().len());
        picture.png().unwrap();
    }

    #[test]
    fn ways_that_leave_the_picture_are_cut_and_mentioned() {
        let map = Backdrop::of(&[]).unwrap();
        let away = path(vec![vec![[5.0, 5.0], [50.0, 5.0], [f64::NAN, 5.0]], vec![], vec![[-f64::MAX, 1.0]]]);
        assert!(trajectory(&map, &away).unwrap().svg().contains("outside the picture"));
        let home = path(vec![vec![[5.0, 5.0], [4.111, 4.111]]]);
        assert!(!trajectory(&map, &home).unwrap().svg().contains("outside the picture"));
    }
}

//! The picture of a sweep: for one edge rule, a panel for each method, a cell for each run.
//!
//! A cell has the colour of the valley its run ended in; where the two axes differ, the sharper one counts.

use crate::Error;
use crate::picture::palette::{self, Rgb, WHITE};
use crate::picture::pen::{self, Point, Text, fill, line};
use crate::picture::{Canvas, Picture, Side};
use crate::vincent::landscape::{self, VALLEYS};
use crate::vincent::run::Outcome;
use crate::vincent::{Cell, Edge, Grid};

const COLUMNS: usize = 4;
const WIDTH: f64 = 1120.0;
/// A panel's plot and the room to the left of, above and below it, in pixels.
const PLOT: (f64, f64) = (215.0, 200.0);
const LEFT: f64 = 84.0;
const ABOVE: f64 = 34.0;
const BELOW: f64 = 30.0;
const SPACE: f64 = 45.0;
const HEAD: f64 = 52.0;
const FOOT: f64 = 118.0;

/// Draws the runs under one edge rule. Cells of a panel are equally large, whatever the values of the grid.
pub(in crate::vincent) fn sweep(grid: &Grid, edge: Edge, cells: &[Cell]) -> Result<Picture, Error> {
    let cells: Vec<&Cell> = cells.iter().filter(|cell| cell.edge == edge).collect();
    let mut methods: Vec<&str> = cells.iter().map(|cell| cell.method).collect();
    methods.sort_by_key(|method| (palette::rank(method), *method));
    methods.dedup();
    let size = (PLOT.0 / grid.pulls.len() as f64, PLOT.1 / grid.rates.len() as f64);

    let rows = methods.len().div_ceil(COLUMNS).max(1);
    let height = HEAD + rows as f64 * (ABOVE + PLOT.1 + BELOW) + FOOT;
    Picture::draw(WIDTH as u32, height as u32, |root| {
        let title = format!("Valley reached, edge rule: {edge}");
        Text::of(18.0).bold().write(root, &title, (LEFT, 28.0), Side::Left);
        for (index, method) in methods.iter().enumerate() {
            let (row, column) = (index / COLUMNS, index % COLUMNS);
            let left = LEFT + column as f64 * (PLOT.0 + SPACE);
            let bottom = HEAD + ABOVE + row as f64 * (ABOVE + PLOT.1 + BELOW) + PLOT.1;
            let place = |values: &[f64], value: f64| values.iter().position(|&other| other == value);
            for cell in cells.iter().filter(|cell| cell.method == *method) {
                if let (Some(x), Some(y)) = (place(&grid.pulls, cell.pull), place(&grid.rates, cell.rate)) {
                    let low = (left + x as f64 * size.0, bottom - (y + 1) as f64 * size.1);
                    fill(root, low, (low.0 + size.0, low.1 + size.1), colour(cell.end.outcome));
                }
            }
            // Thin white lines separate neighbours of one colour.
            for x in (1..grid.pulls.len()).map(|index| left + index as f64 * size.0) {
                line(root, &[(x, bottom - PLOT.1), (x, bottom)], WHITE, 0.6);
            }
            for y in (1..grid.rates.len()).map(|index| bottom - index as f64 * size.1) {
                line(root, &[(left, y), (left + PLOT.0, y)], WHITE, 0.6);
            }
            pen::frame(root, (left, bottom - PLOT.1), (left + PLOT.0, bottom));
            let label = (left + 0.5 * PLOT.0, bottom - PLOT.1 - 13.0);
            Text::of(14.0).bold().write(root, palette::look(method).label, label, Side::Centre);
            if column == 0 {
                rate_labels(root, (left, bottom), grid, size.1);
            }
            // The lowest panel of a column carries the labels of the pull.
            if index + COLUMNS >= methods.len() {
                pull_labels(root, (left, bottom), grid, size.0);
            }
        }
        legend(root, height - FOOT + 62.0);
        Ok(())
    })
}

fn colour(outcome: Outcome) -> Rgb {
    match outcome {
        Outcome::Valley(x, y) => palette::valley(x.min(y)),
        Outcome::Split => palette::SPLIT,
        Outcome::Unsettled => palette::UNSETTLED,
        Outcome::Lost => palette::LOST,
    }
}

/// The middle of every cell, or of every second, … so that labels of this width have room.
fn labels(values: &[f64], cell: f64, wide: f64) -> impl Iterator<Item = (f64, String)> {
    let stride = (wide / cell).ceil().max(1.0) as usize;
    let middle = move |(index, value): (usize, &f64)| ((index as f64 + 0.5) * cell, value.to_string());
    values.iter().enumerate().step_by(stride).map(middle)
}

fn rate_labels(root: &Canvas, (left, bottom): Point, grid: &Grid, cell: f64) {
    for (middle, text) in labels(&grid.rates, cell, 15.0) {
        let y = bottom - middle;
        line(root, &[(left - 4.0, y), (left, y)], palette::INK, 1.0);
        Text::of(12.0).write(root, &text, (left - 7.0, y), Side::Right);
    }
    let at = (left - 64.0, bottom - 0.5 * PLOT.1);
    Text::of(13.0).upward().write(root, "learning rate", at, Side::Centre);
}

fn pull_labels(root: &Canvas, (left, bottom): Point, grid: &Grid, cell: f64) {
    let widths = grid.pulls.iter().map(|pull| Text::of(12.0).width(&pull.to_string()) + 7.0);
    for (middle, text) in labels(&grid.pulls, cell, widths.fold(0.0, f64::max)) {
        let x = left + middle;
        line(root, &[(x, bottom), (x, bottom + 4.0)], palette::INK, 1.0);
        Text::of(12.0).write(root, &text, (x, bottom + 13.0), Side::Centre);
    }
    Text::of(14.0).write(root, "λ", (left + 0.5 * PLOT.0, bottom + 31.0), Side::Centre);
}

fn legend(root: &Canvas, top: f64) {
    let valleys = VALLEYS.map(|index| {
        let at = landscape::bottom(index);
        (palette::valley(index), format!("{at:.2} ({})", figures(landscape::curvature([at, at])[0])))
    });
    let before = [(palette::valley(-1), "sharper still".to_string())];
    let after = [(palette::valley(6), "flatter still".to_string())];
    let others =
        [Outcome::Unsettled, Outcome::Split, Outcome::Lost].map(|it| (colour(it), it.remark().into()));
    let entries: Vec<(Rgb, String)> = before.into_iter().chain(valleys).chain(after).chain(others).collect();
    let heading = "Bottom of the valley (curvature there); the sharper of x and y counts";
    Text::of(12.0).bold().write(root, heading, (LEFT, top), Side::Left);
    let pitch = (WIDTH - LEFT - 40.0) / entries.len() as f64;
    for (index, (colour, text)) in entries.into_iter().enumerate() {
        let x = LEFT + index as f64 * pitch;
        fill(root, (x, top + 12.0), (x + pitch, top + 28.0), colour);
        Text::of(11.5).write(root, &text, (x + 0.5 * pitch, top + 39.0), Side::Centre);
    }
}

/// Two figures, and no more than the whole number.
fn figures(value: f64) -> String {
    if value < 10.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

#[cfg(test)]
mod tests {
    use tiny_skia::Pixmap;

    use super::*;
    use crate::vincent::run::End;

    fn run(method: &'static str, pull: f64, rate: f64, outcome: Outcome) -> Cell {
        Cell { method, edge: Edge::Clip, pull, rate, end: End { at: [1.0, 1.0], spread: 0.0, outcome } }
    }

    #[test]
    fn cells_have_the_colour_of_the_sharper_valley() {
        let cells = [
            run("mean", 0.1, 0.01, Outcome::Valley(5, 2)),
            run("mean", 0.2, 0.01, Outcome::Split),
            run("mean", 0.1, 0.1, Outcome::Lost),
            run("mean", 0.2, 0.1, Outcome::Valley(4, 9)),
        ];
        let grid = Grid { pulls: vec![0.1, 0.2], rates: vec![0.01, 0.1], edges: vec![Edge::Clip] };
        let image = sweep(&grid, Edge::Clip, &cells).unwrap().png().unwrap();
        let image = Pixmap::decode_png(&image).unwrap();
        let at = |right: f64, up: f64| {
            let (x, y) = (LEFT + right * PLOT.0, HEAD + ABOVE + (1.0 - up) * PLOT.1);
            let pixel = image.pixel(x as u32, y as u32).unwrap();
            Rgb(pixel.red(), pixel.green(), pixel.blue())
        };
        assert_eq!((at(0.25, 0.25), at(0.75, 0.25)), (palette::valley(2), palette::SPLIT));
        assert_eq!((at(0.25, 0.75), at(0.75, 0.75)), (palette::LOST, palette::valley(4)));
        // A sweep without runs is a picture too.
        sweep(&grid, Edge::None, &cells).unwrap().png().unwrap();
    }

    #[test]
    fn labels_never_overlap() {
        let values: Vec<f64> = (1..=40).map(|step| f64::from(step) / 40.0).collect();
        let found: Vec<(f64, String)> = labels(&values, 5.0, 22.0).collect();
        assert_eq!((found.len(), found[1].1.as_str()), (8, "0.15"));
        assert!(found.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 22.0));
    }
}

//! The picture of a sweep: for one rule at the edge, a panel for each method, a cell for each run.
//!
//! A cell has the colour of the valley its run ended in; where the two axes differ, the sharper one decides.

use plotters::element::Rectangle;
use plotters::style::text_anchor::HPos;
use plotters::style::{Color, RGBColor, WHITE};

use super::axis::Axis;
use super::line::Bounds;
use crate::picture::pen::{Text, fine, line};
use crate::picture::{Canvas, Error, Picture, palette};
use crate::vincent::landscape::{self, VALLEYS};
use crate::vincent::record::{Cell, Outcome};

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

/// Draws the runs under one rule at the edge, such as `clip`.
pub fn sweep(edge: &str, cells: &[Cell]) -> Result<Picture, Error> {
    let cells: Vec<&Cell> = cells.iter().filter(|cell| cell.edge == edge).collect();
    let mut methods: Vec<&str> = cells.iter().map(|cell| cell.method.as_str()).collect();
    methods.sort_by_key(|method| (palette::rank(method), *method));
    methods.dedup();
    let pulls = Axis::of(cells.iter().map(|cell| cell.pull), false);
    let rates = Axis::of(cells.iter().map(|cell| cell.rate), true);

    let rows = methods.len().div_ceil(COLUMNS).max(1);
    let height = HEAD + rows as f64 * (ABOVE + PLOT.1 + BELOW) + FOOT;
    Picture::draw_fine(WIDTH as u32, height as u32, |root| {
        root.fill(&WHITE)?;
        let title = format!("Valley reached, edge rule: {edge}");
        Text::of(18.0).bold().write(root, &title, (LEFT, 28.0), HPos::Left)?;
        if methods.is_empty() {
            Text::of(13.0).write(root, "no runs", (LEFT, HEAD + 40.0), HPos::Left)?;
        }
        for (index, method) in methods.iter().enumerate() {
            let (row, column) = (index / COLUMNS, index % COLUMNS);
            let left = LEFT + column as f64 * (PLOT.0 + SPACE);
            let top = HEAD + ABOVE + row as f64 * (ABOVE + PLOT.1 + BELOW);
            let panel = Bounds { low: (left, top), high: (left + PLOT.0, top + PLOT.1) };
            let own = cells.iter().filter(|cell| cell.method == *method);
            draw_panel(root, panel, palette::look(method).label, own.copied(), &pulls, &rates)?;
            if column == 0 {
                rate_labels(root, panel, &rates)?;
            }
            // The lowest panel of a column carries the labels of the pull.
            if index + COLUMNS >= methods.len() {
                pull_labels(root, panel, &pulls)?;
            }
        }
        legend(root, height - FOOT + 62.0)
    })
}

fn colour(outcome: Outcome) -> RGBColor {
    match outcome {
        Outcome::Valley(x, y) => palette::valley(x.min(y)),
        Outcome::Split => palette::SPLIT,
        Outcome::Unsettled => palette::UNSETTLED,
        Outcome::Lost => palette::LOST,
    }
}

fn draw_panel<'c>(
    root: &Canvas<'_>,
    panel: Bounds,
    label: &str,
    cells: impl Iterator<Item = &'c Cell>,
    pulls: &Axis,
    rates: &Axis,
) -> Result<(), Error> {
    let across = |share: f64| panel.low.0 + share * (panel.high.0 - panel.low.0);
    let up = |share: f64| panel.high.1 - share * (panel.high.1 - panel.low.1);
    for cell in cells {
        if let (Some(x), Some(y)) = (pulls.cell(cell.pull), rates.cell(cell.rate)) {
            let corners = [(across(x[0]), up(y[1])), (across(x[1]), up(y[0]))].map(fine);
            root.draw(&Rectangle::new(corners, colour(cell.end.outcome).filled()))?;
        }
    }
    // Fine white rules tell neighbours of one colour apart.
    for &share in pulls.edges.iter().skip(1).take(pulls.values.len().saturating_sub(1)) {
        line(root, &[(across(share), panel.low.1), (across(share), panel.high.1)], WHITE, 0.6)?;
    }
    for &share in rates.edges.iter().skip(1).take(rates.values.len().saturating_sub(1)) {
        line(root, &[(panel.low.0, up(share)), (panel.high.0, up(share))], WHITE, 0.6)?;
    }
    let Bounds { low, high } = panel;
    line(root, &[low, (high.0, low.1), high, (low.0, high.1), low], palette::INK, 1.0)?;
    Text::of(14.0).bold().write(root, label, (0.5 * (low.0 + high.0), low.1 - 13.0), HPos::Center)
}

fn rate_labels(root: &Canvas<'_>, panel: Bounds, rates: &Axis) -> Result<(), Error> {
    for (middle, text) in rates.labels(|_| 15.0 / PLOT.1) {
        let y = panel.high.1 - middle * PLOT.1;
        line(root, &[(panel.low.0 - 4.0, y), (panel.low.0, y)], palette::INK, 1.0)?;
        Text::of(12.0).write(root, &text, (panel.low.0 - 7.0, y), HPos::Right)?;
    }
    let at = (panel.low.0 - 64.0, 0.5 * (panel.low.1 + panel.high.1));
    Text::of(13.0).upward().write(root, "learning rate", at, HPos::Center)
}

fn pull_labels(root: &Canvas<'_>, panel: Bounds, pulls: &Axis) -> Result<(), Error> {
    let wide = |text: &str| (Text::of(12.0).width(text) + 7.0) / PLOT.0;
    for (middle, text) in pulls.labels(wide) {
        let x = panel.low.0 + middle * PLOT.0;
        line(root, &[(x, panel.high.1), (x, panel.high.1 + 4.0)], palette::INK, 1.0)?;
        Text::of(12.0).write(root, &text, (x, panel.high.1 + 13.0), HPos::Center)?;
    }
    let at = (0.5 * (panel.low.0 + panel.high.0), panel.high.1 + 31.0);
    Text::of(14.0).write(root, "λ", at, HPos::Center)
}

fn legend(root: &Canvas<'_>, top: f64) -> Result<(), Error> {
    let valleys = VALLEYS.map(|index| {
        let at = landscape::bottom(index);
        (palette::valley(index), format!("{at:.2} ({})", figures(landscape::curvature([at, at])[0])))
    });
    let before = [(palette::valley(-1), "sharper still".to_string())];
    let after = [
        (palette::valley(6), "flatter still".to_string()),
        (palette::UNSETTLED, "not at a bottom".to_string()),
        (palette::SPLIT, "workers apart".to_string()),
        (palette::LOST, "lost".to_string()),
    ];
    let entries: Vec<(RGBColor, String)> = before.into_iter().chain(valleys).chain(after).collect();
    let heading = "Bottom of the valley (curvature there); the sharper of x and y counts";
    Text::of(12.0).bold().write(root, heading, (LEFT, top), HPos::Left)?;
    let pitch = (WIDTH - LEFT - 40.0) / entries.len() as f64;
    for (index, (colour, text)) in entries.into_iter().enumerate() {
        let x = LEFT + index as f64 * pitch;
        let corners = [(x, top + 12.0), (x + pitch, top + 28.0)].map(fine);
        root.draw(&Rectangle::new(corners, colour.filled()))?;
        Text::of(11.5).write(root, &text, (x + 0.5 * pitch, top + 39.0), HPos::Center)?;
    }
    Ok(())
}

/// Two figures, and no more than the whole number.
fn figures(value: f64) -> String {
    if value < 10.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

#[cfg(test)]
mod tests {
    use resvg::tiny_skia::Pixmap;

    use super::*;
    use crate::vincent::record::End;

    fn run(method: &str, pull: f64, rate: f64, outcome: Outcome) -> Cell {
        let end = End { at: [1.0, 1.0], spread: 0.0, outcome };
        Cell { method: method.into(), edge: "clip".into(), pull, rate, end }
    }

    #[test]
    fn cells_have_the_colour_of_the_sharper_valley() {
        let cells = [
            run("mean", 0.1, 0.01, Outcome::Valley(5, 2)),
            run("mean", 0.2, 0.01, Outcome::Split),
            run("mean", 0.1, 0.1, Outcome::Lost),
            run("mean", 0.2, 0.1, Outcome::Valley(4, 9)),
        ];
        let image = Pixmap::decode_png(&sweep("clip", &cells).unwrap().png().unwrap()).unwrap();
        let at = |right: f64, up: f64| {
            let (x, y) = (LEFT + right * PLOT.0, HEAD + ABOVE + (1.0 - up) * PLOT.1);
            let pixel = image.pixel(x as u32, y as u32).unwrap();
            RGBColor(pixel.red(), pixel.green(), pixel.blue())
        };
        assert_eq!((at(0.25, 0.25), at(0.75, 0.25)), (palette::valley(2), palette::SPLIT));
        assert_eq!((at(0.25, 0.75), at(0.75, 0.75)), (palette::LOST, palette::valley(4)));
    }

    #[test]
    fn no_runs_and_odd_numbers_still_make_a_picture() {
        let odd =
            [run("mean", f64::NAN, 0.0, Outcome::Lost), run("other", -1.0, f64::INFINITY, Outcome::Split)];
        for cells in [&odd[..], &[]] {
            sweep("clip", cells).unwrap().png().unwrap();
        }
        sweep("<none>", &odd).unwrap().png().unwrap();
    }
}

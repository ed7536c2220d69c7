//! Named rows over one horizontal axis: measurements as dots, with the interval of their mean.

use super::pen::{Text, line, title};
use super::scale::{SMALL, Scale};
use super::{Canvas, Picture, Side, palette};
use crate::Error;

/// Rows of measurements.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    /// The title.
    pub title: String,
    /// The name of the axis.
    pub axis: String,
    /// The rows, from the top.
    pub rows: Vec<Row>,
}

/// A row of measurements.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// The label.
    pub name: String,
    /// The method whose colour and marker the measurements have.
    pub method: String,
    /// The measurements.
    pub values: Vec<f64>,
    /// The mean of the measurements and half of its interval.
    pub interval: Option<(f64, f64)>,
}

const WIDTH: u32 = 900;
const RIGHT: f64 = 872.0;
/// The top of the first row, and the height of a row.
const TOP: f64 = 64.0;
const STEP: f64 = 46.0;
const NAME: Text = Text::of(14.0);

impl Rows {
    /// What the marks mean, for a caption: bars only where there are some.
    pub fn key(&self) -> &'static str {
        match self.rows.iter().any(|row| row.interval.is_some()) {
            true => "Hollow marks are single seeds, bars the 95 % intervals of the means.",
            false => "Hollow marks are single seeds.",
        }
    }

    /// The axis covers all measurements and all intervals.
    fn scale(&self) -> Scale {
        let numbers = |row: &Row| {
            let ends = row.interval.map(|(mean, half)| [mean - half, mean + half]);
            row.values.iter().copied().chain(ends.into_iter().flatten()).collect::<Vec<_>>()
        };
        Scale::of(self.rows.iter().flat_map(numbers), false)
    }

    /// Draws the picture.
    pub fn draw(&self) -> Result<Picture, Error> {
        let scale = self.scale();
        let widest = self.rows.iter().map(|row| NAME.width(&row.name)).fold(0.0, f64::max);
        let left = (widest + 48.0).max(120.0);
        let bottom = TOP + STEP * self.rows.len() as f64;
        let at = |x: f64| scale.share(x).map(|share| left + share.clamp(0.0, 1.0) * (RIGHT - left));
        Picture::draw(WIDTH, (bottom + 64.0) as u32, |root| {
            title(root, &self.title, (20.0, 30.0), f64::from(WIDTH) - 40.0);
            let grid = palette::mix(palette::HAIR, palette::WHITE, 0.6);
            for (share, text) in scale.ticks() {
                let x = left + share * (RIGHT - left);
                line(root, &[(x, TOP), (x, bottom)], grid, 0.8);
                SMALL.write(root, &text, (x, bottom + 16.0), Side::Centre);
            }
            line(root, &[(left, bottom), (RIGHT, bottom)], palette::INK, 1.0);
            Text::of(15.0).write(root, &self.axis, (0.5 * (left + RIGHT), bottom + 42.0), Side::Centre);
            for (index, row) in self.rows.iter().enumerate() {
                let y = TOP + STEP * (index as f64 + 0.5);
                NAME.write(root, &row.name, (left - 18.0, y), Side::Right);
                row.draw(root, y, at);
            }
            Ok(())
        })
    }
}

impl Row {
    /// Draws the row at a height; `at` gives the horizontal position of a number.
    fn draw(&self, root: &Canvas, y: f64, at: impl Fn(f64) -> Option<f64>) {
        let look = palette::look(&self.method);
        for (number, x) in self.values.iter().filter_map(|&x| at(x)).enumerate() {
            // Shifted, so that equal measurements stay distinct.
            let beside = y + 9.0 + 3.5 * (number % 3) as f64 - 3.5;
            look.marker.hollow(root, (x, beside), 4.5, look.colour);
        }
        let ends = self.interval.map(|(mean, half)| [mean - half, mean, mean + half].map(&at));
        let Some([Some(low), Some(middle), Some(high)]) = ends else { return };
        let y = y - 9.0;
        line(root, &[(low, y), (high, y)], look.colour, 2.4);
        for end in [low, high] {
            line(root, &[(end, y - 5.0), (end, y + 5.0)], look.colour, 1.6);
        }
        look.marker.fill(root, (middle, y), 6.5, look.colour);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The intervals of three seeds are far wider than what was measured.
    #[test]
    fn the_axis_covers_measurements_and_intervals() {
        let row = |values: &[f64], interval| Row { values: values.into(), interval, ..Row::default() };
        let rows = vec![
            row(&[1.0, 1.4, 1.2], Some((1.2, 0.5))),
            row(&[1.3, 1.3], None),
            row(&[0.9, 2.0, 1.0], Some((1.3, 1.51))),
        ];
        let dots = Rows { rows, ..Rows::default() };
        let scale = dots.scale();
        for row in &dots.rows {
            let ends = row.interval.map(|(mean, half)| [mean - half, mean + half]);
            for x in row.values.iter().copied().chain(ends.into_iter().flatten()) {
                let share = scale.share(x).unwrap();
                // Inside, with room for the cap.
                assert!((0.01..=0.99).contains(&share), "{x} lies at {share}");
            }
        }
        assert!(dots.key().contains("bars"));
        let single = Rows { rows: vec![row(&[1.0], None)], ..Rows::default() };
        assert!(!single.key().contains("bars"));
    }

    #[test]
    fn any_numbers_make_dots() {
        let row = |values: Vec<f64>, interval| Row {
            name: "LGRAWA".into(),
            method: "lgrawa".into(),
            values,
            interval,
        };
        for rows in [
            vec![],
            vec![row(vec![], None)],
            vec![
                row(vec![1.0, 2.0, 2.0, f64::NAN], Some((1.5, 0.2))),
                row(vec![3.0], Some((3.0, f64::INFINITY))),
            ],
        ] {
            Rows { rows, ..Rows::default() }.draw().unwrap().png().unwrap();
        }
    }
}

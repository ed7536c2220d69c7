//! Named rows over one horizontal axis: measurements as dots with the interval of their mean, or bars made of named parts.

use plotters::style::WHITE;
use plotters::style::text_anchor::HPos;

use super::pen::{Text, fill, line, title};
use super::scale::{SMALL, Scale};
use super::{Canvas, Picture, palette};
use crate::Error;

/// Measurements in rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dots {
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
    /// The method whose colour and marker it has.
    pub method: String,
    /// The measurements.
    pub values: Vec<f64>,
    /// The mean and half of its interval.
    pub interval: Option<(f64, f64)>,
}

/// Bars in rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bars {
    /// The title.
    pub title: String,
    /// The name of the axis.
    pub axis: String,
    /// The names of the parts.
    pub parts: Vec<String>,
    /// The bars, from the top: a label, and the parts in order.
    pub rows: Vec<(String, Vec<f64>)>,
}

const WIDTH: u32 = 900;
const RIGHT: f64 = 872.0;
const NAME: Text = Text::of(14.0);

/// What dots and bars share: labels and axis.
struct Rows<'a> {
    title: &'a str,
    axis: &'a str,
    names: Vec<&'a str>,
    scale: Scale,
    /// The top of the first row, and the height of a row.
    top: f64,
    step: f64,
    /// The space between a label and the axis.
    gap: f64,
}

impl Rows<'_> {
    /// Draws everything but the rows; `row` draws a row of this number at this height, with a function from numbers to
    /// horizontal positions.
    fn draw(
        &self,
        parts: &[String],
        row: impl Fn(&Canvas<'_>, usize, f64, &dyn Fn(f64) -> Option<f64>) -> Result<(), Error>,
    ) -> Result<Picture, Error> {
        let widest = self.names.iter().map(|name| NAME.width(name)).fold(0.0, f64::max);
        let left = (widest + 48.0).max(120.0);
        let bottom = self.top + self.step * self.names.len() as f64;
        let at = |x: f64| self.scale.share(x).map(|share| left + share.clamp(0.0, 1.0) * (RIGHT - left));
        Picture::draw(WIDTH, (bottom + 64.0) as u32, |root| {
            root.fill(&WHITE)?;
            title(root, self.title, (20.0, 30.0), f64::from(WIDTH) - 40.0)?;
            let mut x = 20.0;
            for (index, part) in parts.iter().enumerate() {
                fill(root, (x, 54.0), (x + 14.0, 68.0), palette::series(index))?;
                SMALL.write(root, part, (x + 20.0, 61.0), HPos::Left)?;
                x += 20.0 + SMALL.width(part) + 22.0;
            }
            let grid = palette::mix(palette::HAIR, WHITE, 0.6);
            for (share, text) in self.scale.ticks() {
                let x = left + share * (RIGHT - left);
                line(root, &[(x, self.top), (x, bottom)], grid, 0.8)?;
                SMALL.write(root, &text, (x, bottom + 16.0), HPos::Center)?;
            }
            line(root, &[(left, bottom), (RIGHT, bottom)], palette::INK, 1.0)?;
            Text::of(15.0).write(root, self.axis, (0.5 * (left + RIGHT), bottom + 42.0), HPos::Center)?;
            for (index, name) in self.names.iter().enumerate() {
                let y = self.top + self.step * (index as f64 + 0.5);
                NAME.write(root, name, (left - self.gap, y), HPos::Right)?;
                row(root, index, y, &at)?;
            }
            Ok(())
        })
    }
}

impl Dots {
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
        let names = self.rows.iter().map(|row| row.name.as_str()).collect();
        let (title, axis, scale) = (&self.title, &self.axis, self.scale());
        let rows = Rows { title, axis, names, scale, top: 64.0, step: 46.0, gap: 18.0 };
        rows.draw(&[], |root, index, y, at| {
            let row = &self.rows[index];
            let look = palette::look(&row.method);
            for (number, x) in row.values.iter().filter_map(|&x| at(x)).enumerate() {
                // Shifted, so that equal measurements stay distinct.
                let beside = y + 9.0 + 3.5 * (number % 3) as f64 - 3.5;
                look.marker.hollow(root, (x, beside), 4.5, look.colour)?;
            }
            let ends = row.interval.map(|(mean, half)| [mean - half, mean, mean + half].map(at));
            let Some([Some(low), Some(middle), Some(high)]) = ends else { return Ok(()) };
            let y = y - 9.0;
            line(root, &[(low, y), (high, y)], look.colour, 2.4)?;
            for end in [low, high] {
                line(root, &[(end, y - 5.0), (end, y + 5.0)], look.colour, 1.6)?;
            }
            look.marker.fill(root, (middle, y), 6.5, look.colour)
        })
    }
}

impl Bars {
    /// Draws the picture.
    pub fn draw(&self) -> Result<Picture, Error> {
        let is_shown = |part: &&f64| part.is_finite() && **part > 0.0;
        let longest = self.rows.iter().map(|(_, parts)| parts.iter().filter(is_shown).sum());
        let longest = longest.fold(0.0, f64::max);
        let scale = Scale::exactly(&[0.0, if longest > 0.0 { 1.04 * longest } else { 1.0 }]);
        let names = self.rows.iter().map(|(name, _)| name.as_str()).collect();
        let (title, axis) = (&self.title, &self.axis);
        let rows = Rows { title, axis, names, scale, top: 96.0, step: 38.0, gap: 14.0 };
        rows.draw(&self.parts, |root, index, y, at| {
            let mut from = 0.0;
            for (number, part) in self.rows[index].1.iter().enumerate().filter(|(_, part)| is_shown(part)) {
                if let (Some(left), Some(right)) = (at(from), at(from + part)) {
                    fill(root, (left, y - 13.0), (right, y + 13.0), palette::series(number))?;
                }
                from += part;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_numbers_make_bars() {
        let parts: Vec<String> = ["a", "b"].map(String::from).into();
        for rows in
            [vec![], vec![("x".into(), vec![0.0, 0.0])], vec![("x".into(), vec![1.0, f64::NAN, -3.0, 1e9])]]
        {
            Bars { rows, parts: parts.clone(), ..Bars::default() }.draw().unwrap().png().unwrap();
        }
    }

    /// The intervals of three seeds are far wider than what was measured.
    #[test]
    fn the_axis_covers_measurements_and_intervals() {
        let row = |values: &[f64], interval| Row { values: values.into(), interval, ..Row::default() };
        let rows = vec![
            row(&[1.0, 1.4, 1.2], Some((1.2, 0.5))),
            row(&[1.3, 1.3], None),
            row(&[0.9, 2.0, 1.0], Some((1.3, 1.51))),
        ];
        let dots = Dots { rows, ..Dots::default() };
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
        let single = Dots { rows: vec![row(&[1.0], None)], ..Dots::default() };
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
            Dots { rows, ..Dots::default() }.draw().unwrap().png().unwrap();
        }
    }
}

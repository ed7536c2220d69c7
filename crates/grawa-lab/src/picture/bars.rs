//! Bars made of named parts, one below the other, with a legend.

use plotters::element::Rectangle;
use plotters::style::text_anchor::HPos;
use plotters::style::{Color, WHITE};

use super::chart::Scale;
use super::pen::{Text, fine, line};
use super::{Error, Picture, palette};

/// What the picture shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bars {
    /// What stands above it.
    pub title: String,
    /// What the axis shows.
    pub axis: String,
    /// The names of the parts.
    pub parts: Vec<String>,
    /// The bars, from above: a name, and the parts in order.
    pub rows: Vec<(String, Vec<f64>)>,
}

const WIDTH: u32 = 900;
const TOP: f64 = 96.0;
const STEP: f64 = 38.0;
const RIGHT: f64 = 872.0;
const NAME: Text = Text::of(14.0);
const TICK: Text = Text::of(13.0);

impl Bars {
    /// Draws the picture.
    pub fn draw(&self) -> Result<Picture, Error> {
        let length = |parts: &[f64]| -> f64 { parts.iter().filter(|x| x.is_finite() && **x > 0.0).sum() };
        let longest = self.rows.iter().map(|(_, parts)| length(parts)).fold(0.0, f64::max);
        let scale = Scale::exactly(&[0.0, if longest > 0.0 { 1.04 * longest } else { 1.0 }]);
        let widest = self.rows.iter().map(|(name, _)| NAME.width(name)).fold(0.0, f64::max);
        let left = (widest + 48.0).max(120.0);
        let bottom = TOP + STEP * self.rows.len() as f64;
        let at = |x: f64| left + scale.share(x).unwrap_or(0.0).clamp(0.0, 1.0) * (RIGHT - left);
        Picture::draw_fine(WIDTH, (bottom + 64.0) as u32, |root| {
            root.fill(&WHITE)?;
            Text::of(18.0).bold().write(root, &self.title, (20.0, 30.0), HPos::Left)?;
            let mut x = 20.0;
            for (index, part) in self.parts.iter().enumerate() {
                root.draw(&Rectangle::new(
                    [fine((x, 54.0)), fine((x + 14.0, 68.0))],
                    palette::series(index).filled(),
                ))?;
                TICK.write(root, part, (x + 20.0, 61.0), HPos::Left)?;
                x += 20.0 + TICK.width(part) + 22.0;
            }
            let grid = palette::mix(palette::HAIR, WHITE, 0.6);
            for (share, text) in scale.ticks() {
                let x = left + share * (RIGHT - left);
                line(root, &[(x, TOP), (x, bottom)], grid, 0.8)?;
                TICK.write(root, &text, (x, bottom + 16.0), HPos::Center)?;
            }
            line(root, &[(left, bottom), (RIGHT, bottom)], palette::INK, 1.0)?;
            Text::of(15.0).write(root, &self.axis, (0.5 * (left + RIGHT), bottom + 42.0), HPos::Center)?;
            for (index, (name, parts)) in self.rows.iter().enumerate() {
                let y = TOP + STEP * (index as f64 + 0.5);
                NAME.write(root, name, (left - 14.0, y), HPos::Right)?;
                let mut from = 0.0;
                for (number, &part) in
                    parts.iter().enumerate().filter(|(_, part)| part.is_finite() && **part > 0.0)
                {
                    let corners = [fine((at(from), y - 13.0)), fine((at(from + part), y + 13.0))];
                    root.draw(&Rectangle::new(corners, palette::series(number).filled()))?;
                    from += part;
                }
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
}

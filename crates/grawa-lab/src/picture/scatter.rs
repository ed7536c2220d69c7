//! Points over two axes, in named groups.

use plotters::style::WHITE;
use plotters::style::text_anchor::HPos;

use super::chart::Scale;
use super::pen::{Point, Text, fine, line};
use super::{Error, Picture, palette, px};

/// What the picture shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scatter {
    /// What stands above it.
    pub title: String,
    /// What the horizontal and the vertical axis show.
    pub axes: [String; 2],
    /// Which of them are logarithmic.
    pub logarithmic: [bool; 2],
    /// The groups. A point that is not finite, or not positive on a logarithmic axis, is left out.
    pub groups: Vec<(String, Vec<Point>)>,
}

const SIZE: (u32, u32) = (900, 600);
const LEFT: f64 = 92.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 536.0;
const NAME: Text = Text::of(13.0);

impl Scatter {
    /// Draws the picture.
    pub fn draw(&self) -> Result<Picture, Error> {
        let numbers = |axis: usize| {
            let points = self.groups.iter().flat_map(|(_, points)| points);
            points.map(move |point| if axis == 0 { point.0 } else { point.1 })
        };
        let scales = [0, 1].map(|axis| Scale::of(numbers(axis), self.logarithmic[axis]));
        let widest = self.groups.iter().map(|(name, _)| NAME.width(name)).fold(0.0, f64::max);
        let right = f64::from(SIZE.0) - widest - 64.0;
        Picture::draw_fine(SIZE.0, SIZE.1, |root| {
            root.fill(&WHITE)?;
            let room = f64::from(SIZE.0) - LEFT - 12.0;
            let size = 18.0 * (room / Text::of(18.0).bold().width(&self.title).max(room));
            Text::of(size).bold().write(root, &self.title, (LEFT, 28.0), HPos::Left)?;
            let grid = palette::mix(palette::HAIR, WHITE, 0.6);
            for (share, text) in scales[0].ticks() {
                let x = LEFT + share * (right - LEFT);
                line(root, &[(x, TOP), (x, BOTTOM)], grid, 0.8)?;
                NAME.write(root, &text, (x, BOTTOM + 16.0), HPos::Center)?;
            }
            for (share, text) in scales[1].ticks() {
                let y = BOTTOM - share * (BOTTOM - TOP);
                line(root, &[(LEFT, y), (right, y)], grid, 0.8)?;
                NAME.write(root, &text, (LEFT - 9.0, y), HPos::Right)?;
            }
            let frame = [(LEFT, TOP), (right, TOP), (right, BOTTOM), (LEFT, BOTTOM), (LEFT, TOP)];
            line(root, &frame, palette::INK, 1.0)?;
            let name = Text::of(15.0);
            name.write(root, &self.axes[0], (0.5 * (LEFT + right), BOTTOM + 42.0), HPos::Center)?;
            name.upward().write(root, &self.axes[1], (LEFT - 70.0, 0.5 * (TOP + BOTTOM)), HPos::Center)?;
            for (index, (name, points)) in self.groups.iter().enumerate() {
                let (colour, marker) = (palette::series(index), palette::series_marker(index));
                for &(x, y) in points {
                    if let [Some(x), Some(y)] = [scales[0].share(x), scales[1].share(y)] {
                        let place = (LEFT + x * (right - LEFT), BOTTOM - y * (BOTTOM - TOP));
                        marker.fill(root, fine(place), px(5.5).into(), colour)?;
                    }
                }
                let y = TOP + 12.0 + 24.0 * index as f64;
                marker.fill(root, fine((right + 24.0, y)), px(5.5).into(), colour)?;
                NAME.write(root, name, (right + 40.0, y), HPos::Left)?;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_points_make_a_picture() {
        for points in [vec![], vec![(1.0, 1.0)], vec![(f64::NAN, 1.0), (-1.0, f64::INFINITY), (2.0, 0.0)]] {
            for logarithmic in [[false, false], [true, true]] {
                let groups = vec![("λ = 0.01".into(), points.clone())];
                Scatter { groups, logarithmic, ..Scatter::default() }.draw().unwrap().png().unwrap();
            }
        }
    }
}

//! A chart of lines or points over two axes, each linear or logarithmic, with a legend beside it.

use super::marker::Marker;
use super::palette::{self, Rgb};
use super::pen::{Point, line, title};
use super::scale::{Axes, SMALL, Scale};
use super::{Picture, Side};
use crate::{Error, Figure};

/// What a chart shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chart {
    /// The title.
    pub title: String,
    /// The names of the horizontal and the vertical axis.
    pub axes: [String; 2],
    /// Which of them are logarithmic.
    pub logarithmic: [bool; 2],
    /// The lines, or the groups of points.
    pub lines: Vec<Line>,
    /// Points without lines between them; every group has its own colour and marker.
    pub scatter: bool,
    /// Numbers on the horizontal axis that are marked by strokes.
    pub marks: Vec<f64>,
}

/// A named line. A name that begins with that of a method, such as `LGRAWA, centre`, has the method's look. A point that is
/// not finite, or not positive on a logarithmic axis, leaves a gap.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    /// The name in the legend.
    pub name: String,
    /// The points, from left to right.
    pub points: Vec<Point>,
}

const SIZE: (u32, u32) = (900, 600);
/// The upper left corner and the bottom of the plot; its right side leaves room for the legend.
const CORNER: Point = (92.0, 56.0);
const BOTTOM: f64 = 536.0;
/// The width of a line's sample in the legend, with the space after it.
const SAMPLE: f64 = 34.0;

impl Chart {
    /// A chart of lines.
    pub fn new(title: &str, axes: [&str; 2], logarithmic: [bool; 2], lines: Vec<Line>) -> Self {
        let (title, axes) = (title.into(), axes.map(Into::into));
        Chart { title, axes, logarithmic, lines, ..Chart::default() }
    }

    /// The chart as a figure, with its title as the caption.
    pub fn figure(&self, name: &str) -> Result<Figure, Error> {
        Ok(Figure { name: name.into(), caption: self.title.clone(), picture: self.draw()? })
    }

    /// Draws the chart.
    pub fn draw(&self) -> Result<Picture, Error> {
        let numbers = |axis: usize| {
            let points = self.lines.iter().flat_map(|line| &line.points);
            points.map(move |point| if axis == 0 { point.0 } else { point.1 })
        };
        let widest = self.lines.iter().map(|line| SMALL.width(&line.name)).fold(0.0, f64::max);
        let right = (f64::from(SIZE.0) - widest - SAMPLE - 34.0).max(3.0 * CORNER.0);
        let scales = [0, 1].map(|axis| Scale::of(numbers(axis), self.logarithmic[axis]));
        let axes = Axes { low: CORNER, high: (right, BOTTOM), scales };
        let legend = right + 22.0;
        Picture::draw(SIZE.0, SIZE.1, |root| {
            title(root, &self.title, (CORNER.0, 28.0), f64::from(SIZE.0) - CORNER.0 - 12.0);
            axes.draw(root, [&self.axes[0], &self.axes[1]], true);
            for share in self.marks.iter().filter_map(|&mark| axes.scales[0].share(mark)) {
                let (x, _) = axes.inside(share.clamp(0.0, 1.0), 0.0);
                line(root, &[(x, BOTTOM), (x, BOTTOM - 14.0)], palette::FAINT, 1.0);
            }
            let places: Vec<Vec<Option<Point>>> = (self.lines.iter())
                .map(|line| line.points.iter().map(|&point| axes.at(point)).collect())
                .collect();
            let (looks, covers) = (self.looks(), covers(&places));
            for (index, (shown, points)) in self.lines.iter().zip(&places).enumerate() {
                let (marker, colour) = looks[index];
                // Wider than the lines upon it, so that it is seen on both sides of them.
                let wider = if self.scatter { 0.0 } else { covers[index].min(MOST) as f64 };
                for piece in points.split(Option::is_none).filter(|_| !self.scatter) {
                    let piece: Vec<Point> = piece.iter().flatten().copied().collect();
                    line(root, &piece, colour, 1.8 + 2.4 * wider);
                }
                // Markers at some points, not the same for all lines, distinguish lines without colours. One line needs none.
                let every = if self.scatter { 1 } else { points.len().div_ceil(12).max(1) };
                let is_marked = self.scatter || self.lines.len() > 1;
                let y = CORNER.1 + 12.0 + 24.0 * index as f64;
                let sample = [(legend, y), (legend + 26.0, y)];
                if !self.scatter {
                    line(root, &sample, colour, 1.8);
                }
                let radius = if self.scatter { 5.5 } else { 5.0 };
                let marked = points.iter().skip(index % every).step_by(every).flatten();
                for at in marked.filter(|_| is_marked) {
                    marker.fill(root, *at, radius + 2.4 * wider, colour);
                }
                if is_marked {
                    marker.fill(root, (legend + 13.0, y), radius, colour);
                }
                SMALL.write(root, &shown.name, (legend + SAMPLE, y), Side::Left);
            }
            Ok(())
        })
    }

    /// Marker and colour of each line.
    fn looks(&self) -> Vec<(Marker, Rgb)> {
        if self.scatter {
            let each = 0..self.lines.len();
            return each.map(|index| (palette::series_marker(index), palette::series(index))).collect();
        }
        let methods: Vec<String> = self.lines.iter().map(|line| method_of(&line.name)).collect();
        palette::looks(&methods.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

/// A line is widened for so many lines upon it.
const MOST: usize = 4;

/// How many of the lines drawn after each one run over a stretch of it: two points that follow each other coincide.
fn covers(lines: &[Vec<Option<Point>>]) -> Vec<usize> {
    let near = |a: &Point, b: &Point| (a.0 - b.0).abs() < 1.0 && (a.1 - b.1).abs() < 2.0;
    let runs_over = |over: &Vec<Option<Point>>, under: &Vec<Option<Point>>| {
        let mut both = over.iter().map(|a| {
            let is_there = |b: &Option<Point>| a.as_ref().zip(b.as_ref()).is_some_and(|(a, b)| near(a, b));
            under.iter().any(is_there)
        });
        let mut before = false;
        both.any(|now| std::mem::replace(&mut before, now) && now)
    };
    let count = |(index, under)| lines[index + 1..].iter().filter(|over| runs_over(over, under)).count();
    lines.iter().enumerate().map(count).collect()
}

/// `LGRAWA, centre` is a line of `lgrawa`, and `DP+SGD` one of `dp-sgd`.
fn method_of(name: &str) -> String {
    name.split([',', ' ']).next().unwrap_or(name).to_lowercase().replace('+', "-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use grawa_core::Name;

    #[test]
    fn any_numbers_make_a_chart() {
        for points in [
            vec![],
            vec![(0.0, 0.0)],
            vec![(f64::NAN, 1.0), (1.0, f64::INFINITY), (-1.0, 2.0)],
            vec![(1e300, 1e-300); 3],
        ] {
            for logarithmic in [[false, false], [true, true]] {
                for scatter in [false, true] {
                    let lines = vec![Line { name: "mean, centre".into(), points: points.clone() }];
                    Chart { lines, logarithmic, scatter, ..Chart::default() }.draw().unwrap().png().unwrap();
                }
            }
        }
    }

    #[test]
    fn lines_of_no_method_differ() {
        let named = |name: &str| Line { name: name.into(), ..Line::default() };
        let lines = ["loss", "lgrawa", "loss", "error", "easgd"].map(named).into();
        let chart = Chart { lines, ..Chart::default() };
        let looks = chart.looks();
        let known = palette::look("easgd");
        assert_eq!(looks[4], (known.marker, known.colour));
        // The same name again has another marker, and a lighter colour.
        assert_eq!(looks[2].1, palette::mix(looks[0].1, palette::WHITE, 0.33));
        assert!(looks[0].0 != looks[3].0 && looks[0].1 != looks[3].1 && looks[2].0 != looks[0].0);
        assert!(Name::ALL.iter().all(|name| method_of(name.title()) == name.as_str()));
    }

    #[test]
    fn lines_know_how_many_cover_them() {
        let line = |ys: [f64; 3]| (0..3).map(|x| Some((50.0 * f64::from(x), ys[x as usize]))).collect();
        let mut lines: Vec<Vec<Option<Point>>> =
            [[9.0, 9.0, 30.0], [9.0, 9.0, 9.0], [0.0, 9.0, 60.0], [9.5, 9.5, 30.5]].map(line).into();
        // They cross the third, and no more.
        assert_eq!(covers(&lines), [2, 1, 0, 0]);
        // A gap is no stretch.
        lines[3][0] = None;
        assert_eq!(covers(&lines), [2, 0, 0, 0]);
        assert_eq!(covers(&[]), [0; 0]);
    }

    #[test]
    fn a_line_of_a_method_has_its_colour() {
        let chart = Chart {
            lines: vec![Line { name: "lgrawa".into(), points: vec![(0.0, 0.0), (1.0, 1.0)] }],
            ..Chart::default()
        };
        let colour = palette::look("lgrawa").colour;
        assert!(chart.draw().unwrap().svg().contains(&palette::css(colour)));
    }
}

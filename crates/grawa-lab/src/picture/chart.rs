//! A chart of lines over two axes, each linear or logarithmic, with a legend beside it.

use plotters::style::WHITE;
use plotters::style::text_anchor::HPos;

use super::marker::Marker;
use super::palette::Look;
use super::pen::{Point, Text, fine, line};
use super::{Canvas, Error, Picture, palette, px};

/// What a chart shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chart {
    /// What stands above it.
    pub title: String,
    /// What the horizontal and the vertical axis show.
    pub axes: [String; 2],
    /// Which of them are logarithmic.
    pub logarithmic: [bool; 2],
    /// The lines.
    pub lines: Vec<Line>,
    /// Places on the horizontal axis that are marked by strokes.
    pub marks: Vec<f64>,
}

/// A named line. A name that begins with that of a method, such as `LGRAWA, centre`, has the method's look; a point
/// that is not finite, or not positive on a logarithmic axis, leaves a gap.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    /// What the legend calls it.
    pub name: String,
    /// Its points, from left to right.
    pub points: Vec<Point>,
}

const SIZE: (u32, u32) = (900, 600);
/// The plot's left, top and bottom; its right side leaves room for the legend.
const LEFT: f64 = 92.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 536.0;
/// The text of the legend, and the room a line's sample takes before it.
const NAME: Text = Text::of(13.0);
const SAMPLE: f64 = 34.0;

impl Chart {
    /// Draws the chart.
    pub fn draw(&self) -> Result<Picture, Error> {
        let scales = [0, 1].map(|axis| Scale::of(self.numbers(axis), self.logarithmic[axis]));
        let widest = self.lines.iter().map(|line| NAME.width(&line.name)).fold(0.0, f64::max);
        let right = (f64::from(SIZE.0) - widest - SAMPLE - 34.0).max(3.0 * LEFT);
        let legend = right + 22.0;
        let place = |(x, y): Point| -> Option<Point> {
            Some((LEFT + scales[0].share(x)? * (right - LEFT), BOTTOM - scales[1].share(y)? * (BOTTOM - TOP)))
        };
        Picture::draw_fine(SIZE.0, SIZE.1, |root| {
            root.fill(&WHITE)?;
            // As large as the width allows.
            let room = f64::from(SIZE.0) - LEFT - 12.0;
            let size = 18.0 * (room / Text::of(18.0).bold().width(&self.title).max(room));
            Text::of(size).bold().write(root, &self.title, (LEFT, 28.0), HPos::Left)?;
            self.draw_axes(root, &scales, right)?;
            for share in self.marks.iter().filter_map(|&mark| scales[0].share(mark)) {
                let x = LEFT + share.clamp(0.0, 1.0) * (right - LEFT);
                line(root, &[(x, BOTTOM), (x, BOTTOM - 14.0)], palette::FAINT, 1.0)?;
            }
            for (index, shown) in self.lines.iter().enumerate() {
                let method = method_of(&shown.name);
                let look = look(&self.lines[..index], &method);
                // Several lines of one method are lighter and lighter.
                let earlier =
                    self.lines[..index].iter().filter(|line| method_of(&line.name) == method).count();
                let colour = palette::mix(look.colour, WHITE, (0.33 * earlier as f64).min(0.7));
                let places: Vec<Option<Point>> = shown.points.iter().map(|&point| place(point)).collect();
                for piece in places.split(Option::is_none) {
                    line(root, &piece.iter().flatten().copied().collect::<Vec<_>>(), colour, 1.8)?;
                }
                // Marks at some places, not the same for all lines, tell lines apart without colours. One line needs none.
                let every = places.len().div_ceil(12).max(1);
                let marked = if self.lines.len() > 1 { &places[..] } else { &[] };
                for at in marked.iter().skip(index % every).step_by(every).flatten() {
                    look.marker.fill(root, fine(*at), px(5.0).into(), colour)?;
                }
                let y = TOP + 12.0 + 24.0 * index as f64;
                line(root, &[(legend, y), (legend + 26.0, y)], colour, 1.8)?;
                if self.lines.len() > 1 {
                    look.marker.fill(root, fine((legend + 13.0, y)), px(5.0).into(), colour)?;
                }
                NAME.write(root, &shown.name, (legend + SAMPLE, y), HPos::Left)?;
            }
            Ok(())
        })
    }

    fn numbers(&self, axis: usize) -> impl Iterator<Item = f64> + '_ {
        self.lines
            .iter()
            .flat_map(|line| &line.points)
            .map(move |point| if axis == 0 { point.0 } else { point.1 })
    }

    fn draw_axes(&self, root: &Canvas<'_>, scales: &[Scale; 2], right: f64) -> Result<(), Error> {
        let grid = palette::mix(palette::HAIR, WHITE, 0.6);
        for (share, text) in scales[0].ticks() {
            let x = LEFT + share * (right - LEFT);
            line(root, &[(x, TOP), (x, BOTTOM)], grid, 0.8)?;
            line(root, &[(x, BOTTOM), (x, BOTTOM + 5.0)], palette::INK, 1.0)?;
            NAME.write(root, &text, (x, BOTTOM + 16.0), HPos::Center)?;
        }
        for (share, text) in scales[1].ticks() {
            let y = BOTTOM - share * (BOTTOM - TOP);
            line(root, &[(LEFT, y), (right, y)], grid, 0.8)?;
            line(root, &[(LEFT - 5.0, y), (LEFT, y)], palette::INK, 1.0)?;
            NAME.write(root, &text, (LEFT - 9.0, y), HPos::Right)?;
        }
        let frame = [(LEFT, TOP), (right, TOP), (right, BOTTOM), (LEFT, BOTTOM), (LEFT, TOP)];
        line(root, &frame, palette::INK, 1.0)?;
        Text::of(15.0).write(root, &self.axes[0], (0.5 * (LEFT + right), BOTTOM + 42.0), HPos::Center)?;
        Text::of(15.0).upward().write(root, &self.axes[1], (LEFT - 70.0, 0.5 * (TOP + BOTTOM)), HPos::Center)
    }
}

/// The look of a line after others. Names that are no method's have looks in their order.
fn look<'a>(before: &[Line], method: &'a str) -> Look<'a> {
    let is_other = |name: &String| palette::rank(name) == palette::rank("");
    let mut others: Vec<String> = before.iter().map(|line| method_of(&line.name)).filter(is_other).collect();
    others.dedup();
    let own = palette::look(method);
    match others.iter().filter(|other| *other != method).count() {
        number @ 1.. if is_other(&method.to_owned()) => Look {
            colour: palette::series(number - 1),
            marker: [Marker::Square, Marker::Circle, Marker::Diamond, Marker::Up][(number - 1) % 4],
            ..own
        },
        _ => own,
    }
}

/// `LGRAWA, centre` is a line of `lgrawa`, and `DP+SGD` one of `dp-sgd`.
fn method_of(name: &str) -> String {
    name.split([',', ' ']).next().unwrap_or(name).to_lowercase().replace('+', "-")
}

/// The range of an axis.
#[derive(Debug)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
}

impl Scale {
    pub(super) fn of(numbers: impl Iterator<Item = f64>, logarithmic: bool) -> Self {
        let usable = |x: &f64| x.is_finite() && (!logarithmic || *x > 0.0);
        let scaled = |x: f64| if logarithmic { libm::log10(x) } else { x };
        let (low, high) = numbers
            .filter(usable)
            .map(scaled)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
        let (low, high) = if low <= high { (low, high) } else { (0.0, 1.0) };
        let margin = if high > low { 0.04 * (high - low) } else { 0.5 };
        Scale { low: low - margin, high: high + margin, logarithmic }
    }

    /// From the first of some numbers to the last, without a margin.
    pub(super) fn exactly(numbers: &[f64]) -> Self {
        let (low, high) = match numbers {
            [first, .., last] if first < last => (*first, *last),
            _ => (0.0, 1.0),
        };
        Scale { low, high, logarithmic: false }
    }

    /// Where a number lies, from 0 to 1.
    pub(super) fn share(&self, x: f64) -> Option<f64> {
        let scaled = if self.logarithmic { libm::log10(x) } else { x };
        scaled.is_finite().then(|| (scaled - self.low) / (self.high - self.low))
    }

    /// Round numbers along the axis, with their places.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        let span = self.high - self.low;
        let place = |at: f64| (at - self.low) / span;
        if self.logarithmic && span < 2.0 {
            // Within two decades: 1, 2 and 5 times the powers of ten, or every digit where that is too few.
            let digits: &[f64] =
                if span < 0.7 { &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0] } else { &[1.0, 2.0, 5.0] };
            let decades = libm::floor(self.low) as i32..=libm::floor(self.high) as i32;
            let numbers = decades.flat_map(|decade| digits.iter().map(move |digit| (decade, digit)));
            let ticks = numbers.map(|(decade, &digit)| {
                let at = f64::from(decade) + libm::log10(digit);
                (
                    place(at),
                    if (-3..4).contains(&decade) {
                        short(digit, decade)
                    } else {
                        format!("{digit}·{}", power(decade.into()))
                    },
                )
            });
            return ticks.filter(|(share, _)| (0.0..=1.0).contains(share)).collect();
        }
        let step = if self.logarithmic { libm::ceil(span / 8.0) } else { round_step(span / 6.0) };
        let first = libm::ceil(self.low / step);
        let count = libm::floor(self.high / step) - first;
        (0..=count.clamp(0.0, 20.0) as i32)
            .map(|i| (first + f64::from(i)) * step)
            .map(|at| (place(at), if self.logarithmic { power(at) } else { plain(at, step) }))
            .collect()
    }
}

/// A digit times a power of ten, written out.
fn short(digit: f64, decade: i32) -> String {
    let places = (-decade).max(0) as usize;
    format!("{:.places$}", digit * libm::pow(10.0, decade.into()))
}

/// 1, 2 or 5 times a power of ten, at least as large.
fn round_step(least: f64) -> f64 {
    let unit = libm::pow(10.0, libm::floor(libm::log10(least)));
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|times| times * unit)
        .find(|step| *step >= least)
        .unwrap_or(10.0 * unit)
}

fn power(exponent: f64) -> String {
    let raised = |c: char| match c {
        '-' => '⁻',
        '0' => '⁰',
        '1' => '¹',
        '2' => '²',
        '3' => '³',
        other => char::from_u32(u32::from('⁰') + u32::from(other) - u32::from('0')).unwrap_or(other),
    };
    match exponent as i32 {
        0 => "1".into(),
        1 => "10".into(),
        exponent => format!("10{}", exponent.to_string().chars().map(raised).collect::<String>()),
    }
}

fn plain(x: f64, step: f64) -> String {
    let places = (-libm::floor(libm::log10(step))).clamp(0.0, 9.0) as usize;
    // Rounding can leave −0.
    format!("{:.places$}", x + 0.0).replace('-', "−")
}

#[cfg(test)]
mod tests {
    use super::*;
    use grawa_core::Name;

    #[test]
    fn ticks_are_round_numbers_inside_the_axis() {
        let texts = |scale: &Scale| scale.ticks().into_iter().map(|tick| tick.1).collect::<Vec<_>>();
        let decades = Scale::of([1e-3, 1e2].into_iter(), true);
        assert_eq!(texts(&decades), ["10⁻³", "10⁻²", "10⁻¹", "1", "10", "10²"]);
        let narrow = Scale::of([0.004, 0.009].into_iter(), true);
        assert_eq!(texts(&narrow), ["0.004", "0.005", "0.006", "0.007", "0.008", "0.009"]);
        let one_decade = Scale::of([30.0, 500.0].into_iter(), true);
        assert_eq!(texts(&one_decade), ["50", "100", "200", "500"]);
        let plain = Scale::of([-1.0, 1.0].into_iter(), false);
        assert_eq!(texts(&plain), ["−1.0", "−0.5", "0.0", "0.5", "1.0"]);
        assert!(plain.ticks().iter().all(|(share, _)| (0.0..=1.0).contains(share)));
    }

    #[test]
    fn any_numbers_make_a_chart() {
        for points in [
            vec![],
            vec![(0.0, 0.0)],
            vec![(f64::NAN, 1.0), (1.0, f64::INFINITY), (-1.0, 2.0)],
            vec![(1e300, 1e-300); 3],
        ] {
            for logarithmic in [[false, false], [true, true]] {
                let lines = vec![Line { name: "mean, centre".into(), points: points.clone() }];
                Chart { lines, logarithmic, ..Chart::default() }.draw().unwrap().png().unwrap();
            }
        }
    }

    #[test]
    fn lines_of_no_method_differ() {
        let named = |name: &str| Line { name: name.into(), ..Line::default() };
        let before = [named("loss"), named("lgrawa")];
        let (first, second) = (look(&[], "loss"), look(&before, "error"));
        assert!(first.colour != second.colour && first.marker != second.marker);
        assert_eq!(look(&before, "loss"), first);
        assert_eq!(look(&before, "easgd"), palette::look("easgd"));
        assert!(Name::ALL.iter().all(|name| method_of(name.title()) == name.as_str()));
    }

    #[test]
    fn a_line_of_a_method_has_its_colour() {
        let chart = Chart {
            lines: vec![Line { name: "lgrawa".into(), points: vec![(0.0, 0.0), (1.0, 1.0)] }],
            ..Chart::default()
        };
        let colour = palette::look("lgrawa").colour;
        assert!(
            chart
                .draw()
                .unwrap()
                .svg()
                .contains(&format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2))
        );
    }
}

//! The range of an axis with round tick marks, and the axes of a plot.

use super::pen::{self, Point, Text, line};
use super::{Canvas, Side, palette};

/// The text of ticks and legends.
pub(super) const SMALL: Text = Text::of(13.0);

/// The rectangle of a plot in pixels, and the scales of its horizontal and vertical axis.
pub(super) struct Axes {
    pub(super) low: Point,
    pub(super) high: Point,
    pub(super) scales: [Scale; 2],
}

impl Axes {
    /// The position of shares of the two axes, in pixels.
    pub(super) fn inside(&self, along: f64, up: f64) -> Point {
        let (low, high) = (self.low, self.high);
        (low.0 + along * (high.0 - low.0), high.1 - up * (high.1 - low.1))
    }

    /// The position of a pair of numbers; none where it has none on a logarithmic axis.
    pub(super) fn at(&self, (x, y): Point) -> Option<Point> {
        Some(self.inside(self.scales[0].share(x)?, self.scales[1].share(y)?))
    }

    /// Draws ticks, frame and names, and a grid where asked for.
    pub(super) fn draw(&self, root: &Canvas, names: [&str; 2], grid: bool) {
        let (low, high) = (self.low, self.high);
        let faint = palette::mix(palette::HAIR, palette::WHITE, 0.6);
        for (share, text) in self.scales[0].ticks() {
            let (x, _) = self.inside(share, 0.0);
            if grid {
                line(root, &[(x, low.1), (x, high.1)], faint, 0.8);
            }
            line(root, &[(x, high.1), (x, high.1 + 5.0)], palette::INK, 1.0);
            SMALL.write(root, &text, (x, high.1 + 16.0), Side::Centre);
        }
        for (share, text) in self.scales[1].ticks() {
            let (_, y) = self.inside(0.0, share);
            if grid {
                line(root, &[(low.0, y), (high.0, y)], faint, 0.8);
            }
            line(root, &[(low.0 - 5.0, y), (low.0, y)], palette::INK, 1.0);
            SMALL.write(root, &text, (low.0 - 9.0, y), Side::Right);
        }
        pen::frame(root, low, high);
        let name = Text::of(15.0);
        name.write(root, names[0], (0.5 * (low.0 + high.0), high.1 + 42.0), Side::Centre);
        name.upward().write(root, names[1], (low.0 - 70.0, 0.5 * (low.1 + high.1)), Side::Centre);
    }
}

/// The range of an axis.
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

    /// From the first number to the last, without a margin.
    pub(super) fn exactly(numbers: &[f64]) -> Self {
        let (low, high) = match numbers {
            [first, .., last] if first < last => (*first, *last),
            _ => (0.0, 1.0),
        };
        Scale { low, high, logarithmic: false }
    }

    /// The position of a number, from 0 to 1.
    pub(super) fn share(&self, x: f64) -> Option<f64> {
        let scaled = if self.logarithmic { libm::log10(x) } else { x };
        scaled.is_finite().then(|| (scaled - self.low) / (self.high - self.low))
    }

    /// Round numbers along the axis, with their positions.
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
                let small = (-3..4).contains(&decade);
                let text =
                    if small { short(digit, decade) } else { format!("{digit}·{}", power(decade.into())) };
                (place(at), text)
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
    [1.0, 2.0, 5.0].map(|times| times * unit).into_iter().find(|step| *step >= least).unwrap_or(10.0 * unit)
}

fn power(exponent: f64) -> String {
    let digit = |c: char| "⁰¹²³⁴⁵⁶⁷⁸⁹".chars().nth(c.to_digit(10)? as usize);
    match exponent as i32 {
        0 => "1".into(),
        1 => "10".into(),
        exponent => {
            let raised = exponent.to_string().chars().map(|c| digit(c).unwrap_or('⁻')).collect::<String>();
            format!("10{raised}")
        }
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
}

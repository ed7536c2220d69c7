//! Results as plain data: tables of labels, numbers, and estimates with their errors.
//!
//! A cell knows its number to full precision; printing rounds it, CSV does not.

use super::estimate::{Estimate, Frequency};
use std::fmt;

/// One entry of a table.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Where there is nothing to say.
    Nothing,
    /// A label.
    Text(String),
    /// An exact or computed number.
    Number(f64),
    /// A measured number with its standard error.
    Estimate(Estimate),
    /// How often something held, with its 95 % interval.
    Frequency(Frequency),
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Cell::Text(text.into())
    }
}

impl From<f64> for Cell {
    fn from(number: f64) -> Self {
        Cell::Number(number)
    }
}

impl From<Estimate> for Cell {
    fn from(estimate: Estimate) -> Self {
        if estimate.value.is_nan() { Cell::Nothing } else { Cell::Estimate(estimate) }
    }
}

impl From<Frequency> for Cell {
    fn from(share: Frequency) -> Self {
        Cell::Frequency(share)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cell::Text(text) => f.write_str(text),
            Cell::Number(number) => f.write_str(&short(*number)),
            Cell::Nothing => f.write_str("–"),
            Cell::Estimate(Estimate { value, error }) => {
                // Two digits of the error, and as many places of the value.
                let places = if *error > 0.0 { (1.0 - error.log10().floor()).clamp(0.0, 9.0) } else { 3.0 };
                write!(f, "{value:.0$} ± {error:.0$}", places as usize)
            }
            Cell::Frequency(share) => {
                let (low, high) = share.interval();
                write!(f, "{:.1} % ({:.1}–{:.1})", 100.0 * share.value(), 100.0 * low, 100.0 * high)
            }
        }
    }
}

/// Three significant digits.
fn short(number: f64) -> String {
    let size = number.abs();
    match size {
        0.0 => "0".into(),
        s if !(1e-3..1e5).contains(&s) => format!("{number:.2e}"),
        s if s >= 100.0 || number.fract() == 0.0 => format!("{number:.0}"),
        _ => format!("{number:.0$}", (2.0 - size.log10().floor()) as usize),
    }
}

/// A table of results.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// A short name, fit for a file.
    pub name: &'static str,
    /// What stands above the table.
    pub title: String,
    /// What was done and how to read it.
    pub explanation: String,
    /// The columns' names.
    pub header: Vec<String>,
    /// The rows, each as long as the header.
    pub rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(super) fn new(
        name: &'static str,
        title: &str,
        explanation: impl Into<String>,
        header: &[&str],
        rows: Vec<Vec<Cell>>,
    ) -> Self {
        let header = header.iter().map(|&name| name.into()).collect();
        Table { name, title: title.into(), explanation: explanation.into(), header, rows }
    }

    /// Rounded, for people.
    pub fn shown(&self) -> crate::Table {
        let mut table = crate::Table::new(self.header.clone());
        for row in &self.rows {
            table.push(row.iter().map(Cell::to_string));
        }
        table
    }

    /// To full precision, for programs: an estimate also fills a column for its error, a share two for its interval.
    pub fn exact(&self) -> crate::Table {
        let widest =
            |column: usize| (self.rows.iter().map(|row| fields(&row[column]).len())).max().unwrap_or(1);
        let widths: Vec<usize> = (0..self.header.len()).map(widest).collect();
        let mut table = crate::Table::new(self.header.iter().zip(&widths).flat_map(|(name, &width)| {
            let more: &[&str] = [&[][..], &[" error"], &[" low", " high"]][width - 1];
            [""].iter().chain(more).map(move |end| format!("{name}{end}"))
        }));
        for row in &self.rows {
            table.push(row.iter().zip(&widths).flat_map(|(cell, &width)| {
                let mut fields = fields(cell);
                fields.resize(width, String::new());
                fields
            }));
        }
        table
    }
}

fn fields(cell: &Cell) -> Vec<String> {
    let number = |x: f64| x.to_string();
    match cell {
        Cell::Nothing => vec![String::new()],
        Cell::Text(text) => vec![text.clone()],
        Cell::Number(x) => vec![number(*x)],
        Cell::Estimate(Estimate { value, error }) => vec![number(*value), number(*error)],
        Cell::Frequency(share) => {
            let (low, high) = share.interval();
            [share.value(), low, high].map(number).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_prints_rounded_and_writes_exactly() {
        let estimate = Estimate { value: 1.234_567, error: 0.012_3 };
        let row = vec!["x".into(), estimate.into(), Frequency { hits: 1, trials: 2 }.into()];
        let table = Table::new("t", "", "", &["a, b", "c", "d"], vec![row]);
        let shown = table.shown().markdown();
        assert!(shown.contains("| 1.235 ± 0.012 | 50.0 % (9.5–90.5) |"), "{shown}");
        let csv = table.exact().csv();
        assert!(csv.starts_with("\"a, b\",c,c error,d,d low,d high\nx,1.234567,0.0123,0.5,0.09"), "{csv}");
    }

    #[test]
    fn numbers_are_short() {
        let all = [0.0, 4.0, 0.123_456, 12.345, 1234.5, 1e-7].map(short);
        assert_eq!(all, ["0", "4", "0.123", "12.3", "1234", "1.00e-7"]);
    }
}

//! Tables of results: labels, numbers, and estimates with their errors.
//!
//! A cell is rounded for people and exact for programs (CSV).

use super::estimate::{Estimate, Frequency};
use crate::{Table, TableOutput};

/// One entry of a table: for people, and for programs. An estimate has a field for its error, a share two for its interval.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cell {
    shown: String,
    fields: Vec<String>,
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Cell { shown: text.into(), fields: vec![text.into()] }
    }
}

impl From<f64> for Cell {
    fn from(number: f64) -> Self {
        Cell { shown: short(number), fields: vec![number.to_string()] }
    }
}

impl From<Estimate> for Cell {
    fn from(Estimate { value, error }: Estimate) -> Self {
        if value.is_nan() {
            return Cell { shown: "–".into(), fields: vec![String::new()] };
        }
        // Two digits of the error, and as many places of the value.
        let places = if error > 0.0 { (1.0 - error.log10().floor()).clamp(0.0, 9.0) } else { 3.0 };
        let shown = format!("{value:.0$} ± {error:.0$}", places as usize);
        Cell { shown, fields: [value, error].map(|x| x.to_string()).into() }
    }
}

impl From<Frequency> for Cell {
    fn from(share: Frequency) -> Self {
        let (low, high) = share.interval();
        let shown = format!("{:.1} % ({:.1}–{:.1})", 100.0 * share.value(), 100.0 * low, 100.0 * high);
        Cell { shown, fields: [share.value(), low, high].map(|x| x.to_string()).into() }
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

/// A table for people, and the same to full precision for programs, where a column is as wide as its widest cell.
pub(super) fn table(
    name: &str,
    title: &str,
    caption: impl Into<String>,
    header: &[&str],
    rows: Vec<Vec<Cell>>,
) -> TableOutput {
    let widest = |column: usize| rows.iter().map(|row| row[column].fields.len()).max().unwrap_or(1);
    let widths: Vec<usize> = (0..header.len()).map(widest).collect();
    let mut exact = Table::new(header.iter().zip(&widths).flat_map(|(name, &width)| {
        let ends: &[&str] = [&[""][..], &["", " error"], &["", " low", " high"]][width - 1];
        ends.iter().map(move |end| format!("{name}{end}"))
    }));
    let mut table = Table::new(header.iter().copied());
    for row in rows {
        exact.push(row.iter().zip(&widths).flat_map(|(cell, &width)| {
            let mut fields = cell.fields.clone();
            fields.resize(width, String::new());
            fields
        }));
        table.push(row.into_iter().map(|cell| cell.shown));
    }
    let (name, title, caption) = (name.into(), title.into(), caption.into());
    TableOutput { name, title, caption, table, bold: Vec::new(), exact: Some(exact) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_prints_rounded_and_writes_exactly() {
        let estimate = Estimate { value: 1.234_567, error: 0.012_3 };
        let row = vec!["x".into(), estimate.into(), Frequency { hits: 1, trials: 2 }.into()];
        let table = table("t", "", "", &["a, b", "c", "d"], vec![row]);
        let shown = table.markdown();
        assert!(shown.contains("| 1.235 ± 0.012 | 50.0 % (9.5–90.5) |"), "{shown}");
        let csv = table.exact.unwrap().csv();
        assert!(csv.starts_with("\"a, b\",c,c error,d,d low,d high\nx,1.234567,0.0123,0.5,0.09"), "{csv}");
    }

    #[test]
    fn numbers_are_short() {
        let all = [0.0, 4.0, 0.123_456, 12.345, 1234.5, 1e-7].map(short);
        assert_eq!(all, ["0", "4", "0.123", "12.3", "1234", "1.00e-7"]);
    }
}

//! A table of strings, written for the terminal, as Markdown or as CSV.

/// A header and rows with one cell for each column.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// The names of the columns.
    pub header: Vec<String>,
    /// The cells, row by row.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns and no rows.
    pub fn new<S: Into<String>>(header: impl IntoIterator<Item = S>) -> Self {
        Table { header: header.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// A table of one row: the columns' names and cells.
    pub fn of_one_row<const N: usize>(columns: [(&str, String); N]) -> Self {
        let (header, row) = columns.map(|(name, cell)| (name.to_owned(), cell)).into_iter().unzip();
        Table { header, rows: vec![row] }
    }

    /// Adds a row.
    pub fn push<S: Into<String>>(&mut self, row: impl IntoIterator<Item = S>) {
        self.rows.push(row.into_iter().map(Into::into).collect());
    }

    /// Aligned text for a terminal. Columns of numbers are right-aligned, others left-aligned.
    pub fn text(&self) -> String {
        let lines = || std::iter::once(&self.header).chain(&self.rows);
        let width = |column: usize| {
            lines().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let layout: Vec<(usize, bool)> =
            (0..self.header.len()).map(|column| (width(column), self.is_number(column))).collect();
        let render = |row: &Vec<String>| {
            let cells = row.iter().zip(&layout).map(|(cell, &(width, right))| {
                let gap = " ".repeat(width - cell.chars().count());
                if right { gap + cell } else { format!("{cell}{gap}") }
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
        };
        let rule = layout.iter().map(|(width, _)| "─".repeat(*width)).collect::<Vec<_>>().join("──") + "\n";
        render(&self.header) + &rule + &self.rows.iter().map(render).collect::<String>()
    }

    /// GitHub Markdown.
    pub fn markdown(&self) -> String {
        let line = |row: &Vec<String>| {
            format!(
                "| {} |\n",
                row.iter().map(|cell| cell.replace('|', "\\|")).collect::<Vec<_>>().join(" | ")
            )
        };
        let rule: Vec<&str> = (0..self.header.len())
            .map(|column| if self.is_number(column) { "---:" } else { "---" })
            .collect();
        format!(
            "{}| {} |\n{}",
            line(&self.header),
            rule.join(" | "),
            self.rows.iter().map(line).collect::<String>()
        )
    }

    /// CSV (RFC 4180).
    pub fn csv(&self) -> String {
        let cell = |cell: &String| match cell.contains([',', '"', '\n', '\r']) {
            true => format!("\"{}\"", cell.replace('"', "\"\"")),
            false => cell.clone(),
        };
        let line = |row: &Vec<String>| row.iter().map(cell).collect::<Vec<_>>().join(",") + "\n";
        std::iter::once(&self.header).chain(&self.rows).map(line).collect()
    }

    fn is_number(&self, column: usize) -> bool {
        // Bold numbers are numbers too.
        let starts_like_one = |cell: &String| {
            let cell = cell.trim_start_matches('*');
            cell.starts_with(|c: char| c.is_ascii_digit() || "-−+.(<≥≤".contains(c)) || cell.is_empty()
        };
        self.rows.iter().filter_map(|row| row.get(column)).all(starts_like_one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(["method", "error"]);
        table.push(["é|a", "−1.5"]);
        table.push(["b,\"c\"", "10.25"]);
        table
    }

    #[test]
    fn text_is_aligned() {
        assert_eq!(table().text(), "method  error\n─────────────\né|a      −1.5\nb,\"c\"   10.25\n");
    }

    #[test]
    fn csv_quotes_what_needs_it() {
        assert_eq!(table().csv(), "method,error\né|a,−1.5\n\"b,\"\"c\"\"\",10.25\n");
    }

    #[test]
    fn bold_numbers_are_numbers() {
        let mut table = Table::new(["a", "b"]);
        table.push(["x", "**1.5**"]);
        table.push(["y", "12"]);
        assert!(table.markdown().contains("| --- | ---: |"), "{}", table.markdown());
    }

    #[test]
    fn markdown_escapes_bars() {
        assert_eq!(
            table().markdown(),
            "| method | error |\n| --- | ---: |\n| é\\|a | −1.5 |\n| b,\"c\" | 10.25 |\n"
        );
    }
}

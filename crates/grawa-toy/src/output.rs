//! The output of an experiment: tables with captions, and pictures, as Markdown, CSV, LaTeX, SVG, PNG and one page.

use crate::page::page;
use crate::picture::Picture;
use crate::{Error, Folder, Table};

/// A table with its title and caption.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TableOutput {
    /// A short name, fit for a file.
    pub name: String,
    /// The title.
    pub title: String,
    /// How to read it.
    pub caption: String,
    /// The cells.
    pub table: Table,
    /// Cells in bold: row and column.
    pub bold: Vec<(usize, usize)>,
    /// The same for programs, where the cells are rounded.
    pub exact: Option<Table>,
}

/// A picture with its caption, which also describes it to screen readers.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// A short name, fit for a file.
    pub name: String,
    /// The caption.
    pub caption: String,
    /// The picture.
    pub picture: Picture,
}

impl TableOutput {
    /// For a terminal, bold cells between asterisks.
    pub fn text(&self) -> String {
        format!("{}\n\n{}\n{}\n", self.title, self.marked("**", "**").text(), self.caption)
    }

    /// As Markdown.
    pub fn markdown(&self) -> String {
        format!("## {}\n\n{}\n{}\n", self.title, self.marked("**", "**").markdown(), self.caption)
    }

    /// As LaTeX, with the rules of the package booktabs.
    pub fn latex(&self) -> String {
        let body = self.marked("\u{1}", "\u{2}");
        let line = |row: &Vec<String>| {
            row.iter().map(|cell| latex(cell)).collect::<Vec<_>>().join(" & ") + " \\\\\n"
        };
        let columns = "l".repeat(body.header.len());
        format!(
            "% Needs \\usepackage{{booktabs}}.\n\\begin{{table}}\n\\centering\n\\caption{{{}. {}}}\n\\begin{{tabular}}{{{columns}}}\n\\toprule\n{}\\midrule\n{}\\bottomrule\n\\end{{tabular}}\n\\end{{table}}\n",
            latex(&self.title),
            latex(&self.caption),
            line(&body.header),
            body.rows.iter().map(line).collect::<String>()
        )
    }

    /// The table with marks around its bold cells.
    fn marked(&self, before: &str, after: &str) -> Table {
        let mut table = self.table.clone();
        for &(row, column) in &self.bold {
            if let Some(cell) = table.rows.get_mut(row).and_then(|row| row.get_mut(column)) {
                *cell = format!("{before}{cell}{after}");
            }
        }
        table
    }
}

/// Text as LaTeX: ASCII, with mathematical symbols in math mode.
fn latex(text: &str) -> String {
    let mut tex = String::with_capacity(text.len());
    for sign in text.chars() {
        match sign {
            '\u{1}' => tex.push_str("\\textbf{"),
            '\u{2}' => tex.push('}'),
            '&' | '%' | '#' | '_' | '{' | '}' | '$' => tex.extend(['\\', sign]),
            '\\' => tex.push_str("\\textbackslash{}"),
            '~' => tex.push_str("\\textasciitilde{}"),
            '^' => tex.push_str("\\textasciicircum{}"),
            '<' | '>' | '|' => tex.push_str(&format!("${sign}$")),
            sign if sign.is_ascii() => tex.push(sign),
            sign => match SYMBOLS.iter().find(|(known, _)| *known == sign) {
                Some((_, known)) => tex.push_str(known),
                None => tex.push('?'),
            },
        }
    }
    tex
}

/// The symbols that tables use.
#[rustfmt::skip]
const SYMBOLS: [(char, &str); 26] = [
    ('±', "$\\pm$"), ('−', "$-$"), ('–', "--"), ('×', "$\\times$"), ('·', "$\\cdot$"), ('τ', "$\\tau$"),
    ('λ', "$\\lambda$"), ('μ', "$\\mu$"), ('θ', "$\\theta$"), ('β', "$\\beta$"), ('ε', "$\\varepsilon$"),
    ('Σ', "$\\Sigma$"), ('√', "$\\surd$"), ('‖', "$\\|$"), ('²', "$^2$"), ('₁', "$_1$"), ('ₖ', "$_k$"),
    ('₀', "$_0$"), ('≤', "$\\le$"), ('≥', "$\\ge$"), ('≈', "$\\approx$"), ('→', "$\\to$"), ('’', "'"),
    ('“', "``"), ('”', "''"), ('…', "\\dots{}"),
];

/// Everything an experiment writes.
#[derive(Debug, Default, PartialEq)]
pub struct Output {
    /// The title.
    pub title: String,
    /// What was done.
    pub paragraphs: Vec<String>,
    /// The tables, the requested one first.
    pub tables: Vec<TableOutput>,
    /// The pictures.
    pub figures: Vec<Figure>,
    /// Further tables for programs, by the names of their files.
    pub data: Vec<(String, Table)>,
}

impl Output {
    /// Puts everything into a folder.
    pub fn put(&self, folder: &mut Folder) -> Result<(), Error> {
        let mut text = format!("# {}\n", self.title);
        self.paragraphs.iter().for_each(|paragraph| text += &format!("\n{paragraph}\n"));
        for table in &self.tables {
            text += &format!("\n{}", table.markdown());
            folder.put(format!("{}.csv", table.name), table.exact.as_ref().unwrap_or(&table.table).csv());
            folder.put(format!("{}.tex", table.name), table.latex());
        }
        for Figure { name, caption, .. } in &self.figures {
            text += &format!("\n![{caption}]({name}.svg)\n");
        }
        folder.put("tables.md", text);
        folder.put_pictures(&self.figures)?;
        for (name, table) in &self.data {
            folder.put(name.clone(), table.csv());
        }
        folder.put("index.html", page(self));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latex_is_plain_and_bold_where_it_should_be() {
        let mut table = Table::new(["method", "error_% ±"]);
        table.push(["LGRAWA & co", "8.93 ± 0.20"]);
        let output =
            TableOutput { table, bold: vec![(0, 1)], caption: "λ = {1}".into(), ..TableOutput::default() };
        let tex = output.latex();
        assert!(tex.is_ascii(), "{tex}");
        assert!(tex.contains("LGRAWA \\& co & \\textbf{8.93 $\\pm$ 0.20} \\\\"), "{tex}");
        assert!(tex.contains("error\\_\\% $\\pm$") && tex.contains("$\\lambda$ = \\{1\\}"), "{tex}");
        assert!(output.markdown().contains("| **8.93 ± 0.20** |"), "{}", output.markdown());
        assert!(output.table.csv().contains(",8.93 ± 0.20"));
    }
}

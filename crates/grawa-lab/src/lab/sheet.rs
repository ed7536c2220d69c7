//! What an experiment leaves: tables with captions, and pictures; as Markdown, CSV, LaTeX, SVG, PNG and one page.

use crate::picture::Picture;
use crate::{Error, Folder, Table, page};

/// A table with what belongs around it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sheet {
    /// A short name, fit for a file.
    pub name: String,
    /// What stands above.
    pub title: String,
    /// How to read it.
    pub caption: String,
    /// The cells.
    pub table: Table,
    /// Cells that are set in bold: row and column.
    pub bold: Vec<(usize, usize)>,
}

impl Sheet {
    /// For a terminal, bold cells between asterisks.
    pub fn text(&self) -> String {
        let table = self.marked(|cell| format!("**{cell}**"));
        format!("{}\n\n{}\n{}\n", self.title, table.text(), self.caption)
    }

    /// As Markdown.
    pub fn markdown(&self) -> String {
        format!(
            "## {}\n\n{}\n{}\n",
            self.title,
            self.marked(|cell| format!("**{cell}**")).markdown(),
            self.caption
        )
    }

    /// As LaTeX, with the rules of the package booktabs.
    pub fn latex(&self) -> String {
        let body = self.marked(|cell| format!("\u{1}{cell}\u{2}"));
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

    /// The table with its bold cells marked.
    fn marked(&self, mark: impl Fn(&str) -> String) -> Table {
        let mut table = self.table.clone();
        for &(row, column) in &self.bold {
            if let Some(cell) = table.rows.get_mut(row).and_then(|row| row.get_mut(column)) {
                *cell = mark(cell);
            }
        }
        table
    }
}

/// Text as LaTeX: plain ASCII, signs of mathematics in their mode.
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
            sign => match SIGNS.iter().find(|(known, _)| *known == sign) {
                Some((_, known)) => tex.push_str(known),
                None => tex.push('?'),
            },
        }
    }
    tex
}

/// The signs that tables use.
const SIGNS: [(char, &str); 26] = [
    ('±', "$\\pm$"),
    ('−', "$-$"),
    ('–', "--"),
    ('×', "$\\times$"),
    ('·', "$\\cdot$"),
    ('τ', "$\\tau$"),
    ('λ', "$\\lambda$"),
    ('μ', "$\\mu$"),
    ('θ', "$\\theta$"),
    ('β', "$\\beta$"),
    ('ε', "$\\varepsilon$"),
    ('Σ', "$\\Sigma$"),
    ('√', "$\\surd$"),
    ('‖', "$\\|$"),
    ('²', "$^2$"),
    ('₁', "$_1$"),
    ('ₖ', "$_k$"),
    ('₀', "$_0$"),
    ('≤', "$\\le$"),
    ('≥', "$\\ge$"),
    ('≈', "$\\approx$"),
    ('→', "$\\to$"),
    ('’', "'"),
    ('“', "``"),
    ('”', "''"),
    ('…', "\\dots{}"),
];

/// Everything an experiment leaves.
#[derive(Debug, Default)]
pub struct Output {
    /// What stands above all.
    pub title: String,
    /// The tables, the one that is asked for first.
    pub sheets: Vec<Sheet>,
    /// Pictures: a name fit for a file, what they show, the picture.
    pub pictures: Vec<(String, String, Picture)>,
    /// Every measurement, for programs.
    pub exact: Table,
    /// Further tables for programs, by the names of their files.
    pub data: Vec<(String, Table)>,
}

impl Output {
    /// Puts everything into a folder.
    pub fn put(&self, folder: &mut Folder) -> Result<(), Error> {
        let mut text = format!("# {}\n", self.title);
        for sheet in &self.sheets {
            text += &format!("\n{}", sheet.markdown());
            folder.put(format!("{}.csv", sheet.name), sheet.table.csv());
            folder.put(format!("{}.tex", sheet.name), sheet.latex());
        }
        for (name, caption, picture) in &self.pictures {
            text += &format!("\n![{caption}]({name}.svg)\n");
            folder.put(format!("{name}.svg"), picture.svg());
            folder.put(format!("{name}.png"), picture.png()?);
        }
        folder.put("tables.md", text);
        folder.put("cells.csv", self.exact.csv());
        for (name, table) in &self.data {
            folder.put(name.clone(), table.csv());
        }
        let figures: Vec<(String, &Picture)> =
            self.pictures.iter().map(|(_, caption, picture)| (caption.clone(), picture)).collect();
        let tables: Vec<page::Shown<'_>> = (self.sheets.iter())
            .map(|sheet| page::Shown {
                title: &sheet.title,
                caption: &sheet.caption,
                table: &sheet.table,
                bold: &sheet.bold,
            })
            .collect();
        folder.put("index.html", page::tables(&self.title, &tables, &figures));
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
        let sheet = Sheet { table, bold: vec![(0, 1)], caption: "λ = {1}".into(), ..Sheet::default() };
        let tex = sheet.latex();
        assert!(tex.is_ascii(), "{tex}");
        assert!(tex.contains("LGRAWA \\& co & \\textbf{8.93 $\\pm$ 0.20} \\\\"), "{tex}");
        assert!(tex.contains("error\\_\\% $\\pm$") && tex.contains("$\\lambda$ = \\{1\\}"), "{tex}");
        assert!(sheet.markdown().contains("| **8.93 ± 0.20** |"), "{}", sheet.markdown());
        assert!(sheet.table.csv().contains(",8.93 ± 0.20"));
    }
}

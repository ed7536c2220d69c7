//! The output of an experiment: tables with captions, and pictures, as Markdown, CSV, SVG, PNG and one page.

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
        format!("{}\n\n{}\n{}\n", self.title, self.marked().text(), self.caption)
    }

    /// As Markdown.
    pub fn markdown(&self) -> String {
        format!("## {}\n\n{}\n{}\n", self.title, self.marked().markdown(), self.caption)
    }

    /// The table with asterisks around its bold cells.
    fn marked(&self) -> Table {
        let mut table = self.table.clone();
        for &(row, column) in &self.bold {
            if let Some(cell) = table.rows.get_mut(row).and_then(|row| row.get_mut(column)) {
                *cell = format!("**{cell}**");
            }
        }
        table
    }
}

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
    fn bold_cells_are_marked_for_people_alone() {
        let mut table = Table::new(["method", "error"]);
        table.push(["LGRAWA", "8.93 ± 0.20"]);
        let output = TableOutput { table, bold: vec![(0, 1)], ..TableOutput::default() };
        assert!(output.markdown().contains("| **8.93 ± 0.20** |"), "{}", output.markdown());
        assert!(output.text().contains("**8.93 ± 0.20**"));
        assert!(output.table.csv().contains(",8.93 ± 0.20"));
    }
}

//! One self-contained HTML page for an experiment: text, tables and pictures. It loads nothing.
//!
//! The page works in light and dark mode, on a phone and on paper. Text arguments are always shown as text; pictures are
//! inline SVG.

use crate::Table;
use crate::picture::Picture;
use std::fmt::Write as _;

const STYLE: &str = include_str!("page.css");

/// A table on a page, with its heading and caption. Empty ones are left out.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// The heading.
    pub title: &'a str,
    /// How to read the table.
    pub caption: &'a str,
    /// The cells.
    pub table: &'a Table,
    /// Cells in bold: row and column.
    pub bold: &'a [(usize, usize)],
}

impl<'a> From<&'a Table> for Shown<'a> {
    fn from(table: &'a Table) -> Self {
        Shown { title: "", caption: "", table, bold: &[] }
    }
}

/// Makes a page: heading, paragraphs, tables, and pictures with captions, which also describe them to screen readers.
pub fn page(
    title: &str,
    paragraphs: &[String],
    tables: &[Shown<'_>],
    figures: &[(String, &Picture)],
) -> String {
    let mut html = begin(title, STYLE);
    // Writing to a string cannot fail.
    let paragraph = |html: &mut String, text: &str| {
        let _ = writeln!(html, "<p>{}</p>", escaped(text));
    };
    paragraphs.iter().for_each(|text| paragraph(&mut html, text));
    for shown in tables {
        if !shown.title.is_empty() {
            let _ = writeln!(html, "<h2>{}</h2>", escaped(shown.title));
        }
        write_table(&mut html, shown.table, shown.bold);
        if !shown.caption.is_empty() {
            paragraph(&mut html, shown.caption);
        }
    }
    html.reserve(figures.iter().map(|(_, picture)| picture.svg().len()).sum());
    for (caption, picture) in figures {
        let caption = escaped(caption);
        let svg = picture.svg().strip_prefix("<svg").unwrap_or_default();
        let _ = write!(
            html,
            "<figure>\n<svg role=\"img\" aria-label=\"{caption}\"{svg}<figcaption>{caption}</figcaption>\n</figure>\n"
        );
    }
    html + "</main>\n</body>\n</html>\n"
}

/// The head of a page with its style, and the heading.
pub fn begin(title: &str, style: &str) -> String {
    let title = escaped(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>{style}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
    )
}

/// Writes a table as HTML.
pub fn write_table(html: &mut String, table: &Table, bold: &[(usize, usize)]) {
    if table.header.is_empty() && table.rows.is_empty() {
        return;
    }
    html.push_str(
        "<div class=\"wide\" role=\"region\" aria-label=\"Results\" tabindex=\"0\">\n<table>\n<thead><tr>",
    );
    for cell in &table.header {
        let _ = write!(html, "<th scope=\"col\">{}</th>", escaped(cell));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for (number, row) in table.rows.iter().enumerate() {
        html.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            let cell = escaped(cell);
            let _ = match bold.contains(&(number, column)) {
                true => write!(html, "<td><b>{cell}</b></td>"),
                false => write!(html, "<td>{cell}</td>"),
            };
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody>\n</table>\n</div>\n");
}

/// Escapes text for HTML, also inside a quoted attribute.
pub fn escaped(text: &str) -> String {
    let signs = [('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&quot;"), ('\'', "&#39;")];
    signs.iter().fold(text.to_owned(), |html, (sign, name)| html.replace(*sign, name))
}

#[cfg(test)]
mod tests {
    use plotters::style::WHITE;

    use super::*;

    #[test]
    fn text_stays_text_everywhere() {
        let picture = Picture::draw(20, 10, |root| Ok(root.fill(&WHITE)?)).unwrap();
        let bad = "\"><script>alert('1')</script>&".to_string();
        let table = Table { header: vec![bad.clone()], rows: vec![vec![bad.clone()]] };
        let html = page(&bad, std::slice::from_ref(&bad), &[(&table).into()], &[(bad.clone(), &picture)]);
        assert!(!html.contains("<script") && !html.contains("\"><s"));
        // title, heading, paragraph, two cells, label and caption
        assert_eq!(html.matches("&quot;&gt;&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&amp;").count(), 7);
    }

    #[test]
    fn pictures_stand_inline_with_a_label_and_without_ids() {
        let picture = Picture::draw(20, 10, |root| Ok(root.fill(&WHITE)?)).unwrap();
        let html = page(
            "t",
            &[],
            &[(&Table::default()).into()],
            &[("one".into(), &picture), ("two".into(), &picture)],
        );
        assert_eq!(html.matches("<svg role=\"img\" aria-label=\"").count(), 2);
        assert_eq!(html.matches("</svg>").count(), 2);
        assert!(!html.contains(" id=") && !html.contains("<table"));
        // Nothing is fetched: the only address is the name of the SVG name space.
        assert_eq!(html.matches("http").count(), html.matches("http://www.w3.org/2000/svg").count());
    }
}

//! One self-contained HTML page for an experiment: text, a table and pictures, with nothing to fetch.
//!
//! Reads well in light and dark mode, on a phone and on paper. Everything that is handed in as text is shown
//! as text; pictures stand inline as SVG.

use std::fmt::Write as _;

use crate::Table;
use crate::picture::Picture;

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1f2328; --faint: #59636e; --paper: #fff; --line: #d1d9e0; --band: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --faint: #9198a1; --paper: #0d1117; --line: #3d444d; --band: #151b23; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.6 system-ui, -apple-system, 'Segoe UI', sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 1rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; }
p { max-width: 44rem; }
.wide { overflow-x: auto; margin: 1.5rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .8rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { border-bottom: 2px solid var(--line); }
tbody tr:nth-child(even) { background: var(--band); }
figure { margin: 2rem 0; }
figure svg { display: block; max-width: 100%; height: auto; background: #fff; border-radius: 6px; }
figcaption { margin-top: .5rem; color: var(--faint); font-size: .92rem; }
@media print {
  :root { --ink: #000; --faint: #333; --paper: #fff; --line: #999; --band: #fff; }
  body { max-width: none; padding: 0; font-size: 10.5pt; }
  figure, tr { break-inside: avoid; }
}
";

/// Makes the page: heading, paragraphs, table, and the pictures with their captions, which also describe them
/// to those who cannot see them.
pub fn page(title: &str, paragraphs: &[String], table: &Table, figures: &[(String, &Picture)]) -> String {
    let mut html = begin(title);
    for paragraph in paragraphs {
        let _ = writeln!(html, "<p>{}</p>", escaped(paragraph));
    }
    write_table(&mut html, table, &[]);
    write_figures(&mut html, figures);
    html.push_str(END);
    html
}

const END: &str = "</main>\n</body>\n</html>\n";

/// The head of a page, and its heading.
fn begin(title: &str) -> String {
    let title = escaped(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
    )
}

fn write_figures(html: &mut String, figures: &[(String, &Picture)]) {
    html.reserve(figures.iter().map(|(_, picture)| picture.svg().len()).sum());
    for (caption, picture) in figures {
        let caption = escaped(caption);
        let svg = picture.svg().strip_prefix("<svg").unwrap_or_default();
        // Writing to a string cannot fail.
        let _ = write!(
            html,
            "<figure>\n<svg role=\"img\" aria-label=\"{caption}\"{svg}<figcaption>{caption}</figcaption>\n</figure>\n"
        );
    }
}

/// A table on a page, with what belongs around it.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// What stands above.
    pub title: &'a str,
    /// How to read it.
    pub caption: &'a str,
    /// The cells.
    pub table: &'a Table,
    /// Cells in bold: row and column.
    pub bold: &'a [(usize, usize)],
}

/// Makes a page of several tables, and pictures after them.
pub fn tables(title: &str, tables: &[Shown<'_>], figures: &[(String, &Picture)]) -> String {
    let mut html = begin(title);
    for shown in tables {
        let _ = writeln!(html, "<h2>{}</h2>", escaped(shown.title));
        write_table(&mut html, shown.table, shown.bold);
        let _ = writeln!(html, "<p>{}</p>", escaped(shown.caption));
    }
    write_figures(&mut html, figures);
    html.push_str(END);
    html
}

pub(crate) fn write_table(html: &mut String, table: &Table, bold: &[(usize, usize)]) {
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

/// Text as HTML, also fit for a quoted attribute.
pub(crate) fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for sign in text.chars() {
        match sign {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            other => html.push(other),
        }
    }
    html
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
        let html = page(&bad, std::slice::from_ref(&bad), &table, &[(bad.clone(), &picture)]);
        assert!(!html.contains("<script") && !html.contains("\"><s"));
        // title, heading, paragraph, two cells, label and caption
        assert_eq!(html.matches("&quot;&gt;&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&amp;").count(), 7);
    }

    #[test]
    fn pictures_stand_inline_with_a_label_and_without_ids() {
        let picture = Picture::draw(20, 10, |root| Ok(root.fill(&WHITE)?)).unwrap();
        let html = page("t", &[], &Table::default(), &[("one".into(), &picture), ("two".into(), &picture)]);
        assert_eq!(html.matches("<svg role=\"img\" aria-label=\"").count(), 2);
        assert_eq!(html.matches("</svg>").count(), 2);
        assert!(!html.contains(" id=") && !html.contains("<table"));
        // Nothing is fetched: the only address is the name of the SVG name space.
        assert_eq!(html.matches("http").count(), html.matches("http://www.w3.org/2000/svg").count());
    }
}

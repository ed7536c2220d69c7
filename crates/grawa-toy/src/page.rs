//! One self-contained HTML page for an experiment: text, tables and pictures. It loads nothing.
//!
//! The page works in light and dark mode, on a phone and on paper. Text arguments are always shown as text; pictures are
//! inline SVG.

use crate::{Figure, Output, Table, TableOutput};

const STYLE: &str = include_str!("page.css");

/// The page of an experiment: heading, paragraphs, tables, and pictures with captions. Empty tables are left out.
pub fn page(output: &Output) -> String {
    let mut html = begin(&output.title, STYLE);
    let paragraph = |text: &str| format!("<p>{}</p>\n", escaped(text));
    output.paragraphs.iter().for_each(|text| html += &paragraph(text));
    for TableOutput { title, caption, table: cells, bold, .. } in &output.tables {
        if !title.is_empty() {
            html += &format!("<h2>{}</h2>\n", escaped(title));
        }
        html += &table(cells, bold);
        if !caption.is_empty() {
            html += &paragraph(caption);
        }
    }
    for Figure { caption, picture, .. } in &output.figures {
        let caption = escaped(caption);
        let svg = picture.svg();
        let svg = svg.strip_prefix("<svg").unwrap_or_default();
        html += &format!(
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

/// A table as HTML; nothing for an empty one.
pub fn table(table: &Table, bold: &[(usize, usize)]) -> String {
    if table.header.is_empty() && table.rows.is_empty() {
        return String::new();
    }
    let mut html =
        "<div class=\"wide\" role=\"region\" aria-label=\"Results\" tabindex=\"0\">\n<table>\n<thead><tr>"
            .to_owned();
    for cell in &table.header {
        html += &format!("<th scope=\"col\">{}</th>", escaped(cell));
    }
    html += "</tr></thead>\n<tbody>\n";
    for (number, row) in table.rows.iter().enumerate() {
        html += "<tr>";
        for (column, cell) in row.iter().enumerate() {
            let (before, after) = if bold.contains(&(number, column)) { ("<b>", "</b>") } else { ("", "") };
            html += &format!("<td>{before}{}{after}</td>", escaped(cell));
        }
        html += "</tr>\n";
    }
    html + "</tbody>\n</table>\n</div>\n"
}

/// Escapes text for HTML, also inside a quoted attribute.
pub fn escaped(text: &str) -> String {
    let signs = [('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&quot;"), ('\'', "&#39;")];
    signs.iter().fold(text.to_owned(), |html, (sign, name)| html.replace(*sign, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::Picture;

    fn figure(caption: &str) -> Figure {
        let picture = Picture::draw(20, 10, |_| Ok(())).unwrap();
        Figure { name: "name".into(), caption: caption.into(), picture }
    }

    #[test]
    fn text_stays_text_everywhere() {
        let bad = "\"><script>alert('1')</script>&".to_string();
        let table = Table { header: vec![bad.clone()], rows: vec![vec![bad.clone()]] };
        let html = page(&Output {
            title: bad.clone(),
            paragraphs: vec![bad.clone()],
            tables: vec![TableOutput { table, ..TableOutput::default() }],
            figures: vec![figure(&bad)],
            data: vec![],
        });
        assert!(!html.contains("<script") && !html.contains("\"><s"));
        // title, heading, paragraph, two cells, label and caption
        assert_eq!(html.matches("&quot;&gt;&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&amp;").count(), 7);
    }

    #[test]
    fn pictures_stand_inline_with_a_label_and_without_ids() {
        let (tables, figures) = (vec![TableOutput::default()], vec![figure("one"), figure("two")]);
        let html = page(&Output { tables, figures, ..Output::default() });
        assert_eq!(html.matches("<svg role=\"img\" aria-label=\"").count(), 2);
        assert_eq!(html.matches("</svg>").count(), 2);
        assert!(!html.contains(" id=") && !html.contains("<table"));
        // Nothing is fetched: the only address is the name of the SVG name space.
        assert_eq!(html.matches("http").count(), html.matches("http://www.w3.org/2000/svg").count());
    }
}

//! Methods against the first of them: errors, and differences paired by seed.

use super::by_method::{difference, dot_row, numbers, pairs, shown};
use crate::lab::finding::Measured;
use crate::lab::results::Results;
use crate::picture::rows::Rows;
use crate::statistics::{mean, pearson, surely_differs};
use crate::{Error, Output, Table};

/// A row for each method, in the order they were named.
pub(in crate::lab) fn against_first(results: &Results<'_>) -> Result<Output, Error> {
    let (study, methods) = (0, results.plan.methods(0));
    let error = |it: &Measured| Some(100.0 * it.test.error);
    let first = methods.first().map(|first| (first, results.values(study, first, &error)));
    let Some((control, own)) = first else { return Ok(Output::default()) };
    let against = format!("difference to {}", control.title());
    let head = ["method", "settings", "seeds", "test error %", &against, "r", "rounds", "MB", "seconds"];
    let (mut table, mut bold) = (Table::new(head), Vec::new());
    let (mut errors, mut differences) = (Vec::new(), Vec::new());
    for method in methods {
        let found = results.values(study, method, &error);
        let (a, b) = pairs(&found, &own);
        if method != control && surely_differs(&a, &b, methods.len() - 1) {
            bold.push((table.rows.len(), 4));
        }
        let average = |figure: fn(&Measured) -> f64, places: usize| {
            let all = numbers(&results.values(study, method, &|it| Some(figure(it))));
            if all.is_empty() { "–".into() } else { format!("{:.places$}", mean(&all)) }
        };
        let settings = results.finals(study, method).first().map(|(cell, _)| cell.recipe.method.to_string());
        let alike = pearson(&a, &b).filter(|_| method != control && a.len() > 2);
        table.push([
            method.title(),
            settings.unwrap_or_default(),
            found.len().to_string(),
            shown(&numbers(&found), 2),
            if method == control { "–".into() } else { difference(&a, &b, 2) },
            alike.map_or("–".into(), |r| format!("{r:.2}").replace('-', "−")),
            average(|it| it.rounds as f64, 0),
            average(|it| it.bytes as f64 / 1e6, 1),
            average(|it| it.seconds, 1),
        ]);
        if !found.is_empty() {
            errors.push(dot_row(method.title(), method.name, numbers(&found)));
        }
        if method != control && !a.is_empty() {
            let each = a.iter().zip(&b).map(|(a, b)| a - b).collect();
            differences.push(dot_row(method.title(), method.name, each));
        }
    }
    let title = results.title(study);
    let rule = format!(
        "Test error of the final model: mean ± standard deviation (n − 1) over the seeds. Difference to {}, paired by seed (same start, \
         same order of the data), ± half of its 95 % interval (Student's t, one comparison at a time; none where all seeds give the \
         same difference or there is one seed). Bold: not zero, at 95 % over all comparisons of the table (Bonferroni); if nothing is \
         bold, no difference was shown. r: correlation of the two errors over the seeds; near 0, pairing gains nothing. MB: what all \
         workers handed over. Data, network, budget, batch and learning rate are the same for all methods.",
        control.title()
    );
    let mut output = Output { title: format!("Comparison: {title}"), ..Output::default() };
    output.tables.push(results.table(("comparison", &title, &rule), table, bold));
    let against = format!("test error minus that of {}, % points", control.title());
    for (name, axis, rows) in [("errors", "test error, %", errors), ("differences", &against, differences)] {
        if !rows.is_empty() {
            let picture = Rows { title: title.clone(), axis: axis.into(), rows };
            let caption = format!("{title}: {axis}. {}", picture.key());
            output.figures.push(results.figure((name, study), caption, picture.draw()?));
        }
    }
    Ok(output)
}

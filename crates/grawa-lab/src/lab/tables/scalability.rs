//! Test errors by the number of workers.

use super::by_method::{difference, dot_row, methods, shown};
use crate::lab::results::Results;
use crate::picture::rows::Rows;
use crate::statistics::{CONFIDENCE, paired};
use crate::{Error, Output, Table};
use grawa_train::recipe::Variant;

/// The paper's table of scalability.
pub(in crate::lab) fn scalability(results: &Results<'_>) -> Result<Output, Error> {
    let mut output = Output { title: "Scalability".into(), ..Output::default() };
    let mut counts: Vec<u32> = results.all().map(|(cell, _)| cell.recipe.train.workers).collect();
    counts.sort_unstable();
    counts.dedup();
    let (fewest, most) = (counts.first().copied().unwrap_or(0), counts.last().copied().unwrap_or(0));
    let head = ["data", "network", "method", "seeds"].map(String::from).into_iter();
    let last = format!("{most} less {fewest}");
    let columns = counts.iter().map(|count| format!("{count} workers"));
    let mut table = Table::new(head.chain(columns).chain([last]));
    let mut bold = Vec::new();
    for study in 0..results.plan.studies() {
        let [data, network, _] = results.setup(study);
        let mut rows = Vec::new();
        for method in methods(results) {
            let of = |count: u32| errors(results, study, &method, count);
            let seeds = counts.iter().map(|&count| of(count).len()).max().unwrap_or(0);
            let mut row = vec![data.clone(), network.clone(), method.title(), seeds.to_string()];
            row.extend(counts.iter().map(|&count| shown(&of(count), 2)));
            let found = paired(&of(most), &of(fewest), CONFIDENCE).filter(|_| most > fewest);
            if found.is_some_and(|found| found.excludes_zero()) {
                bold.push((table.rows.len(), row.len()));
            }
            row.push(if found.is_some() { difference(&of(most), &of(fewest), 2) } else { "–".into() });
            table.push(row);
            rows.extend(counts.iter().map(|&count| {
                dot_row(format!("{}, {count} workers", method.title()), method.name, of(count))
            }));
        }
        let title = format!("{data}, {network}");
        let picture = Rows { title, axis: "test error, %".into(), rows };
        let caption = format!("{}: test error by the number of workers. {}", picture.title, picture.key());
        output.figures.push(results.figure(("workers", study), caption, picture.draw()?));
    }
    let rule = "Mean ± standard deviation (n − 1) over the seeds, in %. The last column is the difference between most and fewest workers, \
                paired by seed, ± half of its 95 % interval (Student's t); bold where that excludes zero.";
    output.tables.push(results.table(("workers", "Test error by the number of workers", rule), table, bold));
    Ok(output)
}

/// The errors of a method with this number of workers, in the order of the seeds.
fn errors(results: &Results<'_>, study: usize, method: &Variant, count: u32) -> Vec<f64> {
    let finals = results.finals(study, method).into_iter();
    let own = finals.filter(|(cell, _)| cell.recipe.train.workers == count);
    own.filter_map(|(_, finding)| Some(100.0 * finding.measured()?.test.error)).collect()
}

//! The parts of a worker's time, rounds, and bytes sent.

use super::by_method::{methods, numbers, settings, shown};
use crate::lab::finding::{Measured, clocked};
use crate::lab::results::Results;
use crate::statistics::mean;
use crate::{Error, Output, Table};
use grawa_train::Times;

/// The paper's table of communication times, in more parts.
pub(in crate::lab) fn communication(results: &Results<'_>) -> Result<Output, Error> {
    let mut output = Output { title: "Communication".into(), ..Output::default() };
    let head =
        ["data", "network", "workers", "method", "rounds", "MB", "seconds"].map(String::from).into_iter();
    let names = clocked(&Times::default()).map(|(part, _)| part);
    let mut table = Table::new(head.chain(names.map(|part| format!("{part} s"))));
    for study in 0..results.plan.studies() {
        let setup = results.setup(study);
        for method in methods(results) {
            let of = |figure: &dyn Fn(&Measured) -> f64| {
                numbers(&results.values(study, &method, &|measured| Some(figure(measured))))
            };
            if of(&|it| it.seconds).is_empty() {
                continue;
            }
            let parts: [Vec<f64>; 7] = std::array::from_fn(|part| of(&|it| clocked(&it.times)[part].1));
            let mut row: Vec<String> = setup.iter().cloned().chain([method.title()]).collect();
            row.push(format!("{:.0}", mean(&of(&|it| it.rounds as f64))));
            row.push(format!("{:.2}", mean(&of(&|it| it.bytes as f64 / 1e6))));
            row.push(shown(&of(&|it| it.seconds), 2));
            row.extend(parts.iter().map(|part| format!("{:.3}", mean(part))));
            table.push(row);
        }
    }
    let rule = "Means over the seeds (seconds ± standard deviation, n − 1). MB: what all workers handed over. Compute, score (passes on score batches), \
                queue (waiting for a core), data, wait (for other workers), wire (exchanging reports) and apply (centre and pull) are seconds of one \
                worker; evaluation is outside the clock. The paper's column lumps score, wait, wire and apply. Workers are threads of one machine here: no network is in between.";
    let jobs = results.all().map(|(_, finding)| finding.jobs).max().unwrap_or(1);
    let shared = if jobs > 1 {
        format!(" UP TO {jobs} CELLS RAN AT A TIME: seconds are longer than of a run by itself.")
    } else {
        String::new()
    };
    let words = ("communication", "Where the time goes", &*(rule.to_owned() + &shared));
    output.tables.push(results.table(words, table, Vec::new()));
    output.tables.extend(settings(results));
    Ok(output)
}

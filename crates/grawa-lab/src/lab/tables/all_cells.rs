//! Every number of every cell, for programs.

use crate::Table;
use crate::lab::finding::Measured;
use crate::lab::results::Results;

/// A number of a run; none where it was not measured.
type Number = fn(&Measured) -> Option<f64>;

/// The columns of numbers.
#[rustfmt::skip]
const NUMBERS: [(&str, Number); 24] = [
    ("test_error", |it| Some(it.test.error)),
    ("test_loss", |it| it.test.loss),
    ("train_error", |it| Some(it.train?.error)),
    ("train_loss", |it| it.train?.loss),
    ("gradient_norm", |it| Some(it.gradient?.whole)),
    ("layer_norms", |it| Some(it.gradient?.layers)),
    ("largest", |it| Some(it.flatness?.largest)),
    ("ritz_sum", |it| Some(it.flatness?.ritz_sum)),
    ("ritz_norm", |it| Some(it.flatness?.ritz_norm)),
    ("frobenius", |it| Some(it.flatness?.frobenius)),
    ("trace", |it| Some(it.flatness?.trace)),
    ("sharpness", |it| Some(it.flatness?.sharpness)),
    ("steps", |it| Some(it.steps as f64)),
    ("rounds", |it| Some(it.rounds as f64)),
    ("bytes", |it| Some(it.bytes as f64)),
    ("seconds", |it| Some(it.seconds)),
    ("compute", |it| Some(it.times.compute)),
    ("score", |it| Some(it.times.score)),
    ("queue", |it| Some(it.times.queue)),
    ("data_wait", |it| Some(it.times.data)),
    ("wait", |it| Some(it.times.wait)),
    ("wire", |it| Some(it.times.wire)),
    ("apply", |it| Some(it.times.apply)),
    ("evaluate", |it| Some(it.times.evaluate)),
];

/// A row for each cell.
pub(in crate::lab) fn all_cells(results: &Results<'_>) -> Table {
    let words = ["cell", "stage", "data", "network", "workers", "method", "seed", "setting", "lost"];
    let numbers = NUMBERS.map(|(name, _)| name);
    let mut table = Table::new(words.into_iter().chain(numbers).chain(["jobs"]));
    for (cell, finding) in results.all() {
        let (recipe, measured) = (&cell.recipe, finding.measured());
        let words = [
            cell.name.clone(),
            cell.stage.as_str().into(),
            recipe.data.kind.to_string(),
            recipe.model.name.clone(),
            recipe.train.workers.to_string(),
            recipe.method.to_string(),
            cell.seed().to_string(),
            cell.settings.join(" "),
            if measured.is_none() { "yes" } else { "no" }.into(),
        ];
        let number = |(_, number): (&str, Number)| measured.and_then(number);
        let numbers = NUMBERS.map(|column| number(column).map_or(String::new(), |x| x.to_string()));
        let jobs = measured.map_or(String::new(), |_| finding.jobs.to_string());
        table.push(words.into_iter().chain(numbers).chain([jobs]));
    }
    table
}

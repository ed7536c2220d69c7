//! Every number of every cell, for programs.

use crate::Table;
use crate::lab::cell::Stage;
use crate::lab::results::Results;

/// A row a cell.
pub(super) fn table(results: &Results<'_>) -> Table {
    let mut table = Table::new([
        "cell",
        "stage",
        "data",
        "network",
        "workers",
        "method",
        "seed",
        "setting",
        "lost",
        "test_error",
        "test_loss",
        "train_error",
        "train_loss",
        "gradient_norm",
        "layer_norms",
        "largest",
        "ritz_sum",
        "ritz_norm",
        "frobenius",
        "trace",
        "sharpness",
        "steps",
        "rounds",
        "bytes",
        "seconds",
        "compute",
        "score",
        "queue",
        "data_wait",
        "wait",
        "wire",
        "apply",
        "evaluate",
        "jobs",
    ]);
    for (cell, finding) in results.all() {
        let recipe = &cell.recipe;
        let mut row = vec![
            cell.name.clone(),
            if cell.stage == Stage::Search { "search" } else { "final" }.into(),
            recipe.data.kind.to_string(),
            recipe.model.name.clone(),
            recipe.train.workers.to_string(),
            recipe.method.to_string(),
            cell.seed().to_string(),
            cell.settings.join(" "),
        ];
        match finding.measured() {
            None => row.push("yes".into()),
            Some(found) => {
                let number = |x: Option<f64>| x.map_or(String::new(), |x| x.to_string());
                let flat = found.flatness.as_ref();
                row.push("no".into());
                row.extend([number(Some(found.test.error)), number(found.test.loss)]);
                row.extend([
                    number(found.train.map(|it| it.error)),
                    number(found.train.and_then(|it| it.loss)),
                ]);
                row.extend([
                    number(found.gradient.map(|it| it.whole)),
                    number(found.gradient.map(|it| it.layers)),
                ]);
                row.extend(
                    [flat.map(|it| it.largest), flat.map(|it| it.ritz_sum), flat.map(|it| it.ritz_norm)]
                        .map(number),
                );
                row.extend(
                    [flat.map(|it| it.frobenius), flat.map(|it| it.trace), flat.map(|it| it.sharpness)]
                        .map(number),
                );
                row.extend([found.steps, found.rounds, found.bytes].map(|count| count.to_string()));
                row.push(found.seconds.to_string());
                row.extend(found.times.parts().map(|(_, seconds)| seconds.to_string()));
                row.push(finding.jobs.to_string());
            }
        }
        row.resize(table.header.len(), String::new());
        table.push(row);
    }
    table
}

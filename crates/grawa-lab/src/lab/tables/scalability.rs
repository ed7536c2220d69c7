//! Test errors by the number of workers.

use super::by_method::{counted, difference, dot_row, methods, numbers, pairs};
use crate::lab::cell::Cell;
use crate::lab::finding::Finding;
use crate::lab::results::Results;
use crate::picture::rows::Rows;
use crate::statistics::surely_differs;
use crate::{Error, Output, Table};
use grawa_train::recipe::Variant;

/// The paper's table of scalability: a row for each method, or for each of its settings where it has several.
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
    let mut ends = Vec::new();
    for study in 0..results.plan.studies() {
        let [data, network, _] = results.setup(study);
        let mut rows = Vec::new();
        for method in methods(results) {
            for (title, runs) in by_setting(results, study, &method) {
                let of = |count: u32| errors(&runs, count);
                let seeds = counts.iter().map(|&count| of(count).len()).max().unwrap_or(0);
                let mut row = vec![data.clone(), network.clone(), title.clone(), seeds.to_string()];
                row.extend(counts.iter().map(|&count| counted(&of(count), seeds, 2)));
                let (a, b) = pairs(&of(most), &of(fewest));
                let place = (table.rows.len(), row.len());
                row.push(if most > fewest { difference(&a, &b, 2) } else { "–".into() });
                ends.push((place, a, b));
                table.push(row);
                rows.extend(counts.iter().map(|&count| {
                    dot_row(format!("{title}, {count} workers"), method.name, numbers(&of(count)))
                }));
            }
        }
        let title = format!("{data}, {network}");
        let picture = Rows { title, axis: "test error, %".into(), rows };
        let caption = format!("{}: test error by the number of workers. {}", picture.title, picture.key());
        output.figures.push(results.figure(("workers", study), caption, picture.draw()?));
    }
    let rule = "Mean ± standard deviation (n − 1) over the seeds, in %. A method with several settings has a row for each; none is chosen. The last \
                column is the difference between most and fewest workers, paired by seed, ± half of its 95 % interval (Student's t; none where all \
                seeds give the same difference or there is one seed). Bold: not zero, at 95 % over all rows (Bonferroni).";
    let is_bold = |(_, a, b): &&(_, Vec<f64>, Vec<f64>)| most > fewest && surely_differs(a, b, ends.len());
    let bold = ends.iter().filter(is_bold).map(|it| it.0).collect();
    output.tables.push(results.table(("workers", "Test error by the number of workers", rule), table, bold));
    Ok(output)
}

/// The runs of one setting.
type Runs<'a> = Vec<(&'a Cell, &'a Finding)>;

/// The runs of a method by their settings, the number of workers left out. A title has the settings where there are several.
fn by_setting<'a>(results: &'a Results<'_>, study: usize, method: &Variant) -> Vec<(String, Runs<'a>)> {
    let setting = |cell: &Cell| {
        let others = cell.settings.iter().filter(|it| !it.starts_with("train.workers="));
        others.map(|it| it.trim_start_matches("method.")).collect::<Vec<_>>().join(", ")
    };
    let mut all: Vec<(String, Runs<'a>)> = Vec::new();
    for (cell, finding) in results.finals(study, method) {
        let own = setting(cell);
        match all.iter_mut().find(|(other, _)| *other == own) {
            Some((_, runs)) => runs.push((cell, finding)),
            None => all.push((own, vec![(cell, finding)])),
        }
    }
    let several = all.len() > 1;
    let title = |own| if several { format!("{} {own}", method.title()) } else { method.title() };
    all.into_iter().map(|(own, runs)| (title(own), runs)).collect()
}

/// The errors of runs with this number of workers, by seed; lost runs are left out.
fn errors(runs: &Runs<'_>, count: u32) -> Vec<(u64, f64)> {
    let own = runs.iter().filter(|(cell, _)| cell.recipe.train.workers == count);
    own.filter_map(|(cell, finding)| Some((cell.seed(), 100.0 * finding.measured()?.test.error))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::plan::tests::{find, study};
    use crate::lab::{Found, Plan};

    /// Two settings of EASGD, three seeds, two numbers of workers.
    const STUDY: &str = "[study]\nmethods = ['easgd', 'mean']\nseeds = [1, 2, 3]\n[study.every]\ntrain.workers = [4, 8]\n\
                         [study.grid.easgd]\nmethod.pull = [0.1, 0.3]\n";

    fn table(plan: &Plan, error: impl Fn(&Cell) -> Option<f64>) -> Vec<Vec<String>> {
        let found = find(&plan.cells(&Found::new()).unwrap(), error);
        scalability(&Results::new(plan, &found).unwrap()).unwrap().tables.remove(0).table.rows
    }

    /// The points of a grid are no seeds.
    #[test]
    fn every_setting_has_a_row_over_its_seeds() {
        let (_place, plan) = study("scalability", STUDY);
        let rows = table(&plan, |cell| {
            let (seed, workers) = (cell.seed() as f64, f64::from(cell.recipe.train.workers));
            let setting = if cell.settings.iter().any(|it| it == "method.pull=0.3") { 10.0 } else { 0.0 };
            Some(0.01 * (seed * workers / 4.0 + setting))
        });
        let found: Vec<[&str; 3]> = rows.iter().map(|row| [&*row[2], &*row[3], &*row[6]]).collect();
        let [a, b, mean] = ["EASGD pull=0.1", "EASGD pull=0.3", "Mean"];
        // The differences are 1, 2 and 3.
        assert_eq!(found, [a, b, mean].map(|title| [title, "3", "+2.00 ± 2.48"]));
    }

    /// Differences of 1.0, 1.4 and 1.8: their interval excludes zero at 95 % alone, not as one of three rows.
    #[test]
    fn bold_is_over_all_rows() {
        let (_place, plan) = study("scalability", STUDY);
        let bold = |step: f64| {
            let error = |cell: &Cell| {
                let seed = cell.seed() as f64;
                Some(
                    0.01 * if cell.recipe.train.workers == 8 {
                        seed + 1.4 + step * (seed - 2.0)
                    } else {
                        seed
                    },
                )
            };
            let found = find(&plan.cells(&Found::new()).unwrap(), error);
            scalability(&Results::new(&plan, &found).unwrap()).unwrap().tables.remove(0).bold
        };
        assert_eq!(bold(0.4), []);
        assert_eq!(bold(0.1), [(0, 6), (1, 6), (2, 6)]);
    }

    /// Seeds are paired with themselves, also where a run of another seed was lost.
    #[test]
    fn a_lost_run_does_not_shift_the_pairs() {
        let (_place, plan) = study("scalability", STUDY);
        let rows = table(&plan, |cell| {
            let (seed, workers) = (cell.seed(), cell.recipe.train.workers);
            let is_lost = (seed, workers) == (1, 8);
            (!is_lost).then_some(0.1 * seed as f64 + if workers == 8 { 0.001 * seed as f64 } else { 0.0 })
        });
        assert_eq!(rows[2][3..], ["3", "20.00 ± 10.00", "25.25 ± 7.14 (2 of 3)", "+0.25 ± 0.64"]);
    }
}

//! Numbers by method: means with deviations, paired differences to a control, and the chosen settings.

use crate::lab::finding::Measured;
use crate::lab::published::{Published, Row};
use crate::lab::results::Results;
use crate::picture::rows::{Row as DotRow, Rows};
use crate::statistics::{CONFIDENCE, interval, mean, paired, summary, surely_differs, surely_lowest};
use crate::{Error, Output, TableOutput};
use crate::{Table, picture::palette};
use grawa_core::{Method, Name};
use grawa_train::recipe::Variant;

/// A number of each run, and how it is shown.
pub(in crate::lab) struct Comparison {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) axis: &'static str,
    pub(super) places: usize,
    /// The paper's numbers.
    pub(super) paper: &'static [Row],
    pub(super) figure: fn(&Measured) -> Option<f64>,
}

/// The name of the paper's rows.
const PAPER: &str = "the paper";

/// Adds the table of a number, its paired differences, and a picture of every study.
pub(super) fn compare(
    results: &Results<'_>,
    comparison: &Comparison,
    output: &mut Output,
) -> Result<(), Error> {
    let methods = methods(results);
    let head = ["data", "network", "workers", "seeds"].map(String::from).into_iter();
    let mut table = Table::new(head.chain(methods.iter().map(Variant::title)));
    let mut bold = Vec::new();
    for study in 0..results.plan.studies() {
        let columns: Vec<Vec<(u64, f64)>> =
            methods.iter().map(|method| results.values(study, method, &comparison.figure)).collect();
        let most = columns.iter().map(Vec::len).max().unwrap_or(0);
        if let Some(lowest) = lowest(&columns) {
            bold.push((table.rows.len(), 4 + lowest));
        }
        let cells = columns.iter().map(|column| counted(column, most, comparison.places));
        table.push(results.setup(study).into_iter().chain([most.to_string()]).chain(cells));
        let published: Vec<_> =
            methods.iter().map(|it| results.plan.published(comparison.paper, study, it.name)).collect();
        if published.iter().any(Option::is_some) {
            let places = comparison.places;
            let words = |(mean, spread): Published| format!("{mean:.places$} ± {spread:.places$}");
            let cells = published.into_iter().map(|it| it.map_or("–".into(), words));
            table.push([PAPER, "", "", "3"].map(String::from).into_iter().chain(cells));
        }
        let measured = methods.iter().zip(&columns).filter(|(_, column)| !column.is_empty());
        let row =
            |(method, column): (&Variant, &Vec<_>)| dot_row(method.title(), method.name, numbers(column));
        let (title, axis) = (results.title(study), comparison.axis.into());
        let picture = Rows { title, axis, rows: measured.map(row).collect() };
        let caption = format!("{}: {}. {}", picture.title, comparison.title, picture.key());
        output.figures.push(results.figure((comparison.name, study), caption, picture.draw()?));
    }
    let rule = "Mean ± standard deviation (n − 1) over the seeds. Bold: lower than every other method in the row, by paired differences \
                across seeds (Student's t, 95 % over all comparisons of the row after Bonferroni); if nothing is bold, no method was shown to be lower than all others.";
    let paper = "The paper's numbers are printed below ours; its ± is the deviation of a population.";
    let has_paper = table.rows.iter().any(|row| row[0] == PAPER);
    let rule = if has_paper { format!("{rule} {paper}") } else { rule.into() };
    output.tables.push(results.table((comparison.name, comparison.title, &rule), table, bold));
    output.tables.extend(differences(results, comparison, &methods));
    Ok(())
}

/// A row of dots with the interval of their mean.
pub(super) fn dot_row(name: String, method: Name, values: Vec<f64>) -> DotRow {
    let interval = interval(&values, CONFIDENCE).map(|found| (found.mean, found.half));
    DotRow { name, method: method.as_str().into(), values, interval }
}

/// The methods of all studies, in the order of pictures and legends.
pub(super) fn methods(results: &Results<'_>) -> Vec<Variant> {
    let mut methods: Vec<Variant> = Vec::new();
    for method in (0..results.plan.studies()).flat_map(|study| results.plan.methods(study)) {
        if !methods.contains(method) {
            methods.push(method.clone());
        }
    }
    methods.sort_by_key(|method| palette::rank(method.name.as_str()));
    methods
}

pub(super) fn numbers(column: &[(u64, f64)]) -> Vec<f64> {
    column.iter().map(|(_, x)| *x).collect()
}

/// Mean ± deviation, with a dash for no numbers.
pub(super) fn shown(values: &[f64], places: usize) -> String {
    if values.is_empty() { "–".into() } else { summary(values, places).replace('-', "−") }
}

/// The same, with the number of runs where there are fewer than `most`.
pub(super) fn counted(column: &[(u64, f64)], most: usize, places: usize) -> String {
    let of = if column.len() < most { format!(" ({} of {most})", column.len()) } else { String::new() };
    shown(&numbers(column), places) + &of
}

/// The column that is lowest beyond doubt, over the seeds that all columns have.
fn lowest(columns: &[Vec<(u64, f64)>]) -> Option<usize> {
    let common = |seed: u64| columns.iter().all(|column| column.iter().any(|it| it.0 == seed));
    let rows: Vec<Vec<f64>> = columns
        .iter()
        .map(|column| column.iter().filter(|(seed, _)| common(*seed)).map(|(_, x)| *x).collect())
        .collect();
    surely_lowest(&rows.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

/// The plain mean among the methods: of several the one without knobs, or the first.
fn control(methods: &[Variant]) -> Option<&Variant> {
    let is_plain = |method: &&Variant| {
        method.to_string().parse::<Method>().is_ok_and(|own| {
            let usual = Method::named(Name::Mean, own.preset);
            Method { period: own.period, pull: own.pull, prox: own.prox, ..usual } == own
        })
    };
    let bare = methods.iter().find(|method| **method == Variant::from(Name::Mean));
    bare.or_else(|| methods.iter().find(is_plain))
}

/// Differences to the plain mean, seed by seed; none where the mean is not among the methods.
fn differences(results: &Results<'_>, comparison: &Comparison, methods: &[Variant]) -> Option<TableOutput> {
    let control = control(methods)?;
    let others: Vec<&Variant> = methods.iter().filter(|method| *method != control).collect();
    if others.is_empty() {
        return None;
    }
    let head = ["data", "network", "workers"].map(String::from).into_iter();
    let mut table = Table::new(head.chain(others.iter().map(|method| method.title())));
    let mut bold = Vec::new();
    for study in 0..results.plan.studies() {
        let own = results.values(study, control, &comparison.figure);
        let mut row: Vec<String> = results.setup(study).into();
        for (number, &method) in others.iter().enumerate() {
            let (a, b) = pairs(&results.values(study, method, &comparison.figure), &own);
            if surely_differs(&a, &b, others.len()) {
                bold.push((study, 3 + number));
            }
            row.push(difference(&a, &b, comparison.places));
        }
        table.push(row);
    }
    let control = control.title();
    let caption = format!(
        "Difference to the plain mean of the workers ({control}), with its own setting (see Settings) as every method; \
         paired by seed, ± half of its 95 % interval (Student's t, one comparison at a time; none where all seeds give the same difference). \
         Bold: not zero, at 95 % over all comparisons of the row (Bonferroni)."
    );
    Some(TableOutput {
        name: format!("{}-differences", comparison.name),
        title: format!("{}: differences to {control}", comparison.title),
        caption,
        table,
        bold,
        exact: None,
    })
}

/// The numbers of two methods for the seeds that both have.
pub(super) fn pairs(a: &[(u64, f64)], b: &[(u64, f64)]) -> (Vec<f64>, Vec<f64>) {
    a.iter().filter_map(|(seed, x)| Some((x, b.iter().find(|it| it.0 == *seed)?.1))).unzip()
}

/// The mean of a − b, pair by pair, with half of its interval where there is one.
pub(super) fn difference(a: &[f64], b: &[f64], places: usize) -> String {
    match paired(a, b, CONFIDENCE) {
        Some(found) => format!("{:+.places$} ± {:.places$}", found.mean, found.half),
        None if a.is_empty() => return "–".into(),
        None => format!("{:+.places$}", mean(a) - mean(b)),
    }
    .replace('-', "−")
}

/// The setting of each method, and its error in the search.
pub(super) fn settings(results: &Results<'_>) -> Option<TableOutput> {
    let head = ["data", "network", "workers", "method", "setting", "chosen of", "held-out error %"];
    let mut table = Table::new(head);
    for study in 0..results.plan.studies() {
        let setup = results.setup(study);
        for method in methods(results) {
            let Some(cell) = results.finals(study, &method).first().map(|it| it.0.clone()) else { continue };
            let setting =
                if cell.settings.is_empty() { "as in the recipe".into() } else { cell.settings.join(", ") };
            let search = results.search(study, &method);
            let (error, count) =
                search.map(|(error, count)| (format!("{error:.2}"), count.to_string())).unwrap_or_default();
            table.push(setup.iter().cloned().chain([method.title(), setting, count, error]));
        }
    }
    (!table.rows.is_empty()).then(|| TableOutput {
        name: "settings".into(),
        title: "Settings".into(),
        caption: results.remarks().into_iter().take(1).collect(),
        table,
        ..TableOutput::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::Found;
    use crate::lab::plan::tests::{find, study};

    /// The title, head and caption of the differences in a study of these methods, if it has any.
    fn shown_differences(methods: &str) -> Option<(String, Vec<String>, String)> {
        let (_place, plan) = study("table1", &format!("[study]\nmethods = [{methods}]\nseeds = [1, 2]\n"));
        let found = find(&plan.cells(&Found::new()).unwrap(), |_| Some(0.1));
        let output = (plan.experiment.conclude)(&Results::new(&plan, &found).unwrap()).unwrap();
        let table = output.tables.into_iter().find(|table| table.name == "errors-differences")?;
        Some((table.title, table.table.header, table.caption))
    }

    /// A mean with knobs is a control, too. One with weights is not.
    #[test]
    fn differences_are_to_the_plain_mean_with_any_pull() {
        for (methods, control, others) in [
            ("'lgrawa', 'mean'", "Mean", &["LGRAWA"][..]),
            ("'lgrawa', 'mean:pull=0.5,prox=0.01'", "Mean pull=0.5, prox=0.01", &["LGRAWA"]),
            ("'mean:pull=0.5', 'mean'", "Mean", &["Mean pull=0.5"]),
            (
                "'mean:score=gradient,weighting=inverse', 'mean:period=8'",
                "Mean period=8",
                &["Mean score=gradient, weighting=inverse"],
            ),
        ] {
            let (title, head, caption) = shown_differences(methods).unwrap();
            assert!(title.ends_with(&format!(": differences to {control}")), "{title}");
            assert_eq!(head[3..], *others, "{methods}");
            assert!(caption.contains(&format!("the workers ({control}), with its own setting")), "{caption}");
        }
        for methods in ["'lgrawa', 'easgd'", "'lgrawa', 'mean:weighting=inverse,score=gradient'", "'mean'"] {
            assert_eq!(shown_differences(methods), None, "{methods}");
        }
    }
}

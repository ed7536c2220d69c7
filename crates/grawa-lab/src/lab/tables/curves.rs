//! Test error over epochs and over time.

use super::by_method::{methods, settings, shown};
use crate::lab::finding::CurvePoint;
use crate::lab::results::Results;
use crate::picture::chart::{Chart, Line};
use crate::statistics::mean;
use crate::{Error, Output, Table};
use grawa_train::recipe::Variant;

/// Shares of the budget at which errors are listed.
const SHARES: [f64; 4] = [0.25, 0.5, 0.75, 1.0];

/// The paper's curves.
pub(in crate::lab) fn curves(results: &Results<'_>) -> Result<Output, Error> {
    let mut output = Output { title: "Test error over the run".into(), ..Output::default() };
    let head = ["data", "network", "workers", "method", "seeds"].map(String::from).into_iter();
    let columns = SHARES.map(|share| format!("at {:.0} %", 100.0 * share));
    let mut table = Table::new(head.chain(columns).chain(["seconds".into()]));
    for study in 0..results.plan.studies() {
        let setup = results.setup(study);
        let (mut over_epochs, mut over_time) = (Vec::new(), Vec::new());
        for method in methods(results) {
            let runs = runs(results, study, &method);
            let Some(length) = runs.iter().map(|curve| curve.len()).min().filter(|length| *length > 0) else {
                continue;
            };
            let at = |index: usize, figure: fn(&CurvePoint) -> f64| {
                mean(&runs.iter().map(|curve| figure(&curve[index])).collect::<Vec<_>>())
            };
            let line = |x: fn(&CurvePoint) -> f64| Line {
                name: method.title(),
                points: (0..length)
                    .map(|index| (at(index, x), at(index, |spot| 100.0 * spot.score.error)))
                    .collect(),
            };
            over_epochs.push(line(|spot| spot.epochs));
            over_time.push(line(|spot| spot.seconds));
            let mut row: Vec<String> =
                setup.iter().cloned().chain([method.title(), runs.len().to_string()]).collect();
            let last = runs.iter().map(|curve| curve[length - 1].steps).max().unwrap_or(0) as f64;
            for share in SHARES {
                // The last evaluation up to that share.
                let upto = |curve: &[CurvePoint]| {
                    let spot = curve.iter().rfind(|spot| spot.steps as f64 <= share * last + 0.5);
                    spot.map(|spot| 100.0 * spot.score.error)
                };
                row.push(shown(&runs.iter().filter_map(|curve| upto(curve)).collect::<Vec<_>>(), 2));
            }
            row.push(format!("{:.2}", at(length - 1, |spot| spot.seconds)));
            table.push(row);
        }
        let title = results.title(study);
        for (name, axis, lines) in [
            ("over-epochs", "epochs of all workers together", over_epochs),
            ("over-time", "seconds of training", over_time),
        ] {
            let chart = Chart::new(&title, [axis, "test error, %"], [false; 2], lines);
            let caption = format!("{title}: test error in the mean of the seeds, over {axis}.");
            output.figures.push(results.figure((name, study), caption, chart.draw()?));
        }
    }
    let rule = "Test error in %, mean ± standard deviation (n − 1) over the seeds, at shares of the budget: the last evaluation up to there; and the seconds \
                of training in all, evaluation left out.";
    output.tables.push(results.table(("errors", "Test error over the run", rule), table, Vec::new()));
    output.tables.extend(settings(results));
    Ok(output)
}

/// The curves of a method, without lost runs.
fn runs<'a>(results: &Results<'a>, study: usize, method: &Variant) -> Vec<&'a [CurvePoint]> {
    let finals = results.finals(study, method).into_iter();
    finals.filter_map(|(_, finding)| Some(finding.measured()?.curve.as_slice())).collect()
}

//! Test error over epochs and over time.

use super::by_method::{methods, settings, shown};
use super::exact;
use crate::lab::finding::Spot;
use crate::lab::results::Results;
use crate::lab::sheet::{Output, Sheet};
use crate::picture::chart::{Chart, Line};
use crate::statistics::mean;
use crate::{Error, Table};
use grawa_core::Name;

/// Shares of the budget at which errors are listed.
const SHARES: [f64; 4] = [0.25, 0.5, 0.75, 1.0];

/// The paper's curves.
pub(in crate::lab) fn curves(results: &Results<'_>) -> Result<Output, Error> {
    let mut output =
        Output { title: "Test error over the run".into(), exact: exact::table(results), ..Output::default() };
    let head = ["data", "network", "method", "seeds"].map(String::from).into_iter();
    let columns = SHARES.map(|share| format!("at {:.0} %", 100.0 * share));
    let mut table = Table::new(head.chain(columns).chain(["seconds".into()]));
    let mut points = Table::new([
        "data",
        "network",
        "method",
        "seed",
        "steps",
        "epochs",
        "seconds",
        "test_error",
        "test_loss",
    ]);
    for study in 0..results.plan.studies() {
        let [data, network, workers] = results.setup(study);
        let (mut over_epochs, mut over_time) = (Vec::new(), Vec::new());
        for method in methods(results) {
            let runs = runs(results, study, method);
            let Some(length) = runs.iter().map(|(_, curve)| curve.len()).min().filter(|length| *length > 0)
            else {
                continue;
            };
            let at = |index: usize, figure: fn(&Spot) -> f64| {
                mean(&runs.iter().map(|(_, curve)| figure(&curve[index])).collect::<Vec<_>>())
            };
            let line = |x: fn(&Spot) -> f64| Line {
                name: method.title().into(),
                points: (0..length)
                    .map(|index| (at(index, x), at(index, |spot| 100.0 * spot.score.error)))
                    .collect(),
            };
            over_epochs.push(line(|spot| spot.epochs));
            over_time.push(line(|spot| spot.seconds));
            let mut row = vec![data.clone(), network.clone(), method.title().into(), runs.len().to_string()];
            let last = runs.iter().map(|(_, curve)| curve[length - 1].steps).max().unwrap_or(0) as f64;
            for share in SHARES {
                // The last evaluation up to there.
                let upto = |curve: &[Spot]| {
                    let spot = curve.iter().rfind(|spot| spot.steps as f64 <= share * last + 0.5);
                    spot.map(|spot| 100.0 * spot.score.error)
                };
                row.push(shown(&runs.iter().filter_map(|(_, curve)| upto(curve)).collect::<Vec<_>>(), 2));
            }
            row.push(format!("{:.2}", at(length - 1, |spot| spot.seconds)));
            table.push(row);
            for (seed, curve) in &runs {
                for spot in *curve {
                    let loss = spot.score.loss.map_or(String::new(), |loss| loss.to_string());
                    let numbers = [spot.epochs, spot.seconds, spot.score.error].map(|x| x.to_string());
                    let words = [
                        data.clone(),
                        network.clone(),
                        method.as_str().into(),
                        seed.to_string(),
                        spot.steps.to_string(),
                    ];
                    points.push(words.into_iter().chain(numbers).chain([loss]));
                }
            }
        }
        let setup = format!("{data}, {network}, {workers} workers");
        let several = results.plan.studies() > 1;
        for (name, axis, lines) in [
            ("over-epochs", "epochs of all workers together", over_epochs),
            ("over-time", "seconds of training", over_time),
        ] {
            let axes = [axis, "test error, %"].map(String::from);
            let chart = Chart { title: setup.clone(), axes, lines, ..Chart::default() };
            let caption = format!("{setup}: test error in the mean of the seeds, over {axis}.");
            let name = if several { format!("{name}-{}", study + 1) } else { name.into() };
            output.pictures.push((name, caption, chart.draw()?));
        }
    }
    let rule = "Test error in %, mean ± standard deviation (n − 1) over the seeds, at shares of the budget: the last evaluation up to there; and the seconds \
                of training in all, evaluation left out. All measured points: curves.csv.";
    let caption = std::iter::once(rule.to_owned()).chain(results.remarks()).collect::<Vec<_>>().join(" ");
    output.sheets.push(Sheet {
        name: "errors".into(),
        title: "Test error over the run".into(),
        caption,
        table,
        bold: Vec::new(),
    });
    output.sheets.extend(settings(results));
    output.data.push(("curves.csv".into(), points));
    Ok(output)
}

/// The curves of a method that were not lost, by seed.
fn runs<'a>(results: &Results<'a>, study: usize, method: Name) -> Vec<(u64, &'a [Spot])> {
    let finals = results.finals(study, method).into_iter();
    finals.filter_map(|(cell, finding)| Some((cell.seed(), finding.measured()?.curve.as_slice()))).collect()
}

//! The tables and pictures of each experiment.

mod all_cells;
mod by_method;
mod communication;
mod curves;
mod gradnorm;
mod scalability;

pub(super) use all_cells::all_cells;
pub(super) use communication::communication;
pub(super) use curves::curves;
pub(super) use gradnorm::gradnorm;
pub(super) use scalability::scalability;

use super::finding::Flatness;
use super::published;
use super::results::Results;
use super::table_output::Output;
use crate::Error;
use by_method::{Comparison, compare, settings};

/// The paper's first table: test errors.
pub(super) fn errors(results: &Results<'_>) -> Result<Output, Error> {
    let errors = Comparison {
        name: "errors",
        title: "Test error in %",
        axis: "test error, %",
        places: 2,
        paper: published::ERRORS,
        figure: &|measured| Some(100.0 * measured.test.error),
    };
    compared("Test error by method and network", results, &[errors])
}

/// The paper's second table, with the norm that it is named after.
pub(super) fn flatness(results: &Results<'_>) -> Result<Output, Error> {
    type Figure = fn(Flatness) -> f64;
    type Row = (&'static str, &'static str, &'static str, usize, &'static [published::Row], Figure);
    let all: [Row; 4] = [
        (
            "ritz-sum",
            "Σθ, the sum of the Ritz values, which the paper lists as Frobenius norm",
            "Σθ",
            2,
            published::RITZ_SUMS,
            |it| it.ritz_sum,
        ),
        ("frobenius", "‖H‖_F, the Frobenius norm of the Hessian", "‖H‖_F", 2, &[], |it| it.frobenius),
        ("largest", "λ_max, the largest eigenvalue of the Hessian", "λ_max", 2, &[], |it| it.largest),
        ("trace", "Trace of the Hessian", "trace", 1, &[], |it| it.trace),
    ];
    let mut output = Output { title: "How flat the minima are".into(), ..Output::default() };
    for (name, title, axis, places, paper, figure) in all {
        let figure: super::results::Figure<'_> = &|measured| measured.flatness.map(figure);
        compare(results, &Comparison { name, title, axis, places, paper, figure }, &mut output)?;
    }
    output.tables.extend(settings(results));
    Ok(output)
}

/// The paper's generalisation gap, with the training error.
pub(super) fn gap(results: &Results<'_>) -> Result<Output, Error> {
    let all = [
        Comparison {
            name: "gap",
            title: "Generalisation gap: test error less training error, in % points",
            axis: "gap, % points",
            places: 2,
            paper: published::GAPS,
            figure: &|measured| Some(100.0 * (measured.test.error - measured.train?.error)),
        },
        Comparison {
            name: "train-errors",
            title: "Training error in %, without augmentation",
            axis: "training error, %",
            places: 2,
            paper: &[],
            figure: &|measured| Some(100.0 * measured.train?.error),
        },
    ];
    compared("Generalisation gap", results, &all)
}

/// Tables of several numbers by method, each with a picture; then the chosen settings.
fn compared(title: &str, results: &Results<'_>, all: &[Comparison<'_>]) -> Result<Output, Error> {
    let mut output = Output { title: title.into(), ..Output::default() };
    for comparison in all {
        compare(results, comparison, &mut output)?;
    }
    output.tables.extend(settings(results));
    Ok(output)
}

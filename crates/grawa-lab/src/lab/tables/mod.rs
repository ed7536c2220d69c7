//! What the finished cells of each experiment come to.

mod by_method;
mod communication;
mod curves;
mod exact;
mod gradnorm;
mod scalability;

pub(super) use communication::communication;
pub(super) use curves::curves;
pub(super) use gradnorm::gradnorm;
pub(super) use scalability::scalability;

use super::published;
use super::results::Results;
use super::sheet::Output;
use crate::Error;
use by_method::{Kind, compare, settings};

/// The paper's first table: test errors.
pub(super) fn errors(results: &Results<'_>) -> Result<Output, Error> {
    let kind = Kind {
        name: "errors",
        title: "Test error in %",
        axis: "test error, %",
        places: 2,
        paper: published::ERRORS,
        figure: &|measured| Some(100.0 * measured.test.error),
    };
    compared("Test error by method and network", results, &[kind])
}

/// The paper's second table, with the norm that it is named after.
pub(super) fn flatness(results: &Results<'_>) -> Result<Output, Error> {
    let kinds = [
        Kind {
            name: "ritz-sum",
            title: "Σθ, the sum of the Ritz values, which the paper lists as Frobenius norm",
            axis: "Σθ",
            places: 2,
            paper: published::RITZ_SUMS,
            figure: &|measured| measured.flatness.map(|it| it.ritz_sum),
        },
        Kind {
            name: "frobenius",
            title: "‖H‖_F, the Frobenius norm of the Hessian",
            axis: "‖H‖_F",
            places: 2,
            paper: &[],
            figure: &|measured| measured.flatness.map(|it| it.frobenius),
        },
        Kind {
            name: "largest",
            title: "λ_max, the largest eigenvalue of the Hessian",
            axis: "λ_max",
            places: 2,
            paper: &[],
            figure: &|measured| measured.flatness.map(|it| it.largest),
        },
        Kind {
            name: "trace",
            title: "Trace of the Hessian",
            axis: "trace",
            places: 1,
            paper: &[],
            figure: &|measured| measured.flatness.map(|it| it.trace),
        },
    ];
    compared("How flat the minima are", results, &kinds)
}

/// The paper's generalisation gap, with the training error it comes from.
pub(super) fn gap(results: &Results<'_>) -> Result<Output, Error> {
    let kinds = [
        Kind {
            name: "gap",
            title: "Generalisation gap: test error less training error, in % points",
            axis: "gap, % points",
            places: 2,
            paper: published::GAPS,
            figure: &|measured| Some(100.0 * (measured.test.error - measured.train?.error)),
        },
        Kind {
            name: "train-errors",
            title: "Training error in %, without augmentation",
            axis: "training error, %",
            places: 2,
            paper: &[],
            figure: &|measured| Some(100.0 * measured.train?.error),
        },
    ];
    compared("Generalisation gap", results, &kinds)
}

/// Tables of several figures by method, each with a picture; then the settings that were chosen.
fn compared(title: &str, results: &Results<'_>, kinds: &[Kind<'_>]) -> Result<Output, Error> {
    let mut output = Output { title: title.into(), exact: exact::table(results), ..Output::default() };
    for kind in kinds {
        compare(results, kind, &mut output)?;
    }
    output.sheets.extend(settings(results));
    Ok(output)
}

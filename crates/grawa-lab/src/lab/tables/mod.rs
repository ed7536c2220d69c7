//! The tables and pictures of each experiment.

mod against_first;
mod all_cells;
mod by_method;
mod communication;
mod curves;
mod gradnorm;
mod scalability;

pub(super) use against_first::against_first;
pub(super) use all_cells::all_cells;
pub(super) use communication::communication;
pub(super) use curves::curves;
pub(super) use gradnorm::gradnorm;
pub(super) use scalability::scalability;

use super::published::{ERRORS, GAPS, RITZ_SUMS};
use super::results::Results;
use crate::{Error, Output};
use by_method::{Comparison, compare, settings};

/// The paper's first table.
#[rustfmt::skip]
pub(super) const TEST_ERRORS: [Comparison; 1] = [
    Comparison { name: "errors", title: "Test error in %", axis: "test error, %", places: 2, paper: ERRORS,
        figure: |it| Some(100.0 * it.test.error) },
];

/// The paper's second table, with the norm that it is named after.
#[rustfmt::skip]
pub(super) const FLATNESS: [Comparison; 4] = [
    Comparison { name: "ritz-sum", title: "Σθ, the sum of the Ritz values, which the paper lists as Frobenius norm",
        axis: "Σθ", places: 2, paper: RITZ_SUMS, figure: |it| Some(it.flatness?.ritz_sum) },
    Comparison { name: "frobenius", title: "‖H‖_F, the Frobenius norm of the Hessian",
        axis: "‖H‖_F", places: 2, paper: &[], figure: |it| Some(it.flatness?.frobenius) },
    Comparison { name: "largest", title: "λ_max, the largest eigenvalue of the Hessian",
        axis: "λ_max", places: 2, paper: &[], figure: |it| Some(it.flatness?.largest) },
    Comparison { name: "trace", title: "Trace of the Hessian",
        axis: "trace", places: 1, paper: &[], figure: |it| Some(it.flatness?.trace) },
];

/// The paper's generalisation gap, with the training error.
#[rustfmt::skip]
pub(super) const GAP: [Comparison; 2] = [
    Comparison { name: "gap", title: "Generalisation gap: test error less training error, in % points",
        axis: "gap, % points", places: 2, paper: GAPS, figure: |it| Some(100.0 * (it.test.error - it.train?.error)) },
    Comparison { name: "train-errors", title: "Training error in %, without augmentation",
        axis: "training error, %", places: 2, paper: &[], figure: |it| Some(100.0 * it.train?.error) },
];

/// Tables of several numbers by method, each with a picture; then the chosen settings.
pub(super) fn compared(title: &str, results: &Results<'_>, all: &[Comparison]) -> Result<Output, Error> {
    let mut output = Output { title: title.into(), ..Output::default() };
    for comparison in all {
        compare(results, comparison, &mut output)?;
    }
    output.tables.extend(settings(results));
    Ok(output)
}

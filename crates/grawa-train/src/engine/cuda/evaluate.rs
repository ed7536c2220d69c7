//! Evaluation of models on a GPU: they replace all workers, and each takes every n-th batch, as on the CPU.

use super::batch::{Batch, load_host_batches};
use crate::Error;
use grawa_core::Key;
use grawa_nn::cuda::{Model, ReplicaSet};
use std::sync::Arc;

/// Batches of a worker at a time: those from the host must all fit in its memory.
const AT_ONCE: usize = 16;

/// A worker's batches, with the keys of their augmentation.
pub(super) type Batches = Vec<(Key, Batch)>;

/// The batches of all workers in chunks. A worker with fewer batches than another has empty chunks at the end.
pub(super) fn chunks_of_batches<T>(workers: &[Vec<T>]) -> impl Iterator<Item = Vec<&[T]>> {
    let most = workers.iter().map(Vec::len).max().unwrap_or(0);
    (0..most).step_by(AT_ONCE).map(move |from| {
        let part = |batches: &'_ [T]| from.min(batches.len())..(from + AT_ONCE).min(batches.len());
        workers.iter().map(|batches| &batches[part(batches)]).collect()
    })
}

/// Runs every worker's batches through the model, one of each at a time; `pass` computes the result of one.
fn run_batches<T>(
    set: &mut ReplicaSet,
    model: Model,
    statistics: Option<&[Arc<Vec<f32>>]>,
    requests: &[Batches],
    mut pass: impl FnMut(&mut ReplicaSet, &[Key], Option<&[Vec<u32>]>) -> Result<Vec<T>, grawa_nn::Error>,
) -> Result<Vec<Vec<T>>, Error> {
    set.load_models(&vec![model; requests.len()])?;
    for (worker, statistics) in statistics.into_iter().flatten().enumerate() {
        set.load_statistics(worker, statistics)?;
    }
    let mut found: Vec<Vec<T>> = requests.iter().map(|_| Vec::new()).collect();
    let most = requests.iter().map(Vec::len).max().unwrap_or(0);
    // A worker with fewer batches repeats another's.
    let filler = requests.iter().find_map(|batches| batches.first().cloned());
    for number in 0..most {
        let next = |batches: &Batches| batches.get(number).cloned().or_else(|| filler.clone());
        let (keys, batches): (Vec<Key>, Vec<Batch>) = requests.iter().filter_map(next).unzip();
        let examples = load_host_batches(set, batches)?;
        let results = pass(set, &keys, examples.as_deref())?;
        for ((batches, found), result) in requests.iter().zip(&mut found).zip(results) {
            if number < batches.len() {
                found.push(result);
            }
        }
    }
    Ok(found)
}

/// The same, and restores the workers in any case.
pub(super) fn with_models<T>(
    set: &mut ReplicaSet,
    model: Model,
    statistics: Option<&[Arc<Vec<f32>>]>,
    requests: &[Batches],
    pass: impl FnMut(&mut ReplicaSet, &[Key], Option<&[Vec<u32>]>) -> Result<Vec<T>, grawa_nn::Error>,
) -> Result<Vec<Vec<T>>, Error> {
    let found = run_batches(set, model, statistics, requests, pass);
    set.unload_models()?;
    found
}

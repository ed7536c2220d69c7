//! Evaluation of models on a GPU: they replace all workers, and each takes every n-th batch, as on the CPU. The passes of many batches
//! are enqueued before the first result is read.

use super::batch::{Batch, load_host_batches};
use super::gpu::STRIDE;
use crate::Error;
use crate::worker_set::Shard;
use grawa_core::Key;
use grawa_nn::cuda::{Kept, Model, ReplicaSet, Split};
use std::sync::Arc;

/// The numbered batches of an evaluation, which the shards divide among themselves.
pub(super) struct Batches<'a> {
    /// What is kept of each.
    pub(super) kept: Kept,
    /// How many there are.
    pub(super) count: usize,
    /// Makes the one of this number, with the key of its augmentation.
    pub(super) make: &'a dyn Fn(usize) -> Result<(Key, Batch), Error>,
}

/// What the passes of one worker have kept: the number of each batch, and the result.
pub(super) type Results = Vec<(usize, Vec<f32>)>;

/// The model to evaluate, with these statistics for each worker, or with those of the batches.
pub(super) type Loaded<'a> = (Model, Option<&'a [Arc<Vec<f32>>]>);

/// The number of the batch that a shard has in a pass. Beyond the last there is none.
fn number(shard: &Shard, pass: usize) -> usize {
    shard.shard + pass * shard.of
}

/// How many passes the shard with the most batches needs.
fn passes(shards: &[Shard], batches: usize) -> usize {
    let each = |shard: &Shard| batches.saturating_sub(shard.shard).div_ceil(shard.of.max(1));
    shards.iter().map(each).max().unwrap_or(0)
}

/// Runs the batches of all shards through the model, one of each shard at a time. `take` gets the results of all workers, as many
/// passes at a time as the GPU keeps. Restores the workers in any case.
pub(super) fn measure(
    set: &mut ReplicaSet,
    loaded: Loaded<'_>,
    shards: &[Shard],
    batches: &Batches<'_>,
    alive: &dyn Fn() -> bool,
    take: &mut dyn FnMut(Vec<Results>),
) -> Result<(), Error> {
    let measured = measure_loaded(set, loaded, shards, batches, alive, take);
    set.unload_models()?;
    measured
}

fn measure_loaded(
    set: &mut ReplicaSet,
    (model, statistics): Loaded<'_>,
    shards: &[Shard],
    batches: &Batches<'_>,
    alive: &dyn Fn() -> bool,
    take: &mut dyn FnMut(Vec<Results>),
) -> Result<(), Error> {
    set.load_models(&vec![model; shards.len()])?;
    for (worker, statistics) in statistics.into_iter().flatten().enumerate() {
        set.load_statistics(worker, statistics)?;
    }
    let (all, at_once) = (passes(shards, batches.count), set.passes_at_once().min(STRIDE));
    for first in (0..all).step_by(at_once) {
        if !alive() {
            break;
        }
        let part = first..all.min(first + at_once);
        enqueue(set, shards, batches, part.clone(), alive)?;
        let kept = set.kept_results(batches.kept)?;
        let of_shard = |(shard, results): (&Shard, Vec<Vec<f32>>)| {
            let numbered = part.clone().map(|pass| number(shard, pass)).zip(results);
            numbered.filter(|(number, _)| *number < batches.count).collect()
        };
        take(shards.iter().zip(kept).map(of_shard).collect());
    }
    Ok(())
}

/// Enqueues some passes of all shards.
fn enqueue(
    set: &mut ReplicaSet,
    shards: &[Shard],
    batches: &Batches<'_>,
    part: std::ops::Range<usize>,
    alive: &dyn Fn() -> bool,
) -> Result<(), Error> {
    // A shard that has no batch left repeats one, whose result nobody reads.
    let make = |shard: &Shard, pass: usize| (batches.make)(number(shard, pass) % batches.count);
    let mut assigned: Vec<Vec<u32>> = vec![Vec::new(); shards.len()];
    for pass in part.clone() {
        let (keys, made): (Vec<Key>, Vec<Batch>) =
            (shards.iter().map(|shard| make(shard, pass)).collect::<Result<Vec<_>, _>>()?)
                .into_iter()
                .unzip();
        if pass == part.start {
            let keys: Vec<(Key, u32)> =
                keys.into_iter().zip(shards).map(|(key, shard)| (key, shard.of as u32)).collect();
            set.begin_passes(batches.kept, &keys)?;
        }
        match load_host_batches(set, made)? {
            Some(examples) => {
                assigned.iter_mut().zip(examples).for_each(|(all, examples)| all.extend(examples));
            }
            None => {
                set.enqueue_pass(batches.kept, false)?;
                alive();
            }
        }
    }
    if assigned.iter().all(Vec::is_empty) {
        return Ok(());
    }
    let split = match batches.kept {
        Kept::Statistics => Split::Train,
        Kept::Logits => Split::Test,
    };
    for (worker, examples) in assigned.iter().enumerate() {
        set.assign(split, worker, examples)?;
    }
    part.into_iter().try_for_each(|_| {
        alive();
        Ok(set.enqueue_pass(batches.kept, true)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All batches are measured once, and the shard with the most batches has a batch in the last pass.
    #[test]
    fn shards_divide_all_batches() {
        for (batches, of) in [(0, 1), (1, 4), (7, 3), (8, 4), (79, 4)] {
            let shards: Vec<Shard> = (0..of).map(|shard| Shard { index: shard, shard, of }).collect();
            let all = passes(&shards, batches);
            let mut numbers: Vec<usize> =
                (0..all).flat_map(|pass| shards.iter().map(move |shard| number(shard, pass))).collect();
            assert_eq!(numbers.len(), batches.next_multiple_of(of));
            numbers.retain(|number| *number < batches);
            numbers.sort_unstable();
            assert_eq!(numbers, (0..batches).collect::<Vec<_>>());
        }
    }
}

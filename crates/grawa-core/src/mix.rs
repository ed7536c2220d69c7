//! Executes a [`Plan`] on plain slices: the reference for every other `mix`.
//!
//! One pass over the vectors, in blocks that stay in cache: a block of the centre is summed from all workers in the
//! order of the plan, then the same block of every worker is pulled. A round reads and writes each worker once and the
//! centre once, (2M + 1)·4P bytes for M workers of P parameters (and
//! 4P more to read a centre that moves). Nothing is allocated. The result does not depend on how the
//! vectors are split: [`mix_part`] on any partition gives the same bits.

use crate::error::expect_len;
use crate::method::{Centre, Share, Toward};
use crate::{Error, Layout, Plan, norm};
use std::ops::Range;

/// Floats of one worker in a block. Small blocks keep the streams of all workers open at once: 128 reaches the
/// bandwidth of a plain copy, 512 and more do not (measured).
const BLOCK: usize = 128;

/// Computes the centre and pulls the workers.
///
/// `workers` are in the order of [`Plan::workers`]; `centre` is that of the last round and becomes that of
/// this one, with the velocity of an outer optimizer behind it, see [`Centre::state_len`]. Where gradients are shared,
/// pass the gradients; the centre is then their mean.
///
/// ```
/// use grawa_core::{Layout, Memory, Report, mix, plan};
/// let method = "grawa".parse()?;
/// let report = |worker, score| Report { worker, scores: vec![score], finite: true, steps: 32 };
/// let layout = Layout::flat(1);
/// let plan = plan(&method, &layout, &Memory::default(), &[report(0, 1.0), report(1, 3.0)])?;
/// let (mut a, mut b, mut centre) = ([2.0], [10.0], [0.0]);
/// mix(&plan, &layout, &mut [&mut a, &mut b], &mut centre)?;
/// assert_eq!((centre[0], a[0], b[0]), (4.0, 3.0, 7.0));
/// # Ok::<(), grawa_core::Error>(())
/// ```
pub fn mix(
    plan: &Plan,
    layout: &Layout,
    workers: &mut [&mut [f32]],
    centre: &mut [f32],
) -> Result<(), Error> {
    let len = layout.len();
    let expected = if centre.len() == 2 * len { 2 * len } else { plan.centre.state_len(len) };
    expect_len("the centre", centre.len(), expected)?;
    let (centre, velocity) = centre.split_at_mut(len);
    mix_part(plan, layout, 0, workers, (centre, velocity))?;
    if plan.push > 0.0 {
        let all = workers.iter_mut().enumerate();
        all.for_each(|(seat, worker)| pull_part(plan, seat, worker, &[], centre));
    }
    Ok(())
}

/// [`mix`] for the part of the vectors that starts at `offset`: each thread takes a part. The velocity is the same part, or
/// empty where there is no outer optimizer. A push needs the distance of whole vectors: workers are then left as they are,
/// and [`pull_part`] pulls them afterwards.
pub fn mix_part(
    plan: &Plan,
    layout: &Layout,
    offset: usize,
    workers: &mut [&mut [f32]],
    (centre, velocity): (&mut [f32], &mut [f32]),
) -> Result<(), Error> {
    if matches!(plan.centre, Centre::Outer(_)) {
        expect_len("the velocity of the centre", velocity.len(), centre.len())?;
    }
    for (worker, name) in workers.iter().zip(&plan.workers) {
        if worker.len() != centre.len() {
            let what = format!("the vector of worker {name}");
            return Err(Error::WrongLength { what, found: worker.len(), expected: centre.len() });
        }
    }
    let stretch = offset..offset.saturating_add(centre.len());
    blocks(plan, layout, workers.len(), stretch, |weights, at| {
        let velocity = velocity.get_mut(at.clone()).unwrap_or_default();
        mix_block(plan, weights, workers, (&mut centre[at.clone()], velocity), at);
    })
}

/// The centre of [`mix_part`] alone, where workers are in other processes and call [`pull_part`]. The vector of a worker
/// whose weights are all zero in this part may be empty. For an outer optimizer it is Σβx: [`finish_centre`] takes the step
/// when all parts are there.
///
/// ```
/// use grawa_core::{Layout, Memory, Report, centre_part, plan, pull_part};
/// let method = "grawa".parse()?;
/// let report = |worker, score| Report { worker, scores: vec![score], finite: true, steps: 32 };
/// let layout = Layout::flat(1);
/// let plan = plan(&method, &layout, &Memory::default(), &[report(0, 1.0), report(1, 3.0)])?;
/// let (mut a, mut b, mut centre) = ([2.0], [10.0], [0.0]);
/// centre_part(&plan, &layout, 0, &[&a, &b], &mut centre)?;
/// pull_part(&plan, 0, &mut a, &[0.0], &centre);
/// pull_part(&plan, 1, &mut b, &[0.0], &centre);
/// assert_eq!((centre[0], a[0], b[0]), (4.0, 3.0, 7.0));
/// # Ok::<(), grawa_core::Error>(())
/// ```
pub fn centre_part(
    plan: &Plan,
    layout: &Layout,
    offset: usize,
    workers: &[&[f32]],
    centre: &mut [f32],
) -> Result<(), Error> {
    let stretch = offset..offset.saturating_add(centre.len());
    let mut short = None;
    blocks(plan, layout, workers.len(), stretch, |weights, at| {
        let lacks = |&w: &usize| weights[w] > 0.0 && workers[w].len() < at.end;
        short = short.or((0..workers.len()).find(lacks));
        if short.is_none() {
            centre_block(plan, weights, workers, &mut centre[at.clone()], at);
        }
    })?;
    short.map_or(Ok(()), |worker| {
        let what = format!("the vector of worker {}", plan.workers[worker]);
        expect_len(&what, workers[worker].len(), centre.len())
    })
}

/// What a group keeps after a round: `made` of the parts that [`centre_part`] made, with what was kept `before`. Every
/// member takes the step of an outer optimizer by itself, with the same bits, so that its velocity is never sent.
pub fn finish_centre(plan: &Plan, before: &[f32], mut made: Vec<f32>) -> Vec<f32> {
    let len = made.len();
    made.extend_from_slice(before.get(len..).unwrap_or_default());
    let (centre, velocity) = made.split_at_mut(len);
    if let (Centre::Outer(outer), true) = (plan.centre, plan.has_weights()) {
        for ((centre, velocity), &old) in centre.iter_mut().zip(velocity).zip(before) {
            *centre = outer.step(old, *centre, velocity);
        }
    }
    made
}

/// Pulls the worker at index `seat` of the plan. `mine` is its part of the vector, the whole one if the plan pushes; the others
/// are the same part of the centre before and after the round, and may be longer.
pub fn pull_part(plan: &Plan, seat: usize, mine: &mut [f32], before: &[f32], after: &[f32]) {
    if plan.share == Share::Nothing {
        return;
    }
    let len = mine.len();
    match (plan.replaced[seat], plan.toward) {
        (true, _) => mine.copy_from_slice(&after[..len]),
        (false, Toward::Old) => pull_by(plan, mine, &before[..len]),
        (false, Toward::New) if plan.push > 0.0 && plan.has_weights() => push(plan, mine, &after[..len]),
        (false, Toward::New) => pull_by(plan, mine, &after[..len]),
    }
}

/// x ← x + (λ − push/‖x − target‖)·(target − x), in `f64`: near the target the factor is large and the difference small.
fn push(plan: &Plan, x: &mut [f32], target: &[f32]) {
    let strength = plan.pull_at(norm::distance(x, target), norm::norm(target));
    for (x, &target) in x.iter_mut().zip(target) {
        let wide = f64::from(*x);
        *x = finite((wide + strength * (f64::from(target) - wide)) as f32);
    }
}

/// Splits a part into blocks. No block crosses the end of a span if spans have their own weights.
fn blocks(
    plan: &Plan,
    layout: &Layout,
    workers: usize,
    stretch: Range<usize>,
    mut each: impl FnMut(&[f32], Range<usize>),
) -> Result<(), Error> {
    if workers != plan.workers.len() {
        return Err(Error::WrongWorkers { found: (0..workers as u32).collect() });
    }
    if plan.weights.is_per_span() {
        expect_len("the plan's list of spans", plan.weights.rows().count(), layout.spans().len())?;
    }
    let (offset, end) = (stretch.start, stretch.end);
    if end > layout.len() {
        return Err(Error::WrongLength { what: "the stretch".into(), found: end, expected: layout.len() });
    }
    if plan.share == Share::Nothing {
        return Ok(());
    }
    let mut start = offset;
    while start < end {
        // Spans without their own weights need no separate blocks.
        let (span, span_end) = match layout.span_at(start) {
            Some(span) if plan.weights.is_per_span() => (span, layout.spans()[span].range().end.min(end)),
            _ => (0, end),
        };
        let weights = plan.weights.of(span);
        while start < span_end {
            let stop = (start + BLOCK).min(span_end);
            each(weights, start - offset..stop - offset);
            start = stop;
        }
    }
    Ok(())
}

fn mix_block(
    plan: &Plan,
    weights: &[f32],
    workers: &mut [&mut [f32]],
    (centre, velocity): (&mut [f32], &mut [f32]),
    at: Range<usize>,
) {
    let mut buffer = [0.0f32; BLOCK];
    let average = &mut buffer[..at.len()];
    if !sum_block(weights, workers, &at, average) {
        keep_centre(plan, centre);
        return (workers.iter_mut().zip(&plan.replaced).filter(|(_, lost)| **lost))
            .for_each(|(worker, _)| worker[at.clone()].copy_from_slice(centre));
    }
    if plan.toward == Toward::Old {
        pull_all(plan, workers, centre, &at);
    }
    match plan.centre {
        Centre::Outer(outer) => {
            for ((centre, velocity), &average) in centre.iter_mut().zip(velocity).zip(&*average) {
                *centre = outer.step(*centre, finite(average), velocity);
            }
        }
        _ => move_centre(plan, average, centre),
    }
    if plan.push > 0.0 {
        return;
    }
    if plan.toward == Toward::New {
        pull_all(plan, workers, centre, &at);
    }
    for (worker, _) in workers.iter_mut().zip(&plan.replaced).filter(|(_, lost)| **lost) {
        worker[at.clone()].copy_from_slice(centre);
    }
}

fn centre_block(plan: &Plan, weights: &[f32], workers: &[&[f32]], centre: &mut [f32], at: Range<usize>) {
    let mut buffer = [0.0f32; BLOCK];
    let average = &mut buffer[..at.len()];
    match sum_block(weights, workers, &at, average) {
        true => move_centre(plan, average, centre),
        false => keep_centre(plan, centre),
    }
}

/// No worker is finite: the centre stays. Gradients have no past: the step is zero, not the last one again.
fn keep_centre(plan: &Plan, centre: &mut [f32]) {
    if plan.share == Share::Gradients {
        centre.fill(0.0);
    }
}

/// Σβx in the order of the workers; false if all weights are zero.
fn sum_block<W: AsRef<[f32]>>(
    weights: &[f32],
    workers: &[W],
    at: &Range<usize>,
    average: &mut [f32],
) -> bool {
    // A worker of weight zero is left out, not multiplied: its vector may not be finite.
    let mut weighty = (0..workers.len()).filter(|&w| weights[w] > 0.0);
    let Some(first) = weighty.next() else { return false };
    for (sum, &x) in average.iter_mut().zip(&workers[first].as_ref()[at.clone()]) {
        *sum = weights[first] * x;
    }
    for worker in weighty {
        for (sum, &x) in average.iter_mut().zip(&workers[worker].as_ref()[at.clone()]) {
            *sum += weights[worker] * x;
        }
    }
    true
}

/// Σβx alone, with the bits of [`mix`]; leaves the output unchanged if all weights are zero.
pub(crate) fn average<W: AsRef<[f32]>>(weights: &[f32], workers: &[W], to: &mut [f32]) {
    let all = 0..to.len();
    if sum_block(weights, workers, &all, to) {
        to.iter_mut().for_each(|x| *x = finite(*x));
    }
}

fn move_centre(plan: &Plan, average: &[f32], centre: &mut [f32]) {
    match plan.centre {
        Centre::Weighted | Centre::Outer(_) => {
            for (centre, &average) in centre.iter_mut().zip(average) {
                *centre = finite(average);
            }
        }
        Centre::Moving { rate } => pull(centre, average, rate as f32),
    }
}

fn pull_all(plan: &Plan, workers: &mut [&mut [f32]], centre: &[f32], at: &Range<usize>) {
    for (worker, _) in workers.iter_mut().zip(&plan.replaced).filter(|(_, lost)| !**lost) {
        pull_by(plan, &mut worker[at.clone()], centre);
    }
}

fn pull_by(plan: &Plan, worker: &mut [f32], centre: &[f32]) {
    match plan.pull {
        0.0 => {}
        1.0 => worker.copy_from_slice(centre),
        strength => pull(worker, centre, strength),
    }
}

/// x ← (1−s)·x + s·target.
pub(crate) fn pull(x: &mut [f32], target: &[f32], strength: f32) {
    let keep = 1.0 - strength;
    for (x, &target) in x.iter_mut().zip(target) {
        *x = finite(keep * *x + strength * target);
    }
}

/// Convex combinations of the largest floats may round up to infinity; they are clamped.
pub(crate) fn finite(x: f32) -> f32 {
    x.clamp(f32::MIN, f32::MAX)
}

#[cfg(test)]
mod tests;

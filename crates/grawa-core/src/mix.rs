//! Carrying out a [`Plan`] on plain slices: the reference for every other `mix`.
//!
//! The vectors are walked once, in blocks that stay in cache: a block of the centre is summed from all
//! workers in the order of the plan, then the same block of every worker is pulled. So a round reads and
//! writes each worker once and the centre once, (2M + 1)·4P bytes for M workers of P parameters (and
//! 4P more to read a centre that moves). Nothing is allocated. The result does not depend on how the
//! vectors are split: [`mix_part`] on any partition gives the same bits.

use crate::method::{Centre, Share, Toward};
use crate::{Error, Layout, Plan};

/// Floats of one worker that are worked on at a time. So few that the streams of all workers are open at once
/// and memory is never idle: measured, 128 reaches the bandwidth of a plain copy, 512 and more do not.
const BLOCK: usize = 128;

/// Makes the centre and pulls the workers, as the plan says.
///
/// `workers` are in the order of [`Plan::workers`]; `centre` is that of the last round and becomes that of
/// this one. Where gradients are shared, hand in the gradients; the centre is then their mean.
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
    if centre.len() != layout.len() {
        return Err(Error::WrongLength {
            what: "the centre".into(),
            found: centre.len(),
            expected: layout.len(),
        });
    }
    mix_part(plan, layout, 0, workers, centre)
}

/// [`mix`] for the stretch of the vectors that starts at `offset`: threads take a stretch each.
pub fn mix_part(
    plan: &Plan,
    layout: &Layout,
    offset: usize,
    workers: &mut [&mut [f32]],
    centre: &mut [f32],
) -> Result<(), Error> {
    if workers.len() != plan.workers.len() {
        return Err(Error::WrongWorkers { found: (0..workers.len() as u32).collect() });
    }
    for (worker, name) in workers.iter().zip(&plan.workers) {
        if worker.len() != centre.len() {
            let what = format!("the vector of worker {name}");
            return Err(Error::WrongLength { what, found: worker.len(), expected: centre.len() });
        }
    }
    if plan.weights.is_per_span() && plan.weights.rows().count() != layout.spans().len() {
        let found = plan.weights.rows().count();
        return Err(Error::WrongLength {
            what: "the plan's list of spans".into(),
            found,
            expected: layout.spans().len(),
        });
    }
    let end = offset.saturating_add(centre.len());
    if end > layout.len() {
        return Err(Error::WrongLength { what: "the stretch".into(), found: end, expected: layout.len() });
    }
    if plan.share == Share::Nothing {
        return Ok(());
    }
    let mut start = offset;
    while start < end {
        // Without weights of their own, spans need not be told apart.
        let (span, span_end) = match layout.span_at(start) {
            Some(span) if plan.weights.is_per_span() => (span, layout.spans()[span].range().end.min(end)),
            _ => (0, end),
        };
        let weights = plan.weights.of(span);
        while start < span_end {
            let stop = (start + BLOCK).min(span_end);
            mix_block(plan, weights, workers, centre, start - offset..stop - offset);
            start = stop;
        }
    }
    Ok(())
}

fn mix_block(
    plan: &Plan,
    weights: &[f32],
    workers: &mut [&mut [f32]],
    centre: &mut [f32],
    at: std::ops::Range<usize>,
) {
    let mut buffer = [0.0f32; BLOCK];
    let average = &mut buffer[..at.len()];
    let centre = &mut centre[at.clone()];
    // A worker of no weight is left out, not multiplied by zero: its vector may not be finite.
    let mut weighty = (0..workers.len()).filter(|&w| weights[w] > 0.0);
    let Some(first) = weighty.next() else {
        // Nobody is finite: the old centre stays.
        return (workers.iter_mut().zip(&plan.replaced).filter(|(_, lost)| **lost))
            .for_each(|(worker, _)| worker[at.clone()].copy_from_slice(centre));
    };
    for (sum, &x) in average.iter_mut().zip(&workers[first][at.clone()]) {
        *sum = weights[first] * x;
    }
    for worker in weighty {
        for (sum, &x) in average.iter_mut().zip(&workers[worker][at.clone()]) {
            *sum += weights[worker] * x;
        }
    }
    if plan.toward == Toward::Old {
        pull_all(plan, workers, centre, &at);
    }
    match plan.centre {
        Centre::Weighted => {
            for (centre, &average) in centre.iter_mut().zip(&*average) {
                *centre = finite(average);
            }
        }
        Centre::Moving { rate } => pull(centre, average, rate as f32),
    }
    if plan.toward == Toward::New {
        pull_all(plan, workers, centre, &at);
    }
    for (worker, _) in workers.iter_mut().zip(&plan.replaced).filter(|(_, lost)| **lost) {
        worker[at.clone()].copy_from_slice(centre);
    }
}

fn pull_all(plan: &Plan, workers: &mut [&mut [f32]], centre: &[f32], at: &std::ops::Range<usize>) {
    for (worker, _) in workers.iter_mut().zip(&plan.replaced).filter(|(_, lost)| !**lost) {
        match plan.pull {
            0.0 => {}
            1.0 => worker[at.clone()].copy_from_slice(centre),
            strength => pull(&mut worker[at.clone()], centre, strength),
        }
    }
}

/// x ← (1−s)·x + s·target.
pub(crate) fn pull(x: &mut [f32], target: &[f32], strength: f32) {
    let keep = 1.0 - strength;
    for (x, &target) in x.iter_mut().zip(target) {
        *x = finite(keep * *x + strength * target);
    }
}

/// Convex combinations of the largest numbers there are may round up to infinity; they stay the largest.
fn finite(x: f32) -> f32 {
    x.clamp(f32::MIN, f32::MAX)
}

#[cfg(test)]
mod tests;

//! Checks that every set of workers must pass: its rounds against [`grawa_core::mix()`] on plain slices. For tests: what fails panics and
//! says what.

#![allow(clippy::unwrap_used)]

use super::{Slot, StateVector, Vectors, WorkerSet};
use grawa_comm::Outcome;
use grawa_core::{Key, Layout, Memory, Method, Plan, Purpose, Report, StateKind, mix, plan};
use std::sync::Arc;

/// Methods whose plans differ in kind: weights by worker, by span, one-hot, a centre that moves, pulls to the old centre, outer
/// optimizers, pushes.
const METHODS: [&str; 10] = [
    "mean:pull=1",
    "mgrawa",
    "lgrawa:pull=0.3",
    "lsgd",
    "easgd",
    "easgd:preset=reference",
    "mean:pull=0",
    "mean:pull=1,centre=outer",
    "lgrawa:centre=outer,momentum=0.5,nesterov=false,by_rate=true",
    "mean:push=0.5",
];

fn vector(length: usize, worker: u32, step: u64) -> Vec<f32> {
    let mut draws = Key::new(1, Purpose::Problem).worker(worker).step(step).stream();
    (0..length).map(|_| draws.normal() as f32).collect()
}

fn planned(method: &str, layout: &Layout, workers: u32, lost: Option<u32>) -> Plan {
    let method: Method = method.parse().unwrap();
    let scores = method.scores(layout.spans().len());
    let report = |worker: u32| Report {
        worker,
        scores: (0..scores).map(|span| 1.0 + f64::from(worker) + 0.25 * span as f64).collect(),
        finite: Some(worker) != lost,
        steps: 4,
    };
    plan(&method, layout, &Memory::default(), &(0..workers).map(report).collect::<Vec<_>>()).unwrap()
}

/// Compares two vectors; exactly where the tolerance is zero.
fn same(found: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let off = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(found == expected || off <= tolerance, "{what} is off by {off:e}");
}

/// Rounds of workers that are all here, and of workers that are one part of a larger group. The second kind is compared up to a
/// tolerance, the first kind bit for bit unless `is_exact` is false. A push depends on a distance, whose sum has an order of its own.
pub fn check(set: &mut dyn WorkerSet, layout: &Layout, workers: u32, is_exact: bool) {
    let length = layout.len();
    check_copies(set, length);
    let indices: Vec<usize> = (0..workers as usize).collect();
    for (step, (method, lost)) in
        METHODS.iter().flat_map(|method| [(method, None), (method, Some(workers - 1))]).enumerate()
    {
        let lost = lost.filter(|_| workers > 1);
        let plan = planned(method, layout, workers, lost);
        let start = |worker: u32| match lost == Some(worker) {
            true => vec![f32::NAN; length],
            false => vector(length, worker, step as u64),
        };
        let before = vector(plan.centre.state_len(length), 99, step as u64);
        let mut vectors: Vec<Vec<f32>> = (0..workers).map(start).collect();
        let (mut centre, put) = (before.clone(), vectors.clone());
        let mut slices: Vec<&mut [f32]> = vectors.iter_mut().map(Vec::as_mut_slice).collect();
        mix(&plan, layout, &mut slices, &mut centre).unwrap();

        for is_part in [false, true] {
            let what = format!("{method}, {workers} workers, {lost:?} lost, part: {is_part}");
            for (worker, vector) in put.iter().enumerate() {
                set.put(worker, StateKind::Parameters, vector).unwrap();
            }
            set.set_centre(Slot::All, Arc::new(before.clone())).unwrap();
            let tolerance = if is_part || !is_exact || plan.push > 0.0 { 1e-5 } else { 0.0 };
            if is_part {
                // The other processes have no workers: the centre is that of these.
                let (ids, processes) = ((0..workers).collect::<Vec<_>>(), [(0, (0..workers).collect())]);
                let by_process = plan.by_process(&processes);
                let mut made = before[..length].to_vec();
                let outcome = set.combine(&plan.within(&ids), &indices, Vectors::Parameters, &mut |vector| {
                    grawa_core::centre_part(&by_process, layout, 0, &[vector], &mut made)?;
                    Ok(Outcome { bytes: 7, ..Outcome::default() })
                });
                assert_eq!(outcome.unwrap().bytes, 7, "{what}");
                let after = grawa_core::finish_centre(&by_process, &before, made);
                let members: Vec<(usize, usize)> = indices.iter().map(|&index| (index, index)).collect();
                let centres = (&Arc::new(before.clone()), &Arc::new(after.clone()));
                set.pull(&plan, &members, centres, Vectors::Parameters).unwrap();
                same(&after, &centre, tolerance, &format!("the centre of {what}"));
            } else {
                set.mix(Slot::All, &plan, &indices, Vectors::Parameters).unwrap();
                same(&set.centre(Slot::All).unwrap(), &centre, tolerance, &format!("the centre of {what}"));
            }
            for (worker, expected) in vectors.iter().enumerate() {
                let found = set.copy(worker, StateKind::Parameters).unwrap();
                same(&found, expected, tolerance, &format!("worker {worker} of {what}"));
            }
        }
    }
}

/// Copies that are fetched later are those of the moment at which they were asked for.
fn check_copies(set: &mut dyn WorkerSet, length: usize) {
    let [first, second, third] = [0, 1, 2].map(|step| vector(length, 0, step));
    set.put(0, StateKind::Parameters, &first).unwrap();
    set.set_centre(Slot::All, Arc::new(second.clone())).unwrap();
    let wanted = [StateVector::Centre(Slot::All), StateVector::Worker(0, StateKind::Parameters)];
    let fetch = set.copy_later(&wanted).unwrap();
    set.put(0, StateKind::Parameters, &third).unwrap();
    set.set_centre(Slot::All, Arc::new(third)).unwrap();
    let fetched = std::thread::spawn(move || fetch().unwrap()).join().unwrap();
    assert!(fetched == [second, first], "copies have changed since they were asked for");
}

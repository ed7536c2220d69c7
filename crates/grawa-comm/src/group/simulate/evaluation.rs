//! What a model that is evaluated in the middle of a run must be: the same for all members, and the mean of their vectors.

use super::Schedule;
use super::scheduler::Process;
use grawa_core::{Layout, Plan, mix};
use std::collections::BTreeMap;

/// An evaluation: its epoch, and the operation that makes the model.
pub(super) type Place = (u64, u64);

/// What the members of an evaluation bring, and what the first of them got.
#[derive(Debug, Default)]
pub(super) struct Evaluation {
    vectors: BTreeMap<u32, Vec<f32>>,
    model: Option<Vec<f32>>,
}

/// Two differences are rounded to within 1/256: that of a summand and that of the mean. The rest is the rounding of sums.
fn bound(plan: &Plan, vectors: &[Vec<f32>], base: &[f32], at: usize) -> f32 {
    let farthest = vectors.iter().map(|x| (x[at] - base[at]).abs()).fold(0.0, f32::max);
    farthest * (2.1 / 256.0) + 1e-6 * plan.workers.len() as f32
}

impl Schedule {
    /// A worker is about to bring this vector.
    pub(super) fn bring(&self, place: Place, worker: u32, vector: &[f32]) {
        self.known().evaluations.entry(place).or_default().vectors.insert(worker, vector.to_vec());
    }

    /// A member got this model. `base` is the committed centre.
    pub(super) fn check_model(
        &self,
        process: &Process,
        place: Place,
        plan: &Plan,
        layout: &Layout,
        model: &[f32],
        base: &[f32],
    ) {
        let mut known = self.known();
        let evaluation = known.evaluations.entry(place).or_default();
        let brought = |worker| evaluation.vectors.get(worker).cloned();
        let vectors: Option<Vec<Vec<f32>>> = plan.workers.iter().map(brought).collect();
        let Some(vectors) = vectors else {
            let why = format!("at {place:?} {:?} were evaluated, not all of whom took part", plan.workers);
            return process.world.state().fail(|| why);
        };
        let (mut copies, mut expected) = (vectors.clone(), vec![0.0; model.len()]);
        let mut slices: Vec<&mut [f32]> = copies.iter_mut().map(Vec::as_mut_slice).collect();
        mix(plan, layout, &mut slices, &mut expected).unwrap();
        let is_right = |at: usize| match self.options.bf16 {
            false => model[at].to_bits() == expected[at].to_bits(),
            true => (model[at] - expected[at]).abs() <= bound(plan, &vectors, base, at),
        };
        let wrong: Vec<usize> = (0..model.len()).filter(|at| !is_right(*at)).collect();
        let is_same = evaluation.model.get_or_insert_with(|| model.to_vec()) == model;
        // One forged summand is one wrong number, the same for all: nobody but its sender can know.
        let is_forged = wrong.len() as u64 <= known.forged;
        drop(known);
        if let Some(&at) = wrong.first().filter(|_| !is_forged) {
            let why = format!("at {place:?} {} was evaluated, and the mean is {}", model[at], expected[at]);
            process.world.state().fail(|| why);
        }
        if !is_same {
            process.world.state().fail(|| format!("at {place:?} members evaluate different models"));
        }
    }
}

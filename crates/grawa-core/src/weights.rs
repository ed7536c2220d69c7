//! How scores become weights, and the rules for broken scores.
//!
//! The weight of a worker is inversely proportional to its score, βₘ = (1/sₘ) / Σᵢ(1/sᵢ). Computed as
//! s_min/sₘ over its sum it neither overflows nor underflows, unlike the paper's form with a product of
//! all norms, which is the same number. The rules for scores that break the formula:
//!
//! | score | rule |
//! |---|---|
//! | NaN, infinite, negative | the worker's weight is zero in this round |
//! | zero, or below 10⁻⁹ of the median | counted as 10⁻⁹ of the median (of the smallest positive one where the median is zero): weights stay finite, and a falling function of the score down to zero itself |
//! | none usable, or all usable ones zero | all present workers have equal weights |
//!
//! Every use of a rule is reported, see [`Plan::reasons`](crate::Plan).

/// Scores below this share of the median are raised to it.
const FLOOR: f64 = 1e-9;

/// The effect of the rules on one set of scores: indices into it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rulings {
    /// Scores that were not usable.
    pub unusable: Vec<usize>,
    /// Scores that were raised to the floor.
    pub raised: Vec<usize>,
    /// The floor, if there is one.
    pub floor: Option<f64>,
    /// Whether no score was usable and all present workers have equal weights.
    pub uniform: bool,
}

/// Weights in inverse proportion to the scores. Workers that are not `present` have weight zero.
///
/// ```
/// let mut weights = [0.0; 2];
/// grawa_core::weights::inverse(&[1.0, 3.0], &[true, true], &mut weights);
/// assert_eq!(weights, [0.75, 0.25]);
/// ```
pub fn inverse(scores: &[f64], present: &[bool], weights: &mut [f32]) -> Rulings {
    let mut rulings = Rulings::default();
    let is_usable = |score: f64| score.is_finite() && score >= 0.0;
    let counts = |index: usize| present[index] && is_usable(scores[index]);
    rulings.unusable = (0..scores.len()).filter(|&i| present[i] && !counts(i)).collect();
    let mut sorted: Vec<f64> = (0..scores.len()).filter(|&i| counts(i)).map(|i| scores[i]).collect();
    sorted.sort_by(f64::total_cmp);
    // The upper median: of two scores the larger, so that the smaller can fall below the floor. A single huge score does
    // not raise it.
    let median = sorted.get(sorted.len() / 2).copied().unwrap_or(0.0);
    let middle = if median > 0.0 { Some(median) } else { sorted.iter().copied().find(|&score| score > 0.0) };
    let Some(middle) = middle else {
        rulings.uniform = true;
        uniform(present, weights);
        return rulings;
    };
    // The floor must not vanish for scores near the smallest floats.
    let floor = (FLOOR * middle).max(f64::MIN_POSITIVE);
    rulings.floor = Some(floor);
    let used = |score: f64| score.max(floor);
    let least =
        (0..scores.len()).filter(|&i| counts(i)).map(|i| used(scores[i])).fold(f64::INFINITY, f64::min);
    let total: f64 = (0..scores.len()).filter(|&i| counts(i)).map(|i| least / used(scores[i])).sum();
    for (index, weight) in weights.iter_mut().enumerate() {
        *weight = if counts(index) { (least / used(scores[index]) / total) as f32 } else { 0.0 };
        if counts(index) && scores[index] < floor {
            rulings.raised.push(index);
        }
    }
    rulings
}

/// Equal weights for all present workers.
pub(crate) fn uniform(present: &[bool], weights: &mut [f32]) {
    let share = 1.0 / present.iter().filter(|&&here| here).count().max(1) as f32;
    for (weight, &here) in weights.iter_mut().zip(present) {
        *weight = if here { share } else { 0.0 };
    }
}

/// All weight to the smallest score; the lowest `rank` wins a tie. Returns its index, if any score is finite.
pub(crate) fn smallest(
    scores: &[f64],
    ranks: &[u32],
    present: &[bool],
    weights: &mut [f32],
) -> (Option<usize>, Rulings) {
    let here = |index: &usize| present[*index];
    let unusable = (0..scores.len()).filter(here).filter(|&index| !scores[index].is_finite()).collect();
    let leader = (0..scores.len())
        .filter(here)
        .filter(|&index| scores[index].is_finite())
        .min_by(|&a, &b| scores[a].total_cmp(&scores[b]).then(ranks[a].cmp(&ranks[b])));
    match leader {
        Some(leader) => {
            weights.fill(0.0);
            weights[leader] = 1.0;
        }
        None => uniform(present, weights),
    }
    (leader, Rulings { unusable, uniform: leader.is_none(), ..Rulings::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn inverse_of(scores: &[f64]) -> (Vec<f32>, Rulings) {
        let mut weights = vec![f32::NAN; scores.len()];
        let rulings = inverse(scores, &vec![true; scores.len()], &mut weights);
        (weights, rulings)
    }

    #[test]
    fn zero_and_tiny_scores_count_as_the_floor() {
        for small in [0.0, 1e-300, 1e-9] {
            let (weights, rulings) = inverse_of(&[small, 2.0, 2.0]);
            assert_eq!((rulings.raised, rulings.floor), (vec![0], Some(2e-9)));
            assert!((f64::from(weights[1]) / 1e-9 - 1.0).abs() < 1e-6, "{weights:?}");
        }
    }

    #[test]
    fn scores_that_are_no_numbers_weigh_nothing() {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0] {
            let (weights, rulings) = inverse_of(&[1.0, bad, 3.0]);
            assert_eq!((weights.as_slice(), rulings.unusable.as_slice()), (&[0.75, 0.0, 0.25][..], &[1][..]));
        }
    }

    #[test]
    fn with_nothing_usable_all_weigh_the_same() {
        for scores in [[f64::NAN, f64::INFINITY], [0.0, 0.0], [0.0, f64::NAN]] {
            let (weights, rulings) = inverse_of(&scores);
            assert!(rulings.uniform);
            assert_eq!(weights, [0.5, 0.5]);
        }
    }

    #[test]
    fn the_absent_weigh_nothing_in_any_case() {
        let mut weights = [9.0; 3];
        inverse(&[1.0, 1.0, 3.0], &[false, true, true], &mut weights);
        assert_eq!(weights, [0.0, 0.75, 0.25]);
        uniform(&[false, true, true], &mut weights);
        assert_eq!(weights, [0.0, 0.5, 0.5]);
        assert_eq!(smallest(&[1.0, 2.0, 3.0], &[0, 1, 2], &[false, true, true], &mut weights).0, Some(1));
        assert_eq!(weights, [0.0, 1.0, 0.0]);
    }

    #[test]
    fn the_lowest_rank_wins_a_tie() {
        let mut weights = [0.0; 3];
        assert_eq!(smallest(&[2.0, -1.0, -1.0], &[7, 9, 4], &[true; 3], &mut weights).0, Some(2));
        assert_eq!(smallest(&[f64::NAN; 3], &[7, 9, 4], &[true; 3], &mut weights).0, None);
    }

    /// Any finite or broken score, over the whole range of f64.
    fn any_score() -> impl Strategy<Value = f64> {
        prop_oneof![8 => (-300.0f64..300.0).prop_map(|e| 10f64.powf(e)), 1 => Just(0.0), 1 => proptest::num::f64::ANY]
    }

    fn ordinary() -> impl Strategy<Value = Vec<f64>> {
        vec(1e-2f64..1e2, 1..12)
    }

    proptest! {
        #[test]
        fn weights_are_finite_and_sum_to_one(scores in vec(any_score(), 1..20)) {
            let (weights, _) = inverse_of(&scores);
            prop_assert!(weights.iter().all(|&w| (0.0..=1.0).contains(&w)));
            prop_assert!((weights.iter().map(|&w| f64::from(w)).sum::<f64>() - 1.0).abs() < 1e-6);
        }

        #[test]
        fn a_common_scale_changes_nothing(scores in vec(1e-4f64..1e4, 1..12), exponent in -900i32..900) {
            let scaled: Vec<f64> = scores.iter().map(|s| s * 2f64.powi(exponent)).collect();
            prop_assert_eq!(inverse_of(&scores).0, inverse_of(&scaled).0);
        }

        #[test]
        fn permuted_workers_get_permuted_weights(scores in vec(any_score(), 1..12), seed: u64) {
            let order = crate::Key::new(seed, crate::Purpose::Problem).permutation(scores.len() as u32);
            let permuted: Vec<f64> = order.iter().map(|&i| scores[i as usize]).collect();
            let (weights, _) = inverse_of(&scores);
            for (found, &from) in inverse_of(&permuted).0.iter().zip(&order) {
                prop_assert!((found - weights[from as usize]).abs() <= 2e-7);
            }
        }

        #[test]
        fn a_larger_score_weighs_less(scores in ordinary(), pick: prop::sample::Index, more in 1.01f64..100.0) {
            prop_assume!(scores.len() > 1);
            let index = pick.index(scores.len());
            let mut raised = scores.clone();
            raised[index] *= more;
            prop_assert!(inverse_of(&raised).0[index] < inverse_of(&scores).0[index]);
        }

        /// Also where the floor is at work, from zero to the largest numbers there are.
        #[test]
        fn a_larger_score_never_weighs_more(mut scores in vec((-300.0f64..300.0).prop_map(|e| 10f64.powf(e)), 2..9), low in any_score(), high in any_score()) {
            prop_assume!(low.is_finite() && high.is_finite() && 0.0 <= low && low <= high);
            scores[0] = low;
            let before = inverse_of(&scores).0[0];
            scores[0] = high;
            prop_assert!(inverse_of(&scores).0[0] <= before * (1.0 + 1e-6));
        }

        /// The paper's Θ = Π‖gᵢ‖ / Σᵢ(Πⱼ‖gⱼ‖ / ‖gᵢ‖) is the same as normalising the inverse.
        #[test]
        fn the_papers_theta_gives_the_same_weights(scores in ordinary()) {
            let product: f64 = scores.iter().product();
            let theta = product / scores.iter().map(|s| product / s).sum::<f64>();
            for (weight, score) in inverse_of(&scores).0.iter().zip(&scores) {
                prop_assert!((f64::from(*weight) - theta / score).abs() < 1e-6);
            }
        }
    }
}

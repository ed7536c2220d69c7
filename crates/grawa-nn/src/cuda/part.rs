//! A round's plan, split into the parts that cards carry out.

use grawa_core::Plan;
use std::ops::Range;

/// One card's part in a round: some of its workers in a row, what they weigh, who of them stays as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// The first of them, as the card counts.
    pub(super) first: usize,
    pub(super) members: usize,
    /// By span, or once for all: the weight of each, and behind them whether anybody on any card has one.
    pub(super) rows: Vec<f32>,
    /// Who takes no part, and who becomes the centre; a bit each.
    pub(super) absent: u64,
    pub(super) replaced: u64,
}

impl Part {
    /// The part of these workers, the first of whom is the card's `first`-th. Those that the plan does not name are lost:
    /// they have no weight and stay as they are. There are no more than 64.
    ///
    /// ```
    /// use grawa_core::{Layout, Memory, Report, plan};
    /// use grawa_nn::cuda::Part;
    /// let reports = [0, 1, 3].map(|worker| Report { worker, scores: vec![], finite: true, steps: 8 });
    /// let plan = plan(&"mean".parse()?, &Layout::flat(5), &Memory::default(), &reports)?;
    /// // Workers 0 and 1 on one card, 2 (who is lost) and 3 on another.
    /// assert!(Part::new(&plan, 0..2, 0) != Part::new(&plan, 2..4, 0));
    /// # Ok::<(), grawa_core::Error>(())
    /// ```
    pub fn new(plan: &Plan, workers: Range<u32>, first: usize) -> Self {
        let seats: Vec<Option<usize>> =
            workers.map(|worker| plan.workers.iter().position(|&other| other == worker)).collect();
        let bits = |is: &dyn Fn(Option<usize>) -> bool| {
            seats.iter().take(64).enumerate().fold(0, |bits, (m, &seat)| bits | u64::from(is(seat)) << m)
        };
        let row = |weights: &[f32]| {
            let any = weights.iter().any(|&weight| weight > 0.0);
            let own = seats.iter().map(|seat| seat.map_or(0.0, |seat| weights[seat]));
            own.chain([f32::from(u8::from(any))]).collect::<Vec<f32>>()
        };
        Part {
            first,
            members: seats.len(),
            rows: plan.weights.rows().flat_map(row).collect(),
            absent: bits(&|seat| seat.is_none()),
            replaced: bits(&|seat| seat.is_some_and(|seat| plan.replaced[seat])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use grawa_core::{Layout, Memory, Report, plan};
    use proptest::prelude::*;

    const SPANS: usize = 3;

    fn planned(method: &str, here: &[bool], finite: impl Fn(u32) -> bool) -> Plan {
        let layout = Layout::new([("a", vec![5]), ("b", vec![1]), ("c", vec![7])]).unwrap();
        let method: grawa_core::Method = method.parse().unwrap();
        let reports: Vec<Report> = (0..)
            .zip(here)
            .filter(|(_, here)| **here)
            .map(|(worker, _)| Report {
                worker,
                scores: (0..method.scores(SPANS)).map(|k| 1.0 + f64::from(worker) + k as f64).collect(),
                finite: finite(worker),
                steps: 4,
            })
            .collect();
        plan(&method, &layout, &Memory::default(), &reports).unwrap()
    }

    proptest! {
        /// Wherever the cut is, every worker has its weights in one part, and only there.
        #[test]
        fn parts_make_the_plan(
            here in prop::collection::vec(any::<bool>(), 2..12),
            cut in 1usize..11,
            lost in 0u32..12,
            method in prop::sample::select(vec!["mean", "mgrawa", "lgrawa", "lsgd", "easgd"]),
        ) {
            prop_assume!(here.iter().any(|&here| here));
            let (cut, all) = (cut.min(here.len() - 1) as u32, here.len() as u32);
            let plan = planned(method, &here, |worker| worker != lost);
            let parts = [Part::new(&plan, 0..cut, 0), Part::new(&plan, cut..all, 5)];
            prop_assert_eq!((parts[0].first, parts[1].first), (0, 5));
            let rows = plan.weights.rows().count();
            for (part, workers) in parts.iter().zip([0..cut, cut..all]) {
                prop_assert_eq!(part.members, workers.len());
                prop_assert_eq!(part.rows.len(), rows * (part.members + 1));
                for (m, worker) in workers.enumerate() {
                    let seat = plan.workers.iter().position(|&other| other == worker);
                    prop_assert_eq!(part.absent >> m & 1 == 1, seat.is_none());
                    prop_assert_eq!(part.replaced >> m & 1 == 1, seat.is_some_and(|seat| plan.replaced[seat]));
                    for (weights, row) in plan.weights.rows().zip(part.rows.chunks(part.members + 1)) {
                        prop_assert_eq!(row[m], seat.map_or(0.0, |seat| weights[seat]));
                    }
                }
                for (weights, row) in plan.weights.rows().zip(part.rows.chunks(part.members + 1)) {
                    prop_assert_eq!(row[part.members] > 0.0, weights.iter().any(|&weight| weight > 0.0));
                }
            }
        }
    }

    /// A card none of whose workers weigh anything still hears that others' do.
    #[test]
    fn who_weighs_nothing_still_hears_of_the_others() {
        let plan = planned("lsgd", &[true, true], |_| true);
        assert_eq!(Part::new(&plan, 1..2, 0).rows, [0.0, 1.0]);
        let nobody = planned("mean", &[true, true], |_| false);
        assert_eq!(Part::new(&nobody, 1..2, 0).rows, [0.0, 0.0]);
    }
}

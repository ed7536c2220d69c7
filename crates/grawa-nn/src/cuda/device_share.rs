//! The share of each GPU in a round.

use grawa_core::Plan;
use std::ops::Range;

/// One GPU's share of a round: consecutive workers, their weights, and which of them stay as they are.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceShare {
    /// The index of the first worker on the GPU.
    pub(super) first: usize,
    pub(super) members: usize,
    /// By span, or once for all: the weight of each worker, and then whether any worker on any GPU has a weight.
    pub(super) rows: Vec<f32>,
    /// One bit for each worker: whether it is absent, and whether it becomes the centre.
    pub(super) absent: u64,
    pub(super) replaced: u64,
}

impl DeviceShare {
    /// The share of these workers, the first of which has index `first` on the GPU. Workers that the plan does not name are lost:
    /// they have no weight and stay as they are. At most 64.
    ///
    /// ```
    /// use grawa_core::{Layout, Memory, Report, plan};
    /// use grawa_nn::cuda::DeviceShare;
    /// let reports = [0, 1, 3].map(|worker| Report { worker, scores: vec![], finite: true, steps: 8 });
    /// let plan = plan(&"mean".parse()?, &Layout::flat(5), &Memory::default(), &reports)?;
    /// // Workers 0 and 1 on one GPU, 2 (lost) and 3 on another.
    /// assert!(DeviceShare::new(&plan, 0..2, 0) != DeviceShare::new(&plan, 2..4, 0));
    /// # Ok::<(), grawa_core::Error>(())
    /// ```
    pub fn new(plan: &Plan, workers: Range<u32>, first: usize) -> Self {
        let position = |worker| plan.workers.iter().position(|&other| other == worker);
        DeviceShare::at(plan, &workers.map(position).collect::<Vec<_>>(), first)
    }

    /// The share of workers with these positions in the plan.
    pub(super) fn at(plan: &Plan, positions: &[Option<usize>], first: usize) -> Self {
        let bits = |is: &dyn Fn(Option<usize>) -> bool| {
            positions
                .iter()
                .take(64)
                .enumerate()
                .fold(0, |bits, (m, &position)| bits | u64::from(is(position)) << m)
        };
        let row = |weights: &[f32]| {
            let any = weights.iter().any(|&weight| weight > 0.0);
            let own = positions.iter().map(|position| position.map_or(0.0, |position| weights[position]));
            own.chain([f32::from(u8::from(any))]).collect::<Vec<f32>>()
        };
        DeviceShare {
            first,
            members: positions.len(),
            rows: plan.weights.rows().flat_map(row).collect(),
            absent: bits(&|position| position.is_none()),
            replaced: bits(&|position| position.is_some_and(|position| plan.replaced[position])),
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
        /// Wherever the workers are divided, every worker has its weights in exactly one share.
        #[test]
        fn shares_make_the_plan(
            here in prop::collection::vec(any::<bool>(), 2..12),
            cut in 1usize..11,
            lost in 0u32..12,
            method in prop::sample::select(vec!["mean", "mgrawa", "lgrawa", "lsgd", "easgd"]),
        ) {
            prop_assume!(here.iter().any(|&here| here));
            let (cut, all) = (cut.min(here.len() - 1) as u32, here.len() as u32);
            let plan = planned(method, &here, |worker| worker != lost);
            let shares = [DeviceShare::new(&plan, 0..cut, 0), DeviceShare::new(&plan, cut..all, 5)];
            prop_assert_eq!((shares[0].first, shares[1].first), (0, 5));
            let rows = plan.weights.rows().count();
            for (share, workers) in shares.iter().zip([0..cut, cut..all]) {
                prop_assert_eq!(share.members, workers.len());
                prop_assert_eq!(share.rows.len(), rows * (share.members + 1));
                for (m, worker) in workers.enumerate() {
                    let position = plan.workers.iter().position(|&other| other == worker);
                    prop_assert_eq!(share.absent >> m & 1 == 1, position.is_none());
                    prop_assert_eq!(share.replaced >> m & 1 == 1, position.is_some_and(|position| plan.replaced[position]));
                    for (weights, row) in plan.weights.rows().zip(share.rows.chunks(share.members + 1)) {
                        prop_assert_eq!(row[m], position.map_or(0.0, |position| weights[position]));
                    }
                }
                for (weights, row) in plan.weights.rows().zip(share.rows.chunks(share.members + 1)) {
                    prop_assert_eq!(row[share.members] > 0.0, weights.iter().any(|&weight| weight > 0.0));
                }
            }
        }
    }

    /// A GPU whose workers have no weight still learns that others have one.
    #[test]
    fn a_share_without_weights_knows_of_the_others() {
        let plan = planned("lsgd", &[true, true], |_| true);
        assert_eq!(DeviceShare::new(&plan, 1..2, 0).rows, [0.0, 1.0]);
        let nobody = planned("mean", &[true, true], |_| false);
        assert_eq!(DeviceShare::new(&nobody, 1..2, 0).rows, [0.0, 0.0]);
    }
}

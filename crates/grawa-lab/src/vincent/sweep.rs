//! Which valley each method ends in, over pull × learning rate × edge rule.
//!
//! The paper leaves these open; a single setting can be chosen to show anything. Every run is independent, so
//! they run on all cores, and the result is in a fixed order whatever the number of cores.

use super::record::Cell;
use super::run::run_to_end;
use super::setting::{Edge, Setting};
use crate::Error;
use grawa_core::{Method, Pull};
use rayon::prelude::*;

/// The grid of a sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct Grid {
    /// The pulls λ.
    pub pulls: Vec<f64>,
    /// The learning rates.
    pub rates: Vec<f64>,
    /// The edge rules.
    pub edges: Vec<Edge>,
}

impl Default for Grid {
    /// λ from 0.05 to 1 in 20 steps, 18 learning rates from 0.001 to 0.05, ten to the decade, and all edge rules:
    /// 1,080 settings.
    fn default() -> Self {
        Grid {
            pulls: (1..=20).map(|i| f64::from(i) / 20.0).collect(),
            rates: vec![
                0.001, 0.0013, 0.0016, 0.002, 0.0025, 0.0032, 0.004, 0.005, 0.0063, 0.008, 0.01, 0.013,
                0.016, 0.02, 0.025, 0.032, 0.04, 0.05,
            ],
            edges: Edge::ALL.into(),
        }
    }
}

impl Grid {
    /// How many settings a method is run in.
    pub fn len(&self) -> usize {
        self.pulls.len() * self.rates.len() * self.edges.len()
    }

    /// Whether there is nothing to run.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Runs each method in each setting of the grid. `base` says how many steps from where; a method's pull, and the
/// rate of a centre that follows it, are the grid's. `done` is called after each run, from any thread.
pub fn sweep(
    grid: &Grid,
    methods: &[Method],
    base: &Setting,
    done: impl Fn() + Sync,
) -> Result<Vec<Cell>, Error> {
    let mut cells = Vec::with_capacity(grid.len() * methods.len());
    for &edge in &grid.edges {
        for method in methods {
            for &rate in &grid.rates {
                cells.extend(grid.pulls.iter().map(|&pull| {
                    let setting = Setting { method: with_pull(method, pull), rate, edge, ..base.clone() };
                    (setting, pull)
                }));
            }
        }
    }
    (cells.into_par_iter())
        .map(|(setting, pull)| {
            let end = run_to_end(&setting)?;
            done();
            let (method, edge) = (setting.method.name.to_string(), setting.edge.to_string());
            Ok(Cell { method, edge, pull, rate: setting.rate, end })
        })
        .collect()
}

/// The method with another λ, and with it the ρ of a moving centre, as in the paper's grids.
fn with_pull(method: &Method, pull: f64) -> Method {
    let centre = match method.centre {
        grawa_core::Centre::Moving { .. } => grawa_core::Centre::Moving { rate: pull },
        fixed @ grawa_core::Centre::Weighted => fixed,
    };
    let pull = match method.pull {
        Pull::Fixed(_) => Pull::Fixed(pull),
        shared @ Pull::RateOverWorkers => shared,
    };
    Method { pull, centre, ..method.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vincent::{CORNERS, METHODS, method};

    #[test]
    fn the_default_grid_has_more_than_a_thousand_settings() {
        let grid = Grid::default();
        assert!(
            grid.len() >= 1000
                && grid.rates.is_sorted()
                && grid.pulls.contains(&0.5)
                && grid.rates.contains(&0.01)
        );
    }

    #[test]
    fn cells_come_in_order_and_equal_single_runs() {
        let grid =
            Grid { pulls: vec![0.3, 0.9], rates: vec![0.01, 0.02], edges: vec![Edge::Clip, Edge::None] };
        let methods: Vec<Method> =
            METHODS.iter().map(|name| method(name.as_str(), 0.5, 4).unwrap()).collect();
        let base = Setting {
            method: methods[0].clone(),
            rate: 0.01,
            steps: 200,
            starts: CORNERS.into(),
            edge: Edge::None,
        };
        let count = std::sync::atomic::AtomicUsize::new(0);
        let cells = sweep(&grid, &methods, &base, || {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        })
        .unwrap();
        assert_eq!((cells.len(), count.into_inner()), (64, 64));
        for cell in &cells {
            let single = Setting {
                method: method(&cell.method, cell.pull, 4).unwrap(),
                rate: cell.rate,
                edge: cell.edge.parse().unwrap(),
                ..base.clone()
            };
            let end = run_to_end(&single).unwrap();
            assert_eq!(end.outcome, cell.end.outcome);
        }
        assert_eq!((cells[0].edge.as_str(), cells[0].pull, cells[1].pull), ("clip", 0.3, 0.9));
    }
}

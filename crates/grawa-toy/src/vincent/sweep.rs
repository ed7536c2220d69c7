//! The valley each method ends in, over pull × learning rate × edge rule.
//!
//! The paper leaves these open; a single setting can be chosen to show anything. Runs are independent and use all cores.
//! The order of the results is fixed.

use super::edge::Edge;
use super::experiment::Experiment;
use super::run::End;
use crate::Error;
use grawa_core::{Centre, Method, Pull};
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
    /// The number of settings of a method.
    pub fn size(&self) -> usize {
        self.pulls.len() * self.rates.len() * self.edges.len()
    }
}

/// One run of a sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// The method's name.
    pub method: &'static str,
    /// The edge rule.
    pub edge: Edge,
    /// The pull λ.
    pub pull: f64,
    /// The learning rate.
    pub rate: f64,
    /// Where it ended.
    pub end: End,
}

impl Experiment {
    /// Runs each method in each setting of the grid. The grid sets a method's pull, and the rate of a centre that follows
    /// it. `done` is called after each run, from any thread.
    pub fn cells(&self, grid: &Grid, done: impl Fn() + Sync) -> Result<Vec<Cell>, Error> {
        let mut cells = Vec::with_capacity(grid.size() * self.methods.len());
        for &edge in &grid.edges {
            Experiment { edge, ..self.clone() }.check()?;
            for method in &self.methods {
                for &rate in &grid.rates {
                    cells.extend(grid.pulls.iter().map(|&pull| (edge, method, rate, pull)));
                }
            }
        }
        let run = |(edge, method, rate, pull)| {
            let end = Experiment { edge, rate, ..self.clone() }.trace(&with_pull(method, pull))?.end;
            done();
            Ok(Cell { method: method.name.as_str(), edge, pull, rate, end })
        };
        cells.into_par_iter().map(run).collect()
    }
}

/// The method with another λ, and with it the ρ of a moving centre, as in the paper's grids.
fn with_pull(method: &Method, pull: f64) -> Method {
    let centre = match method.centre {
        Centre::Moving { .. } => Centre::Moving { rate: pull },
        fixed @ (Centre::Weighted | Centre::Outer(_)) => fixed,
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
    use crate::vincent::{CORNERS, method, methods};

    #[test]
    fn the_default_grid_has_more_than_a_thousand_settings() {
        let grid = Grid::default();
        assert!(grid.size() >= 1000 && grid.rates.is_sorted());
        assert!(grid.pulls.contains(&0.5) && grid.rates.contains(&0.01));
    }

    #[test]
    fn cells_come_in_order_and_equal_single_runs() {
        let grid =
            Grid { pulls: vec![0.3, 0.9], rates: vec![0.01, 0.02], edges: vec![Edge::Clip, Edge::None] };
        let methods = methods().map(|name| method(name.as_str(), 0.5, 4).unwrap()).collect();
        let base = Experiment { methods, rate: 0.01, steps: 200, starts: CORNERS.into(), edge: Edge::None };
        let count = std::sync::atomic::AtomicUsize::new(0);
        let cells = base.cells(&grid, || {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        });
        let cells = cells.unwrap();
        let expected = 8 * base.methods.len();
        assert_eq!((cells.len(), count.into_inner()), (expected, expected));
        for cell in &cells {
            let single = Experiment { rate: cell.rate, edge: cell.edge, ..base.clone() };
            let path = single.trace(&method(cell.method, cell.pull, 4).unwrap()).unwrap();
            assert_eq!(path.end.outcome, cell.end.outcome);
        }
        assert_eq!((cells[0].edge, cells[0].pull, cells[1].pull), (Edge::Clip, 0.3, 0.9));
    }
}

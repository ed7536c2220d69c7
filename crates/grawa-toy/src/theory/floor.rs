//! The error floor under a constant step: the limit of f(x) − f* for the workers and for the centre, its growth with the
//! step, and its distance to the paper's bound ηLσ²/(2m).

use super::estimate::{Estimate, exponent};
use super::problem::Problem;
use super::table::{Cell, table};
use super::{METHODS, Scale, by_method, method};
use crate::Output;
use crate::picture::chart::{Chart, Line};
use grawa_core::{Error, Name, Replica};

/// The long-run mean of f − f*.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Floor {
    workers: f64,
    /// NaN where the method has no centre.
    centre: f64,
}

/// One of the two.
type Part = fn(&Floor) -> f64;

/// How a group of workers is run.
struct Setting<'a> {
    name: &'static str,
    problem: &'a Problem,
    workers: usize,
    period: u32,
    /// Whether the pull is what the theory allows, ηλ with λ = m, or 0.5.
    weak: bool,
    seeds: u64,
}

impl Setting<'_> {
    fn pull(&self, rate: f64) -> f64 {
        if self.weak { rate * self.problem.strong } else { 0.5 }
    }

    /// `length` is the time that is averaged over, in units of the slowest direction's 1/(ηm).
    fn measure(&self, name: Name, rate: f64, seed: u64, length: f64) -> Result<Floor, Error> {
        let starts = vec![self.problem.start_at_minimiser(); self.workers];
        let mut group = self.problem.group(method(name, self.pull(rate), self.period), seed, &starts)?;
        let unit = 1.0 / (rate * self.problem.strong);
        for _ in 0..(8.0 * unit) as u64 {
            group.advance(rate as f32)?;
        }
        let steps = (length * unit) as u64;
        let mut floor = Floor { workers: 0.0, centre: if name == Name::Sgd { f64::NAN } else { 0.0 } };
        for _ in 0..steps {
            group.advance(rate as f32)?;
            floor.centre += self.problem.excess(group.centre()) / steps as f64;
            let all: f64 =
                group.replicas().iter_mut().map(|worker| self.problem.excess(worker.parameters())).sum();
            floor.workers += all / (steps as f64 * self.workers as f64);
        }
        Ok(floor)
    }
}

/// The exact floors on a quadratic of workers pulled to their plain mean after every step; of a single worker
/// it is that of SGD.
fn exact(problem: &Problem, eigenvalues: &[f64], rate: f64, pull: f64, workers: f64) -> Floor {
    // Curvature, and the variances of the mean and of a worker for noise of variance 1 in the coordinate.
    let variances = eigenvalues.iter().map(|l| {
        let settled = |keep: f64| rate * rate * keep * keep / (1.0 - (keep * (1.0 - rate * l)).powi(2));
        let mean = settled(1.0) / workers;
        (l, mean, mean + settled(1.0 - pull) * (1.0 - 1.0 / workers))
    });
    let noise = problem.variance / problem.dim() as f64;
    variances.fold(Floor { workers: 0.0, centre: 0.0 }, |floor, (l, mean, worker)| Floor {
        workers: floor.workers + l * noise * worker / 2.0,
        centre: floor.centre + l * noise * mean / 2.0,
    })
}

/// ηLσ²/(2m).
fn bound(problem: &Problem, rate: f64) -> f64 {
    rate * problem.smooth * problem.variance / (2.0 * problem.strong)
}

pub(super) fn run(scale: Scale) -> Result<Output, crate::Error> {
    let (quadratic, logistic) = (Problem::quadratic(10, 10.0)?, Problem::logistic(1, 5, 40, 0.1)?);
    let mut noisy = quadratic.clone();
    noisy.has_noisy_scores = true;
    let full: Vec<f64> = [1.0, 2.0, 4.0, 8.0].map(|part| 0.4 / part).into();
    let rates = if scale == Scale::Full { &full[..] } else { &full[..2] };
    let length = scale.pick(20, 30) as f64;
    let setting = |name, problem, workers, period, weak, seeds| {
        let seeds = scale.pick(2, seeds);
        Setting { name, problem, workers, period, weak, seeds }
    };
    let settings = [
        setting("every step, ηλ, M = 4", &quadratic, 4, 1, true, 24),
        setting("every step, ηλ, M = 16", &quadratic, 16, 1, true, 4),
        setting("every 8 steps, 0.5, M = 4", &quadratic, 4, 8, false, 8),
        setting("every step, ηλ, M = 4, scores of a batch", &noisy, 4, 1, true, 8),
        setting("logistic, every step, ηλ, M = 4", &logistic, 4, 1, true, 5),
    ];
    let count = |setting: &Setting<'_>| setting.seeds * rates.len() as u64;
    let floors = by_method(&settings, count, |setting, name, number| {
        let (rate, seed) = (number / setting.seeds, number % setting.seeds);
        // Every rate has its own draws; all methods share them.
        setting.measure(name, rates[rate as usize], rate << 32 | seed, length)
    })?;

    let (mut against_exact, mut rows, mut lines) = (Vec::new(), Vec::new(), Vec::new());
    for (index, of_setting) in floors.chunks(METHODS.len()).enumerate() {
        // The first method is SGD.
        let sgd = &of_setting[0].2;
        for (setting, name, runs) in of_setting {
            let name = *name;
            let found = Runs { runs, seeds: setting.seeds as usize, rates };
            if index == 0 {
                let points = rates.iter().copied().zip(found.means(|floor| floor.workers));
                let points = points.map(|(rate, mean)| (rate, mean.value)).rev().collect();
                lines.push(Line { name: name.title().into(), points });
                if let (Name::Sgd | Name::Mean, Some(eigenvalues)) = (name, setting.problem.eigenvalues()) {
                    against_exact.extend(found.against_exact(setting, eigenvalues, name));
                }
            }
            let ratio = |part: Part| {
                // At the smallest step, seed by seed: all methods see the same noise.
                let last = runs.len() - found.seeds;
                Estimate::of((last..runs.len()).map(|run| part(&runs[run]) / sgd[run].workers))
            };
            rows.push(vec![
                setting.name.into(),
                name.title().into(),
                ratio(|floor| floor.workers).into(),
                found.exponent(|floor| floor.workers).into(),
                ratio(|floor| floor.centre).into(),
                found.exponent(|floor| floor.centre).into(),
            ]);
        }
    }
    let bounds = rates.iter().rev().map(|&rate| (rate, bound(&quadratic, rate)));
    lines.push(Line { name: "bound ηLσ²/(2m)".into(), points: bounds.collect() });
    Ok(Output {
        tables: vec![
            table(
                "floor_exact",
                "The error floor of SGD and of the plain mean against its exact value",
                format!(
                    "Long-run mean of f − f* under a constant step η on a {}, σ² = 1, M = 4, a pull of ηm after \
                     every step. ± is one standard error over {} seeds. The bound is the paper's ηLσ²/(2m).",
                    quadratic.name, settings[0].seeds
                ),
                &["who", "η", "measured", "exact", "bound", "bound ÷ exact"],
                against_exact,
            ),
            table(
                "floor",
                "The error floor by method, against SGD's",
                format!(
                    "Floors at η = {}, divided by that of SGD on the same noise, and the exponent a of floor ∝ ηᵃ \
                     for η from there to {}. A pull of ηλ is the theory's, with λ = m; 0.5 is the algorithm's default. {}.",
                    rates[rates.len() - 1],
                    rates[0],
                    [&quadratic, &logistic].map(|problem| problem.name.as_str()).join("; ")
                ),
                &["pulled", "method", "workers ÷ SGD", "exponent", "centre ÷ SGD", "centre's exponent"],
                rows,
            ),
        ],
        figures: vec![
            Chart::new("The error floor of the workers", ["η", "mean of f − f*"], [true, true], lines)
                .figure("floor")?,
        ],
        ..Output::default()
    })
}

/// The runs of one method in one setting: all seeds of the first rate, then of the next.
struct Runs<'a> {
    runs: &'a [Floor],
    seeds: usize,
    rates: &'a [f64],
}

impl Runs<'_> {
    /// For every rate.
    fn means(&self, part: Part) -> Vec<Estimate> {
        self.runs.chunks(self.seeds).map(|runs| Estimate::of(runs.iter().map(part))).collect()
    }

    /// Fitted for every seed separately.
    fn exponent(&self, part: Part) -> Estimate {
        let point = |seed, (index, &rate): (usize, &f64)| (rate, part(&self.runs[index * self.seeds + seed]));
        let fit = |seed| self.rates.iter().enumerate().map(|rate| point(seed, rate)).collect::<Vec<_>>();
        Estimate::of((0..self.seeds).map(|seed| exponent(&fit(seed))))
    }

    fn against_exact(&self, setting: &Setting<'_>, eigenvalues: &[f64], name: Name) -> Vec<Vec<Cell>> {
        let workers = if name == Name::Sgd { 1.0 } else { setting.workers as f64 };
        let parts: [(&str, Part); 2] = [("workers", |floor| floor.workers), ("centre", |floor| floor.centre)];
        let mut rows = Vec::new();
        for (who, part) in parts.into_iter().take(if name == Name::Sgd { 1 } else { 2 }) {
            for (&rate, measured) in self.rates.iter().zip(self.means(part)) {
                let exact = part(&exact(setting.problem, eigenvalues, rate, setting.pull(rate), workers));
                let bound = bound(setting.problem, rate);
                let who = Cell::from(format!("{}, {who}", name.title()).as_str());
                let ratio = bound / exact;
                rows.push(vec![who, rate.into(), measured.into(), exact.into(), bound.into(), ratio.into()]);
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SGD and the plain mean, workers and centre: within four standard errors, which
    /// are themselves small.
    #[test]
    fn floors_meet_their_exact_values() {
        let problem = Problem::quadratic(6, 5.0).unwrap();
        let setting = Setting { name: "", problem: &problem, workers: 4, period: 1, weak: true, seeds: 12 };
        for (name, workers) in [(Name::Sgd, 1.0), (Name::Mean, 4.0)] {
            let runs: Vec<Floor> =
                (0..40).map(|seed| setting.measure(name, 0.25, seed, 200.0).unwrap()).collect();
            let exact = exact(&problem, problem.eigenvalues().unwrap(), 0.25, setting.pull(0.25), workers);
            let meets = |part: Part| {
                let found = Estimate::of(runs.iter().map(part));
                assert!(found.error < 0.008 * part(&exact), "{name}: {found:?}");
                assert!(
                    (found.value - part(&exact)).abs() < 4.0 * found.error,
                    "{name}: {found:?} {exact:?}"
                );
            };
            meets(|floor| floor.workers);
            if name == Name::Mean {
                meets(|floor| floor.centre);
            }
        }
    }

    #[test]
    fn the_exact_floor_of_sgd_is_the_known_sum() {
        let problem = Problem::quadratic(10, 10.0).unwrap();
        let eigenvalues = problem.eigenvalues().unwrap();
        let known: f64 = eigenvalues.iter().map(|l| 0.5 * 0.2 * 0.1 / (2.0 - 0.2 * l)).sum();
        assert!((exact(&problem, eigenvalues, 0.2, 0.3, 1.0).workers / known - 1.0).abs() < 1e-12);
    }

    #[test]
    fn the_floor_is_proportional_to_the_step() {
        let problem = Problem::quadratic(10, 10.0).unwrap();
        let rates = [0.1, 0.025];
        let setting = Setting { name: "", problem: &problem, workers: 4, period: 1, weak: true, seeds: 6 };
        for name in [Name::Sgd, Name::Grawa] {
            let runs: Vec<Floor> = (rates.iter().flat_map(|&rate| (0..6).map(move |seed| (rate, seed))))
                .map(|(rate, seed)| setting.measure(name, rate, seed, 30.0).unwrap())
                .collect();
            let found = Runs { runs: &runs, seeds: 6, rates: &rates }.exponent(|floor| floor.workers);
            assert!((found.value - 1.0).abs() < 0.15 && found.error < 0.05, "{name}: {found:?}");
            // Far below the bound, whose constant is that of the worst direction.
            assert!(runs.iter().all(|run| run.workers < 0.2 * bound(&problem, 0.1)));
        }
    }
}

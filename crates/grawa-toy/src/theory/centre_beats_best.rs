//! How often the centre is at least as good as the best worker, f(x_C) ≤ minᵢ f(xᵢ), which the paper states as a
//! theorem; also the weaker f(x_C) ≤ Σβᵢf(xᵢ), which follows from convexity, and f(x_C) ≤ mean f.

use super::estimate::Frequency;
use super::problem::Problem;
use super::table::{Cell, table};
use super::{Scale, method};
use crate::picture::chart::{Chart, Line};
use crate::{Output, TableOutput};
use grawa_core::{Error, Key, Name, Purpose, Replica};
use rayon::prelude::*;

/// The numbers of workers; every crowd is drawn once, and its first M are used.
const WORKERS: [usize; 4] = [2, 4, 8, 16];
const WEIGHTINGS: [Name; 2] = [Name::Grawa, Name::Mean];
/// What rounding a centre to `f32` may add to its value, relative to the workers' mean.
const ROUNDING: f64 = 1e-6;

/// The positions of the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scenario {
    /// Independent normal numbers around the minimiser.
    Around,
    /// In the stationary state of SGD.
    Settled,
    /// Descending from a common start, with a tenth of the error left.
    Descending,
}

impl Scenario {
    const ALL: [Scenario; 3] = [Scenario::Around, Scenario::Settled, Scenario::Descending];

    fn name(self) -> &'static str {
        ["around the minimiser", "settled", "descending"][self as usize]
    }
}

/// The largest step of the theory.
fn rate(problem: &Problem) -> f64 {
    0.5 / problem.smooth
}

/// Draws workers. On a quadratic the law of SGD after any number of steps is normal and known, so no steps are taken.
fn crowd(problem: &Problem, scenario: Scenario, workers: usize, trial: u64) -> Result<Vec<Vec<f32>>, Error> {
    let (mean, steps) = match scenario {
        Scenario::Around => {
            return Ok(normal(&problem.minimiser, &vec![1.0; problem.dim()], workers, trial));
        }
        // Long enough: the slowest direction keeps 10⁻⁸ of its start.
        Scenario::Settled => (problem.minimiser.clone(), (20.0 * problem.smooth / problem.strong) as i32),
        Scenario::Descending => far(problem, trial),
    };
    let Some(eigenvalues) = problem.eigenvalues() else {
        return walk(problem, &mean, steps, workers, trial);
    };
    let noise = problem.variance / problem.dim() as f64;
    let law = mean.iter().zip(eigenvalues).map(|(x, l)| {
        let (rate, keep) = (rate(problem), (1.0 - rate(problem) * l).powi(steps));
        (x * keep, (rate * noise * (1.0 - keep * keep) / (l * (2.0 - rate * l))).sqrt())
    });
    let (mean, deviation): (Vec<f64>, Vec<f64>) = law.unzip();
    Ok(normal(&mean, &deviation, workers, trial))
}

fn normal(mean: &[f64], deviation: &[f64], workers: usize, trial: u64) -> Vec<Vec<f32>> {
    let one = |worker| {
        let mut draws = Key::new(0, Purpose::Problem).worker(worker).step(trial).stream();
        mean.iter().zip(deviation).map(|(m, d)| (m + d * draws.normal()) as f32).collect()
    };
    (0..workers as u32).map(one).collect()
}

/// SGD without communication.
fn walk(
    problem: &Problem,
    start: &[f64],
    steps: i32,
    workers: usize,
    trial: u64,
) -> Result<Vec<Vec<f32>>, Error> {
    let start: Vec<f32> = start.iter().map(|&x| x as f32).collect();
    let mut group = problem.group(method(Name::Sgd, 0.0, 1), trial, &vec![start; workers])?;
    for _ in 0..steps {
        group.advance(rate(problem) as f32)?;
    }
    Ok(group.replicas().iter_mut().map(|worker| worker.parameters().to_vec()).collect())
}

/// A start in a random direction where the error is a thousand times what SGD settles at, and the steps of
/// exact descent until a tenth of it is left.
fn far(problem: &Problem, trial: u64) -> (Vec<f64>, i32) {
    let mut draws = Key::new(1, Purpose::Problem).step(trial).stream();
    let direction: Vec<f64> = (0..problem.dim()).map(|_| draws.normal()).collect();
    let at =
        |far: f64| problem.minimiser.iter().zip(&direction).map(|(x, d)| x + far * d).collect::<Vec<f64>>();
    let target = 1000.0 * rate(problem) * problem.variance / 4.0;
    let (mut low, mut high) = (0.0, 1.0);
    while problem.excess(&at(high)) < target {
        high *= 2.0;
    }
    for _ in 0..40 {
        let middle = (low + high) / 2.0;
        (low, high) = if problem.excess(&at(middle)) < target { (middle, high) } else { (low, middle) };
    }
    let (mut x, mut gradient, mut steps) = (at(high), vec![0.0; problem.dim()], 0);
    while problem.evaluate(&x, &mut gradient) > target / 10.0 {
        x.iter_mut().zip(&gradient).for_each(|(x, g)| *x -= rate(problem) * g);
        steps += 1;
    }
    (at(high), steps)
}

/// f − f* at the centre of a round, at its best worker, and averaged over its workers with its weights and plainly.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judged {
    pub(super) centre: f64,
    pub(super) best: f64,
    weighted: f64,
    mean: f64,
}

/// A round of these workers, as in training.
pub(super) fn judge(problem: &Problem, weighting: Name, workers: &[Vec<f32>]) -> Result<Judged, Error> {
    let values: Vec<f64> = workers.iter().map(|x| problem.excess(x)).collect();
    let mut group = problem.group(method(weighting, 0.0, 1), 0, workers)?;
    let plans = group.round()?;
    let weights = plans.iter().flat_map(|plan| plan.weights.of(0));
    Ok(Judged {
        centre: problem.excess(group.centre()),
        best: values.iter().copied().fold(f64::INFINITY, f64::min),
        weighted: weights.zip(&values).map(|(&weight, value)| f64::from(weight) * value).sum(),
        mean: values.iter().sum::<f64>() / values.len() as f64,
    })
}

/// How often each statement held, and the worst ratio of the centre to the mean.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Tally {
    best: Frequency,
    weighted: Frequency,
    mean: Frequency,
    worst: f64,
}

impl Tally {
    fn count(&mut self, judged: Judged) {
        let slack = ROUNDING * judged.mean;
        self.best.count(judged.centre <= judged.best);
        self.weighted.count(judged.centre <= judged.weighted + slack);
        self.mean.count(judged.centre <= judged.mean + slack);
        self.worst = self.worst.max(judged.centre / judged.mean);
    }
}

/// For every number of workers and weighting.
type Tallies = [[Tally; WEIGHTINGS.len()]; WORKERS.len()];

type Found<'a> = (Scenario, &'a Problem, Tallies);

fn tally(problem: &Problem, scenario: Scenario, trials: u64) -> Result<Tallies, Error> {
    let mut tallies = Tallies::default();
    for trial in 0..trials {
        let crowd = crowd(problem, scenario, WORKERS[WORKERS.len() - 1], trial)?;
        for (tallies, workers) in tallies.iter_mut().zip(WORKERS) {
            for (tally, weighting) in tallies.iter_mut().zip(WEIGHTINGS) {
                tally.count(judge(problem, weighting, &crowd[..workers])?);
            }
        }
    }
    Ok(tallies)
}

pub(super) fn run(scale: Scale) -> Result<Output, crate::Error> {
    let mut problems = Vec::new();
    for condition in [1.0, 10.0, 100.0, 1000.0] {
        for dim in [2, 20, 200] {
            problems.push(Problem::quadratic(dim, condition)?);
        }
    }
    problems.push(Problem::logistic(1, 5, 40, 0.1)?);
    let jobs: Vec<_> =
        Scenario::ALL.into_iter().flat_map(|scenario| problems.iter().map(move |p| (scenario, p))).collect();
    let trials = scale.pick(20, 1000);
    let one = |(scenario, problem)| Ok((scenario, problem, tally(problem, scenario, trials)?));
    let found: Vec<Found<'_>> = jobs.into_par_iter().map(one).collect::<Result<_, Error>>()?;

    let counts = WORKERS.map(|workers| format!("M = {workers}"));
    let header: Vec<&str> =
        ["workers", "problem"].into_iter().chain(counts.iter().map(String::as_str)).collect();
    let of = |which: usize, name, title: &str| {
        let explanation =
            format!("Share of {trials} random crowds of workers in which it held, with its 95 % interval.");
        let row = |(scenario, problem, tallies): &Found<'_>| {
            let labels = [Cell::from(scenario.name()), problem.name.as_str().into()];
            labels.into_iter().chain(tallies.map(|tallies| tallies[which].best.into())).collect()
        };
        table(name, title, explanation, &header, found.iter().map(row).collect())
    };
    let lines = Scenario::ALL.into_iter().flat_map(|scenario| {
        let found = &found;
        WEIGHTINGS.into_iter().enumerate().map(move |(which, weighting)| Line {
            name: format!("{}, {}", weighting.title(), scenario.name()),
            points: (found.iter())
                .filter(|(s, problem, _)| *s == scenario && problem.dim() == 20)
                .map(|(_, problem, tallies)| (problem.condition(), tallies[1][which].best.value()))
                .collect(),
        })
    });
    Ok(Output {
        tables: vec![
            of(0, "centre_beats_best", "How often GRAWA's centre is at least as good as the best worker"),
            of(1, "mean_beats_best", "The same with uniform weights"),
            weaker(&found),
        ],
        figures: vec![
            Chart::new(
                "How often the centre is no worse than the best worker: quadratics, d = 20, M = 4",
                ["condition number", "share"],
                [true, false],
                lines.collect(),
            )
            .figure("centre_beats_best")?,
        ],
        ..Output::default()
    })
}

/// The weaker statements, all problems of a scenario together.
fn weaker(found: &[Found<'_>]) -> TableOutput {
    let mut rows = Vec::new();
    for scenario in Scenario::ALL {
        for (index, workers) in WORKERS.into_iter().enumerate() {
            let mut all = Tally::default();
            for (_, _, tallies) in found.iter().filter(|(s, _, _)| *s == scenario) {
                let one = tallies[index][0];
                for (sum, part) in [(&mut all.weighted, one.weighted), (&mut all.mean, one.mean)] {
                    *sum = Frequency { hits: sum.hits + part.hits, trials: sum.trials + part.trials };
                }
                all.worst = all.worst.max(one.worst);
            }
            let (name, workers) = (scenario.name().into(), (workers as f64).into());
            rows.push(vec![name, workers, all.weighted.into(), all.mean.into(), all.worst.into()]);
        }
    }
    table(
        "weaker_statements",
        "What holds instead for GRAWA's centre",
        "All problems above together. The last column is the largest (f(x_C) − f*) ÷ mean (f(xᵢ) − f*) \
                      that was seen; it is proved to stay below √κ.",
        &["workers", "M", "f(x_C) ≤ Σβᵢf(xᵢ)", "f(x_C) ≤ mean f(xᵢ)", "largest ratio to the mean"],
        rows,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        /// Jensen, and the two bounds that are proved on the theory page.
        #[test]
        fn what_is_proved_holds(seed: u64, exponent in 0.0f64..3.0, crowd in vec(vec(-10.0f32..10.0, 5), 1..9), shrink in vec(-3.0f32..0.0, 9)) {
            let crowd: Vec<Vec<f32>> = (crowd.into_iter().zip(shrink))
                .map(|(x, s)| x.into_iter().map(|x| x * 10f32.powf(s)).collect())
                .collect();
            let logistic = Problem::logistic(seed, 5, 20, 0.1).unwrap();
            for problem in [logistic, Problem::quadratic(5, 10f64.powf(exponent)).unwrap()] {
                let condition = problem.smooth / problem.strong;
                for weighting in WEIGHTINGS {
                    let judged = judge(&problem, weighting, &crowd).unwrap();
                    let slack = ROUNDING * judged.mean;
                    prop_assert!(judged.centre <= judged.weighted + slack, "{judged:?}");
                    if weighting == Name::Grawa {
                        prop_assert!(judged.centre <= condition.sqrt() * judged.mean + slack, "{judged:?}");
                        let worst = (condition * crowd.len() as f64).powi(2);
                        prop_assert!(judged.centre <= worst * judged.best + slack, "{judged:?}");
                    }
                }
            }
        }
    }

    /// The law that is drawn from is that of the steps of SGD.
    #[test]
    fn drawn_workers_are_like_those_that_walked() {
        let problem = Problem::quadratic(4, 10.0).unwrap();
        for scenario in [Scenario::Settled, Scenario::Descending] {
            let (start, steps) = match scenario {
                Scenario::Descending => far(&problem, 3),
                _ => (vec![0.0; 4], 200),
            };
            let drawn = crowd(&problem, scenario, 4000, 3).unwrap();
            let walked = walk(&problem, &start, steps, 4000, 3).unwrap();
            for i in 0..4 {
                let moments = |crowd: &[Vec<f32>]| {
                    let mean = crowd.iter().map(|x| f64::from(x[i])).sum::<f64>() / 4000.0;
                    (mean, crowd.iter().map(|x| (f64::from(x[i]) - mean).powi(2)).sum::<f64>() / 4000.0)
                };
                let (a, b) = (moments(&drawn), moments(&walked));
                // Five standard errors of the difference of two means and of two variances.
                assert!((a.0 - b.0).abs() < 5.0 * (2.0 * b.1 / 4000.0).sqrt(), "{scenario:?}: {a:?} {b:?}");
                assert!(
                    (a.1 / b.1 - 1.0).abs() < 5.0 * (4.0f64 / 4000.0).sqrt(),
                    "{scenario:?}: {a:?} {b:?}"
                );
            }
        }
    }

    #[test]
    fn far_is_far_and_a_tenth_is_left() {
        for problem in [Problem::quadratic(20, 100.0).unwrap(), Problem::logistic(1, 5, 40, 0.1).unwrap()] {
            let (start, steps) = far(&problem, 0);
            let target = 250.0 * rate(&problem) * problem.variance;
            assert!((problem.excess(&start) / target - 1.0).abs() < 1e-6 && steps > 0);
        }
    }
}

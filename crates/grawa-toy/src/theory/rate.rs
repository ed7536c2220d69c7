//! The rate under a step that falls like 1/t: whether E[f − f*] falls like 1/t as well, for the workers and
//! for the centre.

use super::estimate::{Estimate, exponent};
use super::problem::Problem;
use super::table::table;
use super::{Scale, by_method, method};
use crate::Output;
use grawa_core::{Error, Name, Replica};

/// Bins an octave of time.
const BINS: usize = 2;

/// Points (t + t₀, f − f*): means over bins of equal length in log t.
#[derive(Clone, Debug, Default, PartialEq)]
struct Curve {
    workers: Vec<(f64, f64)>,
    /// Empty where the method has no centre.
    centre: Vec<(f64, f64)>,
}

/// How a group of workers is run.
#[derive(Clone, Copy)]
struct Setting<'a> {
    problem: &'a Problem,
    workers: usize,
    /// Whether the pull falls with the step, as the theory has it: ηλ with λ = m. Else it is m/(2L), the
    /// strongest that the theory allows at all.
    falls: bool,
    seeds: u64,
}

impl Setting<'_> {
    /// η = c/(t + t₀) with c = 2/m and t₀ = 4κ, so that it starts at 1/(2L). Time is counted from −t₀; the
    /// first tenfold of it is skipped. A falling pull changes from bin to bin: the workers continue in a new group, whose
    /// centre starts as their mean.
    fn measure(&self, name: Name, seed: u64, octaves: usize) -> Result<Curve, Error> {
        let Setting { problem, workers, falls, .. } = *self;
        let condition = problem.condition();
        let edge = |bin: usize| 4.0 * condition * libm::pow(2.0, bin as f64 / BINS as f64);
        // Seven half octaves are a little more than a tenfold.
        let (skip, mut time) = (7, edge(0));
        let mut places = vec![problem.start_at_minimiser(); workers];
        let mut curve = Curve::default();
        for bin in 0..skip + octaves * BINS {
            let middle = (edge(bin) * edge(bin + 1)).sqrt();
            let pull = if falls { 2.0 / middle } else { 0.5 / condition };
            // Every bin counts its steps from 0, so it needs its own draws.
            let mut group = problem.group(method(name, pull, 1), seed << 8 | bin as u64, &places)?;
            let (mut steps, mut all, mut centre) = (0.0, 0.0, 0.0);
            while time < edge(bin + 1) {
                group.advance((2.0 / (problem.strong * time)) as f32)?;
                time += 1.0;
                steps += 1.0;
                for worker in group.replicas() {
                    all += problem.excess(worker.parameters()) / workers as f64;
                }
                centre += problem.excess(group.centre());
            }
            for (place, worker) in places.iter_mut().zip(group.replicas()) {
                place.copy_from_slice(worker.parameters());
            }
            if bin >= skip {
                curve.workers.push((middle, all / steps));
                curve.centre.extend((name != Name::Sgd).then_some((middle, centre / steps)));
            }
        }
        Ok(curve)
    }
}

/// Fitted for every seed separately.
fn fit(curves: &[Curve], part: fn(&Curve) -> &Vec<(f64, f64)>) -> Estimate {
    Estimate::of(curves.iter().map(|curve| exponent(part(curve))))
}

pub(super) fn run(scale: Scale) -> Result<Output, crate::Error> {
    let (quadratic, logistic) = (Problem::quadratic(10, 10.0)?, Problem::logistic(1, 5, 40, 0.1)?);
    let setting =
        |problem, workers, falls, seeds| Setting { problem, workers, falls, seeds: scale.pick(2, seeds) };
    let settings = [
        setting(&quadratic, 4, true, 16),
        setting(&quadratic, 16, true, 4),
        setting(&quadratic, 4, false, 8),
        setting(&logistic, 4, true, 8),
    ];
    let octaves = scale.pick(2, 5) as usize;
    let curves = by_method(
        &settings,
        |setting| setting.seeds,
        |setting, name, seed| setting.measure(name, seed, octaves),
    )?;
    let rows = curves.iter().map(|(setting, name, runs)| {
        vec![
            setting.problem.name.as_str().into(),
            (setting.workers as f64).into(),
            if setting.falls { "ηm" } else { "m/(2L)" }.into(),
            name.title().into(),
            fit(runs, |curve| &curve.workers).into(),
            fit(runs, |curve| &curve.centre).into(),
        ]
    });
    Ok(Output {
        tables: vec![table(
            "rate",
            "The rate under a step that falls like 1/t",
            format!(
                "Exponent a of f − f* ∝ (t + t₀)ᵃ with η = 2/(m·(t + t₀)), t₀ = 4κ, pulled after every step, \
                 fitted over {octaves} octaves after the first tenfold of time. ± is one standard error over seeds."
            ),
            &["problem", "M", "pull", "method", "workers", "centre"],
            rows.collect(),
        )],
        ..Output::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_falls_like_one_over_time() {
        let problem = Problem::quadratic(10, 10.0).unwrap();
        let setting = Setting { problem: &problem, workers: 4, falls: true, seeds: 12 };
        for name in [Name::Sgd, Name::Grawa, Name::Lsgd] {
            let curves: Vec<Curve> = (0..12).map(|seed| setting.measure(name, seed, 4).unwrap()).collect();
            let found = fit(&curves, |curve| &curve.workers);
            assert!((found.value + 1.0).abs() < 0.15 && found.error < 0.06, "{name}: {found:?}");
        }
    }
}

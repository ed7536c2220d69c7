//! Exact counterexamples to statements in the paper, each with a statement that holds.
//!
//! Every check is an inequality with numbers on both sides, computed by the code that trains networks.

use super::centre_beats_best::{Judged, judge};
use super::problem::{Problem, dot};
use super::table::{Cell, table};
use super::{Scale, method};
use crate::Output;
use grawa_core::weights::inverse;
use grawa_core::{Error, Key, Layout, Memory, Name, Prox, Purpose, Replica, Report, Sgd, mix, plan, step};
use std::f64::consts::SQRT_2;

/// An inequality left ≤ right: the statement, the case, left, right, and whether it is proved to hold in every case.
struct Check(&'static str, &'static str, f64, f64, bool);

impl Check {
    fn holds(&self) -> bool {
        self.2 <= self.3 * (1.0 + 1e-6)
    }
}

/// ‖Σβᵢgᵢ‖², Σ‖βᵢgᵢ‖² and MΘ for gradients gᵢ, with GRAWA's weights.
fn combined(gradients: &[Vec<f64>]) -> [f64; 3] {
    let norms: Vec<f64> = gradients.iter().map(|g| dot(g, g).sqrt()).collect();
    let mut weights = vec![0.0; norms.len()];
    inverse(&norms, &vec![true; norms.len()], &mut weights);
    let weights: Vec<f64> = weights.into_iter().map(f64::from).collect();
    let mut sum = vec![0.0; gradients.first().map_or(0, Vec::len)];
    for (gradient, weight) in gradients.iter().zip(&weights) {
        sum.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += weight * g);
    }
    let parts = norms.iter().zip(&weights).map(|(norm, weight)| (norm * weight).powi(2)).sum();
    let theta = 1.0 / norms.iter().map(|norm| 1.0 / norm).sum::<f64>();
    [dot(&sum, &sum), parts, norms.len() as f64 * theta]
}

/// The spread of two workers on ½‖x‖²·m after steps with a pull of ηλ·`sign`: 1 is toward the centre, −1 is the
/// sign of the paper's non-convex proof.
fn spread(sign: f32, steps: u32) -> Result<f64, Error> {
    const RATE: f32 = 0.1;
    const CURVATURE: f32 = 0.1;
    const PULL: f32 = 0.5;
    let layout = Layout::flat(1);
    let method = method(Name::Mean, 0.0, 1);
    let report = |worker| Report { worker, scores: Vec::new(), finite: true, steps: 1 };
    let plan = plan(&method, &layout, &Memory::default(), &[report(0), report(1)])?;
    let (mut a, mut b, mut centre) = ([2.0f32], [1.0f32], [0.0f32]);
    for _ in 0..steps {
        mix(&plan, &layout, &mut [&mut a, &mut b], &mut centre)?;
        for x in [&mut a, &mut b] {
            let gradient = [CURVATURE * x[0]];
            let prox = Prox { centre: centre.as_slice(), strength: sign * RATE * PULL };
            step::descend(&Sgd::PLAIN, RATE, x, &mut [0.0], &gradient, &[prox])?;
        }
    }
    Ok(f64::from(a[0] - b[0]).abs())
}

/// Mean ‖∇f‖² over ten steps of M workers that start together without noise, and F(x⁰) − F* over Nη times three:
/// the first term of the paper's non-convex bound before it is divided by M.
fn together(workers: usize) -> Result<[f64; 2], Error> {
    const STEPS: u32 = 10;
    let mut problem = Problem::quadratic(2, 10.0)?;
    problem.variance = 0.0;
    let rate = 0.25 / problem.smooth;
    let start = vec![1.0f32; 2];
    let mut group = problem.group(method(Name::Grawa, 0.1, 1), 0, &vec![start.clone(); workers])?;
    let (mut total, mut gradient) = (0.0, vec![0.0; 2]);
    for _ in 0..STEPS {
        for worker in group.replicas() {
            problem.evaluate(worker.parameters(), &mut gradient);
            total += dot(&gradient, &gradient);
        }
        group.advance(rate as f32)?;
    }
    let first_term = 3.0 * problem.excess(&start) / (f64::from(STEPS) * rate);
    Ok([total / (f64::from(STEPS) * workers as f64), first_term])
}

fn checks() -> Result<Vec<Check>, Error> {
    let [square, parts, bound] = combined(&vec![vec![1.0, 0.0]; 4]);
    let line = Problem::quadratic(1, 1.0)?;
    let Judged { centre, best, .. } = judge(&line, Name::Grawa, &[vec![1.0], vec![1000.0]])?;
    // On ½x² the gradient is x, and |x| = √(2f).
    let [steepness, least] = [centre, best].map(|value| f64::sqrt(2.0 * value));
    let valley = Problem::quadratic(2, 100.0)?;
    let slope = |x: &[f64]| {
        let mut gradient = vec![0.0; 2];
        (valley.evaluate(x, &mut gradient), dot(&gradient, &gradient).sqrt())
    };
    let (a, b) = (slope(&[0.0, 1.0]), slope(&[20.0, 0.0]));
    debug_assert!(a.0 <= b.0);
    let [gradients, term] = together(64)?;
    let (same_side, two_sides) =
        ("f = ½x², x = 1 and 1000", "curvatures 0.01 and 1, a = (0, 1), b = (20, 0)");
    let spreads = "spread after 100 steps ≤ before";
    Ok(vec![
        Check("‖Σβᵢgᵢ‖² ≤ Σ‖βᵢgᵢ‖²", "four equal gradients of norm 1", square, parts, false),
        Check("‖Σβᵢgᵢ‖ ≤ MΘ", "the same", square.sqrt(), bound, true),
        Check("‖∇f(x_C)‖ ≤ √M·min ‖∇f(xᵢ)‖", same_side, steepness, SQRT_2 * least, false),
        Check("‖∇f(x_C)‖ ≤ M·min ‖∇f(xᵢ)‖, f quadratic", same_side, steepness, 2.0 * least, true),
        Check("f(x_C) ≤ min f(xᵢ)", same_side, centre, best, false),
        Check("k‖x − x*‖ ≤ f(x) − f*", "f = ½x², k = 1, x = 1", 1.0, line.excess(&[1.0]), false),
        Check("‖∇f(a)‖ ≤ ‖∇f(b)‖ if f(a) ≤ f(b)", two_sides, a.1, b.1, false),
        Check(spreads, "pull with the sign of the proof", spread(-1.0, 100)?, spread(-1.0, 0)?, false),
        Check(spreads, "pull toward the centre", spread(1.0, 100)?, spread(1.0, 0)?, true),
        Check("mean ‖∇F‖² ≤ 3(F⁰ − F*)/(MNη)", "64 equal workers, no noise", gradients, term / 64.0, false),
        Check("mean ‖∇F‖² ≤ 3(F⁰ − F*)/(Nη)", "the same", gradients, term, true),
        // y² = 1, β = ½ and ρ = 0 meet the assumptions xᵢᵀxⱼ ≤ y² and βᵢβⱼ ≤ (ρ² + y²)/(y²M²).
        Check("‖x_m − x_C‖² ≤ ρ²", "x = 1 and −1, β = ½, ρ = 0", 1.0, 0.0, false),
    ])
}

/// The best k, μ and L of a function over points whose distance from the minimiser is 0.1 to 10.
fn constants(problem: &Problem, samples: u64) -> [f64; 3] {
    let (mut cone, mut slope, mut smooth) = (f64::INFINITY, f64::INFINITY, 0.0f64);
    let mut gradient = vec![0.0; problem.dim()];
    for sample in 0..samples {
        let mut draws = Key::new(2, Purpose::Problem).step(sample).stream();
        let direction: Vec<f64> = (0..problem.dim()).map(|_| draws.normal()).collect();
        let radius = libm::pow(10.0, 2.0 * f64::from(draws.unit()) - 1.0);
        let scale = radius / dot(&direction, &direction).sqrt();
        let x: Vec<f64> = problem.minimiser.iter().zip(&direction).map(|(x, d)| x + scale * d).collect();
        let excess = problem.evaluate(&x, &mut gradient);
        let norm = dot(&gradient, &gradient).sqrt();
        cone = cone.min(excess / radius);
        slope = slope.min(norm / excess);
        smooth = smooth.max(norm / radius);
    }
    [cone, slope, smooth]
}

/// Gradient norms of a worker in a sharp valley of curvature 10 and one in a flat valley of curvature 0.1, and their weights.
fn flatness() -> [(&'static str, [f64; 4]); 4] {
    const SHARP: f64 = 10.0;
    const FLAT: f64 = 0.1;
    let settled = |l: f64| (0.05 * l / (2.0 - 0.05 * l)).sqrt();
    [
        ("at the same height, f − f* = 1", (2.0 * SHARP).sqrt(), (2.0 * FLAT).sqrt()),
        ("at the same distance, 1", SHARP, FLAT),
        ("both settled under the same noise, η = 0.05, root mean square", settled(SHARP), settled(FLAT)),
        ("sharp one at a distance of 0.01, flat one at 10", SHARP * 0.01, FLAT * 10.0),
    ]
    .map(|(case, sharp, flat)| {
        let mut weights = [0.0; 2];
        inverse(&[sharp, flat], &[true; 2], &mut weights);
        let [a, b] = weights.map(f64::from);
        (case, [sharp, flat, a, b])
    })
}

/// A label and numbers as a row of a table.
fn row(label: &str, numbers: impl IntoIterator<Item = f64>) -> Vec<Cell> {
    [Cell::from(label)].into_iter().chain(numbers.into_iter().map(Cell::from)).collect()
}

pub(super) fn run(scale: Scale) -> Result<Output, crate::Error> {
    let word = |yes: bool| Cell::from(if yes { "yes" } else { "no" });
    let checked = |check: &Check| {
        let &Check(statement, case, left, right, proved) = check;
        vec![statement.into(), case.into(), left.into(), right.into(), word(check.holds()), word(proved)]
    };
    let mut regions = Vec::new();
    for problem in families()? {
        let [k, mu, l] = constants(&problem, scale.pick(500, 20_000));
        regions.push(row(&problem.name, [k, mu, l, k * mu / l, problem.strong / problem.smooth]));
    }
    Ok(Output {
        tables: vec![
            table(
                "counterexamples",
                "Statements of the paper's proofs, in numbers",
                "Each row is an inequality in one exact case; where it fails, what always holds instead follows.",
                &["statement", "case", "left", "right", "holds here", "always"],
                checks()?.iter().map(checked).collect(),
            ),
            table(
                "cone",
                "The theorem's condition kμ ≥ L√M",
                "The best constants over random points 0.1 to 10 from the minimiser: k of the cone, μ of \
                              ‖∇f‖ ≥ μ(f − f*), L. The theorem needs kμ/L ≥ √M; it can never exceed 1.",
                &["problem", "k", "μ", "L", "kμ/L", "m/L"],
                regions,
            ),
            table(
                "flatness",
                "A small gradient and a flat valley",
                "Two workers in valleys of curvature 10 (sharp) and 0.1 (flat): gradient norms, and \
                              GRAWA's weights.",
                &["case", "‖g‖ sharp", "‖g‖ flat", "β sharp", "β flat"],
                flatness().into_iter().map(|(case, numbers)| row(case, numbers)).collect(),
            ),
        ],
        ..Output::default()
    })
}

fn families() -> Result<Vec<Problem>, Error> {
    Ok(vec![
        Problem::quadratic(2, 1.0)?,
        Problem::quadratic(2, 10.0)?,
        Problem::quadratic(5, 100.0)?,
        Problem::logistic(1, 5, 40, 0.1)?,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn what_is_proved_holds_and_the_rest_does_not() {
        for check in checks().unwrap() {
            assert_eq!(check.holds(), check.4, "{}: {}", check.0, check.1);
        }
    }

    #[test]
    fn the_cone_condition_is_never_met() {
        for problem in families().unwrap() {
            let [k, mu, l] = constants(&problem, 2000);
            assert!(k * mu <= l * (1.0 + 1e-12) && l <= problem.smooth * (1.0 + 1e-12), "{}", problem.name);
        }
    }

    #[test]
    fn spreads_are_the_geometric_ones() {
        for (sign, factor) in [(-1.0, 0.99 * 1.05), (1.0, 0.99 * 0.95)] {
            let expected: f64 = f64::powi(factor, 100);
            assert!((spread(sign, 100).unwrap() / expected - 1.0).abs() < 1e-3);
        }
    }

    /// The flat valley weighs more in every case but the last, where its worker has further to go.
    #[test]
    fn a_small_gradient_is_not_flatness() {
        assert_eq!(flatness().map(|(_, [_, _, sharp, flat])| flat > sharp), [true, true, true, false]);
    }

    proptest! {
        #[test]
        fn the_triangle_bound_holds(gradients in vec(vec(-10.0f64..10.0, 3), 1..9)) {
            prop_assume!(gradients.iter().all(|g| dot(g, g) > 1e-6));
            let [square, parts, bound] = combined(&gradients);
            prop_assert!(square.sqrt() <= bound * (1.0 + 1e-5));
            // MΘ is the harmonic mean of the norms, and the parts are all equal to Θ².
            prop_assert!((parts / (bound * bound / gradients.len() as f64) - 1.0).abs() < 1e-5);
        }
    }
}

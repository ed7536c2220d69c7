//! Noisy strongly convex problems whose minimiser is known: quadratics, and regularised logistic regression.
//!
//! Workers hold `f32` vectors as everywhere; values are judged in `f64`, above the minimum. A batch's loss is
//! f(x) + ξᵀ(x − x*) with ξ drawn from the batch's key, so that its gradient is ∇f + ξ.

use grawa_core::{Error, FunctionReplica, Key, Layout, Method, Purpose, Sequential, Sgd};

#[derive(Clone, Debug)]
enum Function {
    /// f = ½ xᵀ diag(λ) x.
    Quadratic { eigenvalues: Vec<f64> },
    /// f = mean of log(1 + exp(−aᵀx)) over the rows a, which carry their label's sign, + ½·ridge·‖x‖².
    Logistic { rows: Vec<Vec<f64>>, ridge: f64 },
}

/// Workers on a problem.
pub(super) type Group<'a> = Sequential<FunctionReplica<Box<dyn FnMut(&[f32], Key, &mut [f32]) -> f64 + 'a>>>;

/// A function to be minimised.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    pub(super) name: String,
    function: Function,
    layout: Layout,
    /// σ²: the variance of a gradient's noise, summed over coordinates.
    pub(super) variance: f64,
    /// Whether scores are those of a batch as well. The theory has them of f itself.
    pub(super) has_noisy_scores: bool,
    pub(super) minimiser: Vec<f64>,
    least: f64,
    /// m: f is m-strongly convex.
    pub(super) strong: f64,
    /// L: f is L-smooth.
    pub(super) smooth: f64,
}

impl Problem {
    /// A quadratic with curvatures spaced evenly in logarithm from 1/κ to 1, and noise of variance 1.
    pub(super) fn quadratic(dim: usize, condition: f64) -> Result<Self, Error> {
        let share = |i: usize| if dim > 1 { i as f64 / (dim - 1) as f64 } else { 1.0 };
        let eigenvalues: Vec<f64> = (0..dim).map(|i| libm::pow(condition, share(i) - 1.0)).collect();
        let name = format!("quadratic, κ = {condition}, d = {dim}");
        Problem::new(name, Function::Quadratic { eigenvalues }, dim, 1.0, (1.0 / condition, 1.0))
    }

    /// Logistic regression on random data with a tenth of the labels flipped, and noise of variance 0.01.
    pub(super) fn logistic(seed: u64, dim: usize, examples: usize, ridge: f64) -> Result<Self, Error> {
        let mut draws = Key::new(seed, Purpose::Problem).stream();
        let truth: Vec<f64> = (0..dim).map(|_| draws.normal()).collect();
        let rows: Vec<Vec<f64>> = (0..examples)
            .map(|_| {
                let row: Vec<f64> = (0..dim).map(|_| draws.normal()).collect();
                let flipped = draws.unit() < 0.1;
                let sign = if (dot(&row, &truth) < 0.0) == flipped { 1.0 } else { -1.0 };
                row.into_iter().map(|x| sign * x).collect()
            })
            .collect();
        let smooth = ridge + largest_curvature(&rows) / 4.0;
        let name = format!("logistic, κ = {:.1}, d = {dim}", smooth / ridge);
        let function = Function::Logistic { rows, ridge };
        let mut problem = Problem::new(name, function, dim, 0.01, (ridge, smooth))?;
        problem.minimise();
        Ok(problem)
    }

    /// A function whose minimum is 0 at the origin, with constant noise of this variance, m and L.
    fn new(
        name: String,
        function: Function,
        dim: usize,
        variance: f64,
        (strong, smooth): (f64, f64),
    ) -> Result<Self, Error> {
        let (layout, minimiser, least, has_noisy_scores) = (layers(dim)?, vec![0.0; dim], 0.0, false);
        Ok(Problem { name, function, layout, variance, has_noisy_scores, minimiser, least, strong, smooth })
    }

    pub(super) fn dim(&self) -> usize {
        self.minimiser.len()
    }

    /// κ = L/m.
    pub(super) fn condition(&self) -> f64 {
        self.smooth / self.strong
    }

    /// The curvatures, where they are the same everywhere.
    pub(super) fn eigenvalues(&self) -> Option<&[f64]> {
        match &self.function {
            Function::Quadratic { eigenvalues } => Some(eigenvalues),
            Function::Logistic { .. } => None,
        }
    }

    /// f(x) − f*, and ∇f(x) into `gradient`.
    pub(super) fn evaluate<T: Copy + Into<f64>>(&self, x: &[T], gradient: &mut [f64]) -> f64 {
        let mut value = -self.least;
        match &self.function {
            Function::Quadratic { eigenvalues } => {
                for ((g, &x), curvature) in gradient.iter_mut().zip(x).zip(eigenvalues) {
                    *g = curvature * x.into();
                    value += *g * x.into() / 2.0;
                }
            }
            Function::Logistic { rows, ridge } => {
                for (g, &x) in gradient.iter_mut().zip(x) {
                    *g = ridge * x.into();
                    value += *g * x.into() / 2.0;
                }
                let share = 1.0 / rows.len() as f64;
                for row in rows {
                    let margin: f64 = row.iter().zip(x).map(|(a, &x)| a * x.into()).sum();
                    // exp of a number that is not positive never overflows.
                    let small = libm::exp(-margin.abs());
                    value += share * ((-margin).max(0.0) + libm::log(1.0 + small));
                    let miss = if margin < 0.0 { 1.0 } else { small } / (1.0 + small);
                    for (g, a) in gradient.iter_mut().zip(row) {
                        *g -= share * miss * a;
                    }
                }
            }
        }
        value
    }

    /// f(x) − f*.
    pub(super) fn excess<T: Copy + Into<f64>>(&self, x: &[T]) -> f64 {
        self.evaluate(x, &mut vec![0.0; x.len()])
    }

    /// Workers of a method at these starts, to be run with plain SGD.
    pub(super) fn group(&self, method: Method, seed: u64, starts: &[Vec<f32>]) -> Result<Group<'_>, Error> {
        let worker = |start: &Vec<f32>| {
            let mut exact = vec![0.0; self.dim()];
            let batch = move |x: &[f32], key: Key, gradient: &mut [f32]| {
                let mut value = self.evaluate(x, &mut exact);
                let is_step = key.purpose(Purpose::Step) == key;
                if is_step || self.has_noisy_scores {
                    let deviation = (self.variance / exact.len() as f64).sqrt();
                    let mut draws = key.stream();
                    for ((g, &x), least) in exact.iter_mut().zip(x).zip(&self.minimiser) {
                        let noise = deviation * draws.normal();
                        *g += noise;
                        if self.has_noisy_scores {
                            value += noise * (f64::from(x) - least);
                        }
                    }
                }
                for (g, &exact) in gradient.iter_mut().zip(&exact) {
                    *g = exact as f32;
                }
                value
            };
            FunctionReplica::new(self.layout.clone(), start.clone(), Box::new(batch) as Box<_>)
        };
        let workers = starts.iter().map(worker).collect::<Result<_, _>>()?;
        Sequential::new(method, Sgd::PLAIN, seed, workers)
    }

    /// The minimiser as a worker holds it.
    pub(super) fn start_at_minimiser(&self) -> Vec<f32> {
        self.minimiser.iter().map(|&x| x as f32).collect()
    }

    /// Gradient descent to machine precision: a step of 1/L leaves at most 1 − 1/κ of the error.
    fn minimise(&mut self) {
        let mut gradient = vec![0.0; self.dim()];
        for _ in 0..(40.0 * self.condition()) as usize {
            self.evaluate(&self.minimiser, &mut gradient);
            self.minimiser.iter_mut().zip(&gradient).for_each(|(x, g)| *x -= g / self.smooth);
        }
        self.least += self.excess(&self.minimiser);
    }
}

/// Up to five layers of neighbouring coordinates, for the methods that tell layers apart.
fn layers(dim: usize) -> Result<Layout, Error> {
    let count = dim.min(5);
    let length = |layer: usize| (layer + 1) * dim / count - layer * dim / count;
    Layout::new((0..count).map(|layer| (format!("layer{layer}"), vec![length(layer)])))
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The largest eigenvalue of the rows' second moments, by power iteration.
fn largest_curvature(rows: &[Vec<f64>]) -> f64 {
    let mut direction = vec![1.0; rows.first().map_or(0, Vec::len)];
    let mut size = 0.0;
    for _ in 0..500 {
        let length = dot(&direction, &direction).sqrt();
        let mut next = vec![0.0; direction.len()];
        for row in rows {
            let along = dot(row, &direction) / length / rows.len() as f64;
            next.iter_mut().zip(row).for_each(|(n, a)| *n += along * a);
        }
        size = dot(&next, &next).sqrt();
        direction = next;
    }
    size
}

#[cfg(test)]
mod tests {
    use super::super::method;
    use super::*;
    use grawa_core::{Name, Replica};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn gradients_are_those_of_finite_differences(seed: u64, x in proptest::collection::vec(-3.0f64..3.0, 4)) {
            for problem in [Problem::logistic(seed, 4, 30, 0.1).unwrap(), Problem::quadratic(4, 10.0).unwrap()] {
                let mut gradient = vec![0.0; 4];
                problem.evaluate(&x, &mut gradient);
                for i in 0..4 {
                    let at = |shift: f64| {
                        let mut x = x.clone();
                        x[i] += shift;
                        problem.excess(&x)
                    };
                    prop_assert!(((at(1e-5) - at(-1e-5)) / 2e-5 - gradient[i]).abs() < 1e-8);
                }
            }
        }

        #[test]
        fn the_minimiser_and_the_constants_are_right(seed: u64, x in proptest::collection::vec(-3.0f64..3.0, 4)) {
            let problem = Problem::logistic(seed, 4, 30, 0.1).unwrap();
            let mut gradient = vec![0.0; 4];
            problem.evaluate(&problem.minimiser, &mut gradient);
            prop_assert!(dot(&gradient, &gradient).sqrt() < 1e-14);
            let excess = problem.evaluate(&x, &mut gradient);
            let square = dot(&gradient, &gradient);
            // What strong convexity and smoothness say about any point.
            prop_assert!(square >= 2.0 * problem.strong * excess * (1.0 - 1e-9));
            prop_assert!(square <= 2.0 * problem.smooth * excess * (1.0 + 1e-9));
        }
    }

    #[test]
    fn noise_has_its_variance_and_scores_have_none() {
        let mut problem = Problem::quadratic(10, 10.0).unwrap();
        problem.variance = 2.0;
        let mut group = problem.group(method(Name::Grawa, 0.1, 1), 0, &[vec![1.0; 10]]).unwrap();
        let mut exact = vec![0.0; 10];
        problem.evaluate(&[1.0f32; 10], &mut exact);
        let worker = &mut group.replicas()[0];
        let mut distance = |key| {
            worker.gradient(key).unwrap();
            worker.gradients().iter().zip(&exact).map(|(&g, e)| (f64::from(g) - e).powi(2)).sum::<f64>()
        };
        let mean =
            (0..4000).map(|step| distance(Key::new(1, Purpose::Step).step(step))).sum::<f64>() / 4000.0;
        // χ² with ten degrees: a relative deviation of √(2/10) a draw; five standard errors.
        assert!((mean / 2.0 - 1.0).abs() < 5.0 * (0.2f64 / 4000.0).sqrt(), "{mean}");
        assert!(distance(Key::new(1, Purpose::ScoreBatch)) < 1e-12);
    }
}

//! Initial parameters: PyTorch's defaults and Kaiming's normal, drawn from counter-based random numbers.

use crate::Graph;
use grawa_core::{Key, Purpose};

/// The initial distribution of a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// A constant.
    Constant(f32),
    /// Uniform in ±bound.
    Uniform(f64),
    /// Normal with this standard deviation.
    Normal(f64),
}

impl Init {
    /// U(±1/√fan_in), which is PyTorch's Kaiming-uniform with a = √5.
    pub fn fan_in(fan_in: usize) -> Self {
        Init::Uniform(1.0 / (fan_in as f64).sqrt())
    }

    /// N(0, √(2/fan_out)).
    pub fn fan_out(fan_out: usize) -> Self {
        Init::Normal((2.0 / fan_out as f64).sqrt())
    }

    fn fill(self, key: Key, out: &mut [f32]) {
        let mut draws = key.stream();
        match self {
            Init::Constant(value) => out.fill(value),
            Init::Uniform(bound) => {
                out.iter_mut().for_each(|x| *x = (bound * (2.0 * f64::from(draws.unit()) - 1.0)) as f32)
            }
            Init::Normal(deviation) => out.iter_mut().for_each(|x| *x = (deviation * draws.normal()) as f32),
        }
    }
}

impl Graph {
    /// The initial parameters of a seed. Every tensor has its own draws, so a change of one tensor does not affect the
    /// others.
    pub fn initial(&self, seed: u64) -> Vec<f32> {
        let mut parameters = vec![0.0; self.parameters().len()];
        for (index, (span, init)) in self.parameters().spans().iter().zip(&self.inits).enumerate() {
            init.fill(Key::new(seed, Purpose::Init).step(index as u64), &mut parameters[span.range()]);
        }
        parameters
    }

    /// The running statistics before the first batch: mean 0, variance 1.
    pub fn initial_statistics(&self) -> Vec<f32> {
        let mut statistics = vec![0.0; self.statistics().len()];
        for span in self.statistics().spans().iter().filter(|span| span.name().ends_with("running_var")) {
            statistics[span.range()].fill(1.0);
        }
        statistics
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_have_the_promised_spread() {
        let mut x = vec![0.0; 100_000];
        let moment =
            |x: &[f32], p: i32| x.iter().map(|&x| f64::from(x).powi(p)).sum::<f64>() / x.len() as f64;
        Init::fan_in(27).fill(Key::new(1, Purpose::Init), &mut x);
        let bound = 1.0 / 27f64.sqrt();
        assert!(x.iter().all(|&x| f64::from(x.abs()) <= bound));
        assert!(
            moment(&x, 1).abs() < 0.01 * bound && (moment(&x, 2) * 3.0 / (bound * bound) - 1.0).abs() < 0.02
        );
        Init::fan_out(144).fill(Key::new(1, Purpose::Init), &mut x);
        assert!((moment(&x, 2) * 72.0 - 1.0).abs() < 0.02);
        assert!((moment(&x, 4) * 72.0 * 72.0 - 3.0).abs() < 0.1);
    }
}

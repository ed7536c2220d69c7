//! The spectral density by stochastic Lanczos quadrature: the distribution of the eigenvalues, from the Ritz values of a
//! few random starts, each weighted by its share of the start vector.

use crate::Ritz;

/// The density at each of `places`. Every Ritz value becomes a Gaussian of this width (standard deviation). It integrates
/// to 1.
///
/// ```
/// let one = grawa_flat::Ritz { values: vec![2.0], weights: vec![1.0], residuals: vec![0.0] };
/// let found = grawa_flat::density(&[one], 0.5, &[2.0, 9.0]);
/// assert!((found[0] - 0.7979).abs() < 1e-4 && found[1] < 1e-40);
/// ```
pub fn density(draws: &[Ritz], width: f64, places: &[f64]) -> Vec<f64> {
    let height = 1.0 / (width * std::f64::consts::TAU.sqrt() * draws.len().max(1) as f64);
    let at = |place: f64| -> f64 {
        let bell = |value: f64| libm::exp(-0.5 * ((place - value) / width).powi(2));
        let parts = draws.iter().flat_map(|draw| draw.values.iter().zip(&draw.weights));
        height * parts.map(|(&value, &weight)| weight * bell(value)).sum::<f64>()
    };
    places.iter().map(|&place| at(place)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{direction, lanczos};
    use grawa_core::{Key, Purpose};

    /// Eigenvalues evenly from 0 to 1: the density is 1 between and 0 outside, whatever the quadrature does in detail.
    #[test]
    fn an_even_spectrum_has_an_even_density() {
        let len = 30_000;
        let apply = |v: &[f32], out: &mut [f32]| {
            for (i, (out, &v)) in out.iter_mut().zip(v).enumerate() {
                *out = (i as f64 / len as f64 * f64::from(v)) as f32;
            }
            Ok(())
        };
        let key = Key::new(4, Purpose::Direction);
        let draws: Vec<_> =
            (0..3).map(|n| lanczos(apply, &direction(key.step(n), len), 60).unwrap().ritz()).collect();
        let places: Vec<f64> = (0..200).map(|i| -0.5 + 2.0 * f64::from(i) / 199.0).collect();
        let found = density(&draws, 0.05, &places);
        let total: f64 = found.iter().sum::<f64>() * (places[1] - places[0]);
        assert!((total - 1.0).abs() < 1e-3, "{total}");
        for (place, density) in places.iter().zip(found) {
            if (0.2..0.8).contains(place) {
                assert!((density - 1.0).abs() < 0.05, "{density} at {place}");
            } else if !(-0.2..1.2).contains(place) {
                assert!(density < 1e-3);
            }
        }
    }
}

//! Lanczos with full re-orthogonalisation: a small tridiagonal matrix whose eigenvalues are close to the outer ones of an
//! operator.
//!
//! The vectors are kept in f32, so a run of n steps holds n + 1 vectors of 4 bytes for each parameter, and a working vector.
//! Products are summed in f64, and every new vector is orthogonalised against all before it, twice: otherwise copies of
//! eigenvalues appear.

use crate::vector::{add, dot, norm, orthogonalise, scale};
use crate::{Error, QuadraticForm, Ritz, ritz};

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Draw {
    /// α₁ … αₙ.
    pub diagonal: Vec<f64>,
    /// β₂ … βₙ.
    pub beside: Vec<f64>,
    /// βₙ₊₁: zero if the vectors span the whole Krylov space.
    pub next: f64,
}

impl Draw {
    /// The Ritz values.
    pub fn ritz(&self) -> Ritz {
        ritz(&self.diagonal, &self.beside, self.next)
    }

    /// The quadratic form of the first product: vᵀHv = α₁ and ‖Hv‖² = α₁² + β₂².
    pub fn form(&self) -> QuadraticForm {
        let along = self.diagonal.first().copied().unwrap_or(0.0);
        let beside = self.beside.first().copied().unwrap_or(self.next);
        QuadraticForm { along, square: along * along + beside * beside }
    }
}

/// A remainder below this share of the largest number so far is rounding: the Krylov space is complete.
const EXHAUSTED: f64 = 1e-6;

/// Runs `steps` steps from `start`, a vector of length 1. Fewer, if the Krylov space is smaller.
///
/// ```
/// // A diagonal matrix: the eigenvalues are known.
/// let apply = |v: &[f32], out: &mut [f32]| {
///     for (i, (out, v)) in out.iter_mut().zip(v).enumerate() {
///         *out = (i + 1) as f32 * v;
///     }
///     Ok(())
/// };
/// let found = grawa_flat::lanczos(apply, &[0.5; 4], 10)?.ritz();
/// assert_eq!(found.values.len(), 4);
/// assert!((found.values[3] - 4.0).abs() < 1e-5);
/// # Ok::<(), grawa_flat::Error>(())
/// ```
pub fn lanczos(
    mut apply: impl FnMut(&[f32], &mut [f32]) -> Result<(), Error>,
    start: &[f32],
    steps: usize,
) -> Result<Draw, Error> {
    if steps == 0 {
        return Err(Error::TooFew("steps", 0, 1));
    }
    let mut basis = vec![start.to_vec()];
    let mut work = vec![0.0; start.len()];
    let (mut draw, mut largest) = (Draw::default(), 0.0f64);
    for step in 0..steps {
        let v = &basis[step];
        apply(v, &mut work)?;
        let along = dot(v, &work);
        if !along.is_finite() {
            return Err(Error::NotFinite("a product with the Hessian"));
        }
        draw.diagonal.push(along);
        add(&mut work, -along, v);
        if step > 0 {
            add(&mut work, -draw.next, &basis[step - 1]);
        }
        orthogonalise(&mut work, &basis);
        let left = norm(&work);
        largest = largest.max(along.abs()).max(left);
        if left <= EXHAUSTED * largest || basis.len() == start.len() {
            draw.next = 0.0;
            break;
        }
        draw.next = left;
        if step + 1 < steps {
            draw.beside.push(left);
            scale(&mut work, 1.0 / left);
            basis.push(work.clone());
        }
    }
    Ok(draw)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::direction;
    use grawa_core::{Key, Purpose};
    use proptest::prelude::*;

    fn diagonal(spectrum: Vec<f64>) -> impl FnMut(&[f32], &mut [f32]) -> Result<(), Error> {
        move |v, out| {
            for ((out, &v), value) in out.iter_mut().zip(v).zip(&spectrum) {
                *out = (f64::from(v) * value) as f32;
            }
            Ok(())
        }
    }

    /// A spectrum as networks have it: a few large values, a bulk near zero, some below it.
    #[test]
    fn the_outer_eigenvalues_are_found() {
        let len = 20_000;
        let mut spectrum: Vec<f64> = (0..len).map(|i| 0.05 * (i as f64 / len as f64 - 0.3)).collect();
        let top = [40.0, 25.0, 24.0, 10.0, 5.0];
        spectrum[..5].copy_from_slice(&top);
        spectrum[5] = -3.0;
        let start = direction(Key::new(5, Purpose::Direction), len);
        let draw = lanczos(diagonal(spectrum), &start, 40).unwrap();
        let found = draw.ritz();
        for (value, known) in found.values.iter().rev().zip(top) {
            assert!((value / known - 1.0).abs() < 1e-5, "{value} and {known}");
        }
        assert!((found.values[0] + 3.0).abs() < 1e-5);
        // No ghosts: each of the large values once.
        assert_eq!(found.values.iter().filter(|value| **value > 0.1).count(), 5);
        assert!(found.residuals[39] < 1e-6);
        assert!((found.weights.iter().sum::<f64>() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn it_ends_where_there_is_no_more() {
        // Two different eigenvalues only: two steps reach everything.
        let spectrum: Vec<f64> = (0..100).map(|i| if i % 2 == 0 { 3.0 } else { -1.0 }).collect();
        let start = direction(Key::new(2, Purpose::Direction), 100);
        let draw = lanczos(diagonal(spectrum), &start, 50).unwrap();
        let found = draw.ritz();
        assert_eq!((found.values.len(), draw.next), (2, 0.0));
        assert!((found.values[0] + 1.0).abs() < 1e-5 && (found.values[1] - 3.0).abs() < 1e-5);
        assert!(lanczos(|_, _| Ok(()), &[1.0], 0).is_err());
        let nan = lanczos(
            |_, out| {
                out.fill(f32::NAN);
                Ok(())
            },
            &[1.0, 0.0],
            3,
        );
        assert!(nan.unwrap_err().to_string().contains("not finite"));
    }

    proptest! {
        /// Of a small matrix all eigenvalues are found, whatever they are.
        #[test]
        fn all_of_a_small_spectrum(spectrum in prop::collection::vec(-9.0f64..9.0, 2..12), seed: u64) {
            let mut known = spectrum.clone();
            known.sort_by(f64::total_cmp);
            prop_assume!(known.windows(2).all(|pair| pair[1] - pair[0] > 0.05));
            let start = direction(Key::new(seed, Purpose::Direction), spectrum.len());
            prop_assume!(start.iter().all(|x| x.abs() > 1e-2));
            let found = lanczos(diagonal(spectrum), &start, 12).unwrap().ritz();
            prop_assert_eq!(found.values.len(), known.len());
            for (value, known) in found.values.iter().zip(&known) {
                prop_assert!((value - known).abs() < 2e-3, "{} and {}", value, known);
            }
        }
    }
}

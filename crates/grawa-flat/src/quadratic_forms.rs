//! Trace and Frobenius norm from products with random directions (Hutchinson).
//!
//! For v uniform on the sphere in P dimensions, P·vᵀHv has the mean tr H, and P·‖Hv‖² the mean ‖H‖²_F. Each Lanczos run
//! gives one such pair with its first step.

use crate::vector::dot;
use crate::{Error, Estimate, direction};
use grawa_core::Key;

/// The two forms of one product.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QuadraticForm {
    /// vᵀHv.
    pub along: f64,
    /// ‖Hv‖².
    pub square: f64,
}

/// The forms of random directions, one for each key.
pub fn quadratic_forms(
    mut apply: impl FnMut(&[f32], &mut [f32]) -> Result<(), Error>,
    len: usize,
    keys: impl IntoIterator<Item = Key>,
) -> Result<Vec<QuadraticForm>, Error> {
    let mut product = vec![0.0; len];
    let mut form = |key: Key| {
        let v = direction(key, len);
        apply(&v, &mut product)?;
        Ok(QuadraticForm { along: dot(&v, &product), square: dot(&product, &product) })
    };
    keys.into_iter().map(&mut form).collect()
}

/// The trace of an operator on `len` dimensions.
pub fn trace(forms: &[QuadraticForm], len: usize) -> Estimate {
    Estimate::of(&forms.iter().map(|form| len as f64 * form.along).collect::<Vec<_>>())
}

/// Its Frobenius norm, √(P · mean‖Hv‖²).
pub fn frobenius(forms: &[QuadraticForm], len: usize) -> Estimate {
    Estimate::of(&forms.iter().map(|form| len as f64 * form.square).collect::<Vec<_>>()).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use grawa_core::Purpose;

    #[test]
    fn intervals_cover_trace_and_norm_about_as_often_as_they_say() {
        let spectrum: Vec<f32> =
            (0..300).map(|i| if i < 30 { 1.0 + i as f32 / 10.0 } else { -0.1 }).collect();
        let (known_trace, known_norm) = (
            spectrum.iter().map(|&x| f64::from(x)).sum::<f64>(),
            spectrum.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt(),
        );
        let mut covered = [0, 0];
        let trials = 200;
        for trial in 0..trials {
            let apply = |v: &[f32], out: &mut [f32]| {
                out.iter_mut().zip(v).zip(&spectrum).for_each(|((out, v), s)| *out = v * s);
                Ok(())
            };
            let key = Key::new(trial, Purpose::Direction);
            let forms = quadratic_forms(apply, 300, (0..13).map(|n| key.step(n))).unwrap();
            let inside = |found: Estimate, known: f64| u32::from((found.value - known).abs() <= found.error);
            covered[0] += inside(trace(&forms, 300), known_trace);
            covered[1] += inside(frobenius(&forms, 300), known_norm);
        }
        // 95 % of 200 with five standard deviations of room; the norm's interval is skewed, and wider than it need be.
        assert!(covered.iter().all(|&count| count >= 174), "{covered:?}");
    }
}

//! Power iteration: the eigenvalue of the largest absolute value, and its vector. Slower and simpler than Lanczos, which is
//! tested against it.

use crate::vector::{add, dot, norm, scale};
use crate::{Error, direction};
use grawa_core::Key;

/// The result.
#[derive(Clone, Debug, PartialEq)]
pub struct Power {
    /// The eigenvalue.
    pub value: f64,
    /// Its vector, of length 1.
    pub vector: Vec<f32>,
    /// ‖Hv − λv‖: an eigenvalue lies at most as far away.
    pub residual: f64,
    /// Products made.
    pub steps: usize,
}

/// Iterates until the residual is below `tolerance` times the eigenvalue, at most `most` times.
pub fn power(
    mut apply: impl FnMut(&[f32], &mut [f32]) -> Result<(), Error>,
    key: Key,
    len: usize,
    tolerance: f64,
    most: usize,
) -> Result<Power, Error> {
    let mut found = Power { value: 0.0, vector: direction(key, len), residual: f64::INFINITY, steps: 0 };
    let mut product = vec![0.0; len];
    while found.steps < most {
        apply(&found.vector, &mut product)?;
        found.steps += 1;
        found.value = dot(&found.vector, &product);
        if !found.value.is_finite() {
            return Err(Error::NotFinite("a product of the power iteration"));
        }
        let length = norm(&product);
        // Removing the part along the vector leaves the residual, before the product becomes the next vector.
        let mut rest = product.clone();
        add(&mut rest, -found.value, &found.vector);
        found.residual = norm(&rest);
        if found.residual <= tolerance * found.value.abs() || length == 0.0 {
            break;
        }
        std::mem::swap(&mut found.vector, &mut product);
        scale(&mut found.vector, 1.0 / length);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use grawa_core::Purpose;

    #[test]
    fn the_largest_in_size_is_found() {
        let spectrum = [1.0f32, -7.0, 3.0, 0.5, 6.0];
        let apply = |v: &[f32], out: &mut [f32]| {
            out.iter_mut().zip(v).zip(spectrum).for_each(|((out, v), s)| *out = v * s);
            Ok(())
        };
        let found = power(apply, Key::new(3, Purpose::Direction), 5, 1e-5, 500).unwrap();
        assert!((found.value + 7.0).abs() < 1e-4 && found.residual < 1e-4 && found.steps < 500);
        assert!((found.vector[1].abs() - 1.0).abs() < 1e-4);
        let nothing = power(
            |_, out| {
                out.fill(0.0);
                Ok(())
            },
            Key::new(3, Purpose::Direction),
            4,
            1e-5,
            9,
        )
        .unwrap();
        assert_eq!((nothing.value, nothing.steps), (0.0, 1));
    }
}

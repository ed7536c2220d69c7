//! Random directions.

use crate::vector::{norm, scale};
use grawa_core::Key;

/// A vector of length 1, uniform on the sphere: normal numbers from the key, scaled.
///
/// ```
/// use grawa_core::{Key, Purpose};
/// let key = Key::new(7, Purpose::Direction);
/// let v = grawa_flat::direction(key, 1000);
/// assert!((v.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-5);
/// assert_eq!(v, grawa_flat::direction(key, 1000));
/// ```
pub fn direction(key: Key, len: usize) -> Vec<f32> {
    let mut draws = key.stream();
    let mut v: Vec<f32> = (0..len).map(|_| draws.normal() as f32).collect();
    let length = norm(&v);
    if length > 0.0 {
        scale(&mut v, 1.0 / length);
    }
    v
}

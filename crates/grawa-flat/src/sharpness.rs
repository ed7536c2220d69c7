//! ε-sharpness (Keskar et al., "On large-batch training for deep learning", 2017): the rise of the loss in a
//! small box around the parameters.
//!
//! The box allows parameter xᵢ to move by ε·(|xᵢ| + 1). Its highest point is searched with steps along the signs of the
//! gradient, each clamped to the box; the result is a lower bound of the true height.

use crate::{Error, Losses};

/// 100 · (highest − loss) / (1 + loss), where the highest loss is searched in the box of size `radius` (ε) with `steps`
/// gradients.
pub fn sharpness(
    losses: &mut Losses<'_>,
    (parameters, statistics): (&[f32], &[f32]),
    radius: f64,
    steps: usize,
    mut note: impl FnMut(),
) -> Result<f64, Error> {
    if steps == 0 {
        return Err(Error::TooFew("steps", 0, 1));
    }
    let room = |x: f32| radius * (f64::from(x.abs()) + 1.0);
    let mut gradient = vec![0.0; parameters.len()];
    let mut here = parameters.to_vec();
    let (mut middle, mut highest) = (None, f64::NEG_INFINITY);
    for step in 0..=steps {
        // The last point is only evaluated.
        let loss = match step == steps {
            true => losses.at(&here, statistics)?.loss,
            false => losses.gradient(&here, statistics, &mut gradient)?,
        };
        note();
        if loss.is_nan() {
            return Err(Error::NotFinite("the loss in the box"));
        }
        middle.get_or_insert(loss);
        highest = highest.max(loss);
        // First to a corner, the highest point of a plane; then smaller and smaller corrections.
        let reach = if step == 0 { 1.0 } else { 1.0 / step as f64 };
        for ((here, &start), &slope) in here.iter_mut().zip(parameters).zip(&gradient) {
            let sign = if slope == 0.0 { 0.0 } else { f64::from(slope.signum()) };
            let (room, start) = (room(start), f64::from(start));
            *here = (f64::from(*here) + reach * room * sign).clamp(start - room, start + room) as f32;
        }
    }
    let loss = middle.unwrap_or(f64::NAN);
    Ok(100.0 * (highest - loss) / (1.0 + loss))
}

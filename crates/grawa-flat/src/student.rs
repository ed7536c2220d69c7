//! Quantiles of Student's t with a whole number of degrees of freedom, for which the distribution is a finite sum.

use libm::{atan2, cos, sin, sqrt};
use std::f64::consts::FRAC_2_PI;

/// The number below which a share of Student's distribution lies. Of no degrees of freedom there is none, nor for a share that is
/// not between zero and one.
pub fn student_quantile(freedom: usize, share: f64) -> Option<f64> {
    if freedom == 0 || !(share > 0.0 && share < 1.0) {
        return None;
    }
    let inside = (2.0 * share - 1.0).abs();
    let (mut low, mut high) = (0.0, 1.0);
    while within(freedom, high) < inside {
        (low, high) = (high, 2.0 * high);
    }
    // Halved until no number lies between: some sixty times.
    loop {
        let middle = 0.5 * (low + high);
        if middle <= low || middle >= high {
            return Some(middle.copysign(share - 0.5));
        }
        if within(freedom, middle) < inside { low = middle } else { high = middle }
    }
}

/// The chance that |t| is at most `bound`: Abramowitz and Stegun, 26.7.3 and 26.7.4.
fn within(freedom: usize, bound: f64) -> f64 {
    let angle = atan2(bound, sqrt(freedom as f64));
    let (sine, cosine) = (sin(angle), cos(angle));
    let odd = freedom % 2;
    // Of an odd number 1, 2/3 cos², 2·4/(3·5) cos⁴, …; of an even one 1, 1/2 cos², 1·3/(2·4) cos⁴, …
    let (mut sum, mut term) = (0.0, 1.0);
    for k in 1..=freedom / 2 {
        sum += term;
        let over = (2 * k + odd) as f64;
        term *= (over - 1.0) / over * cosine * cosine;
    }
    if odd == 1 { FRAC_2_PI * (angle + sine * cosine * sum) } else { sine * sum }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARES: [f64; 4] = [0.6, 0.975, 0.999_166_666_666_666_7, 0.999_99];

    /// The values of scipy 1.17's `t.ppf`.
    #[test]
    fn quantiles_are_scipys() {
        for (freedom, expected) in [
            (1, [0.32491969623290634, 12.706204736174694, 381.9709907555153, 31830.988608051957]),
            (2, [0.2886751345948128, 4.302652729749462, 24.464268168374964, 223.60344363454604]),
            (3, [0.2766706623326898, 3.1824463052837078, 10.86878389416002, 47.92772837600671]),
            (4, [0.2707222947075976, 2.7764451051977934, 7.5286714129860535, 23.332182700855984]),
            (5, [0.2671808657041451, 2.5705818356363146, 6.1383697271200335, 15.546854534969158]),
            (9, [0.260955336473911, 2.262157162798205, 4.421869045737846, 8.102057879399425]),
            (30, [0.2556053649519128, 2.0422724563012378, 3.454355251585237, 5.054032421448104]),
            (31, [0.2555321683175276, 2.039513446396408, 3.4435072406790646, 5.024874407794808]),
            (200, [0.25368437919014747, 1.9718962236339088, 3.1872935243039793, 4.3693895523436925]),
            (1001, [0.25341444848349826, 1.9623367052808798, 3.1525482663472357, 4.285417069362514]),
        ] {
            for (share, expected) in SHARES.into_iter().zip(expected) {
                let found = student_quantile(freedom, share).unwrap();
                assert!((found - expected).abs() <= 1e-10 * expected, "{freedom}, {share}: {found}");
                let below = student_quantile(freedom, 1.0 - share).unwrap();
                assert!((below + expected).abs() <= 1e-9 * expected, "{freedom}, 1 - {share}: {below}");
            }
        }
        assert!(student_quantile(3, 0.5).unwrap().abs() < 1e-300);
    }

    #[test]
    fn there_is_no_quantile_outside() {
        for (freedom, share) in [(0, 0.9), (3, 0.0), (3, 1.0), (3, -1.0), (3, f64::NAN)] {
            assert_eq!(student_quantile(freedom, share), None, "{freedom}, {share}");
        }
    }
}

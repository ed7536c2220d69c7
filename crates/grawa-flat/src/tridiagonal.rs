//! Eigenvalues of symmetric tridiagonal matrices, with the first and last components of the eigenvectors, which
//! Lanczos needs. The implicit QL method with Wilkinson's shifts, in f64.

/// The eigenpairs of a tridiagonal matrix as approximations of those of the operator it came from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ritz {
    /// The eigenvalues, ascending.
    pub values: Vec<f64>,
    /// The squared first component of each eigenvector: its weight in the start vector. They add up to 1.
    pub weights: Vec<f64>,
    /// An upper bound of the distance to the nearest eigenvalue of the operator.
    pub residuals: Vec<f64>,
}

/// The Ritz values of a Lanczos run: `diagonal` α₁ … αₙ, `beside` β₂ … βₙ, and βₙ₊₁ of the next
/// step.
///
/// ```
/// // 2 on the diagonal and −1 beside it: the eigenvalues are 2 − 2·cos(kπ/(n+1)).
/// let found = grawa_flat::ritz(&[2.0; 9], &[-1.0; 8], 0.0);
/// for (k, value) in found.values.iter().enumerate() {
///     let known = 2.0 - 2.0 * ((k + 1) as f64 * std::f64::consts::PI / 10.0).cos();
///     assert!((value - known).abs() < 1e-12);
/// }
/// ```
pub fn ritz(diagonal: &[f64], beside: &[f64], next: f64) -> Ritz {
    let n = diagonal.len();
    let mut d = diagonal.to_vec();
    let mut e: Vec<f64> = beside.iter().copied().chain([0.0]).take(n).collect();
    let (mut first, mut last) = (vec![0.0; n], vec![0.0; n]);
    if n == 0 {
        return Ritz::default();
    }
    (first[0], last[n - 1]) = (1.0, 1.0);
    for l in 0..n {
        // Each eigenvalue takes two or three iterations; a matrix that is not finite never converges.
        for _ in 0..60 {
            let is_small = |m: usize| e[m].abs() <= f64::EPSILON * (d[m].abs() + d[m + 1].abs());
            let m = (l..n - 1).find(|&m| is_small(m)).unwrap_or(n - 1);
            if m == l {
                break;
            }
            let mut g = (d[l + 1] - d[l]) / (2.0 * e[l]);
            let r = libm::hypot(g, 1.0);
            g = d[m] - d[l] + e[l] / (g + r.copysign(g));
            let (mut s, mut c, mut p) = (1.0, 1.0, 0.0);
            let mut is_split = false;
            for i in (l..m).rev() {
                let (f, b) = (s * e[i], c * e[i]);
                let r = libm::hypot(f, g);
                e[i + 1] = r;
                if r == 0.0 {
                    d[i + 1] -= p;
                    e[m] = 0.0;
                    is_split = true;
                    break;
                }
                (s, c) = (f / r, g / r);
                g = d[i + 1] - p;
                let r = (d[i] - g) * s + 2.0 * c * b;
                p = s * r;
                d[i + 1] = g + p;
                g = c * r - b;
                for row in [&mut first, &mut last] {
                    let (here, after) = (row[i], row[i + 1]);
                    row[i + 1] = s * here + c * after;
                    row[i] = c * here - s * after;
                }
            }
            if !is_split {
                d[l] -= p;
                e[l] = g;
                e[m] = 0.0;
            }
        }
    }
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&a, &b| d[a].total_cmp(&d[b]));
    Ritz {
        values: order.iter().map(|&i| d[i]).collect(),
        weights: order.iter().map(|&i| first[i] * first[i]).collect(),
        residuals: order.iter().map(|&i| (next * last[i]).abs()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Moments of the first vector: Σ wθᵏ = e₁ᵀTᵏe₁; and the trace.
        #[test]
        fn values_and_weights_give_the_moments(d in prop::collection::vec(-5.0f64..5.0, 1..40), seed: u64) {
            let mut draws = grawa_core::Key::new(seed, grawa_core::Purpose::Problem).stream();
            let e: Vec<f64> = (1..d.len()).map(|_| draws.normal()).collect();
            let found = ritz(&d, &e, 0.0);
            prop_assert!((found.values.iter().sum::<f64>() - d.iter().sum::<f64>()).abs() < 1e-9);
            prop_assert!(found.values.windows(2).all(|pair| pair[0] <= pair[1]));
            let mut power = vec![0.0; d.len()];
            power[0] = 1.0;
            for k in 0..5 {
                let moment: f64 = found.values.iter().zip(&found.weights).map(|(v, w)| w * v.powi(k)).sum();
                prop_assert!((moment - power[0]).abs() < 1e-8 * (1.0 + power[0].abs()), "moment {}: {} and {}", k, moment, power[0]);
                let old = power.clone();
                for i in 0..d.len() {
                    power[i] = d[i] * old[i];
                    if i > 0 { power[i] += e[i - 1] * old[i - 1]; }
                    if i + 1 < d.len() { power[i] += e[i] * old[i + 1]; }
                }
            }
        }
    }

    #[test]
    fn residuals_bound_the_distance() {
        // The leading 6 × 6 part of a larger matrix with known eigenvalues.
        let found = ritz(&[2.0; 6], &[-1.0; 5], -1.0);
        let known: Vec<f64> =
            (1..=12).map(|k| 2.0 - 2.0 * (f64::from(k) * std::f64::consts::PI / 13.0).cos()).collect();
        for (value, residual) in found.values.iter().zip(&found.residuals) {
            let nearest = known.iter().map(|known| (known - value).abs()).fold(f64::INFINITY, f64::min);
            assert!(nearest <= *residual + 1e-12);
        }
        assert_eq!(ritz(&[], &[], 0.0), Ritz::default());
        assert_eq!(ritz(&[3.0], &[], 0.5).residuals, [0.5]);
    }
}

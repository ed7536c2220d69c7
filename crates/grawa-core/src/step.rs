//! The local step: SGD with momentum, Nesterov's look-ahead, weight decay and the light pull to the last
//! centres, in one pass over memory; and SAM's ascent.
//!
//! The arithmetic is that of PyTorch's `SGD` (dampening 0): d = g + wd·x; v ← m·v + d;
//! x ← x − η·(d + m·v) with Nesterov, x − η·v without; then x ← (1−s)·x + s·c for every centre c.

use crate::Error;
use crate::error::expect_len;
use crate::mix::pull;
use crate::norm::norm;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The settings of SGD that do not change from step to step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sgd {
    /// m.
    pub momentum: f32,
    /// wd.
    pub weight_decay: f32,
    /// Whether to use Nesterov's look-ahead; needs momentum.
    pub nesterov: bool,
}

impl Default for Sgd {
    /// What the paper uses: momentum 0.9 with Nesterov, weight decay 10⁻⁴.
    fn default() -> Self {
        Sgd { momentum: 0.9, weight_decay: 1e-4, nesterov: true }
    }
}

impl Sgd {
    /// Plain SGD.
    pub const PLAIN: Sgd = Sgd { momentum: 0.0, weight_decay: 0.0, nesterov: false };
}

/// A light pull of a local step: its target, and its strength (μ/τ).
#[derive(Clone, Copy, Debug)]
pub struct Prox<'a> {
    /// The last centre.
    pub centre: &'a [f32],
    /// μ/τ.
    pub strength: f32,
}

impl Prox<'_> {
    /// x ← (1−s)·x + s·c, for a training loop with an optimizer of its own.
    pub fn apply(&self, parameters: &mut [f32]) {
        pull(parameters, self.centre, self.strength);
    }
}

/// Floats in a block, so that the pulls find them in cache.
pub(crate) const BLOCK: usize = 2048;

/// One step of SGD. The pulls are applied one after the other (LSGD with groups has two). Returns whether
/// all parameters are finite afterwards: the check is free here and saves a pass at the round.
///
/// ```
/// use grawa_core::{Prox, Sgd, step::descend};
/// let (mut x, mut v) = ([1.0], [0.0]);
/// let centre = Prox { centre: [0.0].as_slice(), strength: 0.5 };
/// assert!(descend(&Sgd::PLAIN, 0.1, &mut x, &mut v, &[2.0], &[centre])?);
/// assert_eq!(x, [0.4]);
/// # Ok::<(), grawa_core::Error>(())
/// ```
pub fn descend(
    sgd: &Sgd,
    rate: f32,
    parameters: &mut [f32],
    velocity: &mut [f32],
    gradient: &[f32],
    prox: &[Prox<'_>],
) -> Result<bool, Error> {
    expect_lengths(parameters.len(), velocity.len(), gradient, prox)?;
    Ok(sgd.run(rate, 0, parameters, velocity, gradient, prox))
}

impl Sgd {
    /// A step on a part of a model that begins at `offset`.
    pub(crate) fn run(
        self,
        rate: f32,
        offset: usize,
        parameters: &mut [f32],
        velocity: &mut [f32],
        gradient: &[f32],
        prox: &[Prox<'_>],
    ) -> bool {
        let Sgd { momentum, weight_decay, nesterov } = self;
        let (look_ahead, direct) = if nesterov { (momentum, 1.0) } else { (1.0, 0.0) };
        blockwise(offset, parameters, prox, |at, block| {
            for ((x, v), &g) in block.iter_mut().zip(&mut velocity[at.clone()]).zip(&gradient[at]) {
                let d = g + weight_decay * *x;
                *v = momentum * *v + d;
                *x -= rate * (direct * d + look_ahead * *v);
            }
        })
    }
}

/// Checks the vectors of a step.
pub(crate) fn expect_lengths(
    parameters: usize,
    velocity: usize,
    gradient: &[f32],
    prox: &[Prox<'_>],
) -> Result<(), Error> {
    expect_len("the velocity", velocity, parameters)?;
    expect_len("the gradient", gradient.len(), parameters)?;
    prox.iter().try_for_each(|prox| expect_len("the centre", prox.centre.len(), parameters))
}

/// Updates the parameters from `offset` on block by block, each followed by the pulls. Returns whether all are finite.
pub(crate) fn blockwise(
    offset: usize,
    parameters: &mut [f32],
    prox: &[Prox<'_>],
    mut update: impl FnMut(Range<usize>, &mut [f32]),
) -> bool {
    let mut all_finite = true;
    for (index, block) in parameters.chunks_mut(BLOCK).enumerate() {
        let at = index * BLOCK..index * BLOCK + block.len();
        update(at.clone(), block);
        let finite = block.iter().fold(true, |all, x| all & x.is_finite());
        all_finite &= finite;
        // A pull clamps its result. A value that is not finite must stay so, to be seen at the round.
        for prox in prox.iter().filter(|_| finite) {
            pull(block, &prox.centre[offset + at.start..][..block.len()], prox.strength);
        }
    }
    all_finite
}

/// SAM's ascent: saves the parameters and moves them by `radius` along the gradient, x + ρ·g/(‖g‖ + 10⁻¹²).
///
/// ```
/// let (mut x, mut saved) = ([0.0, 0.0], [9.0, 9.0]);
/// grawa_core::step::ascend(0.05, &mut x, &mut saved, &[3.0, 4.0])?;
/// assert_eq!((x, saved), ([0.03, 0.04], [0.0, 0.0]));
/// # Ok::<(), grawa_core::Error>(())
/// ```
pub fn ascend(radius: f32, parameters: &mut [f32], saved: &mut [f32], gradient: &[f32]) -> Result<(), Error> {
    expect_len("the saved copy", saved.len(), parameters.len())?;
    expect_len("the gradient", gradient.len(), parameters.len())?;
    let scale = (f64::from(radius) / (norm(gradient) + 1e-12)) as f32;
    for ((x, saved), &g) in parameters.iter_mut().zip(saved).zip(gradient) {
        *saved = *x;
        *x += scale * g;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three steps of torch.optim.SGD(lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True) and of the same
    /// without Nesterov, from (1, −2) with gradients (0.5, 0.25), (−1, 3), (0.1, 0.2); PyTorch 2.11.
    const TORCH: [[[f32; 2]; 3]; 2] = [
        [[0.903_1, -2.043_7], [1.050_074_1, -2.628_447], [1.072_168_5, -2.919_564_7]],
        [[0.949, -2.023], [1.002_151, -2.341_677], [1.038_984_8, -2.646_144_6]],
    ];

    #[test]
    fn steps_are_those_of_pytorch() {
        for (expected, nesterov) in TORCH.into_iter().zip([true, false]) {
            let sgd = Sgd { momentum: 0.9, weight_decay: 0.01, nesterov };
            let (mut x, mut v) = ([1.0, -2.0], [0.0; 2]);
            for (gradient, expected) in [[0.5, 0.25], [-1.0, 3.0], [0.1, 0.2]].iter().zip(expected) {
                assert!(descend(&sgd, 0.1, &mut x, &mut v, gradient, &[]).unwrap());
                for (found, expected) in x.iter().zip(expected) {
                    assert!((found - expected).abs() <= 2.5e-7 * expected.abs(), "{x:?}");
                }
            }
        }
    }

    /// Worked out by hand: μ = 0.01, τ = 32, no gradient, x = (3, 7), centre 4.
    #[test]
    fn the_golden_prox() {
        let (mut x, mut v) = ([3.0, 7.0], [0.0; 2]);
        let prox = Prox { centre: [4.0, 4.0].as_slice(), strength: 0.01 / 32.0 };
        descend(&Sgd::PLAIN, 0.1, &mut x, &mut v, &[0.0; 2], &[prox]).unwrap();
        assert!((x[0] - 3.000_312_5).abs() < 3e-7 && (x[1] - 6.999_062_5).abs() < 5e-7, "{x:?}");
    }

    #[test]
    fn two_pulls_come_one_after_the_other() {
        let (mut x, mut v) = ([8.0], [0.0]);
        let pulls = [
            Prox { centre: [0.0].as_slice(), strength: 0.5 },
            Prox { centre: [2.0].as_slice(), strength: 0.5 },
        ];
        descend(&Sgd::PLAIN, 0.1, &mut x, &mut v, &[0.0], &pulls).unwrap();
        assert_eq!(x, [3.0]);
    }

    #[test]
    fn what_is_not_finite_is_seen() {
        let step = |g: f32, prox: &[Prox<'_>]| {
            let (mut x, mut v) = (vec![1.0; 5000], vec![0.0; 5000]);
            let mut gradient = vec![0.0; 5000];
            gradient[4321] = g;
            descend(&Sgd::PLAIN, 1.0, &mut x, &mut v, &gradient, prox).unwrap()
        };
        let centre = vec![0.0; 5000];
        let prox = [Prox { centre: centre.as_slice(), strength: 0.1 }];
        assert!(step(1.0, &[]) && step(1.0, &prox));
        assert!(!step(f32::NAN, &[]) && !step(f32::NAN, &prox));
        assert!(!step(f32::INFINITY, &[]) && !step(f32::NEG_INFINITY, &prox));
    }

    #[test]
    fn lengths_must_fit() {
        let wrong = |v: usize, g: usize, c: usize| {
            let centre = vec![0.0; c];
            let prox = [Prox { centre: centre.as_slice(), strength: 0.1 }];
            descend(&Sgd::PLAIN, 0.1, &mut [0.0; 3], &mut vec![0.0; v], &vec![0.0; g], &prox).is_err()
        };
        assert!(wrong(2, 3, 3) && wrong(3, 2, 3) && wrong(3, 3, 2) && !wrong(3, 3, 3));
        assert!(ascend(0.1, &mut [0.0; 2], &mut [0.0; 1], &[0.0; 2]).is_err());
    }

    #[test]
    fn a_gradient_of_zero_moves_nothing() {
        let (mut x, mut saved) = ([1.0], [0.0]);
        ascend(0.05, &mut x, &mut saved, &[0.0]).unwrap();
        assert_eq!(x, [1.0]);
    }
}

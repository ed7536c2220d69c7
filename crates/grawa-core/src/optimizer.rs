//! The optimizer of the local steps: SGD, or AdamW with its two moments.
//!
//! AdamW's arithmetic is that of PyTorch's `AdamW` (without `amsgrad`): x ← (1 − η·wd)·x; m ← m + (1 − β₁)·(g − m);
//! v ← β₂·v + (1 − β₂)·g²; x ← x − η/(1 − β₁ᵗ) · m / (√v/√(1 − β₂ᵗ) + ε); then the pulls of [`step`](crate::step).

use crate::error::expect_len;
use crate::step::{BLOCK, blockwise, expect_lengths};
use crate::{Error, Prox, Sgd, StateKind};

/// The settings of AdamW that do not change from step to step. Weight decay is decoupled from the gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// β₁.
    pub beta1: f64,
    /// β₂.
    pub beta2: f64,
    /// ε.
    pub eps: f32,
    /// wd.
    pub weight_decay: f32,
}

impl Default for AdamW {
    /// PyTorch's.
    fn default() -> Self {
        AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 1e-2 }
    }
}

/// The optimizer of the local steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    /// SGD with momentum.
    Sgd(Sgd),
    /// AdamW.
    AdamW(AdamW),
}

impl From<Sgd> for Optimizer {
    fn from(sgd: Sgd) -> Self {
        Optimizer::Sgd(sgd)
    }
}

impl From<AdamW> for Optimizer {
    fn from(adamw: AdamW) -> Self {
        Optimizer::AdamW(adamw)
    }
}

/// The state of an optimizer.
///
/// ```
/// use grawa_core::{AdamW, Moments};
/// let (mut x, mut moments) = ([1.0], Moments::new(1));
/// let adamw = AdamW { weight_decay: 0.0, ..AdamW::default() };
/// moments.descend(&adamw.into(), 0.5, &mut x, &[3.0], &[])?;
/// // The first step of Adam has the length of the rate, whatever the gradient.
/// assert!((x[0] - 0.5).abs() < 1e-6);
/// # Ok::<(), grawa_core::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Moments {
    /// The velocity of SGD, or AdamW's first moment.
    first: Vec<f32>,
    /// AdamW's second moment; empty before its first step.
    second: Vec<f32>,
    /// Steps of AdamW.
    steps: u32,
}

impl Moments {
    /// Those of `len` parameters before the first step: zero.
    pub fn new(len: usize) -> Self {
        Moments { first: vec![0.0; len], ..Moments::default() }
    }

    /// One local step, in one pass over memory. The pulls are applied one after the other. Returns whether all parameters
    /// are finite afterwards.
    pub fn descend(
        &mut self,
        optimizer: &Optimizer,
        rate: f32,
        parameters: &mut [f32],
        gradient: &[f32],
        prox: &[Prox<'_>],
    ) -> Result<bool, Error> {
        Ok(self.update(optimizer, rate, parameters, gradient, prox)?.run())
    }

    /// The same step, still to be run: as a whole, or in parts on several threads.
    pub fn update<'a>(
        &'a mut self,
        optimizer: &Optimizer,
        rate: f32,
        parameters: &'a mut [f32],
        gradient: &'a [f32],
        prox: &'a [Prox<'a>],
    ) -> Result<Update<'a>, Error> {
        expect_lengths(parameters.len(), self.first.len(), gradient, prox)?;
        let rule = match *optimizer {
            Optimizer::Sgd(sgd) => Rule::Sgd(sgd, rate),
            Optimizer::AdamW(AdamW { beta1, beta2, eps, weight_decay }) => {
                self.second.resize(parameters.len(), 0.0);
                self.steps = self.steps.saturating_add(1);
                // 1 − β in `f32` would be off by 10⁻⁵ for β = 0.999.
                let left = |beta: f64| 1.0 - libm::pow(beta, self.steps.into());
                let wide_rate = f64::from(rate);
                Rule::AdamW {
                    into_first: (1.0 - beta1) as f32,
                    stay: beta2 as f32,
                    into_second: (1.0 - beta2) as f32,
                    keep: (1.0 - wide_rate * f64::from(weight_decay)) as f32,
                    size: (wide_rate / left(beta1)) as f32,
                    root: libm::sqrt(left(beta2)) as f32,
                    eps,
                }
            }
        };
        let second = if let Rule::AdamW { .. } = rule { &mut self.second[..] } else { &mut [] };
        Ok(Update { rule, offset: 0, parameters, first: &mut self.first, second, gradient, prox })
    }

    /// Forgets all of it: the parameters were replaced.
    pub fn reset(&mut self) {
        *self = Moments::new(self.first.len());
    }

    /// A copy of the velocity, or of the second moment with the number of steps behind it. Empty for another part of a
    /// replica's state.
    pub fn copy(&self, what: StateKind) -> Vec<f32> {
        match what {
            StateKind::Velocity => self.first.clone(),
            StateKind::SecondMoment if self.steps > 0 => {
                // Exact up to 2²⁴ steps; beyond, 1 − β₂ᵗ is 1 in `f32` for any β₂ up to 0.999999.
                self.second.iter().copied().chain([self.steps as f32]).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Restores what [`Moments::copy`] has returned; no second moment is that before the first step.
    pub fn put(&mut self, what: StateKind, values: &[f32]) -> Result<(), Error> {
        match (what, values) {
            (StateKind::Velocity, _) => what.fill(&mut self.first, values),
            (StateKind::SecondMoment, [second @ .., steps]) => {
                expect_len("the restored second moment", second.len(), self.first.len())?;
                (self.second, self.steps) = (second.to_vec(), *steps as u32);
                Ok(())
            }
            (StateKind::SecondMoment, []) => {
                (self.second, self.steps) = (Vec::new(), 0);
                Ok(())
            }
            _ => expect_len("the restored moments", values.len(), 0),
        }
    }
}

/// What a step does to every parameter.
#[derive(Clone, Copy, Debug)]
enum Rule {
    Sgd(Sgd, f32),
    AdamW { into_first: f32, stay: f32, into_second: f32, keep: f32, size: f32, root: f32, eps: f32 },
}

/// A step on a model's vectors, or on a part of them. Parameters are independent: parts give the same bits as the whole.
#[derive(Debug)]
pub struct Update<'a> {
    rule: Rule,
    /// Where the part begins.
    offset: usize,
    parameters: &'a mut [f32],
    first: &'a mut [f32],
    /// Empty without AdamW.
    second: &'a mut [f32],
    gradient: &'a [f32],
    prox: &'a [Prox<'a>],
}

impl<'a> Update<'a> {
    /// The number of parameters.
    pub fn len(&self) -> usize {
        self.parameters.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.parameters.is_empty()
    }

    /// Two halves, or none if it is too small to divide.
    pub fn halves(self) -> (Self, Option<Self>) {
        // Whole blocks: a block with a parameter that is not finite is not pulled.
        let at = self.parameters.len().div_ceil(2).next_multiple_of(BLOCK);
        if at >= self.parameters.len() {
            return (self, None);
        }
        let Update { rule, offset, parameters, first, second, gradient, prox } = self;
        let (parameters, parameters_2) = parameters.split_at_mut(at);
        let (first, first_2) = first.split_at_mut(at);
        let (second, second_2) = second.split_at_mut(at.min(second.len()));
        let (gradient, gradient_2) = gradient.split_at(at);
        (
            Update { rule, offset, parameters, first, second, gradient, prox },
            Some(Update {
                rule,
                offset: offset + at,
                parameters: parameters_2,
                first: first_2,
                second: second_2,
                gradient: gradient_2,
                prox,
            }),
        )
    }

    /// Runs it. Returns whether all its parameters are finite afterwards.
    pub fn run(self) -> bool {
        let Update { rule, offset, parameters, first, second, gradient, prox } = self;
        match rule {
            Rule::Sgd(sgd, rate) => sgd.run(rate, offset, parameters, first, gradient, prox),
            Rule::AdamW { into_first, stay, into_second, keep, size, root, eps } => {
                blockwise(offset, parameters, prox, |at, block| {
                    let moments = first[at.clone()].iter_mut().zip(&mut second[at.clone()]);
                    for ((x, (m, v)), &g) in block.iter_mut().zip(moments).zip(&gradient[at]) {
                        *m += into_first * (g - *m);
                        *v = stay * *v + into_second * g * g;
                        *x = keep * *x - size * (*m / (v.sqrt() / root + eps));
                    }
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From `oracle/adamw.py`: torch.optim.AdamW, PyTorch 2.15, three settings with their rates, six gradients of two
    /// parameters that start at (1, −2); the parameters after each step.
    const GRADIENTS: [[f32; 2]; 6] =
        [[0.5, 0.25], [-1.0, 3.0], [0.1, 0.2], [0.0, -0.5], [20.0, 1e-4], [-0.3, 0.7]];
    const SETTINGS: [(AdamW, f32); 3] = [
        (AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 1e-2 }, 1e-3),
        (AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 }, 0.1),
        (AdamW { beta1: 0.5, beta2: 0.99, eps: 1e-3, weight_decay: 0.0 }, 0.05),
    ];
    const TORCH: [[[f64; 2]; 6]; 3] = [
        [
            [0.998_989_999, -2.000_979_9],
            [0.999_346_077, -2.001_757_14],
            [0.999_561_012, -2.002_394_44],
            [0.999_735_236, -2.002_810_48],
            [0.999_189_317, -2.003_159_05],
            [0.998_725_295, -2.003_565_31],
        ],
        [
            [0.890_000_045, -2.079_999_92],
            [0.917_437_434, -2.137_948_99],
            [0.930_871_308, -2.182_325_84],
            [0.940_323_412, -2.204_631_09],
            [0.879_877_806, -2.220_375_78],
            [0.827_263_832, -2.242_225_89],
        ],
        [
            [0.950_099_826, -2.049_800_87],
            [0.981_635_213, -2.098_592_28],
            [0.993_752_122, -2.127_485_99],
            [1.000_296_35, -2.134_145_74],
            [0.943_454_862, -2.137_759_21],
            [0.913_666_248, -2.153_618_34],
        ],
    ];

    /// Halves of halves give the bits of the whole, with both optimizers, and with a block that must not be pulled.
    #[test]
    fn parts_give_the_bits_of_the_whole() {
        fn run(update: Update<'_>) -> bool {
            match update.halves() {
                (whole, None) => whole.run(),
                (first, Some(second)) => run(first) & run(second),
            }
        }
        let len = 5 * BLOCK + 77;
        let some = |scale: f32| (0..len).map(|at| ((at % 97) as f32 - 40.0) * scale).collect::<Vec<f32>>();
        let (centre, mut gradient) = (some(0.3), some(0.01));
        let prox = [Prox { centre: &centre, strength: 0.25 }];
        for (broken, optimizer) in
            [false, true].into_iter().zip([Sgd::default().into(), AdamW::default().into()])
        {
            gradient[BLOCK + 3] = if broken { f32::NAN } else { 1.0 };
            let step = |moments: &mut Moments, x: &mut [f32], parts: bool| {
                let update = moments.update(&optimizer, 0.1, x, &gradient, &prox).unwrap();
                assert_eq!(if parts { run(update) } else { update.run() }, !broken);
            };
            let (mut whole, mut parts) = ((Moments::new(len), some(0.1)), (Moments::new(len), some(0.1)));
            for _ in 0..2 {
                step(&mut whole.0, &mut whole.1, false);
                step(&mut parts.0, &mut parts.1, true);
            }
            let bits = |(moments, x): &(Moments, Vec<f32>)| {
                let all = x.iter().chain(&moments.first).chain(&moments.second);
                all.map(|x| x.to_bits()).collect::<Vec<_>>()
            };
            assert_eq!(bits(&whole), bits(&parts));
        }
        let (mut moments, mut x) = (Moments::new(len), some(1.0));
        let update = moments.update(&Sgd::PLAIN.into(), 0.1, &mut x, &gradient, &[]).unwrap();
        let (first, second) = update.halves();
        assert_eq!((first.len(), second.map(|part| part.len())), (3 * BLOCK, Some(2 * BLOCK + 77)));
    }

    #[test]
    fn steps_are_those_of_pytorch() {
        for ((adamw, rate), expected) in SETTINGS.into_iter().zip(TORCH) {
            let (mut x, mut moments) = ([1.0, -2.0], Moments::new(2));
            for (gradient, expected) in GRADIENTS.iter().zip(expected) {
                assert!(moments.descend(&adamw.into(), rate, &mut x, gradient, &[]).unwrap());
                for (found, expected) in x.iter().zip(expected) {
                    assert!((f64::from(*found) / expected - 1.0).abs() <= 1e-6, "{x:?}, not {expected:?}");
                }
            }
        }
    }

    #[test]
    fn moments_that_were_kept_go_on_with_the_same_bits() {
        let steps = |stop: Option<usize>| {
            let (mut x, mut moments) = ([1.0, -2.0], Moments::new(2));
            for (step, gradient) in GRADIENTS.iter().enumerate() {
                if stop == Some(step) {
                    let kept =
                        [StateKind::Velocity, StateKind::SecondMoment].map(|what| (what, moments.copy(what)));
                    moments = Moments::new(2);
                    kept.iter().for_each(|(what, values)| moments.put(*what, values).unwrap());
                }
                moments.descend(&AdamW::default().into(), 0.1, &mut x, gradient, &[]).unwrap();
            }
            x
        };
        assert!((0..6).all(|stop| steps(Some(stop)) == steps(None)));
    }

    #[test]
    fn sgd_has_one_moment_and_a_reset_forgets_both() {
        let step = |moments: &mut Moments, optimizer: &Optimizer| {
            let mut x = [1.0, -2.0];
            moments.descend(optimizer, 0.1, &mut x, &[0.5, 0.25], &[]).unwrap();
            x
        };
        let mut moments = Moments::new(2);
        step(&mut moments, &Sgd::default().into());
        assert!(
            moments.copy(StateKind::SecondMoment).is_empty() && moments.copy(StateKind::Velocity) != [0.0; 2]
        );
        let (mut moments, adamw) = (Moments::new(2), AdamW::default().into());
        let first = step(&mut moments, &adamw);
        assert_ne!(step(&mut moments, &adamw), first);
        assert_eq!(moments.copy(StateKind::SecondMoment)[2], 2.0);
        moments.reset();
        assert_eq!(step(&mut moments, &adamw), first);
    }

    #[test]
    fn lengths_must_fit_and_what_is_not_finite_is_seen() {
        let adamw: Optimizer = AdamW::default().into();
        let mut moments = Moments::new(2);
        assert!(moments.descend(&adamw, 0.1, &mut [0.0; 3], &[0.0; 3], &[]).is_err());
        assert!(moments.descend(&adamw, 0.1, &mut [0.0; 2], &[0.0; 3], &[]).is_err());
        assert!(moments.put(StateKind::SecondMoment, &[0.0; 2]).is_err());
        let centre = Prox { centre: [0.0; 2].as_slice(), strength: 0.5 };
        assert!(!moments.descend(&adamw, 0.1, &mut [0.0; 2], &[f32::NAN, 0.0], &[centre]).unwrap());
    }
}

//! Learning-rate schedules: a pure function of the progress of the run.
//!
//! A schedule is a base rate, an optional linear warm-up, drops, and an optional half cosine. It is evaluated at every step from the
//! common progress, so no drop can be missed, and all workers drop at the same step.
//!
//! ```
//! use grawa_core::{Progress, Schedule};
//! let schedule: Schedule = "0.1, warmup 5epoch, x0.1 at 150epoch, x0.1 at 225epoch".parse()?;
//! let rate = |epochs| schedule.rate(&Progress { epochs, ..Progress::default() });
//! assert!((rate(2.5) - 0.05).abs() < 1e-12);
//! assert_eq!(rate(100.0), 0.1);
//! assert!((rate(230.0) - 0.001).abs() < 1e-12);
//! # Ok::<(), grawa_core::Error>(())
//! ```

use crate::{Amount, Error, Progress};
use std::fmt;
use std::str::FromStr;

/// A learning rate over a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    base: f64,
    warmup: Option<Amount>,
    drops: Vec<RateDrop>,
    cosine: Option<Amount>,
}

/// From `at` on, the rate is multiplied by `factor`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateDrop {
    /// The factor.
    pub factor: f64,
    /// When it starts to hold.
    pub at: Amount,
}

impl Schedule {
    /// A constant rate.
    pub fn constant(base: f64) -> Result<Self, Error> {
        Schedule::new(base, None, Vec::new())
    }

    /// A base rate, an optional linear warm-up from zero, and drops, which multiply.
    pub fn new(base: f64, warmup: Option<Amount>, drops: Vec<RateDrop>) -> Result<Self, Error> {
        let bad = drops.iter().map(|drop| drop.factor).find(|factor| !(factor.is_finite() && *factor > 0.0));
        if !(base.is_finite() && base >= 0.0) || bad.is_some() {
            return Err(Error::Unreadable {
                what: "the schedule",
                found: bad.map_or(format!("{base}"), |factor| format!("x{factor}")),
                expected: "the rate must be finite and not negative, a factor finite and positive".into(),
            });
        }
        Ok(Schedule { base, warmup, drops, cosine: None })
    }

    /// The same, falling along half a cosine to zero: the rate is multiplied by (1 + cos(π·share)) / 2 of `over`.
    ///
    /// ```
    /// use grawa_core::{Progress, Schedule};
    /// let schedule: Schedule = "0.1, cosine over 100step".parse()?;
    /// let rate = |steps| schedule.rate(&Progress { steps, ..Progress::default() });
    /// assert_eq!((rate(0), rate(100), rate(120)), (0.1, 0.0, 0.0));
    /// assert!((rate(50) - 0.05).abs() < 1e-12);
    /// # Ok::<(), grawa_core::Error>(())
    /// ```
    pub fn with_cosine(self, over: Amount) -> Self {
        Schedule { cosine: Some(over), ..self }
    }

    /// The same from another base rate.
    pub fn with_base(self, base: f64) -> Result<Self, Error> {
        let cosine = self.cosine;
        Ok(Schedule { cosine, ..Schedule::new(base, self.warmup, self.drops)? })
    }

    /// The rate before warm-up, drops and cosine.
    pub fn base(&self) -> f64 {
        self.base
    }

    /// How long the rate rises.
    pub fn warmup(&self) -> Option<Amount> {
        self.warmup
    }

    /// Its drops.
    pub fn drops(&self) -> &[RateDrop] {
        &self.drops
    }

    /// How long it falls along half a cosine.
    pub fn cosine(&self) -> Option<Amount> {
        self.cosine
    }

    /// The rate at this point of the run.
    pub fn rate(&self, at: &Progress) -> f64 {
        let warm = self.warmup.map_or(1.0, |warmup| warmup.share(at).min(1.0));
        let bent = self.cosine.map_or(1.0, |over| {
            let share = over.share(at);
            if share >= 1.0 { 0.0 } else { 0.5 * (1.0 + libm::cos(std::f64::consts::PI * share)) }
        });
        self.drops
            .iter()
            .filter(|drop| drop.at.is_spent(at))
            .fold(self.base * warm * bent, |rate, drop| rate * drop.factor)
    }
}

impl FromStr for Schedule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || {
            Error::Unreadable {
            what: "the schedule",
            found: text.into(),
            expected: "expected a rate, then any of 'warmup AMOUNT', 'xFACTOR at AMOUNT' and 'cosine over AMOUNT', parted by \
                       commas, as in '0.1, warmup 5epoch, x0.1 at 150epoch'"
                .into(),
        }
        };
        let mut parts = text.split(',').map(str::trim);
        let base = parts.next().and_then(|base| base.parse().ok()).ok_or_else(wrong)?;
        let (mut warmup, mut drops, mut cosine) = (None, Vec::new(), None);
        for part in parts {
            if let Some(amount) = part.strip_prefix("warmup ") {
                if warmup.replace(amount.parse()?).is_some() {
                    return Err(wrong());
                }
            } else if let Some(over) = part.strip_prefix("cosine over ") {
                if cosine.replace(over.parse()?).is_some() {
                    return Err(wrong());
                }
            } else {
                let (factor, at) = (part.strip_prefix(['x', '×']))
                    .and_then(|part| part.split_once(" at "))
                    .ok_or_else(wrong)?;
                drops.push(RateDrop { factor: factor.trim().parse().map_err(|_| wrong())?, at: at.parse()? });
            }
        }
        let schedule = Schedule::new(base, warmup, drops)?;
        Ok(Schedule { cosine, ..schedule })
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.base)?;
        if let Some(warmup) = self.warmup {
            write!(f, ", warmup {warmup}")?;
        }
        self.drops.iter().try_for_each(|drop| write!(f, ", x{} at {}", drop.factor, drop.at))?;
        self.cosine.map_or(Ok(()), |over| write!(f, ", cosine over {over}"))
    }
}

serde_as_text!(Schedule);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    #[test]
    fn drops_by_step_epoch_and_time() {
        let schedule: Schedule = "1, x0.5 at 10step, x0.5 at 2epoch, x0.5 at 3s".parse().unwrap();
        let rate = |steps, epochs, seconds| {
            schedule.rate(&Progress { steps, epochs, elapsed: Duration::from_secs(seconds) })
        };
        assert_eq!(rate(9, 1.9, 2), 1.0);
        assert_eq!(rate(10, 1.9, 2), 0.5);
        assert_eq!(rate(10, 2.0, 2), 0.25);
        assert_eq!(rate(10, 2.0, 3), 0.125);
    }

    /// The PyramidNet rule of the authors' code: 1, 0.1 from epoch 150, 0.01 from 225.
    #[test]
    fn drops_multiply() {
        let schedule: Schedule = "0.1, x0.1 at 150epoch, x0.1 at 225epoch".parse().unwrap();
        for (epochs, rate) in [(0.0, 0.1), (149.9, 0.1), (150.0, 0.01), (225.0, 0.001), (450.0, 0.001)] {
            let found = schedule.rate(&Progress { epochs, ..Progress::default() });
            assert!((found / rate - 1.0).abs() < 1e-12, "{found} at {epochs}");
        }
    }

    #[test]
    fn what_is_not_a_schedule_is_refused() {
        for text in [
            "",
            "fast",
            "-0.1",
            "nan",
            "inf",
            "0.1, x0 at 5step",
            "0.1, x-1 at 5step",
            "0.1, at 5step",
            "0.1,",
            "0.1, warmup 5",
            "0.1, warmup 1s, warmup 2s",
            "0.1, cosine",
            "0.1, cosine over 5",
            "0.1, cosine over 1s, cosine over 2s",
            "0.1 x0.1 at 5step",
        ] {
            assert!(text.parse::<Schedule>().is_err(), "'{text}' was read");
        }
    }

    /// PyTorch's CosineAnnealingLR(T_max = 8) from 0.1, steps 0 to 8.
    #[test]
    fn the_cosine_is_pytorchs() {
        let schedule: Schedule = "0.1, cosine over 8step".parse().unwrap();
        let known = [
            0.1,
            0.096_193_976_625_564_34,
            0.085_355_339_059_327_39,
            0.069_134_171_618_254_5,
            0.05,
            0.030_865_828_381_745_515,
            0.014_644_660_940_672_627,
            0.003_806_023_374_435_663_4,
            0.0,
        ];
        for (steps, known) in known.into_iter().enumerate() {
            let found = schedule.rate(&Progress { steps: steps as u64, ..Progress::default() });
            assert!((found - known).abs() < 1e-15, "{found} at {steps}, not {known}");
        }
        let both: Schedule = "0.1, warmup 4step, x0.5 at 6step, cosine over 8step".parse().unwrap();
        let rate = |steps| both.rate(&Progress { steps, ..Progress::default() });
        assert!((rate(2) / (0.5 * known[2]) - 1.0).abs() < 1e-12);
        assert!((rate(6) / (0.5 * known[6]) - 1.0).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn printed_schedules_read_back(base in 0.0f64..10.0, warm in proptest::option::of(0u64..100),
                                       cosine in proptest::option::of(0u64..100),
                                       drops in proptest::collection::vec((0.001f64..2.0, 0u64..1000), 0..4)) {
            let drops = drops.into_iter().map(|(factor, at)| RateDrop { factor, at: Amount::Steps(at) }).collect();
            let schedule = Schedule::new(base, warm.map(Amount::Steps), drops).unwrap();
            let schedule = match cosine {
                Some(over) => schedule.with_cosine(Amount::Steps(over)),
                None => schedule,
            };
            prop_assert_eq!(schedule.to_string().parse::<Schedule>().unwrap(), schedule);
        }
    }
}

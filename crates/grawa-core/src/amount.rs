//! Amounts of training with units, and budgets made of them.
//!
//! `10m`, `5000step` and `60epoch` are amounts; a [`Progress`] says how far a run is. Time is an argument, never read
//! here: the caller owns the clock and excludes evaluation.
//!
//! ```
//! use grawa_core::{Amount, Progress};
//! use std::time::Duration;
//! let budget: Amount = "1h30m".parse()?;
//! let now = Progress { steps: 4_000, epochs: 10.2, elapsed: Duration::from_secs(2_700) };
//! assert_eq!((budget.share(&now), budget.is_spent(&now)), (0.5, false));
//! assert_eq!(budget.to_string(), "1h30m");
//! # Ok::<(), grawa_core::Error>(())
//! ```

use crate::Error;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// How far a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// Local steps of each worker; at an uneven pace, all steps divided by the number of workers.
    pub steps: u64,
    /// Passes over the training set by all workers together.
    pub epochs: f64,
    /// Training time without evaluation.
    pub elapsed: Duration,
}

/// How much training: a number of steps, epochs, or an amount of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// Local steps of each worker.
    Steps(u64),
    /// Passes over the training set by all workers together.
    Epochs(f64),
    /// Training time.
    Time(Duration),
}

impl Amount {
    /// How much of the amount is done: 0 at the start, 1 when it is spent; may exceed 1.
    pub fn share(&self, at: &Progress) -> f64 {
        let (done, whole) = match *self {
            Amount::Steps(steps) => (at.steps as f64, steps as f64),
            Amount::Epochs(epochs) => (at.epochs, epochs),
            Amount::Time(time) => (at.elapsed.as_secs_f64(), time.as_secs_f64()),
        };
        if done >= whole && whole == 0.0 { 1.0 } else { done / whole }
    }

    /// Whether the amount is spent. An amount of zero is spent before the first step.
    pub fn is_spent(&self, at: &Progress) -> bool {
        match *self {
            Amount::Steps(steps) => at.steps >= steps,
            Amount::Epochs(epochs) => at.epochs >= epochs,
            Amount::Time(time) => at.elapsed >= time,
        }
    }
}

const FORM: &str =
    "expected a number with a unit: steps (5000step), epochs (60epoch) or time (90s, 10m, 1h30m)";

impl FromStr for Amount {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let unreadable = |expected| Error::Unreadable { what: "the amount", found: text.into(), expected };
        let wrong = || unreadable(FORM.into());
        let compact: String = text.chars().filter(|c| !c.is_whitespace() && *c != '_').collect();
        if compact.starts_with('-') {
            return Err(unreadable("it must not be negative".into()));
        }
        if !compact.is_empty() && compact.parse::<f64>().is_ok() {
            let units = format!("{compact}epoch, {compact}step or {compact}m (minutes)");
            return Err(unreadable(format!("a unit is missing; write {units}")));
        }
        let mut rest = compact.as_str();
        let mut time: Option<f64> = None;
        let mut last_unit = f64::INFINITY;
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).ok_or_else(wrong)?;
            let (number, tail) = rest.split_at(digits);
            let unit_len = tail.find(|c: char| !c.is_alphabetic()).unwrap_or(tail.len());
            let (unit, tail) = tail.split_at(unit_len);
            rest = tail;
            let seconds = match unit {
                "step" | "steps" if time.is_none() && rest.is_empty() => {
                    return number.parse().map(Amount::Steps).map_err(|_| wrong());
                }
                "epoch" | "epochs" if time.is_none() && rest.is_empty() => {
                    let epochs: f64 = number.parse().map_err(|_| wrong())?;
                    return if epochs.is_finite() { Ok(Amount::Epochs(epochs)) } else { Err(wrong()) };
                }
                "h" => 3600.0,
                "m" | "min" => 60.0,
                "s" | "sec" => 1.0,
                "ms" => 1e-3,
                _ => return Err(wrong()),
            };
            // Units of a time go from large to small, each once: `1h30m`, not `30m1h`.
            if seconds >= last_unit {
                return Err(wrong());
            }
            last_unit = seconds;
            let count: f64 = number.parse().map_err(|_| wrong())?;
            time = Some(time.unwrap_or(0.0) + count * seconds);
        }
        let time = time.ok_or_else(wrong)?;
        Duration::try_from_secs_f64(time).map(Amount::Time).map_err(|_| wrong())
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Amount::Steps(steps) => write!(f, "{steps}step"),
            Amount::Epochs(epochs) => write!(f, "{epochs}epoch"),
            Amount::Time(time) => {
                let (whole, rest) = (time.as_secs(), time.subsec_nanos());
                let (h, m, s) = (whole / 3600, whole / 60 % 60, whole % 60);
                if h > 0 {
                    write!(f, "{h}h")?;
                }
                if m > 0 {
                    write!(f, "{m}m")?;
                }
                if rest > 0 {
                    write!(f, "{s}.{}s", format!("{rest:09}").trim_end_matches('0'))
                } else if s > 0 || (h, m) == (0, 0) {
                    write!(f, "{s}s")
                } else {
                    Ok(())
                }
            }
        }
    }
}

serde_as_text!(Amount);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn units_are_read() {
        let read = |text: &str| text.parse::<Amount>().unwrap();
        assert_eq!(read("5000step"), Amount::Steps(5000));
        assert_eq!(read("1 step"), Amount::Steps(1));
        assert_eq!(read("10_500 steps"), Amount::Steps(10_500));
        assert_eq!(read("60epoch"), Amount::Epochs(60.0));
        assert_eq!(read("0.5epochs"), Amount::Epochs(0.5));
        assert_eq!(read("10m"), Amount::Time(Duration::from_secs(600)));
        assert_eq!(read("1h30m"), Amount::Time(Duration::from_secs(5400)));
        assert_eq!(read("2.5s"), Amount::Time(Duration::from_millis(2500)));
        assert_eq!(read("250ms"), Amount::Time(Duration::from_millis(250)));
    }

    #[test]
    fn what_is_not_an_amount_is_refused() {
        for text in [
            "", "5", "step", "1.5step", "-1s", "5parsecs", "30m1h", "1m1m", "5step1s", "1s5step", "1..5s",
            "1e400h", "NaNs",
        ] {
            let refused = text.parse::<Amount>();
            assert!(refused.is_err(), "{text} gave {refused:?}");
        }
        for unit in ["h", "epoch", "step"] {
            let long = format!("{}{unit}", "9".repeat(400));
            assert!(long.parse::<Amount>().is_err());
        }
    }

    #[test]
    fn a_budget_of_zero_is_spent_at_once() {
        for budget in [Amount::Steps(0), Amount::Epochs(0.0), Amount::Time(Duration::ZERO)] {
            assert!(budget.is_spent(&Progress::default()));
            assert_eq!(budget.share(&Progress::default()), 1.0);
        }
    }

    proptest! {
        #[test]
        fn printed_amounts_read_back(steps: u64, epochs in 0.0f64..1e9, nanos in 0u64..1_000_000_000_000_000) {
            // Microseconds: seconds pass through f64, which holds them exactly enough up to weeks.
            let time = Duration::from_micros(nanos / 1000);
            for amount in [Amount::Steps(steps), Amount::Epochs(epochs)] {
                prop_assert_eq!(amount.to_string().parse::<Amount>().unwrap(), amount);
            }
            let Amount::Time(back) = Amount::Time(time).to_string().parse::<Amount>().unwrap() else { panic!() };
            prop_assert!(back.abs_diff(time) < Duration::from_micros(1));
        }

        #[test]
        fn spent_is_a_share_of_one(steps in 1u64..1000, done in 0u64..2000) {
            let at = Progress { steps: done, ..Progress::default() };
            prop_assert_eq!(Amount::Steps(steps).is_spent(&at), Amount::Steps(steps).share(&at) >= 1.0);
        }
    }
}

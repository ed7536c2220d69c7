//! What a run on the Vincent landscape needs to know, and what is refused before anything runs.

use super::landscape::DOMAIN;
use crate::Error;
use grawa_core::{Method, Name, Pull, Share};
use std::fmt;
use std::str::FromStr;

/// What happens to a step that leaves the square [0.25, 10]².
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Edge {
    /// Nothing: f is defined for all positive x and y. The paper does not speak of an edge.
    #[default]
    None,
    /// The step ends on the edge.
    Clip,
    /// The step is mirrored at the edge.
    Reflect,
}

impl Edge {
    /// All rules.
    pub const ALL: [Edge; 3] = [Edge::None, Edge::Clip, Edge::Reflect];

    /// The rule's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Edge::None => "none",
            Edge::Clip => "clip",
            Edge::Reflect => "reflect",
        }
    }

    /// What brings a point back into the square, if anything does.
    pub(super) fn bound(self) -> Option<fn(&mut [f32])> {
        match self {
            Edge::None => None,
            Edge::Clip => Some(|at| at.iter_mut().for_each(|x| *x = clip(*x))),
            Edge::Reflect => Some(|at| at.iter_mut().for_each(|x| *x = reflect(*x))),
        }
    }
}

fn clip(x: f32) -> f32 {
    x.clamp(DOMAIN[0] as f32, DOMAIN[1] as f32)
}

/// Mirrored at whichever edge it passed, as often as it takes.
fn reflect(x: f32) -> f32 {
    let (low, width) = (DOMAIN[0], DOMAIN[1] - DOMAIN[0]);
    let turn = (f64::from(x) - low).rem_euclid(2.0 * width);
    clip((low + turn.min(2.0 * width - turn)) as f32)
}

impl fmt::Display for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Edge {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Edge::ALL
            .into_iter()
            .find(|edge| edge.as_str() == text)
            .ok_or_else(|| Error::UnknownEdge { found: text.into() })
    }
}

/// The corners the paper starts its four workers from.
pub const CORNERS: [[f64; 2]; 4] = [[0.25, 0.25], [0.25, 10.0], [10.0, 0.25], [10.0, 10.0]];

/// The methods of the paper's example, its local variants, and the plain mean as the control.
pub const METHODS: [Name; 8] = [
    Name::Easgd,
    Name::Lsgd,
    Name::Grawa,
    Name::Mgrawa,
    Name::Lgrawa,
    Name::LocalMgrawa,
    Name::LocalLgrawa,
    Name::Mean,
];

/// Steps times workers of a run: every position is kept, and half a gigabyte of them is enough.
const MOST_POSITIONS: u64 = 20_000_000;

/// One run's setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// The method, with its pull and period.
    pub method: Method,
    /// The learning rate of plain SGD.
    pub rate: f64,
    /// Local steps of every worker.
    pub steps: u64,
    /// Where the workers start.
    pub starts: Vec<[f64; 2]>,
    /// What happens at the edge.
    pub edge: Edge,
}

impl Setting {
    /// Whether this can be run.
    pub fn check(&self) -> Result<(), Error> {
        self.method.check()?;
        if self.method.share != Share::Parameters {
            return Err(Error::NothingToPull { method: self.method.name.to_string() });
        }
        // Steps are taken in f32.
        if !((self.rate as f32).is_normal() && self.rate > 0.0) {
            return Err(Error::RateOutOfRange { found: self.rate });
        }
        if self.steps == 0 {
            return Err(Error::NoSteps);
        }
        if self.starts.is_empty() {
            return Err(Error::NoStart);
        }
        let positions = self.steps.saturating_mul(self.starts.len() as u64);
        if positions > MOST_POSITIONS {
            return Err(Error::TooManySteps {
                steps: self.steps,
                workers: self.starts.len(),
                most: MOST_POSITIONS,
            });
        }
        let inside = |x: f64| match self.edge {
            Edge::None => x.is_finite() && x > 0.0 && (x as f32).is_normal(),
            Edge::Clip | Edge::Reflect => (DOMAIN[0]..=DOMAIN[1]).contains(&x),
        };
        match self.starts.iter().find(|start| !start.iter().all(|&x| inside(x))) {
            None => Ok(()),
            Some(&[x, y]) => Err(Error::StartOutside {
                x,
                y,
                domain: match self.edge {
                    Edge::None => "both coordinates positive, as f needs them".into(),
                    edge => format!(
                        "both coordinates from {} to {}, as --edge {edge} needs them",
                        DOMAIN[0], DOMAIN[1]
                    ),
                },
            }),
        }
    }
}

/// A method as it is used here: a pull λ every `period` steps and no light pull in between, unless the text
/// says otherwise.
///
/// ```
/// use grawa_lab::vincent::method;
/// assert_eq!(method("mean", 0.5, 4)?.to_string(), "mean:period=4,prox=0");
/// assert_eq!(method("mean:prox=0.1,period=8", 0.3, 4)?.to_string(), "mean:period=8,pull=0.3,prox=0.1");
/// # Ok::<(), grawa_lab::Error>(())
/// ```
pub fn method(text: &str, pull: f64, period: u32) -> Result<Method, Error> {
    let (name, said) = text.split_once(':').unwrap_or((text, ""));
    // A slip in the name should not be reported as a knob that does not fit.
    name.parse::<Name>()?;
    // The authors' EASGD has no pull of its own: it follows from the centre's rate.
    let follows = text.parse::<Method>().is_ok_and(|method| method.pull == Pull::RateOverWorkers);
    let strength = if follows { "rate" } else { "pull" };
    let own = [format!("{strength}={pull}"), format!("period={period}"), "prox=0".into()];
    let is_said =
        |knob: &str| said.split(',').any(|part| part.split('=').next().map(str::trim) == Some(knob));
    let mut knobs: Vec<&str> =
        own.iter().map(String::as_str).filter(|own| !is_said(own.split('=').next().unwrap_or(own))).collect();
    if text.contains(':') {
        knobs.push(said);
    }
    let gradients = matches!(name, "dp-sgd" | "dp-sam" | "sgd");
    if gradients {
        return Err(Error::NothingToPull { method: name.into() });
    }
    Ok(format!("{name}:{}", knobs.join(",")).parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn setting(starts: Vec<[f64; 2]>, edge: Edge) -> Setting {
        Setting { method: method("mean", 0.5, 4).unwrap(), rate: 0.01, steps: 10, starts, edge }
    }

    #[test]
    fn reflection_mirrors_at_both_edges() {
        assert_eq!(reflect(0.2), 0.3);
        assert_eq!(reflect(10.5), 9.5);
        assert_eq!(reflect(5.0), 5.0);
    }

    proptest! {
        #[test]
        fn bounded_points_lie_in_the_square(x in -1e6f32..1e6) {
            for edge in [Edge::Clip, Edge::Reflect] {
                let mut at = [x, x];
                edge.bound().unwrap()(&mut at);
                prop_assert!((0.25..=10.0).contains(&at[0]));
            }
        }
    }

    #[test]
    fn starts_must_lie_in_the_domain() {
        for (start, edge, fine) in [
            ([0.1, 20.0], Edge::None, true),
            ([0.0, 1.0], Edge::None, false),
            ([-1.0, 1.0], Edge::None, false),
            ([f64::NAN, 1.0], Edge::None, false),
            ([f64::INFINITY, 1.0], Edge::None, false),
            ([1e-60, 1.0], Edge::None, false),
            ([0.1, 1.0], Edge::Clip, false),
            ([10.1, 1.0], Edge::Reflect, false),
            ([0.25, 10.0], Edge::Reflect, true),
        ] {
            assert_eq!(setting(vec![start], edge).check().is_ok(), fine, "{start:?} {edge}");
        }
        assert!(setting(vec![], Edge::None).check().is_err());
    }

    #[test]
    fn rates_and_steps_must_be_positive() {
        let good = setting(CORNERS.into(), Edge::None);
        assert!(good.check().is_ok());
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300, 1e-60] {
            assert!(Setting { rate, ..good.clone() }.check().is_err());
        }
        assert!(Setting { steps: 0, ..good.clone() }.check().is_err());
        assert!(Setting { steps: u64::MAX, ..good }.check().unwrap_err().to_string().contains("20000000"));
    }

    #[test]
    fn only_methods_that_pull_are_taken() {
        for name in ["dp-sgd", "dp-sam", "sgd"] {
            assert!(method(name, 0.5, 4).unwrap_err().to_string().contains(name));
        }
        assert!(method("lgrwa", 0.5, 4).unwrap_err().to_string().contains("did you mean 'lgrawa'?"));
        assert!(method("mean", 1.5, 4).unwrap_err().to_string().contains("pull is 1.5"));
        assert!(method("mean", 0.5, 0).unwrap_err().to_string().contains("period is 0"));
        assert!(method("mean:", 0.5, 4).is_err());
        assert_eq!(
            method("easgd:preset=reference", 0.4, 4).unwrap().to_string(),
            "easgd:preset=reference,rate=0.4"
        );
    }
}

//! A method is data: a few choices that together define a round.
//!
//! The paper's methods are rows of one table (`table.rs`); every choice in a row can be overridden by a
//! knob (`text.rs`), so a new method costs a row, not a loop. [`plan`](crate::plan) decides a round from the choices, once for
//! all methods.
//!
//! ```
//! use grawa_core::{Method, Weighting};
//! let method: Method = "lgrawa:period=16,pull=0.7".parse()?;
//! assert_eq!((method.period, method.weighting), (16, Weighting::Inverse));
//! assert_eq!(method.to_string(), "lgrawa:period=16,pull=0.7");
//! # Ok::<(), grawa_core::Error>(())
//! ```

mod overlap;
mod table;
mod text;

pub use table::{Name, names};
pub use text::knobs;

use crate::Error;
use crate::mix::finite;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The source of a method's defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// The paper's pseudo-code, with its typing errors corrected.
    #[default]
    Paper,
    /// The authors' published code, as far as knobs can express it; docs/methods/README.md lists the rest.
    Reference,
}

/// What the workers send each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Their parameters, every τ steps.
    Parameters,
    /// Their gradients, every step.
    Gradients,
    /// Nothing: plain SGD.
    Nothing,
}

/// What a worker is scored by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Score {
    /// Nothing.
    None,
    /// The mean training loss of its last `window` mini-batches, each taken before its step.
    Loss {
        /// How many mini-batches.
        window: u32,
    },
    /// Norms of a gradient.
    Norm {
        /// Which norm.
        of: Norm,
        /// Which gradient.
        from: Source,
        /// γ: how much of the earlier score stays. Over rounds for a batch, over steps for training gradients.
        momentum: f64,
    },
}

impl Score {
    /// Whether a worker is scored by its local steps, not by a batch at the round.
    pub(crate) fn is_by_steps(self) -> bool {
        matches!(self, Score::Loss { .. } | Score::Norm { from: Source::Training { .. }, .. })
    }
}

/// Which norm of the gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Norm {
    /// ‖g‖ of the whole gradient: one number.
    Gradient,
    /// Σₖ ‖Gₖ‖ over the spans: one number.
    LayerSum,
    /// ‖Gₖ‖ of every span: a number each.
    Layers,
}

/// Which gradient the norm is taken of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A batch drawn from the whole training set at each round, sum-reduced, without changing any state.
    Batch {
        /// Whether all workers score the same batch.
        common: bool,
        /// Whether dropout is active.
        dropout: bool,
    },
    /// The gradients of the local steps themselves.
    Training {
        /// Whether the running estimate is reset after each round.
        reset: bool,
    },
}

/// How scores become weights β.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weighting {
    /// 1/M each.
    Uniform,
    /// In proportion to 1/score.
    Inverse,
    /// All weight to the smallest score.
    Smallest,
}

/// How the weighted average becomes the centre.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Centre {
    /// It is the centre: x_C = Σβx.
    Weighted,
    /// The centre moves toward it: x_C ← (1−ρ)·x_C + ρ·Σβx.
    Moving {
        /// ρ.
        rate: f64,
    },
    /// An outer optimizer moves it.
    Outer(Outer),
}

impl Centre {
    /// How many numbers a group keeps for a model of `len`: the centre, and behind it the velocity of an outer optimizer.
    pub fn state_len(&self, len: usize) -> usize {
        if matches!(self, Centre::Outer(_)) { 2 * len } else { len }
    }
}

/// SGD on the centre, as in PyTorch: Δ = x_C − Σβx is its gradient.
///
/// v ← μ·v + Δ, then x_C ← x_C − ρ·v, or x_C ← x_C − ρ·(Δ + μ·v) with Nesterov's momentum. Where it goes by the learning
/// rate γ, Δ/γ stands for Δ and ργ for ρ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outer {
    /// ρ.
    pub rate: f64,
    /// μ.
    pub momentum: f64,
    /// Whether the momentum is Nesterov's.
    pub nesterov: bool,
    /// γ of the local steps, if it goes by it; [`Method::at`] sets the number.
    pub by_rate: Option<f64>,
}

impl Outer {
    /// The next centre from the last one and Σβx; moves the velocity. Without momentum a rate of 1 gives Σβx itself.
    pub(crate) fn step(&self, centre: f32, average: f32, velocity: &mut f32) -> f32 {
        let unit = self.by_rate.unwrap_or(1.0) as f32;
        let (rate, momentum) = (self.rate as f32, self.momentum as f32);
        // A learning rate of zero moves nothing.
        let gradient = if unit > 0.0 { finite((centre - average) / unit) } else { 0.0 };
        *velocity = finite(momentum * *velocity + gradient);
        match () {
            () if unit > 0.0 && rate == 1.0 && momentum == 0.0 => average,
            () if self.nesterov => finite(centre - rate * unit * finite(gradient + momentum * *velocity)),
            () => finite(centre - rate * unit * *velocity),
        }
    }
}

/// How the push grows over a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rise {
    /// Not at all.
    Constant,
    /// In proportion to the spent share of the budget.
    Linear,
    /// Along half a cosine: (1 − cos(π·share)) / 2.
    Cosine,
}

impl Rise {
    fn of(self, share: f64) -> f64 {
        match self {
            Rise::Constant => 1.0,
            Rise::Linear => share,
            Rise::Cosine => 0.5 * (1.0 - libm::cos(std::f64::consts::PI * share)),
        }
    }
}

/// What a worker's weight is multiplied by, beside what its score says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum By {
    /// Nothing.
    None,
    /// Its local steps since the last round.
    Steps,
}

/// How strongly a round pulls the workers toward the centre.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pull {
    /// λ.
    Fixed(f64),
    /// ρ/M: the centre's rate divided by the number of workers, as in the authors' EASGD.
    RateOverWorkers,
}

/// Which centre a round pulls toward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Toward {
    /// The one this round makes.
    New,
    /// The one the last round made.
    Old,
}

/// Which model is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Evaluate {
    /// The plain mean of the workers.
    Mean,
    /// The centre of the last round.
    Centre,
    /// The worker with the smallest training loss.
    Best,
    /// Every worker separately.
    Each,
}

/// Rounds inside groups of workers, between the rounds of all.
#[derive(Clone, Debug, PartialEq)]
pub struct Inner {
    /// How many workers form a group.
    pub group: u32,
    /// What a round inside a group does.
    pub method: Method,
}

/// A method of distributed training: the choices that make it up.
///
/// Fields are plain data; [`Method::check`] says whether they go together, and [`plan`](crate::plan) calls
/// it. Get one by name with [`Method::named`], from a text such as `easgd:pull=0.3` by `parse`, or from
/// TOML by serde.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "text::Knobs", into = "text::Knobs")]
pub struct Method {
    /// The row of the table this method started from.
    pub name: Name,
    /// The preset its defaults came from.
    pub preset: Preset,
    /// What the workers send each other.
    pub share: Share,
    /// What a worker is scored by.
    pub score: Score,
    /// How scores become weights β.
    pub weighting: Weighting,
    /// What the weights are multiplied by.
    pub by: By,
    /// How the weighted average becomes the centre.
    pub centre: Centre,
    /// λ: how far a round moves the workers to the centre.
    pub pull: Pull,
    /// Which centre they are moved to.
    pub toward: Toward,
    /// How far a round pushes every worker away from the centre, beside the pull.
    pub push: f64,
    /// How the push grows over the run.
    pub push_rise: Rise,
    /// μ: every local step moves a worker by μ/τ toward the last centre.
    pub prox: f64,
    /// τ: local steps of each worker between rounds.
    pub period: u32,
    /// The quadratic synchronization rule's α: the period is (α/η)² where that is longer than τ. 0 switches it off.
    pub qsr: f64,
    /// Rounds inside groups of workers.
    pub inner: Option<Box<Inner>>,
    /// SAM's radius ρ, if the local optimiser is SAM.
    pub radius: Option<f64>,
    /// Which model is evaluated.
    pub evaluate: Evaluate,
}

impl Method {
    /// The method of that name with the defaults of a preset.
    pub fn named(name: Name, preset: Preset) -> Self {
        table::row(name, preset)
    }

    /// How many scores a worker reports: none, one, or one for each of `spans` spans.
    pub fn scores(&self, spans: usize) -> usize {
        match self.score {
            Score::None => 0,
            Score::Norm { of: Norm::Layers, .. } => spans,
            Score::Loss { .. } | Score::Norm { .. } => 1,
        }
    }

    /// λ for `workers` workers.
    pub(crate) fn pull_of(&self, workers: usize) -> f64 {
        match (self.pull, self.centre) {
            (Pull::Fixed(pull), _) => pull,
            (Pull::RateOverWorkers, Centre::Moving { rate }) => rate / workers.max(1) as f64,
            // `check` refuses a rate that is not there.
            (Pull::RateOverWorkers, Centre::Weighted | Centre::Outer(_)) => 0.0,
        }
    }

    /// The method as a round carries it out when a share of the budget is spent, after local steps of this learning rate.
    pub fn at(&self, share: f64, rate: f64) -> Method {
        let mut now = self.clone();
        now.push *= now.push_rise.of(share.clamp(0.0, 1.0));
        if let Centre::Outer(Outer { by_rate: Some(by), .. }) = &mut now.centre {
            *by = rate;
        }
        now
    }

    /// Whether rounds depend on the learning rate of the local steps.
    pub fn goes_by_rate(&self) -> bool {
        self.qsr > 0.0 || matches!(self.centre, Centre::Outer(Outer { by_rate: Some(_), .. }))
    }

    /// The local steps until the next round, where the last step had this learning rate: τ, or the (α/η)² of the quadratic
    /// synchronization rule. While the rate still rises, as in a warm-up, it is τ.
    ///
    /// ```
    /// use grawa_core::Method;
    /// let method: Method = "mean:period=4,qsr=0.2".parse()?;
    /// assert_eq!([0.1, 0.05, 0.01].map(|rate| method.period_after(rate, false)), [4, 16, 400]);
    /// assert_eq!(method.period_after(0.01, true), 4);
    /// # Ok::<(), grawa_core::Error>(())
    /// ```
    pub fn period_after(&self, rate: f64, is_rising: bool) -> u64 {
        let period = u64::from(self.cycle());
        if self.qsr == 0.0 || is_rising || rate.is_nan() || rate <= 0.0 {
            return period;
        }
        // A quotient may lie a rounding below a whole number; rates are rounded to `f32`.
        let ratio = self.qsr / rate;
        ((ratio * ratio * (1.0 + 1e-6)) as u64).max(period)
    }

    /// μ/τ: how far a local step moves a worker to the last centre, between rounds this many steps apart.
    pub fn prox_a_step(&self, period: u64) -> f64 {
        self.prox / period.max(1) as f64
    }

    /// The levels of rounds and their groups of so many workers: the inner level, if there is one, then all workers.
    pub fn levels(&self, workers: u32) -> Vec<(Method, Vec<Range<u32>>)> {
        let inner = self.inner.as_ref().map(|inner| (inner.method.clone(), inner.group.max(1)));
        (inner.into_iter().chain([(self.clone(), workers.max(1))]))
            .map(|(method, size)| {
                let starts = (0..workers).step_by(size as usize);
                (method, starts.map(|start| start..(start + size).min(workers)).collect())
            })
            .collect()
    }

    /// Local steps of each worker between two synchronisations of any kind: τ, or the inner level's τ.
    pub fn cycle(&self) -> u32 {
        self.inner.as_ref().map_or(self.period, |inner| inner.method.period)
    }

    /// Whether the cycle of this number (1, 2, …) ends in a round of all workers, not only inside groups.
    pub fn is_outer(&self, cycle: u64) -> bool {
        let every = u64::from(self.period / self.cycle().max(1));
        every > 0 && cycle.is_multiple_of(every)
    }

    /// Whether the choices are in range and compatible.
    pub fn check(&self) -> Result<(), Error> {
        let range = |knob: &str, found: f64, ok: bool, expected: &str| {
            let wrong = || self.wrong_knob(knob, format!("is {found}, but must be {expected}"));
            if ok { Ok(()) } else { Err(wrong()) }
        };
        let unit = |knob, value: f64| range(knob, value, (0.0..=1.0).contains(&value), "from 0 to 1");
        let count = |knob, value: u32| range(knob, value.into(), value >= 1, "at least 1");
        let clash = |why: &str| Err(Error::ChoicesClash { method: self.label(), why: why.into() });

        count("period", self.period)?;
        unit("prox", self.prox)?;
        if let Pull::Fixed(pull) = self.pull {
            unit("pull", pull)?;
        }
        let least = |knob, value: f64| {
            range(knob, value, value >= 0.0 && value.is_finite(), "at least 0, and finite")
        };
        least("push", self.push)?;
        least("qsr", self.qsr)?;
        if self.push > 0.0 && self.toward == Toward::Old {
            return clash(
                "a push leads away from the centre of the same round; set toward = 'new' or push = 0",
            );
        }
        if let Centre::Outer(outer) = self.centre {
            least("rate", outer.rate)?;
            range("momentum", outer.momentum, (0.0..1.0).contains(&outer.momentum), "from 0 to below 1")?;
        }
        if let Centre::Moving { rate } = self.centre {
            unit("rate", rate)?;
        } else if self.pull == Pull::RateOverWorkers {
            return clash(
                "pull = 'rate/M' needs a centre that moves at a rate; set centre = 'moving' or give pull a number",
            );
        }
        if let Some(radius) = self.radius {
            range("radius", radius, radius > 0.0 && radius.is_finite(), "positive and finite")?;
        }
        match self.score {
            Score::None => {}
            Score::Loss { window } => {
                range("score_window", window.into(), (1..=1_000_000).contains(&window), "from 1 to 1000000")?;
            }
            Score::Norm { momentum, .. } => {
                range("score_momentum", momentum, (0.0..1.0).contains(&momentum), "from 0 to below 1")?;
            }
        }
        match (self.weighting, self.score) {
            (Weighting::Inverse, Score::Loss { .. }) => clash(
                "weighting 'inverse' needs a score that cannot be negative, and a loss can; set score to a norm or weighting = 'smallest'",
            ),
            (Weighting::Inverse, Score::None) => {
                clash("weighting 'inverse' needs a score; set score, or weighting = 'uniform'")
            }
            (Weighting::Smallest, Score::None) => {
                clash("weighting 'smallest' needs a score; set score, or weighting = 'uniform'")
            }
            _ => Ok(()),
        }?;
        if let Some(inner) = &self.inner {
            count("inner.group", inner.group)?;
            if inner.method.inner.is_some() {
                return clash("groups do not nest: the inner level cannot have an inner level");
            }
            if self.qsr > 0.0 || inner.method.qsr > 0.0 {
                return clash(
                    "with groups the periods are fixed numbers of steps; remove inner.group or set qsr = 0",
                );
            }
            if matches!(inner.method.centre, Centre::Outer(_)) {
                return clash(
                    "only the level of all workers has an outer optimizer; set inner.centre = 'weighted'",
                );
            }
            if inner.method.share != Share::Parameters {
                return clash("only methods that share parameters have an inner level");
            }
            if inner.method.period == 0 || !self.period.is_multiple_of(inner.method.period) {
                let why = format!(
                    "the outer period {} must be a multiple of the inner period {}",
                    self.period, inner.method.period
                );
                return Err(Error::ChoicesClash { method: self.label(), why });
            }
            inner.method.check()?;
        }
        // Only a round of parameters has these.
        let plain = self.score == Score::None
            && self.weighting == Weighting::Uniform
            && self.by == By::None
            && self.push == 0.0
            && self.qsr == 0.0
            && self.centre == Centre::Weighted
            && self.toward == Toward::New
            && self.evaluate != Evaluate::Centre
            && self.prox == 0.0
            && self.inner.is_none()
            && self.period == 1;
        match self.share {
            Share::Gradients if !plain || self.pull != Pull::Fixed(1.0) => clash(
                "its gradients are averaged at every step; only radius and evaluate = 'mean', 'best' or 'each' can be set",
            ),
            Share::Nothing if !plain || self.pull != Pull::Fixed(0.0) => clash(
                "it does not communicate; only radius and evaluate = 'mean', 'best' or 'each' can be set",
            ),
            Share::Parameters | Share::Gradients | Share::Nothing => Ok(()),
        }
    }

    fn label(&self) -> String {
        self.name.as_str().into()
    }

    fn wrong_knob(&self, knob: &str, why: String) -> Error {
        Error::WrongKnob { method: self.label(), knob: knob.into(), why }
    }
}

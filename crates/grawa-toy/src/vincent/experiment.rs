//! The settings of the Vincent experiment, and the checks before anything runs.

use super::edge::Edge;
use super::landscape::DOMAIN;
use super::sweep::Grid;
use crate::Error;
use grawa_core::{Method, Name, Preset, Pull, Share};

/// The corners from which the paper starts its four workers.
pub const CORNERS: [[f64; 2]; 4] = [[0.25, 0.25], [0.25, 10.0], [10.0, 0.25], [10.0, 10.0]];

/// The methods that pull workers toward a centre.
pub fn methods() -> impl Iterator<Item = Name> {
    Name::ALL.into_iter().filter(|&name| pulls(name))
}

fn pulls(name: Name) -> bool {
    Method::named(name, Preset::Paper).share == Share::Parameters
}

/// The limit of steps times workers: a run keeps every position, at most half a gigabyte.
const MOST_POSITIONS: u64 = 20_000_000;

/// Methods, and the settings they share.
#[derive(Clone, Debug, PartialEq)]
pub struct Experiment {
    /// The methods, each name once.
    pub methods: Vec<Method>,
    /// The learning rate of plain SGD.
    pub rate: f64,
    /// Local steps of every worker.
    pub steps: u64,
    /// Where the workers start.
    pub starts: Vec<[f64; 2]>,
    /// The rule for steps that leave the square.
    pub edge: Edge,
}

impl Experiment {
    /// Whether this can run.
    pub fn check(&self) -> Result<(), Error> {
        for (index, method) in self.methods.iter().enumerate() {
            let name = method.name;
            if self.methods[..index].iter().any(|other| other.name == name) {
                return wrong(format!(
                    "{name} is given twice; one picture shows each method once, so run the second setting by itself"
                ));
            }
            method.check()?;
            if method.share != Share::Parameters {
                return nothing_to_pull(name);
            }
        }
        let (steps, workers) = (self.steps, self.starts.len());
        if self.methods.is_empty() {
            return wrong("name at least one method");
        }
        // Steps are taken in f32.
        if !((self.rate as f32).is_normal() && self.rate > 0.0) {
            return wrong(format!("the learning rate is {}, but must be positive and finite", self.rate));
        }
        if steps == 0 || workers == 0 {
            return wrong(format!("a run needs at least one {}", if steps == 0 { "step" } else { "start" }));
        }
        if steps.saturating_mul(workers as u64) > MOST_POSITIONS {
            return wrong(format!(
                "{steps} steps of {workers} workers are too many positions; steps times workers may be at most {MOST_POSITIONS}"
            ));
        }
        let is_inside = |x: &f64| match self.edge {
            Edge::None => x.is_finite() && *x > 0.0 && (*x as f32).is_normal(),
            Edge::Clip | Edge::Reflect => (DOMAIN[0]..=DOMAIN[1]).contains(x),
        };
        let Some(&[x, y]) = self.starts.iter().find(|start| !start.iter().all(is_inside)) else {
            return Ok(());
        };
        let ([low, high], edge) = (DOMAIN, self.edge);
        let domain = match edge {
            Edge::None => "both coordinates positive, as f needs them".into(),
            _ => format!("both coordinates from {low} to {high}, as --edge {edge} needs them"),
        };
        wrong(format!("the start ({x}, {y}) lies outside the domain: {domain}"))
    }

    /// The settings as TOML: what determines the results, and nothing else.
    pub fn settings(&self, grid: Option<&Grid>) -> String {
        let methods: Vec<String> = self.methods.iter().map(Method::to_string).collect();
        let swept = match grid {
            None => format!("rate = {:?}\nedge = \"{}\"\n", self.rate, self.edge),
            Some(Grid { pulls, rates, edges }) => format!(
                "sweep_pulls = {pulls:?}\nsweep_rates = {rates:?}\nsweep_edges = {:?}\n",
                edges.iter().map(|edge| edge.as_str()).collect::<Vec<_>>()
            ),
        };
        format!(
            "# Written by grawa {}. The same settings give the same files.\nexperiment = \"vincent\"\n\
             methods = {methods:?}\nsteps = {}\nstarts = {:?}\n{swept}",
            env!("CARGO_PKG_VERSION"),
            self.steps,
            self.starts
        )
    }
}

fn wrong<T>(why: impl Into<String>) -> Result<T, Error> {
    Err(Error::Setting(why.into()))
}

fn nothing_to_pull<T>(method: Name) -> Result<T, Error> {
    let others = methods().map(Name::as_str).collect::<Vec<_>>().join(", ");
    wrong(format!("{method} has no pull toward a centre; choose one of {others}"))
}

/// A method as it is used here: a pull λ every `period` steps and no light pull in between, unless the text says otherwise.
///
/// ```
/// use grawa_toy::vincent::method;
/// assert_eq!(method("mean", 0.5, 4)?.to_string(), "mean:period=4,pull=0.5");
/// assert_eq!(method("mean:prox=0.1,period=8", 0.3, 4)?.to_string(), "mean:period=8,pull=0.3,prox=0.1");
/// # Ok::<(), grawa_toy::Error>(())
/// ```
pub fn method(text: &str, pull: f64, period: u32) -> Result<Method, Error> {
    let (name, given) = text.split_once(':').unwrap_or((text, ""));
    // A wrong name is reported as such, not as a knob that does not fit.
    let known: Name = name.parse()?;
    if !pulls(known) {
        return nothing_to_pull(known);
    }
    // The pull of the authors' EASGD follows from the centre's rate.
    let follows = text.parse::<Method>().is_ok_and(|method| method.pull == Pull::RateOverWorkers);
    let own = [(if follows { "rate" } else { "pull" }, pull), ("period", period.into()), ("prox", 0.0)];
    let is_given =
        |knob: &str| given.split(',').any(|part| part.split('=').next().map(str::trim) == Some(knob));
    let own = own.iter().filter(|(knob, _)| !is_given(knob)).map(|(knob, value)| format!("{knob}={value}"));
    let knobs: Vec<String> = own.chain(text.contains(':').then(|| given.into())).collect();
    Ok(format!("{name}:{}", knobs.join(",")).parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experiment(starts: Vec<[f64; 2]>, edge: Edge) -> Experiment {
        Experiment { methods: vec![method("mean", 0.5, 4).unwrap()], rate: 0.01, steps: 10, starts, edge }
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
            assert_eq!(experiment(vec![start], edge).check().is_ok(), fine, "{start:?} {edge}");
        }
        assert!(experiment(vec![], Edge::None).check().is_err());
    }

    #[test]
    fn rates_and_steps_must_be_positive() {
        let good = experiment(CORNERS.into(), Edge::None);
        assert!(good.check().is_ok());
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300, 1e-60] {
            assert!(Experiment { rate, ..good.clone() }.check().is_err());
        }
        assert!(Experiment { steps: 0, ..good.clone() }.check().is_err());
        let too_many = Experiment { steps: u64::MAX, ..good.clone() };
        assert!(too_many.check().unwrap_err().to_string().contains("20000000"));
        let twice = Experiment { methods: [good.methods.clone(), good.methods].concat(), ..too_many };
        assert!(twice.check().unwrap_err().to_string().contains("mean is given twice"));
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

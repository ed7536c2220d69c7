//! Runs of a method on the Vincent landscape.

use super::experiment::Experiment;
use super::landscape::{gradient, valley, value};
use crate::Error;
use grawa_core::{FunctionReplica, Key, Layout, Method, Preset, Pull, Replica, Sequential, Sgd};

/// A run has settled if f is below this: the bottoms lie at −2.
const SETTLED: f64 = -1.9;

/// One method's run: the path of every worker and of the centre, and its end.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    /// The method's name, such as `lgrawa`.
    pub method: &'static str,
    /// What pictures and tables call it, such as `Mean, pull 0.5`: with a pull that is not its own.
    pub label: String,
    /// For every worker its position before the first step and after each step and each pull.
    pub workers: Vec<Vec<[f64; 2]>>,
    /// The centre before the first round and after each round.
    pub centre: Vec<[f64; 2]>,
    /// How often a worker left the domain for good and was replaced by the centre.
    pub replaced: usize,
    /// Where the run ended.
    pub end: End,
}

/// A method with another pull is no longer the one of its name: Local SGD with a pull below 1 is another method.
fn label(method: &Method) -> String {
    let title = method.name.title();
    match method.pull {
        Pull::Fixed(pull) if method.pull != Method::named(method.name, Preset::Paper).pull => {
            format!("{title}, pull {pull}")
        }
        _ => title.into(),
    }
}

/// Where a run ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct End {
    /// The evaluated model: the mean of the workers, or the moving centre of EASGD.
    pub at: [f64; 2],
    /// The greatest distance of a worker from it.
    pub spread: f64,
    /// The kind of the end.
    pub outcome: Outcome,
}

/// The kind of a run's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All workers agree, and lie in this valley of x and this valley of y (see `landscape::valley`).
    Valley(i32, i32),
    /// The workers lie in different valleys.
    Split,
    /// The workers agree, but not at the bottom of a valley: f is above −1.9 there.
    Unsettled,
    /// The evaluated point is not finite or left the positive quadrant.
    Lost,
}

impl Outcome {
    /// What a table or picture says of it; nothing of a valley.
    pub fn remark(self) -> &'static str {
        match self {
            Outcome::Valley(..) => "",
            Outcome::Split => "workers apart",
            Outcome::Unsettled => "not at a bottom",
            Outcome::Lost => "lost",
        }
    }
}

impl Experiment {
    /// Runs a method and keeps every position.
    pub fn trace(&self, method: &Method) -> Result<Path, Error> {
        let mut group = self.group(method)?;
        let mut workers: Vec<Vec<[f64; 2]>> = vec![Vec::new(); self.starts.len()];
        let mut note = |group: &mut Sequential<Worker>| {
            workers.iter_mut().zip(positions(group)).for_each(|(line, at)| line.push(at));
        };
        note(&mut group);
        let (mut centre, mut replaced) = (vec![pair(group.centre())], 0);
        for _ in 0..self.steps {
            group.step(self.rate as f32)?;
            note(&mut group);
            if group.is_due() {
                replaced +=
                    group.round()?.iter().flat_map(|plan| &plan.replaced).filter(|lost| **lost).count();
                note(&mut group);
                centre.push(pair(group.centre()));
            }
        }
        Ok(Path {
            method: method.name.as_str(),
            label: label(method),
            workers,
            centre,
            replaced,
            end: end(&mut group),
        })
    }

    fn group(&self, method: &Method) -> Result<Sequential<Worker>, Error> {
        let layout = Layout::new([("x", vec![1]), ("y", vec![1])])?;
        let worker = |start: &[f64; 2]| {
            let start = start.map(|x| x as f32).into();
            let worker = FunctionReplica::new(layout.clone(), start, vincent as Function)?;
            Ok(worker.bounded(self.edge.bound()))
        };
        let workers = self.starts.iter().map(worker).collect::<Result<_, grawa_core::Error>>()?;
        Ok(Sequential::new(method.clone(), Sgd::PLAIN, 0, workers)?)
    }
}

type Function = fn(&[f32], Key, &mut [f32]) -> f64;
type Worker = FunctionReplica<Function>;

/// f on the flat vector (x, y); the coordinates are the layers of LGRAWA.
fn vincent(at: &[f32], _: Key, out: &mut [f32]) -> f64 {
    let at = pair(at);
    out.copy_from_slice(&gradient(at).map(|g| g as f32));
    value(at)
}

fn end(group: &mut Sequential<Worker>) -> End {
    // Where the method evaluates each worker, their mean counts: one point for each run.
    let models = group.evaluated();
    let at = [0, 1]
        .map(|axis| models.iter().map(|model| f64::from(model[axis])).sum::<f64>() / models.len() as f64);
    let workers = positions(group);
    let spread = workers.iter().map(|w| libm::hypot(w[0] - at[0], w[1] - at[1])).fold(0.0, f64::max);
    let valleys = |at: &[f64; 2]| (valley(at[0]), valley(at[1]));
    let outcome = if !value(at).is_finite() {
        Outcome::Lost
    } else if !workers.iter().all(|w| value(*w).is_finite() && valleys(w) == valleys(&at)) {
        Outcome::Split
    } else if value(at) > SETTLED {
        Outcome::Unsettled
    } else {
        Outcome::Valley(valley(at[0]), valley(at[1]))
    };
    End { at, spread, outcome }
}

fn positions(group: &mut Sequential<Worker>) -> Vec<[f64; 2]> {
    group.replicas().iter_mut().map(|worker| pair(worker.parameters())).collect()
}

fn pair(at: &[f32]) -> [f64; 2] {
    [f64::from(at[0]), f64::from(at[1])]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vincent::{CORNERS, Edge, landscape::bottom, method};

    fn experiment(name: &str, pull: f64, edge: Edge) -> Experiment {
        let methods = vec![method(name, pull, 4).unwrap()];
        Experiment { methods, rate: 0.01, steps: 1200, starts: CORNERS.into(), edge }
    }

    fn run(experiment: &Experiment) -> Path {
        experiment.trace(&experiment.methods[0]).unwrap()
    }

    #[test]
    fn the_papers_picture() {
        let ends = |name: &str| run(&experiment(name, 0.5, Edge::None)).end.outcome;
        for name in ["grawa", "mgrawa", "lgrawa", "local-mgrawa", "local-lgrawa"] {
            assert_eq!(ends(name), Outcome::Valley(5, 5), "{name}");
        }
        assert_eq!((ends("easgd"), ends("mean")), (Outcome::Valley(4, 4), Outcome::Valley(4, 4)));
        let Outcome::Valley(x, y) = ends("lsgd") else { panic!("LSGD split") };
        assert!(x.min(y) <= 4, "LSGD ended in the valleys {x} and {y}");
    }

    /// What runs with another pull is named with it.
    #[test]
    fn another_pull_is_in_the_label() {
        for (name, pull, expected) in [
            ("mean", 0.5, "Mean, pull 0.5"),
            ("mean", 1.0, "Mean"),
            ("mean:pull=1", 0.5, "Mean"),
            ("lgrawa", 0.5, "LGRAWA"),
            ("easgd", 0.25, "EASGD, pull 0.25"),
        ] {
            let few = Experiment { steps: 4, ..experiment(name, pull, Edge::None) };
            assert_eq!(run(&few).label, expected, "{name} {pull}");
        }
    }

    #[test]
    fn a_path_has_a_position_for_every_step_and_round() {
        let experiment = experiment("lgrawa", 0.5, Edge::None);
        let path = run(&experiment);
        // A position at the start, one after each step, one after each of 300 rounds.
        assert!(path.workers.iter().all(|line| line.len() == 1 + 1200 + 300));
        assert_eq!(path.centre.len(), 301);
        assert!((path.end.at[0] - bottom(5)).abs() < 1e-3);
    }

    #[test]
    fn clipped_runs_stay_in_the_square() {
        for edge in [Edge::Clip, Edge::Reflect] {
            let path = run(&experiment("lsgd", 0.3, edge));
            assert!(path.workers.iter().flatten().flatten().all(|x| (0.25..=10.0).contains(x)));
        }
    }

    #[test]
    fn a_run_that_is_not_at_a_bottom_is_not_counted_as_in_a_valley() {
        let slow = Experiment { rate: 1e-30, ..experiment("mean", 0.5, Edge::None) };
        assert_eq!(run(&slow).end.outcome, Outcome::Unsettled);
    }

    #[test]
    fn workers_that_never_meet_are_split() {
        assert_eq!(run(&experiment("mean", 0.0, Edge::Clip)).end.outcome, Outcome::Split);
    }

    #[test]
    fn a_step_out_of_the_domain_is_healed_and_counted() {
        // From 0.38 this rate jumps below zero, where f is not defined.
        let starts = vec![[0.38, 5.0], [5.0, 5.0]];
        let wild = Experiment { rate: 0.02, starts, ..experiment("mean", 0.5, Edge::None) };
        assert!(run(&wild).replaced > 0);
    }
}

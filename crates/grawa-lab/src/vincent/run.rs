//! Runs of the methods on the Vincent landscape.

use super::landscape::{gradient, valley, value};
use super::record::{End, Outcome, Path};
use super::setting::Setting;
use crate::Error;
use grawa_core::{Key, Layout, Plain, Reason, Replica, Sequential, Sgd};

/// A run has settled if f is below this: the bottoms lie at −2.
const SETTLED: f64 = -1.9;

/// Runs one setting and keeps every position.
pub fn run(setting: &Setting) -> Result<Path, Error> {
    let mut group = group(setting)?;
    let starts = positions(&mut group);
    let mut path = Path {
        method: setting.method.name.to_string(),
        workers: starts.into_iter().map(|start| vec![start]).collect(),
        centre: vec![pair(group.centre())],
        replaced: 0,
        end: End { at: [0.0; 2], spread: 0.0, outcome: Outcome::Lost },
    };
    for _ in 0..setting.steps {
        group.step(setting.rate as f32)?;
        note(&mut path, &mut group);
        if group.is_due() {
            for plan in group.round()? {
                path.replaced +=
                    plan.reasons.iter().filter(|reason| matches!(reason, Reason::NotFinite { .. })).count();
            }
            note(&mut path, &mut group);
            path.centre.push(pair(group.centre()));
        }
    }
    path.end = end(&mut group);
    Ok(path)
}

/// Runs one setting for where it ends.
pub fn run_to_end(setting: &Setting) -> Result<End, Error> {
    let mut group = group(setting)?;
    for _ in 0..setting.steps {
        group.advance(setting.rate as f32)?;
    }
    Ok(end(&mut group))
}

type Function = fn(&[f32], Key, &mut [f32]) -> f64;
type Worker = Plain<Function>;

/// f on the flat vector (x, y); the coordinates are the layers of LGRAWA.
fn vincent(at: &[f32], _: Key, out: &mut [f32]) -> f64 {
    let at = pair(at);
    out.copy_from_slice(&gradient(at).map(|g| g as f32));
    value(at)
}

fn group(setting: &Setting) -> Result<Sequential<Worker>, Error> {
    setting.check()?;
    let layout = Layout::new([("x", vec![1]), ("y", vec![1])])?;
    let mut workers = Vec::with_capacity(setting.starts.len());
    for start in &setting.starts {
        let worker = Plain::new(layout.clone(), start.map(|x| x as f32).into(), vincent as Function)?;
        workers.push(match setting.edge.bound() {
            Some(bound) => worker.bounded(bound),
            None => worker,
        });
    }
    Ok(Sequential::new(setting.method.clone(), Sgd::PLAIN, 0, workers)?)
}

fn end(group: &mut Sequential<Worker>) -> End {
    // A method told to evaluate each worker is judged by their mean all the same: one point a run.
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

fn note(path: &mut Path, group: &mut Sequential<Worker>) {
    for (line, at) in path.workers.iter_mut().zip(positions(group)) {
        line.push(at);
    }
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

    fn setting(name: &str, pull: f64, edge: Edge) -> Setting {
        Setting {
            method: method(name, pull, 4).unwrap(),
            rate: 0.01,
            steps: 1200,
            starts: CORNERS.into(),
            edge,
        }
    }

    #[test]
    fn the_papers_picture() {
        let ends = |name: &str| run(&setting(name, 0.5, Edge::None)).unwrap().end.outcome;
        for name in ["grawa", "mgrawa", "lgrawa", "local-mgrawa", "local-lgrawa"] {
            assert_eq!(ends(name), Outcome::Valley(5, 5), "{name}");
        }
        assert_eq!((ends("easgd"), ends("mean")), (Outcome::Valley(4, 4), Outcome::Valley(4, 4)));
        let Outcome::Valley(x, y) = ends("lsgd") else { panic!("LSGD split") };
        assert!(x.min(y) <= 4, "LSGD ended in the valleys {x} and {y}");
    }

    #[test]
    fn paths_and_ends_agree() {
        let setting = setting("lgrawa", 0.5, Edge::None);
        let path = run(&setting).unwrap();
        assert_eq!(run_to_end(&setting).unwrap(), path.end);
        // A position at the start, one after each step, one after each of 300 rounds.
        assert!(path.workers.iter().all(|line| line.len() == 1 + 1200 + 300));
        assert_eq!(path.centre.len(), 301);
        assert!((path.end.at[0] - bottom(5)).abs() < 1e-3);
    }

    #[test]
    fn clipped_runs_stay_in_the_square() {
        for edge in [Edge::Clip, Edge::Reflect] {
            let path = run(&setting("lsgd", 0.3, edge)).unwrap();
            assert!(path.workers.iter().flatten().flatten().all(|x| (0.25..=10.0).contains(x)));
        }
    }

    #[test]
    fn a_run_that_is_not_at_a_bottom_is_not_counted_as_in_a_valley() {
        let slow = Setting { rate: 1e-30, ..setting("mean", 0.5, Edge::None) };
        assert_eq!(run(&slow).unwrap().end.outcome, Outcome::Unsettled);
    }

    #[test]
    fn workers_that_never_meet_are_split() {
        assert_eq!(run(&setting("mean", 0.0, Edge::Clip)).unwrap().end.outcome, Outcome::Split);
    }

    #[test]
    fn a_step_out_of_the_domain_is_healed_and_counted() {
        // From 0.38 this rate jumps below zero, where f is not defined.
        let wild =
            Setting { rate: 0.02, starts: vec![[0.38, 5.0], [5.0, 5.0]], ..setting("mean", 0.5, Edge::None) };
        assert!(run(&wild).unwrap().replaced > 0);
    }
}

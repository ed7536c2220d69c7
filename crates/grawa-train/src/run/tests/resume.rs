//! Runs that are stopped, lose workers, and are resumed.

use super::*;

/// A run that is stopped at any step, also between two rounds, and resumed has the same bits and the same files.
#[test]
fn a_run_that_was_stopped_and_resumed_leaves_what_an_unbroken_one_leaves() {
    for method in methods() {
        let starts = starts(&method);
        let unbroken = Trial::new(&method, &starts, 14);
        unbroken.go().unwrap();
        let broken = Trial::new(&method, &starts, 14);
        stop_at_steps(&broken, &[1, 2, 4, 5, 9, 11, 12]);
        assert_eq!(broken.resume().unwrap().reason, Reason::Spent, "{method}");
        assert_eq!(broken.parameters(), unbroken.parameters(), "{method}");
        let (found, expected) = (broken.files(), unbroken.files());
        let names =
            |files: &[(PathBuf, Vec<u8>)]| files.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&found), names(&expected), "{method}");
        for ((name, found), (_, expected)) in found.into_iter().zip(expected) {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            assert!(found == expected, "{method}: {}\n{}\n{}", name.display(), text(&found), text(&expected));
        }
    }
}

/// Runs and resumes a trial so that it is asked to stop at about these steps.
pub(super) fn stop_at_steps(trial: &Trial, steps: &[u64]) {
    for (index, &step) in steps.iter().enumerate() {
        let snapshot = if index == 0 { trial.fresh() } else { trial.newest().snapshot };
        let stopping = Stopping { trial, step };
        let end = stopping.launch(snapshot, index > 0).unwrap();
        assert_eq!(end.reason, Reason::Interrupted, "at {step}");
    }
}

/// A trial that is asked to stop when a worker takes this step, as a user would at a keyboard.
struct Stopping<'a> {
    trial: &'a Trial,
    step: u64,
}

impl Stopping<'_> {
    fn launch(&self, snapshot: Snapshot, resumed: bool) -> Result<Finished, Error> {
        let trial = self.trial;
        trial.stop.store(false, Ordering::Relaxed);
        let launch = trial.plan(resumed);
        let make = |part: &mut Part| {
            let (stop, step) = (Arc::clone(&trial.stop), self.step);
            let function = move |x: &[f32], key: Key, gradient: &mut [f32]| {
                if key.place().1 >= step {
                    stop.store(true, Ordering::Relaxed);
                }
                bowl(x, key, gradient)
            };
            let mut inner = FunctionReplica::new(layout(), part.parameters.clone(), function)?;
            inner.put(StateKind::Velocity, &part.velocity)?;
            Ok(Seat { worker: part.worker, replica: Box::new(inner), waits: None, evaluator: None })
        };
        launch.go(snapshot, on_threads(layout(), DEADLINE, make), &mut [])
    }
}

/// A lost worker takes part again after a resume. It starts from the centre, or from the parameters that all workers share.
#[test]
fn a_lost_worker_comes_back_at_a_resume() {
    for method in ["mean:period=3", "dp-sgd", "lsgd:period=4,inner.group=2,inner.period=2"] {
        let mut trial = Trial::new(method, &starts(method), 8);
        trial.mishap = |worker, step| if (worker, step) == (1, 4) { Mishap::Fails } else { Mishap::None };
        trial.go().unwrap();
        trial.recipe.train.budget = Amount::Steps(14);
        trial.mishap = |_, _| Mishap::None;
        let mut snapshot = trial.newest().snapshot;
        snapshot.finished = false;
        let end = trial.launch(snapshot, true).unwrap();
        assert_eq!((end.workers.len(), end.at.steps), (4, 14), "{method}");
        let parameters = trial.parameters();
        assert!(parameters.iter().flatten().all(|x| x.is_finite()));
        if method == "dp-sgd" {
            let apart = |x: &[f32]| x.iter().zip(&parameters[0]).any(|(a, b)| (a - b).abs() > 7.5);
            assert!(!parameters.iter().any(|x| apart(x)));
        }
    }
}

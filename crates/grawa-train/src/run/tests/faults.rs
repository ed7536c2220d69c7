//! Workers and observers that fail in a run.

use super::*;

/// A worker whose gradient is not a number: healed by the next round, left out where gradients are shared; one by itself
/// has no centre to restore it from, and its loss says so.
#[test]
fn a_gradient_that_is_not_a_number_poisons_nobody() {
    for method in methods() {
        let starts = starts(&method);
        let mut trial = Trial::new(&method, &starts, 12);
        trial.mishap =
            |worker, step| if (worker, step) == (3, 4) { Mishap::NotANumber } else { Mishap::None };
        let end = trial.go().unwrap();
        assert_eq!(end.workers.len(), starts.len(), "{method}: nobody leaves for a NaN");
        assert!(trial.parameters().iter().flatten().all(|x| x.is_finite()), "{method}");
        if method == "sgd" {
            // There is no worker 3; see below.
            continue;
        }
        let told = trial
            .ear
            .rounds()
            .iter()
            .flat_map(|round| round.mixed.clone())
            .any(|mixed| mixed.reasons.iter().any(|reason| reason.contains("worker 3 is not finite")));
        assert!(told, "{method}");
        let faults: Vec<Option<u32>> = trial.ear.faults().iter().map(|fault| fault.worker).collect();
        assert_eq!(faults, [Some(3)], "{method}");
    }
}

#[test]
fn one_worker_by_itself_is_not_healed_and_says_so() {
    let mut trial = Trial::new("sgd", &[2.0], 6);
    trial.mishap = |_, step| if step == 2 { Mishap::NotANumber } else { Mishap::None };
    trial.go().unwrap();
    assert!(trial.parameters()[0].iter().any(|x| x.is_nan()));
    assert_eq!(trial.ear.rounds().last().unwrap().loss, None);
    let faults = trial.ear.faults();
    assert!(faults.len() == 1 && faults[0].what.contains("no centre to restore it from"), "{faults:?}");
}

/// A run in which nobody is finite at the last round or at the end has diverged; one that is healed has not.
#[test]
fn a_run_says_whether_it_has_diverged() {
    for method in methods() {
        let starts = starts(&method);
        for (mishap, diverged) in [
            ((|_, _| Mishap::NotANumber) as Mishaps, true),
            (|worker, _| if worker == 0 { Mishap::None } else { Mishap::NotANumber }, false),
            (|_, step| if step < 5 { Mishap::NotANumber } else { Mishap::None }, method == "sgd"),
        ] {
            let mut trial = Trial::new(&method, &starts, 14);
            trial.mishap = mishap;
            assert_eq!(trial.go().unwrap().diverged, diverged, "{method}");
            // However many rounds follow, it is said once.
            let said = trial
                .ear
                .faults()
                .iter()
                .filter(|fault| fault.what.starts_with("no worker is finite"))
                .count();
            let is_said = method != "sgd" && !trial.ear.faults().is_empty() && diverged;
            assert!(said <= 1 && (!is_said || said == 1), "{method}: {said}");
        }
    }
}

#[test]
fn a_worker_that_dies_is_named_and_the_others_go_on() {
    for method in methods() {
        let starts = starts(&method);
        for mishap in [
            (|worker, step| if (worker, step) == (1, 4) { Mishap::Fails } else { Mishap::None }) as Mishaps,
            |worker, step| if (worker, step) == (1, 4) { Mishap::Panics } else { Mishap::None },
        ] {
            let mut trial = Trial::new(&method, &starts, 12);
            trial.mishap = mishap;
            let end = trial.go().unwrap();
            if method == "sgd" {
                // There is no worker 1.
                assert!(trial.ear.faults().is_empty());
                continue;
            }
            let left: Vec<u32> = end.workers.iter().map(|share| share.worker).collect();
            assert_eq!((left, end.at.steps), (vec![0, 2, 3], 12), "{method}");
            let faults = trial.ear.faults();
            assert_eq!((faults.len(), faults[0].worker), (1, Some(1)), "{method}: {faults:?}");
            assert!(
                faults[0].what.contains("the disk is on fire") || faults[0].what.contains("on purpose"),
                "{faults:?}"
            );
            let last = trial.newest();
            assert_eq!(last.snapshot.parts.len(), 3);
            assert!(last.snapshot.parts.iter().flat_map(|part| &part.parameters).all(|x| x.is_finite()));
        }
    }
}

#[test]
fn when_all_die_the_run_fails_and_says_why() {
    for method in ["mean:period=3", "dp-sgd", "sgd"] {
        let mut trial = Trial::new(method, &starts(method), 12);
        trial.mishap = |_, step| if step == 4 { Mishap::Fails } else { Mishap::None };
        let error = trial.go().unwrap_err().to_string();
        assert!(error.contains("the disk is on fire"), "{method}: {error}");
        // What was saved is still there.
        assert!(trial.newest().steps() < 12);
    }
}

/// A file that cannot be read is a failure and no wrong usage, and the system's own error is in the chain.
#[test]
fn what_a_replica_failed_with_outlives_the_run() {
    let mut trial = Trial::new("sgd", &starts("sgd"), 12);
    trial.mishap = |_, step| if step == 4 { Mishap::CannotRead } else { Mishap::None };
    let error = trial.go().unwrap_err();
    assert_eq!(error.to_string(), unreadable().to_string());
    assert!(!error.is_usage(), "{error:?}");
    let cause = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<std::io::Error>());
    assert_eq!(cause.map(std::io::Error::kind), Some(std::io::ErrorKind::PermissionDenied));
}

#[test]
fn a_worker_that_hangs_is_given_up() {
    for method in ["mgrawa:period=3", "dp-sam", "lsgd:period=4,inner.group=2,inner.period=2"] {
        let mut trial = Trial::new(method, &starts(method), 8);
        // Long enough that a busy machine does not make the others late too.
        trial.deadline = Duration::from_secs(2);
        trial.mishap = |worker, step| if (worker, step) == (2, 3) { Mishap::Hangs } else { Mishap::None };
        let end = trial.go().unwrap();
        let left: Vec<u32> = end.workers.iter().map(|share| share.worker).collect();
        assert_eq!(left, [0, 1, 3], "{method}");
        let faults = trial.ear.faults();
        assert!(
            faults.iter().any(|fault| fault.worker == Some(2) && fault.what.contains("was silent for")),
            "{method}: {faults:?}"
        );
    }
}

#[test]
fn an_observer_that_fails_stops_the_run_and_nothing_is_lost() {
    struct Deaf(u32);
    impl Observer for Deaf {
        fn event(&mut self, _: &Event) -> Result<(), Error> {
            self.0 += 1;
            match self.0 {
                6 => Err(grawa_session::Error::NobodyLeft { why: "the pen broke".into() }.into()),
                _ => Ok(()),
            }
        }
    }
    let trial = Trial::new("mean:period=2", &[1.0, 2.0], 1_000_000);
    let launch = trial.plan(false);
    let make = |part: &mut Part| {
        let replica = FunctionReplica::new(layout(), part.parameters.clone(), bowl as Function)?;
        Ok(Seat { worker: part.worker, replica: Box::new(replica), waits: None, evaluator: None })
    };
    let error =
        launch.go(trial.fresh(), on_threads(layout(), DEADLINE, make), &mut [Box::new(Deaf(0))]).unwrap_err();
    assert!(error.to_string().contains("the pen broke"));
    assert!(trial.newest().snapshot.stopped);
}

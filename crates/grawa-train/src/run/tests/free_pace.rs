//! Runs at a free pace.

use super::resume::stop_at_steps;
use super::*;

/// At a free pace the slow worker takes fewer steps, a cycle has M·τ of them, and a replay gives the bits back.
#[test]
fn uneven_workers_share_the_steps_and_a_replay_has_the_same_bits() {
    for method in methods() {
        let mut trial = Trial::new(&method, &starts(&method), 20);
        let slow: Mishaps =
            |worker, _| Mishap::Delay(Duration::from_micros(if worker == 0 { 3000 } else { 150 }));
        trial.mishap = slow;
        if trial.recipe.method.share != Share::Parameters {
            // Even workers wait for a slow one: the same bits as without it.
            trial.go().unwrap();
            let (parameters, _) = sequential(&method, &starts(&method), 20);
            assert_eq!(trial.parameters(), parameters, "{method}");
            continue;
        }
        if trial.recipe.method.qsr > 0.0 {
            // A recipe with both is refused.
            continue;
        }
        trial.recipe.train.pace = Pace::Free;
        let end = trial.go().unwrap();
        let cycle = u64::from(cycle(&trial.recipe.method));
        for round in trial.ear.rounds().iter().filter(|round| round.at.steps % cycle == 0) {
            assert_eq!(round.workers.iter().map(|share| share.steps).sum::<u64>(), 4 * cycle, "{method}");
        }
        let total: u64 = end.workers.iter().map(|share| share.total).sum();
        assert_eq!(total, 80, "{method}");
        assert!(end.workers[0].total < 20, "{method}: {:?}", end.workers);

        let mut again = Trial::new(&method, &starts(&method), 20);
        again.recipe.train.pace = Pace::Free;
        again.recording = Some(Recording::of(&trial.ear.events()));
        again.go().unwrap();
        assert_eq!(again.parameters(), trial.parameters(), "{method}");
        assert_eq!(again.centre(), trial.centre(), "{method}");
    }
}

/// A free run that is stopped goes on exactly from where it was: no step is lost, none is made twice.
#[test]
fn a_free_run_goes_on_from_its_checkpoint() {
    for method in ["lgrawa:period=5", "lsgd:period=4,inner.group=2,inner.period=2"] {
        let mut trial = Trial::new(method, &starts(method), 20);
        trial.recipe.train.pace = Pace::Free;
        stop_at_steps(&trial, &[2, 7, 11]);
        let end = trial.resume().unwrap();
        assert_eq!(end.workers.iter().map(|share| share.total).sum::<u64>(), 80, "{method}");
        assert_eq!(end.at.rounds, if method.starts_with("lgrawa") { 4 } else { 10 });
    }
}

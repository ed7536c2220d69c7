//! Runs at an even pace: the bits of the sequential run, and budgets.

use super::*;

#[test]
fn an_even_run_has_the_bits_of_the_sequential_one() {
    for method in methods() {
        let starts = starts(&method);
        // The last cycle is cut short.
        let trial = Trial::new(&method, &starts, 14);
        let end = trial.go().unwrap();
        assert_eq!((end.at.steps, end.reason), (14, Reason::Spent), "{method}");
        let (parameters, centre) = sequential(&method, &starts, 14);
        assert_eq!(trial.parameters(), parameters, "{method}");
        if trial.recipe.method.share == Share::Parameters {
            assert_eq!(trial.centre(), centre, "{method}");
        }
        assert_eq!(end.workers.len(), starts.len());
        assert!(end.workers.iter().all(|share| share.total == 14));
        // Each byte is counted once, in its own round.
        let rounds = trial.ear.rounds();
        assert_eq!(rounds.iter().map(|round| round.bytes).sum::<u64>(), end.bytes, "{method}");
        let vectors = 4 * layout().len() as u64 * starts.len() as u64;
        assert!(rounds[0].bytes >= if method == "sgd" { 0 } else { vectors }, "{method}");
    }
}

#[test]
fn more_workers_than_the_machine_has_cores_give_the_same_bits() {
    let starts: Vec<f32> = (0..64).map(|worker| worker as f32 / 7.0 - 4.0).collect();
    let trial = Trial::new("lgrawa:period=2", &starts, 6);
    trial.go().unwrap();
    assert_eq!(trial.parameters(), sequential("lgrawa:period=2", &starts, 6).0);
}

#[test]
fn a_budget_of_zero_is_a_checkpoint_and_nothing_else() {
    for method in methods() {
        let starts = starts(&method);
        let trial = Trial::new(&method, &starts, 0);
        let end = trial.go().unwrap();
        assert_eq!((end.at.steps, end.at.share, end.reason), (0, 1.0, Reason::Spent), "{method}");
        assert!(trial.newest().is_finished());
        let expected: Vec<Vec<f32>> = starts.iter().map(|&x| vec![x; layout().len()]).collect();
        assert_eq!(trial.parameters(), expected, "{method}");
        assert!(trial.ear.rounds().is_empty());
    }
}

/// A time budget ends at the first meeting after it; the clock is the test's.
#[test]
fn a_time_budget_is_by_the_given_clock() {
    let mut trial = Trial::new("mean:period=2", &[1.0, 2.0], 0);
    trial.recipe.train.budget = "10s".parse().unwrap();
    trial.recipe.train.rate = "0.05, x0.1 at 5s".parse().unwrap();
    let seconds = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let count = Arc::clone(&seconds);
    let clock = Arc::new(move || Duration::from_millis(seconds.load(Ordering::Relaxed)));
    let launch = Launch { writer: None, clock, ..trial.plan(false) };
    let make = |part: &mut Part| {
        let count = Arc::clone(&count);
        let function = move |x: &[f32], key: Key, gradient: &mut [f32]| {
            // A second for each step; the others' clocks do not count.
            if key.place().0 == 0 {
                count.fetch_add(1000, Ordering::Relaxed);
            }
            bowl(x, key, gradient)
        };
        let replica = FunctionReplica::new(layout(), part.parameters.clone(), function)?;
        Ok(Seat { worker: part.worker, replica: Box::new(replica), waits: None, evaluator: None })
    };
    let set = on_threads(layout(), DEADLINE, make);
    let end = launch.go(trial.fresh(), set, &mut [Box::new(trial.ear.clone())]).unwrap();
    assert_eq!((end.at.steps, end.at.elapsed), (10, 10.0));
    let rates: Vec<f64> = trial.ear.rounds().iter().map(|round| round.rate).collect();
    // The drop is seen at the first meeting after five seconds, which is at six.
    assert_eq!(rates, [0.05, 0.05, 0.05, 0.05 * 0.1, 0.05 * 0.1]);
}

/// A network with an operation without kernels is slow: observers, and so the terminal, get the warning at the start.
#[test]
fn a_plain_operation_is_reported_at_the_start() {
    let data = grawa_data::load("digits", ".".as_ref()).unwrap();
    for plain in [true, false] {
        let mut net = grawa_nn::Builder::new("own", grawa_nn::Shape::image(1, 8));
        let x = net.input();
        let x = net.conv(x, "a", grawa_nn::Conv::same(4)).unwrap();
        let x = if plain { net.group_norm(x, "b", 2).unwrap() } else { net.batch_norm(x, "b").unwrap() };
        let x = net.linear(x, "c", 10).unwrap();
        let mut recipe = Recipe::for_data(DatasetKind::Digits, None).unwrap();
        recipe.train.budget = Amount::Steps(2);
        let ear = Ear::default();
        let run = Run::with_network(recipe, &data, &net.finish(x).unwrap()).unwrap();
        run.go(&mut [Box::new(ear.clone())]).unwrap();
        let found: Vec<(u64, String)> =
            ear.faults().into_iter().map(|fault| (fault.at.steps, fault.what)).collect();
        let warning = "group norm has no CPU kernel: its plain form runs, slowly".to_owned();
        assert_eq!(found, if plain { vec![(0, warning)] } else { Vec::new() });
    }
}

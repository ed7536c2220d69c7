//! Runs across processes with several workers each.

use super::*;

/// A run of processes that are threads of the test, which have as many workers each. Returns the parameters of all workers.
fn across(trial: &Trial, processes: u32) -> Vec<Vec<f32>> {
    let transports = grawa_comm::threads::transports(processes, DEADLINE);
    std::thread::scope(|scope| {
        for transport in transports {
            scope.spawn(move || {
                let is_first = grawa_comm::Transport::rank(&transport) == 0;
                // All processes say whether there is a folder; the first one writes.
                let launch = trial.plan(false);
                let make = |part: &mut Part| {
                    let inner = FunctionReplica::new(layout(), part.parameters.clone(), bowl as Function)?;
                    let replica: Toy = Odd { inner, worker: part.worker, mishap: trial.mishap };
                    Ok(Seat { worker: part.worker, replica: Box::new(replica), waits: None, evaluator: None })
                };
                let beginning = is_first.then(|| (trial.fresh(), false));
                let set = on_threads(layout(), DEADLINE, make);
                let ear: Box<dyn Observer> =
                    Box::new(if is_first { trial.ear.clone() } else { Ear::default() });
                launch.go_across(&transport, beginning, set, &mut [ear]).unwrap();
            });
        }
    });
    trial.parameters()
}

/// Processes with one worker each have the bits of one process. With several, sums are taken in another order: only rounding differs,
/// and it is the same every time.
#[test]
fn processes_with_several_workers_train_as_one() {
    for method in methods().into_iter().filter(|method| method != "sgd") {
        let starts = starts(&method);
        // 100 rounds.
        let steps = 100 * u64::from(method.parse::<grawa_core::Method>().unwrap().period.max(1));
        let trial = || {
            let mut trial = Trial::new(&method, &starts, steps);
            trial.recipe.checkpoint.every = None;
            trial
        };
        let (expected, _) = sequential(&method, &starts, steps);
        assert_eq!(across(&trial(), 4), expected, "{method}");
        // Two processes with two workers each, and one with four.
        for processes in [2, 1] {
            let (found, again) = (across(&trial(), processes), across(&trial(), processes));
            assert_eq!(found, again, "{method}");
            let pairs = || found.iter().flatten().zip(expected.iter().flatten());
            let off = pairs().map(|(a, b)| (a - b).abs() / b.abs().max(1.0)).fold(0.0, f32::max);
            let size = pairs().map(|(_, b)| b.abs()).fold(0.0, f32::max);
            println!("{method}, {processes} processes: off by {off:e} of numbers up to {size:e}");
            assert!(off <= 1e-6, "{method} is off by {off:e} with {processes} processes");
        }
    }
}

/// A worker of a process with several fails: the others of the process and of the run continue.
#[test]
fn a_worker_of_one_process_is_lost_alone() {
    for method in ["mean:period=3", "lgrawa:period=3", "dp-sgd", "lsgd:period=4,inner.group=2,inner.period=2"]
    {
        let mut trial = Trial::new(method, &starts(method), 12);
        trial.mishap = |worker, step| if (worker, step) == (1, 4) { Mishap::Fails } else { Mishap::None };
        assert_eq!(across(&trial, 2).len(), 3, "{method}");
        let rounds = trial.ear.rounds();
        let last: Vec<u32> = rounds.last().unwrap().workers.iter().map(|share| share.worker).collect();
        assert_eq!(last, [0, 2, 3], "{method}");
    }
    // The second process loses its only worker of the first group, which has workers in both.
    let mut trial = Trial::new("lsgd:period=4,inner.group=3,inner.period=2", &[2.0, -3.0, 4.0, 1.0], 12);
    trial.mishap = |worker, step| if (worker, step) == (2, 4) { Mishap::Fails } else { Mishap::None };
    assert_eq!(across(&trial, 2).len(), 3);
    assert_eq!(trial.ear.rounds().last().unwrap().at.steps, 12);
}

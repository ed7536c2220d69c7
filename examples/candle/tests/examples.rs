//! The examples.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

#[path = "../examples/03_candle_replica.rs"]
mod candle_replica;
#[path = "../examples/06_candle_session.rs"]
mod candle_session;

use grawa_train::Event;

/// Two processes with two workers each: the loss of the last round is far below ln 2, that of a model which knows nothing.
#[test]
fn a_replica_is_trained_by_two_processes() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("run");
    let end = candle_replica::learn(&place).unwrap().finished.unwrap();
    assert_eq!((end.at.rounds, end.workers.len()), (32, 4));
    let events = grawa_train::observe::read(&place).unwrap();
    let mut losses = events.iter().filter_map(|(event, _)| match event {
        Event::Round(round) => round.loss,
        _ => None,
    });
    assert!(losses.next_back().unwrap() < 0.3);
}

/// All workers begin with random models of their own, and make the same one together.
#[test]
fn a_training_loop_of_candle_is_one_of_three_workers() {
    let trained = candle_session::learn().unwrap();
    assert_eq!(trained.len(), 3);
    assert!(trained.iter().all(|worker| worker.model == trained[0].model), "{trained:?}");
    assert!(trained[0].test_loss < 0.3, "{trained:?}");
}

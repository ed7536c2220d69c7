//! The numbered examples.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

#[path = "../examples/01_function.rs"]
mod function;
#[path = "../examples/04_own_collective.rs"]
mod own_collective;
#[path = "../examples/03_own_replica.rs"]
mod own_replica;

use grawa_train::Event;

#[test]
fn a_function_is_trained() {
    assert_eq!(function::learn().unwrap(), 16);
}

/// Two processes with two workers each: the loss of the last round is far below ln 2, that of a model which knows nothing.
#[test]
fn a_replica_of_ones_own_is_trained_by_two_processes() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("run");
    let end = own_replica::learn(&place).unwrap().finished.unwrap();
    assert_eq!((end.at.rounds, end.workers.len()), (16, 4));
    let events = grawa_train::observe::read(&place).unwrap();
    let mut losses = events.iter().filter_map(|(event, _)| match event {
        Event::Round(round) => round.loss,
        _ => None,
    });
    assert!(losses.next_back().unwrap() < 0.3);
}

#[test]
fn a_collective_of_ones_own_conforms_and_trains() {
    for members in 1..5 {
        own_collective::check(members).unwrap();
    }
    let end = own_collective::learn().unwrap();
    assert_eq!((end.at.steps, end.at.rounds, end.workers.len()), (32, 4, 4));
}

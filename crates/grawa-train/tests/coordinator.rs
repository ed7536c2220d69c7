//! The example `05_coordinator`: a program that embeds a coordinator.

#![allow(clippy::unwrap_used)]

#[path = "../examples/05_coordinator.rs"]
#[allow(dead_code, unreachable_pub)]
mod coordinator;

use grawa_train::observe::read;
use grawa_train::{Event, Reason};

#[test]
fn a_program_can_coordinate_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("run");
    let outcome = coordinator::coordinate(&place).unwrap();
    let end = outcome.finished.unwrap();
    assert_eq!((end.reason, end.at.steps, end.at.rounds, end.workers.len()), (Reason::Spent, 32, 8, 2));
    let events: Vec<Event> = read(&place).unwrap().into_iter().map(|(event, _)| event).collect();
    let rounds: Vec<u64> = (events.iter())
        .filter(|event| matches!(event, Event::Round(_)))
        .map(|event| event.place().rounds)
        .collect();
    assert_eq!(rounds, (1..=8).collect::<Vec<_>>());
    assert!(matches!(events.first(), Some(Event::Started(_))), "{:?}", events.first());
    assert!(matches!(events.last(), Some(Event::Finished(_))), "{:?}", events.last());
}

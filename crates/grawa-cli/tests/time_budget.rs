//! A budget in time is for training: while workers are awaited it is not spent.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod group;

use grawa_train::{Event, Reason};
use group::Group;
use std::time::{Duration, Instant};

/// The second worker comes when the first has waited longer than the whole budget.
#[test]
fn time_begins_when_all_workers_are_there() {
    let mut group = Group::begin(2, "2s", &["--wire", "plain"], &[]);
    let mut first = group.join();
    std::thread::sleep(Duration::from_secs(4));
    let mut second = group.join();
    let began = Instant::now();
    assert_eq!((first.code(), second.code(), group.coordinator.code()), (Some(0), Some(0), Some(0)));
    assert!(began.elapsed() > Duration::from_secs(2));
    let events = group.events();
    let walls: Vec<f64> =
        events.iter().filter(|(event, _)| matches!(event, Event::Round(_))).map(|(_, at)| *at).collect();
    let (Some(from), Some(to)) = (walls.first(), walls.last()) else { panic!("no rounds") };
    assert!(to - from > 1.0, "{} rounds in {:.2} s", walls.len(), to - from);
    let Some((Event::Finished(end), _)) = events.last() else { panic!("{:?}", events.last()) };
    assert_eq!(end.reason, Reason::Spent);
    // The first worker's steps of the first cycle count, what it waited does not.
    assert!((2.0..4.0).contains(&end.at.elapsed), "{:?}", end.at);
}

//! Workers in processes of their own that join in the first rounds of a run: the old members go on, and so do they.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod group;

use grawa_train::Event;
use group::relay::{HOST, Relay};
use group::{Group, Process, until};
use std::sync::atomic::Ordering;

/// A group of four is joined in each of its first rounds. One slow connection makes rounds so slow that those who join are in time.
#[test]
fn workers_join_in_each_of_the_first_rounds() {
    let settings = ["method.name=easgd", "method.period=2"];
    let mut group = Group::begin(4, "600step", &["--wire", "plain"], &settings);
    let relay = Relay::to(&group.address);
    relay.faults.delay.store(40, Ordering::Relaxed);
    let mut workers = vec![Process::start(group.joining(&relay.address).args(["--host", HOST]))];
    workers.extend((0..3).map(|_| group.join()));
    for round in 1..=8 {
        until("rounds go on", || group.last_round().0 >= round);
        workers.push(group.join());
    }
    group.wait_members(12);
    relay.faults.delay.store(0, Ordering::Relaxed);
    let codes: Vec<Option<i32>> = workers.iter_mut().map(Process::code).collect();
    let faults = group.faults();
    assert_eq!((codes, group.coordinator.code()), (vec![Some(0); 12], Some(0)), "{faults:#?}");
    group.check();
    let mut members: Vec<(u64, usize)> = Vec::new();
    for (event, _) in group.events() {
        if let Event::Round(round) = event
            && members.last().is_none_or(|(_, count)| *count != round.workers.len())
        {
            members.push((round.at.rounds, round.workers.len()));
        }
    }
    println!("rounds from which on there were so many members: {members:?}");
    assert!(members.windows(2).all(|pair| pair[0].1 < pair[1].1), "somebody was lost: {members:?}");
}

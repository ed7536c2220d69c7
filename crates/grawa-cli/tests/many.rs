//! A hundred and twenty-eight processes on one machine, all of which connect to each other.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod group;

use grawa_train::Event;
use group::{Group, Process, until};
use std::time::Instant;

const PROCESSES: u32 = 128;
/// Seconds from the start of the last process to the first round.
const MOST: f64 = 120.0;

#[test]
#[ignore = "it starts 128 processes: .ci/deep many"]
fn many_processes_hold_a_first_round() {
    let group = Group::begin(PROCESSES, "1000000000step", &["--key", "run.key"], &["method.period=16"]);
    let began = Instant::now();
    let members: Vec<Process> = (0..PROCESSES).map(|_| group.join()).collect();
    let started = began.elapsed().as_secs_f64();
    until("the first round", || group.last_round().0 > 0);
    let took = began.elapsed().as_secs_f64() - started;
    println!("{PROCESSES} processes: started in {started:.1} s, and the first round {took:.1} s later");
    let events = group.events();
    let first = events.iter().find_map(|(event, _)| match event {
        Event::Round(round) => Some(round.workers.len()),
        _ => None,
    });
    assert_eq!(first, Some(PROCESSES as usize));
    let before = events.iter().take_while(|(event, _)| !matches!(event, Event::Round(_)));
    let faults: Vec<_> =
        before.filter(|(event, _)| matches!(event, Event::Fault(fault) if fault.worker.is_some())).collect();
    assert!(faults.is_empty(), "{faults:#?}");
    assert!(took < MOST, "{took:.1} s");
    drop(members);
}

//! Workers in processes of their own that join in the first rounds of a run: the old members go on, and so do they.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod group;

use grawa_train::Event;
use group::relay::{HOST, Relay};
use group::{Group, Process, grawa, until};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::atomic::Ordering;
use tempfile::TempDir;

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

/// While workers are missing, the coordinator says how many have joined.
#[test]
fn a_coordinator_counts_those_who_have_joined() {
    let folder = TempDir::new().unwrap();
    let words = ["coordinate", "--data", "digits", "--workers", "2", "--budget", "8step", "--out", "run"];
    let mut command = grawa(folder.path(), &words);
    command
        .args(["--listen", "127.0.0.1:0", "--wire", "plain", "--period", "4"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut coordinator = Process::start(&mut command);
    let mut printed = BufReader::new(coordinator.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    let address = printed.find_map(|line| line.strip_prefix("listening at ").map(str::to_owned)).unwrap();
    let address = address.split([' ', ';', ',']).next().unwrap().to_owned();
    let join =
        || Process::start(grawa(folder.path(), &["join", &address, "--wire", "plain"]).stdout(Stdio::null()));
    let mut said = BufReader::new(coordinator.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    let mut first = join();
    let counted = said.find(|line| line.contains("workers have joined") && !line.starts_with("0 ")).unwrap();
    assert_eq!(counted, format!("1 of 2 workers have joined; listening at {address}"));
    let mut second = join();
    let rest = std::thread::spawn(move || printed.chain(said).count());
    assert_eq!([first.code(), second.code(), coordinator.code()], [Some(0); 3]);
    rest.join().unwrap();
}

//! How many rounds per hour a group of any size can do on links of a given rate: the real coordinator and members, on the simulated
//! clock and network.
//!
//! ```text
//! cargo test --release -p grawa-comm forecast -- --ignored --nocapture
//! GRAWA_WORKERS=200 GRAWA_MBIT=1000 GRAWA_LATENCY_US=200 GRAWA_STEP_MS=100 GRAWA_PERIOD=32 cargo test ...
//! ```
//! Vectors and rates are a thousandth of those of WRN-28-10 and of the link. Computing is not included.

use super::network::Link;
use super::scheduler::{Process, World};
use super::{COORDINATOR, number};
use crate::group::Settings;
use crate::group::coordinator::Coordinator;
use crate::group::coordinator::server::CoordinatorServer;
use crate::group::member::join::Joiner;
use crate::group::transfer::TransferOptions;
use crate::group::wire::tls::Security;
use crate::{Collective, Elastic, Error};
use grawa_core::{Key, Layout, Memory, Method, Purpose, Report, plan};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The parameters of WRN-28-10, and by how much vectors and rates are divided.
const FLOATS: usize = 36_536_884;
const SCALE: usize = 1000;
/// Rounds that count. The first two, which connect, do not.
const ROUNDS: u32 = 3;

/// A worker. Returns the time of a cycle: local steps and a round.
fn work(process: &Process, steps: Duration) -> Result<Duration, Error> {
    let method: Method = "mean".parse()?;
    let (environment, layout) = (process.environment(), Layout::flat(FLOATS / SCALE));
    let patience = Duration::from_secs(1000);
    let joiner = Joiner::start(&environment, (None, 1), COORDINATOR, Security::Plain, ("", None), patience)?;
    let (mut members, _) =
        joiner.enter(Vec::new(), vec![0.0; layout.len()], &[], TransferOptions::default())?;
    let (member, mut mine) = (&mut members[0], vec![1.0; layout.len()]);
    let mut since = Duration::ZERO;
    for round in 0..2 + ROUNDS {
        if round == 2 {
            since = process.now();
        }
        process.sleep(steps);
        let gathered = member.gather(&[0; 40])?;
        let report = |worker| Report { worker, scores: vec![1.0; method.scores(1)], finite: true, steps: 1 };
        let reports: Vec<Report> = gathered.messages.iter().map(|(worker, _)| report(*worker)).collect();
        let plan = plan(&method, &layout, &Memory::default(), &reports)?;
        member.mix_and_pull(&plan, &layout, &mut mine)?;
        member.publish(&[])?;
    }
    let cycle = (process.now() - since) / ROUNDS;
    member.barrier()?;
    Ok(cycle)
}

/// The time of a cycle of a group.
fn cycle(workers: u32, steps: Duration, link: Link) -> Duration {
    let world = World::new(Key::new(0, Purpose::Problem).stream(), None, false);
    world.state().network.link = Some(link);
    let cycles = Arc::new(Mutex::new(Vec::new()));
    let (failure, _) = world.run(|first| {
        let process = world.process(None);
        let own = process.clone();
        let serve = move || {
            let settings =
                Settings { founders: workers, silence: Duration::from_secs(60), ..Settings::default() };
            let coordinator = Coordinator::new(settings, 7, Vec::new(), &[]);
            let environment = own.environment();
            let server =
                CoordinatorServer::start(&environment, COORDINATOR, Security::Plain, coordinator, None);
            let _server = server.unwrap();
            own.sleep(Duration::from_secs(1 << 20));
        };
        process.spawn(serve).unwrap();
        for node in 0..workers as usize {
            let (process, cycles) = (world.process(Some(node)), Arc::clone(&cycles));
            let own = process.clone();
            let run = move || {
                let found = work(&own, steps);
                cycles.lock().unwrap().push(found);
            };
            process.spawn(run).unwrap();
        }
        while cycles.lock().unwrap().len() < workers as usize && world.state().failure.is_none() {
            first.sleep(Duration::from_secs(1));
        }
    });
    assert_eq!(failure, None);
    let cycles = std::mem::take(&mut *cycles.lock().unwrap());
    cycles.into_iter().map(Result::unwrap).max().unwrap()
}

/// A round takes the time of its bytes and a few latencies.
#[test]
fn a_simulated_round_takes_the_time_of_its_bytes() {
    let link = Link { rate: 125e6 / SCALE as f64, latency: Duration::from_millis(1) };
    let found = cycle(4, Duration::ZERO, link).as_secs_f64();
    let bytes = 2.0 * 0.75 * 4.0 * (FLOATS / SCALE) as f64;
    // Two operations with two round trips to the coordinator each, and three transfers.
    let expected = bytes / link.rate + 11.0 * link.latency.as_secs_f64();
    assert!((expected..1.1 * expected + 0.01).contains(&found), "{found} s, where {expected} s are expected");
}

#[test]
#[ignore = "prints a table, and takes a while"]
fn forecast() {
    let given = |name: &str, default: u64| number(name).unwrap_or(default);
    let (rate, latency) = (given("GRAWA_MBIT", 1000), given("GRAWA_LATENCY_US", 200));
    let (step, period) = (given("GRAWA_STEP_MS", 100), given("GRAWA_PERIOD", 32));
    let link = Link { rate: rate as f64 * 125e3 / SCALE as f64, latency: Duration::from_micros(latency) };
    println!("{FLOATS} floats, {rate} Mbit/s, {latency} µs, steps of {step} ms");
    println!("{:>7} {:>18} {:>18} {:>18}", "workers", "DP rounds/h", "rounds/h", "steps/h");
    let per_hour = |period: u64, workers: u32| {
        3600.0 / cycle(workers, Duration::from_millis(step * period), link).as_secs_f64()
    };
    let most = given("GRAWA_WORKERS", 32) as u32;
    for workers in [2, 4, 8, 16, 32, 64, 128, 200].into_iter().filter(|workers| *workers <= most) {
        let (every, rare) = (per_hour(1, workers), per_hour(period, workers));
        println!("{workers:>7} {every:>18.0} {rare:>18.0} {:>18.0}", rare * period as f64);
    }
}

//! Which examples members are dealt, and that a replica reads those.

use super::*;
use crate::engine::{CpuReplica, Engine};
use crate::recipe::Overrides;
use grawa_core::{Key, Purpose, Replica, Sgd, StepRequest};
use grawa_data::Sampler;
use grawa_nn::State;
use grawa_session::elastic::Counts;
use grawa_session::round_message::RoundMessage;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

/// Members in the tests of replicas, at most.
const MOST: u32 = 9;

fn message(taken: u64) -> RoundMessage {
    RoundMessage { taken, ..RoundMessage::default() }
}

proptest! {
    /// Whoever comes and goes, however quick each is, no example is dealt twice in an epoch; at an even pace few are left out.
    #[test]
    fn no_example_is_dealt_twice(
        founders in 1u32..5,
        groups in proptest::collection::vec(proptest::collection::btree_set(0u32..6, 1..5), 1..12),
        steps in proptest::collection::vec(1u64..5, 6),
        even: bool,
    ) {
        let (examples, batch) = (1000, 4);
        let (mut counts, mut taken) = (Counts::new(founders), BTreeMap::new());
        let mut seen = BTreeSet::new();
        let (mut changes, mut dealt) = (0, 0);
        for mut group in groups {
            if !group.iter().any(|worker| counts.since.contains_key(worker)) {
                // Someone meets those who come.
                group.extend(counts.since.keys().next());
            }
            let order = Sampler::new(1, examples, counts.among, batch as u32).unwrap();
            // Who is lost on the way, or late, has trained as well.
            let absent = counts.since.keys().copied().filter(|worker| even && !group.contains(worker));
            for worker in absent.chain(group.iter().copied()).collect::<Vec<u32>>() {
                let own = taken.entry(worker).or_insert(0u64);
                // Who comes, or comes back, has no share yet, and takes no step.
                let Some(seat) = counts.seat(worker) else { continue };
                for _ in 0..steps[if even { 0 } else { worker as usize }] {
                    let step = counts.place(worker, *own);
                    for (at, example) in (0..).zip(order.batch(seat, step).unwrap()) {
                        // A batch may reach into the next epoch.
                        let place = (step * batch + at) * u64::from(counts.among) + u64::from(seat);
                        prop_assert!(seen.insert((place / examples as u64, example)), "{place}");
                        dealt += 1;
                    }
                    *own += 1;
                }
            }
            let messages: Vec<(u32, RoundMessage)> =
                group.iter().map(|worker| (*worker, message(taken.get(worker).copied().unwrap_or(0)))).collect();
            counts.count(&messages);
            let members: Vec<u32> = group.iter().copied().collect();
            if !counts.since.keys().eq(&members) {
                changes += members.len() as u64 * batch;
            }
            counts.deal_to(&members);
        }
        counts.deal_to(&[99]);
        prop_assert!(!even || counts.dealt * batch <= dealt + changes);
    }
}

/// A small network on the digits for every number of workers.
static ENGINES: LazyLock<Vec<Engine>> = LazyLock::new(|| {
    let data = grawa_data::load("digits", ".".as_ref()).unwrap();
    let engine = |workers: u32| {
        let workers = format!("train.workers={workers}");
        let said = Overrides::default().method("easgd", "test").unwrap();
        let said = ["model.width=4", "train.batch=4", "machine.threads=1", &workers]
            .iter()
            .fold(said, |said, setting| said.set(setting).unwrap());
        Engine::new(&Recipe::resolve(&said).unwrap(), &data).unwrap()
    };
    (1..=MOST).map(engine).collect()
});

/// A worker's network among so many at a step.
fn net(of: u32, seat: u32, step: u64) -> CpuReplica {
    let engine = &ENGINES[of as usize - 1];
    engine.worker(seat, State::initial(engine.graph(), 7), step).unwrap()
}

/// Takes a step at a learning rate of zero. Returns the loss: another batch has another.
fn step(net: &mut CpuReplica, seat: u32, step: u64) -> Result<Vec<f64>, grawa_core::Error> {
    let key = Key::new(7, Purpose::Step).worker(seat).step(step);
    let taken = net.steps(&StepRequest {
        key,
        rates: &[0.0],
        optimizer: &Sgd::PLAIN.into(),
        radius: None,
        prox: &[],
        norms: true,
    })?;
    Ok([taken.losses, taken.norms].concat())
}

/// `before` founders train for some rounds; then the members change to `after`. Each member that stays continues with the
/// batches it would have been assigned had it started there.
fn stays(before: u32, after: &BTreeSet<u32>, period: u64, rounds: u64) -> Result<(), TestCaseError> {
    let mut counts = Counts::new(before);
    let taken = period * rounds;
    let messages: Vec<(u32, RoundMessage)> = (0..before)
        .map(|worker| (worker, message(taken)))
        .chain(after.iter().filter(|worker| **worker >= before).map(|worker| (*worker, message(0))))
        .collect();
    counts.count(&messages);
    counts.deal_to(&after.iter().copied().collect::<Vec<_>>());
    for &worker in after.iter().filter(|worker| **worker < before) {
        let mut old = net(before, worker, taken - 1);
        step(&mut old, worker, taken - 1).unwrap();
        let (seat, next) = (counts.seat(worker).unwrap(), counts.place(worker, taken));
        old.assign_shard(seat, counts.among).unwrap();
        let mut fresh = net(counts.among, seat, next);
        for at in next..next + 2 {
            let (found, expected) = (step(&mut old, seat, at), step(&mut fresh, seat, at).unwrap());
            prop_assert_eq!(found, Ok(expected), "worker {} at step {}", worker, at);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A replica that is dealt another share reads that from then on, also where the step has the number of the last one taken.
    #[test]
    fn a_replica_reads_what_it_is_dealt(
        before in 1u32..=MOST - 1,
        after in proptest::collection::btree_set(0u32..12, 1..=MOST as usize),
        period in 1u64..=8,
        rounds in 1u64..=8,
    ) {
        stays(before, &after, period, rounds)?;
    }
}

/// The same where one more comes: here the first step among the more is often the last one taken among the fewer.
#[test]
fn a_replica_reads_what_it_is_dealt_when_one_more_comes() {
    for before in 1..MOST {
        for (period, rounds) in [(1, 1), (1, 5), (1, 8), (2, 2), (2, 4), (4, 2), (4, 3), (8, 1), (8, 2)] {
            stays(before, &(0..=before).collect(), period, rounds).unwrap();
        }
    }
}

//! The faults of a schedule.

use super::worker::Build;
use grawa_core::Stream;
use std::time::Duration;

/// Until when there are faults, from when on every worker must be in one round after the other, and when most simulations end.
pub(super) const CALM: Duration = Duration::from_secs(6);
pub(super) const SETTLED: Duration = Duration::from_secs(15);
const END: Duration = Duration::from_secs(20);

/// What may happen in a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Everything.
    Any,
    /// The coordinator's disk is slow, to the end, and workers join.
    SlowDisk,
    /// The coordinator is stopped for a while, and workers join.
    Pauses,
    /// Workers are slow and join, and the run ends.
    Stragglers,
}

impl Kind {
    pub(super) fn draw(draws: &mut Stream) -> Self {
        match draws.below(16) {
            0 => Kind::SlowDisk,
            1 => Kind::Pauses,
            2 => Kind::Stragglers,
            _ => Kind::Any,
        }
    }

    /// The rounds after which the run ends, if it does.
    pub(super) fn budget(self, draws: &mut Stream) -> Option<u64> {
        let budget = 2 + draws.below(if self == Kind::Any { 30 } else { 5 });
        (draws.below(4) == 0 || self == Kind::Stragglers).then_some(budget)
    }

    /// How long a write to the coordinator's disk takes, in milliseconds. In any schedule one of twenty is slow before the calm.
    pub(super) fn sync(self, now: Duration, mut below: impl FnMut(u64) -> u64) -> u64 {
        let most = match self {
            Kind::SlowDisk => 5000,
            Kind::Any if now < CALM && below(20) == 0 => (CALM - now).as_millis().min(5000) as u64,
            _ => 15,
        };
        below(most.max(15))
    }

    /// The longest from one round to the next when nothing else happens.
    pub(super) fn longest(self) -> Duration {
        Duration::from_secs(if self == Kind::SlowDisk { 20 } else { 3 })
    }

    /// When the simulation ends.
    pub(super) fn end(self) -> Duration {
        if self == Kind::SlowDisk { 2 * END } else { END }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// A process dies. If it starts again, it knows nothing.
    Crash { node: usize },
    /// A worker leaves after its next round.
    Leave { node: usize },
    /// A process is stopped for a while (SIGSTOP).
    Pause { node: usize, until: Duration },
    /// A worker cannot reach the coordinator.
    CutOff { node: usize, until: Duration },
    /// A worker cannot reach other workers.
    Silence { node: usize, until: Duration },
    /// A worker becomes slow.
    Slow { node: usize, times: u32 },
    /// The connection to the coordinator breaks, or those to other workers do.
    Break { node: usize, peers: bool },
    /// A worker sends other bits to one member than to the others.
    Forge { node: usize },
    /// The coordinator is stopped for a while.
    PauseCoordinator { until: Duration },
    /// The coordinator dies.
    CoordinatorDies,
    /// The coordinator starts, from what is in its journal.
    CoordinatorStarts,
    /// A worker starts, on a node that has none.
    Start { node: usize },
    /// One more worker joins.
    Join,
    /// One more worker joins, whose messages the others refuse.
    JoinOther { build: Build },
    /// All are asked to stop together.
    Stop,
    /// The network becomes slow, or quick again.
    Lag { milliseconds: u64 },
}

/// Numbers of faults.
const SLOW: u64 = 8;
const JOIN: u64 = 14;
const PAUSE: u64 = 18;
const STOP: u64 = 19;

/// A random schedule, in order of time, that ends calm.
pub(super) fn schedule(kind: Kind, draws: &mut Stream, founders: usize) -> Vec<(Duration, Fault)> {
    let mut faults = Vec::new();
    let mut nodes = founders;
    let times = 0..draws.below(if kind == Kind::Any { 9 } else { 5 });
    let mut times: Vec<u64> = times.map(|_| draws.below(CALM.as_millis() as u64)).collect();
    times.sort_unstable();
    for at in times.into_iter().map(Duration::from_millis) {
        let mut later = |most: u64| (at + Duration::from_millis(draws.below(most))).min(CALM);
        let (soon, late) = (later(1500), later(5000));
        let node = draws.below(nodes as u64) as usize;
        // What follows a fault stands behind it, also in the same millisecond: the sort keeps that order.
        let mut then = None;
        let which = match kind {
            Kind::Any if draws.below(60) == 0 => STOP,
            Kind::Any => draws.below(19),
            Kind::Stragglers => [JOIN, SLOW][draws.below(2) as usize],
            Kind::SlowDisk => JOIN,
            Kind::Pauses => [JOIN, PAUSE][draws.below(2) as usize],
        };
        let fault = match which {
            0..=2 => {
                then = (draws.below(3) > 0).then_some((late, Fault::Start { node }));
                Fault::Crash { node }
            }
            3 => Fault::Pause { node, until: soon },
            4 => Fault::Pause { node, until: late },
            5 => Fault::CutOff { node, until: soon },
            6 => Fault::CutOff { node, until: late },
            7 => Fault::Silence { node, until: late },
            STOP => Fault::Stop,
            SLOW => Fault::Slow { node, times: 1 + draws.below(20) as u32 },
            9 | 16 | 17 => Fault::Break { node, peers: draws.below(3) > 0 },
            10 => {
                then = Some((soon, Fault::CoordinatorStarts));
                Fault::CoordinatorDies
            }
            11 => Fault::Leave { node },
            12 => Fault::Lag { milliseconds: 1 + draws.below(300) },
            13 => Fault::Forge { node },
            JOIN => {
                nodes += 1;
                Fault::Join
            }
            PAUSE => Fault::PauseCoordinator { until: late },
            _ => {
                nodes += 1;
                let build = [Build::Garbled, Build::Wrong, Build::Faulty][draws.below(3) as usize];
                Fault::JoinOther { build }
            }
        };
        faults.push((at, fault));
        faults.extend(then);
    }
    faults.extend((0..nodes).map(|node| (CALM, Fault::Slow { node, times: 1 })));
    faults.push((CALM, Fault::Lag { milliseconds: 10 }));
    faults.sort_by_key(|(at, _)| *at);
    faults
}

/// A coordinator that dies starts again afterwards, also in the millisecond in which it died (seed 1133). Otherwise a schedule
/// would end without one, and find fault with the group.
#[test]
fn a_coordinator_that_dies_starts_again() {
    let (mut deaths, mut at_once) = (0, 0);
    for seed in 0..100_000 {
        let mut draws = grawa_core::Key::new(seed, grawa_core::Purpose::Problem).stream();
        let faults = schedule(Kind::Any, &mut draws, 3);
        let is_start = |fault: &Fault| matches!(fault, Fault::CoordinatorStarts);
        for (index, (at, _)) in
            faults.iter().enumerate().filter(|(_, (_, fault))| matches!(fault, Fault::CoordinatorDies))
        {
            let start = faults[index..].iter().find(|(_, fault)| is_start(fault));
            assert!(start.is_some(), "seed {seed}: {faults:?}");
            deaths += 1;
            at_once += u32::from(start.is_some_and(|(start, _)| start == at));
        }
    }
    assert!(
        deaths > 1000 && at_once > 0,
        "{deaths} deaths, {at_once} of them with a start in the same millisecond"
    );
}

//! What befalls a simulated group.

use super::{Happening, World};
use grawa_core::Stream;
use std::time::Duration;

/// Until when there are faults, from when on everyone must be in one round after the other, and when the simulation ends.
pub(super) const CALM: Duration = Duration::from_secs(12);
pub(super) const SETTLED: Duration = Duration::from_secs(24);
pub(super) const END: Duration = Duration::from_secs(45);

#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// A process dies; if it comes back, it knows nothing.
    Crash { node: usize, back: Option<Duration> },
    /// A worker leaves when it has met the others once more.
    Leave { node: usize },
    /// A process stops for a while (SIGSTOP).
    Pause { node: usize, until: Duration },
    /// A worker cannot reach the coordinator.
    CutOff { node: usize, until: Duration },
    /// A worker cannot reach other workers.
    Silence { node: usize, until: Duration },
    /// A worker becomes slow, or quick again.
    Slow { node: usize, times: u32 },
    /// The connection to the coordinator breaks.
    Break { node: usize },
    /// The coordinator dies, and another goes on from what it had written.
    Restart { back: Duration },
    /// The coordinator is back.
    Back,
    /// The process is back.
    Again { node: usize },
    /// Another worker comes.
    Join,
    /// The network becomes slow, or quick again.
    Lag { milliseconds: u64 },
}

/// A random schedule, and calm at its end.
pub(super) fn schedule(draws: &mut Stream, founders: usize) -> Vec<(Duration, Fault)> {
    let mut faults = Vec::new();
    let mut nodes = founders;
    for _ in 0..draws.below(9) {
        let at = Duration::from_millis(draws.below(CALM.as_millis() as u64));
        let mut later = |most: u64| (at + Duration::from_millis(draws.below(most))).min(CALM);
        let (soon, late) = (later(3000), later(9000));
        let node = draws.below(nodes as u64) as usize;
        let fault = match draws.below(15) {
            0..=2 => Fault::Crash { node, back: (draws.below(3) > 0).then_some(late) },
            3 => Fault::Pause { node, until: soon },
            4 => Fault::Pause { node, until: late },
            5 => Fault::CutOff { node, until: soon },
            6 => Fault::CutOff { node, until: late },
            7 => Fault::Silence { node, until: late },
            8 => Fault::Slow { node, times: 1 + draws.below(40) as u32 },
            9 => Fault::Break { node },
            10 => Fault::Restart { back: soon },
            11 => Fault::Leave { node },
            12 => Fault::Lag { milliseconds: 1 + draws.below(400) },
            _ => {
                nodes += 1;
                Fault::Join
            }
        };
        faults.push((at, fault));
    }
    for node in 0..nodes {
        faults.push((CALM, Fault::Slow { node, times: 1 }));
    }
    faults.push((CALM, Fault::Lag { milliseconds: 10 }));
    faults
}

impl World {
    pub(super) fn strike(&mut self, fault: Fault) {
        self.tell(|| format!("{fault:?}"));
        let exists = |node: usize| node < self.nodes.len();
        match fault {
            Fault::Crash { node, back } if exists(node) => {
                self.crash(node);
                if let Some(back) = back {
                    self.put(back, Happening::Fault(Fault::Again { node }));
                }
            }
            Fault::Leave { node } if exists(node) => self.nodes[node].is_leaving = true,
            Fault::Again { node } if self.nodes[node].worker.is_none() => self.start_worker(node),
            Fault::Pause { node, until } if exists(node) => {
                // Nothing that waits for the later end of a pause may be overtaken.
                self.nodes[node].paused = self.nodes[node].paused.max(until);
            }
            Fault::CutOff { node, until } if exists(node) => self.nodes[node].cut_off = until,
            Fault::Silence { node, until } if exists(node) => self.nodes[node].silenced = until,
            Fault::Slow { node, times } if exists(node) => self.nodes[node].slowness = times,
            Fault::Break { node } if exists(node) => {
                if let Some(session) = self.nodes[node].session {
                    self.hang_up(session, false);
                    if let Some(worker) = &mut self.nodes[node].worker {
                        worker.member.disconnected();
                    }
                    self.dial(node, 1);
                }
            }
            Fault::Restart { back } if self.coordinator.is_some() => {
                self.coordinator = None;
                for session in 0..self.sessions.len() as u64 {
                    self.hang_up(session, true);
                }
                self.put(back, Happening::Fault(Fault::Back));
            }
            Fault::Back if self.coordinator.is_none() => self.start_coordinator(),
            Fault::Join => self.add_worker(),
            Fault::Lag { milliseconds } => self.latency = milliseconds,
            _ => {}
        }
    }
}

//! Everything a run needs to be resumed: the state of each worker, of the groups, and the position.
//!
//! Workers store their parts and continue; the supervisor writes them to disk meanwhile. At most one snapshot is being written while the
//! next one is taken.

use crate::evaluate::viewing;
use crate::group_checkpoint::GroupCheckpoint;
use crate::milestones::Position;
use crate::round_message::Tally;
use crate::worker::{Note, Worker};
use crate::{Error, Evaluated, Times};
use grawa_comm::{Collective, Error as CommError};
use grawa_core::{Memory, Notes, Replica, Share, StateKind};
use grawa_nn::State;
use serde::{Deserialize, Serialize};
use std::sync::mpsc::Receiver;
use std::sync::{Mutex, PoisonError};

/// Everything a run needs to be resumed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Snapshot {
    pub(crate) at: Position,
    /// Up to where all that came due was done; nothing yet before the first step.
    pub(crate) settled: Option<Position>,
    /// It was taken because the run was asked to stop.
    pub(crate) stopped: bool,
    /// The budget is spent.
    pub(crate) finished: bool,
    /// The state of every worker that is left.
    pub(crate) parts: Vec<Part>,
    /// The state of every group of every level.
    pub(crate) memories: Vec<Vec<Memory>>,
    pub(crate) history: Vec<Evaluated>,
    /// The statistics of the evaluated model, if it was evaluated here.
    pub(crate) calibrated: Option<Vec<f32>>,
    /// The state of an elastic group.
    pub(crate) held: Option<GroupCheckpoint>,
}

/// The state of a worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) worker: u32,
    pub(crate) parameters: Vec<f32>,
    pub(crate) velocity: Vec<f32>,
    pub(crate) statistics: Vec<f32>,
    /// Its scores for each level of rounds.
    pub(crate) notes: Vec<Notes>,
    pub(crate) taken: u64,
    pub(crate) in_cycle: u64,
    pub(crate) loss: f64,
    pub(crate) finite: bool,
    pub(crate) diverged: bool,
    pub(crate) tally: Tally,
    pub(crate) past: Past,
    /// The centres of groups in which it is the first: level, group, centre.
    pub(crate) centres: Vec<(usize, usize, Vec<f32>)>,
}

impl Part {
    /// Takes the state of its network out of it.
    pub(crate) fn take_state(&mut self) -> State {
        State {
            parameters: std::mem::take(&mut self.parameters),
            statistics: std::mem::take(&mut self.statistics),
            batches: self.taken,
        }
    }

    /// The bytes, for another process. They hold the times that a checkpoint holds.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, CommError> {
        postcard::to_allocvec(&(self, self.past.times))
            .map_err(|error| CommError::Message { why: error.to_string() })
    }

    /// The part of `worker`, from its bytes.
    pub(crate) fn decode(worker: u32, bytes: &[u8]) -> Result<Self, Error> {
        let (mut part, times): (Part, Times) =
            postcard::from_bytes(bytes).map_err(|_| Error::Garbled { worker, found: bytes.len() })?;
        part.past.times = times;
        Ok(part)
    }
}

/// The work of a worker that events have reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Past {
    pub(crate) bytes: u64,
    #[serde(skip)]
    pub(crate) times: Times,
}

impl Past {
    pub(crate) fn add(&mut self, tally: &Tally) {
        self.times += tally.times;
        self.bytes += tally.bytes;
    }
}

/// The parts of the next snapshot.
#[derive(Debug)]
pub(crate) struct Snapshots {
    shelf: Mutex<Vec<Part>>,
    gate: Mutex<Gate>,
}

#[derive(Debug)]
struct Gate {
    written: Receiver<()>,
    is_writing: bool,
}

impl Snapshots {
    /// No parts yet; `written` receives a message for each snapshot that has been written.
    pub(crate) fn new(written: Receiver<()>) -> Self {
        let gate = Gate { written, is_writing: false };
        Snapshots { shelf: Mutex::default(), gate: Mutex::new(gate) }
    }

    fn put(&self, part: Part) {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner).push(part);
    }

    /// The parts of these workers, in their order.
    fn take(&self, members: &[u32]) -> Vec<Part> {
        let mut parts = std::mem::take(&mut *self.shelf.lock().unwrap_or_else(PoisonError::into_inner));
        parts.retain(|part| members.contains(&part.worker));
        parts.sort_by_key(|part| part.worker);
        parts
    }

    /// Waits until the snapshot before is written.
    fn wait(&self) {
        let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        if gate.is_writing {
            // There is no supervisor only when the run was given up.
            let _ = gate.written.recv();
        }
        gate.is_writing = true;
    }
}

impl<R: Replica, C: Collective<Buffer = R::Buffer>> Worker<R, C> {
    /// Stores this worker's part of a snapshot; one worker hands all parts to the supervisor.
    pub(crate) fn save(&mut self, stopped: bool, finished: bool) -> Result<(), Error> {
        let common = std::sync::Arc::clone(&self.common);
        // In an elastic group each worker is in its own process; the one that writes the checkpoint has the model of all.
        let elastic = self.elastic.is_some();
        if elastic {
            self.make_view()?;
        }
        let Some(snapshots) = common.snapshots.as_ref().filter(|_| !elastic || self.keeps()) else {
            return Ok(());
        };
        let shows = elastic && viewing(common.method.evaluate).is_some();
        let mut centres = Vec::new();
        for (index, level) in self.levels.iter().enumerate() {
            let is_first = elastic || level.member.members().first() == Some(&self.id);
            if common.method.share == Share::Parameters && is_first {
                centres.push((index, level.own, level.member.copy_centre()?));
            }
        }
        let mut past = self.past;
        past.times += self.tally.times;
        let part = Part {
            worker: self.id,
            parameters: if shows {
                self.view.copy_centre()?
            } else {
                self.replica.copy(StateKind::Parameters)?
            },
            velocity: self.replica.copy(StateKind::Velocity)?,
            statistics: self.replica.copy(StateKind::Statistics)?,
            notes: self.levels.iter().map(|level| level.tracker.notes().clone()).collect(),
            // In an elastic group an interrupted cycle begins again.
            taken: self.taken - if elastic { self.in_cycle } else { 0 },
            in_cycle: if elastic { 0 } else { self.in_cycle },
            loss: self.loss,
            finite: self.finite,
            diverged: self.diverged,
            tally: self.tally,
            past,
            centres,
        };
        let last = self.levels.len() - 1;
        let members = match (elastic, self.apart) {
            (true, _) => {
                snapshots.put(part);
                vec![self.id]
            }
            // The first worker gets all parts.
            (false, true) => {
                let handed = self.levels[last].member.hand_in(part.encode()?)?;
                drop(part);
                for (worker, bytes) in handed.messages {
                    snapshots.put(Part::decode(worker, &bytes)?);
                }
                handed.outcome.members
            }
            (false, false) => {
                snapshots.put(part);
                self.levels[last].member.barrier()?.members
            }
        };
        if elastic || self.is_first() {
            snapshots.wait();
            let evaluated = self.history.last().is_some_and(|last| last.at.steps == self.at.steps);
            let snapshot = Snapshot {
                at: self.at,
                settled: self.settled,
                stopped,
                finished,
                parts: snapshots.take(&members),
                memories: self.levels.iter().map(|level| level.memories.clone()).collect(),
                history: self.history.clone(),
                calibrated: Some(self.calibrated.clone()).filter(|_| evaluated && !stopped),
                held: self.held(stopped)?,
            };
            let _ = common.notes.send(Note::Snapshot(Box::new(snapshot)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything that a checkpoint keeps of a worker crosses to another process, a loss that is no number too.
    #[test]
    fn a_part_goes_both_ways() {
        let times = Times { compute: 3.5, ..Times::default() };
        let part = Part {
            worker: 3,
            parameters: vec![1.0, f32::MIN_POSITIVE],
            velocity: vec![-0.0, 2.0],
            taken: 7,
            loss: f64::INFINITY,
            past: Past { bytes: 9, times },
            centres: vec![(1, 0, vec![0.5])],
            ..Part::default()
        };
        let bytes = part.encode().unwrap();
        assert_eq!(Part::decode(3, &bytes).unwrap(), part);
        assert!(Part::decode(3, &bytes[1..]).is_err());
    }
}

//! A process enters an elastic group.

use crate::Error;
use crate::elastic::{Counts, ElasticState, Remembered, encode};
use crate::evaluate::saving;
use crate::membership::Membership;
use crate::milestones::Position;
use crate::process::{Common, Connections, Process};
use crate::snapshot::{GroupCheckpoint, Part, Snapshot};
use crate::worker_set::WorkerSet;
use grawa_comm::Collective;
use grawa_comm::group::{Joiner, TransferOptions};
use grawa_core::{Memory, Method};
use std::ops::Range;
use std::sync::Arc;

/// A process that has entered an elastic group.
pub struct Entered {
    member: (Membership, Box<dyn Collective>),
    workers: Range<u32>,
    founders: u32,
    memories: Vec<Vec<Memory>>,
    /// The state of the others, where they had begun.
    taken: Option<Vec<u8>>,
}

/// The workers of a process that joins.
pub fn workers_of(joiner: &Joiner) -> Range<u32> {
    joiner.worker..joiner.worker.saturating_add(joiner.workers)
}

/// The shard of the examples that a worker begins with. One beyond the founders has no examples before its first round, and reads none:
/// any shard will do.
pub fn first_shard(worker: u32, founders: u32) -> u32 {
    worker.min(founders.saturating_sub(1))
}

impl Entered {
    /// Takes part in the run of the coordinator that has accepted this joiner, from these parameters if the run is about to begin, or from
    /// a checkpoint of the run if no other member has a newer state.
    pub fn new(
        joiner: Joiner,
        method: &Method,
        founders: u32,
        parameters: Vec<f32>,
        checkpoint: Option<(GroupCheckpoint, Vec<f32>)>,
        options: TransferOptions,
    ) -> Result<Self, Error> {
        let (run, workers, counts) = (joiner.run(), workers_of(&joiner), Counts::new(founders));
        let memories = vec![vec![Memory::default()]];
        let start =
            Remembered { memories: memories.clone(), counts: counts.clone(), ..Remembered::default() };
        let view = if saving(method.evaluate).is_some() { parameters.len() } else { 0 };
        let (mut ends, taken) = match checkpoint.filter(|(kept, _)| kept.run == run) {
            Some((kept, centre)) => {
                joiner.enter_from(kept.meeting, kept.memory.into(), centre, &[view], options)?
            }
            None => {
                let mut centre = parameters;
                centre.resize(method.centre.state_len(centre.len()), 0.0);
                joiner.enter(encode(&start)?, centre, &[view], options)?
            }
        };
        let (Some(view), Some(member)) = (ends.pop(), ends.pop()) else {
            return Err(grawa_comm::Error::Message { why: "a group has two ends".into() }.into());
        };
        let elastic = ElasticState { run, counts, has_published: true, ..ElasticState::default() };
        let membership = Membership::Elastic(Box::new(member), Box::new(elastic));
        Ok(Entered { member: (membership, Box::new(view)), workers, founders, memories, taken })
    }

    /// Whether the run had begun.
    pub fn is_late(&self) -> bool {
        self.taken.is_some()
    }

    /// The process of these workers, whose parts are in their order.
    pub fn process(
        self,
        common: &Arc<Common>,
        set: Box<dyn WorkerSet>,
        mut parts: Vec<Part>,
    ) -> Result<Process, Error> {
        let Entered { member: (mut membership, view), workers, founders, memories, taken } = self;
        parts.iter_mut().zip(workers).for_each(|(part, worker)| part.worker = worker);
        let processes = vec![(membership.id(), parts.iter().map(|part| part.worker).collect())];
        let connections = Connections { membership, processes, view: Some(view), inner: Vec::new() };
        let snapshot =
            Snapshot { settled: Some(Position::default()), parts, memories, ..Snapshot::default() };
        let mut process = Process::new(common, set, snapshot, 0..u32::MAX, connections)?;
        for worker in &mut process.workers {
            worker.shard = first_shard(worker.id, founders);
            worker.division = Some((worker.shard, founders));
        }
        if let Some(state) = taken {
            process.restore_from(&state)?;
        }
        Ok(process)
    }
}
